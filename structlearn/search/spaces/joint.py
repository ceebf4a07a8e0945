"""Part-of-speech tagging and chunking together, a word's two decisions in turn.

Parts of speech go a word ahead, so that a chunk tag sees that of the next word: p_0, p_1, c_0, p_2, c_1, ..., c_{n-1}.

    score(p_n) = pos[n, p_n] + pos_pair[p_{n-1}, p_n] + pos_chunk[c_{n-2}, p_n]
    score(c_n) = chunk[n, c_n] + chunk_pair[c_{n-1}, c_n] + left[p_{n-1}, p_n, c_n] + right[p_n, p_{n+1}, c_n]

The product of the two tag sets makes exact search dear; a beam does not mind.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

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
    """The potentials above; row P of parts of speech and row C of chunk tags stand for the edge of the sentence."""

    pos: Tensor  # (B, N, P)
    chunk: Tensor  # (B, N, C)
    pos_pair: Tensor  # (P+1, P), [previous, current]
    pos_chunk: Tensor  # (C+1, P)
    chunk_pair: Tensor  # (C+1, C)
    left: Tensor  # (P+1, P+1, C), [previous word, this word, tag]
    right: Tensor  # (P+1, P+1, C), [this word, next word, tag]


class JointSpace(SearchSpace[JointState]):
    """g = the sum of all scores above over 2N steps.

    Args:
        scores: the potentials.
        lengths: (B,), 1..N; all N if not given.

    Outputs, and gold, are (B, N, 2) int64: part of speech and chunk tag, -100 at padding. Operators are parts of speech
    and chunk tags by the same numbers, A = max(P, C).
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
        self.layers = 2 * n
        self.lengths = torch.full((b,), n, device=scores.pos.device) if lengths is None else lengths
        self._rows = torch.arange(b, device=scores.pos.device)[:, None]

    def initial(self) -> JointState:
        zero = self.lengths.new_zeros((self.batch_size, 1))
        edge = zero + self.parts
        return JointState(zero, edge, edge, edge, zero + self.tags)

    def _turn(self, state: JointState) -> tuple[Tensor, Tensor]:
        """(B, K): is the step one for a part of speech, and of which word.

        Steps 0, 1, 3, 5, ... are for parts of speech of words 0, 1, 2, ...; steps 2, 4, ... and the last for chunks.
        """
        step, last = state.step, 2 * self.lengths[:, None] - 1
        for_pos = ((step == 0) | (step % 2 == 1)) & (step != last)
        word = torch.where(for_pos, (step + 1) // 2, (step - 1) // 2)
        word = torch.where(step >= last, self.lengths[:, None] - 1, word)
        return for_pos, word.clamp(max=self.words - 1)

    def expand(self, state: JointState) -> Tensor:
        s, (for_pos, word) = self.scores, self._turn(state)
        pos = s.pos[self._rows, word] + s.pos_pair[state.here] + s.pos_chunk[state.chunk]
        first, this, after = self._window(state)
        chunk = s.chunk[self._rows, word] + s.chunk_pair[state.chunk] + s.left[first, this] + s.right[this, after]
        scores = torch.where(for_pos[..., None], self._wide(pos), self._wide(chunk))
        return scores.masked_fill(self.is_goal(state)[..., None], -torch.inf)

    def score(self, state: JointState, operator: Tensor) -> Tensor:
        s, (for_pos, word) = self.scores, self._turn(state)
        p, c = operator.clamp(max=self.parts - 1), operator.clamp(max=self.tags - 1)
        pos = s.pos[self._rows, word, p] + s.pos_pair[state.here, p] + s.pos_chunk[state.chunk, p]
        first, this, after = self._window(state)
        chunk = s.chunk[self._rows, word, c] + s.chunk_pair[state.chunk, c] + s.left[first, this, c]
        return torch.where(for_pos, pos, chunk + s.right[this, after, c])

    def _window(self, state: JointState) -> tuple[Tensor, Tensor, Tensor]:
        """Parts of speech around the word whose chunk tag is due; the last word has none after it."""
        last = state.step == 2 * self.lengths[:, None] - 1
        edge = torch.full_like(state.here, self.parts)
        return (
            torch.where(last, state.before, state.earlier),
            torch.where(last, state.here, state.before),
            torch.where(last, edge, state.here),
        )

    def _wide(self, scores: Tensor) -> Tensor:
        shut = scores.new_full((*scores.shape[:2], self.operators - scores.shape[2]), -torch.inf)
        return torch.cat([scores, shut], 2)

    def advance(self, state: JointState, operator: Tensor) -> JointState:
        for_pos, _ = self._turn(state)
        return JointState(
            state.step + 1,
            torch.where(for_pos, operator.clamp(max=self.parts), state.here),
            torch.where(for_pos, state.here, state.before),
            torch.where(for_pos, state.before, state.earlier),
            torch.where(for_pos, state.chunk, operator.clamp(max=self.tags)),
        )

    def is_goal(self, state: JointState) -> Tensor:
        return state.step >= 2 * self.lengths[:, None]

    def y_good(self, state: JointState, gold: Tensor) -> Tensor:
        for_pos, word = self._turn(state)
        target = torch.where(for_pos, gold[self._rows, word, 0], gold[self._rows, word, 1])
        return torch.arange(self.operators, device=gold.device) == target[..., None]

    def output(self, operators: Tensor) -> Tensor:
        word = torch.arange(self.words, device=operators.device)
        last = self.lengths[:, None] - 1
        pos = operators.gather(1, (2 * word - 1).clamp(min=0).expand(self.batch_size, -1))
        when = torch.where(word == last, 2 * last + 1, 2 * word + 2).clamp(max=self.layers - 1)
        both = torch.stack([pos, operators.gather(1, when)], -1)
        return torch.where((word <= last)[..., None], both, PAD)
