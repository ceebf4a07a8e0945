"""Linear chains through torch-struct.

torch-struct's ``LinearChainCRF`` takes edge potentials (B, N-1, C, C) indexed [current, previous]; unary, start
and end scores are folded into them. It needs two positions and has a finite zero (-1e9), so the chain that
:func:`to_torch_struct` builds starts with one extra position that allows only label 0 (its edge carries the
first unary and the start scores), and forbidden edges get ``FORBIDDEN``. Whether a total that low is a sum of scores
or no output at all is told by bounds on the scores; where these leave it open, :func:`without_forbidden` raises
BackendError.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.errors import BackendError
from structlearn.ops._register import is_eager
from structlearn.structures.base import PAD, recordable, recording
from structlearn.structures.chain import LinearChain

FORBIDDEN = -1e9


def score_bounds(*fields: tuple[Tensor, int]) -> tuple[Tensor, Tensor]:
    """Bounds (B,) or (1,) on sums of finite scores, at most and at least 0: ``count`` entries of each field.

    Fields (B, ...) or (1, ...) without NaN.
    """
    low = high = torch.zeros(1, dtype=torch.float64, device=fields[0][0].device)
    for value, count in fields:
        finite = value.detach().double().flatten(1)
        finite = finite.masked_fill(finite == float("-inf"), 0.0)
        if finite.shape[1]:
            low = low + count * finite.amin(1).clamp(max=0.0)
            high = high + count * finite.amax(1).clamp(min=0.0)
    return low, high


def without_forbidden(totals: Tensor, bounds: tuple[Tensor, Tensor], zero: float = FORBIDDEN) -> Tensor:
    """Totals (..., B) with -inf for no output, which torch-struct gives at most ``zero`` plus other scores.

    BackendError where scores go so low, or so high, that such a total may stand for an output.
    """
    low, high = bounds
    reached = 0.99 * zero + high  # a hundredth for the logarithm of how many outputs there are
    missing = totals.detach() <= reached
    if is_eager(totals) and bool((missing & (low <= reached)).any()):
        raise BackendError(
            "backend",
            f"scores that stay clear of {zero:g}, torch-struct's zero",
            f"sums that may lie between {float(low.min()):g} and {float(high.max()):g}",
            "pass backend='auto', or mask with -inf",
        )
    return totals.masked_fill(missing, float("-inf"))


def to_torch_struct(chain: LinearChain) -> Any:
    """``torch_struct.LinearChainCRF`` over edges (B, M, C, C) with the same distribution as ``chain``.

    Its position 0 is the extra one; positions 1..n are the chain's. M is the longest length, since torch-struct
    wants a sequence that reaches the end. Sequences of length 0 stand as length 1.
    """
    from torch_struct import LinearChainCRF

    b, n, c = chain.unary.shape
    if b == 0:
        raise BackendError("backend", "at least one sequence for torch-struct", "B=0", "pass backend='auto'")
    mask = chain.mask
    unary = chain.unary.masked_fill(~mask[:, :, None], 0.0)
    lengths = mask.sum(1)
    if chain.start is not None:
        unary = torch.cat([unary[:, :1] + chain.start, unary[:, 1:]], 1)
    if chain.end is not None:
        last = torch.arange(n, device=mask.device) == (lengths - 1)[:, None]
        unary = unary + torch.where(last[:, :, None], chain.end, 0.0)
    if n == 0:
        unary = unary.sum(1, keepdim=True)
    first = unary.new_full((b, 1, c, c), FORBIDDEN)
    first[..., 0] = 0.0
    between = chain.transition.mT.expand(b, max(n - 1, 0), c, c)
    if chain.transition.dim() == 4:
        between = between.masked_fill(~mask[:, 1:, None, None], 0.0)
    edges = torch.cat([first, between], 1) + unary[..., None]
    longest = max(int(lengths.max()), 1)
    return LinearChainCRF(edges[:, :longest].clamp(min=FORBIDDEN), lengths=lengths.clamp(min=1) + 1)


def from_torch_struct(distribution: Any, *, backend: str = "auto") -> LinearChain:
    """The :class:`LinearChain` with the distribution of a ``torch_struct.LinearChainCRF``.

    Its edges (B, N-1, C, C) become per-position transitions with unary scores 0.
    """
    edges = distribution.log_potentials
    b, steps, c, _ = edges.shape
    return LinearChain(edges.new_zeros((b, steps + 1, c)), edges.mT, lengths=distribution.lengths, backend=backend)


class ChainQueries:
    """The queries of a :class:`LinearChain` answered by torch-struct."""

    def __init__(self, chain: LinearChain) -> None:
        self._mask = chain.mask
        self._empty = self._mask.sum(1) == 0
        self._distribution = to_torch_struct(chain)
        _, n, c = chain.unary.shape
        transition = chain.transition.reshape(1, -1)
        if chain.transition.dim() == 4:
            transition = chain.transition.masked_fill(~self._mask[:, 1:, None, None], 0.0)
        edges = [(x.view(1, c), 1) for x in (chain.start, chain.end) if x is not None]
        unary = chain.unary.masked_fill(~self._mask[:, :, None], 0.0)
        self._bounds = score_bounds((unary, n), (transition, max(n - 1, 0)), *edges)
        # torch-struct makes its edges ask for gradients; the results should only if the potentials did.
        self._differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in chain.potentials.values())

    def _clean(self, scores: Tensor) -> Tensor:
        """-inf below any real score, 0 for empty sequences."""
        scores = without_forbidden(scores.masked_fill(self._empty, 0.0), self._bounds).masked_fill(self._empty, 0.0)
        return scores if self._differentiable else scores.detach()

    def log_partition(self) -> Tensor:
        return self._clean(self._distribution.partition)

    def max(self) -> Tensor:
        return self._clean(self._ordered_totals(1)[0][0])

    def best(self) -> tuple[Tensor, Tensor]:
        labels, scores = self.topk(1)
        return labels[0], scores[0]

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        with recording():
            totals, edges = self._ordered_totals(k)
            parts = [torch.autograd.grad(total.sum(), edges, retain_graph=True)[0][0] for total in totals]
        scores = self._clean(totals.detach()).detach()
        scores[1:, self._empty] = float("-inf")
        labels = torch.full((k, *self._mask.shape), PAD, device=scores.device)
        found = torch.stack(parts).sum(-1).argmax(-1)[..., : self._mask.shape[1]]
        labels[..., : found.shape[-1]] = found
        return labels.masked_fill(~(self._mask & (scores > float("-inf"))[..., None]), PAD), scores

    def _ordered_totals(self, k: int) -> tuple[Tensor, Tensor]:
        """Scores of the k best (k, B), and the edges (2k, B, M, C, C) that they are a function of."""
        from torch_struct import LinearChain as Scan

        d = self._distribution
        potentials = d.log_potentials if self._differentiable else recordable(d.log_potentials)
        totals, (edges,) = Scan(_OrderedKMax(k)).logpartition(potentials, d.lengths)
        return totals[:k], edges


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
        missing = potentials.new_full((self.k - 1, *potentials.shape), FORBIDDEN)
        return torch.cat([potentials.unsqueeze(0), missing, potentials.new_zeros((self.k, *potentials.shape))])

    def zero_(self, xs: Tensor) -> Tensor:
        xs[: self.k] = FORBIDDEN
        xs[self.k :] = 0.0
        return xs

    def zero_mask_(self, xs: Tensor, mask: Tensor) -> None:
        xs[: self.k].masked_fill_(mask.unsqueeze(0), FORBIDDEN)

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
