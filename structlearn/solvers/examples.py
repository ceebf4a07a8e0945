"""Inputs and true outputs of many examples as one padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structlearn.errors import ArgumentError, PotentialError, ShapeError
from structlearn.structures.base import PAD


def select(values: Any, index: Tensor) -> Any:
    """Rows ``index`` (m,) of a tensor, of each tensor of a tuple, or of a list."""
    if values is None:
        return None
    if isinstance(values, Tensor):
        return values[index]
    if isinstance(values, tuple):
        found = [select(v, index) for v in values]
        return type(values)(*found) if hasattr(values, "_fields") else tuple(found)
    return [values[i] for i in index.tolist()]


def join(parts: list[Any]) -> Any:
    """The opposite of :func:`select`: outputs of several batches as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, tuple):
        found = [join(list(column)) for column in zip(*parts, strict=True)]
        return type(first)(*found) if hasattr(first, "_fields") else tuple(found)
    return [item for part in parts for item in part]


@dataclass(frozen=True)
class Examples:
    """x, its lengths where it has them, and gold (None where unknown), for n examples."""

    x: Any
    gold: Any
    lengths: Tensor | None

    def __len__(self) -> int:
        x = self.x[0] if isinstance(self.x, tuple) else self.x
        return len(x)

    def take(self, index: Tensor) -> Examples:
        return Examples(select(self.x, index), select(self.gold, index), select(self.lengths, index))


def _stack(values: Sequence[Any], fill: float, name: str) -> tuple[Tensor, Tensor | None]:
    """Tensors of one rank as one tensor padded with ``fill``, and their first sizes where they are sequences."""
    rows = [torch.as_tensor(v) for v in values]
    rank = {row.dim() for row in rows}
    if len(rank) != 1:
        raise ShapeError(name, "examples of one rank", f"ranks {sorted(rank)}", "give every example the same axes")
    sequence = rows[0].dim() > 1 or (rows[0].dim() == 1 and not rows[0].is_floating_point())
    if len({row.shape for row in rows}) == 1:
        batch = torch.stack(rows)
    else:
        sizes = [max(row.shape[i] for row in rows) for i in range(rows[0].dim())]
        batch = torch.full((len(rows), *sizes), fill, dtype=rows[0].dtype)
        for i, row in enumerate(rows):
            place: Any = (i, *(slice(size) for size in row.shape))
            batch[place] = row
    return batch, torch.tensor([row.shape[0] for row in rows]) if sequence else None


def gather(X: Any, y: Any = None, lengths: Any = None) -> Examples:
    """Examples from what users have.

    ``X``: a tensor or array (B, ...), or a list with one tensor an example, sequences (N_i, ...) being padded; or,
    without ``y``, a tuple (x, y) or (x, y, lengths), or a dataset of pairs (x_i, y_i). ``y``: likewise. Where an input
    has several parts, ``X`` is a named tuple of tensors (B, ...), or a tuple of more than three without ``y``.
    """
    if isinstance(X, tuple) and (y is not None or hasattr(X, "_fields") or len(X) > 3):
        gold = None if y is None else torch.as_tensor(y).long()
        return Examples(X, gold, None if lengths is None else torch.as_tensor(lengths))
    if y is None and isinstance(X, tuple) and len(X) in (2, 3) and lengths is None:
        X, y, lengths = X if len(X) == 3 else (*X, None)
    elif y is None and not isinstance(X, Tensor | np.ndarray | list | tuple) and hasattr(X, "__getitem__"):
        pairs = [X[i] for i in range(len(X))]
        X, y = [p[0] for p in pairs], [p[1] for p in pairs]
    if X is None or len(X) == 0:
        raise ArgumentError("X", "at least one example", "none", "fit needs data")
    if isinstance(X, np.ndarray) and X.dtype != object:
        X = torch.as_tensor(X)
    elif not isinstance(X, Tensor):
        X, found = _stack(list(X), 0, "X")
        lengths = found if lengths is None else lengths
    if X.is_floating_point():
        X = X.to(torch.float64)
    if isinstance(y, np.ndarray) and y.dtype != object:
        y = torch.as_tensor(y)
    elif y is not None and not isinstance(y, Tensor | tuple):
        y = _stack(list(y), PAD, "y")[0]
    if isinstance(y, Tensor) and len(y) != len(X):
        raise ShapeError(
            "y", f"one output for each of the {len(X)} examples", len(y), "check that X and y belong together"
        )
    if isinstance(y, Tensor):
        y = y.long()
    return Examples(X, y, None if lengths is None else torch.as_tensor(lengths))


def check_finite(examples: Examples) -> None:
    """No NaN or infinity in the features of an example, padding aside."""
    x = examples.x
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return
    bad = ~x.isfinite()
    if examples.lengths is not None and x.dim() > 2:
        inside = torch.arange(x.shape[1]) < examples.lengths[:, None]
        bad &= inside.view(*inside.shape, *[1] * (x.dim() - 2))
    rows = bad.flatten(1).any(1).nonzero().flatten().tolist()
    if rows:
        raise PotentialError(
            "X", "finite features", f"NaN or infinity in example {rows[0]}", f"clean or drop examples {rows[:5]}"
        )
