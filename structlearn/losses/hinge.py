"""Structured hinge losses.

    xi = max_y H(y)   (H as in losses/violation.py; xi >= 0 since H(gold) = 0)
    loss = xi, or xi^2 with ``squared``; either bounds Delta(gold, argmax_y s(y)) from above.

Subgradient, with y the maximiser: margin  d xi = d s(y) - d s(gold); slack  d xi = f(Delta) (d s(y) - d s(gold)).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from structlearn.costs import Cost, Hamming
from structlearn.errors import ArgumentError
from structlearn.losses.violation import Inference, Rescaling, check_options, find, gold_scores, objective
from structlearn.structures import LinearChain, Structure

Reduction = Literal["mean", "sum", "none"]


def reduce(loss: Tensor, reduction: str) -> Tensor:
    """Mean, sum, or each instance's own loss (B,); the mean over no instances is 0."""
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" and loss.shape[0] else loss.sum()


def check_reduction(reduction: str) -> None:
    """One of the three reductions."""
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError("reduction", "'mean', 'sum' or 'none'", repr(reduction), "use 'mean'")


class StructuredHinge(nn.Module):
    """loss = max_y H(y), or its square; H(y) = Delta + s(y) - s(gold) (margin) or Delta (1 + s(y) - s(gold)) (slack).

    Args:
        cost: Delta.
        rescaling: "margin" (SVM1-margin, SVM2-margin) or "slack".
        squared: the squared penalty, with sqrt(Delta) inside; loss (max_y H)^2.
        inference: how to maximise H, see :func:`most_violated`.
        reduction: over the batch.
    """

    def __init__(
        self,
        cost: Cost,
        *,
        rescaling: Rescaling = "margin",
        squared: bool = False,
        inference: Inference = "exact",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        if not isinstance(cost, Cost):
            raise ArgumentError(
                "cost", "a structlearn.costs.Cost", type(cost).__name__, "e.g. structlearn.costs.Hamming()"
            )
        check_options(rescaling, inference)
        check_reduction(reduction)
        self.cost = cost
        self.rescaling = rescaling
        self.squared = squared
        self.inference = inference
        self.reduction = reduction

    def forward(self, structure: Structure, gold: Any) -> Tensor:
        """The loss of ``structure`` for the true outputs ``gold``: (), or (B,) with reduction "none"."""
        loss = self._violations(structure, gold)
        return reduce(loss.square() if self.squared else loss, self.reduction)

    def _violations(self, structure: Structure, gold: Any) -> Tensor:
        """max_y H(y) >= 0, (B,), differentiable."""
        if self.rescaling == "margin" and not self.squared and self.inference != "recursion":
            fast = self._fused_margin(structure, gold)
            if fast is not None:
                return fast
        with torch.no_grad():
            gold_score = gold_scores(structure, gold)
            y, _ = find(structure, gold, self.cost, gold_score, self.rescaling, self.squared, self.inference)
            delta = self.cost(structure, gold, y)
        return objective(delta, structure.difference(y, gold), self.rescaling, self.squared).clamp(min=0.0)

    def _fused_margin(self, structure: Structure, gold: Any) -> Tensor | None:
        """Delta + s(y) - s(gold) from one kernel, for costs that only depend on gold's labels."""
        if not isinstance(structure, LinearChain) or structure.backend != "cpu" or type(self.cost) is not Hamming:
            return None
        if self.cost.plain:
            return structure.margin_violation(gold, None)
        discount = self.cost.discount(structure, gold)
        return None if discount is None else structure.margin_violation(gold, discount)

    def extra_repr(self) -> str:
        return f"{self.cost!r}, rescaling={self.rescaling!r}, squared={self.squared}, inference={self.inference!r}"
