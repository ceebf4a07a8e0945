"""1 - F1 over positions that carry a label of interest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.costs.base import Cost, Counted
from structlearn.errors import ArgumentError
from structlearn.structures import Structure
from structlearn.structures.counting import Counter


def one_minus_f1(matched: Tensor, predicted: Tensor, gold: Tensor) -> Tensor:
    """1 - 2 matched / (predicted + gold); 0 where nothing was there and nothing was predicted."""
    both = predicted + gold
    return torch.where(both > 0, 1.0 - 2.0 * matched / both.clamp(min=1), 0.0)


def f1_values(matched: int, predicted: int, gold: Tensor, dtype: torch.dtype) -> Tensor:
    """1 - F1 at (matched, predicted) for counts below the given sizes, (B, matched, predicted)."""
    m = torch.arange(matched, device=gold.device, dtype=dtype)[:, None]
    p = torch.arange(predicted, device=gold.device, dtype=dtype)
    return one_minus_f1(m, p, gold.to(dtype)[:, None, None]).clamp(min=0.0)


class F1(Cost):
    """Delta(gold, y) = 1 - 2 |right| / (|predicted| + |gold|) over positions whose label is not ``outside``.

    Args:
        outside: label(s) that do not count, such as O in tagging.

    right: positions where y and gold agree on a label that counts; predicted, gold: positions with such a label
    in y and in gold. Does not add up over positions, but is a function of (right, predicted).
    """

    def __init__(self, outside: int | tuple[int, ...] = 0) -> None:
        self.outside = (outside,) if isinstance(outside, int) else tuple(outside)

    def _counts(self, structure: Structure, labels: Tensor, mask: Tensor, classes: int) -> Tensor:
        if any(not 0 <= label < classes for label in self.outside):
            raise ArgumentError("outside", f"labels in 0..{classes - 1}", self.outside, "name labels of this structure")
        inside = torch.ones(classes, dtype=torch.bool, device=labels.device)
        inside[list(self.outside)] = False
        if structure.absent is not None:
            inside[structure.absent] = False
        return inside[labels] & mask

    def __call__(self, structure: Structure, gold: Any, y: Any) -> Tensor:
        labels, mask, classes, dtype = structure.positions(gold)
        given = structure.positions(y)[0]
        true, predicted = self._counts(structure, labels, mask, classes), self._counts(structure, given, mask, classes)
        right = true & (given == labels)
        return one_minus_f1(right.sum(-1).to(dtype), predicted.sum(-1).to(dtype), true.sum(-1).to(dtype))

    def counted(self, structure: Structure, gold: Any) -> Counted | None:
        labels, mask, classes, dtype = structure.positions(gold)
        true = self._counts(structure, labels, mask, classes)
        every = torch.arange(classes, device=labels.device).expand(*labels.shape, classes)
        counts = self._counts(structure, every, mask.unsqueeze(-1), classes)
        right = counts & (every == labels.unsqueeze(-1))
        sizes = (
            (int(true.sum(-1).max()) + 1, int(structure.position_counts(mask).max()) + 1) if labels.numel() else (1, 1)
        )
        increments = tuple(structure.parts_of_positions(x.long()) for x in (right, counts))
        return Counted(Counter(increments, sizes), f1_values(*sizes, true.sum(-1), dtype))
