"""Statistics that add up over the parts of an output, and the best output for each of their values.

With integer statistics g(y) that are sums over parts, a dynamic program can carry them beside the state:

    table[g] = max { s(y) : g(y) = g }.

Any objective that depends on y only through s(y) and g(y), and grows with s(y), is then maximised exactly by
looking through the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Counter:
    """One or two statistics as increments of parts.

    ``increments[j]`` maps names of potentials to int64 tensors >= 0 shaped like them (or broadcastable to them);
    statistic j of any output lies in 0..sizes[j]-1.
    """

    increments: tuple[dict[str, Tensor], ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries of the table."""
        return prod(self.sizes)

    def flat(self, field: str) -> Tensor | None:
        """The increment of the row-major index into the table, for one field; None if the field has none."""
        total: Tensor | None = None
        stride = self.size
        for increment, size in zip(self.increments, self.sizes, strict=True):
            stride //= size
            if field in increment:
                step = increment[field] * stride
                total = step if total is None else total + step
        return total


@dataclass(frozen=True)
class CountTable:
    """``table`` (B, S1[, S2]): the best score for each value of the statistics, -inf where no output has it.

    ``decode(index)`` takes (B, k) values of the k statistics and returns outputs that attain those entries.
    """

    table: Tensor
    decode: Callable[[Tensor], Any]


@dataclass(frozen=True)
class CountedBest:
    """The output that maximises offset[g(y)] + slope[g(y)] * s(y)."""

    y: Any
    index: Tensor  # (B,) row-major index of its statistics
    value: Tensor  # (B,) the maximum, -inf where no output is allowed


def pick(table: Tensor, offset: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Row-major index and value of the largest offset + slope * table, (B,) each; -inf entries never win.

    Finite values beyond the table's dtype become its largest or lowest number.
    """
    flat = table.flatten(1)
    forbidden = (flat == float("-inf")) | (offset.flatten(1) == float("-inf"))
    finite = flat.masked_fill(forbidden, 0.0)
    objective = offset.flatten(1).masked_fill(forbidden, 0.0) + slope.flatten(1) * finite
    limit = torch.finfo(objective.dtype)
    objective = objective.clamp(limit.min, limit.max).masked_fill(forbidden, float("-inf"))
    value, _ = objective.max(1)
    index = torch.where(objective == value[:, None], torch.arange(flat.shape[1], device=flat.device), flat.shape[1])
    return index.amin(1).clamp_(max=flat.shape[1] - 1), value


def unravel(index: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """(B,) row-major indices to (B, k) values of the statistics."""
    return torch.stack(torch.unravel_index(index, sizes), -1)


@dataclass(frozen=True)
class LabelCounter:
    """Statistics of a label sequence that an automaton counts while reading it, for :class:`LinearChain`.

    Reading label c after label p (p = C before the first) at a position of class k in state q moves to state
    ``next[k, q, p, c]`` and adds ``step[k, q, p, c]`` to the row-major index of the statistics; after the last
    label c, ``last[q, c]`` is added. The automaton starts in state 0. Shapes: classes (B, N), next and step
    (K, Q, C+1, C), last (Q, C), all int64.
    """

    classes: Tensor
    next: Tensor
    step: Tensor
    last: Tensor
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries of the table."""
        return prod(self.sizes)
