"""Number of wrong positions, optionally weighted.

    Delta(gold, y) = sum_t position_weight[t] * w(gold_t, y_t),   w(a, b) = 0 if a = b, else label_weight[a],

or w(a, b) = label_weight[a, b] for a matrix of confusion costs with a zero diagonal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.costs.base import Additive, Cost, Counted, check_weight
from structlearn.errors import ArgumentError, ShapeError
from structlearn.structures import Structure
from structlearn.structures.counting import Counter


class Hamming(Cost):
    """Delta(gold, y) = sum_t position_weight[b, t] * label_weight[gold_t] * [y_t != gold_t].

    Args:
        label_weight: (C,) weight of missing each gold label, or (C, C) cost [gold, predicted] with diagonal 0.
        position_weight: (N,) or (B, N) weight of each position.
        normalize: divide by the number of positions of each instance.

    For sequences the positions are tokens; for a structure with other parts it counts what that structure's
    ``positions`` says. With integer weights it is also a count, so slack rescaling is exact by counting.
    """

    def __init__(
        self, label_weight: Tensor | None = None, *, position_weight: Tensor | None = None, normalize: bool = False
    ) -> None:
        check_weight("label_weight", label_weight)
        check_weight("position_weight", position_weight)
        if label_weight is not None and label_weight.dim() == 2 and bool((label_weight.diagonal() != 0).any()):
            raise ArgumentError("label_weight", "a zero diagonal", "a non-zero one", "being right must cost 0")
        self.label_weight = label_weight
        self.position_weight = position_weight
        self.normalize = normalize

    @property
    def plain(self) -> bool:
        """Whether every mistake costs 1."""
        return self.label_weight is None and self.position_weight is None and not self.normalize

    def _at_gold(self, labels: Tensor, mask: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        """What a mistake costs at each position, (B, N), or (B, N, C) for a confusion matrix; 0 where padded."""
        weight = mask.to(dtype)
        if self.position_weight is not None:
            given = self.position_weight.to(weight)
            if given.shape not in (mask.shape, mask.shape[1:]):
                raise ShapeError(
                    "position_weight",
                    f"(N,) or (B, N) = {tuple(mask.shape)}",
                    tuple(given.shape),
                    "one weight a position",
                )
            weight = torch.where(mask, given, 0.0)
        if self.normalize:
            weight = weight / mask.sum(-1, keepdim=True).clamp(min=1)
        if self.label_weight is None:
            return weight
        given = self.label_weight.to(weight)
        if given.shape[0] != classes:
            raise ShapeError(
                "label_weight", f"(C,) or (C, C) with C={classes}", tuple(given.shape), "one weight a label"
            )
        by_label = given[labels]
        return by_label * (weight if given.dim() == 1 else weight.unsqueeze(-1))

    def discount(self, structure: Structure, gold: Any) -> Tensor | None:
        """(B, N) cost of a mistake at each position, where it depends on gold alone; None for a confusion matrix."""
        if self.label_weight is not None and self.label_weight.dim() == 2:
            return None
        labels, mask, classes, dtype = structure.positions(gold)
        return self._at_gold(labels, mask, classes, dtype)

    def table(self, structure: Structure, gold: Any) -> Tensor:
        """cost (B, N, C) of label c at position n."""
        labels, mask, classes, dtype = structure.positions(gold)
        weight = self._at_gold(labels, mask, classes, dtype)
        if weight.dim() == 3:
            return weight
        wrong = torch.arange(classes, device=labels.device) != labels.unsqueeze(-1)
        return wrong * weight.unsqueeze(-1)

    def __call__(self, structure: Structure, gold: Any, y: Any) -> Tensor:
        labels, mask, classes, dtype = structure.positions(gold)
        given = structure.positions(y)[0]
        weight = self._at_gold(labels, mask, classes, dtype)
        if weight.dim() == 3:
            return weight.expand(*given.shape, classes).gather(-1, given.unsqueeze(-1)).squeeze(-1).sum(-1)
        return (weight * (given != labels)).sum(-1)

    def additive(self, structure: Structure, gold: Any) -> Additive | None:
        return Additive(structure.parts_of_positions(self.table(structure, gold)))

    def counted(self, structure: Structure, gold: Any) -> Counted | None:
        table = self.table(structure, gold)
        mask = structure.positions(gold)[1]
        scale = mask.sum(-1).clamp(min=1).to(table.dtype) if self.normalize else torch.ones_like(table[:, 0, 0])
        whole = table * scale[:, None, None]
        counts = whole.round()
        if bool(((whole - counts).abs() > 1e-6 * whole.abs().clamp(min=1)).any()):
            return None
        increments = structure.parts_of_positions(counts.long())
        size = int(counts.amax(-1).sum(-1).max()) + 1 if counts.numel() else 1
        values = torch.arange(size, device=table.device, dtype=table.dtype) / scale[:, None]
        return Counted(Counter((increments,), (size,)), values)
