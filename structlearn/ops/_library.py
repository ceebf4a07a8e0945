"""Loads the C++ kernels: one shared library for each instruction set, the widest that this machine runs."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import structlearn
from structlearn.errors import LengthsError, OutOfMemoryError

_STALE = "{} was built from other sources than this package; build it again with `make` or `pip install .`"
_CALLED = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyObject_CallFunction")
_PYTHON = struct.Struct(f"{1 + len(_CALLED)}P")  # Python of kernels/cpu/calls.h
_NAMES: dict[int, str] = {}  # of kernels, by address

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
        path = _find()
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return error
    if not hasattr(library, "sl_entry"):
        return OSError(_STALE.format(path))
    library.sl_open(_PYTHON.pack(*[_address(getattr(ctypes.pythonapi, name)) for name in _CALLED], id(_failed)))
    library.sl_entry.restype = ctypes.c_void_p
    library.sl_entry.argtypes = [ctypes.c_int64, ctypes.c_int64]
    atexit.register(library.sl_leave)
    return library


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _failed(address: int, memory: int, text: str) -> None:
    """Raises for a kernel that came to no end; called from the library."""
    name = _NAMES[address]
    if memory:
        remedy = "free some, or give fewer or shorter inputs at a time, or fewer threads (torch.set_num_threads)"
        raise OutOfMemoryError(name, "enough memory to work in", "too little", remedy)
    raise RuntimeError(f"{name}: {text or 'an unknown error'} inside the kernel; please report it with these arguments")


def load_error() -> str | None:
    """Why the kernels cannot be loaded, or None."""
    library = _open()
    return str(library) if isinstance(library, OSError) else None


@functools.cache
def kernel(name: str, dtype: torch.dtype, arguments: int) -> Any:
    """The C function ``sl_{name}_{f32|f64}``, taking ``arguments`` pointers or 64-bit integers.

    Integers pass as addresses do, so one declaration serves both; the call releases the GIL. A kernel for which memory
    runs out raises OutOfMemoryError.
    """
    library = _open()
    if isinstance(library, OSError):
        raise library
    try:
        function = library[f"sl_{name}_{'f32' if dtype is torch.float32 else 'f64'}"]
    except AttributeError:
        raise OSError(_STALE.format(library._name)) from None
    address = _address(function)
    _NAMES[address] = f"kernel {name}"
    words = [ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_void_p] * (arguments - 1)]
    return functools.partial(ctypes.PYFUNCTYPE(ctypes.c_int64, *words)(library.sl_entry(arguments, 1)), address)


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
