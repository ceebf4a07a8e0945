"""Labelled segmentations by enumeration: every way to cut, every way to label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import numpy as np

from . import Part, Row

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
