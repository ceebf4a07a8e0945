"""1-slack cutting planes (Joachims, Finley and Yu 2009): one plane a round, the average over all examples.

    minimise 1/2 |w|^2 + C xi   under   xi >= b_t - <w, a_t> for the planes t = 1..T so far, xi >= 0

With the linear penalty a_t = 1/n sum a_i, b_t = 1/n sum b_i over the most violated outputs at w_t. The quadratic
penalty is as convex: its plane at w_t has a_t = 1/n sum xi_i a_i, b_t = 1/n sum (xi_i b_i - xi_i^2 / 2), and the
optimum is that of C/2n sum xi_i^2. The dual has T variables, tens to hundreds, whatever n.

Each example's last planes are cached: a plane made of the worst cached ones is tried before the oracle is asked.
Planes whose alpha stays 0 are dropped.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.solvers import qp as qps
from structlearn.solvers.planes import WorkingSet
from structlearn.solvers.problem import Problem
from structlearn.solvers.solver import Limits, Solver

PATIENCE = 50
# Rounds in a row that may live on cached planes.
CACHED_ROUNDS = 5


class OneSlack(Solver):
    """``cache``: planes kept for each example, 0 for none."""

    _tensors = ("w", "best", "planes", "lifted", "gram", "b", "alpha", "idle", "score")
    _scalars = (*Solver._scalars, "cached_rounds")

    def __init__(self, problem: Problem, limits: Limits, *, qp: str = "auto", cache: int = 5) -> None:
        super().__init__(problem, limits)
        if self.formulation.penalty == "hard":
            raise ArgumentError("solver", "'n_slack' with penalty='hard'", "'one_slack'", "it averages slacks")
        qps.check_method(qp)
        self.qp = qp
        self.planes = torch.zeros(0, problem.dim, dtype=torch.float64)
        self.lifted = self.planes
        self.gram = torch.zeros(0, 0, dtype=torch.float64)
        self.b = torch.zeros(0, dtype=torch.float64)
        self.alpha = self.b
        self.idle = torch.zeros(0, dtype=torch.int64)
        self.score = self.w.clone()  # what the oracle takes: w, or K w
        self.cached_rounds = 0
        self.cache = cache
        self.set = WorkingSet(problem.n, problem.dim, problem.rows) if cache and len(problem.rows) else None

    @property
    def constraints(self) -> int:
        return len(self.b)

    def reduce(self, a: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over all examples of sums over these; one process has them all."""
        return a, sums

    @property
    def examples(self) -> int:
        """n over all processes."""
        return self.n

    def _round(self) -> bool:
        slack = self._slack()
        if self._from_cache(slack):
            return False
        found = self.ask(self.score)
        xi, b = found.value, self.problem.bounds(found)
        weight = xi if self.formulation.squared else torch.ones_like(xi)
        a = self.problem.total(found, weight)
        offsets = xi * b - 0.5 * xi.square() if self.formulation.squared else b
        squares = xi.square() if self.formulation.squared else xi
        inexact = torch.tensor(float(not found.exact), dtype=torch.float64)
        a, sums = self.reduce(a, torch.stack([offsets.sum(), squares.sum(), inexact]))
        n = self.examples
        self.exact = self.exact and not bool(sums[2])
        risk = float(sums[1]) / n / (2 if self.formulation.squared else 1)
        primal = 0.5 * float(self.w @ self.score) + self.formulation.C * risk
        if primal < self.primal:
            self.primal, self.best, self.risk = primal, self.w.clone(), float(sums[1]) / n
        began = time.perf_counter()
        self.violation = risk - slack
        if self.set is not None:
            self._remember(found)
        settled = self.violation <= self.threshold
        if not settled:
            self._add(a / n, float(sums[0]) / n)
        self._optimise()
        self.qp_seconds += time.perf_counter() - began
        return settled

    @property
    def allowance(self) -> float:
        """xi is the mean penalty itself."""
        return self.formulation.C * self.limits.eps

    def _slack(self) -> float:
        """xi = max(0, max over the planes of b - <w, a>)."""
        if len(self.b) == 0:
            return 0.0
        return max(0.0, float((self.b - self.planes @ self.score).max()))

    def _remember(self, found: Any) -> None:
        assert self.set is not None
        fresh = found.take((found.value > self.set.slacks(self.score)[found.index] + 1e-9).nonzero().flatten())
        if len(fresh.index):
            self.set.add(self.problem.terms(fresh), self.problem.bounds(fresh), fresh.cost, fresh.index)
        if len(self.set) > 2 * self.cache * self.n:
            # The newest planes of each example stay: ``idle`` counts how many came after.
            block = self.set.block.view
            order = block.argsort(stable=True)
            counts = torch.bincount(block, minlength=self.n)
            rank = torch.empty_like(block)
            rank[order] = (counts.cumsum(0)[block[order]] - 1) - torch.arange(len(block))
            self.set.idle.set(rank)
            self.set.prune(self.cache)

    def _from_cache(self, slack: float) -> bool:
        """Adds the plane of the worst cached outputs if it is violated by more than half the gap, and says so."""
        if self.set is None or self.cached_rounds >= CACHED_ROUNDS or self.formulation.squared:
            self.cached_rounds = 0
            return False
        began = time.perf_counter()
        h = self.set.b.view - self.set.dots(self.score)
        xi = self.set.slacks(self.score)
        block = self.set.block.view
        top = ((h >= xi[block]) & (h > 0)).nonzero().flatten()
        first = torch.full((self.n,), -1, dtype=torch.int64)
        first.scatter_reduce_(0, block[top], top, "amax")
        chosen = torch.zeros_like(h)
        chosen[first[first >= 0]] = 1.0
        a, sums = self.reduce(self.set.weights(chosen), torch.stack([self.set.b.view @ chosen, xi.sum()]))
        n = self.examples
        excess = float(sums[1]) / n - slack
        gap = (self.primal - self.dual) / self.formulation.C
        use = excess > max(self.threshold, 0.5 * gap) if gap < float("inf") else False
        if use:
            self._add(a / n, float(sums[0]) / n)
            self._optimise()
        self.cached_rounds = self.cached_rounds + 1 if use else 0
        self.qp_seconds += time.perf_counter() - began
        return use

    def _add(self, a: Tensor, b: float) -> None:
        lifted = self.problem.lift(a)
        cross = self.planes @ lifted
        self.largest_norm = max(self.largest_norm, float(a @ lifted) ** 0.5)
        corner = (a @ lifted).view(1, 1)
        self.gram = torch.cat([torch.cat([self.gram, cross[:, None]], 1), torch.cat([cross[None], corner], 1)])
        self.planes = torch.cat([self.planes, a[None]])
        self.lifted = self.planes if lifted is a else torch.cat([self.lifted, lifted[None]])
        self.b = torch.cat([self.b, torch.tensor([b], dtype=torch.float64)])
        self.alpha = torch.cat([self.alpha, torch.zeros(1, dtype=torch.float64)])
        self.idle = torch.cat([self.idle, torch.zeros(1, dtype=torch.int64)])
        self.added += 1

    def _optimise(self) -> None:
        if len(self.b) == 0:
            return
        group = torch.zeros(len(self.b), dtype=torch.int64)
        program = qps.DualQP(self.gram, self.b, group, self.formulation.C)
        solution = qps.solve(program, self.qp, start=self.alpha, tolerance=0.05 * self.threshold)
        self.alpha = solution.alpha
        self.dual = max(self.dual, solution.dual)
        self.idle = torch.where(self.alpha > 0, 0, self.idle + 1)
        keep = self.idle <= PATIENCE
        if not bool(keep.all()):
            whole = self.lifted is self.planes
            self.planes, self.b, self.alpha, self.idle = (v[keep] for v in (self.planes, self.b, self.alpha, self.idle))
            self.lifted = self.planes if whole else self.lifted[keep]
            self.gram = self.gram[keep][:, keep]
        self.w = self.alpha @ self.planes
        self.score = self.w if self.lifted is self.planes else self.alpha @ self.lifted

    def state(self) -> dict[str, Any]:
        return {**super().state(), "set": None if self.set is None else self.set.state()}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        if self.set is not None:
            self.set.load(state["set"])
        if bool((self.planes == self.lifted).all()):
            self.lifted = self.planes
