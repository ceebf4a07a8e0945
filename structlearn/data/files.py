"""Text of files, gzipped or not, with the place of what cannot be read."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from structlearn.errors import FormatError


def read_text(path: str | Path, encoding: str = "utf-8") -> str:
    """The text of a file; ``.gz`` is unpacked."""
    path = Path(path)
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(str(path), "a whole gzip file", str(error), "fetch the file again") from None
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        place = f"{path}:{1 + data[: error.start].count(10)}"
        got = f"byte 0x{data[error.start]:02x}"
        raise FormatError(place, f"{encoding} text", got, "name the file's encoding, e.g. 'latin-1'") from None
