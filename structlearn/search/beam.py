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
from structlearn.search.ranking import STAY, Candidates, Layer, by_layer, distinct, distinct_columns, top
from structlearn.search.space import S, SearchSpace, join, take


class _Open(NamedTuple):
    """What leads on from a layer: (W, B, K*A/W), the W layers ahead first."""

    g: Tensor  # of the path with one operator more, -inf where there is none
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
    _open: list[_Open] = field(default_factory=list)
    _places: dict[tuple[tuple[int, int], ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.beam is not None and self.beam < 1:
            raise ArgumentError("beam", "an integer >= 1, or None for no limit", self.beam, "beam 1 is greedy search")
        state = self.space.initial()
        b = self.space.batch_size
        device = state[0].device
        none = torch.full((b, 1), STAY, device=device)
        with torch.no_grad():
            scores = self.space.expand(state)
            good = None if self.gold is None else torch.ones((b, 1), dtype=torch.bool, device=device)
            self._furthest = torch.zeros(b, dtype=torch.int64, device=device)
            self._add(Layer(state, scores.new_zeros((b, 1)), good, none, none), scores)

    def _add(self, layer: Layer[S], scores: Tensor | None = None) -> None:
        last = self.layers[-1].g.shape[1] if self.layers else 0
        self.offsets.append(self.offsets[-1] + last if self.layers else 0)
        self.layers.append(layer)
        if len(self.layers) <= self.space.layers:
            scores = self.space.expand(layer.state) if scores is None else scores
            self._open.append(self._ways(len(self.layers) - 1, scores))

    def _ways(self, u: int, scores: Tensor) -> _Open:
        """What leads on from layer u, by the scores (B, K, A) of its operators."""
        layer, reach = self.layers[u], self.space.reach
        state = layer.state
        # States that stand for no hypothesis may read padding, NaN included.
        g = (layer.g[..., None] + scores).masked_fill_((layer.g == -torch.inf)[..., None], -torch.inf)
        g, good = by_layer(g, reach), None
        if layer.good is not None:
            good = by_layer(self.space.y_good(state, self.gold) & layer.good[..., None], reach) & (g > -torch.inf)
            if reach > 1:
                steps = torch.arange(1, reach + 1, device=g.device)[:, None]
                self._furthest = torch.maximum(self._furthest, u + (good.any(2) * steps).amax(0))
        keys = self.space.keys(state) if self.recombine and not self.space.first_order else None
        ahead = self.space.ahead(state)
        ahead, keys = (None if x is None else by_layer(x, reach) for x in (ahead, keys))
        return _Open(g, ahead, keys, good)

    def run(self) -> Search[S]:
        """Takes the search to its last layer; itself."""
        while len(self.layers) <= self.space.layers:
            found = self.candidates()
            self.push(self.pick(found, self.rank(found.f), found.f))
        return self

    @torch.no_grad()
    def candidates(self, margin: float = 0.0) -> Candidates:
        """Those of the next layer, f of the y-good ones lowered by ``margin``."""
        t = len(self.layers)
        origins = range(max(0, t - self.space.reach), t)
        ways = [(self._open[u], t - u - 1) for u in origins]
        before = self.layers[-1]
        stays = before.g.masked_fill(~self.space.is_goal(before.state), -torch.inf)
        whole = torch.cat([*(w.g[i] for w, i in ways), stays], 1)
        parent, operator = self._numbers(origins, stays.shape[1])
        right = None
        if before.good is not None:
            stay_good = before.good & (stays > -torch.inf)
            right = torch.cat([*(w.good[i] for w, i in ways if w.good is not None), stay_good], 1)
        every = whole
        if ways[0][0].ahead is not None:
            h = [w.ahead[i] for w, i in ways if w.ahead is not None]
            every = whole + torch.cat([*h, torch.zeros_like(stays)], 1)
        if margin and right is not None:
            every = every - margin * right
        scores = every
        if self.recombine and self.space.first_order:
            # The last operator is the key. Goals that stay have been told apart in their own layer.
            moves = scores[:, : -stays.shape[1]]
            columns = distinct_columns(moves, self.space.operators // self.space.reach)
            scores = torch.cat([columns, scores[:, -stays.shape[1] :]], 1)
        elif ways[0][0].keys is not None:
            # A goal that stays shares its future with no other state: it gets a key of its own.
            ways_keys = torch.cat([w.keys[i] for w, i in ways if w.keys is not None], 1)
            own = ways_keys.max() + 1 + torch.arange(stays.shape[1], device=stays.device).expand_as(stays)
            scores = distinct(scores, torch.cat([ways_keys, own], 1))
        return Candidates(whole, scores, every, right, parent, operator)

    def _numbers(self, origins: range, stays: int) -> tuple[Tensor, Tensor]:
        """(M,) parents and operators of candidates from these layers, the same for all windows of equal sizes."""
        sizes = tuple((self.layers[u].g.shape[1], self._open[u].g.shape[2]) for u in origins)
        offset = self.offsets[origins[0]]
        if sizes not in self._places:
            device, parents, operators = self.layers[-1].g.device, [], []
            for u, (k, size) in zip(origins, sizes, strict=True):
                place, step = torch.arange(size, device=device), size // k
                parents.append(place // step + self.offsets[u] - offset)
                operators.append(place % step + (len(self.layers) - u - 1) * step)
            place = torch.arange(stays, device=device)
            parents.append(place + self.offsets[-1] - offset)
            operators.append(torch.full_like(place, STAY))
            self._places[sizes] = torch.cat(parents), torch.cat(operators)
        parent, operator = self._places[sizes]
        return parent + offset, operator

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
        # Few layers have goals. Looking is cheap on a CPU; elsewhere it would wait for the device.
        if stay.device.type != "cpu" or bool(stay.any()):
            pairs = zip(moved, origin, strict=True)
            moved = type(moved)(*(torch.where(stay.view(*stay.shape, *[1] * (x.dim() - 2)), y, x) for x, y in pairs))
        return Layer(moved, g, good, parent, operator)

    @torch.no_grad()
    def push(self, layer: Layer[S], restart: Tensor | None = None) -> None:
        """Adds a layer; in the rows of ``restart`` (B,) nothing but this layer leads on."""
        if restart is not None and self.space.reach > 1 and bool(restart.any()):
            rows = restart[:, None]
            for u in range(max(0, len(self.layers) - self.space.reach), len(self.layers)):
                old, ways = self.layers[u], self._open[u]
                self.layers[u] = old._replace(g=old.g.masked_fill(rows, -torch.inf))
                ways.g.masked_fill_(rows, -torch.inf)
                if ways.good is not None:
                    ways.good.masked_fill_(rows, False)
            self._furthest = self._furthest.masked_fill(restart, 0)
        self._add(layer)

    def open_good(self) -> Tensor:
        """(B,) bool: some y-good candidate leads beyond the next layer."""
        return self._furthest > len(self.layers)

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
        with torch.no_grad():
            for u in range(max(0, len(self.layers) - space.reach), len(self._open)):
                self._open[u] = self._ways(u, space.expand(self.layers[u].state))

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
