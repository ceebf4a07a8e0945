"""What the three solvers share: bounds of the optimum, counters, limits.

A solver converged where its certificate proves it: primal - dual is at most what was asked for, both computed from the
definitions, and every answer of the oracle was exact. If no constraint is violated any more but the gap is still wider,
the threshold of the violations falls until the gap is closed, or until float64 has no digits left to close it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.solvers.certificate import Certificate
from structlearn.solvers.problem import Found, Problem


@dataclass(frozen=True)
class Limits:
    """When to stop: no constraint violated by more than ``eps``, or (if given) gap <= ``gap`` * primal; or a limit.

    ``eps`` also bounds the gap, by what violations of ``eps`` can add to the objective (:meth:`Formulation.allowance`).
    """

    eps: float = 1e-2
    gap: float | None = None
    max_rounds: int = 1000
    max_seconds: float = math.inf

    def __post_init__(self) -> None:
        for name, value in (("eps", self.eps), ("gap", self.gap)):
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ArgumentError(name, "a finite number > 0", repr(value), "exact optima take for ever")
        if not isinstance(self.max_rounds, int) or self.max_rounds < 1:
            raise ArgumentError(
                "max_rounds", "an integer >= 1", repr(self.max_rounds), "a round asks every example once"
            )
        if not self.max_seconds > 0:
            raise ArgumentError("max_seconds", "a number > 0", repr(self.max_seconds), "leave it out for no limit")


# A threshold this far below eps lies in the rounding of the violations.
SMALLEST_SHARE = 1e-15


class Solver(ABC):
    """A round asks the oracle and improves the dual; ``best`` is the w with the lowest primal so far."""

    alone = True  # whether no other process waits for this one

    _scalars: tuple[str, ...] = (
        "primal", "dual", "violation", "rounds", "calls", "oracle_seconds", "qp_seconds", "added",
        "largest_cost", "largest_norm", "exact", "risk", "mean_slack", "seconds", "threshold", "stopped",
    )  # fmt: skip
    _tensors: tuple[str, ...] = ("w", "best")

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem, self.limits, self.formulation = problem, limits, problem.formulation
        self.w = torch.zeros(problem.dim, dtype=torch.float64)
        self.best = self.w.clone()
        # alpha = 0 has the dual value 0.
        self.primal, self.dual, self.violation = math.inf, 0.0, math.inf
        self.risk = self.mean_slack = math.inf
        self.rounds = self.calls = self.added = 0
        self.oracle_seconds = self.qp_seconds = self.seconds = 0.0
        self.largest_cost = self.largest_norm = 0.0
        self.threshold = limits.eps
        self.exact = True
        self.stopped = False  # whether more rounds cannot improve the certificate

    @property
    def n(self) -> int:
        return self.problem.n

    @abstractmethod
    def _round(self) -> bool:
        """One round; whether nothing is violated by more than the threshold any more."""

    @property
    @abstractmethod
    def constraints(self) -> int:
        """|S|."""

    def round(self) -> Certificate:
        """One round and what is known after it."""
        began = time.perf_counter()
        settled = self._round()
        self.rounds += 1
        self.seconds += time.perf_counter() - began
        return self.certificate(settled)

    @property
    def allowance(self) -> float:
        """The widest gap that ``eps`` allows."""
        return self.formulation.allowance(self.limits.eps, self.primal, self.mean_slack)

    def tighten(self) -> None:
        """Makes the next round look for smaller violations."""
        self.threshold /= 4

    def certificate(self, settled: bool) -> Certificate:
        gap = self.primal - self.dual
        wanted = self.limits.gap
        if wanted is None:
            precise = settled and gap <= self.allowance
            status = f"no constraint is violated by more than eps={self.limits.eps:g}"
        else:
            precise = math.isfinite(gap) and gap <= wanted * abs(self.primal)
            status = f"gap at most {wanted:g} of the primal"
        converged = precise and self.exact
        if precise and not self.exact:
            self.stopped = True
            status = "the oracle finds nothing more, but did not prove all of its answers: use inference='exact'"
        elif settled and not precise:
            # What is left between the threshold and the gap lies in constraints violated by less.
            self.tighten()
            self.stopped = self.threshold < SMALLEST_SHARE * self.limits.eps
        if not precise:
            status = "float64 cannot close the gap any further" if self.stopped else "running"
        bound = self.formulation.bound(self.n, self.threshold, self.largest_cost, self.largest_norm)
        return Certificate(
            self.rounds, self.primal, self.dual, self.violation, self.constraints, self.added, bound, self.risk,
            self.calls, self.oracle_seconds, self.qp_seconds, self.seconds, self.exact, converged, status,
        )  # fmt: skip

    def ask(self, w: Tensor, index: Tensor | None = None) -> Found:
        """The oracle, timed."""
        began = time.perf_counter()
        found = self.problem.oracle(w, index)
        self.oracle_seconds += time.perf_counter() - began
        self.calls += len(found.index)
        self.exact = self.exact and found.exact
        if len(found.cost):
            self.largest_cost = max(self.largest_cost, float(found.cost.max()))
        return found

    def certify(self, w: Tensor, norm: float, xi: Tensor) -> None:
        """Takes w as the best if its primal, from every example's slack, is the lowest."""
        primal = self.formulation.primal(norm, xi, self.n)
        if primal < self.primal:
            self.primal, self.best = primal, w.clone()
            self.risk = float((xi.square() if self.formulation.squared else xi).mean())
            self.mean_slack = float(xi.mean())
            if self.formulation.penalty == "hard":
                self.best = self.best / (1 - float(xi.max()))

    def note_norm(self, squares: Tensor, found: Found) -> None:
        """R of the bound is that of dPsi, without the rescaling; ``squares`` are |a|^2 of the planes found."""
        unscaled = squares.clamp(min=0).sqrt() / self.formulation.scale(found.cost).clamp(min=1e-300)
        self.largest_norm = max(self.largest_norm, float(unscaled.max()))

    def state(self) -> dict[str, Any]:
        """Everything that the next round depends on."""
        scalars = {name: getattr(self, name) for name in self._scalars}
        return {**scalars, **{name: getattr(self, name).clone() for name in self._tensors}}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from ``state``."""
        for name in self._scalars:
            setattr(self, name, state[name])
        for name in self._tensors:
            setattr(self, name, state[name].clone())
