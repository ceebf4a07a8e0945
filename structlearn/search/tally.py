"""Hypotheses with coefficients, collected while searching, and <w, Δ> of all of them at once."""

from __future__ import annotations

from typing import Generic

import torch
from torch import Tensor

from structlearn.search.beam import Search
from structlearn.search.ranking import STAY, Layer
from structlearn.search.space import S, SearchSpace, join, take


class Tally(Generic[S]):
    """Hypotheses with coefficients, collected while searching, to be turned into <w, Δ>."""

    def __init__(self, search: Search[S]) -> None:
        self.search = search
        self.found: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}

    def add(self, t: int, layer: Layer[S], weight: Tensor) -> None:
        """Counts hypotheses of layer t, pushed or not, ``weight`` (B, K) each."""
        self.found.setdefault(t, []).append((layer.parent, layer.operator, weight))

    def value(self, space: SearchSpace[S]) -> Tensor:
        """sum of weight * g(path): weights flow from every hypothesis down to the initial state."""
        search = self.search
        size = search.offsets[-1] + search.layers[-1].g.shape[1]
        flow = search.layers[0].g.new_zeros((space.batch_size, size))
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for t in range(max(self.found), 0, -1):
            entries = list(self.found.get(t, ()))
            if t < len(search.layers):
                layer = search.layers[t]
                own = flow[:, search.offsets[t] :][:, : layer.g.shape[1]].clone()
                entries.append((layer.parent, layer.operator, own))
            for parent, _, weight in entries:
                flow.scatter_add_(1, parent.clamp(min=0), weight)
            parts += entries
        parent, operator, weight = (torch.cat([part[i] for part in parts], 1) for i in range(3))
        # Shares of 1/|nodes| that meet again on a common path cancel up to rounding.
        weight = torch.where((weight.abs() > 1e-6) & (operator != STAY), weight, 0)
        origin = take(join([layer.state for layer in search.layers]), parent.clamp(min=0))
        # What no weight reaches may be padding, NaN included.
        score = space.score(origin, operator.clamp(min=0))
        return (torch.where(weight != 0, score, 0) * weight).sum()
