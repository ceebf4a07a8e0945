"""Operators of the linear chain; the equations are in ``structures/chain.py``.

Arguments shared by all, called ``Args`` below: unary (B,N,C), transition (C,C) or (B,N-1,C,C), start (C,) or
None, end (C,) or None, lengths (B,) or None. ``backend`` is "cpu" or "triton".
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import LabelError
from structlearn.ops._derivatives import given, no_third, require_second
from structlearn.ops._library import kernel, lengths_within
from structlearn.ops._register import operator

ARGS = "Tensor unary, Tensor transition, Tensor? start, Tensor? end, Tensor? lengths"
_PACK = struct.Struct("5P9q").pack  # ChainArgs of kernels/cpu/chain.h

_KERNELS: dict[tuple[str, torch.dtype], Any] = {}

Args = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def _states_contiguous(unary: Tensor) -> Tensor:
    return unary if unary.shape[2] <= 1 or unary.stride(2) == 1 else unary.contiguous()


def _matrices_contiguous(transition: Tensor) -> Tensor:
    if transition.is_contiguous():
        return transition
    labels = transition.shape[-1]
    if labels <= 1 or (transition.stride(-1) == 1 and transition.stride(-2) == labels):
        return transition
    return transition.contiguous()


def call(name: str, args: Args, *rest: Tensor | int | None) -> int:
    """Runs a C++ kernel on ``args`` and the outputs or options in ``rest``."""
    unary, transition, start, end, lengths = args
    b, n, c = unary.shape
    dtype = unary.dtype
    if unary.is_contiguous():
        unary_b, unary_n = n * c, c
    else:
        unary = _states_contiguous(unary)
        unary_b, unary_n = unary.stride(0), unary.stride(1)
    transition = _matrices_contiguous(transition)
    shared = transition.dim() == 2
    # Copies must live until the kernel returns, hence the names.
    start = None if start is None else start.contiguous()
    end = None if end is None else end.contiguous()
    lengths = lengths_within("lengths", lengths, n)
    packed = _PACK(
        unary.data_ptr(), transition.data_ptr(),
        0 if start is None else start.data_ptr(),
        0 if end is None else end.data_ptr(),
        0 if lengths is None else lengths.data_ptr(),
        b, n, c, unary_b, unary_n,
        0 if shared else transition.stride(0), 0 if shared else transition.stride(1), shared, torch.get_num_threads(),
    )  # fmt: skip
    function = _KERNELS.get((name, dtype))
    if function is None:
        function = _KERNELS[name, dtype] = kernel("chain_" + name, dtype, 1 + len(rest))
    return function(packed, *[r.data_ptr() if isinstance(r, Tensor) else r for r in rest])  # type: ignore[no-any-return]


def _gpu() -> Any:
    import structlearn.gpu.chain as gpu

    return gpu


def _sizes(unary: Tensor) -> tuple[int, int, int]:
    b, n, c = unary.shape
    return b, n, c


def decode(*args: Any) -> tuple[Tensor, int]:
    """Best labels (B,N) by the C++ kernel, and how many rows have no allowed output; eager only."""
    b, n, _ = args[0].shape
    labels = args[0].new_empty((b, n), dtype=torch.int64)
    return labels, call("viterbi", args, labels, 0)  # type: ignore[arg-type]


def _viterbi(*args: Any) -> tuple[Tensor, Tensor]:
    *tensors, backend = args
    if backend == "triton":
        return _gpu().viterbi(*tensors)  # type: ignore[no-any-return]
    labels, score = _viterbi_fake(tensors[0])
    call("viterbi", tuple(tensors), labels, score)  # type: ignore[arg-type]
    return labels, score


def _viterbi_fake(unary: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    b, n, _ = _sizes(unary)
    return unary.new_empty((b, n), dtype=torch.int64), unary.new_empty(b)


def _save_args(ctx: Any, args: Args, *more: Tensor) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*args, *more)


def _best_score(*args: Any) -> tuple[Tensor, Tensor]:
    """max_y s(y) (B,) and its labels (B,N)."""
    labels, score = _viterbi(*args, "cpu")
    return score, labels


def _best_score_fake(*args: Any) -> tuple[Tensor, Tensor]:
    labels, score = _viterbi_fake(*args)
    return score, labels


def _max_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    _save_args(ctx, inputs[:5], output[1])


def _max_backward(ctx: Any, grad: Tensor | None, _: None) -> Any:
    *args, labels = ctx.saved_tensors
    if grad is None:
        return (None,) * 5
    return _gradients(args, score_backward(*args, labels.unsqueeze(0), grad.unsqueeze(0)))


def _gradients(args: Any, results: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the five arguments; the operators return an empty tensor for an absent start or end."""
    unary, transition, start, end = results
    return unary, transition, None if args[2] is None else start, None if args[3] is None else end, None


