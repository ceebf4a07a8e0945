"""One of an n-best list."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torchmetrics import Metric

from structlearn.costs import Cost, ZeroOne
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.features import CandidateMap, FeatureMap
from structlearn.metrics.chosen import ChosenF1
from structlearn.structures import Structure
from structlearn.tasks.base import Loss, OptimizerOf, Prediction, ScheduleOf, Task, adam


class Reranking(Task):
    """s(candidate) = sum of the weights of its features + <v, (log-probability, brackets)>; gold is the best by F1.

    Args:
        codec: :class:`RerankingCodec`.
        loss, cost, metric, optimizer, schedule, confidences: see :class:`Task`; 0/1 cost and bracket F1 by default.
        feature_map: in place of :class:`CandidateMap`.
        sparse_gradients: of the table of weights; needs an optimizer that takes them.

    For support vector machines over pairs of candidates and tree kernels see :class:`structlearn.reranking.
    VotingReranker`. Confidences are P(output | list), (B,).
    """

    def __init__(
        self,
        codec: Codec,
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
        super().__init__(codec, loss, cost or ZeroOne(), metric or ChosenF1(), optimizer, schedule, confidences)
        if feature_map is None:
            features, values = codec.num_features, codec.num_values  # type: ignore[attr-defined]
            feature_map = CandidateMap(features, values, sparse=sparse_gradients)
        self.feature_map = feature_map

    def forward(self, batch: Batch) -> Structure:
        return self.feature_map(batch.x)

    def scored(self, structure: Structure, output: Tensor, batch: Batch) -> tuple[Any, ...]:
        return output, batch.lengths

    def confidence(self, structure: Structure, output: Tensor) -> Tensor:
        return structure.marginals().scores.gather(-1, output.unsqueeze(-1)).squeeze(-1)

    def decoded(self, batch: Batch, prediction: Prediction) -> list[dict[str, Any]]:
        confidence = prediction.confidence
        shares = None if confidence is None else confidence.tolist()
        return self.rows(prediction.output.tolist(), prediction, shares)
