"""Lambda-search for the most violated output, with a bound that proves it (after Choi, Meshi & Srebro 2016).

With x = Delta(gold, y) and h = 1 + s(y) - s(gold), H = phi(x, h) grows with h. The lambda-oracle

    v(lambda) = max_y h(y) + lambda x(y)

is a plain argmax with lambda * Delta added to the potentials. Every answer bounds all outputs at once,
h <= v - lambda x, so with the values x that Delta can take,

    max_y H(y) <= max_x phi(x, U(x)),   U(x) = min over answers (v - lambda x).

The search asks at the slope of phi's level line through the maximiser of that bound and stops when the best output
found reaches the bound. Where the answer's line passes through the maximiser again, no lambda can lower the bound and
the instance is left unproven; :func:`find` then counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.costs import Cost, Hamming
from structlearn.costs.hamming import MOST_LEVELS
from structlearn.errors import InferenceError
from structlearn.losses import planes
from structlearn.ops import chain_count as ops
from structlearn.structures import LinearChain, Structure
from structlearn.structures.counting import Counter

# Each round halves the gap or better on random chains; more than this means a flat bound.
MAX_ROUNDS = 40


def slope(x: Tensor, h: Tensor, rescaling: str, squared: bool) -> Tensor:
    """-dh/dx along the level line of phi through (x, h)."""
    x = x.clamp(min=torch.finfo(x.dtype).tiny)
    if rescaling == "slack":
        return h / x if not squared else h / (2.0 * x)
    return 1.0 / (2.0 * x.sqrt()) if squared else torch.ones_like(x)


def worth(x: Tensor, h: Tensor, rescaling: str, squared: bool) -> Tensor:
    """phi(x, h) = H."""
    size = x.sqrt() if squared else x
    return size * h if rescaling == "slack" else size + h - 1.0


def find(
    structure: Structure, gold: Any, cost: Cost, gold_score: Tensor, rescaling: str, squared: bool
) -> tuple[Any, Tensor]:
    """The most violated output and whether it is proven; unproven instances are solved by counting where possible."""
    native = on_chain(structure, gold, cost, gold_score, rescaling, squared, MAX_ROUNDS)
    if native is not None:
        return native
    additive, counted = cost.additive(structure, gold), cost.counted(structure, gold)
    if additive is not None:
        levels = None if counted is None else counted.values.flatten(1)
        best_y, proven = _rounds(structure, gold, cost, additive.parts, gold_score, levels, rescaling, squared)
    elif counted is not None and isinstance(counted.counter, Counter):
        best_y, proven = planes.find(structure, gold, cost, counted, gold_score, rescaling, squared)
    else:
        raise InferenceError(
            "cost", "one that is additive over parts for inference='search'", repr(cost), "use inference='exact'"
        )
    if counted is None or bool(proven.all()):
        return best_y, proven
    from structlearn.losses import violation

    y, exact = violation.find(structure, gold, cost, gold_score, rescaling, squared, "exact")
    return structure.choose(proven, best_y, y), proven | exact


def on_chain(
    chain: Structure, gold: Any, cost: Cost, gold_score: Tensor, rescaling: str, squared: bool, rounds: int
) -> tuple[Tensor, Tensor] | None:
    """The same search in one kernel, for chains and Hamming costs that can be counted; None for others.

    With ``rounds=0`` every instance is decided by counting.
    """
    if not isinstance(chain, LinearChain) or chain.backend != "cpu" or type(cost) is not Hamming:
        return None
    discount = weight = None
    unit = torch.ones_like(gold_score)
    size = chain.unary.shape[1] + 1
    if not cost.plain:
        discount, made = cost.discount(chain, gold), cost.multiples(chain, gold)
        if discount is None or made is None:
            return None
        weight, unit = made
        size = int(weight.sum(-1).max()) + 1 if weight.numel() else 1
        if size > MOST_LEVELS:
            return None
    levels = torch.arange(size, dtype=unit.dtype) * unit[:, None]
    labels, proven = ops.search(
        *chain._args, gold, discount, weight, levels, gold_score, rescaling == "slack", squared, rounds
    )
    return labels, proven > 0


def _largest_cost(structure: Structure, parts: dict[str, Tensor]) -> Tensor:
    """max_y Delta(gold, y) over allowed outputs, (B,)."""
    allowed = {name: torch.where(x == float("-inf"), x, 0.0) for name, x in structure.potentials.items()}
    return structure.replace(**allowed).plus(parts).max()


class _Bound:
    """max_x phi(x, U(x)) for U(x) = min_i (v_i - rate_i x), over given levels (B, S) or all x in 0..top, (B,)."""

    def __init__(self, levels: Tensor | None, top: Tensor, rescaling: str, squared: bool) -> None:
        self.levels = levels
        self.top = top
        self.options = (rescaling, squared)
        self.v: list[Tensor] = []
        self.rate: list[Tensor] = []

    def add(self, v: Tensor, rate: Tensor) -> None:
        self.v.append(v)
        self.rate.append(rate)

    def _upper(self, x: Tensor) -> Tensor:
        """U at x (B, M)."""
        v, rate = torch.stack(self.v, -1), torch.stack(self.rate, -1)
        return (v.unsqueeze(1) - rate.unsqueeze(1) * x.unsqueeze(-1)).amin(-1)

    def _candidates(self) -> Tensor:
        """Where phi(x, U(x)) can be largest: corners of U, and each line's own maximiser."""
        v, rate = torch.stack(self.v, -1), torch.stack(self.rate, -1)
        positive = rate.clamp(min=torch.finfo(rate.dtype).tiny)
        rescaling, squared = self.options
        if rescaling == "slack":
            own = v / ((3.0 if squared else 2.0) * positive)
        else:
            own = 1.0 / (4.0 * positive.square())
        across = rate.unsqueeze(-1) - rate.unsqueeze(-2)
        corners = (v.unsqueeze(-1) - v.unsqueeze(-2)) / torch.where(across == 0, 1.0, across)
        everything = torch.cat([own, torch.where(across == 0, 0.0, corners).flatten(1)], 1)
        inside = everything.nan_to_num(0.0, posinf=0.0, neginf=0.0).clamp(min=0.0)
        return torch.cat([torch.minimum(inside, self.top[:, None]), self.top[:, None]], 1)

    def largest(self) -> tuple[Tensor, Tensor, Tensor]:
        """The bound, the x that attains it and U there, (B,) each."""
        x = self._candidates() if self.levels is None else self.levels
        upper = self._upper(x)
        bound, at = worth(x, upper, *self.options).max(1)
        return bound, x.gather(1, at[:, None]).squeeze(1), upper.gather(1, at[:, None]).squeeze(1)


