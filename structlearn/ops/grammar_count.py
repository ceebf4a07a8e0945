"""Operator of count-augmented CKY with a grammar; the recurrence is in ``structures/grammar_count.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.ops._register import operator
from structlearn.ops.grammar import ARGS, call

_COUNT = 9  # arguments of the grammar


def _int32(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.to(torch.int32).contiguous()


def _best_by_count(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given, steps, (size1, size2, offset, slope) = args[:_COUNT], args[_COUNT : _COUNT + 4], args[_COUNT + 4 :]
    outputs = _best_by_count_fake(*args)
    strides = [step.shape[-1] if step is not None and step.dim() == 2 else 0 for step in steps[1:3]]
    call(
        "best_by_count",
        given,
        *[_int32(step) for step in steps],
        *strides,
        size1,
        size2,
        offset.contiguous(),
        slope.contiguous(),
        *outputs,
    )
    return outputs


def _best_by_count_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    terms, size1, size2 = args[0], args[_COUNT + 4], args[_COUNT + 5]
    b, n = terms.shape[:2]
    return (
        terms.new_empty((b, n, n), dtype=torch.int64),
        terms.new_empty(b, dtype=torch.int64),
        terms.new_empty(b),
        terms.new_empty((b, size1 * size2)),
    )


best_by_count = operator(
    f"grammar_best_by_count({ARGS}, Tensor? term_step, Tensor? rule_step, Tensor? root_step, Tensor? span_step,"
    " SymInt size1, SymInt size2, Tensor offset, Tensor slope)"
    " -> (Tensor y, Tensor index, Tensor value, Tensor table)",
    _best_by_count,
    _best_by_count_fake,
)
