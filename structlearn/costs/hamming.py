"""Number of wrong positions, optionally weighted.

    Delta(gold, y) = sum_t position_weight[t] * w(gold_t, y_t),   w(a, b) = 0 if a = b, else label_weight[a],

or w(a, b) = label_weight[a, b] for a matrix of confusion costs with a zero diagonal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.costs.base import Additive, Cost, Counted, check_weight
from structlearn.costs.multiples import Multiples, multiples
from structlearn.errors import ArgumentError, ShapeError
from structlearn.structures import Structure
from structlearn.structures.counting import Counter

# A table of counts of this many entries for each position and label is as much as a long sentence can hold in memory.
MOST_LEVELS = 1 << 14


class Hamming(Cost):
    """Delta(gold, y) = sum_t position_weight[b, t] * label_weight[gold_t] * [y_t != gold_t].

    Args:
        label_weight: (C,) weight of missing each gold label, or (C, C) cost [gold, predicted] with diagonal 0.
        position_weight: (N,) or (B, N) weight of each position.
        normalize: divide by the number of positions of each instance.

    For sequences the positions are tokens. For trees they are spans: Delta is the number of spans of y that gold does
    not have with that label; label L (S for a grammar) in ``label_weight`` stands for spans that gold does not have.
    For other structures it counts what ``positions`` says. With weights that are whole multiples of one unit (integers,
    or fractions such as 0.3 and 1.5, to the last digit of their dtype) it is also a count, so slack rescaling and the
    squared penalty are exact by counting.
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
        self._label, self._label_multiples = _read(label_weight)
        self._position, self._position_multiples = _read(position_weight)

    @property
    def plain(self) -> bool:
        """Whether every mistake costs 1."""
        return self.label_weight is None and self.position_weight is None and not self.normalize

    def _at_gold(self, structure: Structure, labels: Tensor, mask: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        """What a mistake costs at each position, (B, N), or (B, N, C) for a confusion matrix; 0 where padded."""
        weight = _products(self._label, self._position, labels, mask, classes, dtype)
        if self.normalize:
            filled = structure.position_counts(mask).clamp(min=1)
            weight = weight / filled.view(-1, *[1] * (weight.dim() - 1))
        return weight

    def multiples(self, structure: Structure, gold: Any) -> tuple[Tensor, Tensor] | None:
        """What a mistake costs at each position in units, int64 (B, N) or (B, N, C), and each instance's unit (B,).

        None where the weights are no multiples of one unit.
        """
        labels, mask, classes, dtype = structure.positions(gold)
        of_label, of_position = self._label_multiples, self._position_multiples
        if (self._label is not None and of_label is None) or (self._position is not None and of_position is None):
            return None
        wholes = [None if made is None else made.whole for made in (of_label, of_position)]
        steps = _products(wholes[0], wholes[1], labels, mask, classes, torch.int64)
        unit = torch.ones(len(mask), dtype=dtype, device=mask.device)
        for made in (of_label, of_position):
            unit = unit if made is None else unit * made.unit
        return steps, unit / structure.position_counts(mask).clamp(min=1) if self.normalize else unit

    def discount(self, structure: Structure, gold: Any) -> Tensor | None:
        """(B, N) cost of a mistake at each position, where it depends on gold alone; None for a confusion matrix."""
        if self.label_weight is not None and self.label_weight.dim() == 2:
            return None
        labels, mask, classes, dtype = structure.positions(gold)
        return self._at_gold(structure, labels, mask, classes, dtype)

    def table(self, structure: Structure, gold: Any) -> Tensor:
        """cost (B, N, C) of label c at position n."""
        labels, mask, classes, dtype = structure.positions(gold)
        return _table(structure, labels, self._at_gold(structure, labels, mask, classes, dtype), classes)

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
        made = self.multiples(structure, gold)
        if made is None:
            return None
        steps, unit = made
        labels, mask, classes, dtype = structure.positions(gold)
        counts = _table(structure, labels, steps, classes)
        size = 1
        if counts.numel():
            most = counts.amax(-1)
            size += int(torch.minimum(most.sum(-1), most.amax(-1) * structure.position_counts(mask)).max())
        if size > MOST_LEVELS:
            return None
        values = torch.arange(size, device=counts.device, dtype=dtype) * unit[:, None]
        return Counted(Counter((structure.parts_of_positions(counts),), (size,)), values)


def _read(weight: Tensor | None) -> tuple[Tensor | None, Multiples | None]:
    """The weights, and as multiples; 0.3 in float32 stands for 0.3 in float64 too, so that both agree in either."""
    made = None if weight is None else multiples(weight)
    if weight is None or made is None or weight.dtype is torch.float64:
        return weight, made
    return (made.whole.double() * made.unit).to(weight.device), made


def _products(
    label_weight: Tensor | None,
    position_weight: Tensor | None,
    labels: Tensor,
    mask: Tensor,
    classes: int,
    dtype: torch.dtype,
) -> Tensor:
    """position_weight * label_weight[gold], (B, N) or (B, N, C); 0 where padded."""
    weight = mask.to(dtype)
    if position_weight is not None:
        given = position_weight.to(weight)
        if given.shape not in (mask.shape, mask.shape[1:]):
            raise ShapeError(
                "position_weight",
                f"(N,) or (B, N) = {tuple(mask.shape)}",
                tuple(given.shape),
                "one weight a position",
            )
        weight = torch.where(mask, given, 0)
    if label_weight is None:
        return weight
    given = label_weight.to(weight)
    if given.shape[0] != classes:
        raise ShapeError("label_weight", f"(C,) or (C, C) with C={classes}", tuple(given.shape), "one weight a label")
    return given[labels] * (weight if given.dim() == 1 else weight.unsqueeze(-1))


def _table(structure: Structure, labels: Tensor, weight: Tensor, classes: int) -> Tensor:
    """(B, N, C) of what each label costs at each position, from what a mistake costs there."""
    if weight.dim() == 3:
        table = weight
    else:
        table = (torch.arange(classes, device=labels.device) != labels.unsqueeze(-1)) * weight.unsqueeze(-1)
    if (absent := structure.absent) is not None:
        table = table.index_fill(-1, torch.tensor(absent, device=table.device), 0)
    return table
