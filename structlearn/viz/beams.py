"""Beam search drawn: what every layer kept, where it came from, and where gold fell off."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import torch

from structlearn.errors import ArgumentError
from structlearn.search.beam import Search
from structlearn.search.ranking import STAY
from structlearn.viz.base import GREEN, VERMILION

Place = tuple[int, int]
"""Layer and rank of a hypothesis."""


def beam_lattice(
    ax: Any,
    search: Search[Any],
    *,
    row: int = 0,
    names: Sequence[str] | Callable[[int, int], str] | None = None,
    tokens: Sequence[str] | None = None,
) -> None:
    """Layers of example ``row`` from left to right, the best hypothesis of each on top, lines to where they come from.

    The best path is drawn thick. If the search knows gold, a hypothesis that can still reach it is a green square with
    a thick frame; others are round. What led nowhere is pale.

    Args:
        search: one that was run, ``Search(space, beam, gold=gold).run()``.
        row: which example of the batch.
        names: what an operator is called: by number, or a function of layer and operator.
        tokens: what stands below each layer, from the first operator on.
    """
    if len(search.layers) < 2:
        raise ArgumentError("search", "layers to draw", "none yet", "call search.run() first")
    origin = _origins(search, row)
    alive = _ancestors(origin, {place for place in origin if place[0] == max(t for t, _ in origin)})
    best = _ancestors(origin, {min(origin, key=lambda place: (-place[0], place[1]))})
    for place, parent in origin.items():
        on_path = place in best and parent in best
        colour, width = (VERMILION, 2.4) if on_path else ("0.45" if place in alive else "0.85", 0.8)
        ax.plot([parent[0], place[0]], [-parent[1], -place[1]], color=colour, linewidth=width, zorder=1 + on_path)
    for t, k in {(0, 0), *origin}:
        layer = search.layers[t]
        good = layer.good is not None and bool(layer.good[row, k])
        shape = {"boxstyle": "square,pad=0.3" if good else "round,pad=0.3,rounding_size=0.6"}
        faded = (t, k) not in alive and t > 0
        edge = GREEN if good else "0.75" if faded else "black"
        text = "" if t == 0 else _name(names, t, int(layer.operator[row, k]))
        shown = {"color": "0.55" if faded else "black", "fontsize": 9, "zorder": 3}
        ax.text(t, -k, text, ha="center", va="center", bbox={**shape, "facecolor": "white", "edgecolor": edge,
                "linewidth": 2.2 if good else 1.0}, **shown)  # fmt: skip
    last, deepest = max(t for t, _ in origin), max(k for _, k in origin)
    ax.set_xlim(-0.4, last + 0.5)
    ax.set_ylim(-deepest - 0.6, 0.6)
    ax.set_xticks(range(last + 1), ["start", *(tokens or map(str, range(1, last + 1)))][: last + 1], fontsize=9)
    ax.set_yticks(range(0, -deepest - 1, -1), range(1, deepest + 2), fontsize=8)
    ax.set_ylabel("rank in the beam")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _origins(search: Search[Any], row: int) -> dict[Place, Place]:
    """Where every hypothesis comes from; goals that merely stay are left out."""
    found: dict[Place, Place] = {}
    for t, layer in enumerate(search.layers[1:], start=1):
        taken = (layer.g[row] > -torch.inf) & (layer.operator[row] != STAY)
        for k in taken.nonzero()[:, 0].tolist():
            number = int(layer.parent[row, k])
            u = bisect_right(search.offsets, number) - 1
            found[t, k] = u, number - search.offsets[u]
    return found


def _ancestors(origin: dict[Place, Place], places: set[Place]) -> set[Place]:
    """The places and all that they come from."""
    found: set[Place] = set()
    for place in places:
        here: Place | None = place
        while here is not None and here not in found:
            found.add(here)
            here = origin.get(here)
    return found


def _name(names: Sequence[str] | Callable[[int, int], str] | None, layer: int, operator: int) -> str:
    if names is None:
        return str(operator)
    return names(layer, operator) if callable(names) else names[operator]
