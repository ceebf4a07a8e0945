"""Beam search for a whole batch, as tensor operations: Python loops over layers only.

Layer t of example b keeps the K candidates of highest f = g + h, where a candidate is an operator applied in an
earlier layer that leads to layer t, or a goal of layer t-1, which stays. Of equal f the lowest candidate is taken:
origin layer, then rank in that layer, then operator, each ascending. Rows of a batch do not meet: the result of an
example is the same, to the bit, in every batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, InfeasibleError
from structlearn.search.space import S, SearchSpace, join, take

STAY = -1


class Candidates(NamedTuple):
    """What may enter a layer: M candidates an example."""

    g: Tensor  # (B, M) score of the path, -inf where there is none
    f: Tensor  # (B, M) g + h, by which they are ranked; -inf for those that recombination drops
    every: Tensor  # (B, M) f before recombination
    good: Tensor | None  # (B, M) bool
    parent: Tensor  # (M,) where it comes from, a number within the lattice
    operator: Tensor  # (M,) or STAY


class Layer(NamedTuple, Generic[S]):
    """K hypotheses an example, the best first; where there are fewer, g is -inf."""

    state: S
    g: Tensor  # (B, K)
    good: Tensor | None  # (B, K) bool, if there is gold
    parent: Tensor  # (B, K)
    operator: Tensor  # (B, K)


def top(scores: Tensor, k: int) -> Tensor:
    """(B, k): indices of the k highest of scores (B, M), descending; equal ones by lowest index. k <= M."""
    if scores.device.type == "cpu" and k < scores.shape[1]:
        # torch.topk is several times faster than a sort but leaves ties open: put those it took into order, and sort
        # only if one that it left out equals the last that it took.
        values, index = scores.topk(k)
        last = values[:, -1:]
        left_out = (scores == last).sum(1) > (values == last).sum(1)
        if not bool((left_out & (last[:, 0] > -torch.inf)).any()):
            index = index.sort(1).values
            order = scores.gather(1, index).sort(dim=1, descending=True, stable=True).indices
            return index.gather(1, order)
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :k]


def distinct(f: Tensor, keys: Tensor) -> Tensor:
    """f (B, M) with -inf for all but the best of equal keys (B, M), the first of equals."""
    size = int(keys.max()) + 1
    best = f.new_full((f.shape[0], size), -torch.inf).scatter_reduce(1, keys, f, "amax")
    place = torch.arange(f.shape[1], device=f.device).expand_as(f)
    tied = torch.where(f == best.gather(1, keys), place, f.shape[1])
    first = torch.full_like(best, f.shape[1], dtype=torch.int64).scatter_reduce(1, keys, tied, "amin")
    return f.masked_fill(place != first.gather(1, keys), -torch.inf)


@dataclass
class _Open(Generic[S]):
    """A layer whose operators still lead ahead. (B, K, A) each, as the space gives them."""

    scores: Tensor
    ahead: Tensor | None
    keys: Tensor | None
    good: Tensor | None


@dataclass
class Search(Generic[S]):
    """A search under way: the layers so far, and what leads on from them.

    ``run`` takes it to the end. Learners go step by step: ``candidates`` of the next layer, ``rank`` them, and
    ``push`` those they keep.
    """

    space: SearchSpace[S]
    beam: int | None
    recombine: bool = False
    gold: Any = None
    layers: list[Layer[S]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    _open: list[_Open[S]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.beam is not None and self.beam < 1:
            raise ArgumentError("beam", "an integer >= 1, or None for no limit", self.beam, "beam 1 is greedy search")
        state = self.space.initial()
        b = self.space.batch_size
        device = state[0].device
        none = torch.full((b, 1), STAY, device=device)
        scores = self.space.expand(state)
        good = None if self.gold is None else torch.ones((b, 1), dtype=torch.bool, device=device)
        self._add(Layer(state, scores.new_zeros((b, 1)), good, none, none), scores)

    def _add(self, layer: Layer[S], scores: Tensor | None = None) -> None:
        last = self.layers[-1].g.shape[1] if self.layers else 0
        self.offsets.append(self.offsets[-1] + last if self.layers else 0)
        self.layers.append(layer)
        if len(self.layers) > self.space.layers:
            return
        state = layer.state
        good = None if self.gold is None else self.space.y_good(state, self.gold)
        keys = self.space.keys(state) if self.recombine and not self.space.first_order else None
        scores = self._ways(self.space, layer) if scores is None else scores.detach()
        self._open.append(_Open(scores, self.space.ahead(state), keys, good))

    @staticmethod
    def _ways(space: SearchSpace[S], layer: Layer[S]) -> Tensor:
        # States that stand for no hypothesis may read padding, NaN included.
        return space.expand(layer.state).detach().masked_fill((layer.g == -torch.inf)[..., None], -torch.inf)

    def run(self) -> Search[S]:
        """Takes the search to its last layer; itself."""
        while len(self.layers) <= self.space.layers:
            found = self.candidates()
            self.push(self.pick(found, self.rank(found.f), found.f))
        return self

    def candidates(self, margin: float = 0.0) -> Candidates:
        """Those of the next layer, f of the y-good ones lowered by ``margin``."""
        t, reach = len(self.layers), self.space.reach
        step = self.space.operators // reach
        g, f, good, parents, operators, keys = [], [], [], [], [], []
        for u in range(max(0, t - reach), t):
            layer, ways = self.layers[u], self._open[u]
            k = layer.g.shape[1]
            part = slice((t - u - 1) * step, (t - u) * step)
            g.append((layer.g[:, :, None] + ways.scores[:, :, part]).flatten(1))
            f.append(g[-1] if ways.ahead is None else g[-1] + ways.ahead[:, :, part].flatten(1))
            if ways.good is not None and layer.good is not None:
                good.append((ways.good[:, :, part] & layer.good[:, :, None]).flatten(1))
            if ways.keys is not None:
                keys.append(ways.keys[:, :, part].flatten(1))
            place = torch.arange(k * step, device=layer.g.device)
            parents.append(place // step + self.offsets[u])
            operators.append(place % step + part.start)
        before = self.layers[-1]
        stays = torch.where(self.space.is_goal(before.state), before.g, -torch.inf)
        g.append(stays)
        f.append(stays)
        if before.good is not None:
            good.append(before.good)
        place = torch.arange(stays.shape[1], device=stays.device)
        parents.append(place + self.offsets[-1])
        operators.append(torch.full_like(place, STAY))
        whole = torch.cat(g, 1)
        right = torch.cat(good, 1) & (whole > -torch.inf) if good else None
        every = torch.cat(f, 1)
        if margin and right is not None:
            every = every - margin * right
        scores = every
        if self.recombine and self.space.first_order:
            # The last operator is the key. Goals that stay have been told apart in their own layer.
            moves = scores[:, : -stays.shape[1]]
            scores = torch.cat([_distinct_columns(moves, step), scores[:, -stays.shape[1] :]], 1)
        elif keys:
            # A goal that stays shares its future with no other state: it gets a key of its own.
            ways_keys = torch.cat(keys, 1)
            own = ways_keys.max() + 1 + place.expand_as(stays)
            scores = distinct(scores, torch.cat([ways_keys, own], 1))
        return Candidates(whole, scores, every, right, torch.cat(parents), torch.cat(operators))

    def rank(self, f: Tensor) -> Tensor:
        """(B, K) indices of the candidates to keep by scores f (B, M)."""
        if self.beam is None:
            return top(f, max(1, int((f > -torch.inf).sum(1).max())))
        return top(f, min(self.beam, f.shape[1]))

    def pick(self, found: Candidates, index: Tensor, f: Tensor) -> Layer[S]:
        """The layer of the candidates at ``index`` (B, K); one with f = -inf is no hypothesis."""
        parent, operator = found.parent[index], found.operator[index]
        g = torch.where(f.gather(1, index) > -torch.inf, found.g.gather(1, index), -torch.inf)
        good = None if found.good is None else found.good.gather(1, index)
        first = max(0, len(self.layers) - self.space.reach)
        origin = take(join([layer.state for layer in self.layers[first:]]), parent - self.offsets[first])
        moved = self.space.advance(origin, operator.clamp(min=0))
        stay = operator == STAY
        state = type(moved)(
            *(
                torch.where(stay.view(*stay.shape, *[1] * (x.dim() - 2)), y, x)
                for x, y in zip(moved, origin, strict=True)
            )
        )
        return Layer(state, g, good, parent, operator)

    def push(self, layer: Layer[S], restart: Tensor | None = None) -> None:
        """Adds a layer; in the rows of ``restart`` (B,) nothing but this layer leads on."""
        if restart is not None and self.space.reach > 1:
            for u in range(max(0, len(self.layers) - self.space.reach), len(self.layers)):
                old = self.layers[u]
                self.layers[u] = old._replace(g=old.g.masked_fill(restart[:, None], -torch.inf))
        self._add(layer)

    def open_good(self) -> Tensor:
        """(B,) bool: some y-good candidate leads beyond the next layer."""
        t, reach = len(self.layers), self.space.reach
        step = self.space.operators // reach
        found = torch.zeros(self.space.batch_size, dtype=torch.bool, device=self.layers[-1].g.device)
        for u in range(max(0, t - reach + 1), t):
            layer, ways = self.layers[u], self._open[u]
            if layer.good is not None and ways.good is not None:
                alive = layer.good & (layer.g > -torch.inf)
                beyond = slice((t - u) * step, None)
                leads = ways.good[:, :, beyond] & (ways.scores[:, :, beyond] > -torch.inf)
                found = found | (leads & alive[:, :, None]).flatten(1).any(1)
        return found

    def rescored(self, space: SearchSpace[S]) -> None:
        """Goes on in ``space``, the same problems with other scores: those of all hypotheses are worked out anew."""
        self.space = space
        parent = torch.cat([layer.parent for layer in self.layers], 1).clamp(min=0)
        operator = torch.cat([layer.operator for layer in self.layers], 1)
        origin = take(join([layer.state for layer in self.layers]), parent)
        scores = space.score(origin, operator.clamp(min=0)).detach()
        scores = torch.where(operator == STAY, 0, scores)
        totals = [torch.zeros_like(self.layers[0].g)]
        for layer, offset in zip(self.layers[1:], self.offsets[1:], strict=True):
            own = scores[:, offset : offset + layer.g.shape[1]]
            g = torch.cat(totals, 1).gather(1, layer.parent.clamp(min=0)) + own
            totals.append(g)
        for t, (layer, g) in enumerate(zip(self.layers, totals, strict=True)):
            self.layers[t] = layer._replace(g=torch.where(layer.g > -torch.inf, g, -torch.inf))
        for u in range(max(0, len(self.layers) - space.reach), len(self._open)):
            state = self.layers[u].state
            self._open[u].scores = self._ways(space, self.layers[u])
            self._open[u].ahead = space.ahead(state)

    def paths(self, slot: Tensor) -> Tensor:
        """Operators (B, T), in order, then -1, of the hypotheses at ``slot`` (B,) of the last layer."""
        at = slot + self.offsets[-1]
        taken = []
        for layer, offset in zip(self.layers[:0:-1], self.offsets[:0:-1], strict=True):
            here = (at >= offset)[:, None]
            k = (at - offset).clamp(min=0)[:, None]
            taken.append(torch.where(here, layer.operator.gather(1, k), STAY)[:, 0])
            at = torch.where(here, layer.parent.gather(1, k), at[:, None])[:, 0]
        operators = torch.stack(taken[::-1], 1)
        used = operators != STAY
        order = torch.where(used, 0, 1).sort(dim=1, stable=True).indices
        return operators.gather(1, order)


def _distinct_columns(f: Tensor, step: int) -> Tensor:
    """f (B, R*step) with -inf for all but the highest, first of equals, of the R entries of each of the columns."""
    table = f.view(f.shape[0], -1, step)
    best = table.max(1, keepdim=True).indices
    rows = torch.arange(table.shape[1], device=f.device)[:, None]
    return table.masked_fill(rows != best, -torch.inf).view_as(f)


class Found(NamedTuple):
    """The best goal of each example."""

    output: Any
    score: Tensor  # (B,)
    operators: Tensor  # (B, T), then -1


@torch.no_grad()
def beam_search(space: SearchSpace[S], beam: int | None, *, recombine: bool = False) -> Found:
    """argmax of g over the goals that a beam of K = ``beam`` hypotheses a layer reaches; None: all of them.

    Args:
        space: B search problems.
        beam: K; 1 is greedy search.
        recombine: of hypotheses of one layer with equal futures keep the best alone.
    """
    search = Search(space, beam, recombine).run()
    last = search.layers[-1]
    score = last.g[:, 0]
    dead = (score == -torch.inf).nonzero()
    if len(dead):
        raise InfeasibleError(
            "space",
            "a goal within the beam of every example",
            f"none for example {int(dead[0])}",
            "widen the beam, or allow an operator there",
        )
    operators = search.paths(torch.zeros_like(last.parent[:, 0]))
    return Found(space.output(operators), score, operators)
