"""Sparse features of candidate trees, numbered once and counted after.

    φ(x)_f = how often the feature f occurs in the tree x,   a row of a CSR matrix (M candidates, F features).

The families, each a name that can be left out:

    rules        phrase and its children
    grandparents the same with the phrase above
    heads        phrase with its head's tag and word; head with the head of each dependent, by words and by tags
    ngrams       phrase with 2 and 3 neighbouring children, ends marked
    words        word, tag and the phrases above it
    length       phrase by length and by what follows: near the end of the sentence, before which tag
    right        nodes on the path to the last word, and nodes off it

A part of a tree that stands in the same place of every candidate of a list adds the same to all of them, cancels in
every difference, and is left out. So scores compare candidates of one list and nothing else.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from structlearn.errors import ArgumentError
from structlearn.reranking.heads import head_child
from structlearn.reranking.lists import NBest

FAMILIES = ("rules", "grandparents", "heads", "ngrams", "words", "length", "right")
_PUNCTUATION = frozenset({",", ".", ":", "``", "''", "-LRB-", "-RRB-"})


_Feature = tuple[Any, ...]
_Place = tuple[int, int, str, str, str]


class Table(NamedTuple):
    """Features of the candidates of many lists, one below the other.

    Attributes:
        rows: (M, F) CSR of float64 counts.
        offsets: (lists + 1,) where each list starts; list i has the rows offsets[i]..offsets[i+1]-1.
    """

    rows: Any
    offsets: np.ndarray[Any, Any]


class CandidateFeatures:
    """Numbers features on training lists, then turns any list into rows.

    Args:
        families: which of :data:`FAMILIES` to count.
        min_lists: keep a feature that tells candidates apart in at least so many training lists.

    Attributes:
        index: feature to its number, after :meth:`fit`.
    """

    def __init__(self, *, families: Sequence[str] = FAMILIES, min_lists: int = 2) -> None:
        unknown = sorted(set(families) - set(FAMILIES))
        if unknown or not families:
            raise ArgumentError("families", f"some of {', '.join(FAMILIES)}", unknown or "none", "see the module")
        if min_lists < 1:
            raise ArgumentError("min_lists", "an integer >= 1", min_lists, "use 1 to keep every feature")
        self.families = tuple(families)
        self.min_lists = min_lists
        self.index: dict[_Feature, int] = {}

    def fit(self, lists: Iterable[NBest]) -> CandidateFeatures:
        """Number the features of the lists, in the order in which they first occur."""
        self.fit_transform(lists)
        return self

    def fit_transform(self, lists: Iterable[NBest]) -> Table:
        """:meth:`fit`, then :meth:`transform`, reading each list once."""
        numbers: dict[_Feature, int] = {}
        found = [self._read(item, lambda f: numbers.setdefault(f, len(numbers))) for item in lists]
        seen = np.zeros(len(numbers), dtype=np.int64)
        for rows in found:
            seen[np.unique(np.concatenate(rows))] += 1
        kept = seen >= self.min_lists
        self.index = {f: i for i, f in enumerate(f for f, n in numbers.items() if kept[n])}
        renumber = np.cumsum(kept) - 1
        return table([[renumber[row[kept[row]]] for row in rows] for rows in found], len(self.index))

    def transform(self, lists: Iterable[NBest]) -> Table:
        """The numbered features of every candidate; those without a number are dropped."""
        return table([self._read(item, self.index.get) for item in lists], len(self.index))

    def hashed(self, item: NBest, size: int) -> list[np.ndarray[Any, Any]]:
        """Features of each candidate as numbers 1..size-1 made from a hash, with repetitions; needs no :meth:`fit`."""
        return self._read(item, lambda f: 1 + zlib.crc32(repr(f).encode()) % (size - 1))

    def _reader(self, item: NBest) -> Any:
        return _Reader(self.families, item)

    def _read(self, item: NBest, number: Callable[[_Feature], int | None]) -> list[np.ndarray[Any, Any]]:
        """The numbers of the features of each candidate, with repetitions, without the nodes that all share."""
        reader = self._reader(item)
        places = [reader.places(root) for root in item.roots]
        if len(places) > 1:
            counts = Counter(place for found in places for place in set(found))
            shared = {place for place, count in counts.items() if count == len(places)}
            places = [[place for place in found if place not in shared] for found in places]
        known: dict[Any, list[int]] = {}
        rows = []
        for found in places:
            row: list[int] = []
            for place in found:
                if place not in known:
                    numbers = (number(feature) for feature in reader.features(*place))
                    known[place] = [n for n in numbers if n is not None]
                row += known[place]
            rows.append(np.asarray(row, dtype=np.int64))
        return rows


class HashedFeatures(CandidateFeatures):
    """Features numbered by a hash, as :class:`structlearn.data.codecs.RerankingCodec` does: no table to keep.

    Args:
        size: how many numbers there are; 0 is not used.
        families: see :class:`CandidateFeatures`.
    """

    def __init__(self, size: int, families: Sequence[str] = FAMILIES) -> None:
        super().__init__(families=families)
        self.size = size

    def fit_transform(self, lists: Iterable[NBest]) -> Table:
        return self.transform(lists)

    def transform(self, lists: Iterable[NBest]) -> Table:
        return table([self.hashed(item, self.size) for item in lists], self.size)


def table(lists: Sequence[Sequence[np.ndarray[Any, Any]]], columns: int) -> Table:
    """Numbers of features of every candidate of every list, with repetitions, as counts."""
    rows = [row for item in lists for row in item]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    indices = np.concatenate([*rows, np.zeros(0, dtype=np.int64)]).astype(np.int64)
    data = np.ones(len(indices), dtype=np.float64)
    matrix = scipy.sparse.csr_matrix((data, indices, indptr), shape=(len(rows), columns))
    matrix.sum_duplicates()
    return Table(matrix, np.concatenate([[0], np.cumsum([len(item) for item in lists])]).astype(np.int64))


class _Reader:
    """Features of nodes in their places, each computed once for all candidates of a sentence."""

    def __init__(self, families: Sequence[str], item: NBest) -> None:
        self.families = frozenset(families)
        roots, forest = item.roots, item.forest
        self.size = forest.widths[roots[0]]
        self.trees, self.labels = forest.trees, forest.labels
        self.children, self.widths = forest.children, forest.widths
        self.heads: list[tuple[str, str]] = []
        for tree, below in zip(forest.trees, forest.children, strict=True):
            if below:
                self.heads.append(self.heads[below[head_child(tree.label, [self.labels[c] for c in below])]])
            else:
                self.heads.append((tree.word.lower(), tree.label))

    def places(self, root: int) -> list[_Place]:
        """Every node with its first word, the two labels above it and the tag that follows it."""
        labels, children, widths = self.labels, self.children, self.widths
        found: list[_Place] = []
        after = ""
        stack = [(root, self.size, "", "")]
        while stack:
            # From the right, so that the tag that follows is known.
            number, end, parent, above = stack.pop()
            start = end - widths[number]
            found.append((number, start, parent, above, after))
            below = children[number]
            if below:
                label = labels[number]
                for child in below:
                    start += widths[child]
                    stack.append((child, start, label, parent))
            else:
                after = labels[number]
        return found

    def features(self, number: int, start: int, parent: str, above: str, after: str) -> Iterable[_Feature]:
        node, families = self.trees[number], self.families
        if node.is_preterminal:
            if "words" in families:
                word = node.word.lower()
                yield "word", node.label, word
                yield "word", node.label, word, parent
                yield "tag", node.label, parent, above
            return
        label, width = node.label, self.widths[number]
        labels = tuple(child.label for child in node.subtrees)
        end = start + width
        if "rules" in families:
            yield "rule", label, labels
        if "grandparents" in families:
            yield "grandparent", parent, label, labels
            yield "above", above, parent, label
        if "ngrams" in families:
            marked = ("<", *labels, ">")
            for n in (2, 3):
                for i in range(len(marked) - n + 1):
                    yield "ngram", label, marked[i : i + n]
        if "heads" in families:
            yield from self._lexical(number, label, labels, parent)
        if "length" in families:
            size = _bin(width)
            yield "length", label, size
            yield "length", label, size, min(self.size - end, 2), after if after in _PUNCTUATION else ""
            yield "after", label, parent, after
        if "right" in families:
            # The last word is often a full stop; the path leads to what stands before it.
            on_path = end >= self.size - 1
            yield ("right" if on_path else "off",)
            yield "right" if on_path else "off", label

    def _lexical(self, number: int, label: str, labels: tuple[str, ...], parent: str) -> Iterable[_Feature]:
        word, tag = self.heads[number]
        yield "head", label, tag
        yield "head", label, parent, tag
        yield "headword", label, word
        yield "headrule", labels, label, tag
        head = head_child(label, labels)
        for i, child in enumerate(self.children[number]):
            if i != head and labels[i] not in _PUNCTUATION:
                other, its_tag = self.heads[child]
                side = "L" if i < head else "R"
                yield "tags", side, label, labels[i], tag, its_tag
                yield "wordtag", side, labels[i], word, its_tag
                yield "tagword", side, labels[i], tag, other
                yield "words", side, labels[i], word, other


def _bin(width: int) -> int:
    return width if width <= 5 else 6 if width <= 8 else 7 if width <= 12 else 8 if width <= 20 else 9
