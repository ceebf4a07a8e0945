"""Operators of the span tree; the equations are in ``structures/span_tree.py``.

Arguments shared by all: spans (B,N,N,L) and lengths (B,) or None. Trees are charts of labels (B,N,N), -100 where
there is no constituent. ``backend`` is "cpu" or "triton".
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import LabelError
from structlearn.ops._derivatives import no_third, require_second
from structlearn.ops._library import kernel, lengths_within
from structlearn.ops._register import operator

ARGS = "Tensor spans, Tensor? lengths"
_PACK = struct.Struct("2P7q").pack  # SpanTreeArgs of kernels/cpu/span_tree.h
_ARRAYS, _SLACK = 6, 16  # SpanTreeChart::kArrays, kSlack

_KERNELS: dict[tuple[str, torch.dtype], Any] = {}


def _group(batch: int, words: int) -> int:
    """Sentences that share a chart: 4 fill the vectors of its short diagonals, fewer keep a long one in the cache."""
    return min(batch, 4 if words <= 128 else 2 if words <= 256 else 1) or 1


def _inner_contiguous(spans: Tensor) -> Tensor:
    if spans.is_contiguous():
        return spans
    labels = spans.shape[3]
    if (labels <= 1 or spans.stride(3) == 1) and (spans.shape[2] <= 1 or spans.stride(2) == labels):
        return spans
    return spans.contiguous()


def call(name: str, spans: Tensor, lengths: Tensor | None, *rest: Tensor | int | None) -> int:
    """Runs a C++ kernel on the arguments and the outputs or options in ``rest``."""
    spans = _inner_contiguous(spans)
    b, n, _, labels = spans.shape
    lengths = lengths_within("lengths", lengths, n)
    packed = _PACK(
        spans.data_ptr(), 0 if lengths is None else lengths.data_ptr(), b, n, labels, spans.stride(0), spans.stride(1),
        _group(b, n), torch.get_num_threads(),
    )  # fmt: skip
    function = _KERNELS.get((name, spans.dtype))
    if function is None:
        function = _KERNELS[name, spans.dtype] = kernel("span_tree_" + name, spans.dtype, 1 + len(rest))
    return function(packed, *[r.data_ptr() if isinstance(r, Tensor) else r for r in rest])  # type: ignore[no-any-return]


def _gpu() -> Any:
    from structlearn.gpu import span_tree

    return span_tree


def _dense(spans: Tensor) -> Tensor:
    """Where a gradient of spans goes; the kernels write every entry."""
    return torch.empty(spans.shape, dtype=spans.dtype, device=spans.device)


def decode(spans: Tensor, lengths: Tensor | None) -> tuple[Tensor, int]:
    """Best trees (B,N,N) by the C++ kernel, and how many sentences have none; eager only."""
    labels = spans.new_empty(spans.shape[:3], dtype=torch.int64)
    return labels, call("best", spans, lengths, labels, 0)


def _best(spans: Tensor, lengths: Tensor | None, backend: str) -> tuple[Tensor, Tensor]:
    if backend == "triton":
        return _gpu().best(spans, lengths)  # type: ignore[no-any-return]
    labels, score = _best_fake(spans)
    call("best", spans, lengths, labels, score)
    return labels, score


def _best_fake(spans: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return spans.new_empty(spans.shape[:3], dtype=torch.int64), spans.new_empty(spans.shape[0])


def _best_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2], output[0])


def _best_grad(ctx: Any, _: None, grad: Tensor | None) -> Any:
    spans, lengths, labels = ctx.saved_tensors
    if grad is None:
        return None, None, None
    return score_backward(spans, lengths, labels.unsqueeze(0), grad.unsqueeze(0)), None, None


def not_a_tree(labels: Tensor, code: int, words: int, classes: int) -> LabelError:
    """The error for tree number ``code // 3N²`` of ``labels`` (..., B, N, N)."""
    square = words * words
    tree, kind, place = code // (3 * square), code // square % 3, code % square
    b, span = tree % labels.shape[-3], divmod(place, words)
    if kind == 0:
        label = int(labels.reshape(-1, words, words)[(tree, *span)])
        expected, got = (
            f"labels in 0..{classes - 1} on every span of a tree",
            f"{label} on span {span} of batch row {b}",
        )
    elif kind == 1:
        expected, got = "a binary tree", f"no two labelled parts of span {span} of batch row {b}"
    else:
        expected, got = "a binary tree", f"labels on spans that belong to no tree, in batch row {b}"
    return LabelError("y", expected, got, "label n words and the n-1 larger spans of one tree, -100 elsewhere")


