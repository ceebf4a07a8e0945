"""Tasks learned by search: a beam finds outputs, and its errors move the weights; see :mod:`structlearn.search`.

Scores are linear in the weights. The weights that training goes on from and their average are two: validation, tests,
predictions, checkpoints and what is left after training have the average.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from structlearn.costs import Cost
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.errors import ArgumentError
from structlearn.features import TagSpanMap
from structlearn.search import SearchSpace, beam_search, space_of
from structlearn.search.steps import How, SearchSteps, When
from structlearn.structures import Structure
from structlearn.tasks.base import Task
from structlearn.tasks.parsing import Parsing
from structlearn.tasks.segmentation import Segmentation
from structlearn.tasks.tagging import Tagging


class BySearch(Task):
    """Manual optimisation by :class:`SearchSteps`; ``train/loss`` is the mean number of errors of a search."""

    steps: SearchSteps

    def learn_by_search(self, encoder: nn.Module | None, steps: SearchSteps) -> None:
        if encoder is not None and next(encoder.parameters(), None) is not None:
            remedy = "Tagging, Segmentation and Parsing train networks with loss: structlearn.search.StructureBeamLoss"
            expected = "one without parameters: updates are for linear scores"
            raise ArgumentError("encoder", expected, type(encoder).__name__, remedy)
        self.automatic_optimization = False
        self.steps = steps
        self._latest: list[Tensor] = []

    def space(self, structure: Any) -> SearchSpace[Any]:
        """What is searched."""
        return space_of(structure)

    def best(self, structure: Structure) -> Tensor:
        return beam_search(self.space(structure), self.steps.beam, recombine=self.steps.recombine).output

    def configure_optimizers(self) -> None:
        return None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        found = self.steps(lambda: self.space(self(batch)), batch.gold, weight=float(batch.share > 0))
        self.count_step()
        errors = found.errors.float().mean()
        self.log("train/loss", errors, prog_bar=True, batch_size=len(batch.places))
        self.log("train/lost", found.lost.float().mean(), batch_size=len(batch.places))
        return errors

    def heads(self) -> dict[str, Tensor]:
        """The weights by their names in a state."""
        return {f"feature_map.{name}": self.feature_map.get_parameter(name) for name in self.feature_map.head}

    @torch.no_grad()
    def _use_average(self) -> None:
        self._latest = [w.clone() for w in self.steps.update.weights]
        for weight, mean in zip(self.steps.update.weights, self.steps.update.averaged(), strict=True):
            weight.copy_(mean)

    @torch.no_grad()
    def _use_latest(self) -> None:
        for weight, kept in zip(self.steps.update.weights, self._latest, strict=True):
            weight.copy_(kept)
        self._latest = []

    def on_validation_start(self) -> None:
        self._use_average()

    def on_validation_end(self) -> None:
        self._use_latest()

    def on_test_start(self) -> None:
        self._use_average()

    def on_test_end(self) -> None:
        self._use_latest()

    def on_train_end(self) -> None:
        self.steps.update.settle()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        names = list(self.heads())
        # A callback may save while the average is in place.
        latest = self._latest or [w.detach() for w in self.steps.update.weights]
        update = self.steps.update
        averaged = [w.detach().clone() for w in update.weights] if self._latest else update.averaged()
        checkpoint["search"] = {"update": update.state_dict(), "latest": [w.clone() for w in latest]}
        checkpoint["state_dict"].update(zip(names, averaged, strict=True))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.steps.update.load_state_dict(checkpoint["search"]["update"])
        checkpoint["state_dict"].update(zip(self.heads(), checkpoint["search"]["latest"], strict=True))


class SearchTagging(BySearch, Tagging):
    """As :class:`Tagging`, learned and decoded by a beam from left to right.

    Args:
        codec: with sparse features, or any with dense ones and an ``encoder`` that hands them on.
        encoder: without parameters, such as :class:`Dense`.
        cost, metric, confidences: see :class:`Tagging`.
        beam, strategy, update, alpha, recombine, immediate: see :class:`SearchSteps`.
    """

    def __init__(
        self,
        codec: Codec,
        encoder: nn.Module | None = None,
        cost: Cost | None = None,
        metric: Metric | None = None,
        *,
        beam: int = 10,
        strategy: When = "laso",
        update: How = "alma",
        alpha: float = 0.9,
        recombine: bool = False,
        immediate: bool = False,
        confidences: bool = False,
    ) -> None:
        super().__init__(codec, encoder, "perceptron", cost, metric, sparse_gradients=True, confidences=confidences)
        weights = self.feature_map.head_parameters()
        options: dict[str, Any] = {"beam": beam, "strategy": strategy, "update": update, "alpha": alpha}
        self.learn_by_search(encoder, SearchSteps(weights, **options, recombine=recombine, immediate=immediate))


class SearchSegmentation(BySearch, Segmentation):
    """As :class:`Segmentation`, learned and decoded by a beam over whole segments.

    Args:
        codec: :class:`SegmentationCodec` with sparse features.
        cost, metric, confidences: see :class:`Segmentation`.
        beam, strategy, update, alpha, recombine, immediate: see :class:`SearchSteps`.
    """

    def __init__(
        self,
        codec: Codec,
        cost: Cost | None = None,
        metric: Metric | None = None,
        *,
        beam: int = 10,
        strategy: When = "laso",
        update: How = "alma",
        alpha: float = 0.9,
        recombine: bool = False,
        immediate: bool = False,
        confidences: bool = False,
    ) -> None:
        super().__init__(codec, None, "perceptron", cost, metric, sparse_gradients=True, confidences=confidences)
        weights = self.feature_map.head_parameters()
        options: dict[str, Any] = {"beam": beam, "strategy": strategy, "update": update, "alpha": alpha}
        self.learn_by_search(None, SearchSteps(weights, **options, recombine=recombine, immediate=immediate))


class SearchParsing(BySearch, Parsing):
    """As :class:`Parsing` of spans, by shift and reduce, with scores of parts of speech at their ends.

    Args:
        codec: :class:`ParsingCodec` of kind "spans".
        cost, metric, confidences: see :class:`Parsing`.
        beam, strategy, update, alpha, immediate: see :class:`SearchSteps`; the lattice strategy is for chains and
            segments.
        max_width: see :class:`TagSpanMap`.
    """

    def __init__(
        self,
        codec: Codec,
        cost: Cost | None = None,
        metric: Metric | None = None,
        *,
        beam: int = 10,
        strategy: When = "laso",
        update: How = "alma",
        alpha: float = 0.9,
        immediate: bool = False,
        max_width: int = 20,
        confidences: bool = False,
    ) -> None:
        tags, labels = len(codec.pos), len(codec.labels)  # type: ignore[attr-defined]
        feature_map = TagSpanMap(tags, labels, max_width=max_width)
        super().__init__(codec, None, "perceptron", cost, metric, feature_map=feature_map, confidences=confidences)
        weights = self.feature_map.head_parameters()
        options: dict[str, Any] = {"beam": beam, "strategy": strategy, "update": update, "alpha": alpha}
        self.learn_by_search(None, SearchSteps(weights, **options, immediate=immediate))
