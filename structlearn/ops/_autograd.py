"""The node of log Z in torch's graph, written in C++ (``kernels/cpu/autograd.cpp``) for one release of torch.

Where the package was built without torch at hand, or for another release, ``attach`` is None, and
``ops/value_and_gradient.py`` takes a node in Python instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _load() -> tuple[Callable[..., Tensor | None] | None, str | None]:
    """The function, and why it is absent, or None."""
    here = torch.__version__.partition("+")[0]
    remedy = "reinstall with `pip install --no-build-isolation`"
    try:
        from structlearn import _autograd  # type: ignore[attr-defined]
    except ImportError as error:
        return None, f"{error}; {remedy} where torch is installed"
    if here != _autograd.TORCH_VERSION:
        return None, f"built for torch {_autograd.TORCH_VERSION}, this is {here}; {remedy}"
    attach: Callable[..., Any] = _autograd.attach
    return attach, None


attach, missing = _load()
