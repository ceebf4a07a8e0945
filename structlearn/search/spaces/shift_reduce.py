"""Shift-reduce parsing into labelled binary trees.

Operator l < L shifts the next word under label l; operator L + l joins the two topmost trees of the stack under l:

    score(shift l) = spans[q, q, l],   score(reduce l) = spans[start of the second tree, q-1, l],

q the number of words shifted. A tree over n words takes 2n-1 operators in one order alone, so the outputs and their
scores are those of :class:`structlearn.SpanTree`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structlearn.errors import ShapeError
from structlearn.search.space import SearchSpace
from structlearn.structures.base import PAD


class ParseState(NamedTuple):
    """Words shifted (B, K), trees on the stack (B, K), and the first word of each tree (B, K, N)."""

    shifted: Tensor
    depth: Tensor
    starts: Tensor


class ShiftReduceSpace(SearchSpace[ParseState]):
    """g = sum over the spans i..j of a tree of spans[i, j, label].

    Args:
        spans: (B, N, N, L) score of label l on the words i..j, both inclusive.
        lengths: (B,), 1..N; all N if not given. What ends beyond is never read.

    Outputs, and gold, are charts (B, N, N): the label of every span of the tree, -100 elsewhere.
    """

    def __init__(self, spans: Tensor, *, lengths: Tensor | None = None) -> None:
        if spans.dim() != 4 or spans.shape[1] != spans.shape[2]:
            raise ShapeError("spans", "(B, N, N, L)", tuple(spans.shape), "index it [sentence, first, last, label]")
        b, n, _, labels = spans.shape
        self.spans, self.labels, self.words = spans, labels, n
        self.batch_size, self.layers, self.operators = b, 2 * n - 1, 2 * labels
        self.lengths = torch.full((b,), n, device=spans.device) if lengths is None else lengths.to(spans.device)
        self._rows = torch.arange(b, device=spans.device)[:, None]

    def initial(self) -> ParseState:
        zero = self.lengths.new_zeros((self.batch_size, 1))
        return ParseState(zero, zero, zero[..., None].expand(-1, -1, self.words))

    def _places(self, state: ParseState) -> tuple[Tensor, Tensor, Tensor]:
        """(B, K) each: the next word, the first and the last word that a reduction would cover."""
        second = (state.depth - 2).clamp(min=0)[..., None]
        word = state.shifted.clamp(max=self.words - 1)
        return word, state.starts.gather(2, second)[..., 0], (state.shifted - 1).clamp(min=0)

    def expand(self, state: ParseState) -> Tensor:
        word, first, last = self._places(state)
        no_shift = (state.shifted >= self.lengths[:, None])[..., None]
        shift = self.spans[self._rows, word, word].masked_fill(no_shift, -torch.inf)
        reduce = self.spans[self._rows, first, last].masked_fill((state.depth < 2)[..., None], -torch.inf)
        return torch.cat([shift, reduce], -1)

    def score(self, state: ParseState, operator: Tensor) -> Tensor:
        word, first, last = self._places(state)
        shift = operator < self.labels
        start, end = torch.where(shift, word, first), torch.where(shift, word, last)
        return self.spans[self._rows, start, end, operator % self.labels]

    def advance(self, state: ParseState, operator: Tensor) -> ParseState:
        shift = operator < self.labels
        # A reduction keeps the first word of the lower tree and drops the upper one.
        top = state.depth.clamp(max=self.words - 1)[..., None]
        word = torch.where(shift, state.shifted, state.starts.gather(2, top)[..., 0])
        starts = state.starts.scatter(2, top, word.clamp(max=self.words - 1)[..., None])
        depth = (state.depth + torch.where(shift, 1, -1)).clamp(min=0, max=self.words)
        return ParseState((state.shifted + shift).clamp(max=self.words), depth, starts)

    def is_goal(self, state: ParseState) -> Tensor:
        return (state.shifted >= self.lengths[:, None]) & (state.depth <= 1)

    def y_good(self, state: ParseState, gold: Tensor) -> Tensor:
        word, first, last = self._places(state)
        label = torch.arange(self.labels, device=gold.device)
        join = gold[self._rows, first, last]
        due = (state.depth >= 2) & (join != PAD)
        # A span of gold that ends here can be made now and never again.
        shift = (gold[self._rows, word, word][..., None] == label) & ~due[..., None]
        return torch.cat([shift, (join[..., None] == label) & due[..., None]], -1)

    def output(self, operators: Tensor) -> Tensor:
        chart = torch.full((self.batch_size, self.words, self.words), PAD, device=operators.device)
        state, rows = self.initial(), self._rows[:, 0]
        for t in range(operators.shape[1]):
            operator = operators[:, t : t + 1]
            used, shift = operator >= 0, operator < self.labels
            word, first, last = self._places(state)
            start, end = torch.where(shift, word, first)[:, 0], torch.where(shift, word, last)[:, 0]
            label = torch.where(used, operator % self.labels, chart[rows, start, end][:, None])
            chart[rows, start, end] = label[:, 0]
            state = self.advance(state, operator.clamp(min=0))
        return chart
