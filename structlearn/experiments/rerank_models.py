"""Rerankers with everything chosen on training lists: out-of-fold votes decide on C, β and γ.

The training lists are cut into folds by document. A model of the other folds votes on each; with the votes on all of
them, β and γ maximise F1, and so is C chosen. Then one model is trained on all training lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from structlearn.reranking import CandidateFeatures, NBest, SingleCandidateSVM, VotedPerceptron, VotingReranker
from structlearn.reranking.combine import Weights, choose, tune
from structlearn.reranking.features import Table
from structlearn.reranking.matches import Matches, corpus_scores
from structlearn.reranking.tree_kernel import TreeKernel

Votes = list[Any]
CS = (0.005, 0.05, 0.5)
DECAYS = (0.2, 0.5)


class Prepared(CandidateFeatures):
    """Features of lists that many models read: counted once, looked up by the candidates themselves.

    Args:
        train: lists whose features are numbered.
        others: lists to be scored.
    """

    def __init__(self, train: Sequence[NBest], others: Sequence[NBest]) -> None:
        super().__init__()
        tables = [super().fit_transform(train).rows, super().transform(others).rows]
        self._rows = scipy.sparse.vstack(tables).tocsr()
        # The trees are kept, so that their identities stay theirs.
        self._trees = [tree for item in (*train, *others) for tree in item.candidates]
        self._number = {id(tree): i for i, tree in enumerate(self._trees)}

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


def tuned(make: Callable[[float], VotingReranker], Cs: Sequence[float], lists: Sequence[NBest], count: int) -> Tuned:
    """The best C by out-of-fold F1, then trained on all lists."""
    best: tuple[float, Weights, float] | None = None
    for C in Cs:
        [votes] = out_of_fold(lambda C=C: make(C), lists, count)  # type: ignore[misc]
        weights = tune(lists, votes)
        f1 = corpus_scores(picked(lists, choose(lists, weights.combine(lists, votes)))).f1
        if best is None or f1 > best[2]:
            best = C, weights, f1
    assert best is not None
    return Tuned(make(best[0]).fit(lists), best[1], best[2])


def linear(features: Prepared, train: Sequence[NBest], slices: int, count: int) -> dict[str, Tuned]:
    """Voting and the paper's comparisons over the same features."""
    options: dict[str, Any] = {"slices": slices, "tol": 1e-2}
    return {
        "linear voting": tuned(lambda C: VotingReranker(features, C=C, **options), CS, train, count),
        "voted perceptron": tuned(lambda C: VotedPerceptron(features, slices=slices, epochs=5), [1.0], train, count),
        "single-parse SVM": tuned(lambda C: SingleCandidateSVM(features, C=C, **options), CS[:2], train, count),
    }


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
