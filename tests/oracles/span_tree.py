"""Labelled binary trees over words, written out in full."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from . import Part, Row, log_sum_exp, log_sums


class Subtree(NamedTuple):
    """Sorts by the order that ties are broken in: score, label, cut, left part, right part."""

    minus_score: float
    label: int
    cut: int
    left: Subtree | None
    right: Subtree | None
    spans: tuple[tuple[int, int, int], ...]  # (first word, last word, label)


def subtrees(spans: np.ndarray, n: int) -> list[Subtree]:
    """Every tree over the first n words of spans (N, N, L), best first."""

    @cache
    def over(i: int, j: int) -> list[Subtree]:
        found = []
        for label, score in enumerate(spans[i, j]):
            here = ((i, j, label),)
            if i == j:
                found.append(Subtree(-score, label, i, None, None, here))
                continue
            for cut in range(i, j):
                for a in over(i, cut):
                    for b in over(cut + 1, j):
                        total = -(float(score) + (-a.minus_score - b.minus_score))
                        found.append(Subtree(total, label, cut, a, b, here + a.spans + b.spans))
        return sorted(found, key=_key)

    return over(0, n - 1)


@cache
def _key(tree: Subtree) -> tuple[object, ...]:
    below = () if tree.left is None or tree.right is None else (_key(tree.left), _key(tree.right))
    return tree.minus_score, tree.label, tree.cut, *below


def rows(spans: np.ndarray, lengths: Sequence[int] | None = None) -> list[Row]:
    """One :class:`Row` for each sentence of spans (B, N, N, L); outputs are tuples of (first, last, label)."""
    found = []
    for line, n in zip(spans, lengths or [spans.shape[1]] * len(spans), strict=True):
        outputs = [tree.spans for tree in subtrees(line, n)] if n else [()]
        parts: list[list[Part]] = [[("spans", span) for span in y] for y in outputs]
        found.append(Row(outputs, parts, {"spans": line}))  # type: ignore[arg-type]
    return found


def chart(y: Sequence[tuple[int, int, int]], size: int) -> list[list[int]]:
    """The spans of a tree as an N x N table of labels, -100 where there is none."""
    table = [[-100] * size for _ in range(size)]
    for i, j, label in y:
        table[i][j] = label
    return table


def totals(spans: np.ndarray, n: int) -> tuple[float, float]:
    """log Z and the best score over the first n words of spans (N, N, L), in float64, for n too large to enumerate."""
    log, best = np.full((n, n), -np.inf), np.full((n, n), -np.inf)
    for w in range(n):
        for i in range(n - w):
            j = i + w
            x = spans[i, j]
            log[i, j], best[i, j] = log_sum_exp(x), x.max()
            if w:
                log[i, j] += log_sum_exp(log[i, i:j] + log[i + 1 : j + 1, j])
                best[i, j] += (best[i, i:j] + best[i + 1 : j + 1, j]).max()
    return (float(log[0, n - 1]), float(best[0, n - 1])) if n else (0.0, 0.0)


def best(spans: np.ndarray, n: int) -> tuple[float, dict[tuple[int, int], int]]:
    """Score and labels by span of the best tree over n words; ties go to the lowest label, then the first cut."""
    if n == 0:
        return 0.0, {}
    chart, cut = np.empty((n, n)), np.zeros((n, n), dtype=int)
    for w in range(n):
        for i in range(n - w):
            chart[i, i + w] = spans[i, i + w].max()
            if w:
                sums = chart[i, i : i + w] + chart[i + 1 : i + w + 1, i + w]
                cut[i, i + w] = i + sums.argmax()
                chart[i, i + w] += sums.max()
    labels, todo = {}, [(0, n - 1)]
    while todo:
        i, j = todo.pop()
        labels[i, j] = int(spans[i, j].argmax())
        if i < j:
            todo += [(i, cut[i, j]), (cut[i, j] + 1, j)]
    return float(chart[0, n - 1]), labels


def marginals(spans: np.ndarray, n: int) -> tuple[np.ndarray, float]:
    """Probabilities (N, N, L) of labelled spans and the entropy, inside and outside in extended precision."""
    s = spans.astype(np.longdouble)
    inside, outside = (np.full((n, n), -np.inf, np.longdouble) for _ in range(2))
    splits, found = np.zeros((n, n), np.longdouble), np.zeros(s.shape, np.longdouble)
    for w in range(n):
        for i in range(n - w):
            j = i + w
            if w:
                splits[i, j] = log_sums(inside[i, i:j] + inside[i + 1 : j + 1, j])
            inside[i, j] = log_sums(s[i, j]) + splits[i, j]
    outside[0, n - 1] = 0
    log_z, entropy = inside[0, n - 1], np.longdouble(0)
    for w in reversed(range(n)):
        for i in range(n - w):
            j = i + w
            found[i, j] = np.exp(outside[i, j] + s[i, j] + splits[i, j] - log_z)
            above, p = outside[i, j] + log_sums(s[i, j]), found[i, j]
            entropy -= (p[p > 0] * (s[i, j][p > 0] - log_sums(s[i, j]))).sum()
            for k in range(i, j):
                share = inside[i, k] + inside[k + 1, j] - splits[i, j]
                entropy -= p.sum() * np.exp(share) * share if p.sum() > 0 and share > -np.inf else 0
                outside[i, k] = np.logaddexp(outside[i, k], above + inside[k + 1, j])
                outside[k + 1, j] = np.logaddexp(outside[k + 1, j], above + inside[i, k])
    return found, float(entropy)