def _rounds(
    structure: Structure,
    gold: Any,
    cost: Cost,
    parts: dict[str, Tensor],
    gold_score: Tensor,
    levels: Tensor | None,
    rescaling: str,
    squared: bool,
) -> tuple[Any, Tensor]:
    finished = torch.zeros_like(gold_score, dtype=torch.bool)
    proven = torch.zeros_like(finished)
    best_y, best = structure.padded(gold), torch.zeros_like(gold_score)
    bounds = _Bound(levels, _largest_cost(structure, parts) if levels is None else best, rescaling, squared)
    rate, wanted = torch.zeros_like(gold_score), torch.full_like(gold_score, float("inf"))
    tolerance = 64 * torch.finfo(gold_score.dtype).eps
    for _ in range(MAX_ROUNDS):
        scaled = {name: part * rate.view(-1, *[1] * (part.dim() - 1)) for name, part in parts.items()}
        y = structure.plus(scaled).argmax()
        x, h = cost(structure, gold, y), 1.0 + structure.difference(y, gold)
        value = worth(x, h, rescaling, squared)
        better = (value > best) & ~finished
        best, best_y = torch.where(better, value, best), structure.choose(better, y, best_y)
        bounds.add(h + rate * x, rate)
        slack = tolerance * (1.0 + best.abs() + gold_score.abs())
        # The line asked at the bound's maximiser passes through it again: no other slope can lower it.
        stuck = h + rate * x >= wanted - slack
        bound, at, upper = bounds.largest()
        now = bound <= best + slack
        proven |= now & ~finished
        finished |= now | stuck
        if bool(finished.all()):
            break
        following = slope(at, upper, rescaling, squared)
        rate = torch.where(finished, rate, following)
        wanted = upper + rate * at
    return best_y, proven
