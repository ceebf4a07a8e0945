"""Operators over all paths of an alignment: log Z, its first and second derivatives, entropy and samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.ops._derivatives import given, no_third, require_second
from structlearn.ops._library import kernel
from structlearn.ops._register import operator
from structlearn.ops.alignment import (
    ARGS,
    COUNT,
    FIVE,
    _gpu,
    _width,
    call,
    gradient_outputs,
    gradients,
    save,
    saved,
)


def _saved_size(args: Any, backend: str) -> int:
    """Entries a pair of what forward leaves for backward: Saved of kernels/cpu/alignment_sum.h."""
    match, open_x = args[0], args[3]
    n, m = match.shape[1:]
    if backend == "triton":
        return 3 * (n + m + 1) * (n + 1)  # type: ignore[no-any-return]
    lanes = int(kernel("alignment_lanes", match.dtype, 1)(b""))
    rows = 2 if open_x is None else 3
    return 4 + ((n + lanes - 1) // lanes + 1) * rows * (m + 3 * lanes)  # type: ignore[no-any-return]


def _forward(*args: Any) -> tuple[Tensor, Tensor]:
    """log Z (B,) and, if keep, what backward needs, in a form of the backend's own."""
    *tensors, keep, backend = args
    if backend == "triton":
        return _gpu().forward(*tensors)  # type: ignore[no-any-return]
    log_z, kept = _forward_fake(*args)
    call("forward", tuple(tensors), log_z, kept if keep else 0)  # type: ignore[arg-type]
    return log_z, kept


def _forward_fake(*args: Any) -> tuple[Tensor, Tensor]:
    *tensors, keep, backend = args
    match = tensors[0]
    size = _saved_size(tensors, backend) if keep or backend == "triton" else 0
    return match.new_empty(match.shape[0]), match.new_empty((match.shape[0], size))


def _forward_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.backend = inputs[COUNT + 1]
    save(ctx, inputs, output[0], output[1])


def _forward_grad(ctx: Any, grad: Tensor | None, _: None) -> Any:
    args, (log_z, kept) = saved(ctx)
    if grad is None:
        return (None,) * (COUNT + 2)
    return *gradients(args, backward(*args, log_z, kept, grad, ctx.backend)), None, None


def _backward(*args: Any) -> tuple[Tensor, ...]:
    """sum_b grad_b d log Z_b / d potentials."""
    *tensors, log_z, kept, grad, backend = args
    if backend == "triton":
        return _gpu().backward(*tensors, log_z, kept, grad)  # type: ignore[no-any-return]
    outputs = gradient_outputs(tensors)
    call("backward", tuple(tensors), kept, grad.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    return gradient_outputs(args)


def _backward_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.backend = inputs[COUNT + 3]
    save(ctx, inputs, inputs[COUNT + 2])


def _backward_grad(ctx: Any, *directions: Tensor | None) -> Any:
    args, (grad,) = saved(ctx)
    require_second(ctx.backend)
    along, *curvature = second(*args, grad, *given(args[:5], directions))
    return *gradients(args, curvature), None, None, along, None


def _second(*args: Any) -> tuple[Tensor, ...]:
    """(d log Z_b . v (B,), sum_b grad_b (d^2 log Z_b) v) for a direction v in the fields of the potentials."""
    tensors, (grad, *directions) = args[:COUNT], args[COUNT:]
    outputs = _second_fake(*args)
    call("second", tensors, grad.contiguous(), *_dense(directions), *outputs)  # type: ignore[arg-type]
    return outputs


def _dense(directions: Any) -> list[Tensor | None]:
    return [None if v is None else v.contiguous() for v in directions]


def _second_fake(*args: Any) -> tuple[Tensor, ...]:
    return args[0].new_empty(args[0].shape[0]), *gradient_outputs(args)


def _entropy(*args: Any) -> Tensor:
    """-E[log p(y)]."""
    out = _entropy_fake(*args)
    call("entropy", args, out)
    return out


def _entropy_fake(*args: Any) -> Tensor:
    return args[0].new_empty(args[0].shape[0])  # type: ignore[no-any-return]


def _entropy_context(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, inputs)


def _entropy_backward(ctx: Any, grad: Tensor | None) -> Any:
    args, _ = saved(ctx)
    if grad is None:
        return (None,) * COUNT
    return gradients(args, entropy_backward(*args, grad))


def _entropy_grad(*args: Any) -> tuple[Tensor, ...]:
    """sum_b grad_b d H_b / d potentials."""
    *tensors, grad = args
    outputs = gradient_outputs(tensors)
    call("entropy_backward", tuple(tensors), grad.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _sample(*args: Any) -> Tensor:
    """Paths (S,B,N+M) by inverse CDF from uniform (S,B,N+M+1), last operation first."""
    *tensors, uniform = args
    path = _sample_fake(*args)
    call("sample", tuple(tensors), uniform.contiguous(), uniform.shape[0], path)  # type: ignore[arg-type]
    return path


def _sample_fake(*args: Any) -> Tensor:
    match, uniform = args[0], args[COUNT]
    return match.new_empty((*uniform.shape[:2], _width(match)), dtype=torch.int64)  # type: ignore[no-any-return]


second = operator(
    f"alignment_second({ARGS}, Tensor grad, Tensor v_match, Tensor v_gap_x, Tensor v_gap_y, Tensor? v_open_x,"
    f" Tensor? v_open_y) -> (Tensor along, {FIVE[1:]}",
    _second,
    _second_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
backward = operator(
    f"alignment_backward({ARGS}, Tensor log_z, Tensor kept, Tensor grad, str backend) -> {FIVE}",
    _backward,
    _backward_fake,
    setup_context=_backward_context,
    backward=_backward_grad,
)
forward = operator(
    f"alignment_forward({ARGS}, bool keep, str backend) -> (Tensor log_z, Tensor kept)",
    _forward,
    _forward_fake,
    setup_context=_forward_context,
    backward=_forward_grad,
)
entropy_backward = operator(
    f"alignment_entropy_backward({ARGS}, Tensor grad) -> {FIVE}",
    _entropy_grad,
    lambda *args: gradient_outputs(args),
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
entropy = operator(
    f"alignment_entropy({ARGS}) -> Tensor",
    _entropy,
    _entropy_fake,
    setup_context=_entropy_context,
    backward=_entropy_backward,
)
sample = operator(f"alignment_sample({ARGS}, Tensor uniform) -> Tensor", _sample, _sample_fake)
