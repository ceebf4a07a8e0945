"""Gap scores of an alignment, given in any of their shapes, and what they are worth on a grid of nodes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from structlearn.errors import DTypeError, ShapeError

GapSide = float | Tensor
Gap = GapSide | tuple[GapSide, GapSide]

NEG_INF = float("-inf")


class Grid(NamedTuple):
    """Scores of the operations into each node, (B, N+1, M+1), -inf where there is none."""

    match: Tensor
    gap_x: Tensor
    gap_y: Tensor
    open_x: Tensor | None
    open_y: Tensor | None


def sides(name: str, gap: Gap, match: Tensor) -> tuple[Tensor, Tensor]:
    """The scores for x and for y as tensors (), (B,), (B, N) and (), (B,), (B, M)."""
    b, n, m = match.shape
    pair = tuple(gap) if isinstance(gap, tuple | list) else (gap, gap)
    if len(pair) != 2:
        raise ShapeError(
            name, "one value, or a pair (for x, for y)", f"{len(pair)} values", f"pass {name}=(for_x, for_y)"
        )
    found = []
    for side, size, letter in zip(pair, (n, m), "NM", strict=True):
        if not isinstance(side, Tensor):
            if isinstance(side, bool) or not isinstance(side, int | float):
                raise DTypeError(name, "a number or a tensor", type(side).__name__, f"pass {name}=-1.0, say")
            side = match.new_full((), float(side))
        allowed = {(), (b,)} | ({(b, size)} if isinstance(gap, tuple | list) else set())
        if tuple(side.shape) not in allowed:
            raise ShapeError(
                name,
                f"a number, () or (B,) = ({b},), or in a pair (B, {letter}) = ({b}, {size})",
                tuple(side.shape),
                f"scores by position come as a pair, {name}=(for_x (B, N), for_y (B, M))",
            )
        found.append(side)
    return found[0], found[1]


def by_position(side: Tensor, batch: int, size: int) -> Tensor:
    """() or (B,) or (B, size) to (B, size), without copying."""
    return (side[:, None] if side.dim() == 1 else side).expand(batch, size)


def grid(
    match: Tensor,
    gap_x: Tensor,
    gap_y: Tensor,
    open_x: Tensor | None,
    open_y: Tensor | None,
    n: Tensor,
    m: Tensor,
    semiglobal: bool,
    band: int | None,
) -> Grid:
    """What each operation into node (i, j) scores; -inf into nodes that do not exist or are not allowed."""
    _, rows, columns = match.shape
    i = torch.arange(rows + 1, device=match.device)[None, :, None]
    j = torch.arange(columns + 1, device=match.device)[None, None, :]
    last_i, last_j = n[:, None, None], m[:, None, None]
    allowed = (i <= last_i) & (j <= last_j)
    if band is not None:
        off = last_j - last_i
        allowed = allowed & (j - i >= off.clamp(max=0) - band) & (j - i <= off.clamp(min=0) + band)
    # masked_fill, not a product: padding may hold NaN.
    diagonal = pad(match, (1, 0, 1, 0), value=NEG_INF).masked_fill(~allowed, NEG_INF)
    free_x = semiglobal & ((j == 0) | (j == last_j))
    free_y = semiglobal & ((i == 0) | (i == last_i))

    def along_x(score: Tensor | None) -> Tensor | None:
        if score is None:
            return None
        return pad(score, (1, 0), value=NEG_INF)[:, :, None].masked_fill(free_x, 0.0).masked_fill(~allowed, NEG_INF)

    def along_y(score: Tensor | None) -> Tensor | None:
        if score is None:
            return None
        return pad(score, (1, 0), value=NEG_INF)[:, None, :].masked_fill(free_y, 0.0).masked_fill(~allowed, NEG_INF)

    return Grid(diagonal, along_x(gap_x), along_y(gap_y), along_x(open_x), along_y(open_y))  # type: ignore[arg-type]
