"""Launch function of the linear chain's count-augmented Viterbi; its kernel is in `chain_count_max`."""

import torch
from torch import Tensor

from .launch import Launch, Potentials, run

# Scratch of one launch; sequences beyond it wait for the next one, which uses it again. In float32 it holds 825
# sequences of 50 positions and 10 labels with a table of 1300 entries (F1, half of the positions counting), but 6 of
# 200 positions and 20 labels with one of 20201.
SCRATCH_BYTES = 2 << 30


def count_tiles(rows: int, size: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """(BLOCK_R, BLOCK_S, num_warps) for tiles of 8 32-bit registers a thread, or 16 where a thread has two columns.

    Lanes, then warps, lie along a row of the tile. A predecessor costs a thread one load for each row and one for each
    column that it has, so wide tables get wide tiles: down to one row and one column for two cells.
    """
    words = dtype.itemsize // 4
    block_s = min(1024 // words, max(16, 1 << (size - 1).bit_length()))
    per_thread = 8 if block_s <= 256 else 16
    block_r = min(max(1, 1 << (rows - 1).bit_length()), 256 * per_thread // (block_s * words))
    return block_r, block_s, min(8, max(1, block_r * block_s * words // 256))


def plan_best_by_count(
    unary: Tensor,
    transition: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    lengths: Tensor | None,
    unary_step: Tensor | None,
    classes: Tensor | None,
    following: Tensor | None,
    step: Tensor | None,
    last: Tensor | None,
    size: int,
    offset: Tensor,
    slope: Tensor,
    scratch_bytes: int = SCRATCH_BYTES,
) -> tuple[list[Launch], tuple[Tensor, Tensor, Tensor, Tensor]]:
    from .chain_count_max import count_kernel

    x = Potentials(unary, transition, start, end, lengths)
    states = 1 if following is None else following.shape[1]
    rows = x.C * states
    block_r, block_s, num_warps = count_tiles(rows, size, unary.dtype)
    outputs = (x.labels(x.B, x.N), x.empty(x.B, dtype=torch.int64), x.empty(x.B), x.empty(x.B, size))
    together = max(1, min(x.B, scratch_bytes // max(1, x.N * rows * size * unary.dtype.itemsize)))
    charts = x.empty(together, x.N, x.C, states, size)
    fixed = {
        "charts": charts,
        "following": None if following is None else following.contiguous(),
        "step": None if step is None else step.contiguous(),
        "last": None if last is None else last.contiguous(),
        "S": size,
        "Q": states,
        "BLOCK_R": block_r,
        "BLOCK_S": block_s,
        "BLOCK_BACK": min(256, max(16, 1 << (rows - 1).bit_length())),
    }
    each = {
        "unary_step": None if unary_step is None else unary_step.contiguous(),
        "classes": None if classes is None else classes.contiguous(),
        "offset": offset.contiguous(),
        "slope": slope.contiguous(),
        **dict(zip(("labels", "index", "value", "table"), outputs, strict=True)),
    }
    launches = []
    for i in range(0, x.B, together):
        part = slice(i, i + together)
        chosen = Potentials(
            x.unary[part],
            x.transition if x.shared else x.transition[part],
            x.start,
            x.end,
            None if x.lengths is None else x.lengths[part],
        )
        args = (
            chosen.args("unary", "start", "end", "lengths")
            | chosen.transitions()
            | fixed
            | {name: None if tensor is None else tensor[part] for name, tensor in each.items()}
        )
        variant = "" if following is None else "automaton"
        # Values of table entries must tie here as they do elsewhere.
        launches.append(Launch(count_kernel, (chosen.B,), args, num_warps, variant, fusion=False))
    return launches, outputs


def best_by_count(
    unary: Tensor,
    transition: Tensor,
    start: Tensor | None,
    end: Tensor | None,
    lengths: Tensor | None,
    unary_step: Tensor | None,
    classes: Tensor | None,
    following: Tensor | None,
    step: Tensor | None,
    last: Tensor | None,
    size: int,
    offset: Tensor,
    slope: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """table[g] = max { s(y) : g(y) = g } and argmax_y offset[g(y)] + slope[g(y)] s(y), slope >= 0.

    g(y), an index into a table of ``size`` entries, adds up ``unary_step`` (B, N, C) over the labels and what an
    automaton adds that reads them: label c after label p (p = C before the first) in state q at a position of class k
    moves it to ``following[k, q, p, c]`` and adds ``step[k, q, p, c]``; after the last, ``last[q, c]``. It starts in
    state 0. All int64 or None: classes (B, N), following and step (K, Q, C+1, C), last (Q, C). offset and slope
    (B, size).

    Returns labels (B, N) padded with -100, their index g (B,), their value (B,) and the table (B, size), which holds
    -inf where no output has g. Where no output has a value above -inf: value -inf, index 0, labels of -100.
    """
    launches, outputs = plan_best_by_count(
        unary, transition, start, end, lengths, unary_step, classes, following, step, last, size, offset, slope
    )
    run(launches, unary.device)
    return outputs
