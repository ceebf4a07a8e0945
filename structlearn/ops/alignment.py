"""Operators of the alignment; the equations are in ``structures/alignment.py``.

Arguments shared by all, called ``Args`` below: match (B,N,M), gap_x (B,N), gap_y (B,M), open_x (B,N) or None, open_y
(B,M) or None, x_lengths (B,) or None, y_lengths (B,) or None, mode (index into ``MODES``) and band (-1 for none).
Gap scores may be expanded views. ``backend`` is "cpu" or "triton".
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import LabelError
from structlearn.ops._derivatives import given
from structlearn.ops._library import kernel, lengths_within
from structlearn.ops._register import operator

MODES = ("global", "local", "semiglobal")  # AlignmentMode of kernels/cpu/alignment.h
ARGS = (
    "Tensor match, Tensor gap_x, Tensor gap_y, Tensor? open_x, Tensor? open_y, "
    "Tensor? x_lengths, Tensor? y_lengths, int mode, int band"
)
COUNT = 9  # of the arguments above
_PACK = struct.Struct("7P17q").pack  # AlignmentArgs of kernels/cpu/alignment.h

Args = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, int, int]


def _pointer(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _strides(x: Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else (x.stride(0), x.stride(1))


def call(name: str, args: Args, *rest: Tensor | int | None) -> int:
    """Runs a C++ kernel on ``args`` and the outputs or options in ``rest``."""
    match, gap_x, gap_y, open_x, open_y, x_lengths, y_lengths, mode, band = args
    if match.shape[2] > 1 and match.stride(2) != 1:
        match = match.contiguous()
    x_lengths = lengths_within("x_lengths", x_lengths, match.shape[1])
    y_lengths = lengths_within("y_lengths", y_lengths, match.shape[2])
    packed = _PACK(
        match.data_ptr(), *map(_pointer, (gap_x, gap_y, open_x, open_y, x_lengths, y_lengths)), *match.shape,
        match.stride(0), match.stride(1), *_strides(gap_x), *_strides(gap_y), *_strides(open_x), *_strides(open_y),
        mode, band, torch.get_num_threads(), open_x is not None,
    )  # fmt: skip
    function = kernel("alignment_" + name, match.dtype, 1 + len(rest))
    return int(function(packed, *[r if isinstance(r, int) else _pointer(r) for r in rest]))


def _gpu() -> Any:
    import structlearn.gpu.alignment as gpu

    return gpu


def _width(match: Tensor) -> int:
    return match.shape[1] + match.shape[2]


def _max(*args: Any) -> tuple[Tensor, Tensor]:
    """A best path (B,N+M), or an empty tensor without ``trace``, and its score (B,)."""
    *tensors, trace, backend = args
    if backend == "triton":
        return _gpu().best(*tensors, trace)  # type: ignore[no-any-return]
    path, score = _max_fake(*args)
    call("max", tuple(tensors), path if trace else 0, score)  # type: ignore[arg-type]
    return path, score


def _max_fake(*args: Any) -> tuple[Tensor, Tensor]:
    match, trace = args[0], args[COUNT]
    b = match.shape[0]
    return match.new_empty((b, _width(match) if trace else 0), dtype=torch.int64), match.new_empty(b)


def save(ctx: Any, args: Any, *more: Tensor) -> None:
    """Keeps the arguments and ``more`` for backward."""
    ctx.set_materialize_grads(False)
    ctx.options = args[7:9]
    ctx.save_for_backward(*args[:7], *more)


def saved(ctx: Any) -> tuple[Any, list[Any]]:
    """The arguments and what else was kept."""
    tensors = ctx.saved_tensors
    return (*tensors[:7], *ctx.options), list(tensors[7:])


def gradients(args: Any, results: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the nine arguments; the operators return empty tensors for absent open scores."""
    return *results[:3], *(None if x is None else r for x, r in zip(args[3:5], results[3:], strict=True)), *[None] * 4


def gradient_outputs(args: Any) -> tuple[Tensor, ...]:
    """Empty tensors in the shapes of the potentials."""
    match = args[0]
    return tuple(match.new_empty(0 if x is None else x.shape) for x in args[:5])


def _best_score(*args: Any) -> tuple[Tensor, Tensor]:
    path, score = _max(*args)
    return score, path


def _best_score_fake(*args: Any) -> tuple[Tensor, Tensor]:
    path, score = _max_fake(*args)
    return score, path


