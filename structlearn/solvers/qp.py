"""Quadratic programs over a working set, by whichever solver fits; the only importer of qpth.

    max  <b, alpha> - 1/2 alpha^T J alpha - ridge/2 sum_g (sum_{p in g} alpha_p)^2,   alpha >= 0,
    sum_{p in g} alpha_p <= box for each group g where box is finite.

Whatever a solver says of itself, its answer is made feasible here and its distance from optimal computed here; where
that is too large, pairwise steps go on from the answer, and an active-set method from theirs while the program is
small: pairwise steps are slow where planes are nearly parallel or the box is wide. ``docs/qp.md`` has the measurements
behind "auto".
"""

from __future__ import annotations

import importlib.util
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, DependencyError
from structlearn.ops import svm as ops
from structlearn.solvers.active_set import active_set

METHODS = ("auto", "smo", "qpth", "piqp", "clarabel")
# qpth's defaults stop early, far from the optimum, on Gram matrices of nearly parallel planes.
QPTH_ITERATIONS, QPTH_PATIENCE = 100, 20
RIDGE = 1e-10
MOST_STEPS = 2_000_000
# A call of the kernel that makes this many products takes some 0.1 s: Ctrl-C is noticed between calls.
PRODUCTS = 1 << 27
# Up to this size, an active-set method (each step a dense factorisation) finishes what pairwise steps leave.
SMALL = 400
# Pairwise steps for each variable before it is asked.
STEPS_BEFORE = 50


@dataclass(frozen=True)
class DualQP:
    """The program above: gram = J (m, m), b (m,), group (m,) numbered from 0 in order; float64."""

    gram: Tensor
    b: Tensor
    group: Tensor
    box: float = math.inf
    ridge: float = 0.0

    @property
    def groups(self) -> int:
        return int(self.group[-1]) + 1 if len(self.group) else 0

    def full_gram(self) -> Tensor:
        """J with the ridge between variables of one group."""
        if self.ridge == 0:
            return self.gram
        full = self.gram.clone()
        ends = torch.bincount(self.group).cumsum(0).tolist()
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            full[start:end, start:end] += self.ridge
        return full

    def held(self, alpha: Tensor) -> Tensor:
        """Sum of alpha over each group."""
        return torch.zeros(self.groups, dtype=torch.float64).index_add(0, self.group, alpha)

    def dual(self, alpha: Tensor) -> float:
        value = self.b @ alpha - 0.5 * alpha @ (self.gram @ alpha)
        return float(value - 0.5 * self.ridge * self.held(alpha).square().sum() if self.ridge else value)

    def primal(self, alpha: Tensor) -> float:
        """The objective of w = sum alpha a with the smallest slacks; "hard": of a multiple of w without violation."""
        norm = self.gram @ alpha
        square = float(alpha @ norm)
        if math.isinf(self.box) and self.ridge == 0:
            worst = float((self.b - norm).max().clamp(min=0)) if len(self.b) else 0.0
            return 0.5 * square / (1 - worst) ** 2 if worst < 1 else math.inf
        xi = torch.zeros(self.groups, dtype=torch.float64).scatter_reduce(0, self.group, self.b - norm, "amax")
        penalty = self.box * float(xi.sum()) if self.ridge == 0 else float(xi.square().sum()) / (2 * self.ridge)
        return 0.5 * square + penalty

    def excess(self, alpha: Tensor) -> float:
        """The largest slope of a single variable, or with a box the gap per unit of all boxes: 0 at the optimum."""
        if math.isfinite(self.box):
            return max(0.0, self.primal(alpha) - self.dual(alpha)) / (self.box * self.groups)
        slope = self.b - self.full_gram() @ alpha
        return float(torch.where(alpha > 0, slope.abs(), slope).max().clamp(min=0.0))

    def feasible(self, alpha: Tensor) -> Tensor:
        """The nearest that keeps the constraints: no negative entry, no group above the box."""
        alpha = alpha.nan_to_num(0.0).clamp(min=0.0)
        if math.isinf(self.box):
            return alpha
        return alpha * (self.box / self.held(alpha).clamp(min=self.box))[self.group]


@dataclass(frozen=True)
class Solution:
    """alpha (m,), the gap computed here, who solved it, how long it took, and whether the dual is bounded.

    ``excess`` is :meth:`DualQP.excess`. Where the dual is unbounded, alpha is a direction along which it grows.
    """

    alpha: Tensor
    gap: float
    dual: float
    method: str
    seconds: float
    bounded: bool = True
    excess: float = 0.0


def installed(method: str) -> bool:
    """Whether the package behind a method is there."""
    return method in ("auto", "smo") or importlib.util.find_spec(method) is not None


def check_method(method: str) -> None:
    """``method`` must be known and installed."""
    if method not in METHODS:
        raise ArgumentError("qp", f"one of {METHODS}", repr(method), "'auto' takes the fastest measured, smo")
    if not installed(method):
        raise DependencyError("qp", f"the package {method}", "none", f"pip install {method}, or take qp='smo'")


