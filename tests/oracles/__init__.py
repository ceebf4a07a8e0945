"""Outside truth for the tests: output spaces written out in full, in plain Python and numpy.

Nothing here imports structlearn. An oracle module says which outputs a space has and which parts each output
uses; :class:`Row` turns that list into the answer to every query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Part = tuple[str, tuple[int, ...]]  # field and index into that field's array
Fields = dict[str, np.ndarray]


def log_sum_exp(x: np.ndarray) -> float:
    """log sum exp of a vector, -inf for one that is empty or -inf throughout."""
    top = x.max(initial=-np.inf)
    return float(top) if not np.isfinite(top) else float(top + np.log(np.exp(x - top).sum()))


def log_sums(x: np.ndarray) -> np.ndarray:
    """log sum exp over the first axis, in the precision of ``x``."""
    top = x.max(0)
    shift = np.where(top > -np.inf, top, 0)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(x - shift).sum(0))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Row:
    """One instance: outputs in the order that ties are broken, the parts of each, and the potentials."""

    outputs: Sequence[tuple[int, ...]]
    parts: Sequence[Sequence[Part]]
    fields: Fields

    @cached_property
    def scores(self) -> np.ndarray:
        """s(y) of every output, float64."""
        return np.array([sum((float(self.fields[f][i]) for f, i in parts), 0.0) for parts in self.parts])

    @property
    def feasible(self) -> bool:
        return self.max > -np.inf

    @property
    def max(self) -> float:
        return float(self.scores.max(initial=-np.inf))

    @property
    def count(self) -> int:
        return int((self.scores > -np.inf).sum())

    @property
    def log_partition(self) -> float:
        return log_sum_exp(self.scores)

    @cached_property
    def probabilities(self) -> np.ndarray:
        return np.exp(self.scores - self.log_partition) if self.feasible else np.zeros_like(self.scores)

    @property
    def entropy(self) -> float:
        p = self.probabilities[self.probabilities > 0]
        return float(-(p * np.log(p)).sum())

    def topk(self, k: int) -> list[tuple[tuple[int, ...], float]]:
        """The feasible ones among the k best, equals in the order of ``outputs``."""
        order = np.argsort(-self.scores, kind="stable")[:k]
        return [(self.outputs[i], float(self.scores[i])) for i in order if self.scores[i] > -np.inf]

    def expected_parts(self, weights: np.ndarray | None = None) -> Fields:
        """sum_y weights[y] * counts(y), by field; the weights are p(y) if not given."""
        total = {name: np.zeros(value.shape) for name, value in self.fields.items()}
        for parts, weight in zip(self.parts, self.probabilities if weights is None else weights, strict=True):
            for name, index in parts:
                total[name][index] += weight
        return total

    def best_parts(self) -> Fields:
        """counts of the best output, none where all are forbidden."""
        weights = np.zeros(len(self.outputs))
        if self.feasible:
            weights[int(self.scores.argmax())] = 1.0
        return self.expected_parts(weights)


def stack_rows(
    rows: Sequence[Row], shared: Sequence[str], of: Callable[[Row], Fields], grad: Sequence[float] | None = None
) -> Fields:
    """Per-row fields as the batch has them: stacked, except for those in ``shared``, which the rows add up in."""
    weights = [1.0] * len(rows) if grad is None else grad
    found = [
        {name: weight * value for name, value in of(row).items()} for row, weight in zip(rows, weights, strict=True)
    ]
    return {
        name: np.sum([f[name] for f in found], axis=0) if name in shared else np.stack([f[name] for f in found])
        for name in found[0]
    }
