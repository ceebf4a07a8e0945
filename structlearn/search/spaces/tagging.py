"""Tagging from left to right: an operator gives the next position its label.

    score(state at n with previous label p, c) = unary[n, c] + transition[p, c]

The outputs and their scores are those of :class:`structlearn.LinearChain`, so a beam that holds every state, or every
label where equal states are recombined, finds its argmax.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, ShapeError
from structlearn.search.space import SearchSpace
from structlearn.structures.base import PAD

Heuristic = Literal["none", "optimistic", "exact"]


class TagState(NamedTuple):
    """(B, K) each: the number of positions labelled and the last label, C at the start."""

    place: Tensor
    last: Tensor


class TaggingSpace(SearchSpace[TagState]):
    """g = sum_n unary[n, y_n] + sum_{n>=1} transition[y_{n-1}, y_n] (+ start[y_0]).

    Args:
        unary: (B, N, C).
        transition: (C, C), [previous, current].
        start: (C,), of the first label.
        lengths: (B,), 1..N; all N if not given. What stands beyond is never read.
        heuristic: "optimistic" adds up the best unary and the best transition of every position to come, which never
            underestimates; "exact" is the score of the best completion, under which best-first search goes straight
            to the argmax. Both take a backward pass over the batch at construction.
    """

    first_order = True

    def __init__(
        self,
        unary: Tensor,
        transition: Tensor,
        *,
        start: Tensor | None = None,
        lengths: Tensor | None = None,
        heuristic: Heuristic = "none",
    ) -> None:
        if unary.dim() != 3:
            raise ShapeError("unary", "(B, N, C)", tuple(unary.shape), "labels come last")
        b, n, c = unary.shape
        if transition.shape != (c, c):
            raise ShapeError("transition", f"(C, C) = {(c, c)}", tuple(transition.shape), "[previous, current]")
        if heuristic not in ("none", "optimistic", "exact"):
            raise ArgumentError("heuristic", "'none', 'optimistic' or 'exact'", repr(heuristic), "see the class")
        self.batch_size, self.layers, self.operators = b, n, c
        self.lengths = torch.full((b,), n, device=unary.device) if lengths is None else lengths.to(unary.device)
        self.unary = unary
        first = unary.new_zeros(c) if start is None else start
        self.transition = torch.cat([transition, first[None]])
        self._rows = torch.arange(b, device=unary.device)[:, None]
        self._ahead = None if heuristic == "none" else self._to_go(heuristic == "exact")

    def initial(self) -> TagState:
        zero = self.lengths.new_zeros((self.batch_size, 1))
        return TagState(zero, zero + self.operators)

    def expand(self, state: TagState) -> Tensor:
        scores = self.unary[self._rows, state.place.clamp(max=self.layers - 1)] + self.transition[state.last]
        return scores.masked_fill(self.is_goal(state)[..., None], -torch.inf)

    def score(self, state: TagState, operator: Tensor) -> Tensor:
        at = state.place.clamp(max=self.layers - 1)
        return self.unary[self._rows, at, operator] + self.transition[state.last, operator]

    def advance(self, state: TagState, operator: Tensor) -> TagState:
        return TagState(state.place + 1, operator)

    def is_goal(self, state: TagState) -> Tensor:
        return state.place >= self.lengths[:, None]

    def y_good(self, state: TagState, gold: Tensor) -> Tensor:
        target = gold[self._rows, state.place.clamp(max=self.layers - 1)]
        return torch.arange(self.operators, device=gold.device) == target[..., None]

    def heuristic(self, state: TagState) -> Tensor | None:
        return None if self._ahead is None else self._ahead[self._rows, state.place, state.last]

    def ahead(self, state: TagState) -> Tensor | None:
        if self._ahead is None:
            return None
        return self._ahead[self._rows, (state.place + 1).clamp(max=self.layers), : self.operators]

    def output(self, operators: Tensor) -> Tensor:
        here = torch.arange(self.layers, device=operators.device) < self.lengths[:, None]
        return torch.where(here, operators[:, : self.layers], PAD)

    def _to_go(self, exact: bool) -> Tensor:
        """(B, N+1, C+1): a bound on what follows n labels of which the last is c."""
        to_go = self.unary.new_zeros((self.batch_size, self.operators + 1))
        table = [to_go]
        for n in range(self.layers - 1, -1, -1):
            if exact:
                follow = (self.transition + (self.unary[:, n] + to_go[:, :-1])[:, None]).amax(-1)
            else:
                best = self.unary[:, n].amax(-1) + to_go[:, 0]
                follow = (best + self.transition.amax())[:, None].expand_as(to_go)
            to_go = torch.where((n < self.lengths)[:, None], follow.detach(), 0)
            table.append(to_go)
        return torch.stack(table[::-1], 1)
