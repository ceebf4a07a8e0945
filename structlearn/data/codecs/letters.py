"""Words as rows of letter images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from structlearn.data.batch import Batch, TokenInputs, one, padded
from structlearn.data.codecs.base import Codec
from structlearn.data.letters import Word
from structlearn.data.ocr import ALPHABET, HEIGHT, WIDTH
from structlearn.errors import FormatError
from structlearn.storage.text import finite_number, json_lines
from structlearn.structures.base import PAD


class LetterCodec(Codec):
    """Images of letters to the letters a to z.

    Args:
        tags: the letters, in the order of the labels.
    """

    formats = ("jsonl", "text")
    scheme = None

    def __init__(self, tags: Sequence[str] = tuple(ALPHABET)) -> None:
        self.tags = tuple(tags)

    def encode(self, examples: Sequence[Word]) -> list[Word]:
        return list(examples)

    def collate(self, encoded: Sequence[Word]) -> Batch:
        lengths = torch.tensor([len(word.labels) for word in encoded])
        x = TokenInputs(lengths, dense=padded([word.images for word in encoded]))
        return Batch(x, padded([word.labels for word in encoded], PAD), lengths, torch.arange(len(encoded)), one())

    def length(self, encoded: Word) -> int:
        return len(encoded.labels)

    def decode(self, output: Tensor, length: int) -> str:
        """Labels (N,) as a word."""
        return "".join(self.tags[c] for c in output[:length].tolist())

    def parse(self, text: str, form: str, source: str = "text") -> list[Word]:
        """JSON lines {"images": [[pixels of a letter], ...]}; text is what comes out."""
        self.check_format(form)
        words = []
        for place, row in json_lines(text, source, '{"images": [[0, 0.5, ...], ...]}'):
            images = _images(row.get("images"), place)
            words.append(Word(images, torch.full((len(images),), PAD)))
        return words

    def render(self, example: Word, output: str, form: str) -> str:
        return output if form == "text" else json.dumps({"word": output})


def _images(rows: Any, place: str) -> Tensor:
    """(N, 128) pixels of a word's letters."""
    size = HEIGHT * WIDTH
    expected = f"'images', a list of {size} pixels for each letter"
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) and len(row) == size for row in rows)):
        raise FormatError(place, expected, repr(rows)[:60], f"letters have {HEIGHT} rows of {WIDTH} pixels")
    return torch.tensor([[finite_number(pixel, place, expected) for pixel in row] for row in rows])
