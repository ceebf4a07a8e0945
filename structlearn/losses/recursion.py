"""The one-best-partial heuristic for H (paper 2 §1.4.1), kept to compare with.

It runs Viterbi, but each state keeps only the partial output whose own value f(Delta) (1 + d) (or f(Delta) + d) is
largest so far. A partial that is worse now can win later, so the result can fall short of the maximum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.costs import Cost
from structlearn.errors import InferenceError
from structlearn.structures import LinearChain, Structure
from structlearn.structures.base import PAD
from structlearn.structures.counting import Counter


def heuristic(structure: Structure, gold: Any, cost: Cost, gold_score: Tensor, rescaling: str, squared: bool) -> Any:
    """Labels (B, N) of a chain whose counts are increments of single labels."""
    counted = cost.counted(structure, gold)
    if not isinstance(structure, LinearChain) or counted is None or not isinstance(counted.counter, Counter):
        raise InferenceError(
            "inference",
            "'exact' or 'search' for this structure and cost",
            f"'recursion' with {type(structure).__name__} and {cost!r}",
            "the recursion is defined for chains with Hamming or F1 over positions",
        )
    steps = counted.counter.flat("unary")
    assert steps is not None
    size = counted.values.flatten(1)
    size = size.sqrt() if squared else size
    return _viterbi(structure, steps, size, 1.0 - gold_score, rescaling)


def _viterbi(chain: LinearChain, steps: Tensor, size: Tensor, base: Tensor, rescaling: str) -> Tensor:
    b, n, c = chain.unary.shape
    mask = chain.mask
    unary = chain.unary.detach().masked_fill(~mask[..., None], 0.0)
    lengths = mask.sum(1)
    if n == 0:
        return torch.empty((b, 0), dtype=torch.int64, device=unary.device)

    def value(score: Tensor, count: Tensor) -> Tensor:
        weight = size.gather(1, count.flatten(1)).view_as(count)
        worth = weight + score if rescaling == "margin" else weight * score
        return worth.masked_fill(score == float("-inf"), float("-inf"))

    score = base[:, None] + unary[:, 0] + (0.0 if chain.start is None else chain.start.detach())
    count = steps[:, 0].expand(b, c)
    back = []
    for t in range(1, n):
        matrix = chain.transition.detach()
        moved = score[:, :, None] + (matrix if matrix.dim() == 2 else matrix[:, t - 1]) + unary[:, t, None, :]
        counts = (count[:, :, None] + steps[:, t, None, :]).clamp(max=size.shape[1] - 1)
        best = value(moved, counts).max(1).indices
        used = (lengths > t)[:, None]
        score = torch.where(used, moved.gather(1, best[:, None]).squeeze(1), score)
        count = torch.where(used, counts.gather(1, best[:, None]).squeeze(1), count)
        back.append(torch.where(used, best, torch.arange(c, device=best.device)))
    final = score if chain.end is None else score + chain.end.detach()
    label = value(final, count).max(1).indices
    labels = [label]
    for best in reversed(back):
        label = best.gather(1, label[:, None]).squeeze(1)
        labels.append(label)
    # Beyond a length the back-pointers repeat the last label, so the mask only has to hide them.
    return torch.stack(labels[::-1], 1).masked_fill(~mask, PAD)
