"""Launch functions of the linear chain's Triton kernels; recurrences and limits are described beside the kernels.

    s(y) = start[y_0] + sum_t unary[t, y_t] + sum_{t>0} transition[t-1, y_{t-1}, y_t] + end[y_last]

Shapes everywhere: unary (B, N, C); transition (C, C) or (B, N-1, C, C), [previous, current]; start and end (C,)
or None; lengths (B,) int64 or None. float32 or float64, all of one dtype. Positions at or beyond a row's length are
never read. A row of length 0 has score and log-partition 0; one without feasible output has -inf, labels of -100 and
gradient 0.
"""

import torch
from torch import Tensor

from .launch import Launch, Potentials, resident_tiles, run, tiles


def plan_viterbi(
    unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor | None
) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    from .chain_max import viterbi_kernel

    x = Potentials(unary, transition, start, end, lengths)
    block_c, block_p, num_warps = resident_tiles(x.C, unary.dtype)
    # The narrowest type that holds a state: pointers are the largest scratch, read back by one dependent load a step.
    width = torch.uint8 if x.C <= 256 else torch.int16 if x.C <= 32768 else torch.int32
    labels, score = x.labels(x.B, x.N), x.empty(x.B)
    args = (
        x.args("unary", "start", "end", "lengths")
        | x.transitions()
        | {
            "rows": None if block_p >= block_c else x.empty(x.B, 2, x.C),
            "pointers": x.empty(x.B, x.N, x.C, dtype=width),
            "labels": labels,
            "score": score,
            "SHARED": x.shared,
            "BLOCK_C": block_c,
            "BLOCK_P": block_p,
        }
    )
    return [Launch(viterbi_kernel, (x.B,), args, num_warps)], (labels, score)


