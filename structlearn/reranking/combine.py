"""Votes, log-probability and number of brackets into one score, and the weights between them.

    score(x) = votes(x) + β log P(x) + γ |brackets of x|

β and γ are searched on a grid whose unit is the spread of the votes inside a list over that of the other two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from structlearn.reranking.lists import NBest

Array = np.ndarray[Any, np.dtype[np.float64]]

_BETAS = (0.0, *(2.0**k for k in range(-4, 6)))
_GAMMAS = (0.0, *(sign * 2.0**k for k in range(-4, 3) for sign in (1, -1)))


class Weights(NamedTuple):
    """β and γ."""

    beta: float
    gamma: float

    def combine(self, lists: Sequence[NBest], votes: Sequence[Array]) -> list[Array]:
        """The scores (M,) of each list."""
        return [
            v + self.beta * np.asarray(item.log_probs) + self.gamma * np.asarray(item.brackets)
            for item, v in zip(lists, votes, strict=True)
        ]


def choose(lists: Sequence[NBest], scores: Sequence[Array]) -> list[int]:
    """The highest score of each list; ties go to the higher log-probability, then to the lower index."""
    return [
        max(range(len(item)), key=lambda i: (s[i], item.log_probs[i], -i))
        for item, s in zip(lists, scores, strict=True)
    ]


def tune(lists: Sequence[NBest], votes: Sequence[Array]) -> Weights:
    """The weights with the highest F1 on these lists; of equal ones the first, smaller ones coming first."""
    unit = _spread(votes) or 1.0
    of_prob = unit / (_spread([np.asarray(item.log_probs) for item in lists]) or 1.0)
    of_brackets = unit / (_spread([np.asarray(item.brackets, dtype=np.float64) for item in lists]) or 1.0)
    grid = [Weights(b * of_prob, g * of_brackets) for b in _BETAS for g in _GAMMAS]
    padded = _padded(votes, -np.inf)
    log_probs, brackets = (_padded([getattr(item, what) for item in lists], 0.0) for what in ("log_probs", "brackets"))
    matched, predicted, gold = (
        _padded([[getattr(c, what) for c in item.counts] for item in lists], 0.0)
        for what in ("matched", "predicted", "gold")
    )
    rows = np.arange(len(lists))

    def f1(weights: Weights) -> float:
        chosen = rows, (padded + weights.beta * log_probs + weights.gamma * brackets).argmax(axis=1)
        return float(2 * matched[chosen].sum() / max((predicted + gold)[chosen].sum(), 1))

    return max(grid, key=f1)


def _padded(values: Sequence[Any], fill: float) -> Array:
    """(lists, most candidates), ``fill`` beyond a list's own."""
    table = np.full((len(values), max(map(len, values))), fill)
    for row, own in zip(table, values, strict=True):
        row[: len(own)] = own
    return table


def _spread(values: Sequence[Array]) -> float:
    return float(np.sqrt(np.mean([np.var(v) for v in values])))
