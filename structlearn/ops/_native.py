"""The kernels that short inputs call most, as functions of tensors; see ``kernels/cpu/python.cpp``.

Each declines, with None or False, what is not plain eager work on CPU tensors laid out as its kernel wants them; the
caller then takes the way through ctypes, which copies, converts or raises. Where the module was not built, or torch
(before 2.10) has no exchange table, everything is declined.
"""

from __future__ import annotations

from typing import Any

import torch

from structlearn.ops import _library


class _Absent:
    """Declines every call."""

    def __getattr__(self, name: str) -> Any:
        return (lambda *args: False) if name.endswith("_fits") else (lambda *args: None)


def _load() -> tuple[Any, str | None]:
    """The module, and why it is absent, or None."""
    library = _library._open()
    if isinstance(library, OSError):
        return _Absent(), str(library)
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        return _Absent(), "torch 2.10 or newer is needed"
    try:
        from structlearn import _native  # type: ignore[attr-defined]

        counters = torch.get_num_threads, torch._C._len_torch_dispatch_stack
        _native.open(table, torch.Tensor, torch.nn.Parameter, library._handle, *counters)
    except ImportError as error:
        return _Absent(), f"{error}; install Python's headers (python3-dev) and reinstall"
    return _native, None


_module, missing = _load()
poison = _module.poison
common_value = _module.common_value
chain_fits = _module.chain_fits
chain_best = _module.chain_best
chain_value_and_gradient = _module.chain_value_and_gradient
span_tree_fits = _module.span_tree_fits
span_tree_best = _module.span_tree_best
span_tree_value_and_gradient = _module.span_tree_value_and_gradient
