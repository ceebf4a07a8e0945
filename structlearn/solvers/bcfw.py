"""Block-coordinate Frank-Wolfe with pairwise steps (after Lacoste-Julien et al. 2013), a few examples at a time.

    for a batch of examples:  y_i = argmax_y H_i(y) at the present w;  keep its plane
        move alpha_i from the plane of lowest slope to that of highest, by exact line search; w follows
    between batches: the same steps over the planes already kept, without the oracle

Examples are drawn by how much they could gain when last seen (gap sampling; Osokin et al. 2016). A round draws n
examples, then asks all of them once at one w: that gives the certificate, every example's gap and fresh planes.
With the quadratic penalty there is no box to move within and steps change one multiplier.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.solvers.planes import WorkingSet
from structlearn.solvers.problem import Found, Problem
from structlearn.solvers.solver import Limits, Solver

# A plane that was dropped and is needed again costs one answer of the oracle; keeping thousands costs every pass.
PATIENCE = 1
# Measured on OCR letters, 626 words, to a relative gap of 1e-3: smaller batches lose in calls what fresher w gain.
BATCHES = 4
CACHED_PASSES = 4
# Examples with less to gain than this share of the mean are left out of three passes in four.
SHARE = 0.5
# Every example is drawn now and then, whatever its last gap said.
UNIFORM_SHARE = 0.2


class BlockFrankWolfe(Solver):
    """``average=True`` also tries the weighted mean of w over the rounds and keeps it where its primal is lower."""

    _tensors = ("w", "best", "mean", "gaps")
    _scalars = (*Solver._scalars, "steps")

    def __init__(self, problem: Problem, limits: Limits, *, seed: int = 0, average: bool = False) -> None:
        super().__init__(problem, limits)
        if self.formulation.penalty == "hard":
            raise ArgumentError("solver", "'n_slack' with penalty='hard'", "'bcfw'", "its steps need a box or a ridge")
        self.average = average
        self.set = WorkingSet(problem.n, problem.dim, problem.rows)
        self.box, self.ridge = self.formulation.box(self.n), self.formulation.ridge(self.n)
        self.generator = torch.Generator().manual_seed(seed)
        self.mean = self.w.clone()
        self.steps = 0
        self.gaps = torch.ones(self.n, dtype=torch.float64)
        self.batch = max(1, -(-self.n // BATCHES))

    @property
    def constraints(self) -> int:
        return len(self.set)

    def _round(self) -> bool:
        if self.rounds:
            for _ in range(-(-self.n // self.batch)):
                self._step(self._draw())
            self.w = self.set.weights()  # without the rounding of many steps
        found = self.ask(self.w)
        self.certify(self.w, float(self.w @ self.w), found.value)
        if self.average and self.rounds:
            mean = self.ask(self.mean)
            self.certify(self.mean, float(self.mean @ self.mean), mean.value)
        began = time.perf_counter()
        self.dual = max(self.dual, self.set.dual(float(self.w @ self.w), self.ridge))
        xi = self.set.slacks(self.w, all_planes=False)
        excess = found.value - xi
        self.violation = max(0.0, float(excess.max()))
        self._set_gaps(found)
        self._add(found.take((excess > 1e-3 * self.threshold).nonzero().flatten()))
        self._ascend(self._shuffled(), 1, all_planes=True)
        self.w = self.set.weights()
        self.dual = max(self.dual, self.set.dual(float(self.w @ self.w), self.ridge))
        self.set.prune(PATIENCE)
        self.qp_seconds += time.perf_counter() - began
        return self.violation <= self.threshold and float(self.set.slope.max()) <= self.threshold

    def _draw(self) -> Tensor:
        share = self.gaps.clamp(min=0) / self.gaps.clamp(min=0).sum().clamp(min=1e-300)
        weight = (1 - UNIFORM_SHARE) * share + UNIFORM_SHARE / self.n
        return torch.multinomial(weight, self.batch, generator=self.generator).sort().values

    def _shuffled(self) -> Tensor:
        """All examples in random order: in a fixed one, neighbours undo each other's steps (twice the rounds)."""
        return torch.randperm(self.n, generator=self.generator)

    def _set_gaps(self, found: Found) -> None:
        """What each example adds to the duality gap, for drawing."""
        held = self.set.alpha.view * (self.set.b.view - self.set.dots(self.w))
        used = torch.zeros(self.n, dtype=torch.float64).index_add_(0, self.set.block.view, held)
        most = self.formulation.penalties(found.value, self.n)
        self.gaps[found.index] = (most - used[found.index]).clamp(min=0)

    def _step(self, index: Tensor) -> None:
        found = self.ask(self.w, index)
        began = time.perf_counter()
        self._add(
            found.take(
                (found.value > self.set.slacks(self.w, index, all_planes=False) + 1e-3 * self.threshold)
                .nonzero()
                .flatten()
            )
        )
        self._ascend(index, 1)
        self.gaps[index] = self.set.slope[index] * self.formulation.C / self.n
        self._ascend(self._shuffled(), CACHED_PASSES)
        self.steps += 1
        if self.average:
            self.mean.lerp_(self.w, 2.0 / (self.steps + 1))
        self.qp_seconds += time.perf_counter() - began

    def _ascend(self, blocks: Tensor, passes: int, all_planes: bool = False) -> None:
        self.set.ascend(
            self.w, blocks, box=self.box, ridge=self.ridge, tolerance=0.01 * self.threshold, passes=passes,
            all_planes=all_planes,
            share=SHARE,
        )  # fmt: skip

    def _add(self, found: Found) -> None:
        if len(found.index) == 0:
            return
        self.set.add(self.problem.terms(found), self.problem.bounds(found), found.cost, found.index)
        self.added += len(found.index)
        self.note_norm(self.set.squares()[-len(found.index) :], found)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "set": self.set.state(), "generator": self.generator.get_state()}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.set.load(state["set"])
        self.generator.set_state(state["generator"])
