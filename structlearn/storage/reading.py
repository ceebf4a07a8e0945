"""Reading files that come from elsewhere: regular files of bounded size, and plain data of bounded depth and size.

Every function raises FormatError, with the file and the remedy, for whatever is not as it should be.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from structlearn.errors import ArgumentError, FormatError

AGAIN = "write the model again with structlearn.save"
_WHOLE = f"copy the whole model, or {AGAIN}"
_RAISE = "if you trust where it comes from, raise max_bytes of structlearn.load (--max-bytes of predict)"
# A model's own description nests some ten levels and holds no larger numbers than sizes.
MAX_DEPTH = 64
MAX_VALUES = 4_000_000
MAX_NUMBER = 2**53

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@contextlib.contextmanager
def regular_file(
    path: Path, max_bytes: int, *, follow: bool = False, remedy: str = _WHOLE, raise_limit: str = _RAISE
) -> Iterator[io.BufferedReader]:
    """Opens a regular file of at most ``max_bytes``, links only with ``follow``; what is no file is not waited for.

    Args:
        remedy: for a file that is missing.
        raise_limit: how to read larger files.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        status = path.stat() if follow else path.lstat()
    except FileNotFoundError:
        raise FormatError(str(path), "a file", "no such file", remedy) from None
    except (NotADirectoryError, ValueError) as error:
        raise FormatError(str(path), "a file", str(error), remedy) from None
    except OSError as error:
        raise FormatError(str(path), "a file that can be read", str(error), "copy the file itself") from None
    if not stat.S_ISREG(status.st_mode):
        got = next(word for word, test in _KINDS.items() if test(status.st_mode))
        raise FormatError(str(path), "a regular file", got, "copy the file itself into its place")
    check_size(str(path), status.st_size, max_bytes, raise_limit)
    try:
        handle = os.open(path, flags | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    except FileNotFoundError:  # removed in between, by a save
        raise FormatError(str(path), "a file", "no such file", "try again") from None
    except OSError as error:
        raise FormatError(str(path), "a file that can be read", error.strerror, "allow reading it") from error
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FormatError(str(path), "a regular file", "another", "copy the file itself into its place")
        yield file


_KINDS = {
    "a link": stat.S_ISLNK,
    "a folder": stat.S_ISDIR,
    "a pipe": stat.S_ISFIFO,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
    "a socket": stat.S_ISSOCK,
    "something else": lambda mode: True,
}


def check_size(source: str, size: int, max_bytes: int, remedy: str = _RAISE) -> None:
    if size > max_bytes:
        got = "more" if size == max_bytes + 1 else f"{size:,}"  # of what is read until it is too much
        raise FormatError(source, f"at most {max_bytes:,} bytes", got, remedy)


def read_bytes(path: Path, max_bytes: int, *, follow: bool = False, remedy: str = _WHOLE) -> bytes:
    """The bytes of a regular file."""
    with regular_file(path, max_bytes, follow=follow, remedy=remedy) as file:
        data = file.read(max_bytes + 1)
    check_size(str(path), len(data), max_bytes)
    return data


def digest(path: Path, max_bytes: int) -> tuple[int, str]:
    """The size of a regular file and its SHA-256."""
    with regular_file(path, max_bytes) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), found


def parse_yaml(data: bytes, source: str) -> Any:
    """The plain data of a YAML text without aliases."""
    text = check_yaml(data, source, AGAIN)
    with _yaml_errors(source, AGAIN):
        return checked(yaml.load(text, Loader=_Loader), source)


def check_yaml(data: bytes, source: str, remedy: str) -> str:
    """``data`` as text, if it is YAML of bounded depth without aliases, which could stand for data of any size."""
    text = decoded(data, source, remedy=remedy)
    depth = 0
    with _yaml_errors(source, remedy):
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                place = f"{source}:{event.start_mark.line + 1}" if event.start_mark else source
                raise FormatError(place, "YAML without anchors and aliases", "one", remedy)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            _check_depth(depth, source, remedy)
    return text


@contextlib.contextmanager
def _yaml_errors(source: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except FormatError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, LookupError) as error:
        raise FormatError(source, "YAML", _one_line(error), remedy) from None


def parse_json(data: bytes | str, source: str, *, max_number: float = MAX_NUMBER, remedy: str = AGAIN) -> Any:
    """The plain data of a JSON text."""
    text = data if isinstance(data, str) else decoded(data, source, remedy=remedy)
    # Before parsing: an empty list of two letters takes 64 bytes.
    values = sum(map(text.count, ",[{"))
    if values > MAX_VALUES:
        raise FormatError(source, f"at most {MAX_VALUES:,} values", f"{values:,}", remedy)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(source, "JSON", _one_line(error), remedy) from None
    return checked(value, source, max_number=max_number, remedy=remedy)


def checked(
    value: Any, source: str, *, tensors: bool = False, max_number: float = MAX_NUMBER, remedy: str = AGAIN
) -> Any:
    """``value`` itself if it is plain data: numbers, text, lists and mappings of bounded depth, number and size."""
    levels, values = [iter((value,))], 0
    while levels:
        item = next(levels[-1], levels)
        if item is levels:  # the end of a list or mapping
            levels.pop()
            continue
        values += 1
        if values > MAX_VALUES:
            raise FormatError(source, f"at most {MAX_VALUES:,} values", "more", remedy)
        _check_value(item, source, tensors, max_number, remedy)
        if isinstance(item, dict):
            levels.append(iter(item.values()))
        elif isinstance(item, list | tuple):
            levels.append(iter(item))
        _check_depth(len(levels) - 1, source, remedy)
    return value


def _check_value(item: Any, source: str, tensors: bool, max_number: float, remedy: str) -> None:
    if isinstance(item, str):
        _check_text(item, source)
    elif isinstance(item, dict):
        for key in item:
            if not isinstance(key, str):
                raise FormatError(source, "text as keys", type(key).__name__, remedy)
            _check_text(key, source)
    elif isinstance(item, int):
        if abs(item) > max_number:
            raise FormatError(source, f"whole numbers up to {max_number:.0f}", "a larger one", remedy)
    elif not (item is None or isinstance(item, float | list | tuple) or (tensors and type(item) is Tensor)):
        raise FormatError(source, "numbers, text, lists and mappings", type(item).__name__, remedy)


def _check_depth(depth: int, source: str, remedy: str) -> None:
    if depth > MAX_DEPTH:
        raise FormatError(source, f"at most {MAX_DEPTH} levels of nesting", "more", remedy)


def _check_text(text: str, source: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"half of a surrogate pair, \\u{ord(text[error.start]):04x}"
        raise FormatError(source, "text that UTF-8 can hold", got, "repair the text") from None


def decoded(data: bytes, source: str, encoding: str = "utf-8", remedy: str = AGAIN) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        place = f"{source}:{1 + data.count(10, 0, error.start)}"
        raise FormatError(place, f"{encoding} text", f"byte 0x{data[error.start]:02x}", remedy) from None
    except (LookupError, UnicodeError) as error:
        raise ArgumentError("encoding", "the name of an encoding of text", repr(encoding), str(error)) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
