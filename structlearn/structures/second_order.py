"""Label sequences with second-order transitions.

    s(y) = first-order score + sum_{t>=2} second[y_{t-2}, y_{t-1}, y_t]

as a chain over pairs (previous label or none, label): E = C (C + 1) labels, of which consecutive ones must agree on
the label they share. The kernels then do E^2 work a position where C^3 would do, which their speed makes the cheaper
choice up to a few dozen labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from structlearn.errors import ShapeError
from structlearn.structures import checks
from structlearn.structures.chain import LinearChain
from structlearn.structures.expanded import ExpandedChain


class SecondOrderPotentials(NamedTuple):
    """One tensor a field of :class:`SecondOrderChain`."""

    unary: Tensor
    transition: Tensor
    second: Tensor
    start: Tensor | None = None
    end: Tensor | None = None


class SecondOrderChain(ExpandedChain):
    """s(y) = LinearChain's s(y) + sum_{t>=2} second[y_{t-2}, y_{t-1}, y_t].

    Args:
        unary: (B, N, C).
        transition: (C, C), [previous, current].
        second: (C, C, C), [before previous, previous, current].
        start, end: (C,).
        lengths, backend: as for :class:`LinearChain`.
    """

    fields = ("unary", "transition", "second", "start", "end")
    named = SecondOrderPotentials

    def __init__(
        self,
        unary: Tensor,
        transition: Tensor,
        second: Tensor,
        *,
        start: Tensor | None = None,
        end: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        backend: str = "auto",
    ) -> None:
        checks.check_tensor("unary", unary, 3, "(B, N, C)")
        c = unary.shape[2]
        for name, value, shape in (("transition", transition, (c,) * 2), ("second", second, (c,) * 3)):
            if value.shape != shape:
                raise ShapeError(
                    name, f"{shape} to match unary with C={c}", tuple(value.shape), "earlier labels come first"
                )
        kept = checks.same_kind(
            {"unary": unary, "transition": transition, "second": second, "start": start, "end": end}
        )
        self.unary, self.transition, self.second, self.start, self.end = kept  # type: ignore[assignment]
        pairs = torch.arange(c * (c + 1), device=unary.device)
        self.emit = pairs % c
        self.inner = LinearChain(
            self._pair_unary(), self._pair_transition(), start=self._on_pairs(self.start), end=self._on_pairs(self.end),
            lengths=lengths, backend=backend,
        )  # fmt: skip
        self.backend = self.inner.backend

    def _on_pairs(self, edge: Tensor | None) -> Tensor | None:
        return None if edge is None else edge[self.emit]

    def _pair_unary(self) -> Tensor:
        """(B, N, (C+1) C): label c after p; only p = none at the first position and never later."""
        b, n, c = self.unary.shape
        forbidden = self.unary.new_full((b, n, 1, c), float("-inf"))
        each = self.unary[:, :, None, :]
        after = torch.cat([each.expand(b, n, c, c), forbidden], 2)
        first = torch.cat([forbidden.expand(b, n, c, c), each], 2)
        begins = (torch.arange(n, device=self.unary.device) == 0)[:, None, None]
        return torch.where(begins, first, after).flatten(2)

    def _pair_transition(self) -> Tensor:
        """(E, E): (p, c) to (c, d) scores transition[c, d] + second[p, c, d], without second from p = none.

        Other steps are forbidden. Unary scores are added to nothing here: one on a large offset would lose its digits.
        """
        c = self.unary.shape[2]
        second = torch.cat([self.transition + self.second, self.transition[None]])
        agree = torch.eye(c, c + 1, dtype=torch.bool, device=second.device)
        # [p, c, c', d]: c' is the shared label as the next pair names it.
        full = torch.where(agree[None, :, :, None], second[:, :, None, :], float("-inf"))
        return full.reshape(c * (c + 1), c * (c + 1))

    def encode(self, y: Tensor) -> Tensor:
        c = self.unary.shape[2]
        before = torch.cat([torch.full_like(y[..., :1], c), y[..., :-1]], -1)
        return before * c + y

    def replace(self, **potentials: Tensor | None) -> Self:
        given = {name: getattr(self, name) for name in self.fields} | potentials
        return type(self)(**given, lengths=self.lengths, backend=self.backend)
