"""Operator of count-augmented alignment; the recurrence is in ``structures/alignment_count.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.ops._register import operator
from structlearn.ops.alignment import ARGS, COUNT, call


def _best_by_count(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A best path (B,N+M) of offset[g] + slope[g] s(y), its g (B,), the value (B,), and the table (B,S)."""
    tensors, rest = args[:COUNT], args[COUNT:]
    *steps, size, offset, slope = rest
    outputs = _best_by_count_fake(*args)
    steps = [None if x is None else x.to(torch.int32).contiguous() for x in steps]
    call("best_by_count", tensors, *steps, size, offset.contiguous(), slope.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _best_by_count_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    match, size = args[0], args[COUNT + 5]
    b, n, m = match.shape
    return (
        match.new_empty((b, n + m), dtype=torch.int64),
        match.new_empty(b, dtype=torch.int64),
        match.new_empty(b),
        match.new_empty((b, size)),
    )


best_by_count = operator(
    f"alignment_best_by_count({ARGS}, Tensor? match_step, Tensor? gap_x_step, Tensor? gap_y_step, Tensor? open_x_step,"
    " Tensor? open_y_step, SymInt size, Tensor offset, Tensor slope)"
    " -> (Tensor path, Tensor index, Tensor value, Tensor table)",
    _best_by_count,
    _best_by_count_fake,
)
