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

# Vectors do a dense row of 128 in the time of about 20 scattered entries.
DENSE_SHARE = 0.15
# kEntries of kernels/cpu/svm.h, each of five numbers.
ENTRIES = 2048
# Pairwise steps on one block's Gram matrix in a visit; they cost little beside its slopes.
STEPS = 5


def narrowed(values: Tensor) -> Tensor:
    """``values`` in float32 where that changes none of them: reading rows is what an ascent waits for."""
    half = values.to(torch.float32)
    return half if torch.equal(half.to(torch.float64), values) else values


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

    def widen(self) -> None:
        self._data = self._data.to(torch.float64)

    def set(self, values: Tensor) -> None:
        self._data, self._size = values.clone(), len(values)

    def __len__(self) -> int:
        return self._size


@dataclass(frozen=True)
class Rows:
    """Row r has ``value`` at start[r]..start[r+1]-1, in the columns from place[r] on, or 0, 1, ... where that is -1."""

    start: Tensor  # (R + 1,) int64
    place: Tensor  # (R,) int64
    column: Tensor  # int32
    value: Tensor  # float64, or float32 where that is exact
    # Terms that shift a row by a multiple of ``stride``, below ``slots`` of them, share their products with w.
    stride: int = 1
    slots: int = 0
    unit: int = -1  # the row that is a single 1, if there is one

    @staticmethod
    def of(dense: Tensor) -> Rows:
        """The rows of a matrix (R, F), stored dense where that is faster."""
        rows, width = dense.shape
        dense = dense.to(torch.float64)
        at = dense.nonzero()
        start = torch.zeros(rows + 1, dtype=torch.int64)
        if len(at) > DENSE_SHARE * rows * width:
            start[1:] = width * torch.arange(1, rows + 1)
            return Rows(start, torch.full((rows,), -1), torch.zeros(0, dtype=torch.int32), narrowed(dense.flatten()))
        start[1:] = torch.bincount(at[:, 0], minlength=rows).cumsum(0)
        return Rows(start, start[:-1].clone(), at[:, 1].to(torch.int32), narrowed(dense[at[:, 0], at[:, 1]]))

    @staticmethod
    def none() -> Rows:
        zero = torch.zeros(1, dtype=torch.int64)
        return Rows(zero, zero[:0], torch.zeros(0, dtype=torch.int32), torch.zeros(0, dtype=torch.float64))

    def and_unit(self) -> Rows:
        """These rows and one with a single 1 in column 0, which is not shared."""
        one = self.value.new_ones(1)
        start = torch.cat([self.start, self.start[-1:] + 1])
        column = torch.cat([self.column, torch.zeros(1, dtype=torch.int32)])
        place = torch.cat([self.place, torch.tensor([len(self.column)])])
        return Rows(start, place, column, torch.cat([self.value, one]), self.stride, self.slots, len(self))

    def shared(self, width: int, slots: int) -> Rows:
        """The same rows, shifted by multiples of ``width`` only."""
        return Rows(self.start, self.place, self.column, self.value, width, slots)

    def __len__(self) -> int:
        return len(self.place)


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
        parts = (held.start, held.place, held.column, held.value, self.start, self.row, self.offset, self.coefficient)
        ops.combine(
            (*parts, self.row, *[0] * 2, held.value.dtype is torch.float32), 0, len(self), scale.contiguous(), w
        )
        return w


