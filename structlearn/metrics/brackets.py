"""Labelled bracket scores of parse trees by the rules of the evalb program.

With g, p and m the numbers of gold, predicted and matched constituents over all sentences,

    LR = m / g,   LP = m / p,   F1 = 2 LR LP / (LR + LP),

a constituent being its words and its label. A predicted constituent *crosses* if it overlaps a gold one and neither
holds the other: CB is the mean number of those a sentence, 0CB and 2CB the shares of sentences with none and with at
most two. Exact match is the share of sentences whose constituents are all right.

Before counting, words of deleted parts of speech (punctuation, traces) vanish, then nodes without words and deleted
labels (the top node); function tags are cut off; ADVP and PRT are one label. Repeated constituents count as often as
they occur, each matched at most once. A sentence whose two trees disagree after the deletion, because a tag of
punctuation is wrong in one of them, or in which no word is left, is left out of every score but ``skipped``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from structlearn.brackets import COLLINS as COLLINS
from structlearn.brackets import BracketRules as BracketRules
from structlearn.errors import LabelError, ShapeError
from structlearn.trees import Span, Tree


class BracketCounts(NamedTuple):
    """Of one sentence, or summed over several: constituents matched, predicted and gold; crossing ones; words; tags."""

    matched: int
    predicted: int
    gold: int
    crossing: int
    words: int
    tags: int


class BracketScores(NamedTuple):
    """Shares in 0..1, except ``crossing`` (CB, a mean) and the two numbers of sentences."""

    recall: float
    precision: float
    f1: float
    exact: float
    crossing: float
    no_crossing: float
    two_crossing: float
    tag_accuracy: float
    sentences: int
    skipped: int


class _Kept(NamedTuple):
    spans: list[Span]
    words: list[str]
    tags: list[str]


def constituents(tree: Tree, rules: BracketRules = COLLINS) -> list[Span]:
    """The constituents that count, over the words that count, in preorder."""
    return _kept(tree, rules).spans


def bracket_counts(predicted: Tree, gold: Tree, rules: BracketRules = COLLINS) -> BracketCounts | None:
    """The counts of one sentence; None if it does not count, because no word is left or punctuation tags disagree."""
    p, g = _kept(predicted, rules), _kept(gold, rules)
    if p.words != g.words:
        if _words(predicted) != _words(gold):
            got = f"{' '.join(_words(predicted))!r}, gold {' '.join(_words(gold))!r}"
            raise LabelError(
                "predicted", "a tree over the words of the gold tree", got, "compare trees of one sentence"
            )
        return None
    if not p.words:
        return None
    matched = sum((Counter(p.spans) & Counter(g.spans)).values())
    places = {(span.start, span.end) for span in g.spans}
    crossing = sum(
        any(s < span.start <= e < span.end or span.start < s <= span.end < e for s, e in places) for span in p.spans
    )
    tags = sum(a == b for a, b in zip(p.tags, g.tags, strict=True))
    return BracketCounts(matched, len(p.spans), len(g.spans), crossing, len(p.words), tags)


def bracket_scores(predicted: Iterable[Tree], gold: Iterable[Tree], rules: BracketRules = COLLINS) -> BracketScores:
    """The scores of a corpus.

    >>> from structlearn.data.treebank import parse_tree
    >>> gold = parse_tree("(S (NP (DT the) (NN dog)) (VP (VBZ runs)) (. .))")
    >>> flat = parse_tree("(S (DT the) (NN dog) (VP (VBZ runs)) (. .))")
    >>> scores = bracket_scores([flat], [gold])
    >>> scores.recall, scores.precision, scores.f1
    (0.6666666666666666, 1.0, 0.8)
    """
    return _scores(_totals(predicted, gold, rules))


class BracketScore(Metric):
    """:func:`bracket_scores` over batches and processes.

    ``update(predicted, gold)`` takes trees, one of each for every sentence; ``compute`` gives a dict of scalars by the
    names of :class:`BracketScores`.
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False
    totals: Tensor

    def __init__(self, rules: BracketRules = COLLINS) -> None:
        super().__init__()
        self.rules = rules
        self.add_state("totals", torch.zeros(len(_TOTALS), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Sequence[Tree], gold: Sequence[Tree]) -> None:
        totals = _totals(predicted, gold, self.rules)
        self.totals = self.totals + torch.tensor(totals, device=self.totals.device)

    def compute(self) -> dict[str, Tensor]:
        scores = _scores(self.totals.tolist())
        return {name: torch.tensor(float(value), device=self.totals.device) for name, value in scores._asdict().items()}


_TOTALS = (*BracketCounts._fields, "sentences", "exact", "no_crossing", "two_crossing", "skipped")


def _totals(predicted: Iterable[Tree], gold: Iterable[Tree], rules: BracketRules) -> list[int]:
    predicted, gold = list(predicted), list(gold)
    if len(predicted) != len(gold):
        raise ShapeError("predicted", f"{len(gold)} trees, as gold", len(predicted), "give one tree for every sentence")
    totals = [0] * len(_TOTALS)
    for p, g in zip(predicted, gold, strict=True):
        counts = bracket_counts(p, g, rules)
        if counts is None:
            row = (*[0] * (len(_TOTALS) - 1), 1)
        else:
            exact = counts.matched == counts.predicted == counts.gold
            row = (*counts, 1, exact, counts.crossing == 0, counts.crossing <= 2, 0)
        totals = [total + value for total, value in zip(totals, row, strict=True)]
    return totals


def _scores(totals: Sequence[int]) -> BracketScores:
    matched, predicted, gold, crossing, words, tags, sentences, exact, none, two, skipped = totals
    return BracketScores(
        recall=_share(matched, gold),
        precision=_share(matched, predicted),
        f1=_share(2 * matched, predicted + gold),
        exact=_share(exact, sentences),
        crossing=_share(crossing, sentences),
        no_crossing=_share(none, sentences),
        two_crossing=_share(two, sentences),
        tag_accuracy=_share(tags, words),
        sentences=sentences,
        skipped=skipped,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _kept(tree: Tree, rules: BracketRules) -> _Kept:
    spans: list[Span] = []
    counts: list[bool] = []
    words: list[str] = []
    tags: list[str] = []
    stack: list[Tree | int] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, int):
            # The slot was taken on the way down; a node that is left without words keeps its impossible end.
            spans[node] = spans[node]._replace(end=len(words) - 1)
        elif not node.is_preterminal:
            stack.append(len(spans))
            label = rules.phrase(node.label)
            counts.append(label is not None)
            spans.append(Span(len(words), -1, label or ""))
            stack.extend(reversed(node.subtrees))
        elif node.label not in rules.delete:
            words.append(node.word)
            tags.append(rules.equal.get(node.label, node.label))
    return _Kept([s for s, kept in zip(spans, counts, strict=True) if kept and s.start <= s.end], words, tags)


def _words(tree: Tree) -> list[str]:
    return [word for word, tag in tree.pos() if tag != "-NONE-"]
