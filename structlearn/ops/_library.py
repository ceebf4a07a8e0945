"""Loads the C++ kernels: one shared library for each instruction set, the widest that this machine runs."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import structlearn
from structlearn.errors import LengthsError

_BY_CAPABILITY = {"AVX512": "avx512", "AVX2": "avx2"}


def _find() -> Path:
    # STRUCTLEARN_ISA names a narrower build, so that one machine can test them all.
    isa = os.environ.get("STRUCTLEARN_ISA") or _BY_CAPABILITY.get(torch.backends.cpu.get_cpu_capability(), "base")
    name = f"_kernels_{isa}.so"
    for folder in structlearn.__path__:
        path = Path(folder) / name
        if path.exists():
            return path
    raise OSError(f"{name} is not beside the package in {list(structlearn.__path__)}; reinstall with `pip install .`")


@functools.cache
def _open() -> ctypes.CDLL | OSError:
    try:
        return ctypes.CDLL(str(_find()))
    except OSError as error:
        return error


def load_error() -> str | None:
    """Why the kernels cannot be loaded, or None."""
    library = _open()
    return str(library) if isinstance(library, OSError) else None


@functools.cache
def kernel(name: str, dtype: torch.dtype, arguments: int) -> Any:
    """The C function ``sl_{name}_{f32|f64}``, taking ``arguments`` pointers or 64-bit integers.

    Integers pass as addresses do, so one declaration serves both; the call releases the GIL.
    """
    library = _open()
    if isinstance(library, OSError):
        raise library
    function = getattr(library, f"sl_{name}_{'f32' if dtype is torch.float32 else 'f64'}")
    function.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * (arguments - 1)]
    function.restype = ctypes.c_int64
    return function


@functools.cache
def _within() -> Any:
    library = _open()
    if isinstance(library, OSError):
        return None
    function = library.sl_within
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return function


def lengths_within(name: str, lengths: Tensor | None, size: int) -> Tensor | None:
    """``lengths`` (B,), int64 on the CPU, contiguous; LengthsError if one is not in 0..size.

    Kernels trust lengths with their memory. What a structure was given may come here unchecked (compiled, under a
    transform) or changed since. Minimum and maximum in Python cost more than decoding a short sentence.
    """
    if lengths is None:
        return None
    lengths, function = lengths.contiguous(), _within()
    if function is not None and function(lengths.data_ptr(), lengths.numel(), size) == 1:
        return lengths
    values = lengths.tolist()
    outside = [value for value in values if not 0 <= value <= size]
    if not outside:
        return lengths
    bad = min(outside) if min(outside) < 0 else max(outside)
    got = f"{bad} in batch row {values.index(bad)}"
    raise LengthsError(name, f"values in 0..{size}, the padded size", got, "clip or re-pad")
