"""What the voting SVM is compared with: a voted perceptron, and an SVM whose samples are single candidates.

Both score candidates by w φ(x) and combine the score with log-probability and brackets like :class:`VotingReranker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.svm import LinearSVC

from structlearn.errors import ArgumentError
from structlearn.reranking.features import CandidateFeatures
from structlearn.reranking.lists import NBest
from structlearn.reranking.preference import Array
from structlearn.reranking.voting import VotingReranker
from structlearn.reranking.waiting import interruptible


class VotedPerceptron(VotingReranker):
    """w <- w + φ(best) - φ(winner) wherever another candidate wins; scores use the mean of all w.

    Freund and Schapire's vote keeps every w; adding up scores instead of predictions, the mean w is that vote.

    Args:
        features: φ; by default :class:`CandidateFeatures`.
        slices: how many other candidates of a list compete with its best one.
        epochs: passes over the lists, in their order.
    """

    def __init__(self, features: CandidateFeatures | None = None, *, slices: int = 10, epochs: int = 10) -> None:
        super().__init__(features, slices=slices)
        if epochs < 1:
            raise ArgumentError("epochs", "an integer >= 1", epochs, "a pass over the lists trains the weights")
        self.epochs = epochs

    def _fit_linear(self, kept: Sequence[NBest]) -> None:
        rows, offsets = self.features.fit_transform(kept)
        weights, total = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
        for _ in range(self.epochs):
            for start, end in pairwise(offsets):
                scores = rows[start:end] @ weights
                # The best candidate comes first and wins only if no other one reaches it.
                winner = int(np.argmax(scores[1:])) + 1 if end - start > 1 else 0
                if winner and scores[winner] >= scores[0]:
                    _add(weights, rows, start, 1.0)
                    _add(weights, rows, start + winner, -1.0)
                total += weights
        self.coef_ = total / (self.epochs * len(kept))
        self.weights_ = self.coef_[None]


class SingleCandidateSVM(VotingReranker):
    """An SVM that tells best candidates from others one by one: y (w φ(x) + b) >= 1, where pairs ask for less.

    The two classes weigh the same, though there are more others than best ones.
    """

    def _fit_linear(self, kept: Sequence[NBest]) -> None:
        rows, offsets = self.features.fit_transform(kept)
        labels = -np.ones(rows.shape[0])
        labels[offsets[:-1]] = 1.0
        svm = LinearSVC(
            C=self.C, loss="hinge", class_weight="balanced", tol=self.tol, max_iter=self.max_iter, random_state=0
        )
        self.coef_ = np.asarray(interruptible(lambda: svm.fit(rows, labels)).coef_[0])
        self.weights_ = self.coef_[None]


def _add(weights: Array, rows: Any, i: int, times: float) -> None:
    part = slice(rows.indptr[i], rows.indptr[i + 1])
    weights[rows.indices[part]] += times * rows.data[part]
