"""Operator of the count-augmented semi-Markov chain; the recurrence is in ``structures/semimarkov_count.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.ops._register import operator
from structlearn.ops.semimarkov import ARGS, call


def _best_by_count(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *tensors, segment_step, transition_step, size, offset, slope, backend = args
    if backend == "triton":
        import structlearn.gpu.semimarkov_count as gpu

        return gpu.best_by_count(*tensors, segment_step, transition_step, size, offset, slope)  # type: ignore[no-any-return]
    outputs = _best_by_count_fake(*args)
    steps = [None if x is None else x.to(torch.int32).contiguous() for x in (segment_step, transition_step)]
    call("best_by_count", tuple(tensors), *steps, size, offset.contiguous(), slope.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _best_by_count_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    segments, size = args[0], args[5]
    b, n = segments.shape[:2]
    return (
        segments.new_empty((b, n), dtype=torch.int64),
        segments.new_empty(b, dtype=torch.int64),
        segments.new_empty(b),
        segments.new_empty((b, size)),
    )


best_by_count = operator(
    f"semimarkov_best_by_count({ARGS}, Tensor? segment_step, Tensor? transition_step, SymInt size, Tensor offset,"
    " Tensor slope, str backend) -> (Tensor codes, Tensor index, Tensor value, Tensor table)",
    _best_by_count,
    _best_by_count_fake,
)
