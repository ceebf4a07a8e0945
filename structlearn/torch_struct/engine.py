"""torch-struct's recurrences over the semirings of structlearn.

Their own semirings have finite zeros (-1e9 and -1e5), which scores of that size pass for. With :class:`Theirs`, -inf
is the zero, and :func:`through` keeps finite scores finite, so that answers are as good as those of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import BackendError
from structlearn.ops._register import is_eager
from structlearn.semirings import NEG_INF, Semiring, evaluate

FORBIDDEN = -1e9  # for torch-struct's own semirings


class Theirs:
    """One of our semirings of width 1 in the words of torch-struct."""

    def __init__(self, semiring: Semiring) -> None:
        self._semiring = semiring

    def size(self) -> int:
        return 1

    def convert(self, potentials: Tensor) -> Tensor:
        return potentials.unsqueeze(0)

    def zero_(self, xs: Tensor) -> Tensor:
        return xs.fill_(NEG_INF)

    def zero_mask_(self, xs: Tensor, mask: Tensor) -> None:
        xs.masked_fill_(mask.unsqueeze(0), NEG_INF)

    def one_(self, xs: Tensor) -> Tensor:
        return xs.fill_(0.0)

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def sum(self, xs: Tensor) -> Tensor:
        return self._semiring.sum(xs, -1)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return self.sum(a + b)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return self.sum(a.unsqueeze(-2) + b.mT.unsqueeze(-3)).contiguous()


def through(semiring: Semiring, recurrence: Callable[..., Tensor], potentials: Sequence[Tensor | None]) -> Tensor:
    """:func:`evaluate`, without a gradient where there is no output or no potential asks for one.

    torch-struct makes its own potentials ask.
    """
    asked = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in potentials)
    with torch.set_grad_enabled(asked):
        totals = evaluate(semiring, recurrence, potentials)
        if is_eager(totals) and not bool((totals.detach() < float("inf")).all()):
            raise refused("scores below +inf", "+inf or NaN")
        return torch.where(totals == NEG_INF, totals.detach(), totals)


def refused(expected: str, got: Any) -> BackendError:
    return BackendError("backend", f"{expected} for torch-struct", got, "pass backend='auto'")
