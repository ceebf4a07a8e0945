"""Rerankers with everything chosen on training lists: out-of-fold votes decide on slices, C, β and γ.

The training lists are cut into folds by document. A model of the other folds votes on each; with the votes on all of
them, β and γ maximise F1, and so are slices and C chosen. Then one model is trained on all training lists.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse

from structlearn.experiments.base import progress
from structlearn.reranking import CandidateFeatures, NBest, SingleCandidateSVM, VotedPerceptron, VotingReranker
from structlearn.reranking.combine import Weights, choose, tune
from structlearn.reranking.features import Table
from structlearn.reranking.matches import Matches, corpus_scores
from structlearn.reranking.tree_kernel import TreeKernel

T = TypeVar("T")
Votes = list[Any]
EPOCHS = (2, 5, 10)
# Out-of-fold F1 of pairs, and of single parses at C = 0.005, is the same with a tenth of this tolerance.
TOLERANCE = 0.1
# Single parses converge slowly.
PASSES = 300


class Shape(NamedTuple):
    """Slices of linear voting, other candidates of a list in each, and C."""

    slices: int
    width: int
    C: float


# Narrow slices as in the paper, wide ones, and all candidates in one.
SHAPES = (*(Shape(20, 1, C) for C in (0.05, 0.5)), *(Shape(9, 5, C) for C in (0.005, 0.02)), Shape(1, 45, 0.005))
# Others of a list that single candidates are told from, in one class.
SINGLES = tuple(Shape(20, 1, C) for C in (0.05, 0.5, 2.0))
DECAYS = (0.2, 0.5)


class Prepared(CandidateFeatures):
    """Features of lists that many models read: counted once, looked up by the candidates themselves.

    Args:
        lists: all lists that are to be trained on or scored.
    """

    def __init__(self, lists: Sequence[NBest]) -> None:
        super().__init__(min_lists=1)
        self._rows = super().fit_transform(lists).rows
        # The trees are kept, so that their identities stay theirs.
        self._trees = [tree for item in lists for tree in item.candidates]
        self._number = {id(tree): i for i, tree in enumerate(self._trees)}

    def among(self, train: Sequence[NBest], min_lists: int = 2) -> Prepared:
        """The features that occur in at least so many of the training lists; those of other lists have no say."""
        rows, offsets = self.transform(train)
        member = scipy.sparse.csr_matrix(
            (np.ones(rows.shape[0]), np.arange(rows.shape[0]), offsets), shape=(len(train), rows.shape[0])
        )
        seen = (member @ rows).getnnz(axis=0)
        kept = np.flatnonzero(seen >= min_lists)
        some = copy.copy(self)
        some._rows, some.min_lists = self._rows[:, kept], min_lists
        names = list(self.index)
        some.index = {names[k]: i for i, k in enumerate(kept)}
        return some

    def fit_transform(self, lists: Iterable[NBest]) -> Table:
        return self.transform(lists)

    def transform(self, lists: Iterable[NBest]) -> Table:
        found = list(lists)
        numbers = [self._number[id(tree)] for item in found for tree in item.candidates]
        return Table(self._rows[numbers], np.cumsum([0, *map(len, found)]).astype(np.int64))


class Tuned(NamedTuple):
    """A model of all training lists, its β and γ, and F1 of its out-of-fold votes."""

    model: VotingReranker
    weights: Weights
    f1: float

    def predict(self, lists: Sequence[NBest]) -> list[Matches]:
        """The brackets of the winners."""
        return picked(lists, choose(lists, self.weights.combine(lists, self.model.votes(lists))))


def picked(lists: Sequence[NBest], indices: Sequence[int]) -> list[Matches]:
    """The brackets of one candidate of each list."""
    return [item.counts[i] for item, i in zip(lists, indices, strict=True)]


def folds(lists: Sequence[NBest], count: int) -> list[list[int]]:
    """Numbers of lists, whole documents together, about equally many in each of ``count`` folds."""
    documents = [item.name.partition(":")[0] for item in lists]
    fold, start = {}, 0
    for document in dict.fromkeys(documents):
        fold[document] = min(start * count // len(lists), count - 1)
        start += documents.count(document)
    return [[i for i, document in enumerate(documents) if fold[document] == k] for k in range(count)]


def out_of_fold(
    make: Callable[[], VotingReranker], lists: Sequence[NBest], count: int, slices: Sequence[int | None] = (None,)
) -> list[Votes]:
    """Votes on every list by a model that has not seen its document, for each number of ``slices``."""
    votes: list[Votes] = [[None] * len(lists) for _ in slices]
    for held in folds(lists, count):
        out = set(held)
        model = make().fit([item for i, item in enumerate(lists) if i not in out])
        for all_votes, first in zip(votes, slices, strict=True):
            for i, v in zip(held, model.votes([lists[i] for i in held], slices=first), strict=True):
                all_votes[i] = v
    return votes


def tuned(make: Callable[[T], VotingReranker], options: Sequence[T], lists: Sequence[NBest], count: int) -> Tuned:
    """The best option by out-of-fold F1, then trained on all lists."""
    best: tuple[T, Weights, float] | None = None
    for option in options:
        [votes] = out_of_fold(partial(make, option), lists, count)
        weights = tune(lists, votes)
        f1 = corpus_scores(picked(lists, choose(lists, weights.combine(lists, votes)))).f1
        if best is None or f1 > best[2]:
            best = option, weights, f1
    assert best is not None
    return Tuned(make(best[0]).fit(lists), best[1], best[2])


def voting(features: Prepared, shape: Shape) -> VotingReranker:
    """Linear voting, not trained."""
    return VotingReranker(features, slices=shape.slices, width=shape.width, C=shape.C, tol=TOLERANCE)


def linear(
    features: Prepared, train: Sequence[NBest], shapes: Sequence[Shape], singles: Sequence[Shape], count: int
) -> dict[str, Tuned]:
    """Voting and the paper's comparisons over the same features, all chosen by the same folds."""

    def single(shape: Shape) -> VotingReranker:
        return SingleCandidateSVM(features, slices=shape.slices, C=shape.C, tol=TOLERANCE, max_iter=PASSES)

    return {
        "linear voting": tuned(partial(voting, features), shapes, train, count),
        "voted perceptron": tuned(lambda n: VotedPerceptron(features, slices=20, epochs=n), EPOCHS, train, count),
        "single-parse SVM": tuned(single, singles, train, count),
    }


