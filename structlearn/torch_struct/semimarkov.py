"""Semi-Markov chains through torch-struct.

torch-struct's ``SemiMarkovCRF`` takes edges (B, N, K, C, C) over N+1 nodes: edge [n, k, next, label] is a segment of
k positions from node n with that label, followed by a segment (or the last node) labelled next; k = 0 is not used.
:func:`to_torch_struct` gives the last node label 0, keeps every row at the full length (a shorter one goes on with
free segments of width 1 and label 0: with ragged lengths torch-struct loses wide segments beyond the shortest row)
and puts ``FORBIDDEN`` where nothing may be, since its zeros are finite. One of them is -1e5: scores of that size are
beyond it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.structures.semimarkov import SemiMarkov

FORBIDDEN = -1e9


def to_torch_struct(chain: SemiMarkov) -> Any:
    """``torch_struct.SemiMarkovCRF`` over (B, N, min(W, N)+1, C, C) edges with the same distribution as ``chain``.

    An N of 0 stands as 1.
    """
    from torch_struct import SemiMarkovCRF

    b, n, w, c = chain.segments.shape
    if b == 0:
        raise ArgumentError("structure", "at least one sequence for torch-struct", "B=0", "leave out empty batches")
    w = max(min(w, n), 1)
    segments = chain.segments[:, :, :w].masked_fill(~chain.segment_mask[:, :, :w, None], FORBIDDEN)
    transition = chain.transition.mT
    if transition.dim() == 4:
        transition = transition.masked_fill(~chain.mask[:, 1:, None, None], 0.0)
    if n == 0:
        segments, n = segments.new_full((b, 1, w, c), FORBIDDEN), 1
    lengths = chain.mask.sum(1)[:, None, None]
    places = torch.arange(n, device=segments.device)[:, None]
    widths = torch.arange(w, device=segments.device)
    ends = (places + widths + 1).expand(b, n, w)

    # What follows a segment: a transition inside the sequence, only label 0 at its end, nothing beyond it.
    last = segments.new_full((c, c), FORBIDDEN)
    last[0] = 0.0
    moves = transition if transition.dim() == 2 else _at_ends(transition, n, w)
    follow = torch.where((ends < lengths)[..., None, None], moves, last)
    edges = segments[..., None, :] + follow

    free = edges.new_full((c, c), FORBIDDEN)
    free[0, 0] = 0.0
    beyond = (places >= lengths) & (widths == 0)
    edges = torch.where(beyond[..., None, None], free, edges).clamp(min=FORBIDDEN)
    unused = edges.new_full((b, n, 1, c, c), FORBIDDEN)
    return SemiMarkovCRF(torch.cat([unused, edges], 2), lengths=torch.full((b,), n + 1, device=edges.device))


def _at_ends(transition: Tensor, n: int, w: int) -> Tensor:
    """(B, N-1, C, C) to (B, N, W, C, C): for a segment [t, t+w], the matrix that leads on to position t+w+1."""
    b, steps, c, _ = transition.shape
    if steps == 0:
        return transition.new_zeros((b, n, w, c, c))
    ends = torch.arange(n, device=transition.device)[:, None] + torch.arange(w, device=transition.device)
    return transition[:, ends.clamp(max=steps - 1)]


def from_torch_struct(distribution: Any, *, backend: str = "auto") -> SemiMarkov:
    """The :class:`SemiMarkov` with the distribution of a ``torch_struct.SemiMarkovCRF`` over edges (B, N, K, C, C).

    An edge depends on two labels and a width at once, so the labels here are pairs: c * C + next. A segment labelled
    (c, next) is followed by one whose c is next; the last one's next is the label of torch-struct's last node.
    """
    edges = distribution.log_potentials
    c = edges.shape[-1]
    segments = edges[:, :, 1:].mT.flatten(-2)
    forbidden = edges.new_full((), float("-inf"))
    own = torch.eye(c, dtype=torch.bool, device=edges.device)
    # [(p, next), (c, _)]: allowed where next = c.
    allowed = own[None, :, :, None].expand(c, c, c, c).reshape(c * c, c * c)
    lengths = None if distribution.lengths is None else distribution.lengths - 1
    return SemiMarkov(segments, torch.where(allowed, 0.0, forbidden), lengths=lengths, backend=backend)
