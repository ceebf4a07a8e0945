"""Violations over segmentations, against enumeration of every segmentation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from oracles.costs import violation

import structlearn as sl

Segmentation = tuple[tuple[int, int, int], ...]
WIDTH, CLASSES = 2, 3
LENGTHS = (4, 3, 1, 0)


def segmentations(n: int, start: int = 0) -> list[Segmentation]:
    """All cuts of start..n-1 into labelled segments (first, last, label)."""
    if start == n:
        return [()]
    return [
        ((start, end - 1, c), *rest)
        for end in range(start + 1, min(start + WIDTH, n) + 1)
        for c in range(CLASSES)
        for rest in segmentations(n, end)
    ]


def hamming(gold: Segmentation, y: Segmentation, weights: Sequence[float] = (1.0, 1.0, 1.0)) -> float:
    labels = [[c for first, last, c in z for _ in range(first, last + 1)] for z in (gold, y)]
    return sum(weights[a] * (a != b) for a, b in zip(*labels, strict=True))


def segment_f1(gold: Segmentation, y: Segmentation) -> float:
    a, b = ({s for s in z if s[2] != 0} for z in (gold, y))
    return 1.0 - 2.0 * len(a & b) / (len(a) + len(b)) if a or b else 0.0


COSTS = {
    "zero_one": (sl.costs.ZeroOne(), lambda gold, y: float(gold != y)),
    "hamming": (sl.costs.Hamming(), hamming),
    "hamming_half": (sl.costs.Hamming(torch.full((3,), 0.5)), lambda gold, y: 0.5 * hamming(gold, y)),
    "hamming_fractions": (
        sl.costs.Hamming(torch.tensor([0.3, 0.0, 1.7])),
        lambda gold, y: hamming(gold, y, (0.3, 0.0, 1.7)),
    ),
    "segment_f1": (sl.costs.SegmentF1(outside=0), segment_f1),
}


@pytest.mark.parametrize("form", list(itertools.product(("margin", "slack"), (False, True))))
@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_segmentation_violations(name: str, form: tuple[Any, bool], backend: str) -> None:
    cost, delta = COSTS[name]
    segments = torch.randn(4, 4, WIDTH, CLASSES, dtype=torch.float64)
    transition = torch.randn(CLASSES, CLASSES, dtype=torch.float64)
    structure = sl.SemiMarkov(segments, transition, lengths=torch.tensor(LENGTHS), backend=backend)
    truths: list[Segmentation] = [((0, 1, 1), (2, 2, 0), (3, 3, 2)), ((0, 0, 2), (1, 2, 2)), ((0, 0, 1),), ()]
    gold = structure.encode(truths)
    options: Any = {"rescaling": form[0], "squared": form[1]}
    found = sl.most_violated(structure, gold, cost, **options)
    chosen = structure.segments_of(found.y)
    loss = sl.StructuredHinge(cost, **options, reduction="none")(structure, gold)
    for b, n in enumerate(LENGTHS):

        def score(y: Segmentation, b: int = b) -> float:
            inside = sum(float(segments[b, first, last - first, c]) for first, last, c in y)
            return inside + sum(float(transition[p[2], c[2]]) for p, c in itertools.pairwise(y))

        at = score(truths[b])
        values = {y: violation(delta(truths[b], y), score(y) - at, *form) for y in segmentations(n)}
        best = max(values.values())
        np.testing.assert_allclose(float(found.value[b]), best, atol=1e-9)
        np.testing.assert_allclose(values[tuple(map(tuple, chosen[b]))], best, atol=1e-9)
        np.testing.assert_allclose(float(loss[b]), max(best, 0.0) ** (2 if form[1] else 1), atol=1e-9)
