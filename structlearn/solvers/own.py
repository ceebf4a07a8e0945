"""Training over an output space of the user's own: a feature map, a cost, an argmax (``docs/own-structure.md``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, PotentialError, ShapeError
from structlearn.solvers.examples import Examples
from structlearn.solvers.formulation import Formulation
from structlearn.solvers.planes import Rows, Terms
from structlearn.solvers.problem import Found, Problem


class OutputSpace(ABC):
    """Psi(x, y) (d,), Delta(gold, y) and argmax_y <w, Psi(x, y)>: all that :class:`StructuredSVM` needs to train.

    One example at a time, in any types: x and y are whatever the three methods agree on.
    """

    @abstractmethod
    def joint(self, x: Any, y: Any) -> Tensor:
        """Psi(x, y), (d,)."""

    @abstractmethod
    def cost(self, gold: Any, y: Any) -> float:
        """Delta(gold, y) >= 0, 0 where they are equal."""

    @abstractmethod
    def argmax(self, w: Tensor, x: Any, gold: Any = None) -> Any:
        """argmax_y <w, Psi(x, y)>, and with ``gold`` argmax_y <w, Psi(x, y)> + Delta(gold, y); w is (d,)."""

    def most_violated(self, w: Tensor, x: Any, gold: Any, rescaling: str, squared: bool) -> Any:
        """argmax_y H(y). The default serves margin rescaling with the linear penalty; override it for the others."""
        if rescaling == "slack" or squared:
            raise ArgumentError(
                "rescaling", "'margin' with the linear penalty", f"{rescaling!r}, squared={squared}",
                f"define {type(self).__name__}.most_violated for it",
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
        outputs, cost, value = [], [], []
        for i in index.tolist():
            y = self.space.most_violated(w, self.X[i], self.y[i], f.oracle_rescaling, f.squared)
            delta = torch.tensor(float(self.space.cost(self.y[i], y)), dtype=torch.float64)
            psi = self.gold[i] - self.space.joint(self.X[i], y).to(torch.float64)
            outputs.append((y, psi))
            cost.append(delta)
            value.append((f.size(delta) - f.scale(delta) * (w @ psi)).clamp(min=0))
        return Found(index, outputs, torch.stack(cost), torch.stack(value), True)

    def differences(self, found: Found) -> Terms:
        return Terms.dense(torch.stack([psi for _, psi in found.y]))

    def predict(self, w: Tensor, examples: Examples | Sequence[Any]) -> list[Any]:
        X = examples.x if isinstance(examples, Examples) else examples
        return [self.space.argmax(w, x) for x in X]
