"""Structured perceptron."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from structlearn.losses.hinge import Reduction, check_reduction, reduce
from structlearn.losses.violation import gold_scores
from structlearn.structures import Structure


class PerceptronLoss(nn.Module):
    """loss = max_y s(y) - s(gold) >= 0; its gradient is the perceptron update.

    Called as ``loss(structure, gold)``; () or, with reduction "none", (B,).

    Args:
        reduction: "mean", "sum" or "none", over the batch.
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction = reduction

    def forward(self, structure: Structure, gold: Any) -> Tensor:
        """The loss of ``structure`` for the true outputs ``gold``: (), or (B,) with reduction "none"."""
        gold_score = gold_scores(structure, gold)
        return reduce((structure.max() - gold_score).clamp(min=0.0), self.reduction)
