"""log Z on the CPU, called eagerly, with its gradient computed in the same kernel call.

For short inputs the time goes into Python and into autograd's bookkeeping, not into the recurrence: one kernel call
instead of two, and the gradient handed to autograd as it is, take 40 % off both for chains of (32,50,10). What forward
leaves for backward stays in the cache, too.
The gradient is that of sum_b log Z_b; a backward pass that weights the rows differently, that asks for a second
derivative or that comes a second time takes the structure's operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structlearn.ops import _native
from structlearn.ops import alignment as alignment_ops
from structlearn.ops import alignment_sum as alignment_sum_ops
from structlearn.ops import chain as chain_ops
from structlearn.ops import grammar as grammar_ops
from structlearn.ops import span_tree as span_tree_ops

Gradient = tuple[Any, ...]  # a tensor, or None, for each argument


class _LogPartition(torch.autograd.Function):
    """The node of ``kernels/cpu/autograd.cpp`` in Python, for where that one is absent."""

    @staticmethod
    def forward(ctx: Any, how: Any, *tensors: Any) -> Tensor:
        both, ctx.again, ctx.options = how
        log_z, ctx.gradient = both(*tensors, *ctx.options)
        ctx.save_for_backward(*tensors)
        return log_z  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is not None and not torch.is_grad_enabled():
            weight = _common(grad)
            if weight == 1.0:
                return None, *gradient
            if weight is not None:
                return None, *[None if x is None else x.mul_(weight) for x in gradient]
        return None, *ctx.again(grad, *ctx.saved_tensors, *ctx.options)


def _common(grad: Tensor) -> float | None:
    """The value of all entries of ``grad`` (B,), or None where they differ."""
    value: float | None = _native.common_value(grad)
    if value is None and grad.numel():
        first, *rest = grad.tolist()
        return first if all(x == first for x in rest) else None
    return value


# Function.apply without what it does for torch.func, whose calls take the operators: 2 of 12 microseconds.
_apply = super(torch.autograd.Function, _LogPartition).apply  # type: ignore[misc]


def log_partition(
    both: Callable[..., tuple[Tensor, Gradient]],
    again: Callable[..., Gradient],
    tensors: tuple[Tensor | None, ...],
    options: tuple[int, ...] = (),
) -> Tensor:
    """log Z (B,) of a structure whose arguments are ``tensors`` and ``options``.

    ``both(*tensors, *options)`` gives log Z and d (sum_b log Z_b) / d tensors, an entry for each of them;
    ``again(grad, *tensors, *options)`` gives d (sum_b grad_b log Z_b) / d tensors, differentiably.
    """
    if _native.attach is not None:
        log_z, gradient = both(*tensors, *options)
        attached = _native.attach(log_z, gradient, again, tensors, options)
        if attached is not None:
            return attached
    found: Tensor = _apply((both, again, options), *tensors)
    return found


def _rows_like(x: Tensor) -> Tensor:
    """An empty contiguous tensor like ``x``; spelling out a shape takes torch twice as long as copying it."""
    return torch.empty_like(x) if x.is_contiguous() else x.new_empty(x.shape)


def chain(*args: Any) -> tuple[Tensor, Gradient]:
    """log Z (B,) and d (sum_b log Z_b) / d (unary, transition, start, end, lengths)."""
    found = _native.chain_value_and_gradient(*args)
    if found is not None:
        return found[0], (*found[1:], None)
    unary, transition, start, end, _ = args
    log_z = unary.new_empty(unary.shape[0])
    gradient = (
        _rows_like(unary),
        _rows_like(transition),
        None if start is None else _rows_like(start),
        None if end is None else _rows_like(end),
    )
    chain_ops.call("value_and_gradient", args, log_z, *gradient)
    return log_z, (*gradient, None)


def chain_again(grad: Tensor, *args: Any) -> Gradient:
    """d (sum_b grad_b log Z_b) / d (unary, transition, start, end, lengths), differentiable."""
    with torch.no_grad():
        log_z, alpha = chain_ops.forward(*args, True, "cpu")
    unary, transition, start, end = chain_ops.backward(*args, alpha, log_z, grad, "cpu")
    return unary, transition, None if args[2] is None else start, None if args[3] is None else end, None


def chain_log_partition(*args: Any) -> Tensor:
    """log Z (B,) for the arguments of ``ops/chain.py``."""
    return log_partition(chain, chain_again, args)


def span_tree(spans: Tensor, lengths: Tensor | None) -> tuple[Tensor, Gradient]:
    """log Z (B,) and d (sum_b log Z_b) / d (spans, lengths)."""
    found = _native.span_tree_value_and_gradient(spans, lengths)
    if found is not None:
        return found[0], (found[1], None)
    log_z, gradient = spans.new_empty(spans.shape[0]), _rows_like(spans)
    span_tree_ops.call("value_and_gradient", spans, lengths, log_z, gradient)
    return log_z, (gradient, None)


def span_tree_again(grad: Tensor, spans: Tensor, lengths: Tensor | None) -> Gradient:
    """d (sum_b grad_b log Z_b) / d (spans, lengths), differentiable."""
    with torch.no_grad():
        log_z, chart = span_tree_ops.forward(spans, lengths, True, "cpu")
    return span_tree_ops.backward(spans, lengths, chart, log_z, grad, "cpu"), None


def span_tree_log_partition(spans: Tensor, lengths: Tensor | None) -> Tensor:
    """log Z (B,) for the arguments of ``ops/span_tree.py``."""
    return log_partition(span_tree, span_tree_again, (spans, lengths))


def alignment(*args: Any) -> tuple[Tensor, Gradient]:
    """log Z (B,) and d (sum_b log Z_b) / d (match, gap_x, gap_y, open_x, open_y, x_lengths, y_lengths)."""
    log_z = args[0].new_empty(args[0].shape[0])
    gradient = tuple(None if x is None else _rows_like(x) for x in args[:5])
    alignment_ops.call("value_and_gradient", args, log_z, *gradient)  # type: ignore[arg-type]
    return log_z, (*gradient, None, None)


def _alignment_again(grad: Tensor, *args: Any) -> Gradient:
    with torch.no_grad():
        log_z, kept = alignment_sum_ops.forward(*args, True, "cpu")
    found = alignment_sum_ops.backward(*args, log_z, kept, grad, "cpu")
    return alignment_ops.gradients(args, found)[:7]


def alignment_log_partition(*args: Any) -> Tensor:
    """log Z (B,) for the arguments of ``ops/alignment.py``."""
    return log_partition(alignment, _alignment_again, args[:7], args[7:])


def grammar(*args: Any) -> tuple[Tensor, Gradient]:
    """log Z (B,) and d (sum_b log Z_b) / d (terms, rules, roots, spans, lengths, tables)."""
    log_z = args[0].new_empty(args[0].shape[0])
    gradient = tuple(None if x is None else _rows_like(x) for x in args[:4])
    grammar_ops.call("value_and_gradient", args, log_z, *gradient)
    return log_z, (*gradient, None, None)


def _grammar_again(grad: Tensor, *args: Any) -> Gradient:
    with torch.no_grad():
        chart = grammar_ops.forward(*args, True)[1]
    found = grammar_ops.backward(*args, chart, grad)
    return *found[:3], None if args[3] is None else found[3], None, None


def grammar_log_partition(*args: Any) -> Tensor:
    """log Z (B,) for the arguments of ``ops/grammar.py``."""
    return log_partition(grammar, _grammar_again, args[:6], args[6:])
