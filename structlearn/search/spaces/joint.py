"""Part-of-speech tagging and chunking together, a word's two decisions in turn.

Parts of speech go a word ahead, so that a chunk tag sees that of the next word:

    p_0, p_1, c_0, p_2, c_1, ..., p_n, c_{n-1}

with p_n the edge of the sentence, a step without a choice. So all hypotheses of a layer decide on the same kind of tag
of the same word, whatever the lengths of their sentences.

    score(p_n) = pos[n, p_n] + pos_pair[p_{n-1}, p_n] + pos_chunk[c_{n-2}, p_n]
    score(c_n) = chunk[n, c_n] + chunk_pair[c_{n-1}, c_n] + left[p_{n-1}, p_n, c_n] + right[p_n, p_{n+1}, c_n]

The product of the two tag sets makes exact search dear; a beam does not mind.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from structlearn.errors import ShapeError
from structlearn.search.space import SearchSpace
from structlearn.structures.base import PAD


class JointState(NamedTuple):
    """(B, K) each: steps taken, the last three parts of speech (P before the first), the last chunk tag (C)."""

    step: Tensor
    here: Tensor
    before: Tensor
    earlier: Tensor
    chunk: Tensor


class JointScores(NamedTuple):
    """Potentials of both tags; row P of parts of speech and row C of chunk tags stand for the edge of the sentence."""

    pos: Tensor  # (B, N, P)
    chunk: Tensor  # (B, N, C)
    pos_pair: Tensor  # (P+1, P), [previous, current]
    pos_chunk: Tensor  # (C+1, P)
    chunk_pair: Tensor  # (C+1, C)
    left: Tensor  # (P+1, P+1, C), [previous word, this word, tag]
    right: Tensor  # (P+1, P+1, C), [this word, next word, tag]


class JointSpace(SearchSpace[JointState]):
    """g = sum_n score(p_n) + score(c_n), in 2n+1 steps: p_0, p_1, c_0, p_2, c_1, ..., the edge, c_{n-1}.

    score(p_n) = pos[n, p_n] + pos_pair[p_{n-1}, p_n] + pos_chunk[c_{n-2}, p_n]; score(c_n) = chunk[n, c_n] +
    chunk_pair[c_{n-1}, c_n] + left[p_{n-1}, p_n, c_n] + right[p_n, p_{n+1}, c_n].

    Args:
        scores: the potentials.
        lengths: (B,), 1..N; all N if not given.

    Outputs, and gold, are (B, N, 2) int64: part of speech and chunk tag, -100 at padding. Operators are parts of speech
    and chunk tags by the same numbers, A = max(P, C); a layer has those of its kind.
    """

    def __init__(self, scores: JointScores, *, lengths: Tensor | None = None) -> None:
        b, n, p = scores.pos.shape
        c = scores.chunk.shape[-1]
        wanted = ((b, n, p), (b, n, c), (p + 1, p), (c + 1, p), (c + 1, c), (p + 1, p + 1, c), (p + 1, p + 1, c))
        for name, tensor, shape in zip(JointScores._fields, scores, wanted, strict=True):
            if tensor.shape != shape:
                raise ShapeError(name, f"{shape}", tuple(tensor.shape), f"with P={p} parts of speech, C={c} chunk tags")
        self.scores, self.parts, self.tags = scores, p, c
        self.batch_size, self.words, self.operators = b, n, max(p, c)
        self.layers = 2 * n + 1
        self.lengths = torch.full((b,), n, device=scores.pos.device) if lengths is None else lengths
        self._shortest = int(self.lengths.min())
        self._rows = torch.arange(b, device=scores.pos.device)[:, None]
        # The edge is a word with one part of speech, which costs nothing.
        self._pos = torch.cat([scores.pos.detach(), scores.pos.new_zeros((b, 1, p))], 1)

    def initial(self) -> JointState:
        zero = self.lengths.new_zeros((self.batch_size, 1))
        edge = zero + self.parts
        return JointState(zero, edge, edge, edge, zero + self.tags)

    @staticmethod
    def _turn(step: int) -> tuple[bool, int]:
        """Is the step one for a part of speech, and of which word: 0, 1, 3, 5, ... are for words 0, 1, 2, 3, ..."""
        for_pos = step == 0 or step % 2 == 1
        return for_pos, (step + 1) // 2 if for_pos else step // 2 - 1

    def _layer(self, state: JointState) -> tuple[bool, int]:
        # Goals alone have taken fewer steps than the others of their layer, and nothing is asked of them.
        return self._turn(min(int(state.step.max()), self.layers - 1))

    def expand(self, state: JointState) -> Tensor:
        s, (for_pos, word) = self.scores, self._layer(state)
        if for_pos:
            between = embedding(state.here, s.pos_pair) + embedding(state.chunk, s.pos_chunk)
            if word < self._shortest:
                return self._pos[:, word, None] + between
            shut = torch.full((self.parts,), -torch.inf, device=self._pos.device)
            edge = torch.where(torch.arange(self.parts, device=shut.device) == 0, 0.0, shut)
            ends, over = (self.lengths == word)[:, None], (self.lengths < word)[:, None]
            here = torch.where(over, shut, torch.where(ends, edge, self._pos[:, word]))
            return here[:, None] + torch.where(ends[..., None], 0, between)
        here = s.chunk[:, word].masked_fill((self.lengths <= word)[:, None], -torch.inf)
        left = embedding(state.earlier * (self.parts + 1) + state.before, s.left.flatten(0, 1))
        right = embedding(state.before * (self.parts + 1) + state.here, s.right.flatten(0, 1))
        return here[:, None] + embedding(state.chunk, s.chunk_pair) + left + right

    def score(self, state: JointState, operator: Tensor) -> Tensor:
        s, step = self.scores, state.step
        for_pos = (step == 0) | (step % 2 == 1)
        word = torch.where(for_pos, (step + 1) // 2, step // 2 - 1)
        at = word.clamp(max=self.words - 1)
        p, c = operator.clamp(max=self.parts - 1), operator.clamp(max=self.tags - 1)
        pos = s.pos[self._rows, at, p] + s.pos_pair[state.here, p] + s.pos_chunk[state.chunk, p]
        chunk = s.chunk[self._rows, at, c] + s.chunk_pair[state.chunk, c] + s.left[state.earlier, state.before, c]
        pos = torch.where(word >= self.lengths[:, None], 0, pos)
        return torch.where(for_pos, pos, chunk + s.right[state.before, state.here, c])

    def advance(self, state: JointState, operator: Tensor) -> JointState:
        for_pos, word = self._layer(state)
        if for_pos:
            here = torch.where((self.lengths <= word)[:, None], self.parts, operator.clamp(max=self.parts - 1))
            return JointState(state.step + 1, here, state.here, state.before, state.chunk)
        return state._replace(step=state.step + 1, chunk=operator.clamp(max=self.tags - 1))

    def is_goal(self, state: JointState) -> Tensor:
        return state.step > 2 * self.lengths[:, None]

    def y_good(self, state: JointState, gold: Tensor) -> Tensor:
        for_pos, word = self._layer(state)
        target = gold[:, min(word, self.words - 1), 0 if for_pos else 1]
        if for_pos:
            target = torch.where(self.lengths <= word, 0, target)
        operator = torch.arange(self.parts if for_pos else self.tags, device=gold.device)
        return (operator == target[:, None])[:, None].expand(-1, state.step.shape[1], -1)

    def output(self, operators: Tensor) -> Tensor:
        word = torch.arange(self.words, device=operators.device)
        both = torch.stack([operators[:, (2 * word - 1).clamp(min=0)], operators[:, 2 * word + 2]], -1)
        return torch.where((word < self.lengths[:, None])[..., None], both, PAD)
