"""Choosing how a constraint is solved, by the constraint and the labels alone: never by the instances of a batch.

    enumeration   one of the hard conjuncts is an explicit list: every output in it is scored
    automaton     the constraint is a regular language with few states: a chain over (label, state) pairs
    ilp           everything else: a 0/1 program for each instance

The first two answer every query on a batch at once and are differentiable. Where it is named, enumeration takes any
constraint over few outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from structlearn.constraints.automata import DFA
from structlearn.constraints.checks import Checks
from structlearn.constraints.language import Bools, Constraint, Ints, Labels, split, walk
from structlearn.constraints.lists import Allowed
from structlearn.constraints.products import combined, marked, minimal, refusing
from structlearn.constraints.program import Program
from structlearn.errors import ArgumentError, InferenceError

Method = Literal["auto", "automaton", "enumeration", "ilp"]
# Above this many (label, state) pairs a step of the dense chain costs more than the whole 0/1 program of a sentence.
MAX_PAIRS = 512
MAX_OUTPUTS = 4096
METHODS = ("auto", "automaton", "enumeration", "ilp")


@dataclass(frozen=True)
class Automaton:
    """``dfa`` accepts what the hard conjuncts allow; ``broken`` (Q, S): soft conjuncts broken when ending there."""

    dfa: DFA
    broken: Tensor

    @property
    def pairs(self) -> int:
        """Labels of the expanded chain."""
        return len(self.dfa.expansion.emit)


class Compiled:
    """A constraint over named labels, ready to be put on chains; keep it, for compiling takes longer than solving.

    Args:
        constraint: of hard and soft conjuncts.
        labels: their names, or how many there are.
        method: "auto", or one of "automaton", "enumeration", "ilp".
        time_limit: seconds that a 0/1 program may take for one instance; the best output found by then is returned.
        threads: that branch and bound the 0/1 programs of a batch whose relaxations are fractional.
    """

    def __init__(
        self,
        constraint: Constraint,
        labels: Labels | list[str] | tuple[str, ...] | int,
        *,
        method: Method = "auto",
        time_limit: float = 60.0,
        threads: int = 2,
    ) -> None:
        if method not in METHODS:
            raise ArgumentError("method", f"one of {METHODS}", repr(method), "'auto' takes the quickest that can")
        if not time_limit >= 0:
            raise ArgumentError("time_limit", "seconds >= 0", time_limit, "float('inf') waits for ever")
        if threads < 1:
            raise ArgumentError("threads", "an integer >= 1", threads, "1 solves one program after the other")
        self.constraint = constraint
        self.labels = labels if isinstance(labels, Labels) else Labels(labels)
        self.hard, self.soft = split(constraint)
        self.method, self.time_limit, self.threads = method, time_limit, threads
        self.programs: dict[tuple[bytes, int, bytes, bool], Program] = {}
        self._outputs: dict[int, Ints] = {}
        self._kept: dict[tuple[int, int], Bools] = {}
        if any(part.needs_spans for part in walk(constraint)) and method == "automaton":
            raise self._cannot("automaton", "it speaks of spans")

    @property
    def penalties(self) -> Tensor:
        """(S,) float64, as written in the soft conjuncts."""
        return torch.tensor([s.penalty for s in self.soft], dtype=torch.float64)

    @cached_property
    def checks(self) -> Checks:
        """Of the hard conjuncts, then of the soft ones."""
        return Checks((*self.hard.parts, *(soft.hard for soft in self.soft)), self.labels)

    @cached_property
    def automaton(self) -> Automaton | None:
        """None if the constraint is not a small regular language."""
        if any(part.needs_spans for part in walk(self.constraint)):
            return None
        automata = []
        for i, part in enumerate([self.hard, *(s.hard for s in self.soft)]):
            dfa = part.automaton(self.labels)
            if dfa is None:
                return None
            automata.append(marked(dfa, 1 << i))
        together = combined(automata, self.labels.count, np.bitwise_or, 0)
        if together is None:
            return None
        # What is refused whatever follows is refused alike, whichever soft conjuncts it kept.
        kept = together._replace(marks=np.where(together.marks & 1, together.marks, 0))
        steps, marks = refusing(minimal(kept))
        broken = 1 - (marks[:, None] >> np.arange(1, len(self.soft) + 1) & 1)
        accept = np.flatnonzero(marks & 1).tolist()
        return Automaton(DFA(torch.from_numpy(steps), accept=accept), torch.from_numpy(broken))

    def outputs(self, n: int) -> Ints:
        """(K, n): outputs of that length among which the allowed ones are, each once; only where they are few."""
        if n not in self._outputs:
            self._outputs[n] = self._list(n)
        return self._outputs[n]

    def kept(self, constraint: Constraint, n: int) -> Bools:
        """(K,): which of those outputs keep a constraint that speaks of no spans."""
        key = (id(constraint), n)
        if key not in self._kept:
            self._kept[key] = constraint.satisfied(self.outputs(n), self.labels)
        return self._kept[key]

    @cached_property
    def _lists(self) -> tuple[Allowed, ...]:
        return tuple(part for part in self.hard.parts if isinstance(part, Allowed))

    def _list(self, n: int) -> Ints:
        if self._lists:
            return min((part.numbers(self.labels, n) for part in self._lists), key=len)
        count = self.labels.count
        size = count**n
        if size > MAX_OUTPUTS:
            raise self._cannot("enumeration", f"{count}^{n} outputs are more than {MAX_OUTPUTS}")
        place = count ** np.arange(n - 1, -1, -1, dtype=np.int64)
        return np.arange(size)[:, None] // place % count

    @cached_property
    def path(self) -> str:
        """ "automaton", "enumeration" or "ilp"."""
        if self.method == "automaton" and self.automaton is None:
            raise self._cannot("automaton", "it is not a regular language with few states")
        if self.method != "auto":
            return self.method
        if self._lists:
            return "enumeration"
        return "automaton" if self.automaton is not None and self.automaton.pairs <= MAX_PAIRS else "ilp"

    def _cannot(self, method: str, why: str) -> InferenceError:
        return InferenceError("method", f"one that can solve {self.constraint}", f"{method!r}: {why}", "use 'auto'")
