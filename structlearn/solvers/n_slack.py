"""n-slack cutting planes (Tsochantaridis et al. 2005): a working set S_i of planes for every example.

    until no example has an output violated by more than eps:
        y_i = argmax_y H_i(y) for all i;  add it to S_i where H_i(y_i) > max(0, max over S_i of H_i) + eps
        re-optimise the dual over S

The examples of a round are asked in one batch. ``variant="all"`` re-optimises over all of S, ``"own"`` over the S_i
that grew, and over all of S in every fifth round. Planes whose alpha stays 0 are dropped.

With a kernel w is beta over (token, label) pairs and products are taken with K w: the Gram matrix of S is built from
the lifted planes, a column for each one that enters.
"""

from __future__ import annotations

import math
import time
from typing import Any, Literal

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, InfeasibleError
from structlearn.solvers import qp as qps
from structlearn.solvers.planes import WorkingSet
from structlearn.solvers.problem import Found, Problem
from structlearn.solvers.solver import Limits, Solver

PATIENCE = 8
FULL_EVERY = 5
# Dropping planes from a dense Gram matrix copies it.
PRUNE_EVERY = 4
# Between two oracle calls more passes than this gain less than fresh planes would (OCR letters, relative gap 1e-3).
PASSES = 10
# Without a box there is no slack to absorb an inexact w: violations of planes in S must vanish.
FREE_PASSES = 2000
# With a margin this far below the size of the planes, no float64 w separates the data.
LEAST_MARGIN = 1e-6


class NSlack(Solver):
    """``qp="smo"`` steps on w itself and makes no Gram matrix; the others solve the dual over S as a dense QP.

    Kernelised problems have no w to step on: theirs is the dense QP, also with "smo".
    """

    _tensors = (*Solver._tensors, "score")

    def __init__(
        self, problem: Problem, limits: Limits, *, qp: str = "auto", variant: Literal["all", "own"] = "all"
    ) -> None:
        super().__init__(problem, limits)
        if variant not in ("all", "own"):
            raise ArgumentError("variant", "'all' or 'own'", repr(variant), "'all' re-optimises over all of S")
        qps.check_method(qp)
        self.qp, self.variant = "smo" if qp == "auto" else qp, variant
        self.score = self.w.clone()  # what the oracle takes: w, or K w
        self.direct = self.qp == "smo" and not problem.lifts
        self.set = WorkingSet(problem.n, problem.dim, problem.rows)
        self.box, self.ridge = self.formulation.box(self.n), self.formulation.ridge(self.n)
        self.gram = torch.zeros(0, 0, dtype=torch.float64)
        self.generator = torch.Generator().manual_seed(0)
        self.inner = math.inf  # slope left by the last pass over S

    @property
    def constraints(self) -> int:
        return len(self.set)

    def _round(self) -> bool:
        found = self.ask(self.score)
        self.certify(self.w, float(self.w @ self.score), found.value)
        xi = self.set.slacks(self.score)
        excess = found.value - xi[found.index]
        self.violation = max(0.0, float(excess.max()))
        fresh = (excess > self.threshold).nonzero().flatten()
        began = time.perf_counter()
        self._add(found.take(fresh))
        if len(fresh) == 0 and self.inner <= self.threshold:
            self.qp_seconds += time.perf_counter() - began
            return True
        blocks = torch.arange(self.n)
        if self.variant == "own" and len(fresh) and (self.rounds + 1) % FULL_EVERY:
            blocks = found.index[fresh].sort().values
        self._optimise(blocks, 10 * PASSES if len(fresh) == 0 else PASSES)
        self.score = self.problem.lift(self.w)
        self.dual = max(self.dual, self.set.dual(float(self.w @ self.score), self.ridge))
        self._check_separable()
        if self.direct:
            self.set.prune(PATIENCE)
        elif self.rounds % PRUNE_EVERY == 0:
            kept = self.set.prune(PATIENCE // PRUNE_EVERY)
            self.gram = self.gram[kept[:, None], kept]
        self.qp_seconds += time.perf_counter() - began
        return False

    def _add(self, found: Found) -> None:
        if len(found.index) == 0:
            return
        first = len(self.set)
        self.set.add(self.problem.terms(found), self.problem.bounds(found), found.cost, found.index)
        self.added += len(found.index)
        if self.direct:
            self.note_norm(self.set.squares()[first:], found)
            return
        if self.problem.lifts:
            cross = self.problem.products(self.set.terms(first), self.set.terms())
        else:
            cross = torch.stack([self.set.dots(plane) for plane in self.set.dense(first)])
        self.gram = torch.cat([torch.cat([self.gram, cross[:, :first].T], 1), cross])
        self.note_norm(self.gram.diagonal()[first:], found)

    def _optimise(self, blocks: Tensor, passes: int) -> None:
        tolerance = 0.1 * self.threshold
        if self.direct:
            free = math.isinf(self.box)
            order = blocks[torch.randperm(len(blocks), generator=self.generator)]
            done = self.set.ascend(
                self.w,
                order,
                box=self.box,
                ridge=self.ridge,
                tolerance=tolerance,
                passes=FREE_PASSES if free else passes,
            )
            # Rounding in w adds up over millions of steps; alpha is what counts.
            self.w = self.set.weights()
            self.inner = float(self.set.slope[blocks].max()) if done >= 0 else math.inf
            if done < 0:
                self._inseparable()
            return
        mine = torch.zeros(self.n, dtype=torch.bool)
        mine[blocks] = True
        order = self.set.block.view.argsort(stable=True)
        order = order[mine[self.set.block.view[order]]]
        alpha = self.set.alpha.view
        b = self.set.b.view[order]
        if len(order) < len(alpha):
            outside = alpha.clone()
            outside[order] = 0.0
            b = b - (self.gram @ outside)[order]
        group = torch.unique_consecutive(self.set.block.view[order], return_inverse=True)[1]
        program = qps.DualQP(self.gram[order[:, None], order], b, group, self.box, self.ridge)
        solution = qps.solve(program, self.qp, start=alpha[order], tolerance=tolerance)
        if not solution.bounded:
            self._inseparable()
        alpha[order] = solution.alpha
        self.w = self.set.weights()
        self.inner = tolerance

    def _check_separable(self) -> None:
        """|w'| >= sum alpha b / |w| for every w' without violation, so a small |w| / sum alpha b rules them all out."""
        if self.formulation.penalty != "hard":
            return
        total = float(self.set.alpha.view @ self.set.b.view)
        if total > 0 and float(self.w @ self.score) <= (LEAST_MARGIN * total * max(self.largest_norm, 1e-300)) ** 2:
            self._inseparable()

    def _inseparable(self) -> None:
        raise InfeasibleError(
            "penalty",
            "data that some w separates, for penalty='hard'",
            f"a combination of {len(self.set)} constraints that no w satisfies",
            "allow violations with penalty='linear' or 'quadratic'",
        )

    def state(self) -> dict[str, Any]:
        dense = {"gram": self.gram.clone(), "inner": self.inner}
        return {**super().state(), **dense, "set": self.set.state(), "generator": self.generator.get_state()}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.gram, self.inner = state["gram"], state["inner"]
        self.set.load(state["set"])
        self.generator.set_state(state["generator"])