def solve(qp: DualQP, method: str = "auto", *, start: Tensor | None = None, tolerance: float = 1e-6) -> Solution:
    """A solution whose excess is at most ``tolerance`` (gap <= tolerance * box * groups), if one is reached."""
    check_method(method)
    began = time.perf_counter()
    if len(qp.b) == 0:
        return Solution(torch.zeros(0, dtype=torch.float64), 0.0, 0.0, method, 0.0)
    method = used = "smo" if method == "auto" else method
    alpha = torch.zeros_like(qp.b) if start is None else qp.feasible(start)
    if method != "smo":
        alpha = qp.feasible({"qpth": _qpth, "piqp": _piqp, "clarabel": _clarabel}[method](qp))
    bounded, excess = True, qp.excess(alpha)
    if excess > tolerance:
        if method != "smo":
            used = f"{method}+smo"
        alpha, bounded = smo(qp, alpha, tolerance, STEPS_BEFORE * len(qp.b) if len(qp.b) <= SMALL else MOST_STEPS)
        excess = qp.excess(alpha)
    if bounded and excess > tolerance and len(qp.b) <= SMALL:
        finished, bounded = active_set(qp.full_gram(), qp.b, qp.group, qp.box, alpha, tolerance)
        if not bounded or qp.excess(qp.feasible(finished)) < excess:
            alpha = qp.feasible(finished)
            excess = qp.excess(alpha)
    dual = qp.dual(alpha)
    return Solution(alpha, qp.primal(alpha) - dual, dual, used, time.perf_counter() - began, bounded, excess)


def smo(qp: DualQP, start: Tensor, tolerance: float, steps: int = MOST_STEPS) -> tuple[Tensor, bool]:
    """Native pairwise steps from ``start``; alpha, and whether the dual is bounded.

    Where it is not, alpha has a 1 at the plane (0, b) that shows it.
    """
    gram = qp.full_gram().contiguous()
    alpha = start.clone().contiguous()
    b = qp.b.contiguous()
    slope = b - gram @ alpha
    held = qp.held(alpha)
    ends = torch.zeros(qp.groups + 1, dtype=torch.int64)
    ends[1:] = torch.bincount(qp.group, minlength=qp.groups).cumsum(0)
    at_once = max(1, PRODUCTS // len(b))
    for done in range(0, steps, at_once):
        most = min(at_once, steps - done)
        made = ops.smo(gram, b, ends, alpha, slope, held, box=qp.box, tolerance=tolerance, steps=most)
        if made < 0:
            return ((gram.diagonal() <= 0) & (b > 0)).double(), False
        if made < most:
            break
    return alpha, True


def _scaled(qp: DualQP) -> tuple[Tensor, Tensor, float, float]:
    """(J, b, box, unit) for alpha = unit * z: entries of order 1, which interior-point methods ask for."""
    gram = qp.full_gram()
    size = float(gram.diagonal().max().clamp(min=1e-300))
    unit = qp.box if math.isfinite(qp.box) else float(qp.b.abs().max().clamp(min=1e-300)) / size
    scale = max(unit * unit * size, unit * float(qp.b.abs().max()), 1e-300)
    return gram * (unit * unit / scale), qp.b * (unit / scale), qp.box / unit, unit


def _constraints(qp: DualQP, box: float) -> tuple[Tensor, Tensor]:
    """G z <= h: no negative entry, no group above the box."""
    m = len(qp.b)
    G, h = -torch.eye(m, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    if math.isinf(box):
        return G, h
    sums = (qp.group == torch.arange(qp.groups)[:, None]).to(torch.float64)
    return torch.cat([G, sums]), torch.cat([h, torch.full((qp.groups,), box, dtype=torch.float64)])


def differentiable(Q: Tensor, p: Tensor, G: Tensor, h: Tensor) -> Tensor:
    """argmin 1/2 z^T Q z + p^T z under G z <= h, (m,), by qpth: differentiable in all four."""
    from qpth.qp import QPFunction

    none = Q.new_empty(0)
    solver = QPFunction(verbose=-1, maxIter=QPTH_ITERATIONS, notImprovedLim=QPTH_PATIENCE, check_Q_spd=False)
    return solver(Q, p, G, h, none, none).squeeze(0)


def _qpth(qp: DualQP) -> Tensor:
    J, b, box, unit = _scaled(qp)
    # Duplicate and nearly parallel planes make J singular; qpth factorises Q.
    Q = J + RIDGE * max(1.0, float(J.diagonal().max())) * torch.eye(len(b), dtype=torch.float64)
    try:
        with torch.no_grad():
            return differentiable(Q, -b, *_constraints(qp, box)) * unit
    except RuntimeError:  # its factorisation failed: the gap will say so, and steps from zero follow
        return torch.zeros_like(b)


def _piqp(qp: DualQP) -> Tensor:
    import numpy as np
    import piqp

    J, b, box, unit = _scaled(qp)
    m = len(b)
    solver: Any = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-9
    if math.isinf(box):
        solver.setup(J.numpy(), -b.numpy(), x_l=np.zeros(m))
    else:
        sums = (qp.group == torch.arange(qp.groups)[:, None]).to(torch.float64).numpy()
        solver.setup(J.numpy(), -b.numpy(), G=sums, h_u=np.full(qp.groups, box), x_l=np.zeros(m))
    solver.solve()
    return torch.from_numpy(np.array(solver.result.x)) * unit


def _clarabel(qp: DualQP) -> Tensor:
    import clarabel
    from scipy import sparse

    J, b, box, unit = _scaled(qp)
    G, h = _constraints(qp, box)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    upper = sparse.csc_matrix(sparse.triu(J.numpy()))
    cones = [clarabel.NonnegativeConeT(len(h))]
    solver = clarabel.DefaultSolver(upper, -b.numpy(), sparse.csc_matrix(G.numpy()), h.numpy(), cones, settings)
    return torch.tensor(solver.solve().x, dtype=torch.float64) * unit
