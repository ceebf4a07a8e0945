"""Label sequences with first-order transitions: by enumeration, and in log space where C**n is too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from . import Part, Row


def _parts(y: tuple[int, ...], shared: bool, start: bool, end: bool) -> Iterator[Part]:
    for t, c in enumerate(y):
        yield "unary", (t, c)
        if t > 0:
            yield "transition", ((y[t - 1], c) if shared else (t - 1, y[t - 1], c))
    if y and start:
        yield "start", (y[0],)
    if y and end:
        yield "end", (y[-1],)


def rows(
    unary: np.ndarray,
    transition: np.ndarray,
    start: np.ndarray | None = None,
    end: np.ndarray | None = None,
    lengths: Sequence[int] | None = None,
) -> list[Row]:
    """One :class:`Row` for each sequence. Ties: the lowest last label, then the lowest label before it, and so on."""
    shared = transition.ndim == 2
    found = []
    for b, (line, n) in enumerate(zip(unary, lengths or [unary.shape[1]] * len(unary), strict=True)):
        outputs = [y[::-1] for y in product(range(unary.shape[2]), repeat=n)]
        fields = {"unary": line, "transition": transition if shared else transition[b]}
        fields |= {name: edge for name, edge in (("start", start), ("end", end)) if edge is not None}
        parts = [list(_parts(y, shared, start is not None, end is not None)) for y in outputs]
        found.append(Row(outputs, parts, fields))
    return found


def _log_sum(x: np.ndarray, axis: int) -> np.ndarray:
    top = x.max(axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.squeeze(np.log(np.exp(x - top).sum(axis, keepdims=True)) + top, axis)


@dataclass(frozen=True)
class LogSpace:
    """Forward-backward and Viterbi of one sequence in float64, every sum taken relative to its own maximum.

    unary (n, C) with n >= 1, steps (n-1, C, C), start and end (C,).
    """

    unary: np.ndarray
    steps: np.ndarray
    start: np.ndarray
    end: np.ndarray

    @cached_property
    def alpha(self) -> np.ndarray:
        a = [self.start + self.unary[0]]
        for step, u in zip(self.steps, self.unary[1:], strict=True):
            a.append(_log_sum(a[-1][:, None] + step, 0) + u)
        return np.stack(a)

    @cached_property
    def beta(self) -> np.ndarray:
        b = [self.end]
        for step, u in zip(self.steps[::-1], self.unary[:0:-1], strict=True):
            b.append(_log_sum(step + u + b[-1], 1))
        return np.stack(b[::-1])

    @property
    def log_partition(self) -> float:
        return float(_log_sum(self.alpha[-1] + self.end, 0))

    def unary_marginals(self) -> np.ndarray:
        """P(y_t = c), (n, C); 0 where every output is forbidden."""
        joint = self.alpha + self.beta
        return self._normalised(joint)

    def pair_marginals(self) -> np.ndarray:
        """P(y_t = p, y_{t+1} = c), (n-1, C, C)."""
        joint = self.alpha[:-1, :, None] + self.steps + (self.unary + self.beta)[1:, None, :]
        return self._normalised(joint)

    def _normalised(self, joint: np.ndarray) -> np.ndarray:
        """Log weights to probabilities at each position, without the rounding of a large log Z."""
        if self.log_partition == -np.inf:
            return np.zeros_like(joint)
        flat = joint.reshape(len(joint), joint[0].size if len(joint) else 1)
        return np.exp(flat - _log_sum(flat, 1)[:, None]).reshape(joint.shape)

    @property
    def entropy(self) -> float:
        """H(y_last) + sum_t H(y_t | y_{t+1}): terms of one sign, where log Z - E[s] would cancel."""
        p, pairs = self.unary_marginals(), self.pair_marginals()
        given = np.broadcast_to(p[1:, None, :], pairs.shape)
        last, used = p[-1][p[-1] > 0], pairs > 0
        return float(-(last * np.log(last)).sum() - (pairs[used] * np.log(pairs[used] / given[used])).sum())

    def viterbi(self) -> tuple[list[int], float]:
        """The best labels, lowest indices first on ties, and their score; no labels where all are forbidden."""
        a, before = self.start + self.unary[0], []
        for step, u in zip(self.steps, self.unary[1:], strict=True):
            candidates = a[:, None] + step
            before.append(candidates.argmax(0))
            a = candidates.max(0) + u
        best = a + self.end
        if best.max() == -np.inf:
            return [], -np.inf
        y = [int(best.argmax())]
        for pointers in before[::-1]:
            y.append(int(pointers[y[-1]]))
        return y[::-1], float(best.max())


def log_space_rows(
    unary: np.ndarray,
    transition: np.ndarray,
    start: np.ndarray | None = None,
    end: np.ndarray | None = None,
    lengths: Sequence[int] | None = None,
) -> list[LogSpace | None]:
    """One :class:`LogSpace` for each sequence, None for an empty one."""
    c = unary.shape[2]
    edges = [np.zeros(c) if x is None else x for x in (start, end)]
    found: list[LogSpace | None] = []
    for b, (line, n) in enumerate(zip(unary, lengths or [unary.shape[1]] * len(unary), strict=True)):
        if n == 0:
            found.append(None)
            continue
        steps = np.broadcast_to(transition, (n - 1, c, c)) if transition.ndim == 2 else transition[b][: n - 1]
        found.append(LogSpace(line[:n], steps, *edges))
    return found
