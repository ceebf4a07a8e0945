"""Saves that are killed, that fail and that meet each other, in a process of its own.

    LD_PRELOAD=failing_files.so python tests/saving_program.py kills=60 together=20 faults

Every file is loaded after every mishap: it is the old one or the new one, whole. The process has one thread, so that it
can fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import structlearn as sl
from structlearn import encoders, tasks
from structlearn.data.codecs import TaggingCodec
from structlearn.data.conll import Sentence
from structlearn.errors import StructLearnError
from structlearn.experiments.base import Settings
from structlearn.experiments.kept import Kept
from structlearn.storage.checkpoints import read_checkpoint, write_checkpoint


class File(NamedTuple):
    """How state 0 or 1 is written to a place, and which of them is read from there."""

    write: Callable[[Path, int], Any]
    read: Callable[[Path], int]


def tagger(which: int) -> tasks.Task:
    """Models with vocabularies of their own, and with weights that say whose they are."""
    words = [f"{'ab'[which]}{i}" for i in range(300 + 200 * which)]
    codec = TaggingCodec.fit([Sentence(words, [""] * len(words), ["O"] * len(words))], min_count=1)
    task = tasks.Tagging(codec, encoders.WordsAndLetters(40, 4, 4))
    with torch.no_grad():
        for weight in task.parameters():
            weight.fill_(float(which))
    return task


TAGGERS = [tagger(0), tagger(1)]


def read_model(path: Path) -> int:
    task = sl.load(path)
    which = round(float(task.feature_map.emission.detach().flatten()[0]))
    assert all(bool((weight == which).all()) for weight in task.parameters())
    assert task.codec.words.names == TAGGERS[which].codec.words.names
    return which


def write_parts(path: Path, which: int) -> None:
    # The file holds what was worked out so far; each experiment starts from it.
    parts = Kept(Settings(data=path, smoke=False, seed=0, out=path), "parts")
    parts.path.unlink(missing_ok=True) if parts.path and which == 0 else None
    parts.part("long", lambda: list(range(20_000)))
    if which:
        parts.part("more", lambda: 1)


def read_parts(path: Path) -> int:
    parts = Kept(Settings(data=path, smoke=False, seed=0, out=path), "parts")
    assert not parts._parts or parts._parts["long"] == list(range(20_000))
    return int("more" in parts._parts)


def write_solver(path: Path, which: int) -> None:
    write_checkpoint(path, {"which": which, "w": torch.full((20_000,), float(which))})


def read_solver(path: Path) -> int:
    held = read_checkpoint(path, remedy="-")
    assert bool((held["w"] == held["which"]).all())
    return int(held["which"])


FILES = {
    "model": File(lambda path, which: sl.save(TAGGERS[which], path), read_model),
    "checkpoint": File(write_solver, read_solver),
    "parts": File(write_parts, read_parts),
}


def kills(folder: Path, count: int) -> None:
    """SIGKILL at random moments of saves that replace each other."""
    draw = random.Random(0)
    for name, file in FILES.items():
        path = folder / name
        file.write(path, 0)
        began = time.perf_counter()
        file.write(path, 1)
        seconds = time.perf_counter() - began
        seen = [0, 0]
        for _ in range(count):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    for i in range(10**6):
                        file.write(path, i % 2)
                os._exit(1)
            time.sleep(draw.uniform(0, 3 * seconds + 0.02))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            seen[file.read(path)] += 1
        file.write(path, 1)
        print(name, seen, sorted(entry.name.partition("-")[0] for entry in folder.iterdir()))
        if path.is_dir() and name == "model":
            assert len(os.listdir(path)) == 3, os.listdir(path)
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(FILES), os.listdir(folder)


def together(folder: Path, count: int) -> None:
    """Processes that save to one folder while this one loads from it."""
    path = folder / "model"
    FILES["model"].write(path, 0)
    children = []
    for which in range(2):
        children.append(os.fork())
        if children[-1] == 0:
            code = 1
            with contextlib.suppress(Exception):
                for _ in range(count):
                    FILES["model"].write(path, which)
                code = 0
            os._exit(code)
    loads, running = [0, 0], set(children)
    while running:
        loads[FILES["model"].read(path)] += 1
        for child in list(running):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                running.remove(child)
                assert status == 0
    print("together", loads, sorted(os.listdir(path)))
    assert len(os.listdir(path)) == 3


@contextlib.contextmanager
def failing(k: int, error: int) -> Iterator[Callable[[], bool]]:
    """The k-th call that opens, writes, syncs or renames a file fails."""
    library = ctypes.CDLL(None)
    library.fail_files(ctypes.c_long(k), ctypes.c_int(error))
    try:
        yield lambda: bool(library.failed_files())
    finally:
        library.failed_files()


def faults(folder: Path, count: int) -> None:
    """Every k-th call fails, for every k that there is; the file is whole, and the next write goes through."""
    for name, file in FILES.items():
        for error in (errno.ENOSPC, errno.EIO, 0):
            path = folder / name
            file.write(path, 0)
            k, raised = 0, 0
            came = True
            while came:
                k += 1
                before = file.read(path) if name != "parts" else 0
                with failing(k, error) as has_come:
                    try:
                        file.write(path, 1 - before)
                        complete = True
                    except (OSError, StructLearnError):
                        complete, raised = False, raised + 1
                    came = has_come()
                after = file.read(path)
                assert not complete or after == 1 - before, (name, error, k)
                assert error or complete, (name, k)  # a short write goes on
                file.write(path, before)
                assert file.read(path) == before
                if name == "model":
                    assert len(os.listdir(path)) == 3, os.listdir(path)
            assert k > 1
            print(name, os.strerror(error) if error else "short", f"{k - 1} calls, {raised} raised")
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(FILES), os.listdir(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        mode, _, times = argument.partition("=")
        with tempfile.TemporaryDirectory() as made:
            {"kills": kills, "together": together, "faults": faults}[mode](Path(made), int(times or 0))
