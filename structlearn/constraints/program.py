"""0/1 programs over part indicators.

    max_x  sum_tc score[t, c] x[t, c] + extra terms,   sum_c x[t, c] = 1,   rows of the constraints,   x in {0, 1}

Further variables stand for choices below |, for broken soft constraints, for steps of an automaton and, where a chain
scores transitions, for pairs of neighbouring labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from structlearn.constraints.language import Bools, Constraint, Floats, Ints, Labels, Spans

# Beyond this many entries comparing columns takes longer than it saves the simplex method.
_PRUNE_ENTRIES = 200_000


@dataclass(frozen=True)
class Program:
    """Rows low <= A x <= high as triplets, the columns that must be whole, and how columns are laid out.

    Columns 0..N*C-1 are the indicators; ``soft`` (S,) are those of broken soft constraints, ``pairs`` (N-1, C, C) those
    of transitions, empty where there are none.
    """

    parts: int
    count: int
    columns: int
    row: Ints
    column: Ints
    value: Floats
    low: Floats
    high: Floats
    whole: Bools
    soft: Ints
    pairs: Ints

    def costs(self, unary: Floats, transition: Floats | None, penalties: Floats) -> Floats:
        """(columns,) what each variable earns."""
        cost = np.zeros(self.columns)
        cost[: unary.size] = unary.reshape(-1)
        cost[self.soft] = -penalties
        if transition is not None and self.pairs.size:
            cost[self.pairs] = transition
        return cost

    def useful(self, cost: Floats) -> Ints:
        """Columns that some best output needs.

        Label v at part t is not needed if another label u there earns at least as much and loads no row more: putting
        u in its place breaks nothing. Labels that every row treats alike are told apart by what they earn only.
        """
        n, c = self.parts, self.count
        if len(self.low) * n * c > _PRUNE_ENTRIES:
            return np.arange(self.columns)
        kinds, lighter = self._kinds
        scores = cost[: n * c].reshape(n, c)
        chosen = np.array([alike[0] for alike in kinds])[None].repeat(n, 0)
        for kind, alike in enumerate(kinds):
            if len(alike) > 1:
                chosen[:, kind] = alike[scores[:, alike].argmax(1)]
        part = np.arange(n)[:, None]
        earns = scores[part, chosen]
        better = (earns[:, :, None] > earns[:, None, :]) | (
            (earns[:, :, None] == earns[:, None, :]) & (chosen[:, :, None] < chosen[:, None, :])
        )
        needed = ~(lighter & better).any(1)
        kept = np.sort((part * c + chosen)[needed])
        return np.concatenate([kept, np.arange(n * c, self.columns)])

    @cached_property
    def _kinds(self) -> tuple[list[Ints], Bools]:
        """Labels that every row treats alike, and whether a kind loads no row more than another, (N, kinds, kinds)."""
        n, c = self.parts, self.count
        dense = np.zeros((len(self.low), self.columns))
        dense[self.row, self.column] = self.value
        load = dense[n:, : n * c].reshape(-1, n, c)  # the first N rows say that a part has one label
        fixed = (self.low[n:] > -np.inf) & (self.high[n:] < np.inf)
        load = np.concatenate([load, -load[fixed]])
        seen: dict[bytes, int] = {}
        columns = np.ascontiguousarray(load.reshape(-1, c).T)
        numbers = np.array([seen.setdefault(column.tobytes(), len(seen)) for column in columns])
        kinds = [np.flatnonzero(numbers == kind) for kind in range(len(seen))]
        loads = load[:, :, [alike[0] for alike in kinds]]
        lighter = np.asarray((loads[..., :, None] <= loads[..., None, :]).all(0))
        return kinds, lighter


class ProgramBuilder:
    """Collects variables and rows for one instance."""

    def __init__(self, parts: int, labels: Labels, spans: Spans | None) -> None:
        self.parts, self.labels, self.spans = parts, labels, spans
        self.columns = parts * labels.count
        self._whole: list[int] = []
        self._entries: list[tuple[Ints, Floats]] = []
        self._widths: list[Ints] = []
        self._low: list[Floats] = []
        self._high: list[Floats] = []
        one = np.arange(self.columns).reshape(parts, labels.count)
        self._add(one, np.ones(one.shape), np.ones(parts), np.ones(parts))

    def x(self, t: Ints | int, c: Ints | int) -> Ints:
        """Columns of the indicators [y_t = c]; broadcasts."""
        return np.asarray(t) * self.labels.count + np.asarray(c)

    def binary(self) -> int:
        """A variable in {0, 1}."""
        self._whole.append(self.columns)
        return int(self.continuous(1)[0])

    def continuous(self, size: int) -> Ints:
        """Variables in [0, 1]."""
        self.columns += size
        return np.arange(self.columns - size, self.columns)

    def at_most(
        self, index: Ints, values: Floats, bound: float, relaxed: int | None, *, most: float | None = None
    ) -> None:
        """values . x[index] <= bound, unless ``relaxed`` is 1; the left side is never above ``most``."""
        self.block(index[None], values[None], np.array([float(bound)]), relaxed, most=most)

    def block(
        self, index: Ints, values: Floats, bounds: Floats, relaxed: int | None, *, most: float | None = None
    ) -> None:
        """Rows (R, K) of the same kind at once."""
        if relaxed is not None:
            ceiling = np.maximum(values, 0).sum(1) if most is None else np.full(len(bounds), most)
            room = np.maximum(ceiling - bounds, 0)
            index = np.concatenate([index, np.full((len(index), 1), relaxed)], 1)
            values = np.concatenate([values, -room[:, None]], 1)
        self._add(index, values, np.full(len(bounds), -np.inf), bounds)

    def equal(self, index: Ints, values: Floats, bound: float) -> None:
        """values . x[index] = bound."""
        self._add(index[None], values[None], np.array([float(bound)]), np.array([float(bound)]))

    def _add(self, index: Ints, values: Floats, low: Floats, high: Floats) -> None:
        self._entries.append((index.reshape(-1), values.reshape(-1)))
        self._widths.append(np.full(len(index), index.shape[1]))
        self._low.append(low)
        self._high.append(high)

    def pairs(self) -> Ints:
        """Variables of transitions, (N-1, C, C): sum_d pair[t, c, d] = x[t, c], sum_c pair[t, c, d] = x[t+1, d]."""
        n, c = max(self.parts - 1, 0), self.labels.count
        found = self.continuous(n * c * c).reshape(n, c, c)
        for side, blocks in ((0, found), (1, found.transpose(0, 2, 1))):
            index = np.concatenate([blocks.reshape(n * c, c), np.arange(n * c)[:, None] + side * c], 1)
            values = np.concatenate([np.ones((n * c, c)), -np.ones((n * c, 1))], 1)
            self._add(index, values, np.zeros(n * c), np.zeros(n * c))
        return found

    def finish(self, soft: Ints, pairs: Ints) -> Program:
        """The program."""
        column, value = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        widths = np.concatenate(self._widths)
        used = np.flatnonzero(value)
        row, column, value = np.repeat(np.arange(len(widths)), widths)[used], column[used], value[used]
        whole = np.zeros(self.columns, dtype=bool)
        whole[: self.parts * self.labels.count] = True
        whole[self._whole] = True
        return Program(
            self.parts,
            self.labels.count,
            self.columns,
            row,
            column,
            value,
            np.concatenate(self._low),
            np.concatenate(self._high),
            whole,
            soft,
            pairs,
        )


def build(
    hard: tuple[Constraint, ...],
    soft: tuple[Constraint, ...],
    parts: int,
    labels: Labels,
    spans: Spans | None,
    *,
    transitions: bool,
) -> Program:
    """The program of one instance; ``soft`` are the hard sides of soft constraints."""
    builder = ProgramBuilder(parts, labels, spans)
    pairs = builder.pairs() if transitions else np.empty((0, 0, 0), dtype=np.int64)
    for constraint in hard:
        constraint.rows(builder, None)
    broken = []
    for constraint in soft:
        broken.append(builder.binary())
        constraint.rows(builder, broken[-1])
    return builder.finish(np.array(broken, dtype=np.int64), pairs)
