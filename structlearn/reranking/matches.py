"""Labelled brackets of many candidates against one gold tree, by the rules of :mod:`structlearn.metrics.brackets`.

The parts of speech of gold say which words count. Equal to ``bracket_counts`` of a candidate that has gold's tags;
equal subtrees in equal places are read once for all candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from structlearn.brackets import COLLINS, BracketRules
from structlearn.errors import LabelError
from structlearn.metrics.brackets import BracketScores, constituents
from structlearn.reranking.forest import Forest
from structlearn.trees import Tree

_Span = tuple[int, int, str]


class Matches(NamedTuple):
    """Of one candidate: constituents matched, its own, gold's, and its own that cross one of gold's."""

    matched: int
    predicted: int
    gold: int
    crossing: int


def count_matches(
    forest: Forest, roots: Sequence[int], gold: Tree, name: str = "", rules: BracketRules = COLLINS
) -> list[Matches]:
    """The counts of each root of the forest."""
    words = gold.leaves()
    # before[t]: how many of the words 0..t-1 count.
    before = [0]
    for _, tag in gold.pos():
        before.append(before[-1] + (tag not in rules.delete))
    right = Counter[_Span]((span.start, span.end, span.label) for span in constituents(gold, rules))
    places = {(start, end) for start, end, _ in right}
    nodes = zip(forest.labels, forest.children, strict=True)
    phrases = [rules.phrase(label) if below else None for label, below in nodes]
    known: dict[tuple[int, int], list[_Span]] = {}
    crosses: dict[tuple[int, int], bool] = {}

    def spans(root: int) -> list[_Span]:
        stack = [(root, 0)]
        while stack:
            number, start = stack[-1]
            if (number, start) in known:
                stack.pop()
                continue
            found: list[_Span] = []
            at, missing = start, False
            for child in forest.children[number]:
                inside = known.get((child, at))
                if inside is None:
                    stack.append((child, at))
                    missing = True
                elif not missing:
                    found += inside
                at += forest.widths[child]
            if not missing:
                first, last = before[start], before[start + forest.widths[number]] - 1
                label = phrases[number]
                if label is not None and first <= last:
                    found.append((first, last, label))
                known[number, start] = found
        return known[root, 0]

    results: dict[int, Matches] = {}
    for i, root in enumerate(roots):
        if root in results:
            continue
        if forest.trees[root].leaves() != words:
            got = f"candidate {i} of {name!r} over {' '.join(forest.trees[root].leaves())[:60]!r}"
            raise LabelError("candidates", "trees over the words of gold", got, "one sentence a list")
        found = spans(root)
        left = right.copy()
        matched = crossing = 0
        for span in found:
            if left[span] > 0:
                left[span] -= 1
                matched += 1
            place = span[:2]
            if place not in crosses:
                s, e = place
                crosses[place] = any(a < s <= b < e or s < a <= e < b for a, b in places)
            crossing += crosses[place]
        results[root] = Matches(matched, len(found), right.total(), crossing)
    return [results[root] for root in roots]


def corpus_scores(chosen: Sequence[Matches]) -> BracketScores:
    """LR, LP, F1, CB, 0CB and 2CB of one candidate a sentence; parts of speech are not scored."""
    total = Matches(*map(sum, zip(*chosen, strict=True))) if chosen else Matches(0, 0, 0, 0)
    n = len(chosen) or 1
    return BracketScores(
        recall=total.matched / max(total.gold, 1),
        precision=total.matched / max(total.predicted, 1),
        f1=2 * total.matched / max(total.predicted + total.gold, 1),
        exact=sum(m.matched == m.predicted == m.gold for m in chosen) / n,
        crossing=total.crossing / n,
        no_crossing=sum(m.crossing == 0 for m in chosen) / n,
        two_crossing=sum(m.crossing <= 2 for m in chosen) / n,
        tag_accuracy=float("nan"),
        sentences=len(chosen),
        skipped=0,
    )
