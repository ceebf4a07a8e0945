"""Parts of speech and chunks at once, by search."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from structlearn.costs import Hamming
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.errors import ArgumentError
from structlearn.metrics import ChunkF1
from structlearn.search import JointSpace, beam_search
from structlearn.search.joint_tagger import JointBatch, JointScorer
from structlearn.search.steps import How, SearchSteps, When
from structlearn.structures.base import PAD
from structlearn.tasks.base import Prediction
from structlearn.tasks.searching import BySearch


class JointTagging(BySearch):
    """argmax over pairs of tag sequences of the score of :class:`JointSpace`, learned and found by a beam.

    Args:
        codec: :class:`JointCodec`.
        metric: of chunk tags; F1 of segments by default.
        beam, strategy, update, alpha, immediate: see :class:`SearchSteps`; there is no exact search, so no lattice.

    The reported cost is the number of wrong tags of a sentence, of both kinds. There are no confidences.
    """

    def __init__(
        self,
        codec: Codec,
        metric: Metric | None = None,
        *,
        beam: int = 10,
        strategy: When = "laso",
        update: How = "alma",
        alpha: float = 0.9,
        immediate: bool = False,
    ) -> None:
        chunks: tuple[str, ...] = codec.chunks  # type: ignore[attr-defined]
        super().__init__(codec, "perceptron", Hamming(), metric or ChunkF1(chunks, "BIO"))
        if strategy == "lattice":
            raise ArgumentError("strategy", "one for a beam", repr(strategy), "this space has no exact search")
        self.scorer = JointScorer(codec)  # type: ignore[arg-type]
        weights = self.scorer.parameters()
        options: dict[str, Any] = {"beam": beam, "strategy": strategy, "update": update, "alpha": alpha}
        self.learn_by_search(None, SearchSteps(weights, **options, immediate=immediate))

    def forward(self, batch: Batch) -> Any:
        return self.scorer(JointBatch(batch.x.features, batch.lengths, batch.gold))

    def space(self, structure: Any) -> JointSpace:
        return structure

    def heads(self) -> dict[str, Tensor]:
        return {f"scorer.{name}": weight for name, weight in self.scorer.named_parameters()}

    def scored(self, structure: Any, output: Tensor, batch: Batch) -> tuple[Any, ...]:
        return output[..., 1], batch.gold[..., 1]

    def cost_of(self, structure: Any, output: Tensor, batch: Batch) -> Tensor:
        return ((output != batch.gold) & (output != PAD)).sum((1, 2)).float()

    def confidence(self, structure: Any, output: Tensor) -> Tensor:
        raise ArgumentError("confidences", "False", True, "a beam knows no probabilities")

    @torch.no_grad()
    def predict_step(self, batch: Batch, batch_idx: int = 0) -> Prediction:
        if self.confidences:
            self.confidence(None, batch.places)
        found = beam_search(self(batch), self.steps.beam)
        return Prediction(batch.places, found.output, found.score, None)

    def decoded(self, batch: Batch, prediction: Prediction) -> list[dict[str, Any]]:
        pairs = zip(prediction.output, batch.lengths.tolist(), strict=True)
        outputs = [self.codec.decode(y, n) for y, n in pairs]  # type: ignore[attr-defined]
        return self.rows(outputs, prediction, None)
