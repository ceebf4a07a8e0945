"""Explicit tree fragments: the linear alternative to the tree kernel.

    φ(x)_f = λ^(size(f) / 2) #f(x)   for fragments f of at most ``size`` productions,

so <φ(u), φ(v)> is the tree kernel of :mod:`structlearn.reranking.tree_kernel` without the larger fragments, and scoring
a candidate is a dot product. Like the other features, what all candidates of a list share is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from structlearn.errors import ArgumentError
from structlearn.reranking.features import CandidateFeatures, Table
from structlearn.reranking.forest import Forest
from structlearn.reranking.lists import NBest


class FragmentFeatures(CandidateFeatures):
    """Counts of the fragments of at most ``size`` productions, each weighted by λ^(size / 2).

    Args:
        size: most productions in a fragment.
        decay: λ in (0, 1].
        min_lists: keep a fragment that tells candidates apart in at least so many training lists.
    """

    def __init__(self, size: int = 3, *, decay: float = 1.0, min_lists: int = 2) -> None:
        super().__init__(min_lists=min_lists)
        if size < 1:
            raise ArgumentError("size", "an integer >= 1", size, "a fragment has a production")
        if not 0 < decay <= 1:
            raise ArgumentError("decay", "a number in (0, 1]", decay, "use 1 to weigh every fragment alike")
        self.size, self.decay = size, decay

    def fit_transform(self, lists: Iterable[NBest]) -> Table:
        return self._weighted(super().fit_transform(lists))

    def transform(self, lists: Iterable[NBest]) -> Table:
        return self._weighted(super().transform(lists))

    def _weighted(self, table: Table) -> Table:
        sizes = np.asarray([size for _, size in self.index], dtype=np.float64)
        return Table(table.rows.multiply(self.decay ** (sizes / 2)).tocsr(), table.offsets)

    def _reader(self, item: NBest) -> _Reader:
        return _Reader(item, self.size)


class _Reader:
    def __init__(self, item: NBest, size: int) -> None:
        self.roots, self.forest, self.size = item.roots, item.forest, size
        self.known: dict[tuple[int, int], list[tuple[str, int]]] = {}

    def places(self, root: int) -> list[tuple[int, int]]:
        """Every node with its first word."""
        forest: Forest = self.forest
        found, stack = [], [(root, 0)]
        while stack:
            number, start = stack.pop()
            found.append((number, start))
            for child in forest.children[number]:
                stack.append((child, start))
                start += forest.widths[child]
        return found

    def features(self, number: int, start: int) -> Iterable[tuple[Any, ...]]:
        return self._rooted(number, self.size)

    def _rooted(self, number: int, most: int) -> list[tuple[str, int]]:
        """The fragments whose top is this node, with their sizes, at most ``most`` productions each."""
        if most < 1:
            return []
        if (number, most) not in self.known:
            forest: Forest = self.forest
            below = forest.children[number]
            made = [("", 0)] if below else [(" " + forest.trees[number].word, 0)]
            for child in below:
                # A child is left bare or goes on as any fragment of its own.
                ways = [(forest.labels[child], 0), *self._rooted(child, most - 1)]
                made = [(f"{text} {way}", n + m) for text, n in made for way, m in ways if n + m < most]
            self.known[number, most] = [(f"({forest.labels[number]}{text})", n + 1) for text, n in made]
        return self.known[number, most]
