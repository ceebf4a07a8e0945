"""F1 of segments in the encoding of :mod:`structlearn.structures.segmentation`.

    precision = m / p,   recall = m / g,   F1 = 2 m / (p + g)

with g, p and m the numbers of gold, predicted and matched segments whose label counts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from structlearn.errors import ShapeError
from structlearn.structures.base import PAD


class SegmentScore(Metric):
    """``update(predicted, gold)`` takes segmentations (B, N); ``compute`` gives f1, precision, recall.

    Places where either holds -100 are padding, as in what ``argmax`` returns; the other one is not read there.

    Args:
        labels: C.
        outside: the label whose segments do not count.
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False
    counts: Tensor

    def __init__(self, labels: int, outside: int = 0) -> None:
        super().__init__()
        self.labels, self.outside = labels, outside
        self.add_state("counts", torch.zeros(3, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, gold: Tensor) -> None:
        if predicted.shape != gold.shape:
            raise ShapeError("predicted", f"{tuple(gold.shape)}, as gold", tuple(predicted.shape), "pad with -100")
        real = (predicted != PAD) & (gold != PAD)
        ours, theirs = (real & (y >= 0) & (y % self.labels != self.outside) for y in (predicted, gold))
        matched = ours & theirs & (predicted == gold)
        self.counts = self.counts + torch.stack([matched.sum(), ours.sum(), theirs.sum()])

    def compute(self) -> dict[str, Tensor]:
        matched, ours, theirs = (float(count) for count in self.counts)
        found = {
            "f1": 2 * matched / max(ours + theirs, 1.0),
            "precision": matched / max(ours, 1.0),
            "recall": matched / max(theirs, 1.0),
        }
        return {name: torch.tensor(value, device=self.counts.device) for name, value in found.items()}
