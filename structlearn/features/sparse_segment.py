"""Joint features of a segmentation over sparse binary features of positions.

    s(segment t..t+w of label c) = begin_c[t] + sum_{i=t..t+w} inside_c[i] + end_c[t+w] + width[w, c]

with begin, inside and end sums of rows of one table, one row a feature that is on at the position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.data.sparse import SparseBag
from structlearn.features.base import FeatureMap
from structlearn.features.sparse import feature_numbers
from structlearn.structures import SemiMarkov
from structlearn.structures.checks import check_lengths, unpadded


class SparseSegmentMap(FeatureMap):
    """x (B, N, J) feature numbers, or the ``features`` of :class:`TokenInputs`, to a :class:`SemiMarkov` chain.

    Args:
        num_features: F; number 0 counts for nothing.
        num_labels: C.
        max_width: W.
        sparse: gradients as sparse tensors, for optimizers that take them (SGD, Adagrad).

    Weights, zero at the start: ``bag.weight`` (F, 3 C), ``width`` (W, C) and ``transition`` (C, C).
    """

    head = ("bag.weight", "width", "transition")

    def __init__(self, num_features: int, num_labels: int, max_width: int, *, sparse: bool = True) -> None:
        super().__init__(num_features, None)
        self.bag = SparseBag(num_features, 3 * num_labels, sparse=sparse)
        self.width = nn.Parameter(torch.zeros(max_width, num_labels))
        self.transition = nn.Parameter(torch.zeros(num_labels, num_labels))

    def forward(self, x: Any, lengths: Tensor | Sequence[int] | None = None) -> SemiMarkov:
        """The scores of all segmentations of x."""
        ids = feature_numbers(x)
        b, n, _ = ids.shape
        lengths = check_lengths("lengths", lengths, b, n, ids.device)
        mask = unpadded(lengths, b, n, ids.device).unsqueeze(-1)
        begin, inside, end = (self.bag(ids) * mask).chunk(3, -1)
        before = nn.functional.pad(inside.cumsum(1), (0, 0, 1, 0))
        last = torch.arange(n, device=ids.device)[:, None] + torch.arange(len(self.width), device=ids.device)
        last = last.clamp(max=n - 1)
        segments = begin[:, :, None] + before[:, last + 1] - before[:, :n, None] + end[:, last] + self.width
        return SemiMarkov(segments, self.transition, lengths=lengths)
