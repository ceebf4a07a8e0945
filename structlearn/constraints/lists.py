"""Outputs listed one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from structlearn.constraints.automata import DFA
from structlearn.constraints.language import Bools, Constraint, Ints, Label, Labels, Spans

if TYPE_CHECKING:
    from structlearn.constraints.program import ProgramBuilder


@dataclass(frozen=True, repr=False)
class Allowed(Constraint):
    """One of the listed outputs; instances of another length than an entry do not match it."""

    outputs: tuple[tuple[Label, ...], ...]

    def numbers(self, labels: Labels, n: int) -> Ints:
        """(K, N): the listed outputs of length n."""
        found = [[labels.number(label) for label in y] for y in self.outputs if len(y) == n]
        return np.array(found, dtype=np.int64).reshape(len(found), n)

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        lengths = (y < labels.count).sum(1)
        good = np.zeros(len(y), dtype=bool)
        for n in np.unique(lengths).tolist():
            rows, known = lengths == n, {row.tobytes() for row in self.numbers(labels, n)}
            good[rows] = [np.ascontiguousarray(row).tobytes() in known for row in y[rows, :n]]
        return good

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        return f"({', '.join(labels.names[c] for c in y)}) is not listed"

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        found, n = self.numbers(program.labels, program.parts), program.parts
        chosen = [program.binary() for _ in found]
        program.at_most(np.array(chosen, dtype=np.int64), -np.ones(len(chosen)), -1, relaxed, most=0)
        for variable, y in zip(chosen, found, strict=True):
            # n * chosen <= sum_t x[t, y_t]
            index = np.append(program.x(np.arange(n), y), variable)
            program.at_most(index, np.append(-np.ones(n), n), 0, None)

    def automaton(self, labels: Labels) -> DFA | None:
        """A tree of prefixes."""
        rows, accept = [[-1] * labels.count], set()
        for output in self.outputs:
            state = 0
            for label in output:
                c = labels.number(label)
                if rows[state][c] < 0:
                    rows[state][c] = len(rows)
                    rows.append([-1] * labels.count)
                state = rows[state][c]
            accept.add(state)
        return DFA(rows, accept=sorted(accept)) if len(rows) <= 4096 else None

    def __repr__(self) -> str:
        first = ", ".join(str(list(y)) for y in self.outputs[:3])
        return f"allowed([{first}{f', ... {len(self.outputs)} outputs' if len(self.outputs) > 3 else ''}])"
