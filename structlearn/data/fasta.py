"""Sequences and pairwise alignments from FASTA and A3M files, plain or gzipped.

A FASTA record is a line ">name" and the lines of its sequence. In an aligned pair both rows have one length and '-'
(or '.') marks a gap. In A3M every row is aligned with the first: upper case letters and '-' stand in the columns of
the first row, lower case letters are insertions between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from structlearn.data.substitution import AMINO_ACIDS
from structlearn.errors import FormatError, LabelError
from structlearn.storage.text import numbered_lines, read_text
from structlearn.structures.base import PAD

GAPS = "-."


class Record(NamedTuple):
    """One sequence, its name, and the line of the file where it begins."""

    name: str
    sequence: str
    line: int


class AlignedPair(NamedTuple):
    """Two sequences without gaps and the operations that align them (0 match, 1 consume x, 2 consume y).

    ``core`` says of every operation whether both its letters are upper case, as some collections mark the columns
    that they are sure of.
    """

    x_name: str
    y_name: str
    x: str
    y: str
    path: tuple[int, ...]
    core: tuple[bool, ...]


def parse_fasta(text: str, *, source: str = "text") -> Iterator[Record]:
    """The records of ``text``; ``source`` names it in errors.

    >>> [r.sequence for r in parse_fasta(">a\\nACD\\nEF\\n>b\\nGH\\n")]
    ['ACDEF', 'GH']
    """
    name: str | None = None
    start, parts = 0, list[str]()
    for number, raw in numbered_lines(text, source):
        line = raw.strip()
        if line.startswith(">"):
            if name is not None:
                yield _record(name, parts, start, source)
            name, start, parts = line[1:].strip(), number, []
            if not name:
                raise FormatError(f"{source}:{number}", "a name after '>'", "none", "name every sequence")
        elif line and not line.startswith(";"):
            if name is None:
                raise FormatError(
                    f"{source}:{number}", "a line that begins with '>'", repr(line[:20]), "is this a FASTA file?"
                )
            if bad := next((c for c in line if not (c.isascii() and (c.isalpha() or c in "-.*"))), None):
                raise FormatError(
                    f"{source}:{number}", "letters, '-', '.' or '*'", f"{bad!r}", f"mend the sequence of {name}"
                )
            parts.append(line)
    if name is not None:
        yield _record(name, parts, start, source)


def _record(name: str, parts: list[str], line: int, source: str) -> Record:
    if not parts:
        raise FormatError(f"{source}:{line}", f"a sequence for {name}", "none", "give it, or remove the name")
    return Record(name, "".join(parts), line)


def aligned_pair(first: Record, second: Record, *, source: str = "text") -> AlignedPair:
    """The alignment that two rows of one length show; columns gapped in both are left out."""
    if len(first.sequence) != len(second.sequence):
        raise FormatError(
            f"{source}:{second.line}",
            f"{len(first.sequence)} columns in {second.name}, as {first.name} (line {first.line})",
            len(second.sequence),
            "aligned rows have one length; read sequences that are not aligned with parse_fasta",
        )
    path, core = [], []
    for a, b in zip(first.sequence, second.sequence, strict=True):
        if a in GAPS and b in GAPS:
            continue
        path.append(1 if b in GAPS else 2 if a in GAPS else 0)
        core.append(a.isupper() and b.isupper())
    x, y = (without_gaps(r.sequence).upper() for r in (first, second))
    return AlignedPair(first.name, second.name, x, y, tuple(path), tuple(core))


def without_gaps(sequence: str) -> str:
    return "".join(c for c in sequence if c not in GAPS)


def parse_pairs(text: str, *, source: str = "text") -> Iterator[AlignedPair]:
    """Aligned pairs: records 1 and 2, 3 and 4, and so on."""
    waiting: Record | None = None
    for record in parse_fasta(text, source=source):
        if waiting is None:
            waiting = record
        else:
            yield aligned_pair(waiting, record, source=source)
            waiting = None
    if waiting is not None:
        raise FormatError(f"{source}:{waiting.line}", "a second row for the pair", "the end", "rows come two by two")


def parse_a3m(text: str, *, source: str = "text") -> Iterator[AlignedPair]:
    """The first row of an A3M alignment with each of the others."""
    query: Record | None = None
    for record in parse_fasta(text, source=source):
        if query is None:
            if bad := next((c for c in record.sequence if not c.isupper()), None):
                raise FormatError(
                    f"{source}:{record.line}", "upper case letters in the first row", repr(bad), "it has no gaps"
                )
            query = record
            continue
        rows: tuple[list[str], list[str]] = ([], [])
        letters = iter(query.sequence)
        columns = 0
        for c in record.sequence:
            inserted = c.islower()
            columns += not inserted
            rows[0].append("-" if inserted else next(letters, "-"))
            rows[1].append(c.upper())
        if columns != len(query.sequence):
            raise FormatError(
                f"{source}:{record.line}",
                f"{len(query.sequence)} columns (upper case letters and '-') in {record.name}, as {query.name}",
                columns,
                "insertions are lower case",
            )
        aligned = (Record(r.name, "".join(row), r.line) for r, row in zip((query, record), rows, strict=True))
        yield aligned_pair(*aligned, source=source)


def read_pairs(path: str | Path) -> list[AlignedPair]:
    """All aligned pairs of a file: A3M where the name says so (.a3m, .a3m.gz), else rows two by two."""
    path = Path(path)
    parse = parse_a3m if path.name.removesuffix(".gz").endswith(".a3m") else parse_pairs
    return list(parse(read_text(path), source=str(path)))


def encode(sequences: Sequence[str], alphabet: str = AMINO_ACIDS) -> tuple[Tensor, Tensor]:
    """Letters (B, N) int64 as numbers of ``alphabet``, padded with -100, and lengths (B,)."""
    number = {letter: i for i, letter in enumerate(alphabet)}
    lengths = torch.tensor([len(s) for s in sequences], dtype=torch.int64)
    tokens = torch.full((len(sequences), max(map(len, sequences), default=0)), PAD, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        if unknown := set(sequence) - number.keys():
            letter = min(unknown)
            got = f"{letter!r} at position {sequence.index(letter)} of sequence {row}"
            raise LabelError("sequences", f"letters of {alphabet}", got, "extend the alphabet, or replace the letter")
        tokens[row, : len(sequence)] = torch.tensor([number[c] for c in sequence], dtype=torch.int64)
    return tokens, lengths


def paths(pairs: Sequence[AlignedPair]) -> Tensor:
    """The operations of a batch of pairs, (B, N+M) with N and M the longest x and y, padded with -100."""
    width = max((len(p.x) for p in pairs), default=0) + max((len(p.y) for p in pairs), default=0)
    found = torch.full((len(pairs), width), PAD, dtype=torch.int64)
    for row, pair in enumerate(pairs):
        found[row, : len(pair.path)] = torch.tensor(pair.path, dtype=torch.int64)
    return found