def _gradient_outputs(args: Any) -> tuple[Tensor, ...]:
    unary, transition, start, end, _ = args
    return (
        torch.empty(unary.shape, dtype=unary.dtype, device=unary.device),
        torch.empty(transition.shape, dtype=unary.dtype, device=unary.device),
        *(unary.new_empty(0 if x is None else x.shape[0]) for x in (start, end)),
    )


def _check_place(place: int, labels: Tensor, unary: Tensor) -> None:
    """Raises for the flat place in labels (K,B,N) that a kernel found out of range; -1 is none, -2 a forbidden gold."""
    if place == -2:
        raise LabelError("gold", "an output that the potentials allow", "score -inf", "relax the mask that forbids it")
    if place >= 0:
        n, c = unary.shape[1:]
        k, b, t = place // (n * unary.shape[0]), place // n % unary.shape[0], place % n
        raise LabelError(
            "y",
            f"labels in 0..{c - 1} at unpadded positions",
            f"{int(labels[k, b, t])} at batch row {b}, position {t}",
            "check the label vocabulary, or shorten lengths if this position is padding",
        )


def _score(*args: Any) -> Tensor:
    """sum of the potentials along labels (K,B,N), (K,B)."""
    *tensors, labels = args
    unary = tensors[0]
    labels = labels.contiguous()
    out: Tensor = unary.new_empty(labels.shape[:2])
    place = call("score", tuple(tensors), labels, labels.shape[0], out)  # type: ignore[arg-type]
    _check_place(place, labels, unary)
    return out


def _score_fake(unary: Tensor, *rest: Any) -> Tensor:
    return unary.new_empty(rest[-1].shape[:2])


def _score_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save_args(ctx, inputs[:5], inputs[5])


def _score_grad(ctx: Any, grad: Tensor | None) -> Any:
    *args, labels = ctx.saved_tensors
    if grad is None:
        return (None,) * 6
    return *_gradients(args, score_backward(*args, labels, grad)), None


def _score_backward(*args: Any) -> tuple[Tensor, ...]:
    """Counts of the parts along labels (K,B,N), weighted by grad (K,B)."""
    *tensors, labels, grad = args
    outputs = _gradient_outputs(tensors)
    call("score_backward", tuple(tensors), labels.contiguous(), labels.shape[0], grad.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _gradient_fake(*args: Any) -> tuple[Tensor, ...]:
    return _gradient_outputs(args[:5])


def _counts_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:6])


def _counts_backward(ctx: Any, *directions: Tensor | None) -> Any:
    """The counts are linear in grad alone: their derivative along directions is the directions' score."""
    *args, labels = ctx.saved_tensors
    along = score(*given(args[:4], directions), args[4], labels.clamp(min=0))
    infeasible = (labels[..., :1] < 0).any(-1)
    return *(None,) * 6, along.masked_fill(infeasible, 0.0)


def _margin(*args: Any) -> tuple[Tensor, Tensor]:
    """max_y [sum_t discount_t [y_t != gold_t] + s(y)] - s(gold), (B,), and the labels (B,N) of that y."""
    *tensors, gold, discount = args
    value, labels = _margin_fake(*args)
    gold = gold.contiguous()
    discount = None if discount is None else discount.to(value.dtype).contiguous()
    _check_place(call("margin", tuple(tensors), gold, discount, labels, value), gold.unsqueeze(0), tensors[0])  # type: ignore[arg-type]
    return value, labels


def _margin_fake(*args: Any) -> tuple[Tensor, Tensor]:
    unary, gold = args[0], args[5]
    return unary.new_empty(unary.shape[0]), torch.empty(gold.shape, dtype=torch.int64, device=gold.device)


def _margin_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    _save_args(ctx, inputs[:5], output[1], inputs[5])


def _margin_backward(ctx: Any, grad: Tensor | None, _: None) -> Any:
    *args, labels, gold = ctx.saved_tensors
    if grad is None:
        return (None,) * 7
    return *_gradients(args, difference_backward(*args, labels, gold, grad)), None, None


