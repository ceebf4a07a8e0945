"""Working sets: planes (a, b) as sparse sums of shared rows, with their multipliers alpha.

    a_p = sum_k coefficient_k * shift(row_k, offset_k)

A row is what the input contributes (the features of a token), an offset says which weights it meets (those of a
label), so that a constraint over a sentence is a dozen numbers, whatever the size of Psi.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structlearn.ops import svm as ops


class Vector:
    """A one-dimensional tensor that grows at its end."""

    def __init__(self, dtype: torch.dtype, start: Tensor | None = None) -> None:
        self._data = torch.empty(0, dtype=dtype) if start is None else start.clone()
        self._size = len(self._data)

    def extend(self, values: Tensor) -> None:
        size = self._size + len(values)
        if size > len(self._data):
            larger = torch.empty(max(size, 2 * len(self._data), 64), dtype=self._data.dtype)
            larger[: self._size] = self.view
            self._data = larger
        self._data[self._size : size] = values
        self._size = size

    @property
    def view(self) -> Tensor:
        return self._data[: self._size]

    def set(self, values: Tensor) -> None:
        self._data, self._size = values.clone(), len(values)

    def __len__(self) -> int:
        return self._size


@dataclass(frozen=True)
class Rows:
    """Sparse rows: the nonzeros of row r are ``column`` and ``value`` at start[r]..start[r+1]-1."""

    start: Tensor  # (R + 1,) int64
    column: Tensor  # int32
    value: Tensor  # float64

    @staticmethod
    def of(dense: Tensor) -> Rows:
        """The rows of a matrix (R, F)."""
        place = dense.nonzero()
        start = torch.zeros(dense.shape[0] + 1, dtype=torch.int64)
        start[1:] = torch.bincount(place[:, 0], minlength=dense.shape[0]).cumsum(0)
        return Rows(start, place[:, 1].to(torch.int32), dense[place[:, 0], place[:, 1]].to(torch.float64))

    def __len__(self) -> int:
        return len(self.start) - 1


@dataclass(frozen=True)
class Terms:
    """Planes as sums of terms; ``rows`` are rows of their own, which ``row`` then counts from 0."""

    start: Tensor  # (m + 1,) int64
    row: Tensor
    offset: Tensor
    coefficient: Tensor
    rows: Rows | None = None

    def __len__(self) -> int:
        return len(self.start) - 1

    @staticmethod
    def build(plane: Tensor, row: Tensor, offset: Tensor, coefficient: Tensor, planes: int) -> Terms:
        """Terms in any order, each with the plane that it belongs to."""
        order = plane.argsort(stable=True)
        start = torch.zeros(planes + 1, dtype=torch.int64)
        start[1:] = torch.bincount(plane, minlength=planes).cumsum(0)
        return Terms(start, row[order], offset[order], coefficient[order])

    @staticmethod
    def dense(matrix: Tensor) -> Terms:
        """One term a plane: the rows of a matrix (m, d)."""
        m = matrix.shape[0]
        steps = torch.arange(m + 1)
        zero = torch.zeros(m, dtype=torch.int64)
        return Terms(steps, steps[:-1], zero, torch.ones(m, dtype=torch.float64), Rows.of(matrix))

    def scaled(self, scale: Tensor) -> Terms:
        """Plane p times scale[p]."""
        by = scale.repeat_interleave(self.start.diff())
        return Terms(self.start, self.row, self.offset, self.coefficient * by, self.rows)

    def combine(self, scale: Tensor, rows: Rows, dim: int) -> Tensor:
        """sum_p scale_p a_p, (d,)."""
        w = torch.zeros(dim, dtype=torch.float64)
        held = self.rows or rows
        planes = (held.start, held.column, held.value, self.start, self.row, self.offset, self.coefficient)
        ops.combine(planes, 0, len(self), scale.contiguous(), w)
        return w


class WorkingSet:
    """The planes of ``blocks`` examples and their alpha; block i is a linked list from ``head[i]`` along ``next``."""

    _fields = ("term_start", "term_row", "term_offset", "coefficient", "b", "cost", "block", "next", "alpha", "idle")
    _whole = ("term_start", "term_row", "term_offset", "block", "next", "idle")

    def __init__(self, blocks: int, dim: int, rows: Rows) -> None:
        self.dim = dim
        self.fixed = len(rows)
        self.row_start = Vector(torch.int64, rows.start)
        self.column = Vector(torch.int32, rows.column)
        self.value = Vector(torch.float64, rows.value)
        for name in self._fields:
            setattr(self, name, Vector(torch.int64 if name in self._whole else torch.float64))
        self.term_start.extend(torch.zeros(1, dtype=torch.int64))
        self.head = torch.full((blocks,), -1, dtype=torch.int64)
        self.scratch = torch.zeros(dim, dtype=torch.float64)
        self.slope = torch.zeros(blocks, dtype=torch.float64)

    term_start: Vector
    term_row: Vector
    term_offset: Vector
    coefficient: Vector
    b: Vector
    cost: Vector
    block: Vector
    next: Vector
    alpha: Vector
    idle: Vector

    def __len__(self) -> int:
        return len(self.b)

    @property
    def _planes(self) -> tuple[Tensor, ...]:
        vectors = self.row_start, self.column, self.value, self.term_start, self.term_row, self.term_offset
        return (*(v.view for v in vectors), self.coefficient.view)

    def add(self, terms: Terms, b: Tensor, cost: Tensor, block: Tensor) -> None:
        """Planes with alpha = 0, at most one for each block."""
        first, m = len(self), len(terms)
        row = terms.row
        if terms.rows is not None:
            row = row + len(self.row_start) - 1
            self.row_start.extend(terms.rows.start[1:] + len(self.column))
            self.column.extend(terms.rows.column)
            self.value.extend(terms.rows.value)
        self.term_start.extend(terms.start[1:] + len(self.term_row))
        self.term_row.extend(row)
        self.term_offset.extend(terms.offset)
        self.coefficient.extend(terms.coefficient)
        for vector, values in ((self.b, b), (self.cost, cost), (self.block, block)):
            vector.extend(values)
        self.next.extend(self.head[block])
        self.head[block] = torch.arange(first, first + m)
        self.alpha.extend(torch.zeros(m, dtype=torch.float64))
        self.idle.extend(torch.zeros(m, dtype=torch.int64))

    def ascend(
        self, w: Tensor, order: Tensor, *, box: float, ridge: float, tolerance: float, passes: int, steps: int = 4
    ) -> int:
        """Dual ascent over the blocks in ``order``, changing alpha and ``w``; the passes made, -1 if unbounded."""
        return ops.ascend(
            self._planes, self.b.view, self.head, self.next.view, order, self.alpha.view, w, self.scratch, self.slope,
            box=box, ridge=ridge, tolerance=tolerance, passes=passes, steps=steps,
        )  # fmt: skip

    def dots(self, w: Tensor, start: int = 0) -> Tensor:
        """<w, a_p> for the planes from ``start`` on."""
        return ops.dots(self._planes, start, len(self), w)

    def weights(self, alpha: Tensor | None = None) -> Tensor:
        """sum_p alpha_p a_p, (d,)."""
        w = torch.zeros(self.dim, dtype=torch.float64)
        ops.combine(self._planes, 0, len(self), self.alpha.view if alpha is None else alpha.contiguous(), w)
        return w

    def slacks(self, w: Tensor) -> Tensor:
        """xi_i = max(0, max over the planes of block i of b - <w, a>), (blocks,)."""
        xi = torch.zeros(len(self.head), dtype=torch.float64)
        return xi.scatter_reduce_(0, self.block.view, self.b.view - self.dots(w), "amax")

    def held(self) -> Tensor:
        """Sum of alpha over each block."""
        return torch.zeros(len(self.head), dtype=torch.float64).index_add_(0, self.block.view, self.alpha.view)

    def dual(self, w: Tensor, ridge: float) -> float:
        """sum b alpha - 1/2 |w|^2 - ridge/2 sum_i (sum of alpha)^2."""
        value = float(self.b.view @ self.alpha.view) - 0.5 * float(w @ w)
        return value - 0.5 * ridge * float(self.held().square().sum()) if ridge else value

    def dense(self, start: int = 0) -> Tensor:
        """The planes from ``start`` on as a matrix (m, d)."""
        out = torch.zeros(len(self) - start, self.dim, dtype=torch.float64)
        one = torch.ones(1, dtype=torch.float64)
        for p in range(start, len(self)):
            ops.combine(self._planes, p, p + 1, one, out[p - start])
        return out

    def prune(self, patience: int) -> Tensor | None:
        """Drops planes whose alpha was 0 for more than ``patience`` calls; which were kept, or None if all were."""
        idle = torch.where(self.alpha.view > 0, 0, self.idle.view + 1)
        self.idle.set(idle)
        keep = idle <= patience
        if bool(keep.all()):
            return None
        counts = self.term_start.view.diff()
        of_term = keep.repeat_interleave(counts)
        for vector in (self.term_row, self.term_offset, self.coefficient):
            vector.set(vector.view[of_term])
        start = torch.zeros(int(keep.sum()) + 1, dtype=torch.int64)
        start[1:] = counts[keep].cumsum(0)
        self.term_start.set(start)
        for name in ("b", "cost", "block", "alpha", "idle"):
            vector = getattr(self, name)
            vector.set(vector.view[keep])
        self._link()
        if len(self.row_start) - 1 > self.fixed:
            self._drop_rows()
        return keep

    def _link(self) -> None:
        """Lists of each block's planes, newest first, from ``block`` alone."""
        block = self.block.view
        order = block.argsort(stable=True)
        following = torch.full_like(block, -1)
        same = block[order[1:]] == block[order[:-1]]
        following[order[1:]] = torch.where(same, order[:-1], -1)
        self.next.set(following)
        self.head.fill_(-1)
        last = torch.ones_like(order, dtype=torch.bool)
        last[:-1] = ~same
        self.head[block[order[last]]] = order[last]

    def _drop_rows(self) -> None:
        """Forgets rows beyond the fixed ones that no plane uses."""
        used = torch.zeros(len(self.row_start) - 1, dtype=torch.bool)
        used[: self.fixed] = True
        used[self.term_row.view] = True
        counts = self.row_start.view.diff()
        entries = used.repeat_interleave(counts)
        self.column.set(self.column.view[entries])
        self.value.set(self.value.view[entries])
        start = torch.zeros(int(used.sum()) + 1, dtype=torch.int64)
        start[1:] = counts[used].cumsum(0)
        self.row_start.set(start)
        self.term_row.set((used.cumsum(0) - 1)[self.term_row.view])

    def state(self) -> dict[str, Any]:
        """Everything as tensors."""
        vectors = {name: getattr(self, name).view.clone() for name in (*self._fields, "row_start", "column", "value")}
        return {**vectors, "head": self.head.clone(), "slope": self.slope.clone()}

    def load(self, state: dict[str, Any]) -> None:
        """Takes over what ``state`` gave."""
        for name in (*self._fields, "row_start", "column", "value"):
            getattr(self, name).set(state[name])
        self.head, self.slope = state["head"].clone(), state["slope"].clone()