def _score(spans: Tensor, lengths: Tensor | None, labels: Tensor) -> Tensor:
    """sum of the potentials of trees (K,B,N,N), (K,B)."""
    labels = labels.contiguous()
    out = spans.new_empty(labels.shape[:2])
    code = call("score", spans, lengths, labels, labels.shape[0], out)
    if code >= 0:
        raise not_a_tree(labels, code, spans.shape[1], spans.shape[3])
    return out


def _score_fake(spans: Tensor, lengths: Tensor | None, labels: Tensor) -> Tensor:
    return spans.new_empty(labels.shape[:2])


def _score_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def _score_grad(ctx: Any, grad: Tensor | None) -> Any:
    spans, lengths, labels = ctx.saved_tensors
    return None if grad is None else score_backward(spans, lengths, labels, grad), None, None


def _score_backward(spans: Tensor, lengths: Tensor | None, labels: Tensor, grad: Tensor) -> Tensor:
    """Counts of the parts of trees (K,B,N,N), weighted by grad (K,B)."""
    d_spans = _dense(spans)
    call("score_backward", spans, lengths, labels.contiguous(), labels.shape[0], grad.contiguous(), d_spans)
    return d_spans


def _score_backward_fake(spans: Tensor, *rest: Any) -> Tensor:
    return _dense(spans)


def _counts_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[1:3])


def _counts_grad(ctx: Any, direction: Tensor | None) -> Any:
    """The counts are linear in grad alone: their derivative along a direction is the direction's score."""
    lengths, labels = ctx.saved_tensors
    return None, None, None, None if direction is None else score(direction, lengths, labels)


def _forward(spans: Tensor, lengths: Tensor | None, keep: bool, backend: str) -> tuple[Tensor, Tensor]:
    """log Z (B,) and, if keep, what backward needs, in a form of the backend's own."""
    if backend == "triton":
        return _gpu().forward(spans, lengths)  # type: ignore[no-any-return]
    log_z, chart = _forward_fake(spans, lengths, keep, backend)
    call("forward", spans, lengths, log_z, chart if keep else 0)
    return log_z, chart


