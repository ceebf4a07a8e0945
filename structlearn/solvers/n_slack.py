"""n-slack cutting planes (Tsochantaridis et al. 2005): a working set S_i of planes for every example.

    until no example has an output violated by more than eps:
        y_i = argmax_y H_i(y) for all i;  add it to S_i where H_i(y_i) > max(0, max over S_i of H_i) + eps
        re-optimise the dual over S

The examples of a round are asked in one batch. ``variant="all"`` re-optimises over all of S, ``"own"`` over the S_i
that grew, and over all of S in every fifth round and whenever none grew. Planes whose alpha stays 0 are dropped.

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
from structlearn.solvers.active_set import LEAST_MARGIN
from structlearn.solvers.planes import WorkingSet
from structlearn.solvers.problem import Found, Problem
from structlearn.solvers.solver import Limits, Solver

PATIENCE = 8
FULL_EVERY = 5
# Dropping planes from a dense Gram matrix copies it.
PRUNE_EVERY = 4
# Between two oracle calls more passes than this gain less than fresh planes would (OCR letters, relative gap 1e-3).
PASSES = 10
# Without slack to absorb an inexact w, violations of planes in S must vanish.
HARD_PASSES = 2000
# A call of the kernel makes so many: Ctrl-C is noticed between calls. Every fourth pass visits all blocks.
PASSES_AT_ONCE = 4
# Constraints with a smaller share in a contradiction, against the largest, are rounding.
NAMED_SHARE = 1e-3
# Numbers in the planes of S, written out, from which on its Gram matrix is not worth making.
SMALL_ENTRIES = 1 << 22


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
        self._optimise(blocks, PASSES if len(fresh) else 10 * PASSES)
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

    def tighten(self) -> None:
        super().tighten()
        self.inner = math.inf

    def _optimise(self, blocks: Tensor, passes: int) -> None:
        tolerance = 0.1 * self.threshold
        if self.direct:
            self._ascend(blocks, passes, tolerance)
        else:
            self._solve(blocks, tolerance)
        self.w = self.set.weights()
        if len(blocks) < self.n:
            self.inner = math.inf  # the others have not been looked at

    def _ascend(self, blocks: Tensor, passes: int, tolerance: float) -> None:
        """Steps on w, whose planes need no Gram matrix."""
        hard = self.formulation.penalty == "hard"
        order = blocks[torch.randperm(len(blocks), generator=self.generator)]
        small = len(self.set) <= qps.SMALL and len(self.set) * self.set.dim <= SMALL_ENTRIES
        passes = HARD_PASSES if hard and not small else passes
        for done in range(0, passes, PASSES_AT_ONCE):
            made = self.set.ascend(
                self.w, order, box=self.box, ridge=self.ridge, tolerance=tolerance,
                passes=min(PASSES_AT_ONCE, passes - done),
            )  # fmt: skip
            if made < 0:
                self._inseparable((self.set.squares() <= 0).double())
            if made < PASSES_AT_ONCE:
                break
        # A slope was measured when its block was visited; later visits moved w.
        self.inner = float(self.set.slope[blocks].max())
        if small and self.inner > tolerance and (hard or passes > PASSES):
            self._finish(tolerance)

    def _finish(self, tolerance: float) -> None:
        """The optimum over all of a small S, where passes are slow to reach it."""
        order = self.set.block.view.argsort(stable=True)
        planes = self.set.dense()[order]
        self._take(order, planes @ planes.T, self.set.b.view[order], tolerance)

    def _solve(self, blocks: Tensor, tolerance: float) -> None:
        mine = torch.zeros(self.n, dtype=torch.bool)
        mine[blocks] = True
        order = self.set.block.view.argsort(stable=True)
        order = order[mine[self.set.block.view[order]]]
        b = self.set.b.view[order]
        if len(order) < len(self.set):
            outside = self.set.alpha.view.clone()
            outside[order] = 0.0
            b = b - (self.gram @ outside)[order]
        self._take(order, self.gram[order[:, None], order], b, tolerance)

    def _take(self, order: Tensor, gram: Tensor, b: Tensor, tolerance: float) -> None:
        """Solves the dual over the planes ``order``, given by block."""
        group = torch.unique_consecutive(self.set.block.view[order], return_inverse=True)[1]
        program = qps.DualQP(gram, b, group, self.box, self.ridge)
        solution = qps.solve(program, self.qp, start=self.set.alpha.view[order], tolerance=tolerance)
        if not solution.bounded:
            ray = torch.zeros(len(self.set), dtype=torch.float64)
            ray[order] = solution.alpha
            self._inseparable(ray)
        self.set.alpha.view[order] = solution.alpha
        self.inner = solution.excess

    def _check_separable(self) -> None:
        """|w'| >= sum alpha b / |w| for every w' without violation, so a small |w| / sum alpha b rules them all out."""
        if self.formulation.penalty != "hard":
            return
        total = float(self.set.alpha.view @ self.set.b.view)
        if total > 0 and float(self.w @ self.score) <= (LEAST_MARGIN * total * max(self.largest_norm, 1e-300)) ** 2:
            self._inseparable(self.set.alpha.view)

    def _inseparable(self, ray: Tensor) -> None:
        """sum ray a is 0 for some ray >= 0, while a w would have to bring <w, sum ray a> to sum ray b > 0."""
        used = ray > NAMED_SHARE * ray.max()
        examples = self.set.block.view[used].unique().tolist()
        named = ", ".join(map(str, examples[:8])) + (", ..." if len(examples) > 8 else "")
        raise InfeasibleError(
            "penalty",
            "data that some w separates, for penalty='hard'",
            f"constraints that contradict each other (a positive combination of {int(used.sum())} adds up to 0) "
            f"in examples {named}",
            "allow violations with penalty='linear' or 'quadratic', or correct these examples",
        )

    def state(self) -> dict[str, Any]:
        dense = {"gram": self.gram.clone(), "inner": self.inner}
        return {**super().state(), **dense, "set": self.set.state(), "generator": self.generator.get_state()}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.gram, self.inner = state["gram"], state["inner"]
        self.set.load(state["set"])
        self.generator.set_state(state["generator"])
