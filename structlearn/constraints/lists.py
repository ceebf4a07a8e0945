"""Outputs listed one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from structlearn.constraints.automata import DFA
from structlearn.constraints.language import Bools, Constraint, Ints, Label, Labels, Spans

if TYPE_CHECKING:
    from structlearn.constraints.program import ProgramBuilder

MAX_PREFIXES = 4096  # in an automaton, whose states are the prefixes


@dataclass(frozen=True, repr=False)
class Allowed(Constraint):
    """One of the listed outputs; instances of another length than an entry do not match it."""

    outputs: tuple[tuple[Label, ...], ...]
    _trees: dict[tuple[str, ...], tuple[Ints, Bools]] = field(default_factory=dict, init=False, compare=False)

    def numbers(self, labels: Labels, n: int) -> Ints:
        """(K, N): the listed outputs of length n, each once."""
        rows = dict.fromkeys(tuple(labels.number(label) for label in y) for y in self.outputs if len(y) == n)
        return np.array(list(rows), dtype=np.int64).reshape(len(rows), n)

    def _tree(self, labels: Labels) -> tuple[Ints, Bools]:
        """Prefixes: steps (Q+1, C+1) from 0, into Q where no output goes on so; and (Q+1,) which are outputs."""
        if labels.names not in self._trees:
            longer: list[dict[int, int]] = [{}]
            ends = set()
            for output in self.outputs:
                state = 0
                for label in output:
                    after = longer[state].setdefault(labels.number(label), len(longer))
                    if after == len(longer):
                        longer.append({})
                    state = after
                ends.add(state)
            steps = np.full((len(longer) + 1, labels.count + 1), len(longer))
            for state, ways in enumerate(longer):
                steps[state, list(ways)] = list(ways.values())
            steps[:, -1] = np.arange(len(steps))  # padding keeps the state
            self._trees[labels.names] = steps, np.isin(np.arange(len(steps)), list(ends))
        return self._trees[labels.names]

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        steps, ends = self._tree(labels)
        state = np.zeros(len(y), dtype=np.int64)
        for column in y.T:
            state = steps[state, column]
        allowed: Bools = ends[state]
        return allowed

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        return f"({', '.join(labels.names[c] for c in y)}) is not listed"

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        outputs, n = self.numbers(program.labels, program.parts), program.parts
        chosen = [program.binary() for _ in outputs]
        program.at_most(np.array(chosen, dtype=np.int64), -np.ones(len(chosen)), -1, relaxed, most=0)
        for variable, y in zip(chosen, outputs, strict=True):
            # n * chosen <= sum_t x[t, y_t]
            index = np.append(program.x(np.arange(n), y), variable)
            program.at_most(index, np.append(-np.ones(n), n), 0, None)

    def automaton(self, labels: Labels) -> DFA | None:
        steps, ends = self._tree(labels)
        dead = len(steps) - 1
        if dead > MAX_PREFIXES:
            return None
        following = np.where(steps == dead, -1, steps)[:-1, :-1]
        return DFA(torch.from_numpy(following), accept=np.flatnonzero(ends).tolist())

    def __repr__(self) -> str:
        return f"allowed([{', '.join(str(list(y)) for y in self.outputs)}])"
