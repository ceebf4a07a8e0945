"""What a constraint is: a set of label sequences, said in words and combined with & and |.

A constraint speaks of parts t = 0..N-1, each with one label y_t of C, and where it needs them of the parts' spans. Its
labels are names or numbers. A subclass answers the same question in up to three ways, of which the quickest is used:

    satisfied   is y in the set?            for many y at once; enumeration and every check rest on it
    automaton   a DFA that accepts the set  None where there is none, or none that is small
    rows        inequalities over indicators x[t, c] = [y_t = c]   the 0/1 program
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from structlearn.errors import ArgumentError, LabelError

if TYPE_CHECKING:
    from structlearn.constraints.automata import DFA
    from structlearn.constraints.program import ProgramBuilder

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Label = int | str
LabelSet = Label | Sequence[Label]
MAX_TEXT = 200  # characters of a constraint in a message


class Labels:
    """The C labels, by name or number. ``Labels(["O", "A0"])`` or ``Labels(2)``."""

    def __init__(self, names: Sequence[str] | int) -> None:
        self.names = tuple(str(i) for i in range(names)) if isinstance(names, int) else tuple(names)
        self.count = len(self.names)
        self._number = {name: i for i, name in enumerate(self.names)}
        self._tables: dict[tuple[Label, ...], Bools] = {}

    def number(self, label: Label) -> int:
        """0..C-1."""
        if isinstance(label, str) and label in self._number:
            return self._number[label]
        if isinstance(label, int) and 0 <= label < self.count:
            return label
        known = ", ".join(self.names[:12]) + (", ..." if self.count > 12 else "")
        raise LabelError("label", f"one of {known}", repr(label), "constraints and scores must share their labels")

    def table(self, labels: tuple[Label, ...]) -> Bools:
        """(C+1,): which labels are meant; the last entry, for padding, is false."""
        if labels not in self._tables:
            table = np.zeros(self.count + 1, dtype=bool)
            table[[self.number(label) for label in labels]] = True
            self._tables[labels] = table
        return self._tables[labels]

    def marks(self, y: Ints, labels: tuple[Label, ...]) -> Bools:
        """Which parts of y (R, N) have one of the labels; padding has none."""
        return self.table(labels)[y]


def label_tuple(labels: LabelSet) -> tuple[Label, ...]:
    """One label or several, as a tuple."""
    if isinstance(labels, int | str):
        return (labels,)
    if not labels:
        raise ArgumentError("label", "a label or several", "none", "name the labels that the constraint speaks of")
    return tuple(labels)


@dataclass(frozen=True)
class Spans:
    """First and last word of each part, (R, N, 2)."""

    ends: Ints

    @cached_property
    def overlap(self) -> Bools:
        """(R, N, N): which parts share a word."""
        first, last = self.ends[..., 0], self.ends[..., 1]
        meet: Bools = first[..., :, None] <= last[..., None, :]
        return meet & meet.swapaxes(-1, -2) & ~np.eye(first.shape[-1], dtype=bool)

    def row(self, index: int, parts: int) -> Spans:
        """Those of one instance with that many parts."""
        return Spans(self.ends[index : index + 1, :parts])


class Constraint(ABC):
    """A set of allowed outputs. ``a & b`` allows what both allow, ``a | b`` what one of them allows.

    ``repr`` is text that :func:`~structlearn.constraints.parse` reads back; ``str``, for messages, cuts long text.
    """

    needs_spans = False

    @abstractmethod
    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        """(R,): whether outputs y (R, N), padded with C at the end, are allowed; spans of R rows or of one."""

    @abstractmethod
    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        """Adds inequalities to a 0/1 program; they do not bind where the variable ``relaxed`` is 1."""

    def automaton(self, labels: Labels) -> DFA | None:
        """An automaton that accepts exactly the allowed outputs of every length, if there is one."""
        return None

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        """Where one output y (N,) that is not allowed breaks the constraint, in words."""
        return "the output as a whole"

    def __and__(self, other: Constraint) -> Constraint:
        parts = (*conjuncts(self), *conjuncts(other))
        return parts[0] if len(parts) == 1 else And(parts)

    def __str__(self) -> str:
        text = repr(self)
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."

    def __or__(self, other: Constraint) -> Constraint:
        left = self.parts if isinstance(self, Or) else (self,)
        right = other.parts if isinstance(other, Or) else (other,)
        return Or((*left, *right))


def exact_text(value: float) -> str:
    """The shortest text of a number that reads back as the same."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def conjuncts(constraint: Constraint) -> tuple[Constraint, ...]:
    """The parts of a conjunction, or the constraint alone."""
    return constraint.parts if isinstance(constraint, And) else (constraint,)


