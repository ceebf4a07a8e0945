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

    For sequences the positions are tokens. For trees they are spans: Delta is the number of spans of y that gold does
    not have with that label; label L (S for a grammar) in ``label_weight`` stands for spans that gold does not have.
    For other structures it counts what ``positions`` says. With integer weights it is also a count, so slack rescaling
    is exact by counting.
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

    def _at_gold(self, structure: Structure, labels: Tensor, mask: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
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
            weight = weight / structure.position_counts(mask).clamp(min=1)[:, None]
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
        return self._at_gold(structure, labels, mask, classes, dtype)

    def table(self, structure: Structure, gold: Any) -> Tensor:
        """cost (B, N, C) of label c at position n."""
        labels, mask, classes, dtype = structure.positions(gold)
        weight = self._at_gold(structure, labels, mask, classes, dtype)
        if weight.dim() == 3:
            table = weight
        else:
            table = (torch.arange(classes, device=labels.device) != labels.unsqueeze(-1)) * weight.unsqueeze(-1)
        if (absent := structure.absent) is not None:
            table = table.index_fill(-1, torch.tensor(absent, device=table.device), 0.0)
        return table

    def __call__(self, structure: Structure, gold: Any, y: Any) -> Tensor:
        labels, mask, classes, dtype = structure.positions(gold)
        given = structure.positions(y)[0]
        weight = self._at_gold(structure, labels, mask, classes, dtype)
        present = 1 if structure.absent is None else given != structure.absent
        if weight.dim() == 3:
            weight = weight.expand(*given.shape, classes).gather(-1, given.unsqueeze(-1)).squeeze(-1)
            return (weight * present).sum(-1)
        return (weight * (given != labels) * present).sum(-1)

    def additive(self, structure: Structure, gold: Any) -> Additive | None:
        return Additive(structure.parts_of_positions(self.table(structure, gold)))

    def counted(self, structure: Structure, gold: Any) -> Counted | None:
        table = self.table(structure, gold)
        mask = structure.positions(gold)[1]
        filled = structure.position_counts(mask)
        scale = filled.clamp(min=1).to(table.dtype) if self.normalize else torch.ones_like(filled, dtype=table.dtype)
        whole = table * scale[:, None, None]
        counts = whole.round()
        if bool(((whole - counts).abs() > 1e-6 * whole.abs().clamp(min=1)).any()):
            return None
        increments = structure.parts_of_positions(counts.long())
        size = 1
        if counts.numel():
            most = counts.amax(-1)
            size += int(torch.minimum(most.sum(-1), most.amax(-1) * filled).max())
        values = torch.arange(size, device=table.device, dtype=table.dtype) / scale[:, None]
        return Counted(Counter((increments,), (size,)), values)
