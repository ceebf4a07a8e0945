"""What an encoder is: inputs to vectors, Phi(x), of size ``out_features``.

Sizes of vocabularies are known only once there are data, so an encoder is made in two steps: the constructor takes what
a configuration says, and :meth:`Encoder.build` is called by the task with the codec of the data.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.data.batch import TokenInputs
from structlearn.descriptions import Described
from structlearn.errors import ArgumentError


class Encoder(Described, nn.Module):
    """x -> Phi(x), (B, N, out_features) of tokens, or (B, out_features) of whole inputs."""

    out_features: int

    def build(self, codec: Any) -> None:
        """Makes the parameters whose sizes depend on the data."""


class Dense(Encoder):
    """Phi(x) = what the data hold as vectors already.

    Args:
        features: F of the data.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.out_features = features

    def forward(self, x: Any) -> Tensor:
        return dense_of(x)


class MLP(Encoder):
    """Phi(x) = relu(W_k ... relu(W_1 x)) for each vector of the data by itself.

    Args:
        features: F of the data.
        hidden: sizes of the layers; the last one is ``out_features``.
        dropout: after every layer.
    """

    def __init__(self, features: int, hidden: list[int], dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [features, *hidden]
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout))]
        self.layers = nn.Sequential(*layers)
        self.out_features = sizes[-1]

    def forward(self, x: Any) -> Tensor:
        return self.layers(dense_of(x))


def dense_of(x: Any) -> Tensor:
    """The vectors of an input, (B, N, F) or (B, F)."""
    found = x.dense if isinstance(x, TokenInputs) else x
    if not isinstance(found, Tensor):
        raise ArgumentError("encoder", "one that reads words", "one that reads vectors", "e.g. encoders.BiLSTM")
    return found


def real(x: TokenInputs, size: int) -> Tensor:
    """(B, N) bool, true where there is a token."""
    return torch.arange(size, device=x.lengths.device) < x.lengths[:, None]
