"""Log-semiring kernels of the linear chain: log-partition and samples; `chain_grad` has the gradient.

    message[0, c] = start[c]
    message[t, c] = log sum_p exp(alpha[t-1, p] + transition[t-1, p, c])
    alpha[t, c]   = message[t, c] + unary[t, c] - shift[t],    shift[t] = max_c (message[t, c] + unary[t, c])
    log_z         = sum_t shift[t] + log sum_c exp(alpha[last, c] + end[c])

The shift keeps every stored number as large as one step's potentials, whatever the length: without it a float32
alpha near 8000 (2000 positions, 64 states) is known to 5e-4 only, and the marginals with it. Shifts add up in float64.
The message is what is kept, not alpha: alpha is one addition away, while a message recovered from alpha by subtraction
would no longer normalise exp(alpha + transition - message) over p, which the gradient multiplies N times.

One program owns one sequence and walks its positions in order, over tiles of (BLOCK_P predecessors, BLOCK_C states).
When one tile holds a step, the carried vector stays in registers and a shared transition is read once. Otherwise the
carried vector is read back from the row just written, after a barrier.

-inf is handled where a difference of two could arise: a maximum of -inf is replaced by 0 before it is subtracted, so
that exp gives 0 and never NaN.

What limits them on a GPU: the N dependent steps of a sequence (two reductions, a layout change and barriers each),
until C^2 exponentials a step (16 a cycle on a multiprocessor) and, if tiled, C^2 words of transition from L2 take
longer.
"""

import triton
import triton.language as tl

from .common import finite, load_score, within


