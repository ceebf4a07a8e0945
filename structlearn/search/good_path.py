"""The one y-good path of every example, where there is only one: no search is needed to follow it."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor

from structlearn.search.ranking import STAY
from structlearn.search.space import S, SearchSpace, choose, join


class GoodPath(NamedTuple, Generic[S]):
    """T steps an example.

    origin: (B, T, ...) states before the steps.
    operator: (B, T), STAY after the goal.
    layer: (B, T) that the step leads to.
    g: (B, layers+1) score of the path to each layer, without gradient; -inf where none of its states is.
    """

    origin: S
    operator: Tensor
    layer: Tensor
    g: Tensor

    def value(self, space: SearchSpace[S], at: Tensor, weight: Tensor) -> Tensor:
        """sum of weight (B,) * g(path up to layer ``at`` (B,)), differentiable."""
        used = (self.operator != STAY) & (self.layer <= at[:, None]) & (weight != 0)[:, None]
        score = space.score(self.origin, self.operator.clamp(min=0))
        return (torch.where(used, score, 0) * weight[:, None]).sum()


@torch.no_grad()
def good_path(space: SearchSpace[S], gold: Any) -> GoodPath[S] | None:
    """Follows ``gold`` from the initial states; None if an example has several ways or none."""
    state, b = space.initial(), space.batch_size
    step = space.operators // space.reach
    reached = torch.zeros((b, 1), dtype=torch.int64, device=state[0].device)
    states, operators, layers = [], [], []
    for _ in range(space.layers):
        goal = space.is_goal(state)
        if bool(goal.all()):
            break
        ways = space.y_good(state, gold)
        if bool(((ways.sum(2) != 1) & ~goal).any()):
            return None
        operator = torch.where(goal, STAY, ways.int().argmax(2))
        moved = space.advance(state, operator.clamp(min=0))
        reached = reached + torch.where(goal, 0, 1 + operator // step)
        states.append(state)
        operators.append(operator)
        layers.append(reached)
        state = choose(goal[:, 0], state, moved)
    if not states or not bool(space.is_goal(state).all()):
        return None
    origin, operator, layer = join(states), torch.cat(operators, 1), torch.cat(layers, 1)
    scores = space.score(origin, operator.clamp(min=0))
    scores = torch.where(operator == STAY, 0, scores)
    if not bool((scores > -torch.inf).all()):
        return None
    g = scores.new_full((b, space.layers + 1), -torch.inf)
    total = g[:, 0] = torch.zeros_like(g[:, 0])
    for t in range(scores.shape[1]):
        # One after another, as a search adds them: equal paths have equal scores to the bit.
        total = total + scores[:, t]
        g.scatter_(1, layer[:, t : t + 1], total[:, None])
    over = torch.arange(space.layers + 1, device=g.device) > reached
    return GoodPath(origin, operator, layer, torch.where(over, total[:, None], g))
