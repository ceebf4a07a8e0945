"""How far up a taxonomy one has to go from the true class to cover the prediction."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from structlearn.costs.base import Cost
from structlearn.errors import ShapeError
from structlearn.structures import Structure
from structlearn.taxonomy import Taxonomy


class TreeCost(Cost):
    """Delta(gold, y) = height of the first common ancestor of gold and y, counted from gold.

    Args:
        taxonomy: a tree or a lattice over the classes.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self.taxonomy = taxonomy
        self._distance = taxonomy.distance()

    def __call__(self, structure: Structure, gold: Any, y: Any) -> Tensor:
        labels, _, classes, dtype = structure.positions(gold)
        given = structure.positions(y)[0]
        if classes != self.taxonomy.num_classes:
            raise ShapeError(
                "taxonomy",
                f"{classes} classes, as the structure has",
                self.taxonomy.num_classes,
                "check Taxonomy(classes=...)",
            )
        return self._distance.to(labels.device)[labels, given].sum(-1).to(dtype)
