"""Joint features of a labelled tree from representations of its spans' ends.

Fencepost k stands between words k-1 and k, with the features of both beside it, zero beyond the ends of the sentence.
With l_k and r_k two layers over fenceposts, the span i..j scores

    biaffine:  spans[i, j, c] = [l_i; 1]^T U_c [r_{j+1}; 1]
    mlp:       spans[i, j, c] = <W_c, relu(l_i + r_{j+1})> + b_c,

linear in U, or in W and b: Psi(x, y) sums what they are multiplied with over the spans of y.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from structlearn.errors import ArgumentError
from structlearn.features.base import FeatureMap, zero_beyond
from structlearn.structures import SpanTree
from structlearn.structures.checks import check_lengths


class SpanScorerMap(FeatureMap):
    """x (B, N, in_features) to a :class:`SpanTree`.

    Args:
        in_features: size of Phi(x^t), what the encoder makes of a word.
        num_labels: L.
        scorer: "biaffine" or "mlp".
        hidden: size of the layers over fenceposts.
        encoder: any module x -> (B, N, in_features), such as a transformer; the identity if not given.

    The head, zero at the start, is ``bilinear`` (L, hidden + 1, hidden + 1), or ``weight`` (L, hidden) and ``bias``
    (L,); the layers below it train like an encoder.
    """

    def __init__(
        self,
        in_features: int,
        num_labels: int,
        *,
        scorer: Literal["biaffine", "mlp"] = "biaffine",
        hidden: int = 128,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__(in_features, encoder)
        if scorer not in ("biaffine", "mlp"):
            raise ArgumentError("scorer", "'biaffine' or 'mlp'", repr(scorer), "see the class docstring")
        self.scorer = scorer
        self.left = nn.Linear(2 * in_features, hidden)
        self.right = nn.Linear(2 * in_features, hidden)
        if scorer == "biaffine":
            self.head = ("bilinear",)
            self.bilinear = nn.Parameter(torch.zeros(num_labels, hidden + 1, hidden + 1))
        else:
            self.head = ("weight", "bias")
            self.weight = nn.Parameter(torch.zeros(num_labels, hidden))
            self.bias = nn.Parameter(torch.zeros(num_labels))

    def forward(self, x: Any, lengths: Tensor | Sequence[int] | None = None) -> SpanTree:
        """The scores of all trees over x."""
        phi = self.features(x, 3)
        b, n, _ = phi.shape
        lengths = check_lengths("lengths", lengths, b, n, phi.device)
        edged = nn.functional.pad(zero_beyond(phi, lengths), (0, 0, 1, 1))
        posts = torch.cat([edged[:, :-1], edged[:, 1:]], -1)  # (B, N + 1, 2 in_features)
        left, right = self.left(posts[:, :-1]), self.right(posts[:, 1:])
        if self.scorer == "mlp":
            spans = (left[:, :, None] + right[:, None]).relu() @ self.weight.T + self.bias
        else:
            left, right = (nn.functional.pad(side.relu(), (0, 1), value=1.0) for side in (left, right))
            spans = torch.einsum("bih,chk,bjk->bijc", left, self.bilinear, right)
        return SpanTree(spans, lengths=lengths)