def _difference_backward(*args: Any) -> tuple[Tensor, ...]:
    """grad_b times the parts of y (B,N) minus the parts of z (B,N)."""
    *tensors, y, z, grad = args
    outputs = _gradient_outputs(tensors)
    call("difference_backward", tuple(tensors), y.contiguous(), z.contiguous(), grad.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _difference_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save_args(ctx, inputs[:5], inputs[5], inputs[6])


def _difference_grad(ctx: Any, *directions: Tensor | None) -> Any:
    *args, y, z = ctx.saved_tensors
    first, second_ = score(*given(args[:4], directions), args[4], torch.stack([y, z])).unbind(0)
    return *(None,) * 7, first - second_


def _forward(*args: Any) -> tuple[Tensor, Tensor]:
    """log Z (B,) and, if keep, what backward needs: (B,N,C) in a form of the backend's own."""
    *tensors, keep, backend = args
    if backend == "triton":
        return _gpu().forward(*tensors)  # type: ignore[no-any-return]
    unary = tensors[0]
    log_z = unary.new_empty(unary.shape[0])
    alpha = unary.new_empty(unary.shape if keep else 0)
    call("forward", tuple(tensors), log_z, alpha if keep else 0)  # type: ignore[arg-type]
    return log_z, alpha


def _forward_fake(unary: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    keep, backend = rest[-2:]
    shape = unary.shape if keep or backend == "triton" else (0,)
    return unary.new_empty(unary.shape[0]), torch.empty(shape, dtype=unary.dtype, device=unary.device)


def _forward_context(ctx: Any, inputs: Any, output: Any) -> None:
    log_z, alpha = output
    ctx.mark_non_differentiable(alpha)
    ctx.backend = inputs[6]
    _save_args(ctx, inputs[:5], alpha, log_z)


def _forward_grad(ctx: Any, grad: Tensor | None, _: None) -> Any:
    *args, alpha, log_z = ctx.saved_tensors
    if grad is None:
        return (None,) * 7
    return *_gradients(args, backward(*args, alpha, log_z.detach(), grad, ctx.backend)), None, None


def _backward(*args: Any) -> tuple[Tensor, ...]:
    """sum_b grad_b d log Z_b / d potentials."""
    *tensors, alpha, log_z, grad, backend = args
    if backend == "triton":
        unary, transition, start, end = _gpu().backward(*tensors, alpha, log_z, grad)
        return unary, transition, *(unary.new_empty(0) if x is None else x for x in (start, end))
    outputs = _gradient_outputs(tensors)
    call("backward", tuple(tensors), alpha, log_z, grad.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _backward_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.backend = inputs[8]
    _save_args(ctx, inputs[:5], inputs[7])


def _backward_grad(ctx: Any, *directions: Tensor | None) -> Any:
    *args, grad = ctx.saved_tensors
    require_second(ctx.backend)
    along, *curvature = second(*args, grad, *given(args[:4], directions))
    return *_gradients(args, curvature), None, None, along, None


def _second(*args: Any) -> tuple[Tensor, ...]:
    """(d log Z_b . v (B,), sum_b grad_b (d^2 log Z_b) v) for a direction v in the fields of the potentials."""
    *tensors, grad, v_unary, v_transition, v_start, v_end = args
    outputs = _gradient_outputs(tensors)
    along = tensors[0].new_empty(tensors[0].shape[0])
    directions = [None if v is None else v.contiguous() for v in (v_unary, v_transition, v_start, v_end)]
    call("second", tuple(tensors), grad.contiguous(), *directions, along, *outputs)  # type: ignore[arg-type]
    return along, *outputs


def _second_fake(*args: Any) -> tuple[Tensor, ...]:
    return args[0].new_empty(args[0].shape[0]), *_gradient_outputs(args[:5])


def _entropy(*tensors: Any) -> Tensor:
    """-sum_y p(y) log p(y), (B,)."""
    out: Tensor = tensors[0].new_empty(tensors[0].shape[0])
    call("entropy", tensors, out)
    return out


def _entropy_fake(unary: Tensor, *rest: Any) -> Tensor:
    return unary.new_empty(unary.shape[0])


def _entropy_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save_args(ctx, inputs)


def _entropy_backward(ctx: Any, grad: Tensor | None) -> Any:
    args = ctx.saved_tensors
    if grad is None:
        return (None,) * 5
    return _gradients(args, entropy_backward(*args, grad))


def _entropy_gradient(*args: Any) -> tuple[Tensor, ...]:
    """sum_b grad_b d entropy_b: d(log Z - <m, s>) = m - m - (d^2 log Z) s, with m the marginals."""
    *tensors, grad = args
    outputs = _gradient_outputs(tensors)
    call("entropy_backward", tuple(tensors), grad.neg().contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _kbest(*args: Any) -> tuple[Tensor, Tensor]:
    *tensors, k, backend = args
    if backend == "triton":
        return _gpu().kbest(*tensors, k)  # type: ignore[no-any-return]
    labels, scores = _kbest_fake(*args)
    call("kbest", tuple(tensors), k, labels, scores)  # type: ignore[arg-type]
    return labels, scores


def _kbest_fake(*args: Any) -> tuple[Tensor, Tensor]:
    unary, k = args[0], args[5]
    b, n, _ = _sizes(unary)
    return unary.new_empty((k, b, n), dtype=torch.int64), unary.new_empty((k, b))


def _sample(*args: Any) -> Tensor:
    """Labels (S,B,N) by inverse CDF from uniform (S,B,N), last position first."""
    *tensors, uniform, backend = args
    if backend == "triton":
        _, alpha = _gpu().forward(*tensors)
        return _gpu().sample(*tensors, alpha, uniform)  # type: ignore[no-any-return]
    labels: Tensor = uniform.new_empty(uniform.shape, dtype=torch.int64)
    call("sample", tuple(tensors), uniform.contiguous(), uniform.shape[0], labels)  # type: ignore[arg-type]
    return labels


def _sample_fake(*args: Any) -> Tensor:
    labels: Tensor = args[5].new_empty(args[5].shape, dtype=torch.int64)
    return labels


_FOUR = "(Tensor d_unary, Tensor d_transition, Tensor d_start, Tensor d_end)"

viterbi = operator(f"chain_viterbi({ARGS}, str backend) -> (Tensor labels, Tensor score)", _viterbi, _viterbi_fake)
best_score = operator(
    f"chain_max({ARGS}) -> (Tensor score, Tensor labels)",
    _best_score,
    _best_score_fake,
    setup_context=_max_context,
    backward=_max_backward,
)
score_backward = operator(
    f"chain_score_backward({ARGS}, Tensor labels, Tensor grad) -> {_FOUR}",
    _score_backward,
    _gradient_fake,
    setup_context=_counts_context,
    backward=_counts_backward,
)
score = operator(
    f"chain_score({ARGS}, Tensor labels) -> Tensor",
    _score,
    _score_fake,
    setup_context=_score_context,
    backward=_score_grad,
)
second = operator(
    f"chain_second({ARGS}, Tensor grad, Tensor v_unary, Tensor v_transition, Tensor? v_start, Tensor? v_end)"
    " -> (Tensor along, Tensor d_unary, Tensor d_transition, Tensor d_start, Tensor d_end)",
    _second,
    _second_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
backward = operator(
    f"chain_backward({ARGS}, Tensor alpha, Tensor log_z, Tensor grad, str backend) -> {_FOUR}",
    _backward,
    _gradient_fake,
    setup_context=_backward_context,
    backward=_backward_grad,
)
difference_backward = operator(
    f"chain_difference_backward({ARGS}, Tensor y, Tensor z, Tensor grad) -> {_FOUR}",
    _difference_backward,
    _gradient_fake,
    setup_context=_difference_context,
    backward=_difference_grad,
)
margin = operator(
    f"chain_margin({ARGS}, Tensor gold, Tensor? discount) -> (Tensor value, Tensor labels)",
    _margin,
    _margin_fake,
    setup_context=_margin_context,
    backward=_margin_backward,
)
forward = operator(
    f"chain_forward({ARGS}, bool keep, str backend) -> (Tensor log_z, Tensor alpha)",
    _forward,
    _forward_fake,
    setup_context=_forward_context,
    backward=_forward_grad,
)
entropy_backward = operator(
    f"chain_entropy_backward({ARGS}, Tensor grad) -> {_FOUR}",
    _entropy_gradient,
    _gradient_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
entropy = operator(
    f"chain_entropy({ARGS}) -> Tensor",
    _entropy,
    _entropy_fake,
    setup_context=_entropy_context,
    backward=_entropy_backward,
)
kbest = operator(f"chain_kbest({ARGS}, int k, str backend) -> (Tensor labels, Tensor scores)", _kbest, _kbest_fake)
sample = operator(f"chain_sample({ARGS}, Tensor uniform, str backend) -> Tensor", _sample, _sample_fake)
