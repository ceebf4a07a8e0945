"""One class of an input, flat or in a taxonomy."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric

from structlearn.costs import Cost, TreeCost, ZeroOne
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.features import FeatureMap, MulticlassMap, TaxonomyMap
from structlearn.metrics import PositionError
from structlearn.structures import Structure
from structlearn.tasks.base import Loss, OptimizerOf, Prediction, ScheduleOf, Task, adam, encoder_size


class Classification(Task):
    """s(y) = <W_y, Phi(x)>, or sum over y and the nodes above it of <W_z, Phi(x)>.

    Args:
        codec: :class:`ClassificationCodec`.
        encoder: x to (B, out_features).
        loss, cost, metric, optimizer, schedule, confidences: see :class:`Task`; by default the tree cost where the
            classes have a taxonomy, 0/1 where not, and the share of wrong classes.
        feature_map: in place of the one that the taxonomy asks for.
        share_nodes: classes share the weights of the nodes above them; otherwise each has its own alone.

    Confidences are P(output | x), (B,).
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
        share_nodes: bool = True,
        optimizer: OptimizerOf = adam,
        schedule: ScheduleOf | None = None,
        confidences: bool = False,
    ) -> None:
        taxonomy = codec.taxonomy  # type: ignore[attr-defined]
        if cost is None:
            cost = ZeroOne() if taxonomy is None else TreeCost(taxonomy)
        super().__init__(codec, loss, cost, metric or PositionError(), optimizer, schedule, confidences)
        if feature_map is None:
            size = encoder_size(encoder, codec)
            if taxonomy is None or not share_nodes:
                feature_map = MulticlassMap(size, len(codec.classes), encoder=encoder)  # type: ignore[attr-defined]
            else:
                feature_map = TaxonomyMap(size, taxonomy, encoder=encoder)
        self.feature_map = feature_map

    def forward(self, batch: Batch) -> Structure:
        return self.feature_map(batch.x)

    def scored(self, structure: Structure, output: Tensor, batch: Batch) -> tuple[Any, ...]:
        return output, batch.gold

    def confidence(self, structure: Structure, output: Tensor) -> Tensor:
        return structure.marginals().scores.gather(-1, output.unsqueeze(-1)).squeeze(-1)

    def decoded(self, batch: Batch, prediction: Prediction) -> list[dict[str, Any]]:
        outputs = [self.codec.classes[k] for k in prediction.output.tolist()]  # type: ignore[attr-defined]
        confidence = prediction.confidence
        return self.rows(outputs, prediction, None if confidence is None else confidence.tolist())
