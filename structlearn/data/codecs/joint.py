"""Sentences as features of words alone, with parts of speech and chunk tags as one output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structlearn.data.batch import Batch, TokenInputs, one, padded
from structlearn.data.chunk_features import Tokens, word_features
from structlearn.data.codecs.base import Codec
from structlearn.data.codecs.tokens import parse_sentences
from structlearn.data.conll import Sentence, parse_columns
from structlearn.data.sparse import FeatureIndex
from structlearn.structures.base import PAD


class EncodedJoint(NamedTuple):
    """Features (N, J) and gold (N, 2): part of speech and chunk tag."""

    features: Tensor
    gold: Tensor


class JointCodec(Codec):
    """Sentences to sparse features of words, and pairs of tags.

    Args:
        pos: the P parts of speech.
        chunks: the C chunk tags.
        known: sorted buckets of the sparse features of training data.
    """

    formats = ("conll", "text", "jsonl")

    def __init__(self, pos: Sequence[str], chunks: Sequence[str], known: Tensor) -> None:
        self.pos, self.chunks = tuple(pos), tuple(chunks)
        self.index = FeatureIndex.of_buckets(known)
        self._numbers = [{name: i for i, name in enumerate(names)} for names in (self.pos, self.chunks)]

    @classmethod
    def fit(cls, sentences: Sequence[Sentence]) -> JointCodec:
        """From training sentences with both kinds of tags."""
        pos, chunks = ({tag for s in sentences for tag in tags(s)} for tags in (lambda s: s.pos, lambda s: s.chunks))
        return cls(sorted(pos), sorted(chunks), FeatureIndex(word_features(Tokens(sentences))).buckets())

    def encode(self, examples: Sequence[Sentence]) -> list[EncodedJoint]:
        if not examples:
            return []
        features = self.index(word_features(Tokens(examples))).split([len(s.words) for s in examples])
        return [EncodedJoint(f, self._gold(s)) for f, s in zip(features, examples, strict=True)]

    def _gold(self, sentence: Sentence) -> Tensor:
        """(N, 2); PAD where a tag is missing or unknown."""
        none = [""] * len(sentence.words)
        pairs = zip(sentence.pos or none, sentence.chunks or none, strict=True)
        return torch.tensor([[n.get(tag, PAD) for n, tag in zip(self._numbers, pair, strict=True)] for pair in pairs])

    def collate(self, encoded: Sequence[EncodedJoint]) -> Batch:
        lengths = torch.tensor([len(e.gold) for e in encoded])
        x = TokenInputs(lengths, features=padded([e.features for e in encoded]))
        return Batch(x, padded([e.gold for e in encoded], PAD), lengths, torch.arange(len(encoded)), one())

    def length(self, encoded: EncodedJoint) -> int:
        return len(encoded.gold)

    def decode(self, output: Tensor, length: int) -> dict[str, list[str]]:
        """(N, 2) as both kinds of tags."""
        rows: list[Any] = output[:length].tolist()
        return {"pos": [self.pos[p] for p, _ in rows], "tags": [self.chunks[c] for _, c in rows]}

    def parse(self, text: str, form: str, source: str = "text") -> list[Sentence]:
        self.check_format(form)
        if form == "conll":
            sentences = [columns[0] for columns in parse_columns(text, source=source)]
        else:
            sentences = [sentence.words for sentence in parse_sentences(text, form, source)]
        return [Sentence(words, [""] * len(words), []) for words in sentences]

    def render(self, example: Sentence, output: dict[str, list[str]], form: str) -> str:
        if form == "jsonl":
            return json.dumps({"words": example.words, **output}, ensure_ascii=False)
        rows = zip(example.words, output["pos"], output["tags"], strict=True)
        if form == "text":
            return " ".join("/".join(row) for row in rows)
        return "".join(" ".join(row) + "\n" for row in rows)
