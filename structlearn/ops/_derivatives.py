"""What the operators of every structure need around derivatives of log Z."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import DerivativeError


def given(potentials: Iterable[Tensor | None], directions: Iterable[Tensor | None]) -> list[Any]:
    """One direction a potential, 0 where autograd has none; None where the potential is absent."""
    return [
        None if x is None else torch.zeros_like(x) if d is None else d
        for x, d in zip(potentials, directions, strict=True)
    ]


def finite(potentials: Iterable[Tensor | None]) -> list[Any]:
    """The potentials as a direction: 0 where a part is forbidden, since its marginal is 0."""
    return [None if x is None else x.masked_fill(x == float("-inf"), 0.0).contiguous() for x in potentials]


def require_second(backend: str) -> None:
    """Raises for a backend whose kernels have no second derivative."""
    if backend == "triton":
        expected = "'cpu' or 'reference' for a second derivative of log_partition"
        raise DerivativeError("backend", expected, "'triton'", "pass backend='reference'")


def no_third(ctx: Any, *grads: Any) -> Any:
    """The backward pass of a second derivative."""
    raise DerivativeError("log_partition", "at most two derivatives", "a third", "pass backend='reference' for more")
