"""Single constraints: what a person would write.

no_overlap()                                 parts that share a word are not both labelled
at_most(1, "A0"), exactly(k, ...), at_least(k, ...)
implies("R-A0", "A0"), implies("C-A1", "A1", before=True)
forbid("O", "I"), require("B", ["I", "E"])   transitions
regular("O* (B I*)*")
linear({"A0": 1, (3, "A1"): 2}, "<=", 2)     over indicators of labels, or of (part, label)
allowed([["B", "I"], ["O", "O"]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from structlearn.constraints.automata import DFA
from structlearn.constraints.language import Bools, Constraint, Floats, Ints, Label, Labels, Spans, exact_text
from structlearn.errors import ArgumentError

if TYPE_CHECKING:
    from structlearn.constraints.program import ProgramBuilder

Sense = Literal["<=", ">=", "=="]
Key = Label | tuple[int, Label]
SLACK = 1e-9  # of sums against their bounds


@dataclass(frozen=True, repr=False)
class NoOverlap(Constraint):
    """Of parts that share a word, at most one has a label outside ``none``."""

    none: tuple[Label, ...] = (0,)
    needs_spans = True

    def _overlap(self, spans: Spans | None) -> Spans:
        if spans is None:
            raise ArgumentError("spans", "(B, N, 2), first and last word of each part", None, f"{self} needs them")
        return spans

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        meet = self._overlap(spans).overlap
        used = ~labels.marks(y, self.none) & (y < labels.count)
        n = y.shape[1]
        return np.logical_not((used[:, :, None] & used[:, None, :] & meet[:, :n, :n]).any((1, 2)))

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        n = len(y)
        used = ~labels.marks(y, self.none) & (y < labels.count)
        s, t = np.argwhere(used[:, None] & used & self._overlap(spans).overlap[0, :n, :n])[0].tolist()
        return f"parts {s} ({labels.names[y[s]]}) and {t} ({labels.names[y[t]]}) overlap"

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        ends = self._overlap(program.spans).ends[0, : program.parts]
        # Intervals that meet pairwise share a word, and one of them begins there: a row for each first word.
        starts = np.array(sorted(set(ends[:, 0].tolist())))[:, None]
        cover = (ends[:, 0] <= starts) & (ends[:, 1] >= starts)
        cover = cover[cover.sum(1) > 1]
        none = np.flatnonzero(program.labels.table(self.none))
        index = program.x(np.arange(len(ends))[:, None], none).reshape(-1)
        values = -np.repeat(cover, len(none), 1).astype(np.float64)
        bounds = 1.0 - cover.sum(1)
        program.block(np.broadcast_to(index, values.shape), values, bounds, relaxed, most=0)

    def __repr__(self) -> str:
        return "no_overlap()" if self.none == (0,) else f"no_overlap(none={_said(self.none)})"


@dataclass(frozen=True, repr=False)
class Linear(Constraint):
    """sum of weight_k [label at some part, or at one part] (<=, >= or ==) bound."""

    terms: tuple[tuple[Key, float], ...]
    sense: Sense
    bound: float
    text: str = ""
    _tables: dict[tuple[str, ...], Floats] = field(default_factory=dict, init=False, compare=False)
    _rows: dict[tuple[tuple[str, ...], int], tuple[Ints, Floats]] = field(
        default_factory=dict, init=False, compare=False
    )

    @cached_property
    def placed(self) -> bool:
        """Whether some indicator is of one part only."""
        return any(isinstance(key, tuple) for key, _ in self.terms)

    @property
    def limits(self) -> tuple[float, float]:
        """What the sum lies between."""
        return -np.inf if self.sense == "<=" else self.bound, np.inf if self.sense == ">=" else self.bound

    def by_label(self, labels: Labels) -> Floats:
        """(C+1,) weights where no part is named."""
        if labels.names not in self._tables:
            self._tables[labels.names] = self._weights(labels, 1)[0]
        return self._tables[labels.names]

    def _weights(self, labels: Labels, n: int) -> Floats:
        """(N, C+1) weight of each indicator; padding weighs nothing."""
        weights = np.zeros((n, labels.count + 1))
        for key, value in self.terms:
            if isinstance(key, tuple):
                if key[0] < n:
                    weights[key[0], labels.number(key[1])] += value
            else:
                weights[:, labels.number(key)] += value
        return weights

    def _entries(self, labels: Labels, n: int) -> tuple[Ints, Floats]:
        """Indicators t C + c of n parts that weigh something, and their weights."""
        if (labels.names, n) not in self._rows:
            weights = self._weights(labels, n)[:, :-1].reshape(-1)
            index = np.flatnonzero(weights)
            self._rows[labels.names, n] = index, weights[index]
        return self._rows[labels.names, n]

    def _sums(self, y: Ints, labels: Labels) -> Floats:
        if not self.placed:
            total: Floats = self.by_label(labels)[y].sum(1)
            return total
        weights = self._weights(labels, y.shape[1])
        sums: Floats = weights[np.arange(y.shape[1]), y].sum(1)
        return sums

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        sums, (low, high) = self._sums(y, labels), self.limits
        return (sums >= low - SLACK) & (sums <= high + SLACK)

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        at = np.flatnonzero(self._weights(labels, len(y))[np.arange(len(y)), y])
        said = ", ".join(f"{labels.names[y[t]]} at {t}" for t in at) or "none of its labels occurs"
        return f"{said}: {self._sums(y[None], labels)[0]:g}"

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        n, most, least = program.parts, None, None
        index, values = self._entries(program.labels, n)
        if relaxed is not None:
            weights = self._weights(program.labels, n)[:, :-1]
            most, least = float(weights.max(1).sum()), float(weights.min(1).sum())
        if self.sense != ">=":
            program.at_most(index, values, self.bound, relaxed, most=most)
        if self.sense != "<=":
            program.at_most(index, -values, -self.bound, relaxed, most=None if least is None else -least)

    def automaton(self, labels: Labels) -> DFA | None:
        """Counts up to the bound; only whole weights >= 0 on labels, wherever they stand."""
        weights, bound = self._weights(labels, 1)[0, :-1], self.bound
        if self.placed or (weights < 0).any() or (weights % 1).any():
            return None
        never = bound % 1 > 0 and self.sense == "=="
        top = int(np.floor(bound) if self.sense == "<=" else np.ceil(bound))
        if never or top < 0:
            always = self.sense == ">="
            return DFA([[0] * labels.count], accept=[0] if always else [])
        if top > 1000:
            return None
        after = np.arange(top + 1)[:, None] + weights.astype(np.int64)
        after = np.minimum(after, top) if self.sense == ">=" else np.where(after > top, -1, after)
        accept = list(range(top + 1)) if self.sense == "<=" else [top]
        return DFA(torch.from_numpy(after), accept=accept)

    def __repr__(self) -> str:
        if self.text:
            return self.text
        said = ", ".join(f"{key!r}: {exact_text(value)}" for key, value in self.terms)
        return f"linear({{{said}}}, {self.sense!r}, {exact_text(self.bound)})"


@dataclass(frozen=True, repr=False)
class Implies(Constraint):
    """Where a label of ``first`` occurs, one of ``then`` occurs too; ``before``: at an earlier part."""

    first: tuple[Label, ...]
    then: tuple[Label, ...]
    before: bool = False

    def _broken(self, y: Ints, labels: Labels) -> Bools:
        """(R, N): parts labelled ``first`` that lack their ``then``."""
        has = labels.marks(y, self.then)
        if self.before:
            seen = np.zeros_like(has)
            seen[:, 1:] = np.logical_or.accumulate(has, 1)[:, :-1]
        else:
            seen = np.asarray(has.any(1))[:, None]
        return labels.marks(y, self.first) & ~seen

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        return np.logical_not(self._broken(y, labels).any(1))

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        t = int(np.flatnonzero(self._broken(y[None], labels)[0])[0])
        return f"{labels.names[y[t]]} at {t} without {_said(self.then)}{' before it' if self.before else ''}"

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        first, then = (np.flatnonzero(program.labels.table(s)) for s in (self.first, self.then))
        n = program.parts
        both = np.intersect1d(first, then)
        if len(both) and not self.before:  # such a label serves itself
            first = np.setdiff1d(first, both)
        here = program.x(np.arange(n)[:, None], first)
        there = np.broadcast_to(program.x(np.arange(n)[:, None], then).reshape(-1), (n, n * len(then)))
        values = np.concatenate([np.ones(here.shape), -np.ones(there.shape)], 1)
        if self.before:
            values[:, len(first) :] *= np.repeat(np.tri(n, k=-1), len(then), 1)
        program.block(np.concatenate([here, there], 1), values, np.zeros(n), relaxed, most=1)

    def automaton(self, labels: Labels) -> DFA | None:
        first, then = (labels.table(s)[:-1] for s in (self.first, self.then))
        # States: nothing yet; first without then; then seen. A label in both sets serves itself unless it must precede.
        if self.before:
            return DFA(
                [[-1 if a else int(b) for a, b in zip(first, then, strict=True)], [1] * len(first)], accept=[0, 1]
            )
        begin = [2 if b else int(a) for a, b in zip(first, then, strict=True)]
        return DFA([begin, [2 if b else 1 for b in then], [2] * len(first)], accept=[0, 2])

    def __repr__(self) -> str:
        return f"implies({_said(self.first)}, {_said(self.then)}{', before=True' if self.before else ''})"


def _said(labels: Sequence[Label]) -> str:
    return repr(labels[0]) if len(labels) == 1 else repr(list(labels))
