"""Local scorers trained alone or under the constraints: LO, L+I and IBT in one Lightning module.

    lo    train each part alone,       predict each part alone
    l+i   train each part alone,       predict argmax_{y in C(Y)} sum_t f_{y_t}(x, t)
    ibt   train under the constraints, predict under them: parts that the constrained argmax gets wrong are updated

With f the scores of a scorer, Y' = Y (lo, l+i) or C(Y) (ibt) and Delta the number of wrong parts,

    perceptron   max_{y in Y'} s(y) - s(gold)           hinge   max_{y in Y'} [Delta(gold, y) + s(y)] - s(gold)

so over Y the loss falls apart into one for each part, and over C(Y) loss-augmented inference keeps the constraints.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from structlearn.constraints.compiled import Compiled, Method
from structlearn.constraints.conflicts import gold_violations
from structlearn.constraints.constrained import Constrained, independent
from structlearn.constraints.language import Constraint
from structlearn.constraints.solution import Solution
from structlearn.constraints.statements import parse
from structlearn.costs import Hamming
from structlearn.errors import ArgumentError, LabelError
from structlearn.losses import PerceptronLoss, StructuredHinge
from structlearn.structures import LinearChain

Mode = Literal["lo", "l+i", "ibt"]
_CHOICES = {
    "mode": ("lo", "l+i", "ibt"),
    "loss": ("perceptron", "hinge"),
    "optimizer": ("sgd", "adam"),
    "broken_gold": ("raise", "skip"),
}


class Parts(NamedTuple):
    """A batch: what the scorer reads, gold labels (B, N), lengths (B,) and spans (B, N, 2) of the parts."""

    x: Any
    gold: Tensor
    lengths: Tensor | None = None
    spans: Tensor | None = None


def learnt_penalties(compiled: Compiled) -> nn.Parameter:
    """(S,) log(e^p - 1) of the penalties p as written, so that softplus of it stays > 0 and begins at p."""
    prices = [max(price, 1e-4) for price in compiled.penalties.tolist()]
    return nn.Parameter(torch.tensor([p + math.log(-math.expm1(-p)) for p in prices]))


def _rows(structure: Constrained, rows: Tensor) -> Constrained:
    """Some instances of a batch."""
    chain = structure.chain
    selected = LinearChain(
        chain.unary[rows],
        chain.transition if chain.transition.dim() == 2 else chain.transition[rows],
        start=chain.start,
        end=chain.end,
        lengths=None if chain.lengths is None else chain.lengths[rows],
        backend=chain.backend,
    )
    spans = None if structure.spans is None else structure.spans[rows]
    return Constrained(selected, structure.compiled, spans=spans, penalties=structure.penalties)


class ConstrainedLearner(pl.LightningModule):
    """Trains a local scorer in one of three modes; see the module's page.

    Args:
        scorer: turns ``batch.x`` into scores (B, N, C), or into a :class:`LinearChain`; linear or any network.
        constraint: what outputs must keep, or as text for :func:`~structlearn.constraints.parse`.
        labels: names of the C labels, or C.
        mode: "lo", "l+i" or "ibt".
        loss: "perceptron" or "hinge".
        optimizer: "sgd" (with learning rate 1 the perceptron) or "adam".
        learning_rate: of either.
        average: predict with the mean of the weights over all steps; sgd only.
        broken_gold: what ibt does with gold outputs outside C(Y): "raise" with the place, or "skip" and warn.
        method, time_limit, threads: see :class:`~structlearn.constraints.Compiled`.

    Penalties of soft constraints are parameters, kept positive, that ibt learns with the rest. Logs ``loss``, and in
    validation and test ``part`` (share of right parts) and ``whole`` (of instances without a wrong part).
    """

    def __init__(
        self,
        scorer: nn.Module,
        constraint: Constraint | str,
        labels: Sequence[str] | int,
        *,
        mode: Mode = "l+i",
        loss: Literal["perceptron", "hinge"] = "perceptron",
        optimizer: Literal["sgd", "adam"] = "sgd",
        learning_rate: float = 1.0,
        average: bool = False,
        broken_gold: Literal["raise", "skip"] = "raise",
        method: Method = "auto",
        time_limit: float = 60.0,
        threads: int = 2,
    ) -> None:
        super().__init__()
        given = {"mode": mode, "loss": loss, "optimizer": optimizer, "broken_gold": broken_gold}
        for name, value in given.items():
            if value not in _CHOICES[name]:
                raise ArgumentError(name, f"one of {_CHOICES[name]}", repr(value), f"use {_CHOICES[name][0]!r}")
        if average and optimizer != "sgd":
            raise ArgumentError("average", "False with adam", True, "averages are those of perceptron-like updates")
        names = labels if isinstance(labels, int) else list(labels)
        parsed = parse(constraint) if isinstance(constraint, str) else constraint
        self.compiled = Compiled(parsed, names, method=method, time_limit=time_limit, threads=threads)
        self.scorer, self.mode, self.broken_gold = scorer, mode, broken_gold
        self.objective = PerceptronLoss() if loss == "perceptron" else StructuredHinge(Hamming())
        self.optimizer, self.learning_rate, self.average = optimizer, learning_rate, average
        self.raw_penalty = learnt_penalties(self.compiled)
        self._steps = 0
        self._drift: list[Tensor] = []
        self._kept: list[Tensor] = []

    @property
    def penalties(self) -> Tensor:
        """(S,) > 0, of the soft constraints."""
        return softplus(self.raw_penalty)

    def free(self, batch: Any) -> LinearChain:
        """The scores without constraints."""
        scores = self.scorer(batch.x)
        return scores if isinstance(scores, LinearChain) else independent(scores, batch.lengths)

    def constrained(self, batch: Any) -> Constrained:
        """The scores under the constraints."""
        return Constrained(self.free(batch), self.compiled, spans=batch.spans, penalties=self.penalties)

    def solve(self, batch: Any, start: Tensor | None = None) -> Solution:
        """Best outputs under the constraints, how they were found and whether they are proven, whatever the mode."""
        with torch.no_grad():
            return self.constrained(batch).solve(start)

    def forward(self, batch: Any) -> Tensor:
        """Labels (B, N): the prediction of the mode."""
        with torch.no_grad():
            found: Tensor = self.free(batch).argmax() if self.mode == "lo" else self.constrained(batch).argmax()
        return found

    def loss(self, batch: Any) -> Tensor:
        """The loss of the mode, a mean over the batch."""
        if self.mode != "ibt":
            value: Tensor = self.objective(self.free(batch), batch.gold)
            return value
        return self._under_constraints(batch)

    def _under_constraints(self, batch: Any) -> Tensor:
        structure = self.constrained(batch)
        if self.broken_gold == "raise":
            value: Tensor = self.objective(structure, batch.gold)
            return value
        rows = self._allowed_rows(batch)
        if rows is None:
            value = self.objective(structure, batch.gold)
        elif len(rows):
            value = self.objective(_rows(structure, rows), batch.gold[rows]) * (len(rows) / len(batch.gold))
        else:
            value = self.raw_penalty.sum() * 0.0 + sum(p.sum() * 0.0 for p in self.scorer.parameters())
        return value

    def _allowed_rows(self, batch: Any) -> Tensor | None:
        """The rows whose gold outputs lie in C(Y), with a warning if some do not; None stands for all."""
        hard = self.compiled.hard
        broken = gold_violations(hard, batch.gold, self.compiled.labels, lengths=batch.lengths, spans=batch.spans)
        if not broken:
            return None
        outside = {violation.row for violation in broken}
        message = f"{len(outside)} gold outputs break constraints and are skipped; first: {broken[0]}"
        warnings.warn(message, stacklevel=2)
        rows = [b for b in range(len(batch.gold)) if b not in outside]
        return torch.tensor(rows, dtype=torch.int64, device=batch.gold.device)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        kind = torch.optim.SGD if self.optimizer == "sgd" else torch.optim.Adam
        return kind(self.parameters(), lr=self.learning_rate)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        value = self.loss(batch)
        self.log("loss", value.detach(), prog_bar=True, batch_size=len(batch.gold))
        return value

    @torch.no_grad()
    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Keeps sum_i i * update_i, from which the mean of all weights follows: mean = last - sum / steps."""
        if not self.average:
            return
        if not self._drift:
            self._drift = [torch.zeros_like(p) for p in self.parameters()]
        for total, p in zip(self._drift, self.parameters(), strict=True):
            if p.grad is not None:
                total.add_(p.grad, alpha=-self.learning_rate * self._steps)
        self._steps += 1

    @torch.no_grad()
    def use_average(self) -> None:
        """Puts averaged weights in place, until :meth:`use_latest`."""
        if self._drift and not self._kept:
            self._kept = [p.clone() for p in self.parameters()]
            for p, total in zip(self.parameters(), self._drift, strict=True):
                p.sub_(total, alpha=1.0 / self._steps)

    @torch.no_grad()
    def use_latest(self) -> None:
        """Puts the weights back that training goes on from."""
        for p, kept in zip(self.parameters(), self._kept, strict=bool(self._kept)):
            p.copy_(kept)
        self._kept = []

    def on_validation_start(self) -> None:
        self.use_average()

    def on_validation_end(self) -> None:
        self.use_latest()

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["average"] = (self._steps, self._drift)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._steps, self._drift = checkpoint["average"]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        real = self.free(batch).mask
        wrong = (self(batch) != batch.gold) & real
        size, parts = len(batch.gold), int(real.sum())
        self.log("part", 1.0 - wrong.sum() / max(parts, 1), prog_bar=True, batch_size=max(parts, 1))
        self.log("whole", 1.0 - wrong.any(1).float().mean(), batch_size=size)

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch)

    def check_gold(self, batch: Any) -> None:
        """Raises where a gold output breaks a hard constraint, with its place."""
        found = gold_violations(
            self.compiled.hard, batch.gold, self.compiled.labels, lengths=batch.lengths, spans=batch.spans
        )
        if found:
            raise LabelError("gold", "outputs that the constraint allows", found[0], "or pass broken_gold='skip'")
