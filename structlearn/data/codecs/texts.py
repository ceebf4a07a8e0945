"""Texts as numbers of words, and classes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from structlearn.data.batch import Batch, TokenInputs, one, padded
from structlearn.data.codecs.base import Codec
from structlearn.data.taxonomies import Text, parse_texts
from structlearn.data.vocabulary import Vocabulary, normal_form
from structlearn.structures.base import PAD
from structlearn.taxonomy import Taxonomy


class ClassificationCodec(Codec):
    """Texts to words and a class.

    Args:
        classes: K names, in the order of the labels.
        words, chars: vocabularies.
        taxonomy: over the classes; None where they are flat.
    """

    formats = ("jsonl", "text")

    def __init__(
        self, classes: Sequence[str], words: Vocabulary, chars: Vocabulary, taxonomy: Taxonomy | None = None
    ) -> None:
        self.classes, self.words, self.chars, self.taxonomy = tuple(classes), words, chars, taxonomy
        self._label = {name: i for i, name in enumerate(self.classes)}

    def encode(self, examples: Sequence[Text]) -> list[tuple[Tensor, int]]:
        rows = []
        for text in examples:
            words = self.words(map(normal_form, text.words)) or [1]
            rows.append((torch.tensor(words), self._label.get(text.label, PAD)))
        return rows

    def collate(self, encoded: Sequence[tuple[Tensor, int]]) -> Batch:
        lengths = torch.tensor([len(words) for words, _ in encoded])
        gold = torch.tensor([label for _, label in encoded])
        x = TokenInputs(lengths, padded([words for words, _ in encoded]))
        return Batch(x, gold, None, torch.arange(len(encoded)), one())

    def length(self, encoded: tuple[Tensor, int]) -> int:
        return len(encoded[0])

    def parse(self, text: str, form: str, source: str = "text") -> list[Text]:
        self.check_format(form)
        if form == "jsonl":
            return [t._replace(label="") for t in parse_texts(text, source=source)]
        return [Text(line.split(), "") for line in text.splitlines() if line.strip()]

    def render(self, example: Text, output: str, form: str) -> str:
        if form == "text":
            return f"{output}\t{' '.join(example.words)}"
        return json.dumps({"text": " ".join(example.words), "label": output}, ensure_ascii=False)
