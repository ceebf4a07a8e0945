"""Launch functions of the semi-Markov chain's Triton kernels; recurrences and limits are described beside the kernels.

    s(y) = sum_i segments[t_i, w_i, c_i] + sum_{i>=1} transition[c_{i-1}, c_i]

over segments that start at t_i, are w_i + 1 positions wide and have label c_i. Shapes everywhere: segments
(B, N, W, C); transition (C, C) or (B, N-1, C, C), [previous, current]; lengths (B,) int64 or None. float32 or float64,
all of one dtype. Segments that reach beyond a row's length are never read. Outputs are codes (B, N): w * C + c where a
segment starts, -1 inside, -100 padded. A row of length 0 has score and log-partition 0; one without feasible output has
-inf, codes of -100 and gradient 0.
"""

from typing import Any

import torch
from torch import Tensor

from .launch import PAD_LABEL, Launch, resident_tiles, run, tiles


def _narrowest(size: int) -> torch.dtype:
    """The narrowest type that holds indices below `size`: pointers are read back by one dependent load a segment."""
    return torch.uint8 if size <= 256 else torch.int16 if size <= 32768 else torch.int32


class Potentials:
    """The arguments every kernel takes, with labels, and each transition matrix, contiguous."""

    def __init__(self, segments: Tensor, transition: Tensor, lengths: Tensor | None) -> None:
        self.B, self.N, self.W, self.C = segments.shape
        self.shared = transition.dim() == 2
        self.segments = segments if segments.stride(-1) == 1 else segments.contiguous()
        whole = transition.stride()[-2:] == (self.C, 1)
        self.transition = transition if whole else transition.contiguous()
        self.lengths = None if lengths is None else lengths.contiguous()

    def args(self) -> dict[str, Any]:
        """The potentials, their sizes and strides; those of a shared transition are 0."""
        batch, position = (0, 0) if self.shared else self.transition.stride()[:2]
        names = ("stride_sb", "stride_sn", "stride_sw")
        return {
            "segments": self.segments,
            "transition": self.transition,
            "lengths": self.lengths,
            "N": self.N,
            "W": self.W,
            "C": self.C,
            **dict(zip(names, self.segments.stride()[:3], strict=True)),
            "stride_tb": batch,
            "stride_tn": position,
        }

    def widths(self, block_c: int, num_warps: int) -> int:
        """BLOCK_W for tiles of 8 registers a thread."""
        room = 32 * num_warps * 8 * 4 // (block_c * self.segments.element_size())
        return min(1 << (self.W - 1).bit_length(), max(1, room))

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.segments.dtype, device=self.segments.device)

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(shape, dtype=dtype or self.segments.dtype, device=self.segments.device)

    def codes(self, *shape: int) -> Tensor:
        return torch.full(shape, PAD_LABEL, dtype=torch.int64, device=self.segments.device)


def plan_viterbi(
    segments: Tensor, transition: Tensor, lengths: Tensor | None
) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    from .semimarkov_max import semimarkov_viterbi_kernel

    x = Potentials(segments, transition, lengths)
    block_c, block_p, num_warps = resident_tiles(x.C, segments.dtype)
    block_w = x.widths(block_c, num_warps)
    codes, score = x.codes(x.B, x.N), x.empty(x.B)
    args = x.args() | {
        "message": x.empty(x.B, x.N, x.C),
        "rows": None if block_p >= block_c else x.empty(x.B, x.C),
        "widths": x.empty(x.B, x.N, x.C, dtype=_narrowest(x.W)),
        "pointers": x.empty(x.B, x.N, x.C, dtype=_narrowest(x.C)),
        "codes": codes,
        "score": score,
        "SHARED": x.shared,
        "WHOLE": block_w >= x.W,
        "BLOCK_W": block_w,
        "BLOCK_C": block_c,
        "BLOCK_P": block_p,
    }
    variant = "" if block_w >= x.W else "wide"
    return [Launch(semimarkov_viterbi_kernel, (x.B,), args, num_warps, variant)], (codes, score)


