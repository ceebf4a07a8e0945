"""Joint features of a labelled tree from the parts of speech at its spans' ends.

    spans[i, j, c] = inner[t_i, t_j, c] + outer[t_{i-1}, t_{j+1}, c] + width[j - i, c]

A table for the pair of the first and last tag of a span, one for the pair beside it, one for its width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.data.batch import TokenInputs
from structlearn.errors import ArgumentError
from structlearn.features.base import FeatureMap
from structlearn.structures import SpanTree
from structlearn.structures.checks import check_lengths, unpadded


class TagSpanMap(FeatureMap):
    """x (B, N) parts of speech, or the ``tags`` of :class:`TokenInputs`, to a :class:`SpanTree`.

    Args:
        num_tags: P; tags are 0..P-1.
        num_labels: L.
        max_width: spans of this many words and more share a weight.

    Weights, zero at the start: ``inner`` (P, P, L), ``outer`` (P+1, P+1, L), P standing for the edge, and ``width``
    (max_width, L).
    """

    head = ("inner", "outer", "width")

    def __init__(self, num_tags: int, num_labels: int, *, max_width: int = 20) -> None:
        super().__init__(num_tags, None)
        self.inner = nn.Parameter(torch.zeros(num_tags, num_tags, num_labels))
        self.outer = nn.Parameter(torch.zeros(num_tags + 1, num_tags + 1, num_labels))
        self.width = nn.Parameter(torch.zeros(max_width, num_labels))

    def forward(self, x: Any, lengths: Tensor | Sequence[int] | None = None) -> SpanTree:
        """The scores of all trees over x."""
        tags = x.tags if isinstance(x, TokenInputs) else x
        if not isinstance(tags, Tensor) or tags.dim() != 2:
            raise ArgumentError("x", "parts of speech (B, N)", type(tags).__name__, "data with tags")
        b, n = tags.shape
        lengths = check_lengths("lengths", lengths, b, n, tags.device)
        edge = len(self.inner)
        inside = unpadded(lengths, b, n, tags.device)
        own = tags.masked_fill(~inside, 0)
        around = nn.functional.pad(tags.masked_fill(~inside, edge), (1, 1), value=edge)
        steps = torch.arange(n, device=tags.device)
        wide = (steps - steps[:, None]).clamp(0, len(self.width) - 1)
        spans = self.inner[own[:, :, None], own[:, None]] + self.width[wide]
        spans = spans + self.outer[around[:, :-2, None], around[:, None, 2:]]
        return SpanTree(spans, lengths=lengths)