def viterbi(
    unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """argmax_y s(y) and max_y s(y): labels (B, N) int64 padded with -100, score (B,)."""
    launches, outputs = plan_viterbi(unary, transition, start, end, lengths)
    run(launches, unary.device)
    return outputs


def plan_kbest(
    unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor | None, k: int
) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    from .chain_max import kbest_kernel

    x = Potentials(unary, transition, start, end, lengths)
    block_c, block_p, num_warps = tiles(x.C, unary.dtype, 2 * unary.dtype.itemsize, 8)
    labels, scores = x.labels(k, x.B, x.N), x.empty(k, x.B)
    args = (
        x.args("unary", "start", "end", "lengths")
        | x.transitions()
        | {
            "rows": x.empty(x.B, 2, k, x.C),
            "pointers": x.empty(x.B, x.N, k, x.C, dtype=torch.int32),
            "labels": labels,
            "scores": scores,
            "B": x.B,
            "K": k,
            "BLOCK_C": block_c,
            "BLOCK_P": block_p,
            "BLOCK_K": 1 << (k - 1).bit_length(),
        }
    )
    return [Launch(kbest_kernel, (x.B,), args, num_warps)], (labels, scores)


def kbest(
    unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """The k outputs of highest s(y), best first: labels (k, B, N), scores (k, B); -100 and -inf beyond the last."""
    launches, outputs = plan_kbest(unary, transition, start, end, lengths, k)
    run(launches, unary.device)
    return outputs


def plan_forward(
    unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor | None
) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    from .chain_sum import forward_kernel

    x = Potentials(unary, transition, start, end, lengths)
    block_c, block_p, num_warps = resident_tiles(x.C, unary.dtype)
    log_z, alpha = x.empty(x.B), x.empty(x.B, x.N, x.C)
    args = (
        x.args("unary", "start", "end", "lengths")
        | x.transitions()
        | {
            "message": alpha,
            "log_z": log_z,
            "SHARED": x.shared,
            "BLOCK_C": block_c,
            "BLOCK_P": block_p,
        }
    )
    return [Launch(forward_kernel, (x.B,), args, num_warps)], (log_z, alpha)


def forward(
    unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """log sum_y exp s(y): log_z (B,), and alpha (B, N, C) for `backward` and `sample`.

    alpha[b, t] holds the log-messages into position t: its own unary not yet added, less a constant of each position
    (`chain_sum`); 0 where padded.
    """
    launches, outputs = plan_forward(unary, transition, start, end, lengths)
    run(launches, unary.device)
    return outputs


def plan_backward(
    unary: Tensor,
    transition: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    lengths: Tensor | None,
    alpha: Tensor,
    log_z: Tensor,
    grad: Tensor,
) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    """Launches, d_unary, and d_transition or, if shared, its (S, C, C) partial sums."""
    from .chain_grad import backward_kernel, backward_position_kernel, transition_kernel

    x = Potentials(unary, transition, start, end, lengths)
    d_unary, message = x.empty(x.B, x.N, x.C), alpha.contiguous()
    args = x.args("unary", "end", "lengths") | {
        "message": message,
        "log_z": log_z.contiguous(),
        "grad": grad.contiguous(),
        "d_unary": d_unary,
    }
    if not x.shared:
        block_c, block_p, num_warps = tiles(x.C, unary.dtype, 8)
        pairs = x.empty(x.B, max(x.N - 1, 0), x.C, x.C)
        args |= x.transitions() | {"d_transition": pairs, "BLOCK_C": block_c, "BLOCK_P": block_p}
        return [Launch(backward_position_kernel, (x.B,), args, num_warps)], (d_unary, pairs)

    # Loads of unaligned rows are not vectorised: a thread then sees more rows, and 16 warps leave it too few registers.
    block_c, block_p, num_warps = resident_tiles(x.C, unary.dtype, 8 if x.C % 16 else 16)
    shift = x.empty(x.B, x.N)
    args |= {"transposed": x.transition.t().contiguous(), "shift": shift, "BLOCK_C": block_c, "BLOCK_P": block_p}
    launches = [Launch(backward_kernel, (x.B,), args, num_warps)]

    steps = x.B * max(x.N - 1, 0)
    block_c, block_p = min(block_c, 64), min(block_c, 32)
    grid = (-(-x.C // block_c), -(-x.C // block_p))
    # About 1024 programs fill a large device; the partial sums stay below the size of unary; a program's fixed cost is
    # spread over 8 steps or more. No device property enters, so results do not depend on the device's size.
    parts = max(1, min(1024 // (grid[0] * grid[1]), x.B * x.N // x.C, steps // 8))
    if steps == 0:
        return launches, (d_unary, torch.zeros_like(x.transition)[None])
    partial = x.empty(parts, x.C, x.C)
    args = x.args("unary", "lengths") | {
        "transition": x.transition,
        "message": message,
        "shift": shift,
        "d_unary": d_unary,
        "partial": partial,
        "steps": steps,
        "chunk": -(-steps // parts),
        "BLOCK_C": block_c,
        "BLOCK_P": block_p,
    }
    warps = max(1, block_c * block_p * unary.dtype.itemsize // 2048)
    launches.append(Launch(transition_kernel, (*grid, parts), args, warps))
    return launches, (d_unary, partial)


def backward(
    unary: Tensor,
    transition: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    lengths: Tensor | None,
    alpha: Tensor,
    log_z: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """d (sum_b grad[b] log_z[b]) / d (unary, transition, start, end), of the potentials' shapes; None stays None."""
    launches, (d_unary, d_transition) = plan_backward(unary, transition, start, end, lengths, alpha, log_z, grad)
    run(launches, unary.device)
    if transition.dim() == 2:
        d_transition = d_transition.sum(0)
    B, N, C = unary.shape
    d_start = d_end = None
    if start is not None:
        d_start = d_unary[:, :1].sum((0, 1))
    if end is not None:
        last = torch.full((B,), N, device=unary.device) if lengths is None else lengths
        row = (last - 1).clamp(min=0)[:, None, None].expand(B, min(N, 1), C)
        d_end = d_unary.gather(1, row).sum((0, 1))
    return d_unary, d_transition, d_start, d_end


def plan_sample(
    unary: Tensor,
    transition: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    lengths: Tensor | None,
    alpha: Tensor,
    uniform: Tensor,
) -> tuple[list[Launch], Tensor]:
    from .chain_sum import sample_kernel

    x = Potentials(unary, transition, start, end, lengths)
    samples = uniform.shape[0]
    labels = x.labels(samples, x.B, x.N)
    block_c = max(16, 1 << (x.C - 1).bit_length())
    args = (
        x.args("unary", "end", "lengths")
        | x.transitions()
        | {
            "message": alpha.contiguous(),
            "uniform": uniform.contiguous(),
            "labels": labels,
            "B": x.B,
            "BLOCK_C": block_c,
        }
    )
    return [Launch(sample_kernel, (samples * x.B,), args, min(4, max(1, block_c // 256)))], labels


def sample(
    unary: Tensor,
    transition: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    lengths: Tensor | None,
    alpha: Tensor,
    uniform: Tensor,
) -> Tensor:
    """Labels (S, B, N) of S draws from p(y) = exp(s(y) - log_z), one uniform (S, B, N) a label."""
    launches, labels = plan_sample(unary, transition, start, end, lengths, alpha, uniform)
    run(launches, unary.device)
    return labels