def _max_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    save(ctx, inputs, output[1])


def _max_backward(ctx: Any, grad: Tensor | None, _: None) -> Any:
    args, (path,) = saved(ctx)
    if grad is None:
        return (None,) * (COUNT + 2)
    return *gradients(args, score_backward(*args, path.unsqueeze(0), grad.unsqueeze(0))), None, None


def _score(*args: Any) -> Tensor:
    """s(path) for paths (K,B,N+M), (K,B)."""
    *tensors, path = args
    match, path = tensors[0], path.contiguous()
    out = match.new_empty(path.shape[:2])
    place = call("score", tuple(tensors), path, path.shape[0], out)  # type: ignore[arg-type]
    if place >= 0:
        width, b = path.shape[2], path.shape[1]
        raise bad_path(path, (place // width // b, place // width % b, place % width), tensors)
    return out


def bad_path(path: Tensor, place: tuple[int, int, int], args: Any) -> LabelError:
    """The error for the operation at ``place`` of paths (K,B,N+M)."""
    k, b, t = place
    before = path[k, b, :t].tolist()
    n, m = (size if x is None else int(x[b]) for x, size in zip(args[5:7], args[0].shape[1:], strict=True))
    return LabelError(
        "y",
        f"operations 0, 1 or 2 that consume {n} positions of x and {m} of y",
        f"{int(path[k, b, t])} at operation {t} of batch row {b}, after {sum(op != 2 for op in before)}"
        f" and {sum(op != 1 for op in before)}",
        "0 matches, 1 consumes x, 2 consumes y; pad behind the end with -100",
    )


def _score_fake(*args: Any) -> Tensor:
    return args[0].new_empty(args[COUNT].shape[:2])  # type: ignore[no-any-return]


def _score_context(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, inputs, inputs[COUNT])


def _score_grad(ctx: Any, grad: Tensor | None) -> Any:
    args, (path,) = saved(ctx)
    if grad is None:
        return (None,) * (COUNT + 1)
    return *gradients(args, score_backward(*args, path, grad)), None


def _score_backward(*args: Any) -> tuple[Tensor, ...]:
    """Counts of the parts along paths (K,B,N+M), weighted by grad (K,B)."""
    *tensors, path, grad = args
    outputs = gradient_outputs(tensors)
    call("score_backward", tuple(tensors), path.contiguous(), path.shape[0], grad.contiguous(), *outputs)  # type: ignore[arg-type]
    return outputs


def _score_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    return gradient_outputs(args)


def _counts_backward(ctx: Any, *directions: Tensor | None) -> Any:
    """The counts are linear in grad alone: their derivative along directions is the directions' score."""
    args, (path,) = saved(ctx)
    return *(None,) * (COUNT + 1), score(*given(args[:5], directions), *args[5:], path)


def _kbest(*args: Any) -> tuple[Tensor, Tensor]:
    """Paths (k,B,N+M) and scores (k,B) of the k best outputs."""
    *tensors, k = args
    outputs = _kbest_fake(*args)
    call("kbest", tuple(tensors), k, *outputs)  # type: ignore[arg-type]
    return outputs


def _kbest_fake(*args: Any) -> tuple[Tensor, Tensor]:
    match, k = args[0], args[COUNT]
    b = match.shape[0]
    return match.new_empty((k, b, _width(match)), dtype=torch.int64), match.new_empty((k, b))


FIVE = "(Tensor d_match, Tensor d_gap_x, Tensor d_gap_y, Tensor d_open_x, Tensor d_open_y)"

best = operator(f"alignment_best({ARGS}, bool trace, str backend) -> (Tensor path, Tensor score)", _max, _max_fake)
best_score = operator(
    f"alignment_max({ARGS}, bool trace, str backend) -> (Tensor score, Tensor path)",
    _best_score,
    _best_score_fake,
    setup_context=_max_context,
    backward=_max_backward,
)
score_backward = operator(
    f"alignment_score_backward({ARGS}, Tensor path, Tensor grad) -> {FIVE}",
    _score_backward,
    _score_backward_fake,
    setup_context=_score_context,
    backward=_counts_backward,
)
score = operator(
    f"alignment_score({ARGS}, Tensor path) -> Tensor",
    _score,
    _score_fake,
    setup_context=_score_context,
    backward=_score_grad,
)
kbest = operator(f"alignment_kbest({ARGS}, int k) -> (Tensor path, Tensor scores)", _kbest, _kbest_fake)
