"""The linear tagger over sparse features, by steps that touch the rows of a batch alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from structlearn.costs import Cost
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.features import SparseChainMap
from structlearn.solvers.sparse_steps import SparseSteps, plan
from structlearn.tasks.base import Loss
from structlearn.tasks.tagging import Tagging


class SparseTagging(Tagging):
    """s(y) = sum_t sum_{j on at t} W[j, y_t] + A[y_{t-1}, y_t], trained by :class:`SparseSteps`, manual optimisation.

    Args:
        codec: :class:`TaggingCodec` with sparse features.
        loss, cost, metric, confidences: see :class:`Tagging`.
        step: of Adagrad; it falls to 0 over the steps of training.
        valid_only: only tag sequences that keep to the scheme, in decoding alone.

    Processes that train together exchange the gradients of the features that their sentences have.
    """

    def __init__(
        self,
        codec: Codec,
        loss: Loss = "crf",
        cost: Cost | None = None,
        metric: Metric | None = None,
        *,
        step: float = 0.1,
        valid_only: bool = False,
        confidences: bool = False,
    ) -> None:
        super().__init__(codec, None, loss, cost, metric, valid_only=valid_only, confidences=confidences)
        assert isinstance(self.feature_map, SparseChainMap)
        self.automatic_optimization = False
        if hasattr(self.loss, "reduction"):
            self.loss.reduction = "sum"  # type: ignore[assignment]
        self.steps = SparseSteps(self.feature_map, self.loss, step=step)

    def configure_optimizers(self) -> None:
        return None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        total = max(int(self.trainer.estimated_stepping_batches), 1)
        done = self.trainer.current_epoch * self.trainer.num_training_batches + batch_idx
        scale, weight = max(1 - done / total, 0.0), float(batch.share > 0)
        loss = self.steps(plan(batch.x.features, batch.lengths), batch.gold, scale=scale, weight=weight)
        self.count_step()
        self.log("train/loss", loss / len(batch.places), prog_bar=True, batch_size=len(batch.places))
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["squares"] = [self.steps.squares, self.steps.transition_squares]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        with torch.no_grad():
            for own, stored in zip(
                (self.steps.squares, self.steps.transition_squares), checkpoint["squares"], strict=True
            ):
                own.copy_(stored)
