"""Costs by their definitions, on tuples of labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Output = tuple[int, ...]
Delta = Callable[[Output, Output], float]


def zero_one(gold: Output, y: Output) -> float:
    return float(gold != y)


def hamming(weights: Sequence[float] | None = None, confusion: Sequence[Sequence[float]] | None = None) -> Delta:
    """sum_t weights[t] * confusion[gold_t][y_t], each 1 for a mistake if not given."""

    def cost(gold: Output, y: Output) -> float:
        return sum(
            (1.0 if weights is None else weights[t]) * (float(a != b) if confusion is None else confusion[a][b])
            for t, (a, b) in enumerate(zip(gold, y, strict=True))
        )

    return cost


def _one_minus_f1(right: int, predicted: int, gold: int) -> float:
    return 1.0 - 2.0 * right / (predicted + gold) if predicted + gold else 0.0


def f1(outside: int) -> Delta:
    def cost(gold: Output, y: Output) -> float:
        right = sum(a == b != outside for a, b in zip(gold, y, strict=True))
        return _one_minus_f1(right, sum(b != outside for b in y), sum(a != outside for a in gold))

    return cost


def segments(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """(first, last, type), read as conlleval does: one pass with an open segment."""
    found, begin, kind = set(), -1, ""
    for t, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        goes_on = begin >= 0 and prefix in ("I", "E") and name == kind
        if begin >= 0 and not goes_on:
            found.add((begin, t - 1, kind))
            begin = -1
        if prefix != "O" and not goes_on:
            begin, kind = t, name
        if prefix in ("E", "S"):
            found.add((begin, t, kind))
            begin = -1
    return found


def segment_f1(names: Sequence[str]) -> Delta:
    def cost(gold: Output, y: Output) -> float:
        a, b = segments([names[c] for c in gold]), segments([names[c] for c in y])
        return _one_minus_f1(len(a & b), len(b), len(a))

    return cost


def violation(delta: float, difference: float, rescaling: str, squared: bool) -> float:
    """H(y) from Delta and s(y) - s(gold)."""
    size = math.sqrt(delta) if squared else delta
    return size + difference if rescaling == "margin" else size * (1.0 + difference)
