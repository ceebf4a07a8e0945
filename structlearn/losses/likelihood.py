"""Probabilistic losses on the same potentials."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from structlearn.costs import Cost
from structlearn.errors import InferenceError
from structlearn.losses.hinge import Reduction, check_reduction, reduce
from structlearn.losses.violation import gold_scores
from structlearn.structures import Structure


class CRFLoss(nn.Module):
    """loss = log Z - s(gold) = -log p(gold): conditional log-likelihood.

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
        return reduce(structure.log_partition() - gold_score, self.reduction)


class SoftmaxMargin(nn.Module):
    """loss = log sum_y exp(s(y) + Delta(gold, y)) - s(gold): likelihood with the cost inside the partition function.

    Args:
        cost: Delta, additive over parts or 0/1.
        reduction: over the batch.
    """

    def __init__(self, cost: Cost, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_reduction(reduction)
        self.cost = cost
        self.reduction = reduction

    def forward(self, structure: Structure, gold: Any) -> Tensor:
        """The loss of ``structure`` for the true outputs ``gold``: (), or (B,) with reduction "none"."""
        gold_score = gold_scores(structure, gold)
        return reduce(self._augmented(structure, gold, gold_score) - gold_score, self.reduction)

    def _augmented(self, structure: Structure, gold: Any, gold_score: Tensor) -> Tensor:
        if (listed := self.cost.enumerated(structure, gold)) is not None:
            return (structure.score(structure.enumerate()) + listed).logsumexp(0)
        if self.cost.binary:
            # sum = e Z - (e - 1) exp(s(gold)) = e Z (1 - (1 - 1/e) p(gold))
            log_z = structure.log_partition()
            return 1.0 + log_z + torch.log1p(-(1.0 - torch.e**-1) * (gold_score - log_z).exp())
        additive = self.cost.additive(structure, gold)
        if additive is None:
            raise InferenceError(
                "cost", "one that is additive over parts, or 0/1", repr(self.cost), "use StructuredHinge, or Hamming"
            )
        return structure.plus(additive.parts).log_partition() + additive.constant

    def extra_repr(self) -> str:
        return repr(self.cost)
