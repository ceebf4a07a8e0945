"""A chunker with sparse features: corpora as tensors, and the scores of chunks as embedding bags.

    segments[n, w, c] = begin[n, c] + sum_{i=n..n+w} inside[i, c] + end[n+w, c] + span[n, w, c]
    edges[n, p, c]    = edge[n, p, c]

with begin, inside and end linear in the features of a word, span in those of a chunk, edge in those of a joint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from structlearn.data.chunk_features import ChunkFeatures, Tokens, chunk_features
from structlearn.data.conll import Sentence
from structlearn.data.sparse import FeatureIndex, SparseBag
from structlearn.search.spaces.chunking import ChunkingSpace
from structlearn.structures.segmentation import INSIDE, PAD
from structlearn.tags import parse_tags


class ChunkBatch(NamedTuple):
    """Feature numbers of B sentences, N the longest, 0 at padding."""

    words: Tensor  # (B, N, J)
    spans: Tensor  # (B, N, W, J')
    edges: Tensor  # (B, N, J'')
    lengths: Tensor  # (B,)
    gold: Tensor  # (B, N), as ChunkingSpace takes it


class ChunkCorpus:
    """Sentences as feature numbers, by the features and labels of a training corpus.

    Args:
        sentences: with chunk tags in the BIO scheme.
        width: W, the longest chunk.
        like: the training corpus; this one itself if not given.
        min_count: a word feature must occur so often to count. Features of chunks count if a gold chunk has them.
    """

    def __init__(
        self, sentences: Sequence[Sentence], width: int = 10, *, like: ChunkCorpus | None = None, min_count: int = 1
    ) -> None:
        self.sentences = list(sentences)
        self.width: int = like.width if like else width
        tokens = Tokens(sentences)
        found = chunk_features(tokens, self.width)
        if like is None:
            kinds = {tag[2:] for s in sentences for tag in s.chunks if tag != "O"}
            self.labels: tuple[str, ...] = ("O", *sorted(kinds))
        else:
            self.labels = like.labels
        self.lengths = tokens.lengths
        self._first = self.lengths.cumsum(0) - self.lengths
        self.gold = self._encode()
        self.index: ChunkIndex = like.index if like else _index(found, self.gold, len(self.labels), min_count)
        none = torch.zeros(1, dtype=torch.int32)
        self._ids = [
            torch.cat([index(part), none.expand(1, *part.shape[1:])])
            for index, part in zip(self.index, found, strict=True)
        ]
        self._ids[1][:-1][found.spans == 0] = 0
        # A sentence with a chunk beyond W, or of a type not known, has no gold in the space.
        bad = torch.zeros(len(self.lengths), dtype=torch.int64)
        rows = torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)
        self.learnable = bad.index_add(0, rows, (self.gold == PAD).long()) == 0

    def _encode(self) -> Tensor:
        """(sum of lengths,) gold as ChunkingSpace takes it; PAD where the space has no such segment."""
        names = sorted({tag for s in self.sentences for tag in s.chunks} | {"O"})
        tags, number = parse_tags(names), {name: i for i, name in enumerate(names)}
        label = {name: i for i, name in enumerate(self.labels)}
        values: list[int] = []
        for s in self.sentences:
            row = [0] * len(s.chunks)
            for first, last, kind in tags.segments([number[tag] for tag in s.chunks]):
                known = kind in label and last - first < self.width
                row[first : last + 1] = [INSIDE if known else PAD] * (last + 1 - first)
                if known:
                    row[first] = (last - first) * len(label) + label[kind]
            values += row
        return torch.tensor(values)

    def batch(self, rows: Tensor) -> ChunkBatch:
        """The sentences at ``rows`` (B,)."""
        lengths = self.lengths[rows]
        steps = torch.arange(int(lengths.max()))
        at = torch.where(steps < lengths[:, None], self._first[rows][:, None] + steps, len(self.gold))
        words, spans, edges = (ids[at] for ids in self._ids)
        gold = torch.cat([self.gold, torch.tensor([PAD])])[at]
        return ChunkBatch(words, spans, edges, lengths, gold)

    def batches(self, size: int, *, generator: torch.Generator | None = None) -> Iterator[Tensor]:
        """Row numbers of sentences of similar length; with a generator in random order, those of ``learnable``."""
        if generator is None:
            yield from self.lengths.argsort(stable=True).split(size)
            return
        order = torch.randperm(len(self.lengths), generator=generator)
        order = order[self.learnable[order]]
        if len(order) == 0:
            return
        # Lengths are mixed a little, so that a sentence meets others in every pass.
        noise = torch.rand(len(order), generator=generator) * 3
        chunks = order[(self.lengths[order] + noise).argsort(stable=True)].split(size)
        for i in torch.randperm(len(chunks), generator=generator).tolist():
            yield chunks[i]

    def tags(self, rows: Tensor, output: Tensor) -> list[list[str]]:
        """Outputs (B, N) of the sentences at ``rows`` as BIO tags."""
        tagged = []
        for y, n in zip(output.tolist(), self.lengths[rows].tolist(), strict=True):
            row: list[str] = []
            while len(row) < n:
                w, c = divmod(y[len(row)], len(self.labels))
                name = self.labels[c]
                row += ["O"] * (w + 1) if name == "O" else [f"B-{name}", *[f"I-{name}"] * w]
            tagged.append(row)
        return tagged


class ChunkIndex(NamedTuple):
    """The numbering of each kind of features."""

    words: FeatureIndex
    spans: FeatureIndex
    edges: FeatureIndex


def _index(found: ChunkFeatures, gold: Tensor, labels: int, min_count: int) -> ChunkIndex:
    starts = (gold >= 0).nonzero()[:, 0]
    chunks = found.spans[starts, gold[starts] // labels]
    return ChunkIndex(FeatureIndex(found.words, min_count=min_count), FeatureIndex(chunks), FeatureIndex(found.edges))


class ChunkScorer(nn.Module):
    """Batches of feature numbers to search spaces: the equation above, all weights 0 at first.

    Args:
        corpus: the training corpus, whose features and labels it scores.
        value: what a feature that is on counts; see :class:`SparseBag`.
    """

    def __init__(self, corpus: ChunkCorpus, *, value: float = 1.0) -> None:
        super().__init__()
        c = self.labels = len(corpus.labels)
        self.words = SparseBag(corpus.index.words.size, 3 * c, value=value)
        self.spans = SparseBag(corpus.index.spans.size, c, value=value)
        self.edges = SparseBag(corpus.index.edges.size, (c + 1) * c, value=value)
        self.transition = nn.Parameter(torch.zeros(c + 1, c))

    def forward(self, batch: ChunkBatch) -> ChunkingSpace:
        b, n, w, _ = batch.spans.shape
        begin, inside, end = self.words(batch.words).view(b, n, 3, -1).unbind(2)
        total = torch.cat([inside.new_zeros(b, 1, self.labels), inside.cumsum(1)], 1)
        last = (torch.arange(n)[:, None] + torch.arange(w)).clamp(max=n - 1).to(inside.device)
        segments = begin[:, :, None] + end[:, last] + total[:, last + 1] - total[:, :-1, None] + self.spans(batch.spans)
        edges = self.edges(batch.edges).view(b, n, self.labels + 1, self.labels)
        return ChunkingSpace(segments, self.transition, edges=edges, lengths=batch.lengths)
