"""Joint features of a label sequence over sparse binary features.

    Psi(x, y) = sum_t sum_{j on at t} e(j) (x) e(y_t)  +  sum_t e(y_{t-1}) (x) e(y_t)

With the J features that are on at a position as numbers, unary[t] is a sum of J rows of one table: no vector of size F
is ever made, and gradients touch the rows that were read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.data.batch import TokenInputs
from structlearn.data.sparse import SparseBag
from structlearn.errors import ArgumentError
from structlearn.features.base import FeatureMap
from structlearn.structures import LinearChain


class SparseChainMap(FeatureMap):
    """x (B, N, J) feature numbers, or the ``features`` of :class:`TokenInputs`, to a :class:`LinearChain`.

    Args:
        num_features: F; number 0 counts for nothing.
        num_labels: C.
        sparse: gradients as sparse tensors, for optimizers that take them (SGD, Adagrad).

    Weights, zero at the start: ``bag.weight`` (F, C) and ``transition`` (C, C).
    """

    head = ("bag.weight", "transition")

    def __init__(self, num_features: int, num_labels: int, *, sparse: bool = True) -> None:
        super().__init__(num_features, None)
        self.bag = SparseBag(num_features, num_labels, sparse=sparse)
        self.transition = nn.Parameter(torch.zeros(num_labels, num_labels))

    def forward(self, x: Any, lengths: Tensor | Sequence[int] | None = None) -> LinearChain:
        """The scores of all label sequences for x."""
        return LinearChain(self.bag(feature_numbers(x)), self.transition, lengths=lengths)


def feature_numbers(x: Any) -> Tensor:
    """(B, N, J) of a tensor or of :class:`TokenInputs`."""
    ids = x.features if isinstance(x, TokenInputs) else x
    if not isinstance(ids, Tensor):
        raise ArgumentError("x", "numbers of sparse features", type(ids).__name__, "make data with sparse=True")
    return ids
