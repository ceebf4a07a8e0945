"""What an update does with Δ: perceptron and approximate large margin, with averaged weights.

Perceptron:  w <- w + Δ.
ALMA_p:      w <- P_q(f⁻¹(f(w) + C sqrt(1/((p-1) k)) P_p(Δ))),   k = 1, 2, ... counts updates, or errors,

P_p(u) = u / max(1, |u|_p) with 1/p + 1/q = 1, and f = ∇ |·|_q² / 2, the identity for p = 2. While searching, y-good
hypotheses are ranked lower by (1-α) B sqrt((p-1)/k). The source text leaves f out, which is right for p = 2 alone; the
bound for other p rests on it.

Averages run over calls, with or without errors in them. Only rows that Δ touches are visited: the weights are kept as
scale * v, and the sum of all weights so far as Z v - u with Z the sum of scales.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from structlearn.data.processes import anywhere, total
from structlearn.errors import ArgumentError
from structlearn.search.touched import Touched, of_all_processes
from structlearn.search.violations import Violations

_FOLD = 1e-3  # below this scale v is rescaled: its float32 entries would lose what is added


class Update(ABC):
    """Weights that move along Δ when a search errs.

    Args:
        weights: tensors that require gradients and that the scores are linear in. They hold v: equal to the weights up
            to the positive factor ``scale``, which changes no search. ``fold`` makes it 1.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self.weights = list(weights)
        self.calls = self.updates = 0
        self.scale = 1.0
        self._scales = 0.0  # Z
        self._sums = [torch.zeros_like(w) for w in self.weights]  # u

    @property
    def margin(self) -> float:
        """What y-good hypotheses must win by, in units of v."""
        return 0.0

    def __call__(self, violations: Violations) -> None:
        """One update for all errors that a search found, none if there are none; then the weights join the average."""
        self.move(violations)
        self.count_call()

    def move(self, violations: Violations) -> None:
        """The update alone."""
        if anywhere(bool((violations.errors > 0).any())):
            delta = torch.autograd.grad(violations.value, self.weights, allow_unused=True)
            with torch.no_grad():
                errors = total(int(violations.errors.sum()))
                self._move([of_all_processes(d, w) for d, w in zip(delta, self.weights, strict=True)], errors)
            self.updates += 1

    def count_call(self) -> None:
        """The weights as they are join the average."""
        self._scales += self.scale
        self.calls += 1

    @abstractmethod
    def _move(self, delta: list[Touched | None], errors: int) -> None: ...

    def _add(self, delta: list[Touched | None], step: float) -> None:
        for v, u, d in zip(self.weights, self._sums, delta, strict=True):
            if d is not None:
                d.add_to(v, step)
                d.add_to(u, step * self._scales)

    @torch.no_grad()
    def fold(self) -> None:
        """Brings the weights to scale 1."""
        for v in self.weights:
            v.mul_(self.scale)
        self._scales /= self.scale
        self.scale = 1.0

    def state_dict(self) -> dict[str, Any]:
        """What goes on being needed beside the weights."""
        return {
            "numbers": (self.calls, self.updates, self.scale, self._scales),
            "sums": [u.clone() for u in self._sums],
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from ``state_dict``; the weights must be those of the same moment."""
        self.calls, self.updates, self.scale, self._scales = state["numbers"]
        for u, saved in zip(self._sums, state["sums"], strict=True):
            u.copy_(saved)

    @torch.no_grad()
    def forget(self) -> None:
        """Starts the average afresh, so that the first passes, far from where it settles, do not weigh on it."""
        self.calls, self._scales = 0, 0.0
        for u in self._sums:
            u.zero_()

    @torch.no_grad()
    def settle(self) -> None:
        """Puts the average in the place of the weights, and starts another."""
        for weight, mean in zip(self.weights, self.averaged(), strict=True):
            weight.copy_(mean)
        self.scale = 1.0
        self.forget()

    @torch.no_grad()
    def averaged(self) -> list[Tensor]:
        """The mean of the weights over all calls; the weights themselves before the first."""
        if self.calls == 0:
            return [v * self.scale for v in self.weights]
        return [(v * self._scales - u) / self.calls for v, u in zip(self.weights, self._sums, strict=True)]


class Perceptron(Update):
    """w <- w + Δ, with Δ the y-good features less those that beat them; ``averaged`` gives the mean of all w.

    Args:
        weights: tensors that require gradients and that the scores are linear in.
    """

    def _move(self, delta: list[Touched | None], errors: int) -> None:
        self._add(delta, 1.0)


class ALMA(Update):
    """w <- P(w + C k^(-1/2) P(Δ)) for p = 2, the approximate large margin update: k counts updates, P projects onto the
    unit ball, u / max(1, |u|), and while searching y-good hypotheses must win by ``margin`` = (1-α) B k^(-1/2).

    Args:
        weights: as for :class:`Update`; they should start within the unit ball.
        alpha: α in (0, 1]; 1 asks for no margin, small ones for the largest.
        B, C: scale of margin and step; 1/α and √2 if not given. The margin is compared with scores, so features that
            are not of length 1 call for a larger B: by the length of a usual Δ.
        count: what k counts. "updates": a batch is one, however many errors are in it. "errors": a batch with e of them
            stands for e updates, k grows by e and Δ is projected onto the ball of radius sqrt(e), as far as e steps of
            length 1 at right angles lead.
        p: norm of the features, >= 2. Other than 2 every update visits all weights.
    """

    def __init__(
        self,
        weights: Iterable[Tensor],
        *,
        alpha: float = 0.9,
        B: float | None = None,
        C: float = math.sqrt(2),
        p: float = 2.0,
        count: Literal["updates", "errors"] = "updates",
    ) -> None:
        if not 0 < alpha <= 1:
            raise ArgumentError("alpha", "a number above 0, up to 1", alpha, "0.9 seeks 0.9 of the largest margin")
        if not p >= 2 or math.isinf(p):
            raise ArgumentError("p", "a finite number >= 2", p, "2 log(number of features) is close to infinity")
        if count not in ("updates", "errors"):
            raise ArgumentError("count", '"updates" or "errors"', repr(count), "errors, if batches are large")
        super().__init__(weights)
        self.count, self._counted = count, 0
        self.alpha, self.B, self.C, self.p = alpha, 1 / alpha if B is None else B, C, p
        self._square = self._squared()

    def _squared(self) -> float:
        return float(sum(float(w.detach().double().square().sum()) for w in self.weights))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"counted": self._counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._counted = state.get("counted", self.updates)
        self._square = -1.0  # the weights may be loaded after this

    def settle(self) -> None:
        super().settle()
        self._square = self._squared()

    def fold(self) -> None:
        self._square *= self.scale**2
        super().fold()

    @property
    def margin(self) -> float:
        return (1 - self.alpha) * self.B * math.sqrt((self.p - 1) / (self._counted + 1)) / self.scale

    def _move(self, delta: list[Touched | None], errors: int) -> None:
        as_many = errors if self.count == "errors" else 1
        self._counted += as_many
        step = self.C / math.sqrt((self.p - 1) * self._counted)
        size = sum(float(d.values.double().abs().pow(self.p).sum()) for d in delta if d is not None) ** (1 / self.p)
        if size == 0:
            return
        step /= max(1.0, size / math.sqrt(as_many))
        if self.p != 2:
            self._move_dense(delta, step)
            return
        if self._square < 0:
            self._square = self._squared()
        along = step / self.scale
        inner = sum(d.dot(v) for v, d in zip(self.weights, delta, strict=True) if d is not None)
        self._add(delta, along)
        self._square += 2 * along * inner + (along * size) ** 2
        norm = self.scale * math.sqrt(max(self._square, 0.0))
        if norm > 1:
            self.scale /= norm
        if self.scale < _FOLD:
            self.fold()
            self._square = self._squared()

    def _move_dense(self, delta: list[Touched | None], along: float) -> None:
        q = self.p / (self.p - 1)
        before = [v.clone() for v in self.weights]
        theta = _link(before, q)
        for x, d in zip(theta, delta, strict=True):
            if d is not None:
                d.add_to(x, along)
        moved = _link(theta, self.p)
        shrink = max(1.0, _norm(moved, q))
        for v, u, w, old in zip(self.weights, self._sums, moved, before, strict=True):
            v.copy_(w / shrink)
            u.add_(v - old, alpha=self._scales)


def _norm(tensors: list[Tensor], p: float) -> float:
    return float(sum(float(x.double().abs().pow(p).sum()) for x in tensors)) ** (1 / p)


def _link(tensors: list[Tensor], q: float) -> list[Tensor]:
    """∇ |x|_q² / 2 = sign(x) |x|^(q-1) / |x|_q^(q-2); its inverse is the same with p."""
    norm = _norm(tensors, q)
    if norm == 0:
        return [x.clone() for x in tensors]
    return [x.sign() * x.abs().pow(q - 1) / norm ** (q - 2) for x in tensors]
