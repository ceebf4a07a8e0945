"""A limit on what building a model allocates: a description cannot ask for more than its weights file holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from structlearn.errors import ArgumentError

# Arguments of torch's operators that say how large a result is.
_SIZES = ("size", "repeats", "n", "m", "steps", "end", "new_size", "num_classes")


class AllocationBudget(TorchDispatchMode):
    """Raises before torch makes a tensor of sizes that were asked for, or by broadcasting, beyond a total.

    Args:
        max_bytes: of all such tensors together.
        max_tensors: that are made from sizes.
    """

    def __init__(self, max_bytes: int, max_tensors: int) -> None:
        super().__init__()
        self.max_bytes, self.max_tensors = max_bytes, max_tensors
        self.bytes = self.tensors = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        self._count(func, {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **kwargs})
        return func(*args, **kwargs)

    def _count(self, func: Any, arguments: dict[str, Any]) -> None:
        # Views allocate nothing, and neither does writing into an argument.
        if any(r.alias_info is not None for r in func._schema.returns):
            return
        sizes = next((arguments[name] for name in _SIZES if arguments.get(name) is not None), None)
        if sizes is not None:
            entries = math.prod(max(int(n), 1) for n in (sizes if isinstance(sizes, Iterable) else [sizes]))
            self.tensors += 1
        elif torch.Tag.pointwise in func.tags:
            entries = math.prod(torch.broadcast_shapes(*(a.shape for a in arguments.values() if type(a) is Tensor)))
        else:
            return
        dtype = arguments.get("dtype")
        self.bytes += entries * (dtype.itemsize if isinstance(dtype, torch.dtype) else 4)
        if self.bytes > self.max_bytes or self.tensors > self.max_tensors:
            got = f"{self.tensors:,} with {self.bytes:,}"
            expected = f"at most {self.max_tensors:,} tensors with {self.max_bytes:,} bytes, by the size of its weights"
            raise ArgumentError("task", expected, got, "its sizes do not fit its weights")
