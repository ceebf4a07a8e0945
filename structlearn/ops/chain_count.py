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


def _search(*args: Any) -> tuple[Tensor, Tensor]:
    """Most violated labels (B,N), and how each was proven (B,): 1 by the bound, 2 by counting."""
    *tensors, gold, discount, weight, levels, gold_score, slack, squared, rounds = args
    outputs = _search_fake(*args)
    most = 1 if weight is None else int(weight.max()) if weight.numel() else 0
    discount = None if discount is None else discount.to(levels.dtype).contiguous()
    call(
        "search", tuple(tensors), gold.contiguous(), discount, _int32(weight), levels.contiguous(),  # type: ignore[arg-type]
        gold_score.contiguous(), levels.shape[1], int(slack), int(squared), rounds, most, *outputs,
    )  # fmt: skip
    return outputs


def _search_fake(*args: Any) -> tuple[Tensor, Tensor]:
    gold = args[5]
    return torch.empty_like(gold, memory_format=torch.contiguous_format), gold.new_empty(gold.shape[0])


search = operator(
    f"chain_search({ARGS}, Tensor gold, Tensor? discount, Tensor? weight, Tensor levels, Tensor gold_score,"
    " bool slack, bool squared, int rounds) -> (Tensor labels, Tensor proven)",
    _search,
    _search_fake,
)
best_by_count = operator(
    f"chain_best_by_count({ARGS}, Tensor? unary_step, Tensor? classes, Tensor? following, Tensor? step, Tensor? last,"
    " SymInt size, Tensor offset, Tensor slope, str backend)"
    " -> (Tensor labels, Tensor index, Tensor value, Tensor table)",
    _best_by_count,
    _best_by_count_fake,
)