def viterbi(segments: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """argmax_y s(y) and max_y s(y): codes (B, N), score (B,)."""
    launches, outputs = plan_viterbi(segments, transition, lengths)
    run(launches, segments.device)
    return outputs


def plan_kbest(
    segments: Tensor, transition: Tensor, lengths: Tensor | None, k: int
) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    from .semimarkov_max import semimarkov_kbest_kernel

    x = Potentials(segments, transition, lengths)
    block_c, block_p, num_warps = tiles(x.C, segments.dtype, 2 * segments.dtype.itemsize, 8)
    codes, scores = x.codes(k, x.B, x.N), x.empty(k, x.B)
    args = x.args() | {
        "message": x.empty(x.B, x.N, k, x.C),
        "ending": x.empty(x.B, k, x.C),
        "widths": x.empty(x.B, x.N, k, x.C, dtype=torch.int32),
        "pointers": x.empty(x.B, x.N, k, x.C, dtype=torch.int32),
        "codes": codes,
        "scores": scores,
        "B": x.B,
        "K": k,
        "BLOCK_W": x.widths(block_c, num_warps),
        "BLOCK_C": block_c,
        "BLOCK_P": block_p,
        "BLOCK_K": 1 << (k - 1).bit_length(),
    }
    return [Launch(semimarkov_kbest_kernel, (x.B,), args, num_warps)], (codes, scores)


def kbest(segments: Tensor, transition: Tensor, lengths: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """The k outputs of highest s(y), best first: codes (k, B, N), scores (k, B); -100 and -inf beyond the last."""
    launches, outputs = plan_kbest(segments, transition, lengths, k)
    run(launches, segments.device)
    return outputs


def plan_forward(
    segments: Tensor, transition: Tensor, lengths: Tensor | None
) -> tuple[list[Launch], tuple[Tensor, Tensor, Tensor]]:
    from .semimarkov_sum import semimarkov_forward_kernel

    x = Potentials(segments, transition, lengths)
    block_c, block_p, num_warps = resident_tiles(x.C, segments.dtype)
    block_w = x.widths(block_c, num_warps)
    log_z, values, scales = x.empty(x.B), x.zeros(x.B, x.N, 2, x.C), x.zeros(x.B, x.N + 1, dtype=torch.float64)
    args = x.args() | {
        "values": values,
        "scales": scales,
        "log_z": log_z,
        "SHARED": x.shared,
        "WHOLE": block_w >= x.W,
        "BLOCK_W": block_w,
        "BLOCK_C": block_c,
        "BLOCK_P": block_p,
    }
    variant = "" if block_w >= x.W else "wide"
    return [Launch(semimarkov_forward_kernel, (x.B,), args, num_warps, variant)], (log_z, values, scales)


def forward(segments: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """log sum_y exp s(y): log_z (B,), and values (B, N, 2, C) and scales (B, N+1) for `backward` and `sample`."""
    launches, outputs = plan_forward(segments, transition, lengths)
    run(launches, segments.device)
    return outputs


def plan_backward(
    segments: Tensor,
    transition: Tensor,
    lengths: Tensor | None,
    values: Tensor,
    scales: Tensor,
    grad: Tensor,
) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    """Launches, d_segments, and d_transition or, if shared, its (S, C, C) partial sums."""
    from .semimarkov_grad import semimarkov_backward_kernel, semimarkov_transition_kernel

    x = Potentials(segments, transition, lengths)
    block_c, block_p, num_warps = tiles(x.C, segments.dtype, 8)
    d_segments, starts = x.empty(*segments.shape), x.empty(x.B, x.N, x.C)
    pairs = None if x.shared else x.empty(x.B, max(x.N - 1, 0), x.C, x.C)
    args = x.args() | {
        "transition": x.transition.t().contiguous() if x.shared else x.transition,
        "values": values,
        "scales": scales,
        "grad": grad.contiguous(),
        "ends": x.empty(x.B, x.N + 1, x.C),
        "starts": starts,
        "d_segments": d_segments,
        "d_transition": pairs,
        "SHARED": x.shared,
        "BLOCK_W": x.widths(block_c, num_warps),
        "BLOCK_C": block_c,
        "BLOCK_P": block_p,
    }
    launches = [Launch(semimarkov_backward_kernel, (x.B,), args, num_warps)]
    if pairs is not None:
        return launches, (d_segments, pairs)

    steps = x.B * max(x.N - 1, 0)
    if steps == 0:
        return launches, (d_segments, torch.zeros_like(x.transition)[None])
    block_c, block_p = min(block_c, 64), min(block_c, 32)
    grid = (-(-x.C // block_c), -(-x.C // block_p))
    # As for the chain: enough programs to fill a large device, partial sums smaller than the rows they come from, 8
    # steps or more a program, and no device property.
    parts = max(1, min(1024 // (grid[0] * grid[1]), x.B * x.N // x.C, steps // 8))
    partial = x.empty(parts, x.C, x.C)
    args = {
        "transition": x.transition,
        "lengths": x.lengths,
        "values": values,
        "starts": starts,
        "partial": partial,
        "N": x.N,
        "C": x.C,
        "steps": steps,
        "chunk": -(-steps // parts),
        "BLOCK_C": block_c,
        "BLOCK_P": block_p,
    }
    launches.append(Launch(semimarkov_transition_kernel, (*grid, parts), args, max(1, block_c * block_p // 512)))
    return launches, (d_segments, partial)


def backward(
    segments: Tensor,
    transition: Tensor,
    lengths: Tensor | None,
    values: Tensor,
    scales: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor]:
    """d (sum_b grad[b] log_z[b]) / d (segments, transition), each of its potential's shape."""
    launches, (d_segments, d_transition) = plan_backward(segments, transition, lengths, values, scales, grad)
    run(launches, segments.device)
    return d_segments, d_transition.sum(0) if transition.dim() == 2 else d_transition


def plan_sample(
    segments: Tensor,
    transition: Tensor,
    lengths: Tensor | None,
    values: Tensor,
    scales: Tensor,
    log_z: Tensor,
    uniform: Tensor,
) -> tuple[list[Launch], Tensor]:
    from .semimarkov_sum import semimarkov_sample_kernel

    x = Potentials(segments, transition, lengths)
    samples = uniform.shape[0]
    block_c = max(16, 1 << (x.C - 1).bit_length())
    codes = x.codes(samples, x.B, x.N)
    args = x.args() | {
        "values": values,
        "scales": scales,
        "log_z": log_z,
        "uniform": uniform.contiguous(),
        "codes": codes,
        "B": x.B,
        "BLOCK_W": max(16, 1 << (x.W - 1).bit_length()),
        "BLOCK_C": block_c,
    }
    launch = Launch(semimarkov_sample_kernel, (samples * x.B,), args, min(4, max(1, block_c // 256)))
    return [launch], codes


def sample(segments: Tensor, transition: Tensor, lengths: Tensor | None, uniform: Tensor) -> Tensor:
    """Codes (S, B, N) of S draws from p(y) = exp(s(y) - log_z), uniform (S, B, N, 2) for labels and widths."""
    log_z, values, scales = forward(segments, transition, lengths)
    launches, codes = plan_sample(segments, transition, lengths, values, scales, log_z, uniform)
    run(launches, segments.device)
    return codes
