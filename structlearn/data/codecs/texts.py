"""Texts as numbers of words, and classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from structlearn.data.batch import Batch, Kept, TokenInputs, one, padded
from structlearn.data.codecs.base import Codec
from structlearn.data.taxonomies import Text, parse_texts
from structlearn.data.vocabulary import Vocabulary, normal_form
from structlearn.storage.text import numbered_lines
from structlearn.structures.base import PAD
from structlearn.taxonomy import Taxonomy


class EncodedText(NamedTuple):
    """Numbers of words (N,), the class, and the N words."""

    words: Tensor
    label: int
    text: Sequence[str]


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

    def encode(self, examples: Sequence[Text]) -> list[EncodedText]:
        rows = []
        for example in examples:
            text = example.words or [""]  # one unknown word, so that there is something to pool
            numbers = torch.tensor(self.words(map(normal_form, text)))
            rows.append(EncodedText(numbers, self._label.get(example.label, PAD), text))
        return rows

    def collate(self, encoded: Sequence[EncodedText]) -> Batch:
        lengths = torch.tensor([len(e.words) for e in encoded])
        gold = torch.tensor([e.label for e in encoded])
        x = TokenInputs(lengths, padded([e.words for e in encoded]), text=Kept([e.text for e in encoded]))
        return Batch(x, gold, None, torch.arange(len(encoded)), one())

    def length(self, encoded: EncodedText) -> int:
        return len(encoded.words)

    def parse(self, text: str, form: str, source: str = "text") -> list[Text]:
        self.check_format(form)
        if form == "jsonl":
            return [t._replace(label="") for t in parse_texts(text, source=source)]
        return [Text(line.split(), "") for _, line in numbered_lines(text, source) if line.strip()]

    def render(self, example: Text, output: str, form: str) -> str:
        if form == "text":
            return f"{output}\t{' '.join(example.words)}"
        return json.dumps({"text": " ".join(example.words), "label": output}, ensure_ascii=False)
