"""Labels under constraints, in the three modes of :mod:`structlearn.constraints.training`."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import softplus
from torchmetrics import Metric

from structlearn import constraints
from structlearn.constraints.training import ConstrainedLearner as ConstrainedLearner
from structlearn.constraints.training import learnt_penalties
from structlearn.costs import Cost
from structlearn.data.batch import Batch
from structlearn.data.codecs.base import Codec
from structlearn.errors import ArgumentError
from structlearn.features import FeatureMap
from structlearn.structures import LinearChain, Structure
from structlearn.tasks.base import Loss, OptimizerOf, ScheduleOf, adam
from structlearn.tasks.tagging import Tagging


class Constrained(Tagging):
    """argmax of a chain over the outputs that a constraint allows.

    Args:
        codec, encoder, loss, cost, metric, optimizer, schedule, confidences, feature_map: see :class:`Tagging`.
        constraint: as text, such as ``"at_most(3, 'B-PP') & implies('B-VP', 'B-NP')"``, see
            :func:`structlearn.constraints.parse`.
        mode: "lo" leaves the constraint out, "l+i" keeps it in prediction alone, "ibt" in training too, where the
            penalties of its soft parts are learnt.
        method: how constrained outputs are found, see :class:`structlearn.constraints.Compiled`.

    For scorers of one's own and averaged perceptrons see :class:`ConstrainedLearner`.
    """

    def __init__(
        self,
        codec: Codec,
        constraint: str,
        encoder: nn.Module | None = None,
        loss: Loss = "hinge-margin",
        cost: Cost | None = None,
        metric: Metric | None = None,
        *,
        mode: Literal["lo", "l+i", "ibt"] = "l+i",
        method: Literal["auto", "automaton", "enumeration", "ilp"] = "auto",
        feature_map: FeatureMap | None = None,
        optimizer: OptimizerOf = adam,
        schedule: ScheduleOf | None = None,
        confidences: bool = False,
    ) -> None:
        super().__init__(
            codec,
            encoder,
            loss,
            cost,
            metric,
            feature_map=feature_map,
            optimizer=optimizer,
            schedule=schedule,
            confidences=confidences,
        )
        if mode not in ("lo", "l+i", "ibt"):
            raise ArgumentError("mode", "'lo', 'l+i' or 'ibt'", repr(mode), "'l+i' keeps constraints in prediction")
        self.mode = mode
        tags: tuple[str, ...] = codec.tags  # type: ignore[attr-defined]
        self.compiled = constraints.Compiled(constraints.parse(constraint), list(tags), method=method)
        learnt = mode == "ibt" and self.compiled.soft
        self.raw_penalty = learnt_penalties(self.compiled) if learnt else None

    @property
    def penalties(self) -> Tensor | None:
        """(S,) > 0 of the soft parts where they are learnt, None where they stay as written."""
        return None if self.raw_penalty is None else softplus(self.raw_penalty)

    def forward(self, batch: Batch) -> Structure:
        chain = super().forward(batch)
        assert isinstance(chain, LinearChain)
        if self.mode == "lo" or (self.mode == "l+i" and self.training):
            return chain
        return constraints.Constrained(chain, self.compiled, penalties=self.penalties)
