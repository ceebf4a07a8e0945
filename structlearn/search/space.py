"""Search problems whose states are tensors for a whole batch of beams.

A search problem is a set of states, operators that lead from state to state, a goal test and the score of a path,

    g(path) = sum_i score(s_i, a_i),   s_{i+1} = advance(s_i, a_i),

with scores linear in what is learnt. All states of a batch move together: a state is a named tuple of tensors
(B, K, ...), B examples with K hypotheses each. Axis letters: A operators, W reach, T layers, M candidates.

Hypotheses compete in layers. Operator a leads from layer t to layer t + 1 + a // (A / W): with reach W = 1 a layer is
a number of operators; a space of segments puts a hypothesis into the layer of the words that it covers, so that only
hypotheses over the same words are compared.

A state is y-good if a goal with output y can be reached from it. The initial state is; of the others the operators on
the path say so one by one, and a state need not remember its path.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

S = TypeVar("S", bound=tuple[Tensor, ...])


def take(state: S, index: Tensor) -> S:
    """state[b, index[b, k]]: the states (B, K', ...) at ``index`` (B, K') of states (B, K, ...)."""
    return _like(state, (x.gather(1, _spread(index, x)) for x in state))


def _spread(index: Tensor, x: Tensor) -> Tensor:
    if x.dim() == 2:
        return index
    return index.view(*index.shape, *[1] * (x.dim() - 2)).expand(*index.shape, *x.shape[2:])


def join(states: list[S]) -> S:
    """States side by side: (B, K1, ...), (B, K2, ...), ... to (B, K1 + K2 + ..., ...)."""
    if len(states) == 1:
        return states[0]
    return _like(states[0], (torch.cat(parts, 1) for parts in zip(*states, strict=True)))


def choose(where: Tensor, these: S, others: S) -> S:
    """``these`` in the rows of ``where`` (B,), ``others`` elsewhere."""
    pairs = zip(these, others, strict=True)
    return _like(these, (torch.where(where.view(-1, *[1] * (x.dim() - 1)), x, y) for x, y in pairs))


def _like(state: S, parts: Any) -> S:
    return type(state)(*parts)


class SearchSpace(ABC, Generic[S]):
    """A batch of search problems: the initial states, the scores of operators, and what they lead to.

    A subclass sets ``batch_size`` B, ``operators`` A, ``layers`` T (no path goes beyond) and, if not 1, ``reach`` W;
    it defines the abstract methods, and may override the others for speed. Scores may require gradients: ``score`` is
    how updates and losses reach what produced them.
    """

    batch_size: int
    operators: int
    layers: int
    reach: int = 1
    # States of one layer with equal last operators, modulo A / W, have equal futures.
    first_order: bool = False

    @abstractmethod
    def initial(self) -> S:
        """The states (B, 1, ...) of layer 0."""

    @abstractmethod
    def expand(self, state: S) -> Tensor:
        """Scores (B, K, A) of all operators, -inf where one does not apply; goals have none.

        All states are of one layer, goals of earlier ones aside. With reach 1 a layer may have fewer operators, the
        first of A. ``advance`` and ``y_good`` are called likewise if the reach is 1, else with states of any layers;
        ``score`` always takes states of any layers, so a space that relies on one layer here defines it too.
        """

    @abstractmethod
    def advance(self, state: S, operator: Tensor) -> S:
        """The states that operators (B, K) lead to; where one does not apply, any state."""

    @abstractmethod
    def is_goal(self, state: S) -> Tensor:
        """(B, K) bool."""

    @abstractmethod
    def y_good(self, state: S, gold: Any) -> Tensor:
        """(B, K, A) bool: operators that lead from a y-good state to y-good states, y being ``gold``.

        What it says of states that are not y-good, or of operators that do not apply, is not read.
        """

    @abstractmethod
    def output(self, operators: Tensor) -> Any:
        """The output of the paths (B, T), operators in order, then -1."""

    def score(self, state: S, operator: Tensor) -> Tensor:
        """(B, K): what ``expand`` says of one operator each, differentiable."""
        return self.expand(state).gather(2, operator[..., None]).squeeze(2)

    def heuristic(self, state: S) -> Tensor | None:
        """h (B, K), an estimate of the best score still to come, 0 at goals; None stands for h = 0."""
        return None

    def ahead(self, state: S) -> Tensor | None:
        """h of the states that operators lead to, (B, K, A)."""
        if type(self).heuristic is SearchSpace.heuristic or self.heuristic(self.initial()) is None:
            return None
        b, k = state[0].shape[:2]
        index = torch.arange(k, device=state[0].device).repeat_interleave(self.operators).expand(b, -1)
        operator = torch.arange(self.operators, device=index.device).repeat(k).expand(b, -1)
        h = self.heuristic(self.advance(take(state, index), operator))
        return None if h is None else h.view(b, k, -1)

    def keys(self, state: S) -> Tensor | None:
        """(B, K, A) int64, equal for operators to states of one layer with equal futures; None: all differ."""
        if not self.first_order:
            return None
        b, k = state[0].shape[:2]
        step = self.operators // self.reach
        return (torch.arange(self.operators, device=state[0].device) % step).expand(b, k, -1)
