"""Column files of the CoNLL shared tasks: a token a line, columns between blanks, a blank line after a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from structlearn.errors import FormatError
from structlearn.storage.text import numbered_lines, read_text


class Sentence(NamedTuple):
    """Words, part-of-speech tags and chunk tags of one sentence, equally many."""

    words: list[str]
    pos: list[str]
    chunks: list[str]


def read_columns(path: str | Path, columns: int, *, encoding: str = "utf-8") -> Iterator[list[list[str]]]:
    """The sentences of a file, gzipped or not, each as ``columns`` lists of equal length.

    A line with another number of columns raises :class:`FormatError` with its number.
    """
    return parse_columns(read_text(path, encoding), source=str(path), columns=columns)


def parse_columns(text: str, *, source: str = "text", columns: int | None = None) -> Iterator[list[list[str]]]:
    """The sentences of ``text``, each as ``columns`` lists of equal length, or as many as its first line has."""
    rows: list[list[str]] = []
    for number, line in numbered_lines(text, source):
        fields = line.split()
        size = columns or (len(rows[0]) if rows else len(fields))
        if fields and len(fields) != size:
            expected = f"{size} columns{'' if columns else ', as in the line above,'} or a blank line"
            got = f"{len(fields)}: {line.strip()[:60]!r}"
            raise FormatError(f"{source}:{number}", expected, got, "columns are separated by blanks")
        if fields:
            rows.append(fields)
        elif rows:
            yield [list(column) for column in zip(*rows, strict=True)]
            rows = []
    if rows:
        yield [list(column) for column in zip(*rows, strict=True)]


def read_conll2000(path: str | Path) -> list[Sentence]:
    """Sentences of a file with the columns word, part of speech, chunk tag."""
    return [Sentence(*columns) for columns in read_columns(path, 3)]
