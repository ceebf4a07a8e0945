"""N-best lists: the candidates that a parser proposes for one sentence, with what it thinks of each.

    quality(x) = F1 of the labelled brackets of x against the gold tree,   best = argmax_x quality(x).

Which words count is decided by the gold tree's parts of speech, so that a candidate that tags punctuation wrongly is
scored like the others instead of dropping out. Gold need not be in the list: the best candidate stands for it. Ties in
quality go to the higher log-probability, then to the lower index.

In a JSONL file each line is one list:

    {"name": "wsj_0001:0", "gold": "(S ...)", "candidates": [{"log_prob": -12.3, "tree": "(S ...)"}, ...]}

``name`` and ``gold`` may be absent or null; other keys are ignored.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from structlearn.brackets import COLLINS
from structlearn.data.brackets import parse_tree
from structlearn.errors import FormatError, LabelError, ShapeError
from structlearn.reranking.forest import Forest
from structlearn.reranking.matches import Matches, count_matches
from structlearn.storage.text import finite_number, json_lines, numbered_lines, read_text
from structlearn.trees import Tree

_LOG_PROB = "a finite log-probability"


@dataclass(frozen=True, eq=False)
class NBest:
    """The M >= 1 candidates of a sentence.

    Args:
        candidates: M trees over the same words, in any order.
        log_probs: M finite numbers, the parser's own scores.
        gold: the right tree; None where it is not known.
        name: which sentence, for messages.
    """

    candidates: Sequence[Tree]
    log_probs: Sequence[float]
    gold: Tree | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ShapeError("candidates", "at least one tree", f"none in {self.name!r}", "leave empty lists out")
        if len(self.log_probs) != len(self.candidates):
            expected = f"{len(self.candidates)} numbers, one a candidate"
            raise ShapeError("log_probs", expected, f"{len(self.log_probs)} in {self.name!r}", "pair them up")
        if not all(map(math.isfinite, self.log_probs)):
            raise LabelError("log_probs", "finite numbers", list(self.log_probs), "leave impossible candidates out")

    def __len__(self) -> int:
        return len(self.candidates)

    def keep(self, indices: Sequence[int]) -> NBest:
        """The list of these candidates alone."""
        trees, scores = [self.candidates[i] for i in indices], [self.log_probs[i] for i in indices]
        return NBest(trees, scores, self.gold, self.name)

    @cached_property
    def forest(self) -> Forest:
        """The candidates' nodes, equal ones shared."""
        return Forest()

    @cached_property
    def roots(self) -> list[int]:
        """The number of each candidate in :attr:`forest`."""
        return [self.forest.add(tree) for tree in self.candidates]

    @cached_property
    def counts(self) -> list[Matches]:
        """Brackets matched, predicted, gold and crossing of each candidate."""
        if self.gold is None:
            raise LabelError("gold", "a tree", f"None in {self.name!r}", "give the gold tree of lists to be scored")
        return count_matches(self.forest, self.roots, self.gold, self.name)

    @cached_property
    def quality(self) -> list[float]:
        """F1 of each candidate, 1 where neither tree has a bracket that counts."""
        return [2 * c.matched / (c.predicted + c.gold) if c.predicted + c.gold else 1.0 for c in self.counts]

    @cached_property
    def best(self) -> int:
        """Index of the candidate with the highest F1."""
        return max(range(len(self)), key=lambda i: (self.quality[i], self.log_probs[i], -i))

    @cached_property
    def first(self) -> int:
        """Index of the parser's own choice: the highest log-probability."""
        return max(range(len(self)), key=lambda i: (self.log_probs[i], -i))

    @cached_property
    def others(self) -> list[int]:
        """The candidates worse than the best one, by falling log-probability.

        A candidate as good as the best is no counterexample to it.
        """
        worse = [i for i in range(len(self)) if self.quality[i] < self.quality[self.best]]
        return sorted(worse, key=lambda i: (-self.log_probs[i], i))

    @cached_property
    def brackets(self) -> list[int]:
        """Number of phrases of each candidate that count, for the weight on brackets; gold is not looked at."""
        roots, forest = self.roots, self.forest
        sizes: list[int] = []
        for label, below in zip(forest.labels, forest.children, strict=True):
            counts = bool(below) and COLLINS.phrase(label) is not None
            sizes.append(counts + sum(sizes[child] for child in below))
        return [sizes[root] for root in roots]


