"""Shares of wrong labels and of wrong outputs.

error = (positions whose label is not gold's) / (positions),   wrong = (outputs with such a position) / (outputs)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from structlearn.errors import ShapeError
from structlearn.structures.base import PAD


class PositionError(Metric):
    """``update(predicted, gold)`` takes labels (B, N), or classes (B,), -100 where gold has none.

    Places of label sequences where either holds -100 are padding, as in what ``argmax`` returns.

    ``compute`` gives a dict of scalars: error, wrong, accuracy = 1 - error.
    """

    higher_is_better = False
    is_differentiable = False
    full_state_update = False
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("counts", torch.zeros(4, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, gold: Tensor) -> None:
        if predicted.shape != gold.shape:
            raise ShapeError("predicted", f"{tuple(gold.shape)}, as gold", tuple(predicted.shape), "pad with -100")
        real = (gold != PAD).reshape(len(gold), -1)
        if gold.dim() > 1:
            real = real & (predicted != PAD).reshape(len(gold), -1)
        off = (predicted != gold).reshape(len(gold), -1) & real
        self.counts = self.counts + torch.stack([off.sum(), real.sum(), off.any(1).sum(), real.any(1).sum()])

    def compute(self) -> dict[str, Tensor]:
        off, real, wrong, rows = (float(count) for count in self.counts)
        shares = {"error": off / max(real, 1.0), "wrong": wrong / max(rows, 1.0)}
        shares["accuracy"] = 1.0 - shares["error"]
        return {name: torch.tensor(value, device=self.counts.device) for name, value in shares.items()}