def _forward_fake(spans: Tensor, lengths: Tensor | None, keep: bool, backend: str) -> tuple[Tensor, Tensor]:
    b, n = spans.shape[:2]
    if backend == "triton":
        return spans.new_empty(b), spans.new_empty((3, b, n, n))
    group = _group(b, n)
    size = group * (n * (n + 1) // 2) + _SLACK * n
    shape = (-(-b // group), _ARRAYS, size) if keep else (0,)
    return spans.new_empty(b), spans.new_empty(shape)


def _forward_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    log_z, chart = output
    ctx.mark_non_differentiable(chart)
    ctx.backend = inputs[3]
    ctx.save_for_backward(*inputs[:2], chart, log_z)


def _forward_grad(ctx: Any, grad: Tensor | None, _: None) -> Any:
    spans, lengths, chart, log_z = ctx.saved_tensors
    if grad is None:
        return None, None, None, None
    return backward(spans, lengths, chart, log_z.detach(), grad, ctx.backend), None, None, None


def _backward(
    spans: Tensor, lengths: Tensor | None, chart: Tensor, log_z: Tensor, grad: Tensor, backend: str
) -> Tensor:
    """sum_b grad_b d log Z_b / d spans."""
    if backend == "triton":
        return _gpu().backward(spans, lengths, chart, log_z, grad)  # type: ignore[no-any-return]
    d_spans = _dense(spans)
    call("backward", spans, lengths, chart, grad.contiguous(), d_spans)
    return d_spans


def _backward_fake(spans: Tensor, *rest: Any) -> Tensor:
    return _dense(spans)


def _backward_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.backend = inputs[5]
    ctx.save_for_backward(*inputs[:2], inputs[4])


def _backward_grad(ctx: Any, direction: Tensor | None) -> Any:
    spans, lengths, grad = ctx.saved_tensors
    require_second(ctx.backend)
    if direction is None:
        return (None,) * 6
    along, curvature = second(spans, lengths, grad, direction)
    return curvature, None, None, None, along, None


def _second(spans: Tensor, lengths: Tensor | None, grad: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """(d log Z_b . v (B,), sum_b grad_b (d^2 log Z_b) v) for a direction v."""
    along, curvature = _second_fake(spans)
    call("second", spans, lengths, grad.contiguous(), direction.contiguous(), along, curvature)
    return along, curvature


def _second_fake(spans: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return spans.new_empty(spans.shape[0]), _dense(spans)


def _entropy(spans: Tensor, lengths: Tensor | None) -> Tensor:
    """-E[log p(y)], (B,)."""
    out = _entropy_fake(spans)
    call("entropy", spans, lengths, out)
    return out


def _entropy_fake(spans: Tensor, *rest: Any) -> Tensor:
    return spans.new_empty(spans.shape[0])


def _entropy_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def _entropy_grad(ctx: Any, grad: Tensor | None) -> Any:
    return None if grad is None else entropy_backward(*ctx.saved_tensors, grad), None


def _entropy_backward(spans: Tensor, lengths: Tensor | None, grad: Tensor) -> Tensor:
    """sum_b grad_b d H_b / d spans."""
    d_spans = _dense(spans)
    call("entropy_backward", spans, lengths, grad.contiguous(), d_spans)
    return d_spans


def _kbest(spans: Tensor, lengths: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    labels, scores = _kbest_fake(spans, lengths, k)
    call("kbest", spans, lengths, k, labels, scores)
    return labels, scores


def _kbest_fake(spans: Tensor, lengths: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    return spans.new_empty((k, *spans.shape[:3]), dtype=torch.int64), spans.new_empty((k, spans.shape[0]))


def _sample(spans: Tensor, lengths: Tensor | None, uniform: Tensor, backend: str) -> Tensor:
    """Trees (S,B,N,N) by inverse CDF from uniform (S,B,2N-1,2), from the whole sentence down."""
    labels = _sample_fake(spans, lengths, uniform, backend)
    call("sample", spans, lengths, uniform.contiguous(), uniform.shape[0], labels)
    return labels


def _sample_fake(spans: Tensor, lengths: Tensor | None, uniform: Tensor, backend: str) -> Tensor:
    return spans.new_empty((uniform.shape[0], *spans.shape[:3]), dtype=torch.int64)


best = operator(f"span_tree_best({ARGS}, str backend) -> (Tensor labels, Tensor score)", _best, _best_fake)
best_score = operator(
    f"span_tree_max({ARGS}, str backend) -> (Tensor labels, Tensor score)",
    _best,
    _best_fake,
    setup_context=_best_context,
    backward=_best_grad,
)
score_backward = operator(
    f"span_tree_score_backward({ARGS}, Tensor labels, Tensor grad) -> Tensor",
    _score_backward,
    _score_backward_fake,
    setup_context=_counts_context,
    backward=_counts_grad,
)
score = operator(
    f"span_tree_score({ARGS}, Tensor labels) -> Tensor",
    _score,
    _score_fake,
    setup_context=_score_context,
    backward=_score_grad,
)
second = operator(
    f"span_tree_second({ARGS}, Tensor grad, Tensor direction) -> (Tensor along, Tensor d_spans)",
    _second,
    _second_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
backward = operator(
    f"span_tree_backward({ARGS}, Tensor chart, Tensor log_z, Tensor grad, str backend) -> Tensor",
    _backward,
    _backward_fake,
    setup_context=_backward_context,
    backward=_backward_grad,
)
forward = operator(
    f"span_tree_forward({ARGS}, bool keep, str backend) -> (Tensor log_z, Tensor chart)",
    _forward,
    _forward_fake,
    setup_context=_forward_context,
    backward=_forward_grad,
)
entropy_backward = operator(
    f"span_tree_entropy_backward({ARGS}, Tensor grad) -> Tensor",
    _entropy_backward,
    _backward_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
entropy = operator(
    f"span_tree_entropy({ARGS}) -> Tensor",
    _entropy,
    _entropy_fake,
    setup_context=_entropy_context,
    backward=_entropy_grad,
)
kbest = operator(f"span_tree_kbest({ARGS}, int k) -> (Tensor labels, Tensor scores)", _kbest, _kbest_fake)
sample = operator(f"span_tree_sample({ARGS}, Tensor uniform, str backend) -> Tensor", _sample, _sample_fake)
