"""What passes from data to tasks: batches of inputs with their gold outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class Kept:
    """Examples as they are, closed to what moves tensors between devices."""

    def __init__(self, examples: Sequence[Any]) -> None:
        self.examples = examples


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
    kept: Kept | None = None  # examples that scores need as they are


class TokenInputs(NamedTuple):
    """Words of B sentences, N the longest: each encoder reads the fields that it is made for."""

    lengths: Tensor  # (B,)
    words: Tensor | None = None  # (B, N) numbers in a vocabulary, 0 at padding
    chars: Tensor | None = None  # (B, N, K) letters of each word, 0 at padding
    features: Tensor | None = None  # (B, N, J) numbers of sparse features, 0 for none
    dense: Tensor | None = None  # (B, N, F)
    tags: Tensor | None = None  # (B, N) numbers of parts of speech
    text: Kept | None = None  # the words themselves, a list of strings a sentence


def padded_square(charts: Sequence[Tensor], value: float) -> Tensor:
    """Charts (N_i, N_i) as one tensor (B, N, N)."""
    n = max((len(chart) for chart in charts), default=0)
    found = torch.full((len(charts), n, n), value, dtype=charts[0].dtype if charts else torch.int64)
    for row, chart in zip(found, charts, strict=True):
        row[: len(chart), : len(chart)] = chart
    return found


def padded(rows: Sequence[Tensor], value: float = 0) -> Tensor:
    """Tensors of unequal first size as one, (B, N, ...)."""
    return pad_sequence(list(rows), batch_first=True, padding_value=value)


def one() -> Tensor:
    return torch.ones(())
