"""Lightning modules of the learners: a scorer turns batches into search spaces, and training is search.

Batches are objects with a field ``gold``; ``scorer(batch)`` is a search space whose scores are functions of its
parameters. Both modules log, as means over sentences: ``errors``, ``lost`` (times that the queue lost its last good
state), ``first`` (layer of the first error, of sentences with one), and in validation ``wrong``, the share of
sentences whose output is not gold.
"""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from structlearn.search.beam import beam_search
from structlearn.search.loss import BeamSearchLoss
from structlearn.search.steps import How, SearchSteps, When
from structlearn.search.updates import Update
from structlearn.search.violations import Violations


class _Searching(pl.LightningModule):
    def __init__(self, scorer: nn.Module, beam: int, recombine: bool) -> None:
        super().__init__()
        self.scorer, self.beam, self.recombine = scorer, beam, recombine

    def forward(self, batch: Any) -> Any:
        """The output of a beam search for every sentence."""
        return beam_search(self.scorer(batch), self.beam, recombine=self.recombine).output

    def _report(self, found: Violations) -> None:
        b = len(found.errors)
        self.log("errors", found.errors.float().mean(), prog_bar=True, batch_size=b)
        self.log("lost", found.lost.float().mean(), batch_size=b)
        erred = found.first >= 0
        if bool(erred.any()):
            self.log("first", found.first[erred].float().mean(), batch_size=int(erred.sum()))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        wrong = (self(batch) != batch.gold).flatten(1).any(1)
        self.log("wrong", wrong.float().mean(), prog_bar=True, batch_size=len(wrong))


class SearchLearner(_Searching):
    """LaSO, early, max-violation and standard updates, made by the search itself: manual optimisation.

    Args:
        scorer: linear in its parameters.
        beam: K.
        strategy: when to update; "lattice" trains with exact search, whatever the beam.
        update: how to update.
        alpha: of ALMA.
        recombine: of hypotheses with equal futures keep the best alone.
        immediate: update at every error, see :class:`SearchSteps`.

    Validation and prediction use averaged weights. Checkpoints hold the state of the average and of ALMA.
    """

    def __init__(
        self,
        scorer: nn.Module,
        *,
        beam: int = 10,
        strategy: When = "laso",
        update: How = "alma",
        alpha: float = 0.9,
        recombine: bool = False,
        immediate: bool = False,
    ) -> None:
        super().__init__(scorer, beam, recombine)
        self.automatic_optimization = False
        options: dict[str, Any] = {"beam": beam, "strategy": strategy, "update": update, "alpha": alpha}
        self.steps = SearchSteps(scorer.parameters(), **options, recombine=recombine, immediate=immediate)
        self._kept: list[Tensor] = []

    @property
    def update(self) -> Update:
        """How weights move, with their average."""
        return self.steps.update

    def configure_optimizers(self) -> None:
        return None

    def training_step(self, batch: Any, batch_idx: int) -> None:
        found = self.steps(lambda: self.scorer(batch), batch.gold)
        self.log("updates", float(self.update.updates), prog_bar=True, batch_size=1)
        self._report(found)

    @torch.no_grad()
    def use_average(self) -> None:
        """Puts averaged weights in place, until :meth:`use_latest`."""
        self._kept = [w.clone() for w in self.update.weights]
        for weight, mean in zip(self.update.weights, self.update.averaged(), strict=True):
            weight.copy_(mean)

    @torch.no_grad()
    def use_latest(self) -> None:
        """Puts the weights back that training goes on from."""
        for weight, kept in zip(self.update.weights, self._kept, strict=True):
            weight.copy_(kept)
        self._kept = []

    def on_validation_start(self) -> None:
        self.use_average()

    def on_validation_end(self) -> None:
        self.use_latest()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["search_update"] = self.update.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.update.load_state_dict(checkpoint["search_update"])


class BeamSearchLearner(_Searching):
    """Beam-search optimisation of any encoder by Adam.

    Args:
        scorer: any module that makes search spaces.
        beam: K.
        margin: of :class:`BeamSearchLoss`.
        learning_rate: of Adam.
        recombine: of hypotheses with equal futures keep the best alone.
    """

    def __init__(
        self,
        scorer: nn.Module,
        *,
        beam: int = 5,
        margin: float = 1.0,
        learning_rate: float = 1e-3,
        recombine: bool = False,
    ) -> None:
        super().__init__(scorer, beam, recombine)
        self.loss = BeamSearchLoss(beam, margin=margin, recombine=recombine)
        self.learning_rate = learning_rate

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        space = self.scorer(batch)
        found = self.loss.violations(space, batch.gold)
        self._report(found)
        return self.loss.value(found, space.batch_size)
