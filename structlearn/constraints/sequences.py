"""Constraints on neighbouring parts: transitions, and regular languages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from structlearn.constraints.automata import DFA
from structlearn.constraints.language import Bools, Constraint, Ints, Label, Labels, Spans
from structlearn.constraints.products import Marked, marked
from structlearn.constraints.regex import compile_regex
from structlearn.errors import ShapeError

if TYPE_CHECKING:
    from structlearn.constraints.program import ProgramBuilder


@dataclass(frozen=True, repr=False)
class Transition(Constraint):
    """A label of ``first`` is never followed by one of ``then``, or, if ``required``, always: then it is not last."""

    first: tuple[Label, ...]
    then: tuple[Label, ...]
    required: bool = False

    def _refused(self, labels: Labels) -> Bools:
        """(C+1,): what may not follow; the last entry stands for the end."""
        table = labels.table(self.then)
        return ~table if self.required else table

    def _broken(self, y: Ints, labels: Labels) -> Bools:
        after = np.concatenate([y[:, 1:], np.full((len(y), 1), labels.count)], 1)
        return labels.marks(y, self.first) & self._refused(labels)[after]

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        return np.logical_not(self._broken(y, labels).any(1))

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        t = int(np.flatnonzero(self._broken(y[None], labels)[0])[0])
        after = labels.names[y[t + 1]] if t + 1 < len(y) else "the end"
        return f"{labels.names[y[t]]} at {t} is followed by {after}"

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        first = np.flatnonzero(program.labels.table(self.first))
        refused = self._refused(program.labels)
        then, n = np.flatnonzero(refused[:-1]), program.parts
        if n > 1 and len(then):
            t = np.arange(n - 1)[:, None]
            index = np.concatenate([program.x(t, first), program.x(t + 1, then)], 1)
            program.block(index, np.ones(index.shape), np.ones(n - 1), relaxed, most=2)
        if refused[-1]:
            program.at_most(program.x(np.full(len(first), n - 1), first), np.ones(len(first)), 0, relaxed, most=1)

    def automaton(self, labels: Labels) -> DFA | None:
        first, refused = labels.table(self.first)[:-1].astype(np.int64), self._refused(labels)
        steps = np.stack([first, np.where(refused[:-1], -1, first)])
        return DFA(torch.from_numpy(steps), accept=[0] if refused[-1] else [0, 1])

    def __repr__(self) -> str:
        said = [repr(s[0]) if len(s) == 1 else repr(list(s)) for s in (self.first, self.then)]
        return f"{'require' if self.required else 'forbid'}({said[0]}, {said[1]})"


@dataclass(frozen=True, repr=False, eq=False)
class Regular(Constraint):
    """The label sequences that a regular expression describes, or an automaton accepts."""

    language: str | DFA
    _known: dict[tuple[str, ...], tuple[DFA, Marked]] = field(default_factory=dict, init=False)

    def _compiled(self, labels: Labels) -> tuple[DFA, Marked]:
        if labels.names not in self._known:
            dfa = self._automaton(labels)
            self._known[labels.names] = dfa, marked(dfa)
        return self._known[labels.names]

    def automaton(self, labels: Labels) -> DFA:
        return self._compiled(labels)[0]

    def _automaton(self, labels: Labels) -> DFA:
        if isinstance(self.language, str):
            return compile_regex(self.language, labels)
        if self.language.next.shape[1] != labels.count:
            raise ShapeError("dfa", f"{labels.count} labels", self.language.next.shape[1], "one column a label")
        return self.language

    def _read(self, y: Ints, labels: Labels) -> tuple[Ints, Bools, Ints]:
        """States (R, N+1) before and after each part, padding kept out, who accepts, and steps, all from 0."""
        steps, marks = self._compiled(labels)[1]
        states = np.zeros((len(y), y.shape[1] + 1), dtype=np.int64)
        for t in range(y.shape[1]):
            real = y[:, t] < labels.count
            states[:, t + 1] = np.where(real, steps[states[:, t], np.where(real, y[:, t], 0)], states[:, t])
        return states, marks.astype(bool), steps

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        states, accept, _ = self._read(y, labels)
        good: Bools = accept[states[:, -1]]
        return good

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        states, accept, steps = self._read(y[None], labels)
        stuck = (~accept & (steps == np.arange(len(steps))[:, None]).all(1))[states[0, 1:]]
        if stuck.any():
            t = int(np.flatnonzero(stuck)[0])
            return f"{labels.names[y[t]]} at {t} cannot stand there"
        return "it may not end there"

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        """A unit of flow through (t, state): x[t, c] = sum_q flow[t, q, c], and it ends where the automaton accepts."""
        steps, marks = self._compiled(program.labels)[1]
        size, count = steps.shape
        before = None
        for t in range(program.parts):
            flow = program.continuous(size * count).reshape(size, count)
            for c in range(count):
                program.equal(np.append(flow[:, c], program.x(t, c)), np.append(np.ones(size), -1.0), 0)
            for q in range(size):
                if before is None:
                    if q:
                        program.equal(flow[q], np.ones(count), 0)
                    continue
                into = before[steps == q]
                program.equal(np.concatenate([flow[q], into]), np.append(np.ones(count), -np.ones(len(into))), 0)
            before = flow
        if before is not None:
            final = before[marks[steps] > 0]
            program.at_most(final, -np.ones(len(final)), -1, relaxed, most=0)

    def __repr__(self) -> str:
        return f"regular({self.language!r})"
