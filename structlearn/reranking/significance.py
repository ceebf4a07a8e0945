"""Is one choice of candidates better than another on the corpus, or by luck of the sentences?

Paired bootstrap: draw as many sentences with replacement as there are, score both choices on the same draw,

    p = ( 1 + #{draws: F1(a) - F1(b) <= 0} ) / ( 1 + draws ),

the one-sided chance that a is no better than b.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from structlearn.errors import ArgumentError, ShapeError
from structlearn.reranking.matches import Matches


class Comparison(NamedTuple):
    """F1(a) - F1(b) on the corpus, its 95% interval over draws, and p."""

    difference: float
    low: float
    high: float
    p: float


def paired_bootstrap(a: Sequence[Matches], b: Sequence[Matches], *, draws: int = 10000, seed: int = 0) -> Comparison:
    """Compare two choices, one :class:`Matches` a sentence each."""
    if len(a) != len(b) or not a:
        expected = "the same sentences, at least one"
        raise ShapeError("a, b", expected, f"{len(a)} and {len(b)}", "score both choices on one corpus")
    if draws < 1:
        raise ArgumentError("draws", "an integer >= 1", draws, "p has a resolution of 1 / draws")
    counts = np.asarray([[x.matched, x.predicted + x.gold] for x in a], dtype=np.float64)
    counts = np.concatenate([counts, np.asarray([[x.matched, x.predicted + x.gold] for x in b])], axis=1)
    rng = np.random.default_rng(seed)
    differences = np.empty(draws)
    for i in range(draws):
        # How often each sentence is drawn.
        times = np.bincount(rng.integers(0, len(a), len(a)), minlength=len(a))
        differences[i] = _difference(times @ counts)
    low, high = np.quantile(differences, [0.025, 0.975])
    p = (1 + int((differences <= 0).sum())) / (1 + draws)
    return Comparison(float(_difference(counts.sum(axis=0))), float(low), float(high), p)


def _difference(sums: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return 2 * sums[0] / max(sums[1], 1) - 2 * sums[2] / max(sums[3], 1)
