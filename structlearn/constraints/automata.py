"""Label sequences that a deterministic finite automaton accepts.

The chain intersected with the automaton is a chain over pairs (label, state after reading it):

    transition'[(c, q), (d, r)] = transition[c, d] if next[q, d] = r, else -inf,

one expanded sequence for each accepted label sequence, so it stays batched, differentiable and exact. A score on the
state in which a sequence ends, such as the price of a broken soft constraint, adds to the last label's. A sequence
without labels ends in the first state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, ShapeError
from structlearn.structures.base import recordable, recording
from structlearn.structures.chain import ChainPotentials, LinearChain
from structlearn.structures.counting import CountedBest, Counter, CountTable, LabelCounter
from structlearn.structures.expanded import ExpandedChain


class Expansion(NamedTuple):
    """Pairs (label, state after it) that some step leads to: ``emit`` and ``state`` (E,), their ``place`` (C, Q).

    ``allowed`` (E, E): which pair may follow which; ``opens``, ``closes`` (E,): which may be first, and last.
    """

    emit: Tensor
    state: Tensor
    place: Tensor
    allowed: Tensor
    opens: Tensor
    closes: Tensor


class DFA:
    """States 0..Q-1 reading labels 0..C-1.

    Args:
        next: (Q, C) int: the state after reading label c in state q; -1 forbids it.
        start: the state before the first label.
        accept: the states in which a sequence may end.

    ``dfa(chain)`` is the chain restricted to accepted sequences.
    """

    def __init__(self, next: Tensor | Sequence[Sequence[int]], *, start: int = 0, accept: Sequence[int]) -> None:
        self.next = torch.as_tensor(next, dtype=torch.int64)
        if self.next.dim() != 2:
            raise ShapeError("next", "(Q, C)", tuple(self.next.shape), "one row a state, one column a label")
        states = self.next.shape[0]
        if self.next.numel() and not -1 <= int(self.next.min()) <= int(self.next.max()) < states:
            raise ArgumentError("next", f"states in 0..{states - 1}, or -1", int(self.next.max()), "-1 forbids a step")
        for name, value in (("start", [start]), ("accept", list(accept))):
            if any(not 0 <= q < states for q in value):
                raise ArgumentError(name, f"states in 0..{states - 1}", value, "number the states from 0")
        self.start = start
        self.accept = tuple(accept)

    def __repr__(self) -> str:
        start = f", start={self.start}" if self.start else ""
        return f"DFA({self.next.tolist()}{start}, accept={list(self.accept)})"

    @cached_property
    def expansion(self) -> Expansion:
        """The pairs of a label and a state, on the CPU."""
        # Kept from call to call: what torch.inference_mode makes could not be used in training afterwards.
        with recording():
            return self._expand(recordable(self.next))

    def _expand(self, following: Tensor) -> Expansion:
        # Only pairs that some step leads to; label 0 without a state stands for what the automaton refuses.
        reached = [
            (c, q) for c in range(following.shape[1]) for q in sorted({int(r) for r in following[:, c] if r >= 0})
        ]
        emit = torch.tensor([c for c, _ in reached] or [0])
        state = torch.tensor([q for _, q in reached] or [0])
        place = torch.full((following.shape[1], following.shape[0]), -1)
        if reached:
            place[emit, state] = torch.arange(len(reached))
        return Expansion(
            emit,
            state,
            place,
            following[state][:, emit] == state,
            (following[self.start, emit] == state) & bool(reached),
            torch.isin(state, torch.tensor(self.accept, dtype=torch.int64)),
        )

    def __call__(self, chain: LinearChain, final: Tensor | None = None) -> AutomatonChain:
        """The chain restricted to the label sequences that this automaton accepts; ``final`` (Q,) scores their ends."""
        return AutomatonChain(chain, self, final)


class AutomatonChain(ExpandedChain):
    """The label sequences of a chain that an automaton accepts; potentials and outputs are the chain's own."""

    fields = ("unary", "transition", "start", "end")
    named = ChainPotentials

    def __init__(self, chain: LinearChain, dfa: DFA, final: Tensor | None = None) -> None:
        if chain.unary.shape[2] != dfa.next.shape[1]:
            raise ShapeError(
                "dfa", f"{chain.unary.shape[2]} labels, as the chain has", dfa.next.shape[1], "one column a label"
            )
        self.chain, self.dfa, self.final = chain, dfa, final
        self.unary, self.transition, self.start, self.end = chain.unary, chain.transition, chain.start, chain.end
        pairs = Expansion(*(x.to(chain.unary.device) for x in dfa.expansion))
        self.emit, self._place = pairs.emit, pairs.place

        def edge(scores: Tensor | None, ok: Tensor, final: Tensor | None = None) -> Tensor:
            base = chain.unary.new_zeros(len(self.emit)) if scores is None else scores[self.emit]
            if final is not None:
                base = base + final.to(base)[pairs.state]
            return base.masked_fill(~ok, float("-inf"))

        self.inner = LinearChain(
            chain.unary[..., self.emit],
            chain.transition[..., self.emit, :][..., self.emit].masked_fill(~pairs.allowed, float("-inf")),
            start=edge(chain.start, pairs.opens),
            end=edge(chain.end, pairs.closes, final),
            lengths=chain.lengths,
            backend=chain.backend,
        )
        self.backend = chain.backend
        # The inner chain gives an instance without positions 0; here it ends where it began.
        self._empty: Tensor | None = None
        if dfa.start not in dfa.accept:
            self._empty = self.unary.new_full((), float("-inf"))
        elif final is not None:
            self._empty = final.to(self.unary)[dfa.start]

    def _ended(self, scores: Tensor) -> Tensor:
        """Scores (..., B) with those of instances without positions put right."""
        if self._empty is None or (self.lengths is None and self.unary.shape[1]):
            return scores
        return torch.where(self.mask.any(-1), scores, self._empty)

    def _best(self) -> tuple[Tensor, Tensor]:
        y, score = super()._best()
        return y, self._ended(score).detach()

    def max(self) -> Tensor:
        return self._ended(super().max())

    def log_partition(self) -> Tensor:
        return self._ended(super().log_partition())

    def count(self) -> Tensor:
        counts = super().count()
        return counts.masked_fill(self._ended(counts) == float("-inf"), 0.0)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        y, scores = super().topk(k)
        return y, torch.cat([self._ended(scores[:1]), scores[1:]])

    def max_by_count(self, counter: Counter | LabelCounter) -> CountTable:
        found = super().max_by_count(counter)
        added = self._ended(found.table.new_zeros(self.batch_size)).detach()
        return CountTable(found.table + added.view(-1, *[1] * (found.table.dim() - 1)), found.decode)

    def best_by_count(self, counter: Counter | LabelCounter, offset: Tensor, slope: Tensor) -> CountedBest:
        found = super().best_by_count(counter, offset, slope)
        added = self._ended(torch.zeros_like(found.value)).detach()
        refused = added == float("-inf")
        weight = slope.flatten(1).gather(1, found.index[:, None]).squeeze(1)
        value = (found.value + weight * added.masked_fill(refused, 0.0)).masked_fill(refused, float("-inf"))
        return CountedBest(found.y, found.index, value)

    def _read(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Expanded labels (..., B, N), and which steps the automaton takes, (..., B, N) bool."""
        following = self.dfa.next.to(y.device)
        state = y.new_full(y.shape[:-1], self.dfa.start)
        codes, taken = torch.zeros_like(y), torch.zeros_like(y, dtype=torch.bool)
        for t in range(y.shape[-1]):
            after = following[state, y[..., t]]
            taken[..., t] = after >= 0
            state = after.clamp(min=0)
            codes[..., t] = self._place[y[..., t], state].clamp(min=0)
        return codes, taken

    def encode(self, y: Tensor) -> Tensor:
        return self._read(y)[0]

    def score(self, y: Tensor) -> Tensor:
        """s(y) for labels (B, N), or (K, B, N) with scores (K, B); -inf for what the automaton does not accept."""
        codes, taken = self._read(self.positions(y)[0])
        return self._ended(self.inner.score(codes).masked_fill(~(taken | ~self.mask).all(-1), float("-inf")))

    def forbidden_place(self, y: Tensor, row: int) -> str:
        refused = ~self._read(self.positions(y)[0])[1][row] & self.mask[row]
        if bool(refused.any()):
            t = int(refused.nonzero()[0])
            return f", label {int(y[row, t])} at position {t} is refused by the automaton"
        place = self.chain.forbidden_place(y, row) if bool(self.mask[row].any()) else ""
        return place or ", which ends in a state that does not accept"

    def replace(self, **potentials: Tensor | None) -> Self:
        return type(self)(self.chain.replace(**potentials), self.dfa, self.final)
