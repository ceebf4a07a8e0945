"""N-best lists of trees as hashed features."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from structlearn.data.batch import Batch, one, padded
from structlearn.data.codecs.base import Codec
from structlearn.features.candidates import ListInputs
from structlearn.reranking.features import FAMILIES, CandidateFeatures
from structlearn.reranking.lists import NBest, parse_jsonl, row_of
from structlearn.structures.base import PAD

BRACKETS_IN_TENS = 10  # the number of brackets is divided by this, to be of the size of the other values


class EncodedList(NamedTuple):
    """Features (M, J), values (M, 2), brackets matched, predicted and gold (M, 3), and the best candidate."""

    features: Tensor
    values: Tensor
    counts: Tensor
    best: int


class RerankingCodec(Codec):
    """N-best lists to features of their candidates, hashed, with log-probability and number of brackets as values.

    Args:
        size: how many numbers features are hashed to.
        families: of :class:`CandidateFeatures`.
    """

    formats = ("jsonl", "brackets")

    def __init__(self, size: int = 1 << 18, families: Sequence[str] = FAMILIES) -> None:
        self.size, self.families = size, tuple(families)
        self._features = CandidateFeatures(families=self.families)
        self.num_features, self.num_values = size, 2

    def encode(self, examples: Sequence[NBest]) -> list[EncodedList]:
        return [self._encode(item) for item in examples]

    def _encode(self, item: NBest) -> EncodedList:
        features = padded([torch.from_numpy(row) for row in self._features.hashed(item, self.size)])
        top = max(item.log_probs)
        values = torch.tensor(
            [[p - top, size / BRACKETS_IN_TENS] for p, size in zip(item.log_probs, item.brackets, strict=True)]
        )
        if item.gold is None:
            return EncodedList(features, values, torch.zeros((len(item), 3), dtype=torch.int64), PAD)
        counts = torch.tensor([[c.matched, c.predicted, c.gold] for c in item.counts])
        return EncodedList(features, values, counts, item.best)

    def collate(self, encoded: Sequence[EncodedList]) -> Batch:
        m, j = (max(e.features.shape[axis] for e in encoded) for axis in (0, 1))
        features = torch.zeros((len(encoded), m, max(j, 1)), dtype=torch.int64)
        for row, e in zip(features, encoded, strict=True):
            row[: e.features.shape[0], : e.features.shape[1]] = e.features
        sizes = torch.tensor([len(e.values) for e in encoded])
        mask = torch.arange(m) < sizes[:, None]
        x = ListInputs(features, padded([e.values for e in encoded]), mask)
        gold = torch.tensor([e.best for e in encoded])
        # Brackets of all candidates travel in the place of lengths, which lists have none of.
        return Batch(x, gold, padded([e.counts for e in encoded]), torch.arange(len(encoded)), one())

    def length(self, encoded: EncodedList) -> int:
        return len(encoded.values)

    def parse(self, text: str, form: str, source: str = "text") -> list[NBest]:
        self.check_format("jsonl" if form == "brackets" else form)
        return list(parse_jsonl(text, source))

    def render(self, example: NBest, output: int, form: str) -> str:
        if form == "brackets":
            return example.candidates[output].bracket()
        return json.dumps({**row_of(example), "chosen": output}, ensure_ascii=False)
