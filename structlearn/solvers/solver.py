"""What the three solvers share: bounds of the optimum, counters, limits."""

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
    """When to stop: no constraint violated by more than ``eps``, or (if given) gap <= ``gap`` * primal; or a limit."""

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


class Solver(ABC):
    """A round asks the oracle and improves the dual; ``best`` is the w with the lowest primal so far."""

    _scalars: tuple[str, ...] = (
        "primal", "dual", "violation", "rounds", "calls", "oracle_seconds", "qp_seconds", "added",
        "largest_cost", "largest_norm", "exact", "risk", "seconds", "threshold",
    )  # fmt: skip
    _tensors: tuple[str, ...] = ("w", "best")

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem, self.limits, self.formulation = problem, limits, problem.formulation
        self.w = torch.zeros(problem.dim, dtype=torch.float64)
        self.best = self.w.clone()
        self.primal, self.dual, self.violation, self.risk = math.inf, -math.inf, math.inf, math.inf
        self.rounds = self.calls = self.added = 0
        self.oracle_seconds = self.qp_seconds = self.seconds = 0.0
        self.largest_cost = self.largest_norm = 0.0
        self.threshold = limits.eps
        self.exact = True

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

    def certificate(self, settled: bool) -> Certificate:
        gap = self.primal - self.dual
        wanted = self.limits.gap
        converged, status = False, "running"
        if wanted is not None and math.isfinite(gap) and gap <= wanted * abs(self.primal):
            converged, status = True, f"gap at most {wanted:g} of the primal"
        elif settled and wanted is None:
            converged, status = True, f"no constraint is violated by more than eps={self.limits.eps:g}"
        elif settled:
            # What is left between eps and the gap lies in constraints violated by less.
            self.threshold /= 4
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
