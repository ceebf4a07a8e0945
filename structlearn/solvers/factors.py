"""Psi(x, gold) - Psi(x, y) of many examples at once, as sparse terms, where the feature map's form is known."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from structlearn.features import ChainMap, FeatureMap
from structlearn.features.multiclass import TaxonomyMap
from structlearn.solvers.planes import Rows, Terms
from structlearn.structures.checks import check_lengths, unpadded


class Factors(Protocol):
    """Rows shared by all planes, and each plane in terms of them."""

    rows: Rows

    def terms(self, index: Tensor, gold: Any, y: Any) -> Terms:
        """Psi(x_i, gold_i) - Psi(x_i, y_i) for i in ``index`` (m,)."""


class ChainFactors:
    """A chain's rows are its tokens' features, and one unit row for the transitions."""

    def __init__(self, feature_map: ChainMap, x: Tensor, lengths: Any) -> None:
        phi = feature_map.features(x, 3)
        b, n, _ = phi.shape
        lengths = check_lengths("lengths", lengths, b, n, phi.device)
        self.mask = unpadded(lengths, b, n, phi.device)
        wide = feature_map._windows(phi, lengths)[self.mask]
        tokens, self.unit = Rows.of(wide), len(wide)
        self.number = (self.mask.flatten().cumsum(0) - 1).view(b, n)
        self.labels, self.width = feature_map.emission.shape
        self.rows = tokens.shared(self.width, self.labels).and_unit()
        self.eta = feature_map.eta

    def terms(self, index: Tensor, gold: Tensor, y: Tensor) -> Terms:
        mask, number = self.mask[index], self.number[index]
        wrong = (gold != y) & mask
        plane, t = wrong.nonzero(as_tuple=True)
        token = number[plane, t]
        stepped = (wrong[:, 1:] | wrong[:, :-1]) & mask[:, 1:]
        step_plane, s = stepped.nonzero(as_tuple=True)
        base = self.labels * self.width
        before, after = (
            gold[step_plane, s] * self.labels + gold[step_plane, s + 1],
            (y[step_plane, s] * self.labels + y[step_plane, s + 1]),
        )
        unit = torch.full_like(s, self.unit)
        one = torch.ones(len(t), dtype=torch.float64)
        eta = torch.full((len(s),), float(self.eta), dtype=torch.float64)
        return Terms.build(
            torch.cat([plane, plane, step_plane, step_plane]),
            torch.cat([token, token, unit, unit]),
            torch.cat([gold[plane, t] * self.width, y[plane, t] * self.width, base + before, base + after]),
            torch.cat([one, -one, eta, -eta]),
            len(index),
        )


class TaxonomyFactors:
    """A class's rows are the examples' features; a term for every node above the class."""

    def __init__(self, feature_map: TaxonomyMap, x: Tensor) -> None:
        phi = feature_map.features(x, 2)
        self.incidence = feature_map.incidence.to(torch.float64)
        nodes, self.width = feature_map.nodes.shape
        self.rows = Rows.of(phi).shared(self.width, nodes)

    def terms(self, index: Tensor, gold: Tensor, y: Tensor) -> Terms:
        change = self.incidence[gold] - self.incidence[y]
        plane, node = change.nonzero(as_tuple=True)
        return Terms.build(plane, index[plane], node * self.width, change[plane, node], len(index))


def factors_of(feature_map: FeatureMap, x: Any, lengths: Any) -> Factors | None:
    """The known form of a map, or None: Psi is then taken from gradients, one example at a time."""
    if type(feature_map) is ChainMap and feature_map.second is None and feature_map.input_transition is None:
        return ChainFactors(feature_map, x, lengths)
    if isinstance(feature_map, TaxonomyMap) and type(feature_map).forward is TaxonomyMap.forward:
        return TaxonomyFactors(feature_map, x)
    return None
