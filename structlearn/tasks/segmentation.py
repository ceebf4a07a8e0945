"""A sentence cut into labelled segments."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric

from structlearn.costs import Cost, Hamming
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.features import FeatureMap, SegmentMap
from structlearn.metrics.segments import SegmentScore
from structlearn.structures import Structure
from structlearn.tasks.base import Loss, OptimizerOf, Prediction, ScheduleOf, Task, adam, encoder_size
from structlearn.tasks.tagging import by_position


class Segmentation(Task):
    """s(y) = sum over segments of <W_c, sum of Phi(x)_t inside> + width[w, c] + A[c', c]: a semi-Markov chain.

    Args:
        codec: :class:`SegmentationCodec`.
        encoder: x to (B, N, out_features).
        loss, cost, metric, optimizer, schedule, confidences: see :class:`Task`; Hamming loss over positions and F1 of
            segments by default.
        feature_map: in place of :class:`SegmentMap`.

    Confidences are P(segment | x) at the first word of each segment, (B, N), 0 elsewhere.
    """

    def __init__(
        self,
        codec: Codec,
        encoder: nn.Module,
        loss: Loss = "crf",
        cost: Cost | None = None,
        metric: Metric | None = None,
        *,
        feature_map: FeatureMap | None = None,
        optimizer: OptimizerOf = adam,
        schedule: ScheduleOf | None = None,
        confidences: bool = False,
    ) -> None:
        labels: int = codec.num_labels  # type: ignore[attr-defined]
        metric = SegmentScore(labels) if metric is None else metric
        super().__init__(codec, loss, cost or Hamming(), metric, optimizer, schedule, confidences)
        if feature_map is None:
            size, width = encoder_size(encoder, codec), codec.max_width  # type: ignore[attr-defined]
            feature_map = SegmentMap(size, labels, width, encoder=encoder)
        self.feature_map = feature_map

    def scored(self, structure: Structure, output: Tensor, batch: Batch) -> tuple[Any, ...]:
        return output, batch.gold

    def confidence(self, structure: Structure, output: Tensor) -> Tensor:
        segments = structure.marginals().segments.flatten(2)
        found = segments.gather(-1, output.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return found.masked_fill(output < 0, 0.0)

    def decoded(self, batch: Batch, prediction: Prediction) -> list[dict[str, Any]]:
        lengths = batch.lengths.tolist()
        outputs = [self.codec.decode(y, n) for y, n in zip(prediction.output, lengths, strict=True)]  # type: ignore[attr-defined]
        return self.rows(outputs, prediction, by_position(prediction.confidence, lengths))