def cross_validated(
    everything: Prepared,
    lists: Sequence[NBest],
    shapes: Sequence[Shape],
    singles: Sequence[Shape],
    *,
    outer: int,
    count: int,
) -> dict[str, list[Matches]]:
    """What each model picks from every list, trained and chosen on the other documents alone."""
    chosen: dict[str, list[Any]] = {}
    for held in progress(folds(lists, outer), "documents held out", outer):
        out = set(held)
        train = [item for i, item in enumerate(lists) if i not in out]
        for name, model in linear(everything.among(train), train, shapes, singles, count).items():
            picks = chosen.setdefault(name, [None] * len(lists))
            for i, pick in zip(held, model.predict([lists[i] for i in held]), strict=True):
                picks[i] = pick
    return chosen


def tree_voting(
    train: Sequence[NBest], test: Sequence[NBest], *, slices: int, most: int, count: int
) -> tuple[list[Matches], TreeKernel]:
    """The tree kernel among the ``most`` first candidates; λ, β and γ chosen on the last of ``count`` folds."""
    held = folds(train, count)[-1]
    out = set(held)
    inner = [item for i, item in enumerate(train) if i not in out]
    outer = [train[i].keep(range(min(most, len(train[i])))) for i in held]
    best: tuple[float, Weights, float] | None = None
    for decay in DECAYS:
        votes = _tree(decay, slices).fit(inner).votes(outer)
        weights = tune(outer, votes)
        f1 = corpus_scores(picked(outer, choose(outer, weights.combine(outer, votes)))).f1
        if best is None or f1 > best[2]:
            best = decay, weights, f1
    assert best is not None
    short = [item.keep(range(min(most, len(item)))) for item in test]
    return Tuned(_tree(best[0], slices).fit(train), *best[1:]).predict(short), TreeKernel(best[0], normalise=True)


def _tree(decay: float, slices: int) -> VotingReranker:
    return VotingReranker(kernel=TreeKernel(decay, normalise=True), slices=slices, C=1.0)
