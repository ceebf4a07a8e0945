"""Words as vectors: a table of known words beside what their letters say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from structlearn.data.batch import TokenInputs
from structlearn.data.vocabulary import UNKNOWN
from structlearn.encoders.base import Encoder
from structlearn.errors import ArgumentError


class WordsAndLetters(Encoder):
    """Phi(x^t) = [table[word_t]; max_k conv(letters_t)_k].

    Args:
        words: size of a word's vector, 0 for none.
        letters: size of a letter's vector, 0 to leave letters out.
        filters: of the convolution over letters.
        width: letters that a filter sees.
        dropout: of the result, in training.
        unknown: share of known words that training treats as unknown, so that the vector of those is learned.
    """

    table: nn.Embedding
    letter: nn.Embedding

    def __init__(
        self,
        words: int = 100,
        letters: int = 30,
        filters: int = 50,
        width: int = 3,
        dropout: float = 0.3,
        unknown: float = 0.0,
    ) -> None:
        super().__init__()
        if not words and not letters:
            raise ArgumentError("words", "a size > 0 of words or letters", 0, "an encoder has to read something")
        self.words, self.letters, self.unknown = words, letters, unknown
        self.dropout = nn.Dropout(dropout)
        self.convolution = nn.Conv1d(letters, filters, width, padding=width // 2) if letters else None
        self.out_features = words + (filters if letters else 0)

    def build(self, codec: Any) -> None:
        if self.words:
            self.table = nn.Embedding(len(codec.words), self.words, padding_idx=0)
            nn.init.uniform_(self.table.weight, -((3 / self.words) ** 0.5), (3 / self.words) ** 0.5)
        if self.letters:
            self.letter = nn.Embedding(len(codec.chars), self.letters, padding_idx=0)

    def forward(self, x: TokenInputs) -> Tensor:
        assert x.words is not None
        parts = []
        if self.words:
            words = x.words
            if self.training and self.unknown:
                words = words.masked_fill((torch.rand(words.shape, device=words.device) < self.unknown), UNKNOWN)
            parts.append(self.table(words))
        if self.convolution is not None:
            assert x.chars is not None
            b, n, k = x.chars.shape
            # Common words are met many times in a batch: letters are read once for each kind of word.
            kinds, at = x.chars.reshape(b * n, k).unique(dim=0, return_inverse=True)
            seen = self.convolution(self.letter(kinds).mT)
            seen = seen[..., :k].masked_fill((kinds == 0)[:, None], float("-inf")).amax(-1)
            parts.append(seen.masked_fill(seen == float("-inf"), 0.0)[at].view(b, n, -1))
        return self.dropout(torch.cat(parts, -1))
