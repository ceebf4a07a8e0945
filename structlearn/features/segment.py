"""Joint features of a labelled segmentation.

    Psi(x, y) = sum_i ( sum_{t in segment i} Phi(x^t) + e(width_i) ) (x) e(c_i)  +  eta sum_i e(c_{i-1}) (x) e(c_i)

over segments i with label c_i; sums over a segment are differences of one cumulative sum, so all (N, W) segments
cost N matrix products, not N W.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.features.base import FeatureMap, added_up, counted, one_output, zero_beyond
from structlearn.structures import SemiMarkov, segmentation
from structlearn.structures.checks import check_lengths, unpadded


class SegmentMap(FeatureMap):
    """x (B, N, in_features) to a :class:`SemiMarkov` over segments of at most ``max_width`` positions.

    Args:
        in_features: size of Phi(x^t).
        num_labels: C.
        max_width: W.
        eta: weight of the transition features.
        encoder: any module x -> (B, N, in_features); the identity if not given.

    Weights, zero at the start: ``emission`` (C, in_features), ``width`` (W, C) and ``transition`` (C, C).
    """

    head = ("emission", "width", "transition")

    def __init__(
        self, in_features: int, num_labels: int, max_width: int, *, eta: float = 1.0, encoder: nn.Module | None = None
    ) -> None:
        super().__init__(in_features, encoder)
        self.eta = eta
        self.emission = nn.Parameter(torch.zeros(num_labels, in_features))
        self.width = nn.Parameter(torch.zeros(max_width, num_labels))
        self.transition = nn.Parameter(torch.zeros(num_labels, num_labels))

    def forward(self, x: Any, lengths: Tensor | Sequence[int] | None = None) -> SemiMarkov:
        """The scores of all segmentations of x."""
        phi = self.features(x, 3)
        b, n, _ = phi.shape
        lengths = check_lengths("lengths", lengths, b, n, phi.device)
        unary = zero_beyond(phi, lengths) @ self.emission.T
        before = nn.functional.pad(unary.cumsum(1), (0, 0, 1, 0))
        starts = torch.arange(n, device=phi.device)[:, None]
        ends = (starts + torch.arange(1, self.width.shape[0] + 1, device=phi.device)).clamp(max=n)
        segments = before[:, ends] - before[:, :n, None] + self.width
        return SemiMarkov(segments, self.eta * self.transition, lengths=lengths)

    def histograms(self, x: Any, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Tensor]:
        phi = self.features(x, 3)
        b, n, _ = phi.shape
        lengths = check_lengths("lengths", lengths, b, n, phi.device)
        mask, (w, c) = unpadded(lengths, b, n, phi.device), self.width.shape
        y = one_output(y, (b, n), phi.device)
        segmentation.check(y, mask, w, c)
        y = y.masked_fill(~mask, segmentation.INSIDE)
        starts = y >= 0  # an output's entries there are places in ``width``, flattened
        labels = segmentation.spread(y, c).masked_fill(~mask, 0)
        pairs = labels[:, :-1] * c + labels[:, 1:]
        return [
            added_up(zero_beyond(phi, lengths), labels, c),
            counted(starts, y.clamp(min=0), (w, c), phi.dtype),
            self.eta * counted(starts[:, 1:], pairs, (c, c), phi.dtype),
        ]
