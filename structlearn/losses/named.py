"""Losses by name, for configurations: one word swaps the learner."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from structlearn.costs import Cost
from structlearn.errors import ArgumentError
from structlearn.losses.hinge import StructuredHinge
from structlearn.losses.likelihood import CRFLoss, SoftmaxMargin
from structlearn.losses.perceptron import PerceptronLoss

LossName = Literal["crf", "hinge-margin", "hinge-slack", "squared-hinge-margin", "squared-hinge-slack"]
OtherName = Literal["softmax-margin", "perceptron"]
AnyLossName = LossName | OtherName
LOSS_NAMES: tuple[str, ...] = (*get_args(LossName), *get_args(OtherName))


def loss_by_name(loss: str | nn.Module, cost: Cost) -> nn.Module:
    """The loss of that name with ``cost`` as Delta; a module is taken as it is."""
    if isinstance(loss, nn.Module):
        return loss
    if loss not in LOSS_NAMES:
        raise ArgumentError("loss", f"one of {LOSS_NAMES}, or a module", repr(loss), "e.g. 'crf'")
    if loss == "crf":
        return CRFLoss()
    if loss == "perceptron":
        return PerceptronLoss()
    if loss == "softmax-margin":
        return SoftmaxMargin(cost)
    return StructuredHinge(cost, rescaling="slack" if "slack" in loss else "margin", squared="squared" in loss)
