"""What all tasks share: inputs to a structure, a loss on it, scores of its best output.

    x --encoder, feature map--> structure --loss--> gradient;  structure.argmax() --metric, cost--> scores

A task is a LightningModule that names each of these in its constructor. Logged: ``train/loss``; ``val/...`` and
``test/...`` by the metric's own names, with ``cost``, the mean of Delta(gold, output).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric

from structlearn.costs import Cost
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.descriptions import Described
from structlearn.errors import ArgumentError
from structlearn.features import FeatureMap
from structlearn.losses.named import AnyLossName, loss_by_name
from structlearn.metrics.mean import Mean
from structlearn.saving import checkpoint_state
from structlearn.structures import Structure

Loss = AnyLossName | nn.Module
OptimizerOf = Callable[[Iterable[nn.Parameter]], Optimizer]
ScheduleOf = Callable[[Optimizer], LRScheduler]


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adam with a step of 0.001, what tasks use if not told otherwise."""
    return torch.optim.Adam(parameters, lr=1e-3)


class Prediction(NamedTuple):
    """The outputs of a batch: ``output`` as the structure gives it, ``score`` (B,) of it.

    ``confidence``, if asked for, is P(part | x) of the output's parts, see each task.
    """

    places: Tensor
    output: Tensor
    score: Tensor
    confidence: Tensor | None


class Task(Described, pl.LightningModule, ABC):
    """A structure over inputs, learned. Subclasses make ``feature_map`` and say how outputs are scored.

    Args:
        codec: of the data; on the command line the data module brings it.
        loss: a name of ``structlearn.losses.LOSS_NAMES`` or a module called on (structure, gold).
        cost: Delta, of the losses that have one, and reported.
        metric: a torchmetrics metric, updated with what :meth:`scored` gives.
        optimizer: parameters to an optimizer.
        schedule: an optimizer to a schedule that steps every epoch.
        confidences: predictions come with the probabilities of their parts.
    """

    feature_map: FeatureMap

    def __init__(
        self,
        codec: Codec,
        loss: Loss,
        cost: Cost,
        metric: Metric,
        optimizer: OptimizerOf = adam,
        schedule: ScheduleOf | None = None,
        confidences: bool = False,
    ) -> None:
        super().__init__()
        self.codec, self.cost, self.confidences = codec, cost, confidences
        self.loss = loss_by_name(loss, cost)
        self.optimizer, self.schedule = optimizer, schedule
        # Underscores: Lightning would take "train" or "test" for its own, and the two stages must not share a state.
        self.metrics = nn.ModuleDict({f"{stage}_": metric.clone() for stage in ("val", "test")})
        self.mean_costs = nn.ModuleDict({f"{stage}_": Mean() for stage in ("val", "test")})
        self._random: Tensor | None = None

    def forward(self, batch: Batch) -> Structure:
        """The scores of all outputs."""
        return self.feature_map(batch.x, batch.lengths)

    def objective(self, batch: Batch) -> Tensor:
        """The loss of a batch, (): what a training step minimises, and what may be compiled as a whole."""
        return self.loss(self(batch), batch.gold) * batch.share

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.objective(batch)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch.places))
        return loss

    @abstractmethod
    def scored(self, structure: Structure, output: Tensor, batch: Batch) -> tuple[Any, ...]:
        """What ``metric.update`` is called with."""

    def cost_of(self, structure: Structure, output: Tensor, batch: Batch) -> Tensor:
        """Delta(gold, output), (B,)."""
        return self.cost(structure, batch.gold, output)

    def best(self, structure: Structure) -> Tensor:
        """The output that is evaluated and predicted."""
        return structure.argmax()

    def _evaluate(self, batch: Batch, stage: str) -> None:
        structure = self(batch)
        output = self.best(structure)
        self.metrics[f"{stage}_"].update(*self.scored(structure, output, batch))  # type: ignore[operator]
        self.mean_costs[f"{stage}_"].update(self.cost_of(structure, output, batch))  # type: ignore[operator]

    def _report(self, stage: str) -> None:
        metric, cost = self.metrics[f"{stage}_"], self.mean_costs[f"{stage}_"]
        assert isinstance(metric, Metric)
        assert isinstance(cost, Metric)
        found = metric.compute()
        found = found if isinstance(found, dict) else {type(metric).__name__.lower(): found}
        found = {name: value for name, value in found.items() if "/" not in name}
        # Metrics have met their likes on other processes: the values are the same everywhere.
        for name, value in {**found, "cost": cost.compute()}.items():
            self.log(f"{stage}/{name}", value.float(), prog_bar=name in ("f1", "error"), rank_zero_only=False)
        metric.reset()
        cost.reset()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def on_validation_epoch_end(self) -> None:
        self._report("val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def on_test_epoch_end(self) -> None:
        self._report("test")

    @abstractmethod
    def confidence(self, structure: Structure, output: Tensor) -> Tensor:
        """P(part | x) of the parts of an output."""

    @torch.no_grad()
    def predict_step(self, batch: Batch, batch_idx: int = 0) -> Prediction:
        structure = self(batch)
        output = self.best(structure)
        confidence = self.confidence(structure, output) if self.confidences else None
        return Prediction(batch.places, output, structure.score(output), confidence)

    @abstractmethod
    def decoded(self, batch: Batch, prediction: Prediction) -> list[dict[str, Any]]:
        """Outputs as people read them, a dict with ``output``, ``score`` and perhaps ``confidence`` an example."""

    def rows(self, outputs: Sequence[Any], prediction: Prediction, confidences: Sequence[Any] | None) -> Any:
        """Outputs with their scores, and their confidences if there are any."""
        found = []
        for i, (output, score) in enumerate(zip(outputs, prediction.score.tolist(), strict=True)):
            row = {"output": output, "score": score}
            found.append(row if confidences is None else {**row, "confidence": confidences[i]})
        return found

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameters())
        if self.schedule is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self.schedule(optimizer)}

    def count_step(self) -> None:
        """Tells the trainer of a step that no optimizer of torch made: checkpoints are saved by their count."""
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["structlearn"] = checkpoint_state(self)
        checkpoint["random"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._random = checkpoint.get("random")

    def on_train_start(self) -> None:
        # Dropout goes on where it was, so that an interrupted run ends with the weights of an uninterrupted one.
        if self._random is not None:
            torch.set_rng_state(self._random.cpu())
            self._random = None


def encoder_size(encoder: nn.Module, codec: Codec) -> int:
    """Makes an encoder's parameters that depend on data; the size of Phi."""
    build = getattr(encoder, "build", None)
    if callable(build):
        build(codec)
    size = getattr(encoder, "out_features", None)
    if not isinstance(size, int):
        raise ArgumentError("encoder", "a module with out_features, the size of its output", size, "set the attribute")
    return size