@dataclass(frozen=True)
class And(Constraint):
    """What every part allows; ``everything`` where there are none."""

    parts: tuple[Constraint, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs_spans", any(part.needs_spans for part in self.parts))

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        good = np.ones(len(y), dtype=bool)
        for part in self.parts:
            good &= part.satisfied(y, labels, spans)
        return good

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        for part in self.parts:
            part.rows(program, relaxed)

    def automaton(self, labels: Labels) -> DFA | None:
        from structlearn.constraints.products import intersection

        return intersection(_automata(self.parts, labels), labels.count)

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        for part in self.parts:
            if not part.satisfied(y[None], labels, spans)[0]:
                return f"{part}: {part.place(y, labels, spans)}"
        return super().place(y, labels, spans)

    def __repr__(self) -> str:
        return " & ".join(f"({p!r})" if isinstance(p, Or) else repr(p) for p in self.parts) or "everything()"


@dataclass(frozen=True)
class Or(Constraint):
    """What at least one part allows."""

    parts: tuple[Constraint, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs_spans", any(part.needs_spans for part in self.parts))

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        good = np.zeros(len(y), dtype=bool)
        for part in self.parts:
            good |= part.satisfied(y, labels, spans)
        return good

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        idle = [program.binary() for _ in self.parts]
        for part, variable in zip(self.parts, idle, strict=True):
            part.rows(program, variable)
        program.at_most(np.array(idle), np.ones(len(idle)), len(idle) - 1, relaxed, most=len(idle))

    def automaton(self, labels: Labels) -> DFA | None:
        from structlearn.constraints.products import union

        return union(_automata(self.parts, labels), labels.count)

    def place(self, y: Ints, labels: Labels, spans: Spans | None = None) -> str:
        return ", and ".join(f"{part}: {part.place(y, labels, spans)}" for part in self.parts)

    def __repr__(self) -> str:
        return " | ".join(f"({p!r})" if isinstance(p, And) else repr(p) for p in self.parts)


@dataclass(frozen=True, eq=False)
class Soft(Constraint):
    """s'(y) = s(y) - penalty [y breaks the constraint]: it may be broken at a price.

    A conjunct of the whole constraint; it cannot stand below | or inside another ``soft``. ``penalty`` >= 0 is where
    learning begins, see :class:`~structlearn.constraints.training.ConstrainedLearner`.
    """

    hard: Constraint
    penalty: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs_spans", self.hard.needs_spans)
        if not 0 <= self.penalty < float("inf"):
            raise ArgumentError(
                "penalty", "a finite number >= 0", self.penalty, "a reward is the penalty of the opposite"
            )
        if any(isinstance(part, Soft) for part in walk(self.hard)):
            raise ArgumentError("hard", "a constraint without soft parts", str(self.hard), "make it soft once")

    def satisfied(self, y: Ints, labels: Labels, spans: Spans | None = None) -> Bools:
        return np.ones(len(y), dtype=bool)

    def rows(self, program: ProgramBuilder, relaxed: int | None) -> None:
        if relaxed is not None:
            raise ArgumentError("constraint", "soft parts at the top, joined by &", str(self), "take it out of |")
        self.hard.rows(program, program.binary())

    def __repr__(self) -> str:
        return f"soft({self.hard!r}, {exact_text(self.penalty)})"


def walk(constraint: Constraint) -> Iterator[Constraint]:
    """The constraint and everything below it."""
    yield constraint
    if isinstance(constraint, And | Or):
        for part in constraint.parts:
            yield from walk(part)
    elif isinstance(constraint, Soft):
        yield from walk(constraint.hard)


def split(constraint: Constraint) -> tuple[And, tuple[Soft, ...]]:
    """The hard conjuncts together, and the soft ones."""
    parts = conjuncts(constraint)
    hard = And(tuple(part for part in parts if not isinstance(part, Soft)))
    if any(isinstance(part, Soft) for part in walk(hard)):
        raise ArgumentError("constraint", "soft parts at the top, joined by &", str(constraint), "take it out of |")
    return hard, tuple(part for part in parts if isinstance(part, Soft))


def _automata(parts: Sequence[Constraint], labels: Labels) -> list[DFA] | None:
    found = [part.automaton(labels) for part in parts]
    return None if any(dfa is None for dfa in found) else [dfa for dfa in found if dfa is not None]