@triton.jit
def forward_kernel(
    unary,  # (B, N, C)
    transition,  # (C, C) if SHARED, else (B, N-1, C, C)
    start,  # (C,) or None
    end,  # (C,) or None
    lengths,  # (B,) or None
    message,  # (B, N, C), written; 0 where padded
    log_z,  # (B,), written
    N,
    C,
    stride_ub,
    stride_un,
    stride_tb,
    stride_tn,
    SHARED: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_c = tl.arange(0, BLOCK_C)
    o_p = tl.arange(0, BLOCK_P)
    m_c = o_c < C
    p_unary = unary + i_b * stride_ub
    p_transition = transition + i_b * stride_tb
    o_tile = o_p[:, None] * C + o_c[None, :]  # within a tile, so 32 bits hold it
    p_message = message + i_b * N * C
    NEG_INF: tl.constexpr = float("-inf")

    b_alpha = load_score(p_unary + o_c, within(o_c, C, b_len > 0))
    b_message = tl.zeros([BLOCK_C], b_alpha.dtype)
    if start is not None:
        b_message = load_score(start + o_c, m_c)
    tl.store(p_message + o_c, b_message, mask=within(o_c, C, b_len > 0))
    b_alpha += b_message
    b_shift = finite(tl.max(b_alpha, axis=0))
    b_alpha -= b_shift
    b_log_z = b_shift.to(tl.float64)
    # The unary row of the next step is fetched one step early: its latency would otherwise add to every step.
    b_unary = load_score(p_unary + stride_un + o_c, within(o_c, C, b_len > 1))
    if BLOCK_P >= BLOCK_C and SHARED:
        b_transition = load_score(p_transition + o_tile, (o_p[:, None] < C) & m_c[None, :])

    for i_t in range(1, b_len):
        if BLOCK_P >= BLOCK_C:
            if not SHARED:
                p_tile = p_transition + (i_t - 1) * stride_tn
                b_transition = load_score(p_tile + o_tile, (o_p[:, None] < C) & m_c[None, :])
            b_x = b_alpha[:, None] + b_transition
            b_max = finite(tl.max(b_x, axis=0))
            b_sum = tl.sum(tl.exp(b_x - b_max[None, :]), axis=0)
        else:
            tl.debug_barrier()  # orders the stores of the previous message before these loads
            p_prev = p_message + (i_t - 1) * C
            p_prev_unary = p_unary + (i_t - 1) * stride_un
            b_max = tl.full([BLOCK_C], NEG_INF, b_alpha.dtype)
            b_sum = tl.zeros([BLOCK_C], b_alpha.dtype)
            for i_p in range(0, C, BLOCK_P):
                m_p = i_p + o_p < C
                b_row = tl.load(p_prev + i_p + o_p, mask=m_p, other=NEG_INF)
                b_row += load_score(p_prev_unary + i_p + o_p, m_p)
                p_tile = p_transition + (i_t - 1) * stride_tn + tl.cast(i_p, tl.int64) * C
                b_tile = load_score(p_tile + o_tile, m_p[:, None] & m_c[None, :])
                b_x = (b_row - b_shift)[:, None] + b_tile
                b_new = tl.maximum(b_max, tl.max(b_x, axis=0))
                b_safe = finite(b_new)
                b_sum = b_sum * tl.exp(b_max - b_safe) + tl.sum(tl.exp(b_x - b_safe[None, :]), axis=0)
                b_max = b_new
        b_message = b_max + tl.log(b_sum)  # log 0 = -inf where nothing leads to a state
        tl.store(p_message + i_t * C + o_c, b_message, mask=m_c)
        b_alpha = b_message + b_unary
        b_unary = load_score(p_unary + (i_t + 1) * stride_un + o_c, within(o_c, C, i_t + 1 < b_len))
        b_shift = finite(tl.max(b_alpha, axis=0))
        b_alpha -= b_shift
        b_log_z += b_shift.to(tl.float64)

    if end is not None:
        b_alpha += load_score(end + o_c, m_c)
    b_top = tl.max(b_alpha, axis=0)
    b_log_z += finite(b_top) + tl.log(tl.sum(tl.exp(b_alpha - finite(b_top)), axis=0))
    b_log_z = tl.where(b_top == NEG_INF, NEG_INF, b_log_z)
    tl.store(log_z + i_b, tl.where(b_len > 0, b_log_z, 0.0))
    for i_t in range(b_len, N):
        tl.store(p_message + i_t * C + o_c, tl.zeros([BLOCK_C], b_alpha.dtype), mask=m_c)


@triton.jit
def sample_kernel(
    unary,  # (B, N, C)
    transition,  # (C, C) with stride_tb = stride_tn = 0, or (B, N-1, C, C)
    end,  # (C,) or None
    lengths,  # (B,) or None
    message,  # (B, N, C), from forward_kernel
    uniform,  # (S, B, N)
    labels,  # (S, B, N) filled with the padding label
    B,
    N,
    C,
    stride_ub,
    stride_un,
    stride_tb,
    stride_tn,
    BLOCK_C: tl.constexpr,
):
    """Last position first: y_t has weights exp(alpha[t, c] + transition[t, c, y_{t+1}]), drawn by inverse CDF.

    One program a (sample, sequence). Limit on a GPU: N dependent steps, each a column of transition read at an address
    that the step before decides; samples run side by side.
    """
    i_sb = tl.program_id(0).to(tl.int64)
    i_b = i_sb % B
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_c = tl.arange(0, BLOCK_C)
    m_c = o_c < C
    NEG_INF: tl.constexpr = float("-inf")
    p_column = transition + i_b * stride_tb + o_c.to(tl.int64) * C
    b_label = tl.full([], 0, tl.int32)
    m_feasible = b_len > 0
    for i_step in range(1, b_len + 1):
        i_t = b_len - i_step
        b_x = tl.load(message + (i_b * N + i_t) * C + o_c, mask=m_c, other=NEG_INF)
        b_x += load_score(unary + i_b * stride_ub + i_t * stride_un + o_c, m_c)
        b_x += load_score(p_column + i_t * stride_tn + b_label, within(o_c, C, i_step > 1), 0.0)
        if end is not None:
            b_x += load_score(end + o_c, within(o_c, C, i_step == 1), 0.0)
        b_top = tl.max(b_x, axis=0)
        b_weight = tl.exp(b_x - finite(b_top))
        b_cumulative = tl.cumsum(b_weight, axis=0)
        b_bar = tl.load(uniform + i_sb * N + i_t) * tl.max(b_cumulative, axis=0)
        # A parallel scan may step back by a rounding error, so a state of weight 0 is ruled out explicitly, and the
        # last state of positive weight stands in when none passes the bar.
        m_open = b_weight > 0
        b_first = tl.min(tl.where(m_open & (b_cumulative > b_bar), o_c, BLOCK_C), axis=0)
        b_last = tl.max(tl.where(m_open, o_c, 0), axis=0)
        b_label = tl.where(b_first < BLOCK_C, b_first, b_last)
        m_feasible &= b_top > NEG_INF
        tl.store(labels + i_sb * N + i_t, b_label.to(tl.int64), mask=m_feasible)
