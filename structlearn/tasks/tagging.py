"""A label for every token."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torchmetrics import Metric

from structlearn.constraints import ChainMask
from structlearn.costs import Cost, Hamming
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.errors import ArgumentError
from structlearn.features import ChainMap, FeatureMap, SparseChainMap
from structlearn.metrics import ChunkF1, PositionError
from structlearn.structures import LinearChain, Structure
from structlearn.tasks.base import Loss, OptimizerOf, Prediction, ScheduleOf, Task, adam, encoder_size


class Tagging(Task):
    """s(y) = sum_t <W_{y_t}, Phi(x)_t> + A[y_{t-1}, y_t], argmax by Viterbi.

    Args:
        codec: :class:`TaggingCodec`, or any with ``tags`` and ``scheme``.
        encoder: x to (B, N, out_features); None scores the codec's sparse features by a table of weights.
        loss, cost, metric, optimizer, schedule, confidences: see :class:`Task`. By default Hamming loss, and F1 of
            segments where the tags have a scheme, the share of wrong labels where not.
        feature_map: in place of the one made from ``window`` and ``order``.
        window: positions to either side whose Phi also scores a label.
        order: 1, or 2 for a second-order chain.
        valid_only: only tag sequences that keep to the scheme, in training and decoding.
        sparse_gradients: of the table of weights; needs an optimizer that takes them.

    Confidences are P(y_t = output_t | x), (B, N).
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
        window: int = 0,
        order: Literal[1, 2] = 1,
        valid_only: bool = False,
        sparse_gradients: bool = False,
        optimizer: OptimizerOf = adam,
        schedule: ScheduleOf | None = None,
        confidences: bool = False,
    ) -> None:
        tags, scheme = codec.tags, codec.scheme  # type: ignore[attr-defined]
        if metric is None:
            metric = ChunkF1(tags, scheme) if scheme else PositionError()
        super().__init__(codec, loss, cost or Hamming(), metric, optimizer, schedule, confidences)
        if feature_map is None and encoder is None:
            if not getattr(codec, "num_features", 0):
                raise ArgumentError("encoder", "a module, or data with sparse features", None, "make data sparse=True")
            feature_map = SparseChainMap(codec.num_features, len(tags), sparse=sparse_gradients)  # type: ignore[attr-defined]
        elif feature_map is None and encoder is not None:
            feature_map = ChainMap(encoder_size(encoder, codec), len(tags), encoder=encoder, window=window, order=order)
        assert feature_map is not None
        self.feature_map = feature_map
        if valid_only and scheme is None:
            raise ArgumentError("valid_only", "False for labels without a scheme", True, "leave it out")
        self.mask = ChainMask.from_tags(tags, scheme) if valid_only and scheme else None

    def forward(self, batch: Batch) -> Structure:
        structure = super().forward(batch)
        if self.mask is None:
            return structure
        assert isinstance(structure, LinearChain)
        return self.mask(structure)

    def scored(self, structure: Structure, output: Tensor, batch: Batch) -> tuple[Any, ...]:
        return output, batch.gold

    def confidence(self, structure: Structure, output: Tensor) -> Tensor:
        unary = structure.marginals().unary
        found = unary.gather(-1, output.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return found.masked_fill(output < 0, 0.0)

    def decoded(self, batch: Batch, prediction: Prediction) -> list[dict[str, Any]]:
        lengths = batch.lengths.tolist()
        outputs = [self.codec.decode(y, n) for y, n in zip(prediction.output, lengths, strict=True)]  # type: ignore[attr-defined]
        return self.rows(outputs, prediction, by_position(prediction.confidence, lengths))


def by_position(confidence: Tensor | None, lengths: list[int]) -> list[list[float]] | None:
    """Probabilities (B, N) as lists of each example's own length."""
    if confidence is None:
        return None
    return [[round(p, 6) for p in row[:n].tolist()] for row, n in zip(confidence, lengths, strict=True)]
