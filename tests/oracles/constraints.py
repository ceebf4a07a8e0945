"""Constrained outputs by enumeration: every labelling is tested in plain Python and scored term by term."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

Output = tuple[str, ...]
Spans = Sequence[tuple[int, int]]
Test = Callable[[Output, Spans], bool]


def count(labels: str, low: int, high: int) -> Test:
    """Between low and high parts have one of the labels, which are single letters."""
    return lambda y, _: low <= sum(label in labels for label in y) <= high


def implies(first: str, then: str, *, before: bool = False) -> Test:
    def test(y: Output, _: Spans) -> bool:
        for t, label in enumerate(y):
            if label in first:
                others = y[:t] if before else y
                if not any(other in then for other in others):
                    return False
        return True

    return test


def forbid(first: str, then: str) -> Test:
    return lambda y, _: not any(a in first and b in then for a, b in itertools.pairwise(y))


def require(first: str, then: str) -> Test:
    def test(y: Output, _: Spans) -> bool:
        return all(t + 1 < len(y) and y[t + 1] in then for t, label in enumerate(y) if label in first)

    return test


def regular(pattern: str) -> Test:
    return lambda y, _: re.fullmatch(pattern, "".join(y)) is not None


def linear(weight: Callable[[int, str], float], holds: Callable[[float], bool]) -> Test:
    return lambda y, _: holds(sum(weight(t, label) for t, label in enumerate(y)))


def listed(outputs: Sequence[str]) -> Test:
    return lambda y, _: "".join(y) in outputs


def apart(none: str) -> Test:
    def test(y: Output, spans: Spans) -> bool:
        words: list[int] = []
        for label, (first, last) in zip(y, spans, strict=False):
            if label not in none:
                words += range(first, last + 1)
        return len(words) == len(set(words))

    return test


def outputs(names: str, n: int) -> Iterator[Output]:
    return itertools.product(names, repeat=n)


def score(
    y: Output,
    names: str,
    unary: np.ndarray,
    transition: np.ndarray,
    start: np.ndarray | None = None,
    end: np.ndarray | None = None,
) -> float:
    """s(y) of a chain, (N, C) and (C, C) or (N-1, C, C); 0 of the empty output."""
    codes = [names.index(label) for label in y]
    total = sum(float(unary[t, c]) for t, c in enumerate(codes))
    for t, (a, b) in enumerate(itertools.pairwise(codes)):
        total += float(transition[a, b] if transition.ndim == 2 else transition[t, a, b])
    if codes and start is not None:
        total += float(start[codes[0]])
    if codes and end is not None:
        total += float(end[codes[-1]])
    return total


def scored(
    names: str,
    unary: np.ndarray,
    transition: np.ndarray,
    spans: Spans,
    hard: Sequence[Test],
    soft: Sequence[tuple[Test, float]] = (),
    start: np.ndarray | None = None,
    end: np.ndarray | None = None,
) -> dict[Output, float]:
    """s'(y) of every allowed output of the length of ``unary``."""
    return {
        y: score(y, names, unary, transition, start, end) - sum(penalty for test, penalty in soft if not test(y, spans))
        for y in outputs(names, len(unary))
        if all(test(y, spans) for test in hard)
    }


def best(
    names: str,
    unary: np.ndarray,
    transition: np.ndarray,
    spans: Spans,
    hard: Sequence[Test],
    soft: Sequence[tuple[Test, float]] = (),
) -> tuple[Output | None, float, float]:
    """The best output (N,), its score, and the log-partition; None and -inf where nothing is allowed."""
    scores = scored(names, unary, transition, spans, hard, soft)
    if not scores:
        return None, -np.inf, -np.inf
    top = max(scores, key=lambda y: scores[y])
    return top, scores[top], float(np.logaddexp.reduce(list(scores.values())))
