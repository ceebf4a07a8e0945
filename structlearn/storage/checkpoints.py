"""Checkpoints, of torch's format: written whole or not at all, read without running what they hold.

A checkpoint is a zip file. Its members have to be stored as they are: what is compressed could unpack to any size.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from structlearn.errors import FormatError
from structlearn.storage.reading import regular_file
from structlearn.storage.writing import write_file

# Of what is not tensors: the description with its vocabularies, and the state of optimizers and callbacks.
_MAX_PICKLE = 64 << 20
MAX_BYTES = 4 << 30


def write_checkpoint(path: str | Path, state: Any) -> None:
    """Writes plain data and tensors to ``path``, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_file(path, buffer.getvalue())


def read_checkpoint(path: str | Path, *, remedy: str, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The data of a checkpoint, on the CPU.

    Args:
        remedy: what to do about a file that is none.
        max_bytes: size of the largest file that is read.
    """
    path = Path(path)
    with regular_file(path, max_bytes, follow=True) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
            size = file.seek(0, io.SEEK_END)
            stored = all(m.compress_type == zipfile.ZIP_STORED for m in members)
            pickled = sum(m.file_size for m in members if m.filename.endswith(".pkl"))
            if not stored or sum(m.file_size for m in members) > size or pickled > _MAX_PICKLE:
                raise FormatError(str(path), "members of a zip file as torch.save stores them", "others", remedy)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
        except FormatError:
            raise
        except Exception as error:  # torch raises errors of any kind on a damaged file
            got = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            raise FormatError(str(path), "a checkpoint of structlearn", got, remedy) from error
    if not isinstance(state, dict):
        raise FormatError(str(path), "a checkpoint of structlearn", type(state).__name__, remedy)
    return state
