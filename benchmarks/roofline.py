"""What this machine can do at most, measured in the same turns as the contestants.

Two limits: additions and maxima over a tile in the first-level cache (cells/s), for max-plus recurrences; and a large
float32 matrix product (flop/s), for recurrences in probability space. A roofline's call returns the work it did.
"""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Contestant

SOURCE = Path(__file__).with_name("addmax.c")
MATMUL_SIZE = 1024
# One call lasts some milliseconds, so that starting its threads (tens of microseconds) does not count.
SWEEP_SECONDS = 0.008


def compiler() -> str | None:
    """The C compiler named by CC, or the system's."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def _library() -> ctypes.CDLL:
    found = compiler()
    if found is None:
        raise RuntimeError("no C compiler; set CC")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "addmax.so"
        flags = ["-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([found, *flags, str(SOURCE), "-o", str(target)], check=True)
        library = ctypes.CDLL(str(target))
    library.roofline_addmax.restype = ctypes.c_double
    library.roofline_addmax.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.POINTER(ctypes.c_float)]
    return library


def _sweep(threads: int, repeats: int, share: int) -> float:
    cells = float(_library().roofline_addmax(threads, repeats, share, ctypes.byref(ctypes.c_float(0.0))))
    if cells < 0:
        raise RuntimeError(f"cannot start {threads} threads")
    return cells


@functools.cache
def _fastest_sweep(threads: int) -> tuple[int, int]:
    """(sequences that share a load, repeats) of the variant with the most cells/s."""
    best, choice = 0.0, (1, 1)
    for share in (1, 2, 4):
        for _ in range(3):
            start = time.perf_counter()
            cells = _sweep(threads, 2000, share)
            seconds = time.perf_counter() - start
            if cells / seconds > best:
                best, choice = cells / seconds, (share, max(1, int(2000 * SWEEP_SECONDS / seconds)))
    return choice


def addmax(threads: int) -> Contestant:
    """max(acc, a + t) on every thread at once, float32; the call returns its cells."""

    def prepare(case: Any) -> Callable[[], float]:
        share, repeats = _fastest_sweep(threads)
        return lambda: _sweep(threads, repeats, share)

    def cannot(case: Any) -> str | None:
        return None if compiler() else "no C compiler; set CC"

    return Contestant("roofline: add-max in L1", prepare, role="roofline", cannot=cannot)


def matmul() -> Contestant:
    """torch.matmul of two float32 (1024, 1024) matrices at torch's thread count; the call returns its flops."""

    def prepare(case: Any) -> Callable[[], float]:
        import torch

        left, right = torch.rand(MATMUL_SIZE, MATMUL_SIZE), torch.rand(MATMUL_SIZE, MATMUL_SIZE)
        out = torch.empty_like(left)

        def call() -> float:
            torch.matmul(left, right, out=out)
            return 2.0 * MATMUL_SIZE**3

        return call

    return Contestant("roofline: matmul", prepare, requires=("torch",), role="roofline")
