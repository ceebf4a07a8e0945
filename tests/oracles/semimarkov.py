"""Labelled segmentations by enumeration: every way to cut, every way to label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from . import Part, Row, log_sums

Segmentation = tuple[tuple[int, int, int], ...]  # (start, last, label) from front to back


def cuts(n: int, width: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut 0..n-1 into (start, last) of at most ``width`` positions."""
    if n == 0:
        yield []
    for size in range(1, min(width, n) + 1):
        for front in cuts(n - size, width):
            yield [*front, (n - size, n - 1)]


def segmentations(n: int, width: int, labels: int) -> list[Segmentation]:
    """Ties: lowest last label, then smallest last width, then the same for the segment before, and so on."""
    found = [
        tuple((start, last, name) for (start, last), name in zip(cut, names, strict=True))
        for cut in cuts(n, width)
        for names in product(range(labels), repeat=len(cut))
    ]
    return sorted(
        found, key=lambda y: [number for start, last, label in reversed(y) for number in (label, last - start)]
    )


def code(y: Segmentation, labels: int) -> tuple[int, ...]:
    """The first position of a segment holds (width - 1) * labels + label, its others -1."""
    return tuple(
        number for start, last, label in y for number in ((last - start) * labels + label, *[-1] * (last - start))
    )


def parts(y: Segmentation, shared: bool) -> list[Part]:
    found: list[Part] = [("segments", (start, last - start, label)) for start, last, label in y]
    for (_, _, before), (start, _, label) in pairwise(y):
        found.append(("transition", (before, label) if shared else (start - 1, before, label)))
    return found


def rows(segments: np.ndarray, transition: np.ndarray, lengths: Sequence[int] | None = None) -> list[Row]:
    """One :class:`Row` for each sequence; outputs are codes."""
    size, width, labels = segments.shape[1:]
    shared = transition.ndim == 2
    found = []
    for b, (line, n) in enumerate(zip(segments, lengths or [size] * len(segments), strict=True)):
        space = segmentations(n, width, labels)
        fields = {"segments": line, "transition": transition if shared else transition[b]}
        found.append(Row([code(y, labels) for y in space], [parts(y, shared) for y in space], fields))
    return found


class Totals(NamedTuple):
    """What is true of one sequence, in extended precision, for lengths beyond enumeration."""

    log_partition: np.floating
    entropy: np.floating
    best: np.floating
    segments: np.ndarray  # (N, W, C) marginals
    transition: np.ndarray  # (C, C) or (N-1, C, C) marginals


def totals(segments: np.ndarray, transition: np.ndarray, n: int) -> Totals:
    """Forward and backward sums over the first n positions of segments (N, W, C)."""
    s, steps = segments.astype(np.longdouble), transition.astype(np.longdouble)
    width, labels = s.shape[1:]

    chosen, pairs = np.zeros(s.shape, np.longdouble), np.zeros(steps.shape, np.longdouble)
    if n == 0:
        return Totals(*np.zeros(3, np.longdouble), chosen, pairs)

    def into(t: int) -> np.ndarray:
        return steps if steps.ndim == 2 else steps[t - 1]

    ends, starts, follows, goes_on = (np.full((n + 1, labels), -np.inf, np.longdouble) for _ in range(4))
    best = np.full((2, n + 1, labels), -np.inf, np.longdouble)
    starts[0] = best[1, 0] = 0
    for t in range(1, n + 1):
        before = [(t - w - 1, w) for w in range(min(width, t))]
        ends[t] = log_sums(np.stack([starts[i] + s[i, w] for i, w in before]))
        best[0, t] = np.max([best[1, i] + s[i, w] for i, w in before], 0)
        if t < n:
            starts[t] = log_sums(ends[t][:, None] + into(t))
            best[1, t] = (best[0, t][:, None] + into(t)).max(0)
    follows[n] = 0
    for t in reversed(range(n)):
        goes_on[t] = log_sums(np.stack([s[t, w] + follows[t + w + 1] for w in range(min(width, n - t))]))
        if t:
            follows[t] = log_sums((into(t) + goes_on[t]).T)
    log_z = log_sums(ends[n])
    last = np.exp(ends[n] - log_z)
    entropy = _information(last, ends[n] - log_z)
    for t in range(n):
        for w in range(min(width, n - t)):
            chosen[t, w] = np.exp(starts[t] + s[t, w] + follows[t + w + 1] - log_z)
            entropy += _information(chosen[t, w], starts[t] + s[t, w] - ends[t + w + 1])
        if t:
            here = np.exp(ends[t][:, None] + into(t) + goes_on[t] - log_z)
            entropy += _information(here, ends[t][:, None] + into(t) - starts[t])
            pairs[... if steps.ndim == 2 else t - 1] += here
    return Totals(log_z, entropy, best[0, n].max(), chosen, pairs)


def _information(p: np.ndarray, log_share: np.ndarray) -> np.floating:
    """- sum p log_share over p > 0."""
    return -(p[p > 0] * log_share[p > 0]).sum()
