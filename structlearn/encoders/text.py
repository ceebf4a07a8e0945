"""Encoders of whole texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from structlearn.data.batch import TokenInputs
from structlearn.encoders.base import Encoder, real


class BagOfWords(Encoder):
    """Phi(x)_w = n_w / |n|: counts of known words, of length 1.

    Args:
        sublinear: 1 + log of the counts.
    """

    def __init__(self, sublinear: bool = True) -> None:
        super().__init__()
        self.sublinear = sublinear

    def build(self, codec: Any) -> None:
        self.out_features = len(codec.words)

    def forward(self, x: TokenInputs) -> Tensor:
        assert x.words is not None
        known = x.words > 1  # neither padding nor unknown
        counts = torch.zeros((len(x.words), self.out_features), device=x.words.device)
        counts.scatter_add_(1, x.words * known, known.to(counts.dtype))
        counts[:, 0] = 0.0
        if self.sublinear:
            counts = torch.where(counts > 0, 1.0 + counts.clamp(min=1.0).log(), 0.0)
        return nn.functional.normalize(counts, dim=1)


class Pooled(Encoder):
    """Phi(x) = mean over tokens of another encoder's vectors.

    Args:
        tokens: x to (B, N, F).
    """

    def __init__(self, tokens: Encoder) -> None:
        super().__init__()
        self.tokens = tokens
        self.out_features = tokens.out_features

    def build(self, codec: Any) -> None:
        self.tokens.build(codec)

    def forward(self, x: TokenInputs) -> Tensor:
        phi = self.tokens(x)
        inside = torch.where(real(x, phi.shape[1]).unsqueeze(-1), phi, 0.0)
        return inside.sum(1) / x.lengths.clamp(min=1).unsqueeze(-1)
