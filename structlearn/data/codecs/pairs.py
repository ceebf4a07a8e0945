"""Pairs of sequences as letters, and alignments as operations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structlearn.data.batch import Batch, TokenInputs, one, padded
from structlearn.data.codecs.base import Codec
from structlearn.data.fasta import AlignedPair, parse_fasta, without_gaps
from structlearn.data.substitution import AMINO_ACIDS
from structlearn.data.vocabulary import Vocabulary
from structlearn.errors import FormatError
from structlearn.storage.text import json_lines, text_field
from structlearn.structures.base import PAD


class EncodedPair(NamedTuple):
    """Letters (N,) and (M,) as numbers of a vocabulary, and operations."""

    x: Tensor
    y: Tensor
    path: Tensor


class AligningCodec(Codec):
    """Pairs of sequences to letters and operations (0 match, 1 consume x, 2 consume y).

    Args:
        alphabet: the letters; others count as unknown, which is the last letter.
    """

    formats = ("fasta", "jsonl")

    def __init__(self, alphabet: str = AMINO_ACIDS + "X") -> None:
        self.alphabet = alphabet
        self.words = Vocabulary(list(alphabet))
        self.chars = Vocabulary([])

    def encode(self, examples: Sequence[AlignedPair]) -> list[EncodedPair]:
        return [
            EncodedPair(self._letters(p.x), self._letters(p.y), torch.tensor(p.path, dtype=torch.int64))
            for p in examples
        ]

    def _letters(self, sequence: str) -> Tensor:
        numbers = torch.tensor(self.words(sequence.upper()), dtype=torch.int64)
        return numbers.masked_fill(numbers == 1, len(self.alphabet) + 1)

    def collate(self, encoded: Sequence[EncodedPair]) -> Batch:
        sides = []
        for side in ([e.x for e in encoded], [e.y for e in encoded]):
            lengths = torch.tensor([len(s) for s in side])
            sides.append(TokenInputs(lengths, padded(side)))
        size = sum(int(side.lengths.max()) for side in sides)
        gold = torch.full((len(encoded), size), PAD)
        for row, e in zip(gold, encoded, strict=True):
            row[: len(e.path)] = e.path
        both = (sides[0].lengths, sides[1].lengths)
        return Batch(tuple(sides), gold, both, torch.arange(len(encoded)), one())

    def length(self, encoded: EncodedPair) -> int:
        return max(len(encoded.x), len(encoded.y))

    def parse(self, text: str, form: str, source: str = "text") -> list[AlignedPair]:
        """FASTA: records two by two, gaps removed; JSON lines {"x": ..., "y": ...}."""
        self.check_format(form)
        if form == "jsonl":
            rows = json_lines(text, source, '{"x": "ACD", "y": "AD"}')
            return [
                AlignedPair("x", "y", _letters(row, "x", place), _letters(row, "y", place), (), ())
                for place, row in rows
            ]
        records = list(parse_fasta(text, source=source))
        if len(records) % 2:
            last = records[-1]
            raise FormatError(f"{source}:{last.line}", "records two by two", f"{last.name} alone", "add its partner")
        bare = [(r.name, without_gaps(r.sequence)) for r in records]
        return [AlignedPair(a, b, x, y, (), ()) for (a, x), (b, y) in zip(bare[::2], bare[1::2], strict=True)]

    def render(self, example: AlignedPair, output: list[int], form: str) -> str:
        first, second, i, j = "", "", 0, 0
        for operation in output:
            first += "-" if operation == 2 else example.x[i]
            second += "-" if operation == 1 else example.y[j]
            i += operation != 2
            j += operation != 1
        if form == "jsonl":
            return json.dumps({"x": first, "y": second})
        return f">{example.x_name}\n{first}\n>{example.y_name}\n{second}"


def _letters(row: Mapping[str, Any], name: str, place: str) -> str:
    """A sequence of a JSON object, its gaps removed as in FASTA."""
    letters = text_field(row, name, place)
    if not re.fullmatch(r"[A-Za-z*.-]*", letters):
        remedy = "write a sequence without blanks, digits and other signs"
        raise FormatError(place, f"{name!r}, letters A to Z", repr(letters[:60]), remedy)
    return without_gaps(letters)
