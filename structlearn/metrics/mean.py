"""The mean of a number that each example has."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class Mean(Metric):
    """``update(values)`` takes (B,); ``compute`` gives their mean over batches and processes.

    torchmetrics' own adds in place, which a state from ``torch.inference_mode`` does not allow.
    """

    higher_is_better = False
    is_differentiable = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        self.total, self.count = self.total + values.double().sum(), self.count + values.numel()

    def compute(self) -> Tensor:
        return self.total / self.count.clamp(min=1)