class WorkingSet:
    """The planes of ``blocks`` examples and their alpha; block i is a linked list from ``head[i]`` along ``next``."""

    _fields = (
        "term_start", "term_row", "term_offset", "coefficient", "b", "cost", "block", "next", "alpha", "idle",
        "gram_start", "gram", "key",
    )  # fmt: skip
    _real = ("coefficient", "b", "cost", "alpha", "gram")
    _rows = ("row_start", "row_place", "column", "value")

    def __init__(self, blocks: int, dim: int, rows: Rows) -> None:
        self.dim = dim
        self.fixed, self.stride, self.slots, self.unit = len(rows), rows.stride, rows.slots, rows.unit
        self.row_start = Vector(torch.int64, rows.start)
        self.row_place = Vector(torch.int64, rows.place)
        self.column = Vector(torch.int32, rows.column)
        self.value = Vector(rows.value.dtype, rows.value)
        for name in self._fields:
            setattr(self, name, Vector(torch.float64 if name in self._real else torch.int64))
        self.term_start.extend(torch.zeros(1, dtype=torch.int64))
        self.head = torch.full((blocks,), -1, dtype=torch.int64)
        self.scratch = torch.zeros(dim, dtype=torch.float64)
        self.slope = torch.zeros(blocks, dtype=torch.float64)
        self.size = torch.zeros(blocks, dtype=torch.int64)
        self._entries, self._visit = (torch.zeros(count, dtype=torch.int64) for count in (5 * ENTRIES, 1))

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
    gram_start: Vector
    gram: Vector
    key: Vector

    def __len__(self) -> int:
        return len(self.b)

    @property
    def _planes(self) -> tuple[Tensor | int, ...]:
        rows = self.row_start, self.row_place, self.column, self.value
        terms = self.term_start, self.term_row, self.term_offset, self.coefficient, self.key
        narrow = self.value.view.dtype is torch.float32
        return *(v.view for v in (*rows, *terms)), self._entries, self._visit, narrow

    def add(self, terms: Terms, b: Tensor, cost: Tensor, block: Tensor) -> None:
        """Planes with alpha = 0, at most one for each block."""
        first, m = len(self), len(terms)
        row = terms.row
        if terms.rows is not None:
            row = row + len(self.row_place)
            self.row_start.extend(terms.rows.start[1:] + len(self.value))
            place = terms.rows.place
            self.row_place.extend(torch.where(place < 0, place, place + len(self.column)))
            self.column.extend(terms.rows.column)
            if terms.rows.value.dtype is torch.float64:
                self.value.widen()
            self.value.extend(terms.rows.value)
        self.term_start.extend(terms.start[1:] + len(self.term_row))
        self.term_row.extend(row)
        self.term_offset.extend(terms.offset)
        self.coefficient.extend(terms.coefficient)
        slot = terms.offset // self.stride
        sharing = (slot < self.slots) & (row < self.fixed)
        self.key.extend(torch.where(sharing, row * self.slots + slot, torch.where(row == self.unit, -2, -1)))
        for vector, values in ((self.b, b), (self.cost, cost), (self.block, block)):
            vector.extend(values)
        self.next.extend(self.head[block])
        self.head[block] = torch.arange(first, first + m)
        self.size[block] += 1
        self.alpha.extend(torch.zeros(m, dtype=torch.float64))
        self.idle.extend(torch.zeros(m, dtype=torch.int64))
        self._multiply(first, self.size[block])

    def _multiply(self, first: int, sizes: Tensor) -> None:
        """Products of the planes from ``first`` on with themselves and their elders, ``sizes`` (m,) in number."""
        ends = sizes.cumsum(0)
        self.gram_start.extend(len(self.gram) + ends - sizes)
        self.gram.extend(torch.zeros(int(ends[-1]) if len(ends) else 0, dtype=torch.float64))
        ops.products(self._planes, first, self.next.view, self.gram_start.view, self.scratch, self.gram.view)

    def ascend(
        self,
        w: Tensor,
        order: Tensor,
        *,
        box: float,
        ridge: float,
        tolerance: float,
        passes: int,
        all_planes: bool = True,
        share: float = 0.0,
    ) -> int:
        """Dual ascent over the blocks in ``order``, changing alpha and ``w``; the passes made, -1 if unbounded.

        Without ``all_planes`` those whose alpha was 0 at the last :meth:`prune` are passed over. Blocks
        with less to gain than ``share`` of the mean are left out of three passes in four.
        """
        return ops.ascend(
            self._planes, self.b.view, self.head, self.next.view, self.idle.view,
            (self.gram_start.view, self.gram.view), order, self.alpha.view, w, self.slope, box=box, ridge=ridge,
            tolerance=tolerance, passes=passes, steps=STEPS, most_idle=1 << 60 if all_planes else 0, share=share,
        )  # fmt: skip

    def dots(self, w: Tensor, start: int = 0) -> Tensor:
        """<w, a_p> for the planes from ``start`` on."""
        return ops.dots(self._planes, start, len(self), w)

    def weights(self, alpha: Tensor | None = None, start: int = 0, end: int | None = None) -> Tensor:
        """sum_p alpha_p a_p, (d,), over all planes or those from ``start`` to before ``end``, alpha being theirs."""
        w = torch.zeros(self.dim, dtype=torch.float64)
        end = len(self) if end is None else end
        ops.combine(self._planes, start, end, self.alpha.view if alpha is None else alpha.contiguous(), w)
        return w

    def slacks(self, w: Tensor, blocks: Tensor | None = None, *, all_planes: bool = True) -> Tensor:
        """xi_i = max(0, max over the planes of block i of b - <w, a>), for all blocks or those given."""
        order = torch.arange(len(self.head)) if blocks is None else blocks
        most = 1 << 60 if all_planes else 0
        return ops.slacks(self._planes, self.b.view, self.head, self.next.view, order, w, self.idle.view, most)

    def held(self) -> Tensor:
        """Sum of alpha over each block."""
        return torch.zeros(len(self.head), dtype=torch.float64).index_add_(0, self.block.view, self.alpha.view)

    def dual(self, square: float, ridge: float) -> float:
        """sum b alpha - 1/2 |w|^2 - ridge/2 sum_i (sum of alpha)^2, with |w|^2 = ``square``."""
        value = float(self.b.view @ self.alpha.view) - 0.5 * square
        return value - 0.5 * ridge * float(self.held().square().sum()) if ridge else value

    def squares(self) -> Tensor:
        """|a_p|^2 of every plane."""
        return self.gram.view[self.gram_start.view]

    def terms(self, start: int = 0) -> Terms:
        """The terms of the planes from ``start`` on."""
        ends = self.term_start.view[start:]
        first = int(ends[0])
        row, offset, coefficient = (v.view[first:] for v in (self.term_row, self.term_offset, self.coefficient))
        return Terms(ends - first, row, offset, coefficient)

    def dense(self, start: int = 0) -> Tensor:
        """The planes from ``start`` on as a matrix (m, d)."""
        one = torch.ones(1, dtype=torch.float64)
        return torch.stack([self.weights(one, p, p + 1) for p in range(start, len(self))])

    def prune(self, patience: int) -> Tensor:
        """Drops planes whose alpha was 0 for more than ``patience`` calls.

        The numbers of the kept ones, which now stand in order of their blocks.
        """
        idle = torch.where(self.alpha.view > 0, 0, self.idle.view + 1)
        self.idle.set(idle)
        keep = idle <= patience
        # Planes of one example side by side: a visit reads them from one place.
        kept = keep.nonzero().flatten()
        kept = kept[self.block.view[kept].argsort(stable=True)]
        self._keep_products(kept)
        counts = self.term_start.view.diff()[kept]
        start = torch.zeros(len(kept) + 1, dtype=torch.int64)
        start[1:] = counts.cumsum(0)
        shift = self.term_start.view[kept] - start[:-1]
        terms = torch.arange(int(start[-1])) + shift.repeat_interleave(counts)
        for vector in (self.term_row, self.term_offset, self.coefficient, self.key):
            vector.set(vector.view[terms])
        self.term_start.set(start)
        for name in ("b", "cost", "block", "alpha", "idle"):
            vector = getattr(self, name)
            vector.set(vector.view[kept])
        self._link()
        if len(self.row_place) > self.fixed:
            self._drop_rows()
        return kept

    def _elders(self, block: Tensor) -> Tensor:
        """How many planes of the same block come before each, for ``block`` in rising order."""
        size = torch.bincount(block, minlength=len(self.head))
        return torch.arange(len(block)) - (size.cumsum(0) - size)[block]

    def _keep_products(self, kept: Tensor) -> None:
        """Products of the planes ``kept``, given by block: each with itself and its elders that stay."""
        order = self.block.view.argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = self._elders(self.block.view[order])
        counts = self._elders(self.block.view[kept]) + 1
        start = counts.cumsum(0) - counts
        younger = torch.arange(len(kept)).repeat_interleave(counts)
        elder = younger - (torch.arange(len(younger)) - start[younger])
        at = self.gram_start.view[kept][younger] + place[kept][younger] - place[kept][elder]
        self.gram.set(self.gram.view[at])
        self.gram_start.set(start)

    def _link(self) -> None:
        """Lists of each block's planes, newest first, for planes in order of their blocks."""
        block = self.block.view
        following = torch.arange(len(block)) - 1
        self.next.set(torch.where(self._elders(block) > 0, following, -1))
        self.size = torch.bincount(block, minlength=len(self.head))
        self.head = torch.where(self.size > 0, self.size.cumsum(0) - 1, -1)

    def _drop_rows(self) -> None:
        """Forgets rows beyond the fixed ones that no plane uses."""
        used = torch.zeros(len(self.row_place), dtype=torch.bool)
        used[: self.fixed] = True
        used[self.term_row.view] = True
        counts, place = self.row_start.view.diff(), self.row_place.view
        listed = torch.where(place < 0, 0, counts)
        self.column.set(self.column.view[used.repeat_interleave(listed)])
        self.value.set(self.value.view[used.repeat_interleave(counts)])
        start = torch.zeros(int(used.sum()) + 1, dtype=torch.int64)
        start[1:] = counts[used].cumsum(0)
        moved = listed[used].cumsum(0) - listed[used]
        self.row_start.set(start)
        self.row_place.set(torch.where(place[used] < 0, -1, moved))
        self.term_row.set((used.cumsum(0) - 1)[self.term_row.view])

    def state(self) -> dict[str, Any]:
        """Everything as tensors."""
        vectors = {name: getattr(self, name).view.clone() for name in (*self._fields, *self._rows)}
        return {**vectors, "head": self.head.clone(), "slope": self.slope.clone(), "size": self.size.clone()}

    def load(self, state: dict[str, Any]) -> None:
        """Takes over what ``state`` gave."""
        for name in (*self._fields, *self._rows):
            getattr(self, name).set(state[name])
        self.head, self.slope, self.size = (state[name].clone() for name in ("head", "slope", "size"))
