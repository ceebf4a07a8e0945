"""Propositions: predicates of a sentence with their labelled arguments, over its phrase-structure tree.

Files have tab-separated columns word, part of speech, parse bit, lemma, roleset, and a column of labelled brackets for
each predicate; a blank line ends a sentence, a line ``# document index`` begins it. Candidates for arguments are the
sisters of the nodes on the way from the predicate to the root, and the children of those that are prepositional phrases
(Xue and Palmer, 2004): on gold trees they hold nearly all arguments, at a few nodes a predicate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from structlearn.errors import FormatError
from structlearn.reranking.heads import head_child
from structlearn.storage.text import numbered_lines, read_text

_OPEN = re.compile(r"\(([^()*]+)")
_AGAIN = "fetch the file again"


class Node(NamedTuple):
    """A constituent: words ``first..last``, number of its parent (-1 for the root), of its children, its head word."""

    label: str
    first: int
    last: int
    parent: int
    children: tuple[int, ...]
    head: int


class Proposition(NamedTuple):
    """A predicate at a word, its lemma and roleset, and its arguments: (first, last) to label, the verb apart."""

    predicate: int
    lemma: str
    roleset: str
    arguments: dict[tuple[int, int], str]


@dataclass(frozen=True)
class AnnotatedSentence:
    """Words, parts of speech, nodes of the tree (preterminal of word t at ``leaves[t]``) and propositions."""

    words: list[str]
    pos: list[str]
    nodes: list[Node]
    leaves: list[int]
    propositions: list[Proposition]

    def candidates(self, predicate: int) -> list[int]:
        """Numbers of the nodes that may be arguments, by first word, longer ones first."""
        found = []
        node = self.leaves[predicate]
        while (parent := self.nodes[node].parent) >= 0:
            for sister in self.nodes[parent].children:
                if sister != node:
                    found.append(sister)
                    if self.nodes[sister].label == "PP":
                        found += self.nodes[sister].children
            node = parent
        # Of nodes over the same words the highest stands for all.
        spans: dict[tuple[int, int], int] = {}
        for i in found:
            label = self.nodes[i].label
            if label[0].isalpha() or label == "$":
                spans.setdefault(self.nodes[i][1:3], i)
        return sorted(spans.values(), key=lambda i: (self.nodes[i].first, -self.nodes[i].last))


def read_propbank(path: str | Path) -> list[AnnotatedSentence]:
    """The sentences of a file, gzipped or not."""
    return [_sentence(rows, f"{path}:{line}") for line, rows in _blocks(read_text(path), str(path))]


def _blocks(text: str, source: str) -> Iterator[tuple[int, list[list[str]]]]:
    """The rows of each sentence, with the number of its first line."""
    rows: list[list[str]] = []
    number = 0
    for number, line in numbered_lines(text, source):
        fields = line.split("\t")
        if len(fields) >= 5:
            if not all(fields[:5]):
                raise FormatError(f"{source}:{number}", "five columns that are not empty", repr(line[:60]), _AGAIN)
            rows.append(fields)
        elif line.strip() and not line.startswith("#"):
            expected = "five columns and more between tabs, or a blank line"
            raise FormatError(f"{source}:{number}", expected, repr(line[:60]), _AGAIN)
        elif rows:
            yield number - len(rows), rows
            rows = []
    if rows:
        yield number - len(rows) + 1, rows


def _sentence(rows: list[list[str]], place: str) -> AnnotatedSentence:
    if len({len(row) for row in rows}) != 1:
        raise FormatError(place, "equally many columns in a sentence", {len(row) for row in rows}, _AGAIN)
    words, pos, bits, lemmas, rolesets, *columns = (list(column) for column in zip(*rows, strict=True))
    nodes, leaves = _tree(words, pos, bits, place)
    predicates = [t for t, lemma in enumerate(lemmas) if lemma != "-"]
    if len(predicates) != len(columns):
        raise FormatError(place, f"{len(predicates)} columns of arguments", len(columns), "one for each predicate")
    found = [
        Proposition(t, lemmas[t], rolesets[t], _arguments(column, place))
        for t, column in zip(predicates, columns, strict=True)
    ]
    return AnnotatedSentence(words, pos, nodes, leaves, found)


def _tree(words: list[str], pos: list[str], bits: list[str], place: str) -> tuple[list[Node], list[int]]:
    """Nodes in order of their opening brackets."""
    labels: list[str] = []
    ends: list[list[int]] = []
    parents: list[int] = []
    children: list[list[int]] = []
    leaves, open_nodes = [], []  # type: tuple[list[int], list[int]]

    def begin(label: str, t: int) -> int:
        parents.append(open_nodes[-1] if open_nodes else -1)
        if open_nodes:
            children[open_nodes[-1]].append(len(labels))
        labels.append(label)
        ends.append([t, t])
        children.append([])
        return len(labels) - 1

    for t, bit in enumerate(bits):
        before, star, after = bit.partition("*")
        if not star:
            raise FormatError(place, "a parse bit with '*'", repr(bit[:60]), "the word stands at '*'")
        for label in _OPEN.findall(before):
            open_nodes.append(begin(label, t))
        leaves.append(begin(pos[t], t))
        for _ in range(after.count(")")):
            if not open_nodes:
                raise FormatError(place, "balanced brackets", f"a ')' too many at word {t}", _AGAIN)
            ends[open_nodes.pop()][1] = t
    if open_nodes:
        raise FormatError(place, "balanced brackets", f"{len(open_nodes)} left open", _AGAIN)
    heads = [0] * len(labels)
    for i in reversed(range(len(labels))):
        inside = children[i]
        heads[i] = heads[inside[head_child(labels[i], [labels[j] for j in inside])]] if inside else ends[i][0]
    nodes = [
        Node(labels[i], ends[i][0], ends[i][1], parents[i], tuple(children[i]), heads[i]) for i in range(len(labels))
    ]
    return nodes, leaves


def _arguments(column: list[str], place: str) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], str] = {}
    label, first = "", -1
    for t, cell in enumerate(column):
        if cell.startswith("("):
            label, first = cell[1:].partition("*")[0], t
        if cell.endswith(")"):
            if first < 0:
                raise FormatError(place, "an opening bracket before ')'", repr(cell[:60]), _AGAIN)
            if label not in ("V", "C-V"):
                found[first, t] = label
            first = -1
    return found
