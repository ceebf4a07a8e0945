"""Operators of the semi-Markov chain; the equations are in ``structures/semimarkov.py``.

Arguments shared by all, called ``Args`` below: segments (B,N,W,C), transition (C,C) or (B,N-1,C,C), lengths (B,) or
None. ``backend`` is "cpu" or "triton". Outputs, here ``codes``, are as in ``structures/segmentation.py``.
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

ARGS = "Tensor segments, Tensor transition, Tensor? lengths"
_PACK = struct.Struct("3P11q").pack  # SemiArgs of kernels/cpu/semimarkov.h

Args = tuple[Tensor, Tensor, Tensor | None]


def _pointer(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def call(name: str, args: Args, *rest: Tensor | int | None) -> int:
    """Runs a C++ kernel on ``args`` and the outputs or options in ``rest``."""
    segments, transition, lengths = args
    b, n, w, c = segments.shape
    if c > 1 and segments.stride(3) != 1:
        segments = segments.contiguous()
    if c > 1 and (transition.stride(-1) != 1 or transition.stride(-2) != c):
        transition = transition.contiguous()
    lengths = lengths_within("lengths", lengths, n)
    shared = transition.dim() == 2
    packed = _PACK(
        segments.data_ptr(), transition.data_ptr(), _pointer(lengths), b, n, w, c, *segments.stride()[:3],
        0 if shared else transition.stride(0), 0 if shared else transition.stride(1), shared, torch.get_num_threads(),
    )  # fmt: skip
    function = kernel("semimarkov_" + name, segments.dtype, 1 + len(rest))
    return int(function(packed, *[r if isinstance(r, int) else _pointer(r) for r in rest]))


def _gpu() -> Any:
    import structlearn.gpu.semimarkov as gpu

    return gpu


def _viterbi(*args: Any) -> tuple[Tensor, Tensor]:
    *tensors, backend = args
    if backend == "triton":
        return _gpu().viterbi(*tensors)  # type: ignore[no-any-return]
    outputs = _viterbi_fake(*args)
    call("viterbi", tuple(tensors), *outputs)  # type: ignore[arg-type]
    return outputs


def _viterbi_fake(segments: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    b, n = segments.shape[:2]
    return segments.new_empty((b, n), dtype=torch.int64), segments.new_empty(b)


def _save(ctx: Any, *tensors: Tensor | None) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _best_score(*tensors: Any) -> tuple[Tensor, Tensor]:
    """max_y s(y) (B,) and its codes (B,N)."""
    codes, score = _viterbi(*tensors, "cpu")
    return score, codes


def _best_score_fake(*tensors: Any) -> tuple[Tensor, Tensor]:
    codes, score = _viterbi_fake(*tensors)
    return score, codes


def _max_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    _save(ctx, *inputs, output[1])


def _max_backward(ctx: Any, grad: Tensor | None, _: None) -> Any:
    *args, codes = ctx.saved_tensors
    if grad is None:
        return (None,) * 3
    return *score_backward(*args, codes.unsqueeze(0), grad.unsqueeze(0)), None


def _gradient_outputs(segments: Tensor, transition: Tensor) -> tuple[Tensor, Tensor]:
    return (
        torch.empty(segments.shape, dtype=segments.dtype, device=segments.device),
        torch.empty(transition.shape, dtype=segments.dtype, device=segments.device),
    )


def _score(*args: Any) -> Tensor:
    """sum of the potentials along codes (K,B,N), (K,B)."""
    *tensors, codes = args
    codes = codes.contiguous()
    out = _score_fake(*args)
    place = call("score", tuple(tensors), codes, codes.shape[0], out)  # type: ignore[arg-type]
    if place >= 0:
        b, n = codes.shape[1:]
        raise LabelError(
            "y",
            "segments that follow one another from position 0 to the length",
            f"{int(codes.flatten()[place])} at batch row {place // n % b}, position {place % n}",
            "build outputs with encode(), or shorten lengths if this position is padding",
        )
    return out


def _score_fake(segments: Tensor, *rest: Any) -> Tensor:
    return segments.new_empty(rest[-1].shape[:2])


def _score_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, *inputs)


def _score_grad(ctx: Any, grad: Tensor | None) -> Any:
    *args, codes = ctx.saved_tensors
    if grad is None:
        return (None,) * 4
    return *score_backward(*args, codes, grad), None, None


def _score_backward(*args: Any) -> tuple[Tensor, Tensor]:
    """Counts of the parts along codes (K,B,N), weighted by grad (K,B)."""
    *tensors, codes, grad = args
    outputs = _gradient_outputs(*tensors[:2])
    call("score_backward", tuple(tensors), codes.contiguous(), codes.shape[0], grad.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _gradients_fake(*args: Any) -> tuple[Tensor, Tensor]:
    return _gradient_outputs(*args[:2])


def _counts_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, *inputs[:4])


def _counts_backward(ctx: Any, *directions: Tensor | None) -> Any:
    """The counts are linear in grad alone: their derivative along directions is the directions' score."""
    *args, codes = ctx.saved_tensors
    return None, None, None, None, score(*given(args[:2], directions), args[2], codes)


