"""Joint features of one class among K, flat or in a taxonomy.

    Psi(x, y) = Phi(x) (x) Lambda(y),   Lambda(y)_z = beta(y, z) if z is y or above y, else 0

With a flat taxonomy Lambda is the identity and this is the Crammer-Singer multiclass map; otherwise classes share
the weights of the nodes above them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from structlearn.errors import ShapeError
from structlearn.features.base import FeatureMap, one_output
from structlearn.structures import Categorical
from structlearn.structures.checks import check_labels
from structlearn.taxonomy import Taxonomy


class TaxonomyMap(FeatureMap):
    """x (B, in_features) to a :class:`Categorical` with scores[k] = sum_z Lambda(k)_z <W_z, Phi(x)>.

    Args:
        in_features: size of Phi(x).
        taxonomy: tree or lattice over K classes and Z nodes.
        beta: (K, Z) weight of node z for class k; 1 if not given. Read only where z is k or above k.
        encoder: any module x -> (B, in_features).

    Weights: ``nodes`` (Z, in_features), zero at the start.
    """

    head = ("nodes",)
    incidence: Tensor

    def __init__(
        self, in_features: int, taxonomy: Taxonomy, *, beta: Tensor | None = None, encoder: nn.Module | None = None
    ) -> None:
        super().__init__(in_features, encoder)
        self.taxonomy = taxonomy
        above = taxonomy.ancestors()
        if beta is not None and beta.shape != above.shape:
            raise ShapeError("beta", f"(K, Z) = {tuple(above.shape)}", tuple(beta.shape), "one weight a class and node")
        incidence = above.to(torch.get_default_dtype()) if beta is None else torch.where(above, beta, 0.0)
        self.register_buffer("incidence", incidence, persistent=False)
        self.nodes = nn.Parameter(torch.zeros(taxonomy.num_nodes, in_features))

    def forward(self, x: Any, lengths: None = None) -> Categorical:
        """The scores of all classes for x."""
        return Categorical(self.features(x, 2) @ (self.incidence.to(self.nodes) @ self.nodes).T)

    def histograms(self, x: Any, y: Tensor, lengths: None = None) -> list[Tensor]:
        phi = self.features(x, 2)
        y = one_output(y, (phi.shape[0],), phi.device)
        check_labels("y", y, torch.ones((), dtype=torch.bool, device=y.device), self.incidence.shape[0])
        return [self.incidence.to(self.nodes)[y].unsqueeze(-1) * phi.unsqueeze(1)]


class MulticlassMap(TaxonomyMap):
    """x (B, in_features) to a :class:`Categorical` with scores[k] = <W_k, Phi(x)>: the flat taxonomy."""

    def __init__(self, in_features: int, num_classes: int, *, encoder: nn.Module | None = None) -> None:
        super().__init__(in_features, Taxonomy.flat(num_classes), encoder=encoder)
