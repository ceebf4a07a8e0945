"""A sentence cut into labelled segments."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric

from structlearn.costs import Cost, Hamming
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.errors import ArgumentError
from structlearn.features import FeatureMap, SegmentMap, SparseSegmentMap
from structlearn.metrics.segments import SegmentScore
from structlearn.structures import Structure
from structlearn.tasks.base import Loss, OptimizerOf, Prediction, ScheduleOf, Task, adam, encoder_size
from structlearn.tasks.tagging import by_position


class Segmentation(Task):
    """s(y) = sum over segments of <W_c, sum of Phi(x)_t inside> + width[w, c] + A[c', c]: a semi-Markov chain.

    Args:
        codec: :class:`SegmentationCodec`.
        encoder: x to (B, N, out_features); None scores the codec's sparse features by a table of weights.
        loss, cost, metric, optimizer, schedule, confidences: see :class:`Task`; Hamming loss over positions and F1 of
            segments by default.
        feature_map: in place of :class:`SegmentMap`, or :class:`SparseSegmentMap` where there is no encoder.
        sparse_gradients: of the table of weights; needs an optimizer that takes them.

    Confidences are P(segment | x) at the first word of each segment, (B, N), 0 elsewhere.
    """

    def __init__(
        self,
        codec: Codec,
        encoder: nn.Module | None = None,
        loss: Loss = "crf",
        cost: Cost | None = None,
        metric: Metric | None = None,
        *,
        feature_map: FeatureMap | None = None,
        sparse_gradients: bool = False,
        optimizer: OptimizerOf = adam,
        schedule: ScheduleOf | None = None,
        confidences: bool = False,
    ) -> None:
        labels: int = codec.num_labels  # type: ignore[attr-defined]
        metric = SegmentScore(labels) if metric is None else metric
        super().__init__(codec, loss, cost or Hamming(), metric, optimizer, schedule, confidences)
        width: int = codec.max_width  # type: ignore[attr-defined]
        if feature_map is None and encoder is None:
            features: int = codec.num_features  # type: ignore[attr-defined]
            if not features:
                raise ArgumentError("encoder", "a module, or data with sparse features", None, "make data sparse=True")
            feature_map = SparseSegmentMap(features, labels, width, sparse=sparse_gradients)
        elif feature_map is None and encoder is not None:
            feature_map = SegmentMap(encoder_size(encoder, codec), labels, width, encoder=encoder)
        assert feature_map is not None
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