def _forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """log Z (B,) and, if keep, what backward needs, in a form of the backend's own."""
    *tensors, keep, backend = args
    if backend == "triton":
        return _gpu().forward(*tensors)  # type: ignore[no-any-return]
    log_z, values, scales = outputs = _forward_fake(*args)
    call("forward", tuple(tensors), log_z, values if keep else 0, scales if keep else 0)  # type: ignore[arg-type]
    return outputs


def _forward_fake(segments: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    b, n, _, c = segments.shape
    keep = rest[-2] or rest[-1] == "triton"
    return (
        segments.new_empty(b),
        segments.new_empty((b, n, 2, c) if keep else 0),
        segments.new_empty((b, n + 1 + (rest[-1] == "cpu")) if keep else 0, dtype=torch.float64),
    )


def _forward_context(ctx: Any, inputs: Any, output: Any) -> None:
    _, values, scales = output
    ctx.mark_non_differentiable(values, scales)
    ctx.backend = inputs[4]
    _save(ctx, *inputs[:3], values, scales)


def _forward_grad(ctx: Any, grad: Tensor | None, *_: None) -> Any:
    if grad is None:
        return (None,) * 5
    return *backward(*ctx.saved_tensors, grad, ctx.backend), None, None, None


def _backward(*args: Any) -> tuple[Tensor, Tensor]:
    """sum_b grad_b d log Z_b / d potentials."""
    *tensors, values, scales, grad, backend = args
    if backend == "triton":
        return _gpu().backward(*tensors, values, scales, grad)  # type: ignore[no-any-return]
    outputs = _gradient_outputs(*tensors[:2])
    call("backward", tuple(tensors), values, scales, grad.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _backward_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.backend = inputs[6]
    _save(ctx, *inputs[:3], inputs[5])


def _backward_grad(ctx: Any, *directions: Tensor | None) -> Any:
    *args, grad = ctx.saved_tensors
    require_second(ctx.backend)
    along, *curvature = second(*args, grad, *given(args[:2], directions))
    return *curvature, None, None, None, along, None


def _second(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(d log Z_b . v (B,), sum_b grad_b (d^2 log Z_b) v) for a direction v in the fields of the potentials."""
    *tensors, grad, v_segments, v_transition = args
    outputs = _second_fake(*args)
    directions = (v_segments.contiguous(), v_transition.contiguous())
    call("second", tuple(tensors), grad.contiguous(), *directions, *outputs)  # type: ignore[arg-type]
    return outputs


def _second_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return args[0].new_empty(args[0].shape[0]), *_gradient_outputs(*args[:2])


def _entropy(*tensors: Any) -> Tensor:
    """-E[log p(y)], (B,)."""
    out = _entropy_fake(*tensors)
    call("entropy", tensors, out)
    return out


def _entropy_fake(segments: Tensor, *rest: Any) -> Tensor:
    return segments.new_empty(segments.shape[0])


def _entropy_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, *inputs)


def _entropy_grad(ctx: Any, grad: Tensor | None) -> Any:
    if grad is None:
        return (None,) * 3
    return *entropy_backward(*ctx.saved_tensors, grad), None


def _entropy_backward(*args: Any) -> tuple[Tensor, Tensor]:
    """sum_b grad_b d H_b / d potentials."""
    *tensors, grad = args
    outputs = _gradient_outputs(*tensors[:2])
    call("entropy_backward", tuple(tensors), grad.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _kbest(*args: Any) -> tuple[Tensor, Tensor]:
    *tensors, k, backend = args
    if backend == "triton":
        return _gpu().kbest(*tensors, k)  # type: ignore[no-any-return]
    outputs = _kbest_fake(*args)
    call("kbest", tuple(tensors), k, *outputs)  # type: ignore[arg-type]
    return outputs


def _kbest_fake(*args: Any) -> tuple[Tensor, Tensor]:
    segments, k = args[0], args[3]
    b, n = segments.shape[:2]
    return segments.new_empty((k, b, n), dtype=torch.int64), segments.new_empty((k, b))


def _sample(*args: Any) -> Tensor:
    """Codes (S,B,N) by inverse CDF from uniform (S,B,N,2), last segment first."""
    *tensors, uniform, backend = args
    if backend == "triton":
        return _gpu().sample(*tensors, uniform)  # type: ignore[no-any-return]
    codes = _sample_fake(*args)
    call("sample", tuple(tensors), uniform.contiguous(), uniform.shape[0], codes)  # type: ignore[arg-type]
    return codes


def _sample_fake(*args: Any) -> Tensor:
    uniform: Tensor = args[3]
    return uniform.new_empty(uniform.shape[:3], dtype=torch.int64)


_TWO = "(Tensor d_segments, Tensor d_transition)"

viterbi = operator(f"semimarkov_viterbi({ARGS}, str backend) -> (Tensor codes, Tensor score)", _viterbi, _viterbi_fake)
best_score = operator(
    f"semimarkov_max({ARGS}) -> (Tensor score, Tensor codes)",
    _best_score,
    _best_score_fake,
    setup_context=_max_context,
    backward=_max_backward,
)
score_backward = operator(
    f"semimarkov_score_backward({ARGS}, Tensor codes, Tensor grad) -> {_TWO}",
    _score_backward,
    _gradients_fake,
    setup_context=_counts_context,
    backward=_counts_backward,
)
score = operator(
    f"semimarkov_score({ARGS}, Tensor codes) -> Tensor",
    _score,
    _score_fake,
    setup_context=_score_context,
    backward=_score_grad,
)
second = operator(
    f"semimarkov_second({ARGS}, Tensor grad, Tensor v_segments, Tensor v_transition)"
    " -> (Tensor along, Tensor d_segments, Tensor d_transition)",
    _second,
    _second_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
backward = operator(
    f"semimarkov_backward({ARGS}, Tensor values, Tensor scales, Tensor grad, str backend) -> {_TWO}",
    _backward,
    _gradients_fake,
    setup_context=_backward_context,
    backward=_backward_grad,
)
forward = operator(
    f"semimarkov_forward({ARGS}, bool keep, str backend) -> (Tensor log_z, Tensor values, Tensor scales)",
    _forward,
    _forward_fake,
    setup_context=_forward_context,
    backward=_forward_grad,
)
entropy_backward = operator(
    f"semimarkov_entropy_backward({ARGS}, Tensor grad) -> {_TWO}",
    _entropy_backward,
    _gradients_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
entropy = operator(
    f"semimarkov_entropy({ARGS}) -> Tensor",
    _entropy,
    _entropy_fake,
    setup_context=_entropy_context,
    backward=_entropy_grad,
)
kbest = operator(f"semimarkov_kbest({ARGS}, int k, str backend) -> (Tensor codes, Tensor scores)", _kbest, _kbest_fake)
sample = operator(f"semimarkov_sample({ARGS}, Tensor uniform, str backend) -> Tensor", _sample, _sample_fake)
