"""Letters of handwritten words: one line a letter, its word, its fold and its 128 pixels.

Tab-separated fields: number, letter, number of the next letter (-1 at the end of a word), word, position, fold, then
pixels, 0 or 1, row by row.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from structlearn.data.ocr import ALPHABET, HEIGHT, WIDTH
from structlearn.errors import FormatError
from structlearn.storage.text import finite_number, numbered_lines, read_text, whole_number

_HEAD = 6


class Word(NamedTuple):
    """Images (N, 128) of letters and the letters (N,), -100 where they are not known."""

    images: Tensor
    labels: Tensor


def read_letters(path: str | Path) -> list[tuple[Word, int]]:
    """The words of a file, gzipped or not, each with its fold."""
    words: list[tuple[Word, int]] = []
    pixels: list[list[float]] = []
    labels: list[int] = []
    for number, line in numbered_lines(read_text(path), str(path)):
        place = f"{path}:{number}"
        fields = line.split("\t")
        while fields and not fields[-1].strip():
            fields.pop()
        if not fields:
            continue
        if len(fields) != _HEAD + HEIGHT * WIDTH:
            expected = f"{_HEAD} fields and {HEIGHT * WIDTH} pixels between tabs"
            raise FormatError(place, expected, f"{len(fields)} fields", "is this a file of letters?")
        if len(fields[1]) != 1 or fields[1] not in ALPHABET:
            raise FormatError(place, "a letter a to z in field 2", repr(fields[1]), "lower-case it")
        fold = whole_number(fields[5], place, "the number of a fold in field 6")
        labels.append(ALPHABET.index(fields[1]))
        pixels.append([finite_number(pixel, place, "numbers as pixels") for pixel in fields[_HEAD:]])
        if fields[2] == "-1":
            words.append((Word(torch.tensor(pixels), torch.tensor(labels)), fold))
            pixels, labels = [], []
    if labels:
        remedy = "fetch the file again"
        raise FormatError(str(path), "-1 in field 3 of the last letter", "the end inside a word", remedy)
    return words
