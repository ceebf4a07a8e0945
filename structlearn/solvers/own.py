"""Training over an output space of the user's own: a feature map, a cost, an argmax (``docs/own-structure.md``)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, PotentialError, ShapeError
from structlearn.solvers.examples import Examples
from structlearn.solvers.formulation import Formulation
from structlearn.solvers.planes import Rows, Terms
from structlearn.solvers.problem import Found, Problem

# Of the terms of H, which are sums of d products.
ROUNDING = 1e-9


class OutputSpace(ABC):
    """Psi(x, y) (d,), Delta(gold, y) and argmax_y <w, Psi(x, y)>: all that :class:`StructuredSVM` needs to train.

    One example at a time, in any types: x and y are whatever the three methods agree on. ``binary = True`` says that
    Delta is 1 for every y but gold; all formulations then have the same most violated output, which ``argmax`` finds.
    """

    binary: ClassVar[bool] = False

    @abstractmethod
    def joint(self, x: Any, y: Any) -> Tensor:
        """Psi(x, y), (d,)."""

    @abstractmethod
    def cost(self, gold: Any, y: Any) -> float:
        """Delta(gold, y) >= 0, 0 where they are equal."""

    @abstractmethod
    def argmax(self, w: Tensor, x: Any, gold: Any = None) -> Any:
        """argmax_y <w, Psi(x, y)>, and with ``gold`` argmax_y <w, Psi(x, y)> + Delta(gold, y); w is (d,)."""

    def most_violated(self, w: Tensor, x: Any, gold: Any, rescaling: str | None, squared: bool) -> Any:
        """argmax_y H(y), gold included: H(y) = f + d ("margin") or f (1 + d) ("slack"), d = <w, Psi(y) - Psi(gold)>.

        f is Delta(gold, y), its root if ``squared``; with rescaling=None, H(y) = 1 + d where Delta(gold, y) > 0, and 0
        elsewhere: what costs nothing is no mistake. The default serves margin rescaling with the linear penalty, and
        everything if the space is ``binary``; override it for the others.
        """
        if not self.binary and (rescaling != "margin" or squared):
            raise ArgumentError(
                "rescaling", "'margin' with the linear penalty", f"{rescaling!r}, squared={squared}",
                f"define {type(self).__name__}.most_violated for it, or binary = True if all mistakes cost 1",
            )  # fmt: skip
        return self.argmax(w, x, gold)


class OwnProblem(Problem):
    """Examples in an :class:`OutputSpace`; lists of x and y."""

    def __init__(self, space: OutputSpace, X: Sequence[Any], y: Sequence[Any], formulation: Formulation) -> None:
        if len(X) == 0:
            raise ArgumentError("X", "at least one example", "none", "fit needs data")
        if len(X) != len(y):
            raise ShapeError(
                "y", f"one output for each of the {len(X)} examples", len(y), "check that they belong together"
            )
        self.space, self.X, self.y, self.formulation = space, list(X), list(y), formulation
        self.n = len(X)
        self.gold = [space.joint(x, g).detach().to(torch.float64) for x, g in zip(self.X, self.y, strict=True)]
        self.dim = len(self.gold[0])
        for i, psi in enumerate(self.gold):
            if psi.shape != (self.dim,):
                raise ShapeError(
                    "joint", f"(d,) with d={self.dim}", f"{tuple(psi.shape)} in example {i}", "one size for all"
                )
            if not bool(psi.isfinite().all()):
                raise PotentialError("X", "finite features", f"NaN or infinity in example {i}", "clean or drop it")
        self.rows = Rows.none()

    def oracle(self, w: Tensor, index: Tensor | None = None) -> Found:
        index = torch.arange(self.n) if index is None else index
        f = self.formulation
        rescaling = None if f.plain_mistakes else f.oracle_rescaling
        outputs, cost, value, exact = [], [], [], True
        for i in index.tolist():
            y = self.space.most_violated(w, self.X[i], self.y[i], rescaling, f.squared)
            delta = self._cost(i, y)
            psi = self.gold[i] - self.space.joint(self.X[i], y).detach().to(torch.float64)
            if f.plain_mistakes and delta == 0:
                psi = torch.zeros_like(psi)
            size, score = f.size(delta), f.scale(delta) * (w @ psi)
            # H(gold) = 0, so a maximum is not below it.
            exact = exact and float(size - score) >= -ROUNDING * float(size + score.abs())
            outputs.append((y, psi))
            cost.append(delta)
            value.append((size - score).clamp(min=0))
        return Found(index, outputs, torch.stack(cost), torch.stack(value), exact)

    def _cost(self, i: int, y: Any) -> Tensor:
        """Delta, or [Delta > 0] where every mistake costs 1."""
        delta = float(self.space.cost(self.y[i], y))
        allowed = delta in (0.0, 1.0) if self.space.binary else 0.0 <= delta < math.inf
        if not allowed:
            expected = "0 or 1, as binary = True says" if self.space.binary else "a finite number >= 0"
            raise ArgumentError(
                "cost", expected, f"{delta} in example {i}", f"correct {type(self.space).__name__}.cost"
            )
        return torch.tensor(float(delta > 0) if self.formulation.plain_mistakes else delta, dtype=torch.float64)

    def differences(self, found: Found) -> Terms:
        return Terms.dense(torch.stack([psi for _, psi in found.y]))

    def predict(self, w: Tensor, examples: Examples | Sequence[Any]) -> list[Any]:
        X = examples.x if isinstance(examples, Examples) else examples
        return [self.space.argmax(w, x) for x in X]
