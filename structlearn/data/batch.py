"""What passes from data to tasks: batches of inputs with their gold outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class Batch(NamedTuple):
    """B examples.

    ``share`` weighs the loss: 1, or under several processes this one's part of the examples of a step, times the
    number of processes, so that the mean over processes is the mean over examples.
    """

    x: Any  # what the feature map takes
    gold: Any  # as the structure takes it, or None
    lengths: Any  # (B,), a pair of them for alignments, or None
    places: Tensor  # (B,) places of the examples in their data
    share: Tensor  # ()


class TokenInputs(NamedTuple):
    """Words of B sentences, N the longest: each encoder reads the fields that it is made for."""

    lengths: Tensor  # (B,)
    words: Tensor | None = None  # (B, N) numbers in a vocabulary, 0 at padding
    chars: Tensor | None = None  # (B, N, K) letters of each word, 0 at padding
    features: Tensor | None = None  # (B, N, J) numbers of sparse features, 0 for none
    dense: Tensor | None = None  # (B, N, F)
    pieces: Tensor | None = None  # (B, T) numbers of subwords
    first: Tensor | None = None  # (B, N) the first subword of each word


def padded(rows: Sequence[Tensor], value: float = 0) -> Tensor:
    """Tensors of unequal first size as one, (B, N, ...)."""
    return pad_sequence(list(rows), batch_first=True, padding_value=value)


def one() -> Tensor:
    return torch.ones(())
