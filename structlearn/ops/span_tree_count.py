"""Operator of count-augmented CKY; the recurrence is in ``structures/span_tree_count.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from structlearn.ops._register import operator
from structlearn.ops.span_tree import ARGS, call


def _best_by_count(
    spans: Tensor, lengths: Tensor | None, step: Tensor, size1: int, size2: int, offset: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outputs = _best_by_count_fake(spans, lengths, step, size1, size2, offset, slope)
    call("best_by_count", spans, lengths, step.to(torch.int32).contiguous(), size1, size2, offset, slope, *outputs)
    return outputs


def _best_by_count_fake(
    spans: Tensor, lengths: Tensor | None, step: Tensor, size1: int, size2: int, offset: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    b = spans.shape[0]
    return (
        spans.new_empty(spans.shape[:3], dtype=torch.int64),
        spans.new_empty(b, dtype=torch.int64),
        spans.new_empty(b),
        spans.new_empty((b, size1 * size2)),
    )


best_by_count = operator(
    f"span_tree_best_by_count({ARGS}, Tensor step, SymInt size1, SymInt size2, Tensor offset, Tensor slope)"
    " -> (Tensor labels, Tensor index, Tensor value, Tensor table)",
    _best_by_count,
    _best_by_count_fake,
)
