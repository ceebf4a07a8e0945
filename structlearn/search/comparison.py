"""Updates that compare two hypotheses of one layer: standard, early and max-violation.

Δ = Φ(best y-good hypothesis) - Φ(best hypothesis)
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.search.beam import Search
from structlearn.search.good_path import good_path
from structlearn.search.ranking import Layer, top
from structlearn.search.space import S, SearchSpace, take
from structlearn.search.tally import Tally
from structlearn.search.violations import Violations, nothing, unreachable

Strategy = Literal["early", "max_violation", "standard"]


def compare(
    space: SearchSpace[S],
    gold: Any,
    beam: int | None,
    *,
    strategy: Strategy,
    margin: float = 0.0,
    recombine: bool = False,
) -> Violations:
    """Δ = Φ(best y-good hypothesis) - Φ(best hypothesis), at one layer of each example.

    Args:
        space, gold, beam, margin, recombine: as for :func:`laso`.
        strategy: which layer: "standard" the last, "early" where the last y-good hypothesis falls off, "max_violation"
            where it is outranked by most.
    """
    if strategy not in get_args(Strategy):
        raise ArgumentError(
            "strategy", f"one of {get_args(Strategy)}", repr(strategy), "laso() is a function of its own"
        )
    search = Search(space, beam, recombine, gold)
    best, lost, first = _watch(search, margin)
    final = search.layers[-1]
    assert final.good is not None
    wrong = ~final.good[:, 0]
    first = torch.where(wrong & (first < 0), space.layers, first)
    if strategy == "early":
        wrong = wrong | lost
    only = good_path(space, gold)
    g, goods = (only.g[:, 1:], []) if only else _several(track := Search(space, beam, False, gold))
    if strategy == "early":
        at = first
    elif strategy == "max_violation":
        by = torch.where(g > -torch.inf, torch.cat([layer.g for layer in best], 1) - g, -torch.inf)
        at = by.argmax(1) + 1
    else:
        at = torch.full_like(first, space.layers)
    if bool(wrong.any()):
        value = _tally(search, best, at, -wrong.to(g))
        value = value + (only.value(space, at, wrong.to(g)) if only else _tally(track, goods, at, wrong.to(g)))
    else:
        value = nothing(space)
    return Violations(value, wrong.long(), lost.long(), torch.where(wrong, first, -1))


@torch.no_grad()
def _watch(search: Search[S], margin: float) -> tuple[list[Layer[S]], Tensor, Tensor]:
    """Runs a search: the best of every layer; (B,) whether and, else -1, where all y-good hypotheses fell off."""
    lost = torch.zeros(search.space.batch_size, dtype=torch.bool, device=search.layers[0].g.device)
    first, best = lost.long() - 1, []
    for t in range(1, search.space.layers + 1):
        found = search.candidates(margin)
        kept = search.pick(found, search.rank(found.f), found.f)
        assert found.good is not None
        assert kept.good is not None
        gone = found.good.any(1) & ~(kept.good & (kept.g > -torch.inf)).any(1) & ~search.open_good()
        first = torch.where(gone & ~lost, t, first)
        lost = lost | gone
        best.append(_best(kept))
        search.push(kept)
    return best, lost, first


@torch.no_grad()
def _several(track: Search[S]) -> tuple[Tensor, list[Layer[S]]]:
    """Follows all y-good hypotheses, at most a beam of them: g (B, layers) of the best of each layer, and those."""
    goods = []
    for _ in range(track.space.layers):
        right = track.candidates()
        assert right.good is not None
        pool = torch.where(right.good, right.g, -torch.inf)
        most = max(1, int((pool > -torch.inf).sum(1).max()))
        good = track.pick(right, top(pool, most if track.beam is None else min(track.beam, most)), pool)
        goods.append(_best(good))
        track.push(good)
    missing = goods[-1].g[:, 0] == -torch.inf
    if bool(missing.any()):
        raise unreachable(missing)
    return torch.cat([layer.g for layer in goods], 1), goods


def _tally(search: Search[S], best: list[Layer[S]], at: Tensor, weight: Tensor) -> Tensor:
    """sum of weight (B,) * g(path to the best of layer ``at`` (B,)), differentiable."""
    tally = Tally(search)
    for t, layer in enumerate(best, 1):
        tally.add(t, layer, torch.where(at == t, weight, 0)[:, None])
    return tally.value(search.space)


def _best(layer: Layer[S]) -> Layer[S]:
    good = None if layer.good is None else layer.good[:, :1]
    return Layer(
        take(layer.state, torch.zeros_like(layer.parent[:, :1])),
        layer.g[:, :1],
        good,
        layer.parent[:, :1],
        layer.operator[:, :1],
    )
