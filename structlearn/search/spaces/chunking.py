"""Chunking by whole segments: an operator adds a segment of some width and label.

    score(state at n with previous label p, (w, c)) = segments[n, w, c] + transition[p, c] + edges[n, p, c]

Hypotheses compete in the layer of the words that they cover. The outputs and their scores are those of
:class:`structlearn.SemiMarkov`, and a beam of all labels with recombination finds its argmax.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from structlearn.errors import ShapeError
from structlearn.search.space import SearchSpace
from structlearn.structures.segmentation import INSIDE, PAD


class ChunkState(NamedTuple):
    """(B, K) each: the number of words covered and the last label, C at the start."""

    place: Tensor
    last: Tensor


class ChunkingSpace(SearchSpace[ChunkState]):
    """g = sum_i segments[t_i, w_i, c_i] + transition[c_{i-1}, c_i] + edges[t_i, c_{i-1}, c_i], c_{-1} = C.

    Args:
        segments: (B, N, W, C) score of the segment that starts at n, has width w+1 and label c.
        transition: (C+1, C), [previous, current]; row C is for the first segment. Or (C, C): no score for the first.
        edges: (B, N, C+1, C), a transition that depends on where it happens; none if not given.
        lengths: (B,), 1..N; all N if not given. What starts at or reaches beyond is never read.

    Outputs, and gold, are (B, N) as for ``SemiMarkov``: w*C + c where a segment starts, -1 inside, -100 beyond.
    """

    first_order = True

    def __init__(
        self,
        segments: Tensor,
        transition: Tensor,
        *,
        edges: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> None:
        if segments.dim() != 4:
            raise ShapeError("segments", "(B, N, W, C)", tuple(segments.shape), "labels come last")
        b, n, w, c = segments.shape
        if transition.shape not in ((c, c), (c + 1, c)):
            raise ShapeError(
                "transition", f"(C, C) or (C+1, C) with C={c}", tuple(transition.shape), "[previous, current]"
            )
        if edges is not None and edges.shape != (b, n, c + 1, c):
            raise ShapeError(
                "edges", f"(B, N, C+1, C) = {(b, n, c + 1, c)}", tuple(edges.shape), "row C is for the first segment"
            )
        self.batch_size, self.layers, self.reach, self.labels = b, n, w, c
        self.operators = w * c
        self.lengths = torch.full((b,), n, device=segments.device) if lengths is None else lengths.to(segments.device)
        self.segments, self.edges = segments, edges
        self.transition = transition if len(transition) > c else torch.cat([transition, transition.new_zeros(1, c)])
        ends = torch.arange(n, device=segments.device)[:, None] + torch.arange(w, device=segments.device) + 1
        self._outside = ends > self.lengths[:, None, None]
        self._closed = segments.detach().masked_fill(self._outside[..., None], -torch.inf)
        self._rows = torch.arange(b, device=segments.device)[:, None]

    def initial(self) -> ChunkState:
        zero = self.lengths.new_zeros((self.batch_size, 1))
        return ChunkState(zero, zero + self.labels)

    def expand(self, state: ChunkState) -> Tensor:
        # Goals alone cover fewer words than the others of their layer, and have no operators.
        place = min(int(state.place.max()), self.layers - 1)
        between = embedding(state.last, self.transition)
        if self.edges is not None:
            here = self.edges[:, place].flatten(0, 1)
            between = between + embedding(state.last + self._rows * (self.labels + 1), here)
        scores = (self._closed[:, place, None] + between[:, :, None]).flatten(2)
        return scores.masked_fill(self.is_goal(state)[..., None], -torch.inf)

    def score(self, state: ChunkState, operator: Tensor) -> Tensor:
        at, label = state.place.clamp(max=self.layers - 1), operator % self.labels
        between = self.transition[state.last, label]
        if self.edges is not None:
            between = between + self.edges[self._rows, at, state.last, label]
        return self.segments[self._rows, at, operator // self.labels, label] + between

    def advance(self, state: ChunkState, operator: Tensor) -> ChunkState:
        return ChunkState(state.place + operator // self.labels + 1, operator % self.labels)

    def is_goal(self, state: ChunkState) -> Tensor:
        return state.place >= self.lengths[:, None]

    def y_good(self, state: ChunkState, gold: Tensor) -> Tensor:
        target = gold[self._rows, state.place.clamp(max=self.layers - 1)]
        return torch.arange(self.operators, device=gold.device) == target[..., None]

    def output(self, operators: Tensor) -> Tensor:
        used = operators >= 0
        width = torch.where(used, operators // self.labels + 1, 0)
        start = width.cumsum(1) - width
        y = torch.full((self.batch_size, self.layers + 1), INSIDE, device=operators.device)
        y = y.scatter(1, torch.where(used, start, self.layers), torch.where(used, operators, INSIDE))[:, :-1]
        here = torch.arange(self.layers, device=operators.device) < self.lengths[:, None]
        return torch.where(here, y, PAD)
