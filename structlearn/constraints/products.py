"""Automata combined: what all accept, what one accepts, and the smallest automaton that does the same.

The product of two automata reads with both at once; a state is a pair of their states, of which only those that can be
reached are kept. Two states are equal if they are marked alike and every label leads to equal states (Moore), so after
each product as few states as possible are carried into the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch

from structlearn.constraints.automata import DFA
from structlearn.constraints.language import Ints

# Automata with more states than this are given up: a 0/1 program is then the quicker way, see docs/constraints.md.
MAX_STATES = 256


class Marked(NamedTuple):
    """An automaton without refusals: steps (Q, C) from state 0, and a mark (Q,) on what was read; 0 is refused."""

    steps: Ints
    marks: Ints


def marked(dfa: DFA, mark: int = 1) -> Marked:
    """The automaton with a state that nothing leaves in place of -1, begun at 0; ``mark`` where it accepts."""
    steps = dfa.next.numpy()
    q = len(steps)
    steps = np.concatenate([np.where(steps < 0, q, steps), np.full((1, steps.shape[1]), q)])
    marks = np.zeros(q + 1, dtype=np.int64)
    marks[list(dfa.accept)] = mark
    order = np.concatenate([[dfa.start], np.delete(np.arange(q + 1), dfa.start)])
    place = np.argsort(order)
    return minimal(_reachable(Marked(place[steps[order]], marks[order])))


def product(a: Marked, b: Marked, mark: Callable[[Ints, Ints], Ints]) -> Marked:
    """Both at once, marked by a function of their marks."""
    size = len(b.steps)
    steps = a.steps[:, None, :] * size + b.steps[None, :, :]
    marks = mark(a.marks[:, None], b.marks[None, :])
    return minimal(_reachable(Marked(steps.reshape(-1, steps.shape[2]), marks.reshape(-1))))


def combined(automata: Sequence[Marked], count: int, mark: Callable[[Ints, Ints], Ints], empty: int) -> Marked | None:
    """All at once; None beyond MAX_STATES."""
    total = Marked(np.zeros((1, count), dtype=np.int64), np.array([empty]))
    for automaton in sorted(automata, key=lambda m: len(m.steps)):
        if len(total.steps) * len(automaton.steps) > 64 * MAX_STATES:
            return None
        total = product(total, automaton, mark)
    return total if len(total.steps) <= MAX_STATES else None


def intersection(automata: Sequence[DFA] | None, count: int) -> DFA | None:
    """What all accept."""
    return None if automata is None else _dfa(combined([marked(a) for a in automata], count, np.minimum, 1))


def union(automata: Sequence[DFA] | None, count: int) -> DFA | None:
    """What at least one accepts."""
    return None if automata is None else _dfa(combined([marked(a) for a in automata], count, np.maximum, 0))


def minimal(found: Marked) -> Marked:
    """The smallest automaton with the same marks on everything that can be read."""
    steps, marks = found
    block = _numbered(marks[:, None])
    while True:
        finer = _numbered(np.concatenate([block[:, None], block[steps]], 1))
        if finer.max() == block.max():
            break
        block = finer
    first = np.unique(block, return_index=True)[1]
    return Marked(block[steps[first]], marks[first])


def refusing(found: Marked) -> tuple[Ints, Ints]:
    """Steps with -1 into the state that stays refused for ever, and the marks of the others; state 0 stays."""
    steps, marks = found
    ends = (marks == 0) & (steps == np.arange(len(steps))[:, None]).all(1)
    ends[0] = False
    kept = np.flatnonzero(~ends)
    place = np.where(ends, -1, np.cumsum(~ends) - 1)
    return place[steps[kept]], marks[kept]


def _dfa(found: Marked | None) -> DFA | None:
    if found is None:
        return None
    steps, marks = refusing(found)
    return DFA(torch.from_numpy(steps), accept=np.flatnonzero(marks).tolist())


def _reachable(found: Marked) -> Marked:
    """Only the states that something leads to from 0."""
    steps, marks = found
    seen = np.zeros(len(steps), dtype=bool)
    front = np.array([0])
    while len(front):
        seen[front] = True
        after = np.unique(steps[front])
        front = after[~seen[after]]
    place = np.cumsum(seen) - 1
    return Marked(place[steps[seen]], marks[seen])


def _numbered(rows: Ints) -> Ints:
    """Equal rows get equal numbers, in the order in which they first appear: row 0 has number 0."""
    columns = [np.unique(column, return_inverse=True)[1] for column in rows.T]
    keys = reduce(lambda key, column: np.unique(key * len(rows) + column, return_inverse=True)[1], columns)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]
