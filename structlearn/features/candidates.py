"""Joint features of a choice from a list.

    Psi(x, y) = sum_{j on at candidate y} e(j)  +  d(y),    s(y) = sum_j w_j + <v, d(y)>

with numbers j of sparse features, and a few dense values d of each candidate such as its log-probability.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from structlearn.data.sparse import SparseBag
from structlearn.features.base import FeatureMap
from structlearn.structures import Candidates


class ListInputs(NamedTuple):
    """M candidates of B inputs: numbers of features (B, M, J), 0 for none; values (B, M, D); mask (B, M)."""

    features: Tensor
    values: Tensor
    mask: Tensor


class CandidateMap(FeatureMap):
    """x, :class:`ListInputs`, to :class:`Candidates`.

    Args:
        num_features: F; number 0 counts for nothing.
        num_values: D.
        sparse: gradients as sparse tensors.

    Weights: ``bag.weight`` (F, 1), zero at the start, and ``values`` (D,), 1 for the first and 0 for the others: at
    the start a list is ordered by its first value.
    """

    head = ("bag.weight", "values")

    def __init__(self, num_features: int, num_values: int, *, sparse: bool = False) -> None:
        super().__init__(num_features, None)
        self.bag = SparseBag(num_features, 1, sparse=sparse)
        self.values = nn.Parameter(torch.eye(1, num_values)[0])

    def forward(self, x: ListInputs, lengths: None = None) -> Candidates:  # type: ignore[override]
        """The scores of all candidates."""
        return Candidates(self.bag(x.features).squeeze(-1) + x.values @ self.values, mask=x.mask)
