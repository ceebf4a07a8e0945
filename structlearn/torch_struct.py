"""Adapters between structlearn and the torch-struct package.

torch-struct's ``LinearChainCRF`` takes edge potentials (B, N-1, C, C) indexed [current, previous]; unary, start
and end scores are folded into them. It needs two positions and has a finite zero (-1e9), so the chain that
:func:`to_torch_struct` builds starts with one extra position that allows only label 0 (its edge carries the
first unary and the start scores), and forbidden edges get ``FORBIDDEN``, which no sum of real scores reaches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.structures.base import PAD
from structlearn.structures.chain import LinearChain

FORBIDDEN = -1e9


def to_torch_struct(chain: LinearChain) -> Any:
    """``torch_struct.LinearChainCRF`` over (B, N, C, C) edges with the same distribution as ``chain``.

    Its position 0 is the extra one; positions 1..n are the chain's. Sequences of length 0 stand as length 1.
    """
    from torch_struct import LinearChainCRF

    b, n, c = chain.unary.shape
    mask = chain.mask
    unary = chain.unary.masked_fill(~mask[:, :, None], 0.0)
    lengths = mask.sum(1)
    if chain.start is not None:
        unary = torch.cat([unary[:, :1] + chain.start, unary[:, 1:]], 1)
    if chain.end is not None:
        last = torch.arange(n, device=mask.device) == (lengths - 1)[:, None]
        unary = unary + torch.where(last[:, :, None], chain.end, 0.0)
    first = unary.new_full((b, 1, c, c), FORBIDDEN)
    first[..., 0] = 0.0
    between = chain.transition.mT.expand(b, max(n - 1, 0), c, c)
    if chain.transition.dim() == 4:
        between = between.masked_fill(~mask[:, 1:, None, None], 0.0)
    edges = torch.cat([first, between], 1) + unary[..., None]
    return LinearChainCRF(edges.clamp(min=FORBIDDEN), lengths=lengths.clamp(min=1) + 1)


def from_torch_struct(distribution: Any, *, backend: str = "auto") -> LinearChain:
    """The :class:`LinearChain` with the distribution of a ``torch_struct.LinearChainCRF``.

    Its edges (B, N-1, C, C) become per-position transitions with unary scores 0.
    """
    edges = distribution.log_potentials
    if edges.dim() != 4:
        from structlearn.errors import ShapeError

        raise ShapeError(
            "distribution", "a LinearChainCRF with edges (B, N-1, C, C)", tuple(edges.shape), "pass a torch_struct.LinearChainCRF"
        )
    b, steps, c, _ = edges.shape
    return LinearChain(edges.new_zeros((b, steps + 1, c)), edges.mT, lengths=distribution.lengths, backend=backend)


class ChainQueries:
    """The queries of a :class:`LinearChain` answered by torch-struct."""

    def __init__(self, chain: LinearChain) -> None:
        self._lengths = chain.mask.sum(1)
        self._count = chain.count()
        self._mask = chain.mask
        self._distribution = to_torch_struct(chain)

    def _clean(self, scores: Tensor) -> Tensor:
        """-inf below any real score, 0 for empty sequences."""
        scores = scores.masked_fill(scores < 0.5 * FORBIDDEN, float("-inf"))
        return scores.masked_fill(self._lengths == 0, 0.0)

    def _labels(self, parts: Tensor, scores: Tensor) -> Tensor:
        """Edge indicators (..., B, N, C, C) to labels (..., B, N)."""
        labels = parts.sum(-1).argmax(-1)
        return labels.masked_fill(~(self._mask & (scores > float("-inf"))[..., None]), PAD)

    def best(self) -> tuple[Tensor, Tensor]:
        scores = self.max().detach()
        return self._labels(self._distribution.argmax.detach(), scores), scores

    def max(self) -> Tensor:
        return self._clean(self._distribution.max)

    def log_partition(self) -> Tensor:
        return self._clean(self._distribution.partition)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        scores = self._clean(self._distribution.kmax(k).detach())
        # Beyond the last output torch-struct repeats earlier ones.
        scores = scores.masked_fill(torch.arange(k, device=scores.device)[:, None] >= self._count, float("-inf"))
        return self._labels(self._distribution.topk(k).detach(), scores), scores
