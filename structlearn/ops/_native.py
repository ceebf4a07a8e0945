"""The kernels that short inputs call most, as functions of tensors; see ``kernels/cpu/python.cpp``.

Each declines, with None or False, what is not plain eager work on CPU tensors laid out as its kernel wants them; the
caller then takes the way through ctypes, which copies, converts or raises. There are two builds of them: one for a
single release of torch, and a slower one for every release from 2.10 on. Only the first has log Z as a node of torch's
graph: ``chain_log_partition`` and its like, and ``attach`` (else None) for what other kernels computed. Where neither
works, everything is declined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structlearn.ops import _library


class _Absent:
    """Declines every call."""

    attach = None

    def __getattr__(self, name: str) -> Any:
        return (lambda *args: False) if name.endswith("_fits") else (lambda *args: None)


def _for_this_torch() -> tuple[Any, str | None]:
    """The build for one release of torch, and why it is absent, or None."""
    here = torch.__version__.partition("+")[0]
    remedy = "reinstall with `pip install --no-build-isolation`"
    library = _library._open()
    if isinstance(library, OSError):
        return _Absent(), str(library)
    try:
        from structlearn import _native_torch  # type: ignore[attr-defined]

        if here != _native_torch.TORCH_VERSION:
            return _Absent(), f"built for torch {_native_torch.TORCH_VERSION}, this is {here}; {remedy}"
        _native_torch.open(library._handle)
    except ImportError as error:
        return _Absent(), f"{error}; {remedy} where torch is installed"
    return _native_torch, None


def _for_every_torch() -> tuple[Any, str | None]:
    """The build for every release of torch, and why it is absent, or None."""
    library = _library._open()
    if isinstance(library, OSError):
        return _Absent(), str(library)
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        return _Absent(), "torch 2.10 or newer is needed"
    try:
        from structlearn import _native  # type: ignore[attr-defined]

        counters = torch.get_num_threads, torch._C._len_torch_dispatch_stack
        _native.open(library._handle, table, torch.Tensor, torch.nn.Parameter, *counters)
    except ImportError as error:
        return _Absent(), f"{error}; install Python's headers (python3-dev) and reinstall"
    return _native, None


_module, missing_node = _for_this_torch()
missing = None
if missing_node is not None:
    _module, missing = _for_every_torch()

poison = _module.poison
common_value = _module.common_value
chain_fits = _module.chain_fits
chain_best = _module.chain_best
chain_value_and_gradient = _module.chain_value_and_gradient
span_tree_fits = _module.span_tree_fits
span_tree_best = _module.span_tree_best
span_tree_value_and_gradient = _module.span_tree_value_and_gradient
attach: Callable[..., Tensor | None] | None = getattr(_module, "attach", None)
_recorded = _module if attach is not None else _Absent()
chain_log_partition = _recorded.chain_log_partition
span_tree_log_partition = _recorded.span_tree_log_partition
