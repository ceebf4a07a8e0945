"""Launch function of the semi-Markov chain's count-augmented Viterbi; its kernel is in `semimarkov_count_max`."""

import torch
from torch import Tensor

from .chain_count import SCRATCH_BYTES, count_tiles
from .launch import Launch, run
from .semimarkov import Potentials


def plan_best_by_count(
    segments: Tensor,
    transition: Tensor,
    lengths: Tensor | None,
    segment_step: Tensor | None,
    transition_step: Tensor | None,
    size: int,
    offset: Tensor,
    slope: Tensor,
    scratch_bytes: int = SCRATCH_BYTES,
) -> tuple[list[Launch], tuple[Tensor, Tensor, Tensor, Tensor]]:
    from .semimarkov_count_max import semimarkov_count_kernel

    x = Potentials(segments, transition, lengths)
    block_r, block_s, num_warps = count_tiles(x.C, size, segments.dtype)
    outputs = (x.codes(x.B, x.N), x.empty(x.B, dtype=torch.int64), x.empty(x.B), x.empty(x.B, size))
    together = max(1, min(x.B, scratch_bytes // max(1, x.N * 2 * x.C * size * segments.dtype.itemsize)))
    shared_step = None if transition_step is None or not x.shared else transition_step.contiguous()
    fixed = {
        "charts": x.empty(together, x.N, 2, x.C, size),
        "S": size,
        "stride_eb": 0 if x.shared else (x.N - 1) * x.C * x.C,
        "stride_en": 0 if x.shared else x.C * x.C,
        "BLOCK_R": block_r,
        "BLOCK_S": block_s,
        "BLOCK_BACK": min(256, max(16, 1 << (max(x.C, x.W) - 1).bit_length())),
    }
    each = {
        "segment_step": segment_step,
        "transition_step": None if x.shared else transition_step,
        "offset": offset,
        "slope": slope,
        **dict(zip(("codes", "index", "value", "table"), outputs, strict=True)),
    }
    launches = []
    for i in range(0, x.B, together):
        part = slice(i, i + together)
        chosen = Potentials(
            x.segments[part],
            x.transition if x.shared else x.transition[part],
            None if x.lengths is None else x.lengths[part],
        )
        args = (
            chosen.args()
            | fixed
            | {name: None if tensor is None else tensor[part].contiguous() for name, tensor in each.items()}
        )
        if shared_step is not None:
            args["transition_step"] = shared_step
        variant = "" if transition_step is None else "transitions"
        # Values of table entries must tie here as they do elsewhere.
        launches.append(Launch(semimarkov_count_kernel, (chosen.B,), args, num_warps, variant, fusion=False))
    return launches, outputs


def best_by_count(
    segments: Tensor,
    transition: Tensor,
    lengths: Tensor | None,
    segment_step: Tensor | None,
    transition_step: Tensor | None,
    size: int,
    offset: Tensor,
    slope: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """table[g] = max { s(y) : g(y) = g } and argmax_y offset[g(y)] + slope[g(y)] s(y), slope >= 0.

    g(y), an index into a table of ``size`` entries, adds up ``segment_step`` (B, N, W, C) over the segments and
    ``transition_step``, of the transition's shape, over consecutive ones; int64 >= 0, or None for 0. offset and slope
    (B, size).

    Returns codes (B, N), their index g (B,), their value (B,) and the table (B, size), which holds -inf where no output
    has g. Where no output has a value above -inf: value -inf, index 0, codes of -100.
    """
    launches, outputs = plan_best_by_count(
        segments, transition, lengths, segment_step, transition_step, size, offset, slope
    )
    run(launches, segments.device)
    return outputs
