"""Regular expressions over labels, read into an automaton.

    B I* | O          labels are names between blanks; | or, * + ? repeat, ( ) group, . any label, {m} {m,n} count

The expression becomes an automaton with choices (Thompson), whose sets of states are the states of the DFA.
"""

from __future__ import annotations

import re

import torch

from structlearn.constraints.automata import DFA
from structlearn.constraints.language import Labels
from structlearn.constraints.products import MAX_STATES, intersection
from structlearn.errors import ArgumentError

_TOKEN = re.compile(r"\s*(?:(\{\d+(?:,\d*)?\})|([()|*+?.])|([^\s()|*+?.{}]+))")


class _Choices:
    """States with labelled steps and free steps; a fragment is its (entry, exit)."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, int]]] = []
        self.free: list[list[int]] = []

    def state(self) -> int:
        self.steps.append([])
        self.free.append([])
        return len(self.steps) - 1

    def closure(self, states: frozenset[int]) -> frozenset[int]:
        found, todo = set(states), list(states)
        while todo:
            for after in self.free[todo.pop()]:
                if after not in found:
                    found.add(after)
                    todo.append(after)
        return frozenset(found)


class _Reader:
    def __init__(self, text: str, labels: Labels) -> None:
        self.text, self.labels, self.choices = text, labels, _Choices()
        self.tokens: list[str] = []
        end = 0
        while text[end:].strip():
            match = _TOKEN.match(text, end)
            if match is None:
                raise self._error(f"{text[end:].strip()[0]!r} at {end}")
            self.tokens.append(match[0].strip())
            end = match.end()
        self.at = 0

    def _error(self, got: str) -> ArgumentError:
        return ArgumentError(
            "regular", "labels, ( ) | * + ? . {m,n}", f"{got} in {self.text!r}", "see constraints.regex"
        )

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def whole(self) -> tuple[int, int]:
        found = self.either()
        if self._peek():
            raise self._error(f"{self._peek()!r}")
        return found

    def either(self) -> tuple[int, int]:
        c, entry, leave = self.choices, self.choices.state(), self.choices.state()
        while True:
            first, last = self.sequence()
            c.free[entry].append(first)
            c.free[last].append(leave)
            if self._peek() != "|":
                return entry, leave
            self.at += 1

    def sequence(self) -> tuple[int, int]:
        entry = leave = self.choices.state()
        while self._peek() not in ("", ")", "|"):
            first, last = self.repeated()
            self.choices.free[leave].append(first)
            leave = last
        return entry, leave

    def repeated(self) -> tuple[int, int]:
        begin = self.at
        found = self.one()
        while (sign := self._peek()) and (sign in "*+?" or sign[0] == "{"):
            end = self.at
            low, high = _bounds(sign)
            if high is not None and high < low:
                raise self._error(sign)
            found = self._copies(begin, end, found, low, high)
            self.at = end + 1
        return found

    def _copies(self, begin: int, end: int, one: tuple[int, int], low: int, high: int | None) -> tuple[int, int]:
        """``low`` copies in a row, then up to ``high`` that may be left out, or any number of them."""
        c, ready = self.choices, [one]

        def again() -> tuple[int, int]:
            return ready.pop() if ready else self._reread(begin, end)

        entry = leave = c.state()
        for _ in range(low):
            first, last = again()
            c.free[leave].append(first)
            leave = last
        final = c.state()
        if high is None:
            first, last = again()
            c.free[leave] += [first, final]
            c.free[last] += [first, final]
            return entry, final
        for _ in range(high - low):
            first, last = again()
            c.free[leave] += [first, final]
            leave = last
        c.free[leave].append(final)
        return entry, final

    def _reread(self, begin: int, end: int) -> tuple[int, int]:
        """A fresh copy of what the tokens begin..end-1 say."""
        kept, self.at, tokens = self.at, begin, self.tokens
        self.tokens = tokens[:end]
        found = self.repeated()
        self.at, self.tokens = kept, tokens
        return found

    def one(self) -> tuple[int, int]:
        token = self._peek()
        self.at += 1
        if token == "(":
            found = self.either()
            if self._peek() != ")":
                raise self._error("a missing ')'")
            self.at += 1
            return found
        if not token or token in "*+?|)" or token[0] == "{":
            raise self._error(f"{token!r} without a label before it" if token else "its end")
        entry, leave = self.choices.state(), self.choices.state()
        chosen = range(self.labels.count) if token == "." else [self.labels.number(_name(token, self.labels))]
        self.choices.steps[entry] += [(c, leave) for c in chosen]
        return entry, leave


def _name(token: str, labels: Labels) -> int | str:
    return int(token) if token.isdigit() and token not in labels.names else token


def _bounds(sign: str) -> tuple[int, int | None]:
    if sign in "*+?":
        return (1, None) if sign == "+" else (0, None if sign == "*" else 1)
    low, comma, high = sign[1:-1].partition(",")
    return int(low), (int(high) if high else None) if comma else int(low)


def compile_regex(text: str, labels: Labels) -> DFA:
    """The automaton that accepts what the expression describes."""
    reader = _Reader(text, labels)
    entry, leave = reader.whole()
    start = reader.choices.closure(frozenset([entry]))
    number, order, rows = {start: 0}, [start], []
    for states in order:
        row = []
        for c in range(labels.count):
            after = reader.choices.closure(
                frozenset(to for q in states for label, to in reader.choices.steps[q] if label == c)
            )
            if after and after not in number:
                number[after] = len(order)
                order.append(after)
            row.append(number[after] if after else -1)
        rows.append(row)
    accept = [i for i, states in enumerate(order) if leave in states]
    found = intersection([DFA(torch.tensor(rows).view(len(order), labels.count), accept=accept)], labels.count)
    if found is None:
        raise ArgumentError("regular", f"at most {MAX_STATES} states", text, "split it, or use linear inequalities")
    return found
