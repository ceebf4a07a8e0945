"""Column files of the CoNLL shared tasks: a token a line, columns between blanks, a blank line after a sentence."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from structlearn.errors import FormatError


class Sentence(NamedTuple):
    """Words, part-of-speech tags and chunk tags of one sentence, equally many."""

    words: list[str]
    pos: list[str]
    chunks: list[str]


def read_columns(path: str | Path, columns: int, *, encoding: str = "utf-8") -> Iterator[list[list[str]]]:
    """The sentences of a file, gzipped or not, each as ``columns`` lists of equal length.

    A line with another number of columns raises :class:`FormatError` with its number.
    """
    path = Path(path)
    rows: list[list[str]] = []
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    fields = line.decode(encoding).split()
                except UnicodeDecodeError as error:
                    raise FormatError(f"{path}:{number}", f"text in {encoding}", str(error), "pass encoding=") from None
                if fields and len(fields) != columns:
                    raise FormatError(
                        f"{path}:{number}",
                        f"{columns} columns or a blank line",
                        f"{len(fields)}: {' '.join(fields)!r}",
                        "columns are separated by blanks",
                    )
                if fields:
                    rows.append(fields)
                elif rows:
                    yield [list(column) for column in zip(*rows, strict=True)]
                    rows = []
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FormatError(str(path), "a whole gzip file", str(error), "fetch the file again") from None
    if rows:
        yield [list(column) for column in zip(*rows, strict=True)]


def parse_columns(text: str, *, source: str = "text") -> Iterator[list[list[str]]]:
    """The sentences of ``text``, each as lists of equal length, as many as its first line has columns."""
    rows: list[list[str]] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fields = line.split()
        if rows and fields and len(fields) != len(rows[0]):
            expected = f"{len(rows[0])} columns, as in the line above, or a blank line"
            got = f"{len(fields)}: {line.strip()[:60]!r}"
            raise FormatError(f"{source}:{number}", expected, got, "columns are separated by blanks")
        if fields:
            rows.append(fields)
        elif rows:
            yield [list(column) for column in zip(*rows, strict=True)]
            rows = []


def read_conll2000(path: str | Path) -> list[Sentence]:
    """Sentences of a file with the columns word, part of speech, chunk tag."""
    return [Sentence(*columns) for columns in read_columns(path, 3)]
