"""Sums over the derivations of an acyclic hypergraph in long double: truth for sizes and ranges beyond enumeration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from . import Part

Number = np.longdouble
NEG_INF = Number("-inf")


class Edge(NamedTuple):
    """One way to derive a node: from its tails, at a score, using parts."""

    tails: tuple[int, ...]
    score: Number
    parts: tuple[Part, ...] = ()


@dataclass
class Solution:
    """Answers for one instance; marginals hold only parts of positive probability."""

    max: Number
    log_partition: Number
    count: int
    entropy: Number = field(default_factory=lambda: Number(0))
    marginals: dict[Part, Number] = field(default_factory=dict)


def _log_sum_exp(terms: list[Number]) -> Number:
    top = max(terms, default=NEG_INF)
    return top if top == NEG_INF else top + np.log(sum(np.exp(x - top) for x in terms))


class Hypergraph:
    """Nodes in the order in which they can be derived; every edge's tails are nodes before its own."""

    def __init__(self) -> None:
        self.edges: list[list[Edge]] = []

    def add(self, edges: list[Edge]) -> int:
        """The number of a new node."""
        self.edges.append(edges)
        return len(self.edges) - 1

    def solve(self) -> Solution:
        """Sums over the derivations of the last node; entropy by the chain rule, as terms of one sign."""
        inside: list[Number] = []
        best: list[Number] = []
        count: list[int] = []
        for edges in self.edges:
            inside.append(_log_sum_exp([self._along(e, inside) for e in edges]))
            best.append(max((self._along(e, best) for e in edges), default=NEG_INF))
            count.append(
                sum(int(np.prod([count[t] for t in e.tails], dtype=object)) for e in edges if e.score > NEG_INF)
            )
        found = Solution(best[-1], inside[-1], count[-1])
        probability = [Number(0)] * len(inside)
        probability[-1] = Number(found.log_partition > NEG_INF)
        for node in reversed(range(len(inside))):
            if probability[node] == 0:
                continue
            for edge in self.edges[node]:
                log_share = self._along(edge, inside) - inside[node]
                p = probability[node] * np.exp(log_share)
                if p == 0:
                    continue
                found.entropy -= p * log_share
                for tail in edge.tails:
                    probability[tail] += p
                for part in edge.parts:
                    found.marginals[part] = found.marginals.get(part, Number(0)) + p
        return found

    @staticmethod
    def _along(edge: Edge, values: list[Number]) -> Number:
        total = edge.score
        for tail in edge.tails:
            total = NEG_INF if NEG_INF in (total, values[tail]) else total + values[tail]
        return total
