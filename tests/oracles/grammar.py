"""Derivations of a binary grammar, written out in full.

Symbols 0..NT-1 are nonterminals, NT.. preterminals; rules are triples (parent, left, right).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from . import Part, Row
from .hypergraph import Edge, Hypergraph, Number

Entry = tuple[int, int, int]  # (first word, last word, rule, or preterminal over a single word)


class Derivation(NamedTuple):
    """``key`` sorts by the order that ties are broken in: score, rule, cut, left part, right part."""

    key: tuple[object, ...]
    score: float
    entries: tuple[Entry, ...]


def derivations(
    rules: Sequence[Sequence[int]],
    nonterminals: int,
    terms: np.ndarray,
    scores: np.ndarray,
    spans: np.ndarray | None,
    n: int,
) -> dict[int, list[Derivation]]:
    """Every derivation of the first n words by its symbol, best first."""

    @cache
    def over(i: int, j: int) -> dict[int, list[Derivation]]:
        found: dict[int, list[Derivation]] = {}
        if i == j:
            return {nonterminals + p: [Derivation((-x, p), float(x), ((i, i, p),))] for p, x in enumerate(terms[i])}
        for r, (parent, left, right) in enumerate(rules):
            extra = 0.0 if spans is None else float(spans[i, j, parent])
            for cut in range(i, j):
                for a in over(i, cut).get(left, ()):
                    for b in over(cut + 1, j).get(right, ()):
                        score = a.score + b.score + float(scores[r]) + extra
                        key = (-score, r, cut, a.key, b.key)
                        found.setdefault(parent, []).append(Derivation(key, score, ((i, j, r), *a.entries, *b.entries)))
        return {symbol: sorted(ways, key=lambda way: way.key) for symbol, ways in found.items()}

    return over(0, n - 1)


def rows(
    rules: Sequence[Sequence[int]],
    nonterminals: int,
    terms: np.ndarray,
    rule_scores: np.ndarray,
    root_scores: np.ndarray,
    spans: np.ndarray | None = None,
    lengths: Sequence[int] | None = None,
) -> list[Row]:
    """One :class:`Row` for each sentence; outputs are tuples of entries."""
    found = []
    for b, (line, n) in enumerate(zip(terms, lengths or [terms.shape[1]] * len(terms), strict=True)):
        scores = rule_scores if rule_scores.ndim == 1 else rule_scores[b]
        roots = root_scores if root_scores.ndim == 1 else root_scores[b]
        own = None if spans is None else spans[b]
        ways: list[tuple[tuple[object, ...], int, Derivation]] = []
        if n:
            for symbol, whole in derivations(rules, nonterminals, line, scores, own, n).items():
                if symbol < len(roots):
                    ways += [((-(w.score + float(roots[symbol])), symbol, w.key), symbol, w) for w in whole]
        ways.sort(key=lambda way: way[0])
        outputs = [way.entries for _, _, way in ways] if n else [()]
        parts = [_parts(rules, symbol, way.entries, spans is not None) for _, symbol, way in ways] if n else [[]]
        fields = {"terms": line, "rule_scores": scores, "root_scores": roots}
        found.append(Row(outputs, parts, fields if own is None else fields | {"spans": own}))  # type: ignore[arg-type]
    return found


def _parts(rules: Sequence[Sequence[int]], root: int, entries: Sequence[Entry], spans: bool) -> list[Part]:
    parts: list[Part] = [("root_scores", (root,))]
    for i, j, entry in entries:
        if i == j:
            parts.append(("terms", (i, entry)))
        else:
            parts.append(("rule_scores", (entry,)))
            if spans:
                parts.append(("spans", (i, j, rules[entry][0])))
    return parts


def graph(rules: Sequence[Sequence[int]], nonterminals: int, fields: dict[str, np.ndarray], n: int) -> Hypergraph:
    """The derivations of the first n words of one sentence; nodes are symbols over spans."""
    found = Hypergraph()
    at: dict[tuple[int, int, int], int] = {}

    def score(*parts: Part) -> Number:
        return sum((Number(fields[name][index]) for name, index in parts), Number(0))

    for width in range(1, n + 1):
        for i in range(n - width + 1):
            j, edges = i + width - 1, dict[int, list[Edge]]()
            for p in range(fields["terms"].shape[1] if width == 1 else 0):
                part = ("terms", (i, p))
                edges[nonterminals + p] = [Edge((), score(part), (part,))]
            for r, (parent, left, right) in enumerate(rules if width > 1 else ()):
                parts: tuple[Part, ...] = (("rule_scores", (r,)),)
                parts += (("spans", (i, j, parent)),) if "spans" in fields else ()
                for k in range(i, j):
                    if (i, k, left) in at and (k + 1, j, right) in at:
                        edge = Edge((at[i, k, left], at[k + 1, j, right]), score(*parts), parts)
                        edges.setdefault(parent, []).append(edge)
            for symbol, ways in edges.items():
                at[i, j, symbol] = found.add(ways)
    roots = [Edge((), Number(0))] if n == 0 else []
    for symbol, value in enumerate(fields["root_scores"]):
        if (0, n - 1, symbol) in at:
            roots.append(Edge((at[0, n - 1, symbol],), Number(value), (("root_scores", (symbol,)),)))
    found.add(roots)
    return found
