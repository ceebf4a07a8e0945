"""Operator of count-augmented Viterbi; the recurrence is in ``structures/chain_count.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.ops._register import operator
from structlearn.ops.chain import ARGS, call


def _int32(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.to(torch.int32).contiguous()


def _best_by_count(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *tensors, unary_step, classes, following, step, last, size, offset, slope, backend = args
    if backend == "triton":
        import structlearn.gpu.chain_count as gpu

        return gpu.best_by_count(*tensors, unary_step, classes, following, step, last, size, offset, slope)  # type: ignore[no-any-return]
    outputs = _best_by_count_fake(*args)
    kinds, states = (0, 1) if following is None else following.shape[:2]
    counter = [_int32(x) for x in (unary_step, classes, following, step, last)]
    call("best_by_count", tuple(tensors), *counter, kinds, states, size, offset, slope, *outputs)  # type: ignore[arg-type]
    return outputs


def _best_by_count_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    unary, size = args[0], args[10]
    b, n, _ = unary.shape
    return (
        unary.new_empty((b, n), dtype=torch.int64),
        unary.new_empty(b, dtype=torch.int64),
        unary.new_empty(b),
        unary.new_empty((b, size)),
    )


best_by_count = operator(
    f"chain_best_by_count({ARGS}, Tensor? unary_step, Tensor? classes, Tensor? following, Tensor? step, Tensor? last,"
    " SymInt size, Tensor offset, Tensor slope, str backend)"
    " -> (Tensor labels, Tensor index, Tensor value, Tensor table)",
    _best_by_count,
    _best_by_count_fake,
)
