"""Reranking by voting: an SVM over pairs of candidates for each slice, their scores added up.

    score(x) = sum_j f_j(x) + β log P(x) + γ |brackets of x|,   the highest score wins.

Slice j pairs the best candidate of every list with the j-th of the others, by log-probability; f_j is trained on these
pairs and their mirrors (:mod:`structlearn.reranking.preference`). Slices know nothing of each other and are trained in
parallel. β and γ maximise F1 on development lists. With a linear kernel the support vectors fold into one weight
vector, and a candidate costs one dot product however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
from joblib import Parallel, delayed, effective_n_jobs
from sklearn.svm import LinearSVC

from structlearn.errors import ArgumentError, ShapeError
from structlearn.reranking.combine import Weights, choose, tune
from structlearn.reranking.features import CandidateFeatures
from structlearn.reranking.lists import NBest
from structlearn.reranking.matches import corpus_scores
from structlearn.reranking.preference import Array, BaseKernel, preference_gram, train_preferences
from structlearn.reranking.waiting import interruptible
from structlearn.trees import Tree

_Places = np.ndarray[Any, np.dtype[np.int64]]


class VotingReranker:
    """score(x) = sum_j f_j(x) + β log P(x) + γ |brackets of x|.

    Args:
        features: φ of the linear mode; by default :class:`CandidateFeatures`. :meth:`fit` numbers them.
        kernel: K of the kernel mode, in place of features.
        slices: how many SVMs; slice j pairs the best candidate with the j-th ``width`` of the others.
        width: other candidates of a list in one slice; wide slices cost time and optimise more at once.
        C: box of every sample; a pair and its mirror are two samples.
        beta, gamma: β and γ where no development lists are given.
        tol: tolerance of the solver.
        max_iter: passes after which LIBLINEAR gives up.
        n_jobs: slices trained at the same time.

    Attributes after :meth:`fit`:
        weights_: (slices, F) of the linear mode; ``coef_`` (F,) is their sum.
        support_, coefficients_: trees of the kernel mode and c of each, (slices, trees).
        intercepts_: of the kernel mode, one a slice: 0 up to tolerance.
        beta_, gamma_: the weights in use.
    """

    def __init__(
        self,
        features: CandidateFeatures | None = None,
        *,
        kernel: BaseKernel | None = None,
        slices: int = 10,
        width: int = 1,
        C: float = 1.0,
        beta: float = 0.0,
        gamma: float = 0.0,
        tol: float = 1e-3,
        max_iter: int = 20000,
        n_jobs: int = 1,
    ) -> None:
        if features is not None and kernel is not None:
            raise ArgumentError("kernel", "features or a kernel", "both", "LinearKernel(features) is a kernel")
        if slices < 1 or width < 1:
            got = f"{slices} and {width}"
            raise ArgumentError("slices, width", "integers >= 1", got, "a slice is one pair of every list, or more")
        if not C > 0:
            raise ArgumentError("C", "a number > 0", C, "smaller C regularises more")
        self.features = features or CandidateFeatures()
        self.kernel = kernel
        self.slices, self.width, self.C = slices, width, C
        self.beta, self.gamma, self.tol, self.max_iter, self.n_jobs = beta, gamma, tol, max_iter, n_jobs

    def fit(self, lists: Sequence[NBest], development: Sequence[NBest] | None = None) -> VotingReranker:
        """Train on lists with gold trees; then, given development lists, tune β and γ on them."""
        # The best candidate comes first, then the others of the slices; the rest trains nothing.
        kept = [item.keep([item.best, *item.others[: self.slices * self.width]]) for item in lists]
        if not any(len(item) > 1 for item in kept):
            raise ShapeError("lists", "candidates of different quality", "none", "give lists with a choice")
        if self.kernel is None:
            self._fit_linear(kept)
        else:
            self._fit_kernel(self.kernel, kept)
        self.beta_, self.gamma_ = self.beta, self.gamma
        if development:
            self.beta_, self.gamma_ = tune(development, self.votes(development))
        return self

    def _fit_linear(self, kept: Sequence[NBest]) -> None:
        rows, offsets = self.features.fit_transform(kept)
        pairs = [rows[best] - rows[other] for best, other in self._pairs(offsets)]
        jobs = (delayed(_liblinear)(differences, self.C, self.tol, self.max_iter) for differences in pairs)
        # LIBLINEAR draws from one generator a process: threads would make each other's results depend on timing.
        trainer = Parallel(n_jobs=self.n_jobs, prefer="processes")
        # Processes are ended by joblib, which only the thread that started them can tell.
        alone = effective_n_jobs(self.n_jobs) == 1
        self.weights_ = np.stack(interruptible(lambda: trainer(jobs)) if alone else trainer(jobs))
        self.coef_ = self.weights_.sum(axis=0)

    def _pairs(self, offsets: _Places) -> list[tuple[_Places, _Places]]:
        """Where the two candidates of every pair are, slice by slice, the best one of a list being its first."""
        starts, sizes = offsets[:-1], np.diff(offsets)
        slices = []
        for first in range(1, sizes.max(), self.width):
            places = [(starts[sizes > j], j) for j in range(first, first + self.width)]
            best = np.concatenate([at for at, _ in places])
            slices.append((best, np.concatenate([at + j for at, j in places])))
        return slices

    def _fit_kernel(self, kernel: BaseKernel, kept: Sequence[NBest]) -> None:
        trees: list[Tree] = [tree for item in kept for tree in item.candidates]
        slices = self._pairs(np.cumsum([0, *map(len, kept)]))

        def train(best: _Places, other: _Places) -> tuple[Array, float]:
            a, b = [trees[i] for i in best], [trees[i] for i in other]
            between = kernel(a, b)
            gram = preference_gram(kernel(a, a), between, between.T, kernel(b, b))
            return train_preferences(gram, self.C, tol=self.tol)

        trainer = Parallel(n_jobs=self.n_jobs, prefer="threads")
        trained = interruptible(lambda: trainer(delayed(train)(*pair) for pair in slices))
        coefficients = np.zeros((len(trained), len(trees)))
        for row, (c, _), (best, other) in zip(coefficients, trained, slices, strict=True):
            np.add.at(row, best, c)
            np.add.at(row, other, -c)
        used = np.flatnonzero(coefficients.any(axis=0))
        self.support_ = [trees[i] for i in used]
        self.coefficients_ = coefficients[:, used]
        self.intercepts_ = np.asarray([intercept for _, intercept in trained])

    def votes(self, lists: Sequence[NBest], *, slices: int | None = None) -> list[Array]:
        """sum_j f_j of every candidate, over the first ``slices`` of them: an array (M,) for each list.

        Linear scores leave out what all candidates of a list share.
        """
        if self.kernel is None:
            rows, offsets = self.features.transform(lists)
            flat = rows @ (self.coef_ if slices is None else self.weights_[:slices].sum(axis=0))
        else:
            offsets = np.concatenate([[0], np.cumsum([len(item) for item in lists])])
            c = self.coefficients_[:slices].sum(axis=0)
            used = np.flatnonzero(c)
            trees = [tree for item in lists for tree in item.candidates]
            flat = self.kernel(trees, [self.support_[i] for i in used]) @ c[used]
        return np.split(np.asarray(flat, dtype=np.float64), offsets[1:-1])

    def decision_function(self, lists: Sequence[NBest]) -> list[Array]:
        """The score of every candidate: an array (M,) for each list."""
        return Weights(self.beta_, self.gamma_).combine(lists, self.votes(lists))

    def predict(self, lists: Sequence[NBest]) -> list[int]:
        """The index of the winner of each list; ties go to the higher log-probability, then to the lower index."""
        return choose(lists, self.decision_function(lists))

    def score(self, lists: Sequence[NBest]) -> float:
        """F1 of the winners over all lists."""
        return corpus_scores([item.counts[i] for item, i in zip(lists, self.predict(lists), strict=True)]).f1


def _liblinear(differences: Any, C: float, tol: float, max_iter: int) -> Array:
    # A mirror repeats its pair's constraint on w, so a pair with twice the box stands for both. LIBLINEAR wants two
    # classes: every other pair is given as its mirror.
    signs = np.where(np.arange(differences.shape[0]) % 2, -1.0, 1.0)
    if len(signs) == 1:
        differences, signs, C = scipy.sparse.vstack([differences, differences]), np.asarray([1.0, -1.0]), C / 2
    svm = LinearSVC(C=2 * C, loss="hinge", fit_intercept=False, tol=tol, max_iter=max_iter, random_state=0)
    return np.asarray(svm.fit(differences.multiply(signs[:, None]).tocsr(), signs).coef_[0])
