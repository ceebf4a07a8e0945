"""Launches of the alignment kernels, for the operators of `structlearn/ops/alignment.py` and `alignment_sum.py`."""

from typing import Any

import torch
from torch import Tensor

from .launch import PAD_LABEL, Launch, run

GLOBAL, LOCAL, SEMIGLOBAL = range(3)  # MODES of structlearn/ops/alignment.py
Plan = tuple[list[Launch], Any]


def _block(match: Tensor) -> tuple[int, int]:
    """(BLOCK, num_warps): up to 1024 rows of a diagonal in one tile, 4 a thread, of float64 2: more would spill."""
    block = min(1024, max(32, 1 << match.shape[1].bit_length()))
    return block, max(1, block * match.dtype.itemsize // 512)


def _args(args: Any) -> dict[str, Any]:
    match, gap_x, gap_y, open_x, open_y, x_lengths, y_lengths, mode, band = args
    match = match if match.stride(2) == 1 or match.shape[2] <= 1 else match.contiguous()
    strides = {"stride_mb": match.stride(0), "stride_mn": match.stride(1)}
    for name, score, letters in (("gx", gap_x, "bn"), ("gy", gap_y, "bm"), ("ox", open_x, "bn"), ("oy", open_y, "bm")):
        for axis, letter in enumerate(letters):
            strides[f"stride_{name}{letter}"] = 0 if score is None else score.stride(axis)
    tensors = {"match": match, "gap_x": gap_x, "gap_y": gap_y, "open_x": open_x, "open_y": open_y}
    lengths = {
        name: None if x is None else x.contiguous() for name, x in (("x_lengths", x_lengths), ("y_lengths", y_lengths))
    }
    sizes = {"N": match.shape[1], "M": match.shape[2], "BAND": band}
    flags = {"LOCAL": mode == LOCAL, "SEMIGLOBAL": mode == SEMIGLOBAL, "BLOCK": _block(match)[0]}
    return tensors | lengths | sizes | strides | flags


def _variant(args: Any) -> str:
    return f"alignment-{'linear' if args[3] is None else 'affine'}-{('global', 'local', 'semiglobal')[args[7]]}"


def _launch(kernel: Any, args: Any, more: dict[str, Any], fusion: bool) -> list[Launch]:
    warps = _block(args[0])[1]
    return [Launch(kernel, (args[0].shape[0],), _args(args) | more, warps, _variant(args), fusion)]


def plan_best(*args: Any) -> Plan:
    from .alignment_max import best_kernel

    match, mode = args[0], args[7]
    B, N, M = match.shape
    made: dict[str, Any] = {
        "rows": match.new_empty((B, 3, 3, N + 1)),
        "codes": match.new_empty((B, N + 1, M + 1), dtype=torch.uint8),
        "ends": match.new_empty((B, N + 1)) if mode == LOCAL else None,
        "places": match.new_empty((B, N + 1), dtype=torch.int32) if mode == LOCAL else None,
        "path": torch.full((B, N + M), PAD_LABEL, dtype=torch.int64, device=match.device),
        "length": match.new_empty(B, dtype=torch.int64),
        "score": match.new_empty(B),
    }
    # A product fused with a sum would round otherwise than the other backends and move ties; there is none to lose.
    return _launch(best_kernel, args, made, False), made


def best(*args: Any) -> tuple[Tensor, Tensor]:
    *tensors, trace = args
    launches, made = plan_best(*tensors)
    run(launches, tensors[0].device)
    if not trace:
        return made["path"][:, :0], made["score"]
    # The kernel walks from the end; turn each path around in front of its padding.
    back, length = made["path"], made["length"][:, None]
    place = length - 1 - torch.arange(back.shape[1], device=back.device)
    path = back.gather(1, place.clamp(min=0)) if back.shape[1] else back
    return path.masked_fill(place < 0, PAD_LABEL), made["score"]


def plan_forward(*args: Any) -> Plan:
    from .alignment_sum import forward_kernel

    match, mode = args[0], args[7]
    B, N, M = match.shape
    made: dict[str, Any] = {
        "kept": match.new_empty((B, 3 * (N + M + 1) * (N + 1))),
        "ends": match.new_full((B, N + 1), float("-inf")) if mode == LOCAL else None,
        "log_z": match.new_empty(B),
    }
    return _launch(forward_kernel, args, made, True), (made["log_z"], made["kept"])


def forward(*args: Any) -> tuple[Tensor, Tensor]:
    launches, found = plan_forward(*args)
    run(launches, args[0].device)
    log_z, kept = found
    return log_z, kept


def plan_backward(*args: Any) -> Plan:
    from .alignment_sum import backward_kernel

    *tensors, log_z, kept, grad = args
    match = tensors[0]
    B, N = match.shape[:2]
    names = ("d_match", "d_gap_x", "d_gap_y", "d_open_x", "d_open_y")
    made = {
        name: None if x is None else torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        for name, x in zip(names, tensors[:5], strict=True)
    }
    scratch = {"kept": kept, "log_z": log_z, "grad": grad.contiguous(), "rows": match.new_empty((B, 3, 3, N + 2))}
    found = tuple(match.new_empty(0) if x is None else x for x in made.values())
    return _launch(backward_kernel, tensors, made | scratch, True), found


def backward(*args: Any) -> tuple[Tensor, ...]:
    launches, found = plan_backward(*args)
    run(launches, args[0].device)
    gradients: tuple[Tensor, ...] = found
    return gradients
