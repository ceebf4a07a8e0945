"""Which backend runs a call."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch

from structlearn.errors import BackendError
from structlearn.ops import _library

BACKENDS = ("reference", "cpu", "triton", "torch-struct")


@functools.cache
def _missing(backend: str) -> str | None:
    """Why ``backend`` cannot run in this process, or None."""
    if backend == "cpu":
        return _library.load_error()
    if backend == "triton":
        if importlib.util.find_spec("triton") is None:
            return "the package triton is not installed"
        if not torch.cuda.is_available() and not _interpreting():
            return "no CUDA device, and TRITON_INTERPRET=1 is not set"
    if backend == "torch-struct" and importlib.util.find_spec("torch_struct") is None:
        return "the package torch-struct is not installed"
    return None


def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def backends() -> tuple[str, ...]:
    """The names among ``BACKENDS`` that can run in this process."""
    return tuple(name for name in BACKENDS if _missing(name) is None)


def choose_backend(name: str, device_type: str, native: tuple[str, ...]) -> str:
    """The backend to run for ``backend=name`` on a device, for a structure that has those in ``native``.

    "auto" takes the kernel made for the device and the reference where there is none; a name is taken at its
    word or refused. A constant to ``torch.compile``, which looks through ``functools.cache`` and would try to
    trace the search for the library.
    """
    if not isinstance(name, str):
        raise BackendError("backend", f"one of {('auto', *BACKENDS)}", repr(name), "pass backend='auto'")
    return _choose(name, device_type, native)


# What torch.compiler.assume_constant_result sets, which would import the compiler (1.5 s) to do so.
choose_backend._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _choose(name: str, device_type: str, native: tuple[str, ...]) -> str:
    if name == "auto":
        wanted = {"cpu": "cpu", "cuda": "triton"}.get(device_type)
        return wanted if wanted in native and wanted is not None and _missing(wanted) is None else "reference"
    if name not in BACKENDS:
        raise BackendError("backend", f"one of {('auto', *BACKENDS)}", repr(name), "pass backend='auto'")
    if name not in native:
        expected = f"one of {('auto', *native)} for this structure"
        raise BackendError("backend", expected, repr(name), "pass backend='auto'")
    if (reason := _missing(name)) is not None:
        raise BackendError("backend", "one that can run here", f"{name!r}: {reason}", f"these can: {backends()}")
    needed = {"cpu": ("cpu",), "triton": ("cuda", "cpu") if _interpreting() else ("cuda",)}.get(name)
    if needed is not None and device_type not in needed:
        remedy = f"it runs on {needed[0]}; pass backend='auto'"
        raise BackendError("backend", f"one for {device_type} tensors", repr(name), remedy)
    return name
