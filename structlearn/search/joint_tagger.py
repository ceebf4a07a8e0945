"""A joint tagger with sparse features of words: corpora as tensors, scores of both tags as one embedding bag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from structlearn.data.chunk_features import Tokens, word_features
from structlearn.data.conll import Sentence
from structlearn.data.sparse import FeatureIndex, SparseBag
from structlearn.search.spaces.joint import JointScores, JointSpace
from structlearn.structures.base import PAD


class JointBatch(NamedTuple):
    """Feature numbers of B sentences, N the longest, 0 at padding."""

    words: Tensor  # (B, N, J)
    lengths: Tensor  # (B,)
    gold: Tensor  # (B, N, 2), as JointSpace takes it


class JointCorpus:
    """Sentences as feature numbers, by the features and tags of a training corpus.

    Args:
        sentences: with parts of speech and chunk tags.
        like: the training corpus; this one itself if not given.
        min_count: a feature must occur so often to count.
    """

    def __init__(self, sentences: Sequence[Sentence], *, like: JointCorpus | None = None, min_count: int = 1) -> None:
        self.sentences = list(sentences)
        tokens = Tokens(sentences)
        found = word_features(tokens)
        self.pos: tuple[str, ...] = like.pos if like else tuple(sorted({p for s in sentences for p in s.pos}))
        self.chunks: tuple[str, ...] = like.chunks if like else tuple(sorted({c for s in sentences for c in s.chunks}))
        self.index: FeatureIndex = like.index if like else FeatureIndex(found, min_count=min_count)
        self.lengths = tokens.lengths
        self._first = self.lengths.cumsum(0) - self.lengths
        self._ids = torch.cat([self.index(found), torch.zeros((1, found.shape[1]), dtype=torch.int32)])
        pos = {name: i for i, name in enumerate(self.pos)}
        chunk = {name: i for i, name in enumerate(self.chunks)}
        pairs = [(pos.get(p, PAD), chunk.get(c, PAD)) for s in sentences for p, c in zip(s.pos, s.chunks, strict=True)]
        self._gold = torch.tensor([*pairs, (PAD, PAD)])

    def batch(self, rows: Tensor) -> JointBatch:
        """The sentences at ``rows`` (B,)."""
        lengths = self.lengths[rows]
        steps = torch.arange(int(lengths.max()))
        at = torch.where(steps < lengths[:, None], self._first[rows][:, None] + steps, len(self._gold) - 1)
        return JointBatch(self._ids[at], lengths, self._gold[at])

    def batches(self, size: int, *, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """Row numbers of sentences of similar length; with a generator in random order."""
        if generator is None:
            yield from self.lengths.argsort(stable=True).split(size)
            return
        noise = torch.rand(len(self.lengths), generator=generator) * 3
        groups = (self.lengths + noise).argsort(stable=True).split(size)
        for i in torch.randperm(len(groups), generator=generator).tolist():
            yield groups[i]

    def tags(self, rows: Tensor, output: Tensor) -> list[list[str]]:
        """Chunk tags of outputs (B, N, 2) of the sentences at ``rows``."""
        lengths = self.lengths[rows].tolist()
        return [[self.chunks[c] for _, c in row[:n]] for row, n in zip(output.tolist(), lengths, strict=True)]


class JointKind(Protocol):
    """What says how many tags of both kinds and features there are."""

    pos: tuple[str, ...]
    chunks: tuple[str, ...]
    index: FeatureIndex


class JointScorer(nn.Module):
    """Batches of feature numbers to joint search spaces; all weights 0 at first.

    Args:
        corpus: the training corpus, or a codec, whose features and tags it scores.
        value: what a word feature that is on counts; see :class:`SparseBag`.
    """

    def __init__(self, corpus: JointKind, *, value: float = 1.0) -> None:
        super().__init__()
        p, c = self.parts, self.tags = len(corpus.pos), len(corpus.chunks)
        self.words = SparseBag(corpus.index.size, p + c, value=value)
        self.pos_pair = nn.Parameter(torch.zeros(p + 1, p))
        self.pos_chunk = nn.Parameter(torch.zeros(c + 1, p))
        self.chunk_pair = nn.Parameter(torch.zeros(c + 1, c))
        self.left = nn.Parameter(torch.zeros(p + 1, p + 1, c))
        self.right = nn.Parameter(torch.zeros(p + 1, p + 1, c))

    def forward(self, batch: JointBatch) -> JointSpace:
        pos, chunk = self.words(batch.words).split([self.parts, self.tags], -1)
        scores = JointScores(pos, chunk, self.pos_pair, self.pos_chunk, self.chunk_pair, self.left, self.right)
        return JointSpace(scores, lengths=batch.lengths)
