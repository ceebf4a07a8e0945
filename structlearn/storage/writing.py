"""Files that are whole or not there: what a kill, a full disk or a power cut leaves is the old file or the new one.

Everything is written beside its place, brought to the disk, and renamed to its place in one step. A writer that fails
removes what it wrote; what a killed one left is removed by the next writer of the same file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

# Of file systems that cannot do what is asked for, and say so: of a folder's fsync, of a lock.
_CANNOT = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK}
_PART = re.compile(r"\.(?P<name>.+)\.(?P<host>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}\.part")


def write_file(path: str | Path, data: bytes) -> None:
    """Writes ``data`` to ``path``, whole or not at all."""
    with whole_file(path) as part:
        part.write_bytes(data)


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A path to write a file to, which becomes ``path`` when the block ends without an error.

    Links are followed. A pipe or a device is written to as it is.
    """
    path = Path(os.path.realpath(path))
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        yield path
        return
    part = _part(path)
    try:
        yield part
        if mode is not None:
            part.chmod(stat.S_IMODE(mode))
        sync(part)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    sync(path.parent)
    remove_leftovers(path.parent, path.name)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the one lock of a folder; its holder's death frees it. Nothing where the system has no such locks."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with _where_possible():
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Brings a file, or the names in a folder, to the disk."""
    folder = path.is_dir()
    if folder and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        with _where_possible() if folder else contextlib.nullcontext():
            os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Removes what killed writers of this machine left in ``folder``, of the file ``name`` or of any."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            match = _PART.fullmatch(entry)
            if match is None or match["host"] != _host() or (name is not None and match["name"] != _stem(name)):
                continue
            if not _runs(int(match["process"])):
                with contextlib.suppress(OSError):
                    (folder / entry).unlink()


def _part(path: Path) -> Path:
    return path.with_name(f".{_stem(path.name)}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.part")


def _stem(name: str) -> str:
    """Names have at most 255 bytes, and the marks of a part need some of them."""
    return name.encode()[:180].decode(errors="ignore")


def _host() -> str:
    """Processes of another machine that shares the folder have numbers of their own."""
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return f"{zlib.crc32(name.encode()):08x}"


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _where_possible() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
