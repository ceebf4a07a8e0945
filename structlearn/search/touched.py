"""Rows of weights that an update touches."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from structlearn.data.processes import processes, sum_of_rows


class Touched:
    """Distinct rows of a tensor, or all of it."""

    def __init__(self, index: Tensor | None, values: Tensor) -> None:
        self.index, self.values = index, values

    def add_to(self, x: Tensor, factor: float) -> None:
        if self.index is None:
            x.add_(self.values, alpha=factor)
        else:
            x.index_add_(0, self.index, self.values, alpha=factor)

    def dot(self, x: Tensor) -> float:
        there = x if self.index is None else x[self.index]
        return float((there.double() * self.values.double()).sum())


def of_all_processes(delta: Tensor | None, weight: Tensor) -> Touched | None:
    """Δ, added up over the processes that train together, if there are others."""
    if processes() == 1:
        return None if delta is None else _rows(delta)
    whole = torch.zeros_like(weight) if delta is None else delta
    if not whole.is_sparse:
        dist.all_reduce(whole)
        return Touched(None, whole)
    rows = _rows(whole)
    assert rows.index is not None
    return Touched(*sum_of_rows(rows.index, rows.values))


def _rows(delta: Tensor) -> Touched:
    if not delta.is_sparse:
        return Touched(None, delta)
    index, values = delta._indices()[0], delta._values()
    used = values.flatten(1).ne(0).any(1).nonzero()[:, 0]
    # Most rows of an embedding bag's gradient are zero: equal paths cancel. Sorting only the others is what costs.
    index, inverse = index[used].unique(return_inverse=True)
    total = values.new_zeros((len(index), *values.shape[1:])).index_add_(0, inverse, values[used])
    return Touched(index, total)
