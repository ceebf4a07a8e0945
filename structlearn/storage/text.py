"""Text of files that come from elsewhere: unpacked and decoded within limits, line by line, with the place of mistakes.

All readers of data take their text from here, so damaged gzip, wrong encodings, bad JSON and files that are too large
end in one FormatError that names file, line and remedy.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from structlearn.errors import FormatError
from structlearn.storage.reading import check_size, decoded, parse_json, regular_file

# Objects made from text take some ten times its size.
MAX_BYTES = 256 << 20
# A gzipped file may always unpack to MIN_UNPACKED, and beyond it to MAX_RATIO times its own size: corpora in columns
# and in brackets unpack to 3 to 30 times their size, a file of zeros to 1,000 times.
MIN_UNPACKED = 4 << 20
MAX_RATIO = 100
MAX_LINE = 16 << 20
MAX_FLOAT = 1e38
LIMIT = "STRUCTLEARN_MAX_TEXT_BYTES"


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """The text of a regular file, or of what a link leads to; ``.gz`` is unpacked.

    The environment variable STRUCTLEARN_MAX_TEXT_BYTES sets the limit on its size in bytes, after unpacking.
    """
    path = Path(path)
    limit = _limit()
    with regular_file(path, limit or MAX_BYTES, follow=True, remedy="check the path", raise_limit=_raise()) as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix == ".gz":
            data = _unpacked(file, str(path), limit or min(MAX_BYTES, max(MIN_UNPACKED, MAX_RATIO * size)))
        else:
            data = _all_bytes(file, str(path))
    return _text(data, str(path), encoding)


def read_stream(file: IO[bytes], source: str, encoding: str = "utf-8") -> str:
    """The text of a stream, such as standard input."""
    return _text(_all_bytes(file, source), source, encoding)


def numbered_lines(text: str, source: str) -> Iterator[tuple[int, str]]:
    """The lines of ``text`` with their numbers, without line ends; only line feeds end lines, as JSON lines want it."""
    start, number = 0, 1
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        if end - start > MAX_LINE and not _limit():
            place = f"{source}:{number}"
            raise FormatError(place, f"lines of at most {MAX_LINE:,} characters", f"{end - start:,}", _raise())
        yield number, text[start:end].removesuffix("\r")
        start, number = end + 1, number + 1


def json_lines(text: str, source: str, example: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of ``text``, one per line, with their places; blank lines are left out.

    Args:
        example: of a line, for the errors.
    """
    for number, line in numbered_lines(text, source):
        if not line.strip():
            continue
        place, remedy = f"{source}:{number}", f"write lines like {example}"
        row = parse_json(line, place, remedy=remedy)
        if not isinstance(row, dict):
            raise FormatError(place, "one JSON object per line", type(row).__name__, remedy)
        yield place, row


def text_field(row: Mapping[str, Any], name: str, place: str, default: str | None = None) -> str:
    """A member of a JSON object that is text, or a whole number; ``default`` where it is missing or null."""
    value = row.get(name)
    if value is None and default is not None:
        return default
    if not _is_text(value):
        raise FormatError(place, f"{name!r}, a text", _said(value), f'write {{"{name}": "..."}}')
    return str(value)


def texts_field(row: Mapping[str, Any], name: str, place: str) -> list[str]:
    """A member of a JSON object that is a list of texts, or of whole numbers; [] where it is missing or null."""
    value = [] if row.get(name) is None else row[name]
    if not isinstance(value, list) or not all(map(_is_text, value)):
        raise FormatError(place, f"{name!r}, a list of texts", _said(value), f'write {{"{name}": ["a", "b"]}}')
    return list(map(str, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) or type(value) is int


def finite_number(value: object, place: str, what: str) -> float:
    """``value``, a number or its text, as a float that float32 can hold."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= MAX_FLOAT:
        raise FormatError(place, what, repr(value)[:60], "write a finite number, such as -1.5")
    return number


def whole_number(text: str, place: str, what: str) -> int:
    """The whole number of at most 18 digits that ``text`` writes."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise FormatError(place, what, repr(text[:60]), "write a whole number, such as 3")
    return int(text)


def _said(value: object) -> str:
    return "nothing" if value is None else repr(value)[:60]


def _limit() -> int | None:
    """The limit that the user has set, if any."""
    value = os.environ.get(LIMIT)
    return None if not value else whole_number(value, LIMIT, "a number of bytes")


def _raise() -> str:
    return f"if you trust where it comes from, set the environment variable {LIMIT} to a larger number of bytes"


def _all_bytes(file: IO[bytes], source: str) -> bytes:
    limit = _limit() or MAX_BYTES
    data = file.read(limit + 1)
    check_size(source, len(data), limit, _raise())
    return data


def _unpacked(file: IO[bytes], source: str, limit: int) -> bytes:
    try:
        data = gzip.GzipFile(fileobj=file).read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        remedy = "the file is damaged or only named .gz; fetch it again"
        raise FormatError(source, "a whole gzip file", str(error), remedy) from None
    check_size(source, len(data), limit, _raise())
    return data


def _text(data: bytes, source: str, encoding: str) -> str:
    text = decoded(data, source, encoding, "name the file's encoding, e.g. 'latin-1'")
    return text.removeprefix("\ufeff")  # a byte order mark
