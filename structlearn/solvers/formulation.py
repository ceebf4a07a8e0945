"""The seven formulations as one family of planes.

Each asks to minimise 1/2 |w|^2 + penalty under xi_i >= b - <w, a> for every output y of example i, with

    rescaling   f = Delta (linear) or sqrt(Delta) (quadratic)      a                 b
    None        SVM0, SVM1, SVM2: the cost is [y != gold]          dPsi              f
    "margin"    SVM1-dm, SVM2-dm                                   dPsi              f
    "slack"     SVM1-ds, SVM2-ds                                   f dPsi            f

dPsi = Psi(x, gold) - Psi(x, y), and penalty

    "linear"     C/n sum xi            dual: sum of alpha over each example <= box = C/n
    "quadratic"  C/2n sum xi^2         dual: minus ridge/2 (sum of alpha over each example)^2, ridge = n/C
    "hard"       none, xi = 0          dual: neither

so that every solver sees planes (a, b), a box and a ridge. gold itself is the plane (0, 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from structlearn.costs import Cost, ZeroOne
from structlearn.errors import ArgumentError


@dataclass(frozen=True)
class Formulation:
    """Which objective: ``rescaling`` None, "margin" or "slack"; ``penalty`` "linear", "quadratic" or "hard"; C > 0."""

    rescaling: str | None = "margin"
    penalty: str = "linear"
    C: float = 1.0

    def __post_init__(self) -> None:
        if self.rescaling not in (None, "margin", "slack"):
            raise ArgumentError(
                "rescaling", "'margin', 'slack' or None", repr(self.rescaling), "None: every mistake is 1"
            )
        if self.penalty not in ("linear", "quadratic", "hard"):
            remedy = "'hard' allows no violation at all"
            raise ArgumentError("penalty", "'linear', 'quadratic' or 'hard'", repr(self.penalty), remedy)
        if isinstance(self.C, bool) or not isinstance(self.C, int | float) or not (0 < self.C < math.inf):
            raise ArgumentError("C", "a finite number > 0", repr(self.C), "larger C allows fewer violations")
        if self.penalty == "hard" and self.rescaling == "margin":
            remedy = "without slack only rescaling=None is meant"
            raise ArgumentError("rescaling", "None with penalty='hard'", "'margin'", remedy)

    @property
    def name(self) -> str:
        """The name in the literature, such as SVM1-dm."""
        order = {"hard": 0, "linear": 1, "quadratic": 2}[self.penalty]
        return f"SVM{order}" + {None: "", "margin": "-dm", "slack": "-ds"}[self.rescaling if order else None]

    @property
    def squared(self) -> bool:
        """Whether costs enter by their square root."""
        return self.penalty == "quadratic"

    @property
    def plain_mistakes(self) -> bool:
        """Whether every mistake costs 1, whatever Delta says."""
        return self.rescaling is None or self.penalty == "hard"

    def cost(self, cost: Cost) -> Cost:
        """What the search for violations takes as Delta."""
        return ZeroOne() if self.plain_mistakes else cost

    @property
    def oracle_rescaling(self) -> str:
        return self.rescaling if self.rescaling and self.penalty != "hard" else "margin"

    def box(self, n: int) -> float:
        """What alpha may add up to over one example."""
        return self.C / n if self.penalty == "linear" else math.inf

    def ridge(self, n: int) -> float:
        """What is added to the Gram matrix between planes of one example."""
        return n / self.C if self.penalty == "quadratic" else 0.0

    def size(self, delta: Tensor) -> Tensor:
        """f(Delta) = b."""
        return delta.sqrt() if self.squared else delta

    def scale(self, delta: Tensor) -> Tensor:
        """What dPsi is multiplied by to give a."""
        return self.size(delta) if self.oracle_rescaling == "slack" else torch.ones_like(delta)

    def penalties(self, xi: Tensor, n: int) -> Tensor:
        """Each example's share of the objective, for its slack xi >= 0."""
        if self.penalty == "quadratic":
            return self.C / (2 * n) * xi.square()
        return self.C / n * xi

    def primal(self, norm: float, xi: Tensor, n: int) -> float:
        """1/2 |w|^2 + penalty; for "hard" that of the nearest multiple of w that violates nothing, inf if none does."""
        if self.penalty != "hard":
            return 0.5 * norm + float(self.penalties(xi, n).sum())
        worst = float(xi.max()) if len(xi) else 0.0
        return 0.5 * norm / (1 - worst) ** 2 if worst < 1 else math.inf

    def allowance(self, eps: float, primal: float, mean: float) -> float:
        """How far the primal may lie above the optimum if no constraint is violated by more than ``eps``.

        ``mean`` is that of xi: with the quadratic penalty, C/2n sum (xi + eps)^2 - xi^2.
        """
        if self.penalty == "hard":
            return primal * (1 - (1 - min(eps, 1.0)) ** 2)
        return self.C * eps * (mean + 0.5 * eps) if self.penalty == "quadratic" else self.C * eps

    def bound(self, n: int, eps: float, largest_cost: float, largest_norm: float) -> float:
        """How many constraints the n-slack algorithm adds at most, for Delta <= largest_cost, |dPsi| <= largest_norm.

        max(2 n D / eps, 8 C D^3 R^2 / eps^2) linear, (C D^2 R^2 + n D) / eps^2 quadratic.
        """
        d, r = largest_cost, largest_norm
        if self.penalty == "hard":
            return math.inf
        if self.penalty == "linear":
            return max(2 * n * d / eps, 8 * self.C * d**3 * r**2 / eps**2)
        return (self.C * d**2 * r**2 + n * d) / eps**2
