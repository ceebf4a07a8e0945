"""Preferences: pairs of candidates as samples, and the kernel between pairs.

    PK((a, b), (c, d)) = K(a, c) - K(a, d) - K(b, c) + K(b, d) = <φ(a) - φ(b), φ(c) - φ(d)>

for any base kernel K(x, z) = <φ(x), φ(z)>. A pair (best, other) is a positive sample and its mirror (other, best) a
negative one: the samples are symmetric about the origin, so the widest margin has b = 0, and

    score(x) = sum_i c_i (K(s_i1, x) - K(s_i2, x)),   f(x, z) = score(x) - score(z).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from sklearn.svm import SVC

from structlearn.errors import ShapeError
from structlearn.reranking.features import CandidateFeatures
from structlearn.reranking.lists import NBest
from structlearn.trees import Tree

Array = np.ndarray[Any, np.dtype[np.float64]]


class BaseKernel(Protocol):
    """K between every tree of ``a`` and every tree of ``b``: (A, B), positive semidefinite."""

    def __call__(self, a: Sequence[Tree], b: Sequence[Tree]) -> Array: ...


class LinearKernel:
    """K(x, z) = <φ(x), φ(z)> with the numbered features of fitted ``features``."""

    def __init__(self, features: CandidateFeatures) -> None:
        self.features = features

    def __call__(self, a: Sequence[Tree], b: Sequence[Tree]) -> Array:
        rows = [self.features.transform([NBest([tree], [0.0]) for tree in trees]).rows for trees in (a, b)]
        return np.asarray((rows[0] @ rows[1].T).toarray(), dtype=np.float64)


def preference_gram(ac: Array, ad: Array, bc: Array, bd: Array) -> Array:
    """PK between P pairs (a, b) and Q pairs (c, d) from the base kernel between their members, (P, Q) each."""
    shapes = {m.shape for m in (ac, ad, bc, bd)}
    if len(shapes) != 1:
        raise ShapeError("ac, ad, bc, bd", "four matrices (P, Q)", sorted(shapes), "a and b pair up, c and d too")
    return ac - ad - bc + bd


def preference_kernel(
    kernel: BaseKernel, first: Sequence[tuple[Tree, Tree]], second: Sequence[tuple[Tree, Tree]]
) -> Array:
    """PK between every pair of ``first`` and every pair of ``second``: (P, Q)."""
    a, b = [pair[0] for pair in first], [pair[1] for pair in first]
    c, d = [pair[0] for pair in second], [pair[1] for pair in second]
    return preference_gram(kernel(a, c), kernel(a, d), kernel(b, c), kernel(b, d))


def train_preferences(gram: Array, C: float, *, tol: float = 1e-3) -> tuple[Array, float]:
    """The coefficients c (P,) of pairs and the intercept, from their preference kernel (P, P), by LIBSVM.

    Each pair and its mirror are samples with a box of C. Their coefficients add up, since a mirror points the other
    way and has the other sign. The intercept is 0 up to the solver's tolerance, and scores leave it out.
    """
    n = len(gram)
    svm = SVC(kernel="precomputed", C=C, tol=tol)
    svm.fit(np.block([[gram, -gram], [-gram, gram]]), np.repeat([1, -1], n))
    signed = np.zeros(2 * n)
    signed[svm.support_] = svm.dual_coef_[0]
    return signed[:n] - signed[n:], float(svm.intercept_[0])
