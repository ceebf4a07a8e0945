"""Scores of predicted alignments against reference ones.

    Q (SP, sum of pairs) = |pairs(gold) & pairs(predicted)| / |pairs(gold)|
    TC (column score)    = |columns(gold) & columns(predicted)| / |columns(gold)|

over all instances together; a column is a pair (i, j), or a position that is aligned with nothing. With a mask, only
gold's operations that it marks are counted, as references are often sure of their core alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from structlearn.errors import ShapeError
from structlearn.structures import paths
from structlearn.structures.base import PAD


class AlignmentScores(NamedTuple):
    """Shares in 0..1; ``precision`` is the share of predicted pairs that gold has, core or not."""

    q: float
    column: float
    precision: float


def _columns(path: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The column of every operation, (B, P): partner codes that are equal where the columns are, kinds, and a mask."""
    real = path != PAD
    n, m = (((path != other) & real).sum(-1) for other in (paths.CONSUME_Y, paths.CONSUME_X))
    steps = paths.read(path, n, m)
    real = real & steps.real
    width = path.shape[-1] + 1
    i = torch.where(steps.op == paths.CONSUME_Y, width - 1, steps.i)
    j = torch.where(steps.op == paths.CONSUME_X, width - 1, steps.j)
    return i * width + j, (steps.op == paths.MATCH) & real, real


def _counts(predicted: Tensor, gold: Tensor, core: Tensor | None) -> Tensor:
    """Pairs found, gold's pairs, columns found, gold's columns, pairs found in all, predicted pairs; (6,) int64."""
    if predicted.shape != gold.shape or gold.dim() != 2:
        raise ShapeError(
            "predicted", f"(B, N+M) = {tuple(gold.shape)}, as gold", tuple(predicted.shape), "pad with -100"
        )
    if core is not None and core.shape != gold.shape:
        raise ShapeError("core", f"{tuple(gold.shape)}, as gold", tuple(core.shape), "one flag an operation of gold")
    code, match, real = _columns(gold)
    other, other_match, other_real = _columns(predicted)
    everywhere = match
    # Codes of padding differ between the sides, so that they are never found.
    ours, theirs = code.masked_fill(~real, -1), other.masked_fill(~other_real, -2).sort(-1).values
    place = torch.searchsorted(theirs, ours).clamp(max=max(theirs.shape[-1] - 1, 0))
    found = theirs.gather(-1, place) == ours if theirs.shape[-1] else torch.zeros_like(real)
    if core is not None:
        match, real = match & core, real & core
    parts = (found & match, match, found & real, real, found & everywhere, other_match)
    return torch.stack([part.sum() for part in parts])


def _scores(counts: Tensor) -> AlignmentScores:
    pairs, gold_pairs, columns, gold_columns, right, predicted = counts.tolist()
    return AlignmentScores(_share(pairs, gold_pairs), _share(columns, gold_columns), _share(right, predicted))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def alignment_scores(predicted: Tensor, gold: Tensor, core: Tensor | None = None) -> AlignmentScores:
    """The scores of paths (B, N+M), padded with -100; ``core`` (B, N+M) bool marks gold's operations that count.

    >>> alignment_scores(torch.tensor([[0, 1, 2]]), torch.tensor([[0, 0, -100]]))
    AlignmentScores(q=0.5, column=0.5, precision=1.0)
    """
    return _scores(_counts(predicted, gold, core))


class AlignmentScore(Metric):
    """:func:`alignment_scores` over batches and processes; ``compute`` gives a dict of scalars q, column, precision."""

    higher_is_better = True
    is_differentiable = False
    full_state_update = False
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("counts", torch.zeros(6, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, gold: Tensor, core: Tensor | None = None) -> None:
        self.counts = self.counts + _counts(predicted, gold, core)

    def compute(self) -> dict[str, Tensor]:
        found = _scores(self.counts)._asdict()
        return {name: torch.tensor(value, device=self.counts.device) for name, value in found.items()}


def decoy_error(chosen: Tensor, homologue: Tensor) -> float:
    """Share of instances whose chosen candidate (B,) is not the homologue (B,)."""
    if chosen.shape != homologue.shape:
        raise ShapeError("chosen", f"{tuple(homologue.shape)}, as homologue", tuple(chosen.shape), "one a native")
    return float((chosen != homologue).double().mean()) if chosen.numel() else 0.0
