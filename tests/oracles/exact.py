"""Answers to every query from the list of outputs, in long double: sums of all masks of float64 stay in range.

A :class:`Space` says which parts each output uses and holds for any potentials; :class:`Exact` adds potentials to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from . import Fields, Part

Output = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Space:
    """Outputs in the order of ties, each flat as the structure writes it, and their parts in fields of ``shapes``."""

    outputs: Sequence[Output]
    parts: Sequence[Sequence[Part]]
    shapes: dict[str, tuple[int, ...]]

    @cached_property
    def number(self) -> dict[Output, int]:
        return {y: i for i, y in enumerate(self.outputs)}

    @cached_property
    def index(self) -> np.ndarray:
        """Places of parts among all fields laid end to end, (outputs, most parts); none: the place behind the last."""
        begins = dict(zip(self.shapes, np.cumsum([0, *(int(np.prod(s)) for s in self.shapes.values())]), strict=False))
        flat = [
            [int(begins[name] + np.ravel_multi_index(at, self.shapes[name])) for name, at in parts]
            for parts in self.parts
        ]
        places = np.full((len(flat), max((len(row) for row in flat), default=0)), self.size)
        for row, used in zip(places, flat, strict=True):
            row[: len(used)] = used
        return places

    @cached_property
    def size(self) -> int:
        return int(sum(np.prod(s) for s in self.shapes.values()))

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each output uses each place, (outputs, size)."""
        found = np.zeros((len(self.outputs), self.size + 1))
        np.add.at(found, (np.arange(len(found))[:, None], self.index), 1.0)
        return found[:, :-1]

    def fields(self, flat: np.ndarray) -> Fields:
        """A vector over all places as one array for each field."""
        ends = np.cumsum([int(np.prod(s)) for s in self.shapes.values()])[:-1]
        pieces = np.split(flat, ends)
        return {name: x.reshape(s) for (name, s), x in zip(self.shapes.items(), pieces, strict=True)}

    @cached_property
    def _directions(self) -> np.ndarray:
        """An orthonormal basis of the differences between outputs' counts."""
        differences = self.counts - self.counts[0]
        _, sizes, basis = np.linalg.svd(differences, full_matrices=False)
        return basis[sizes > 1e-9 * max(1.0, sizes.max(initial=0.0))]

    def distance(self, fields: Fields) -> float:
        """How far expected parts are from every weighting (summing to one) of the outputs' parts."""
        flat = np.concatenate([np.asarray(fields[name], dtype=np.float64).ravel() for name in self.shapes])
        off = flat - self.counts[0]
        off = off - self._directions.T @ (self._directions @ off)
        return float(np.abs(off).max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Exact:
    """One instance; ``dtype_eps`` is the rounding unit of the numbers that an engine may compute in."""

    space: Space
    given: Fields
    eps: float
    limit: float  # the largest number of that dtype

    @cached_property
    def potentials(self) -> np.ndarray:
        """All fields laid end to end in long double, with a 0 behind the last."""
        flat = [np.asarray(self.given[name], dtype=np.longdouble).ravel() for name in self.space.shapes]
        return np.concatenate([*flat, np.zeros(1, dtype=np.longdouble)])

    @cached_property
    def scores(self) -> np.ndarray:
        return self.potentials[self.space.index].sum(1)

    @cached_property
    def magnitudes(self) -> np.ndarray:
        """sum of |parts| of each output, infinite where one is forbidden."""
        return np.abs(self.potentials[self.space.index]).sum(1)

    @cached_property
    def errors(self) -> np.ndarray:
        """How far s(y) may be off when it is added up in the engine's dtype."""
        finite = np.where(np.isfinite(self.magnitudes), self.magnitudes, np.longdouble(0))
        return self.eps * (self.space.index.shape[1] + 1) * finite

    @property
    def feasible(self) -> bool:
        return self.count > 0

    @property
    def count(self) -> int:
        return int((self.scores > -np.inf).sum())

    @cached_property
    def max(self) -> np.longdouble:
        return self.scores.max(initial=-np.inf)

    @cached_property
    def log_partition(self) -> np.longdouble:
        return self.max + np.log(np.exp(self.scores - self.max).sum()) if self.feasible else self.max

    @cached_property
    def probabilities(self) -> np.ndarray:
        return np.exp(self.scores - self.log_partition) if self.feasible else np.zeros_like(self.scores)

    @cached_property
    def entropy(self) -> float:
        p = self.probabilities
        used = p > 0
        return float(-(p[used] * (self.scores[used] - self.log_partition)).sum())

    @cached_property
    def marginals(self) -> Fields:
        return self.expected(self.probabilities)

    def expected(self, weights: np.ndarray) -> Fields:
        """sum_y weights[y] counts(y) by field."""
        return self.space.fields(weights.astype(np.float64) @ self.space.counts)

    def second(self, direction: Fields) -> Fields:
        """The derivative of the marginals along ``direction``: the covariance of parts with its score."""
        flat = np.concatenate([np.asarray(direction[name]).ravel() for name in self.space.shapes])
        scores = self.space.counts @ flat
        p = self.probabilities.astype(np.float64)
        return self.expected(p * (scores - p @ scores))

    def entropy_gradient(self) -> Fields:
        """-sum_y p(y) (log p(y) + H) counts(y)."""
        p = self.probabilities
        log_p = np.where(p > 0, self.scores - self.log_partition, 0.0)
        return self.expected(-p * (log_p + self.entropy))

    @property
    def live_size(self) -> float:
        """The largest |part| of an output that matters."""
        matters = self.probabilities > 1e-14
        used = self.potentials[self.space.index[matters]]
        return float(np.abs(used).max(initial=0.0))

    @property
    def decided(self) -> bool:
        """Whether the best output is ahead of all others by more than any rounding."""
        order = np.argsort(-self.scores, kind="stable")[:2]
        if len(order) < 2 or self.scores[order[1]] == -np.inf:
            return True
        lead = self.scores[order[0]] - self.scores[order[1]]
        return bool(lead > 60 + 8 * self.errors[order].sum())

    def bounds(self, order: Callable[[np.ndarray], np.ndarray] = np.max) -> tuple[float, float]:
        """Between what the engine's ``order`` statistic of the scores may lie, cut to the dtype's range."""
        low, high = (order(x) for x in (self.scores - self.errors, self.scores + self.errors))
        return self.cut(low), self.cut(high)

    def cut(self, value: np.longdouble) -> float:
        """A finite number beyond the dtype's range as its last one."""
        limit = np.longdouble(self.limit)
        return float(value if value == -np.inf else np.clip(value, -limit, limit))
