"""Alignment paths as tensors: operations (..., B, N+M), int64, padded with -100.

Operation 0 matches the next position of x with the next of y, 1 consumes a position of x, 2 one of y. A path of a
pair with lengths (n, m) ends where it has consumed n and m; what stands behind that is padding and is not read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from structlearn.errors import LabelError

PAD = -100
MATCH, CONSUME_X, CONSUME_Y = 0, 1, 2


class Steps(NamedTuple):
    """A path read from its start: all fields (..., B, N+M)."""

    op: Tensor  # operations, 0 where the path has ended
    i: Tensor  # positions of x consumed before the operation
    j: Tensor  # positions of y consumed before the operation
    real: Tensor  # bool: the path has not ended yet


def read(path: Tensor, n: Tensor, m: Tensor) -> Steps:
    """Where each operation of a path starts; n and m are the lengths (B,)."""
    x = ((path == MATCH) | (path == CONSUME_X)).long()
    y = ((path == MATCH) | (path == CONSUME_Y)).long()
    i, j = x.cumsum(-1) - x, y.cumsum(-1) - y
    real = (i < n[:, None]) | (j < m[:, None])
    return Steps(path.masked_fill(~real, 0), i, j, real)


def check(path: Tensor, n: Tensor, m: Tensor) -> None:
    """Every path must be made of the three operations and consume exactly n and m positions."""
    if torch.compiler.is_compiling():
        return
    steps = read(path, n, m)
    x, y = steps.op != CONSUME_Y, steps.op != CONSUME_X
    wrong = (steps.op < 0) | (steps.op > 2)
    over = (x & (steps.i >= n[:, None])) | (y & (steps.j >= m[:, None]))
    bad = (wrong | over) & steps.real
    if bool(bad.any()):
        place = tuple(bad.nonzero()[0].tolist())
        b = place[-2]
        raise LabelError(
            "y",
            f"operations 0, 1 or 2 that consume {int(n[b])} positions of x and {int(m[b])} of y",
            f"{int(path[place])} at operation {place[-1]} of batch row {b}, after {int(steps.i[place])}"
            f" and {int(steps.j[place])}",
            "0 matches, 1 consumes x, 2 consumes y; pad behind the end with -100",
        )


def core(steps: Steps) -> Tensor:
    """(..., B, N+M), true from the first match of a path to its last."""
    match = ((steps.op == MATCH) & steps.real).long()
    return (match.cumsum(-1) > 0) & (match.flip(-1).cumsum(-1).flip(-1) > 0)


def with_flanks(ops: Tensor, length: Tensor, i: Tensor, j: Tensor, n: Tensor, m: Tensor) -> Tensor:
    """The path of a local alignment: unaligned x, then unaligned y, the core, unaligned x, unaligned y.

    ops (..., B, P) holds the core's operations in its first ``length`` (..., B) places; i and j (..., B) are the
    positions in front of the core.
    """
    width = ops.shape[-1]
    t = torch.arange(width, device=ops.device)
    used = t < length[..., None]
    after_i = n - i - ((ops != CONSUME_Y) & used).sum(-1)
    after_j = m - j - ((ops != CONSUME_X) & used).sum(-1)
    t = t.expand(ops.shape)
    ends = torch.stack([i, j, length, after_i, after_j], -1).cumsum(-1)
    inside = (t - ends[..., 1, None]).clamp(0, max(width - 1, 0))
    out = torch.full_like(ops, PAD)
    pieces = (CONSUME_X, CONSUME_Y, ops.gather(-1, inside), CONSUME_X, CONSUME_Y)
    for k in reversed(range(5)):
        out = torch.where(t < ends[..., k, None], torch.as_tensor(pieces[k], device=ops.device), out)
    return out


def nothing_aligned(size: int, n: Tensor, m: Tensor) -> Tensor:
    """The path (B, size) that consumes all of x, then all of y."""
    t = torch.arange(size, device=n.device)
    path = torch.where(t < n[:, None], CONSUME_X, CONSUME_Y)
    return path.masked_fill(t >= (n + m)[:, None], PAD)


def local(path: Tensor, n: Tensor, m: Tensor) -> Tensor:
    """A path with its unaligned ends in the order of :func:`with_flanks`; equal local alignments become equal."""
    steps = read(path, n, m)
    inside = core(steps)
    order = (~inside).long().argsort(stable=True, dim=-1)
    length = inside.sum(-1)
    first = order[..., :1] if path.shape[-1] else order
    some = length > 0
    i, j = ((s.gather(-1, first).sum(-1) * some) for s in (steps.i, steps.j))
    return with_flanks(steps.op.gather(-1, order), length, i, j, n, m)


def clean(path: Tensor, n: Tensor, m: Tensor) -> Tensor:
    """A path with -100 behind its end."""
    return path.masked_fill(~read(path, n, m).real, PAD)


def pairs(path: Tensor, n: Tensor, m: Tensor, size: int) -> Tensor:
    """Aligned positions (..., B, size, 2) in rising order, padded with -100."""
    steps = read(path, n, m)
    match = (steps.op == MATCH) & steps.real
    order = (~match).long().argsort(stable=True, dim=-1)[..., :size]
    found = torch.stack([steps.i, steps.j], -1).masked_fill(~match[..., None], PAD)
    return found.gather(-2, order[..., None].expand(*order.shape, 2))


def partners(path: Tensor, n: Tensor, m: Tensor, rows: int, columns: int) -> Tensor:
    """(..., B, rows): the position of y that each position of x is matched with, ``columns`` where there is none."""
    steps = read(path, n, m)
    match = (steps.op == MATCH) & steps.real
    found = torch.full((*path.shape[:-1], rows + 1), columns, dtype=torch.int64, device=path.device)
    return found.scatter(-1, torch.where(match, steps.i, rows), torch.where(match, steps.j, columns))[..., :rows]


def score(
    match: Tensor,
    gap_x: Tensor,
    gap_y: Tensor,
    open_x: Tensor | None,
    open_y: Tensor | None,
    path: Tensor,
    n: Tensor,
    m: Tensor,
    mode: str,
    band: int | None,
) -> Tensor:
    """s(path) by look-ups, (..., B), for paths that :func:`check` accepts; -inf outside the band."""
    op, i, j, real = read(path, n, m)
    opens = torch.ones_like(real)
    opens[..., 1:] = op[..., 1:] != op[..., :-1]
    paid = core(Steps(op, i, j, real)) if mode == "local" else real
    leaves_band = outside(path, n, m, mode, band)
    if mode == "semiglobal":
        free_x = (op == CONSUME_X) & ((j == 0) | (j == m[:, None]))
        free_y = (op == CONSUME_Y) & ((i == 0) | (i == n[:, None]))
        paid = paid & ~(free_x | free_y)

    def at(table: Tensor | None, where: Tensor, *index: Tensor) -> Tensor:
        """The entries of a potential (B, ...) where the path uses it, else 0."""
        if table is None or 0 in table.shape:
            return match.new_zeros(())
        rows = torch.arange(table.shape[0], device=path.device)[:, None]
        entries = table[rows, *(k.clamp(max=size - 1) for k, size in zip(index, table.shape[1:], strict=True))]
        return torch.where(where & paid, entries, 0.0)

    affine = open_x is not None
    extends = ~opens if affine else torch.ones_like(opens)
    parts = at(match, op == MATCH, i, j)
    parts = parts + at(gap_x, (op == CONSUME_X) & extends, i) + at(gap_y, (op == CONSUME_Y) & extends, j)
    parts = parts + at(open_x, (op == CONSUME_X) & opens, i) + at(open_y, (op == CONSUME_Y) & opens, j)
    return parts.expand(path.shape).sum(-1).masked_fill(leaves_band, float("-inf"))


def outside(path: Tensor, n: Tensor, m: Tensor, mode: str, band: int | None) -> Tensor:
    """(..., B) bool: the path (between its first match and its last, if local) meets a node that is off the band."""
    steps = read(path, n, m)
    if band is None:
        return torch.zeros(path.shape[:-1], dtype=torch.bool, device=path.device)
    kept = core(steps) if mode == "local" else steps.real
    i, j = steps.i + (steps.op != CONSUME_Y), steps.j + (steps.op != CONSUME_X)
    low, high = (m - n).clamp(max=0) - band, (m - n).clamp(min=0) + band
    return (kept & ((j - i < low[:, None]) | (j - i > high[:, None]))).any(-1)
