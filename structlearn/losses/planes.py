"""Lambda-search over the statistics of a cost that is no sum over parts, such as 1 - F1.

With Delta = values[g(y)] for statistics g that do add up over parts, and h = 1 + s(y) - s(gold), the oracle

    v(a) = max_y h(y) + <a, g(y)>

is a plain argmax with a-weighted increments added to the potentials, and every answer bounds all outputs at once:

    max_y H(y) <= max_g phi(values[g], U(g)),   U(g) = min over answers (v - <a, g>).

The search asks at the slope of phi's level surface through the maximiser of that bound, as ``losses/search.py`` does
with one multiplier, and leaves an instance unproven where its answer touches the maximiser again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.costs import Cost, Counted
from structlearn.structures import Structure
from structlearn.structures.counting import Counter

MAX_ROUNDS = 40
# Any multiplier gives a valid bound; steeper ones than this only cost precision.
STEEPEST = 1e4


def find(
    structure: Structure,
    gold: Any,
    cost: Cost,
    counted: Counted,
    gold_score: Tensor,
    rescaling: str,
    squared: bool,
) -> tuple[Any, Tensor]:
    """The best output found and where the bound proves that it is the most violated one, (B,)."""
    from structlearn.losses.search import slope, worth

    counter, values = counted.counter, counted.values
    assert isinstance(counter, Counter)
    levels = values.flatten(1)
    grid = torch.cartesian_prod(*[torch.arange(size, device=levels.device) for size in counter.sizes])
    grid = grid.view(len(levels[0]), -1).to(levels.dtype)  # (G, k)
    steepness = torch.stack([_differences(values, j).flatten(1) for j in range(len(counter.sizes))], -1)  # (B, G, k)
    batch = len(gold_score)
    best_y, best = structure.padded(gold), torch.zeros_like(gold_score)
    finished = torch.zeros_like(gold_score, dtype=torch.bool)
    proven = torch.zeros_like(finished)
    upper = torch.full_like(levels, float("inf"))
    a = levels.new_zeros((batch, grid.shape[1]))
    wanted = torch.full_like(gold_score, float("inf"))
    tolerance = 64 * torch.finfo(levels.dtype).eps
    rows = torch.arange(batch, device=levels.device)
    for _ in range(MAX_ROUNDS):
        y, v = _ask(structure, counter, a)
        v = v + 1.0 - gold_score
        delta = cost(structure, gold, y)
        value = worth(delta, 1.0 + structure.difference(y, gold), rescaling, squared)
        better = (value > best) & ~finished
        best, best_y = torch.where(better, value, best), structure.choose(better, y, best_y)
        upper = torch.minimum(upper, v[:, None] - a @ grid.T)
        slack = tolerance * (1.0 + best.abs() + gold_score.abs() + v.abs())
        stuck = v >= wanted - slack
        bound, at = worth(levels, upper, rescaling, squared).max(1)
        now = bound <= best + slack
        proven |= now & ~finished
        finished |= now | stuck
        if bool(finished.all()):
            break
        rate = slope(levels[rows, at], upper[rows, at], rescaling, squared)
        following = (rate[:, None] * steepness[rows, at]).nan_to_num(0.0).clamp(-STEEPEST, STEEPEST)
        a = torch.where(finished[:, None], a, following)
        wanted = upper[rows, at] + (a * grid[at]).sum(-1)
    return best_y, proven


def _differences(values: Tensor, j: int) -> Tensor:
    """Central differences of values (B, S1[, S2]) along statistic j."""
    if values.shape[1 + j] < 2:
        return torch.zeros_like(values)
    (found,) = torch.gradient(values, dim=1 + j)
    return found


def _ask(structure: Structure, counter: Counter, a: Tensor) -> tuple[Any, Tensor]:
    """argmax_y s(y) + <a, g(y)> and its value, for a (B, k)."""
    parts: dict[str, Tensor] = {}
    for j, increments in enumerate(counter.increments):
        for name, step in increments.items():
            shared = step.unsqueeze(0) if step.dim() == 1 else step
            part = a[:, j].view(-1, *[1] * (shared.dim() - 1)) * shared
            parts[name] = parts[name] + part if name in parts else part
    tilted = structure.plus(parts)
    y = tilted.argmax()
    return y, tilted.score(y)
