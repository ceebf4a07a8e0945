"""Alignments of two sequences, by writing out every path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from . import Part, Row
from .hypergraph import Edge, Hypergraph, Number

Path = tuple[int, ...]


@cache
def paths(n: int, m: int, affine: bool, after: int | None = None) -> tuple[Path, ...]:
    """All paths that consume n and m positions and are followed by operation ``after``, in the order of ties.

    From the end backwards the lowest operation comes first, except that with affine gaps a gap of 1s is rather
    opened (by 0, or by 2) than extended.
    """
    if n == 0 and m == 0:
        return ((),)
    order = (0, 2, 1) if affine and after == 1 else (0, 1, 2)
    found: list[Path] = []
    for op in order:
        i, j = n - (op != 2), m - (op != 1)
        if i >= 0 and j >= 0:
            found += [(*path, op) for path in paths(i, j, affine, op)]
    return tuple(found)


def nodes(path: Path, i: int = 0, j: int = 0) -> list[tuple[int, int]]:
    """The nodes behind each operation."""
    found = []
    for op in path:
        i, j = i + (op != 2), j + (op != 1)
        found.append((i, j))
    return found


def parts(path: Path, affine: bool, i: int = 0, j: int = 0) -> Iterator[Part]:
    """The potentials that a path from node (i, j) uses, every gap paid."""
    before = None
    for op in path:
        kind = "open" if affine and op != before else "gap"
        if op == 0:
            yield "match", (i, j)
        elif op == 1:
            yield f"{kind}_x", (i,)
        else:
            yield f"{kind}_y", (j,)
        i, j, before = i + (op != 2), j + (op != 1), op


def semiglobal_parts(path: Path, affine: bool) -> Iterator[Part]:
    """As :func:`parts`, without the gap that the path begins with and the one that it ends with."""
    start, stop = 0, len(path)
    if path and path[0] != 0:
        while start < stop and path[start] == path[0]:
            start += 1
    if path and path[-1] != 0:
        last = path[-1]
        while stop > start and path[stop - 1] == last:
            stop -= 1
    i, j = nodes(path[:start])[-1] if start else (0, 0)
    return parts(path[start:stop], affine, i, j)


def local_outputs(n: int, m: int, affine: bool) -> Iterator[tuple[Path, list[Part], list[tuple[int, int]]]]:
    """Whole paths, their parts, and the nodes they are held to a band at: the empty one, then by the last pair."""
    yield (1,) * n + (2,) * m, [], []
    for end_i in range(1, n + 1):
        for end_j in range(1, m + 1):
            behind = (1,) * (n - end_i) + (2,) * (m - end_j)
            for core, i, j in _cores(end_i, end_j, affine):
                yield (1,) * i + (2,) * j + core + behind, list(parts(core, affine, i, j)), nodes(core, i, j)


def _cores(i: int, j: int, affine: bool, after: int = 0) -> Iterator[tuple[Path, int, int]]:
    """Local paths into node (i, j) by operation ``after``, with the node they start from; starting comes first."""
    here_i, here_j = i - (after != 2), j - (after != 1)
    if here_i < 0 or here_j < 0:
        return
    if after == 0:
        yield (0,), here_i, here_j
    order = (0, 2, 1) if affine and after == 1 else (0, 1, 2)
    for op in order:
        for core, start_i, start_j in _cores(here_i, here_j, affine, op):
            yield (*core, after), start_i, start_j


def in_band(at: Sequence[tuple[int, int]], n: int, m: int, band: int | None) -> bool:
    """Whether all nodes are at most ``band`` off the diagonals through (0, 0) and (n, m)."""
    if band is None:
        return True
    return all(min(0, m - n) - band <= j - i <= max(0, m - n) + band for i, j in at)


def rows(
    match: np.ndarray,
    gap_x: np.ndarray,
    gap_y: np.ndarray,
    open_x: np.ndarray | None = None,
    open_y: np.ndarray | None = None,
    *,
    mode: str = "global",
    lengths: tuple[Sequence[int], Sequence[int]] | None = None,
    band: int | None = None,
) -> list[Row]:
    """One :class:`Row` for each pair; all potentials by position, ``lengths`` those of x and of y."""
    affine = open_x is not None
    given = {"match": match, "gap_x": gap_x, "gap_y": gap_y, "open_x": open_x, "open_y": open_y}
    found = []
    for b in range(len(match)):
        n, m = match.shape[1:] if lengths is None else (lengths[0][b], lengths[1][b])
        if mode == "local":
            outputs = list(local_outputs(n, m, affine))
        else:
            use = semiglobal_parts if mode == "semiglobal" else parts
            outputs = [(path, list(use(path, affine)), nodes(path)) for path in paths(n, m, affine)]
        kept = [(path, used) for path, used, at in outputs if in_band(at, n, m, band)]
        fields = {name: value[b] for name, value in given.items() if value is not None}
        found.append(Row([path for path, _ in kept], [used for _, used in kept], fields))
    return found


def graph(fields: dict[str, np.ndarray], n: int, m: int, mode: str) -> Hypergraph:
    """The paths of one pair as derivations; nodes are (i, j) by the last operation."""
    affine, zero = "open_x" in fields, Number(0)
    found = Hypergraph()
    start = found.add([Edge((), zero)])
    at: dict[tuple[int, int, int], int] = {}
    ends = [Edge((), zero)] if mode == "local" else []

    def into(op: int, i: int, j: int) -> list[Edge]:
        from_i, from_j = i - (op != 2), j - (op != 1)
        free = mode == "semiglobal" and ((op == 1 and j in (0, m)) or (op == 2 and i in (0, n)))
        edges = [Edge((start,), zero)] if i + j == op == 0 and mode != "local" else []
        for before in range(3):
            tail = at.get((from_i, from_j, before))
            if tail is None or free:
                edges += [] if tail is None else [Edge((tail,), zero)]
                continue
            kind = "open" if affine and before != op else "gap"
            part = (
                ("match", (from_i, from_j)) if op == 0 else (f"{kind}_{'xy'[op - 1]}", (from_i if op == 1 else from_j,))
            )
            edges.append(Edge((tail,), Number(fields[part[0]][part[1]]), (part,)))
        if op == 0 and i and j and mode == "local":
            edges.append(Edge((start,), Number(fields["match"][from_i, from_j]), (("match", (from_i, from_j)),)))
        return edges

    for i in range(n + 1):
        for j in range(m + 1):
            for op in range(3):
                if edges := into(op, i, j):
                    at[i, j, op] = found.add(edges)
                    ends += [Edge((at[i, j, op],), zero)] if op == 0 and mode == "local" else []
    if mode != "local":
        ends = [Edge((at[n, m, op],), zero) for op in range(3) if (n, m, op) in at]
    found.add(ends)
    return found
