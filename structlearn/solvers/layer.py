"""A structured SVM as a layer: from constraints to the optimal w, differentiable.

    w* = sum_p alpha*_p a_p,   alpha* = argmax  <b, alpha> - 1/2 |sum_p alpha_p a_p|^2
    under  alpha >= 0,  sum over each group <= C/n,

or without the last and with - n/2C sum_g (sum_{p in g} alpha_p)^2 for the quadratic penalty.

qpth differentiates the optimality conditions, so gradients reach the planes a (hence an encoder), b and C.
"""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from torch import Tensor, nn

from structlearn.errors import ArgumentError, ShapeError
from structlearn.solvers import qp as qps
from structlearn.solvers.certificate import ConvergenceWarning

RIDGE = 1e-9


class SVMLayer(nn.Module):
    """w* = argmin_w 1/2 |w|^2 + C/n sum_i max_{p of i} [b_p - <w, a_p>]_+, from planes a (m, d) to w* (d,).

    Args:
        penalty: "linear" or "quadratic".
        tolerance: a larger relative duality gap of qpth's answer is a :class:`ConvergenceWarning`.
    """

    def __init__(self, penalty: Literal["linear", "quadratic"] = "linear", *, tolerance: float = 1e-4) -> None:
        super().__init__()
        if penalty not in ("linear", "quadratic"):
            raise ArgumentError("penalty", "'linear' or 'quadratic'", repr(penalty), "a layer needs slack")
        self.penalty = penalty
        self.tolerance = tolerance

    def forward(self, a: Tensor, b: Tensor, group: Tensor, C: Tensor | float) -> Tensor:
        """w* for planes ``a`` (m, d), bounds ``b`` (m,), each plane's example ``group`` (m,) in rising order, and C."""
        if a.dim() != 2 or b.shape != a.shape[:1] or group.shape != a.shape[:1]:
            got = f"{tuple(a.shape)}, {tuple(b.shape)}, {tuple(group.shape)}"
            raise ShapeError("a, b, group", "(m, d), (m,), (m,)", got, "one bound and one example for each plane")
        if bool((group[1:] < group[:-1]).any()):
            raise ArgumentError("group", "examples in rising order", group.tolist()[:8], "sort the planes by example")
        group = torch.unique_consecutive(group, return_inverse=True)[1]
        n = int(group[-1]) + 1
        C = torch.as_tensor(C, dtype=torch.float64)
        a64, b64 = a.double(), b.double()
        gram = a64 @ a64.T
        m = len(b)
        eye = torch.eye(m, dtype=torch.float64)
        G, h = -eye, torch.zeros(m, dtype=torch.float64)
        same = (group[:, None] == group).double()
        if self.penalty == "linear":
            # In units of the box z = alpha n / C, which keeps entries near 1; C then enters by the Gram matrix alone.
            unit = C / n
            Q = unit * gram
            G = torch.cat([G, (group == torch.arange(n)[:, None]).double()])
            h = torch.cat([h, torch.ones(n, dtype=torch.float64)])
        else:
            unit = torch.ones((), dtype=torch.float64)
            Q = gram + n / C * same
        Q = Q + RIDGE * (1.0 + Q.diagonal().max().detach()) * eye
        z = qps.differentiable(Q, -b64, G, h)
        alpha = unit * z
        self._check(qps.DualQP(
            gram.detach(), b64.detach(), group,
            float(unit.detach()) if self.penalty == "linear" else float("inf"),
            0.0 if self.penalty == "linear" else n / float(C.detach()),
        ), alpha.detach())  # fmt: skip
        return (alpha @ a64).to(a.dtype)

    def _check(self, program: qps.DualQP, alpha: Tensor) -> None:
        """qpth's answer is judged by its gap, not by its word."""
        alpha = program.feasible(alpha)
        primal, dual = program.primal(alpha), program.dual(alpha)
        if primal - dual > self.tolerance * max(abs(primal), 1e-12):
            warnings.warn(
                f"SVMLayer: qpth left a duality gap of {primal - dual:.2e} at {primal:.2e}; rescale the planes",
                ConvergenceWarning,
                stacklevel=3,
            )

    def extra_repr(self) -> str:
        return f"penalty={self.penalty!r}"
