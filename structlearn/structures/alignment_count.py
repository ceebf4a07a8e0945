"""Count-augmented alignment: the best path for each value of some statistics.

The recurrence of ``structures/alignment.py`` over (max, +) with the statistics g beside the node and the state,

    M[i, j, g] = max(M, X, Y)[i-1, j-1, g - inc] + match[i-1, j-1],   inc the increment of match[i-1, j-1],

and likewise X and Y with the increments of the gap scores; O(N M S) for S values of the statistics. Free ends use no
score and no increment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from structlearn.ops import alignment_count as ops
from structlearn.structures import gaps
from structlearn.structures.base import PAD
from structlearn.structures.counting import CountedBest, Counter, CountTable, pick
from structlearn.structures.gaps import Grid

if TYPE_CHECKING:
    from structlearn.structures.alignment import Alignment

NEG_INF = float("-inf")


def increments(alignment: Alignment, counter: Counter) -> list[Tensor | None]:
    """The increments of the row-major index into the table, in the shapes of the potentials."""
    found: list[Tensor | None] = []
    for name in alignment.fields:
        potential, flat = getattr(alignment, name), counter.flat(name)
        found.append(None if flat is None or potential is None else flat.expand(potential.shape))
    return found


def best_by_count(alignment: Alignment, counter: Counter, offset: Tensor, slope: Tensor) -> CountedBest:
    """The path of each pair that maximises offset[g] + slope[g] * s(y), tables (B, S1[, S2]), slope >= 0."""
    if alignment.backend == "cpu":
        path, index, value, _ = ops.best_by_count(
            *alignment._args, *increments(alignment, counter), counter.size, offset.flatten(1), slope.flatten(1)
        )
        return CountedBest(path, index, value)
    wide, units = alignment._widened()
    chart = _Chart(wide, counter)
    index, value = pick(units.narrow(chart.table), offset, slope)
    return CountedBest(chart.trace(index, value > NEG_INF), index, value)


def max_by_count(alignment: Alignment, counter: Counter) -> CountTable:
    """The best score of each pair for every value of the statistics."""
    if alignment.backend == "cpu":
        zero = alignment.match.new_zeros((alignment.batch_size, counter.size))
        table = ops.best_by_count(*alignment._args, *increments(alignment, counter), counter.size, zero, zero)[3]
    else:
        wide, units = alignment._widened()
        table = units.narrow(_Chart(wide, counter).table)

    def decode(index: Tensor) -> Tensor:
        flat = torch.zeros_like(index[:, 0])
        for j, size in enumerate(counter.sizes):
            flat = flat * size + index[:, j]
        wanted = torch.full_like(table, NEG_INF).scatter_(1, flat[:, None], 0.0)
        path: Tensor = best_by_count(alignment, counter, wanted, torch.zeros_like(table)).y
        return path

    return CountTable(table.view(-1, *counter.sizes), decode)


class _Chart:
    """M, X and Y of every node as (B, N+1, M+1, S), filled node by node."""

    def __init__(self, alignment: Alignment, counter: Counter) -> None:
        self.local = alignment.mode == "local"
        self.n, self.m = alignment._lengths
        options = (self.n, self.m, alignment.mode == "semiglobal", alignment.band)
        self.affine = alignment.open_x is not None
        self.scores = _filled(gaps.grid(*(None if x is None else x.detach() for x in alignment._args[:5]), *options))  # type: ignore[arg-type,call-arg]
        moved = increments(alignment, counter)
        zeros = [None if x is None else torch.zeros_like(x, dtype=torch.int64) for x in alignment._args[:5]]
        steps = [z if x is None else x for x, z in zip(moved, zeros, strict=True)]
        # The grid masks with -inf, which integers have not; what is masked has score -inf anyway.
        floats = gaps.grid(*(None if x is None else x.double() for x in steps), *options)  # type: ignore[arg-type,call-arg]
        self.steps = _filled(Grid(*(None if x is None else x.masked_fill(x == NEG_INF, 0.0).long() for x in floats)))  # type: ignore[arg-type]
        b, rows, columns = self.scores.match.shape
        self.states = self.scores.match.new_full((3, b, rows, columns, counter.size), NEG_INF)
        if not self.local:
            self.states[0, :, 0, 0, 0] = 0.0
        for i in range(rows):
            for j in range(columns):
                self._node(i, j)
        batch = torch.arange(b, device=self.n.device)
        if self.local:
            self.table = self.states[0].flatten(1, 2).amax(1)
            self.table[:, 0] = self.table[:, 0].clamp(min=0.0)
        else:
            self.table = self.states[:, batch, self.n, self.m].amax(0)

    def _moved(self, source: Tensor, field: str, i: int, j: int) -> Tensor:
        """source (B, S) plus the score of an operation into node (i, j), moved up by its increment."""
        score, step = getattr(self.scores, field)[:, i, j], getattr(self.steps, field)[:, i, j]
        place = torch.arange(source.shape[1], device=source.device) - step[:, None]
        return source.gather(1, place.clamp(min=0)).masked_fill(place < 0, NEG_INF) + score[:, None]

    def _into(self, state: int, i: int, j: int) -> Tensor:
        """The ways into a state of node (i, j), in the order of ties: (ways, B, S)."""
        if state == 0:
            start = torch.full_like(self.states[0, :, 0, 0], NEG_INF)
            start[:, 0] = 0.0 if self.local else NEG_INF
            before = [start, *self.states[:, :, i - 1, j - 1]]
            return torch.stack([self._moved(x, "match", i, j) for x in before])
        x, y = (self.states[:, :, i - 1, j], "x") if state == 1 else (self.states[:, :, i, j - 1], "y")
        if not self.affine:
            return torch.stack([self._moved(s, f"gap_{y}", i, j) for s in x])
        others = (0, 2) if state == 1 else (0, 1)
        return torch.stack(
            [*(self._moved(x[s], f"open_{y}", i, j) for s in others), self._moved(x[state], f"gap_{y}", i, j)]
        )

    def _node(self, i: int, j: int) -> None:
        for state in range(3):
            if i - (state != 2) >= 0 and j - (state != 1) >= 0:
                self.states[state, :, i, j] = self._into(state, i, j).amax(0)

    def trace(self, index: Tensor, feasible: Tensor) -> Tensor:
        """Paths (B, N+M) that attain table[index], the first of equals."""
        _, b, rows, columns, _ = self.states.shape
        found = torch.full((b, rows + columns - 2), PAD, dtype=torch.int64, device=index.device)
        for row in range(b):
            if not feasible[row]:
                continue
            ops, i, j = self._back(row, int(index[row]))
            found[row, : len(ops)] = torch.tensor(ops, dtype=torch.int64)
            if self.local:
                n, m = int(self.n[row]), int(self.m[row])
                front = [1] * i + [2] * j
                behind = [1] * (n - i - sum(op != 2 for op in ops)) + [2] * (m - j - sum(op != 1 for op in ops))
                whole = front + ops + behind
                found[row, : len(whole)] = torch.tensor(whole, dtype=torch.int64)
        return found

    def _back(self, row: int, g: int) -> tuple[list[int], int, int]:
        """The operations of the path from its start, and the node where it starts."""
        if self.local:
            ends = self.states[0, row, :, :, g]
            if g == 0 and float(ends.max()) <= 0.0:
                return [], 0, 0
            i, j = divmod(_first(ends.flatten()), ends.shape[1])
            state = 0
        else:
            i, j = int(self.n[row]), int(self.m[row])
            state = _first(self.states[:, row, i, j, g])
        ops: list[int] = []
        while self.local or (i, j) != (0, 0):
            way = _first(self._into(state, i, j)[:, row, g])
            opens = self.affine and state != 0 and way < 2
            kind = "match" if state == 0 else ("open_" if opens else "gap_") + "xy"[state - 1]
            g -= int(getattr(self.steps, kind)[row, i, j])
            ops.append(state)
            i, j = i - (state != 2), j - (state != 1)
            if state == 0:
                if way == 0:
                    break
                state = way - 1
            elif self.affine:
                state = ((0, 2, 1) if state == 1 else (0, 1, 2))[way]
            else:
                state = way
        return ops[::-1], i, j


def _filled(grid: Grid) -> Grid:
    """A grid with all its fields at full size."""
    return Grid(*(None if x is None else x.expand(grid.match.shape) for x in grid))  # type: ignore[arg-type]


def _first(x: Tensor) -> int:
    return int((x == x.max()).nonzero()[0])
