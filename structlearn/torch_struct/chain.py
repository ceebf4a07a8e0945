"""Linear chains through torch-struct.

torch-struct's ``LinearChainCRF`` takes edge potentials (B, N-1, C, C) indexed [current, previous]; unary, start
and end scores are folded into them. It needs two positions, so the chain that it is given starts with one extra
position that allows only label 0 (its edge carries the first unary and the start scores).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.semirings import NEG_INF, KMax, Max, Semiring
from structlearn.structures.chain import LinearChain
from structlearn.torch_struct.engine import FORBIDDEN, Theirs, refused, through


def _edges(mask: Tensor, unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None) -> Tensor:
    """(B, M, C, C) for M the longest length, since torch-struct wants a sequence that reaches the end, but 1 or more.

    Sequences of length 0 stand as length 1.
    """
    b, n, c = unary.shape
    if b == 0:
        raise refused("at least one sequence", "B=0")
    unary = unary.masked_fill(~mask[:, :, None], 0.0)
    lengths = mask.sum(1)
    if start is not None:
        unary = torch.cat([unary[:, :1] + start, unary[:, 1:]], 1)
    if end is not None:
        last = torch.arange(n, device=mask.device) == (lengths - 1)[:, None]
        unary = unary + torch.where(last[:, :, None], end, 0.0)
    if n == 0:
        unary = unary.sum(1, keepdim=True)
    first = unary.new_full((b, 1, c, c), NEG_INF)
    first[..., 0] = 0.0
    between = transition.mT.expand(b, max(n - 1, 0), c, c)
    if transition.dim() == 4:
        between = between.masked_fill(~mask[:, 1:, None, None], 0.0)
    edges = torch.cat([first, between], 1) + unary[..., None]
    return edges[:, : max(int(lengths.max()), 1)]


def _nodes(mask: Tensor) -> Tensor:
    """Positions of each sequence (B,) with the extra one."""
    return mask.sum(1).clamp(min=1) + 1


def to_torch_struct(chain: LinearChain) -> Any:
    """``torch_struct.LinearChainCRF`` over edges (B, M, C, C) with the same distribution as ``chain``.

    Its position 0 is the extra one; positions 1..n are the chain's. Its zero is finite: forbidden edges get
    ``FORBIDDEN``, and so do scores below that.
    """
    from torch_struct import LinearChainCRF

    mask = chain.mask
    edges = _edges(mask, chain.unary, chain.transition, chain.start, chain.end)
    return LinearChainCRF(edges.clamp(min=FORBIDDEN), lengths=_nodes(mask))


def total(chain: LinearChain, semiring: Semiring, potentials: tuple[Tensor | None, ...]) -> Tensor:
    """The total (width, B) over Log, Max or KMax, by torch-struct's scan."""
    from torch_struct import LinearChain as Scan

    mask = chain.mask

    def recurrence(semiring: Semiring, *potentials: Tensor) -> Tensor:
        ordered = isinstance(semiring, (Max, KMax))
        inner = _OrderedKMax(semiring.width) if ordered else Theirs(semiring)
        found = Scan(inner).logpartition(_edges(mask, *potentials), _nodes(mask))[0][: semiring.width]
        return torch.where(mask.any(1), found, semiring.ones_like(found[0]))

    return through(semiring, recurrence, potentials)


def from_torch_struct(distribution: Any, *, backend: str = "auto") -> LinearChain:
    """The :class:`LinearChain` with the distribution of a ``torch_struct.LinearChainCRF``.

    Its edges (B, N-1, C, C) become per-position transitions with unary scores 0.
    """
    edges = distribution.log_potentials
    b, steps, c, _ = edges.shape
    return LinearChain(edges.new_zeros((b, steps + 1, c)), edges.mT, lengths=distribution.lengths, backend=backend)


class _OrderedKMax:
    """The k largest, for torch-struct's scan, with equals in the order that every other backend has.

    That order compares labels from the last position backwards. torch-struct joins halves instead of stepping
    from left to right, so an element [current, previous] of a segment carries beside each score a key (layout:
    k scores, then k keys): the rank of its inner labels, in that order, among all inner labellings with the same
    current label. Joining on a middle label m compares the later half's key, then m, then the earlier half's.
    """

    def __init__(self, k: int) -> None:
        self.k = k

    def size(self) -> int:
        return 2 * self.k

    def convert(self, potentials: Tensor) -> Tensor:
        missing = potentials.new_full((self.k - 1, *potentials.shape), NEG_INF)
        return torch.cat([potentials.unsqueeze(0), missing, potentials.new_zeros((self.k, *potentials.shape))])

    def zero_(self, xs: Tensor) -> Tensor:
        xs[: self.k] = NEG_INF
        xs[self.k :] = 0.0
        return xs

    def zero_mask_(self, xs: Tensor, mask: Tensor) -> None:
        xs[: self.k].masked_fill_(mask.unsqueeze(0), NEG_INF)

    def one_(self, xs: Tensor) -> Tensor:
        self.zero_(xs)[0] = 0.0
        return xs

    def sum(self, xs: Tensor) -> Tensor:
        """(2k, ..., m) to (2k, ...); equals in the order of (index along the last axis, rank)."""
        scores, keys = (x.movedim(-1, 0).flatten(0, 1) for x in xs.chunk(2))
        kept = scores.detach().sort(dim=0, descending=True, stable=True).indices[: self.k]
        return torch.cat([scores.gather(0, kept), keys.gather(0, kept)])

    def matmul(self, later: Tensor, earlier: Tensor) -> Tensor:
        """(2k, B, n, C, C) x 2, indexed [current, middle] and [middle, previous]."""
        k, c = self.k, later.shape[-1]
        # Axes from here on: (B, n, current, previous, middle, rank in later, rank in earlier).
        a, a_key = (x.movedim(0, -1)[..., None, :, :, None] for x in later.chunk(2))
        b, b_key = (x.movedim(0, -1).transpose(-2, -3).unsqueeze(-4).unsqueeze(-2) for x in earlier.chunk(2))
        scores = (a + b).flatten(-3)
        middle = torch.arange(c, device=later.device)[:, None, None]
        order = ((a_key.long() * c + middle) * (c * k) + b_key.long()).flatten(-3)
        by_order = order.argsort(-1)
        by_score = scores.detach().gather(-1, by_order).sort(dim=-1, descending=True, stable=True).indices[..., :k]
        kept = by_order.gather(-1, by_score)
        inner = order.gather(-1, kept).flatten(-2)
        rank = torch.searchsorted(inner.sort(-1).values, inner).view(kept.shape)
        return torch.cat([scores.gather(-1, kept), rank.to(scores.dtype)], -1).movedim(-1, 0)