def read_jsonl(path: str | Path) -> list[NBest]:
    """The lists of a JSONL file, gzipped if it is called ``.gz``; errors name file and line."""
    return list(iter_jsonl(path))


def iter_jsonl(path: str | Path) -> Iterator[NBest]:
    return parse_jsonl(read_text(path), str(path))


def parse_jsonl(text: str, source: str = "text") -> Iterator[NBest]:
    """The lists of JSON lines."""
    for place, row in json_lines(text, source, '{"candidates": [{"log_prob": -1.5, "tree": "(S ...)"}]}'):
        yield _parse(row, place)


def row_of(item: NBest) -> dict[str, Any]:
    """A list as what its line of JSON holds."""
    pairs = zip(item.candidates, item.log_probs, strict=True)
    return {
        "name": item.name,
        "gold": None if item.gold is None else item.gold.bracket(),
        "candidates": [{"log_prob": p, "tree": tree.bracket()} for tree, p in pairs],
    }


def write_jsonl(path: str | Path, lists: Iterable[NBest]) -> None:
    """Write lists so that :func:`read_jsonl` gives the same candidates, numbers and gold."""
    open_text: Any = gzip.open if str(path).endswith(".gz") else open
    with open_text(path, "wt", encoding="utf-8") as file:
        for item in lists:
            file.write(json.dumps(row_of(item), ensure_ascii=False) + "\n")


def read_blocks(path: str | Path) -> list[NBest]:
    """The lists of a tab-separated file of blocks.

    A block is a line ``#``, document, number (and more fields, ignored); a line ``G``, gold tree; a line with
    log-probability and tree for each candidate; an empty line.
    """
    lists: list[NBest] = []
    head: tuple[str, str] | None = None
    gold: Tree | None = None
    trees: list[Tree] = []
    scores: list[float] = []
    forest = Forest()
    source = str(path)
    for number, line in chain(numbered_lines(read_text(path), source), [(0, "")]):
        place = f"{source}:{number}"
        fields = line.split("\t")
        if fields == [""]:
            if head is not None:
                lists.append(_checked(trees, scores, gold, *head))
            head, gold, trees, scores, forest = None, None, [], [], Forest()
        elif fields[0] == "#" and len(fields) >= 3 and head is None:
            head = f"{fields[1]}:{fields[2]}", place
        elif head is None or len(fields) != 2:
            expected = "'#', document and number, then 'G' or a log-probability and a tree, between tabs"
            raise FormatError(place, expected, repr(line[:60]), "separate blocks by an empty line")
        elif fields[0] == "G":
            gold = parse_tree(fields[1], source=source, line=number)
        else:
            scores.append(finite_number(fields[0], place, _LOG_PROB))
            trees.append(forest.parse(fields[1], source=source, line=number))
    return lists


def _parse(row: dict[str, Any], place: str) -> NBest:
    source, _, line = place.rpartition(":")
    candidates = row.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        got = repr(candidates)[:60]
        raise FormatError(place, "'candidates', a list of at least one", got, "leave empty lists out")
    trees, scores, forest = [], [], Forest()
    for item in candidates:
        if not isinstance(item, dict) or not isinstance(item.get("tree"), str):
            raise FormatError(place, "candidates with 'tree' and 'log_prob'", repr(item)[:60], "see write_jsonl")
        trees.append(forest.parse(item["tree"], source=source, line=int(line)))
        scores.append(finite_number(item.get("log_prob"), place, _LOG_PROB))
    gold, name = row.get("gold"), row.get("name") or ""
    if gold is not None and not isinstance(gold, str):
        raise FormatError(place, "'gold' as a bracket string or null", repr(gold)[:60], "see write_jsonl")
    tree = None if gold is None else parse_tree(gold, source=source, line=int(line))
    return _checked(trees, scores, tree, str(name), place)


def _checked(trees: list[Tree], scores: list[float], gold: Tree | None, name: str, place: str) -> NBest:
    if not trees:
        raise FormatError(place, "at least one candidate", "none", "leave empty lists out")
    words = (gold or trees[0]).leaves()
    for i, tree in enumerate(trees):
        if tree.leaves() != words:
            got = f"candidate {i} over {' '.join(tree.leaves())[:60]!r}"
            raise FormatError(place, "candidates over the words of the sentence", got, "one sentence a list")
    return NBest(trees, scores, gold, name)
