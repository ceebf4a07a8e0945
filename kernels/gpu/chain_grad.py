"""Gradient of the linear chain's log-partition: pass 1 walks each sequence, pass 2 sums a shared transition's gradient.

    pair[t, p, c]    = exp(alpha[t-1, p] + transition[t-1, p, c] - message[t, c]) d_unary[t, c]
    d_unary[t-1, p]  = sum_c pair[t, p, c]
    d_transition     = pair[t] at each position, or sum_{b, t} pair[t] where all positions share it

with message and alpha as in `chain_sum`. The exponential is at most 1 and sums to 1 over p: nothing overflows, and
nothing drifts with the length.

Adding each step's C x C pairs to a shared gradient inside pass 1 would read and write C^2 words a step. Pass 2 computes
the exponentials again instead, a fixed tile of (p, c) kept in registers while positions stream by: no dependent steps, a
bounded number of partial sums, no atomics, so the result is the same in every run.
"""

import triton
import triton.language as tl

from .chain_common import finite, within


@triton.jit
def backward_kernel(
    unary,  # (B, N, C)
    transition,  # (C, C) if SHARED, else (B, N-1, C, C)
    end,  # (C,) or None
    lengths,  # (B,) or None
    message,  # (B, N, C), from forward_kernel
    log_z,  # (B,), from forward_kernel
    grad,  # (B,)
    d_unary,  # (B, N, C), written; 0 where padded
    d_transition,  # (B, N-1, C, C), written if not SHARED, else None
    shift,  # (B, N), written if SHARED, else None
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
    """Chain rule through the recurrence, last position first; d_unary[t] is the vector carried along.

    Limits on a GPU: N dependent steps, as forward, with one reduction less on the path; where each position has its own
    transition, C^2 words read and C^2 written a step, so memory bandwidth once the batch fills the device.
    """
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_c = tl.arange(0, BLOCK_C)
    o_p = tl.arange(0, BLOCK_P)
    m_c = o_c < C
    p_unary = unary + i_b * stride_ub + o_c
    p_message = message + i_b * N * C + o_c
    p_d_unary = d_unary + i_b * N * C
    p_transition = transition + i_b * stride_tb
    o_tile = o_p[:, None] * C + o_c[None, :]  # within a tile, so 32 bits hold it
    NEG_INF: tl.constexpr = float("-inf")

    m_last = within(o_c, C, b_len > 0)
    b_message = tl.load(p_message + (b_len - 1) * C, mask=m_last, other=NEG_INF)
    b_alpha = b_message + tl.load(p_unary + (b_len - 1) * stride_un, mask=m_last, other=NEG_INF)
    # As in the forward pass, so that the softmax below sees the same numbers.
    b_alpha -= finite(tl.max(b_alpha, axis=0))
    if end is not None:
        b_alpha += tl.load(end + o_c, mask=m_c, other=NEG_INF)
    b_weight = tl.exp(b_alpha - finite(tl.max(b_alpha, axis=0)))
    # A row without outputs takes no gradient, whatever the incoming one holds.
    m_feasible = (tl.load(log_z + i_b) != NEG_INF) & (b_len > 0)
    b_grad = tl.where(m_feasible, tl.load(grad + i_b), 0.0)
    b_grad = b_weight * (b_grad / tl.where(m_feasible, tl.sum(b_weight, axis=0), 1.0))
    tl.store(p_d_unary + (b_len - 1) * C + o_c, b_grad, mask=m_last)

    if BLOCK_P >= BLOCK_C and SHARED:
        b_transition = tl.load(p_transition + o_tile, mask=(o_p[:, None] < C) & m_c[None, :], other=NEG_INF)
    # Rows of the next step are fetched one step early, off the path of the recurrence.
    b_next = tl.load(p_message + (b_len - 2) * C, mask=within(o_c, C, b_len > 1), other=NEG_INF)
    b_unary = tl.load(p_unary + (b_len - 2) * stride_un, mask=within(o_c, C, b_len > 1), other=NEG_INF)
    for i_step in range(1, b_len):
        i_t = b_len - i_step
        b_alpha = b_next + b_unary
        b_shift = finite(tl.max(b_alpha, axis=0))
        if SHARED:
            tl.store(shift + i_b * N + i_t - 1, b_shift)
        else:
            p_pair = d_transition + (i_b * (N - 1) + i_t - 1) * C * C
        b_message = finite(b_message)
        if BLOCK_P >= BLOCK_C:
            m_tile = (o_p[:, None] < C) & m_c[None, :]
            if not SHARED:
                b_transition = tl.load(p_transition + (i_t - 1) * stride_tn + o_tile, mask=m_tile, other=NEG_INF)
            b_pair = tl.exp((b_alpha - b_shift)[:, None] + b_transition - b_message[None, :]) * b_grad[None, :]
            if not SHARED:
                tl.store(p_pair + o_tile, b_pair, mask=m_tile)
            b_grad = tl.sum(b_pair, axis=1)
            tl.store(p_d_unary + (i_t - 1) * C + o_p, b_grad, mask=o_p < C)
        else:
            for i_p in range(0, C, BLOCK_P):
                m_p = i_p + o_p < C
                m_tile = m_p[:, None] & m_c[None, :]
                b_row = tl.load(message + (i_b * N + i_t - 1) * C + i_p + o_p, mask=m_p, other=NEG_INF)
                p_row = unary + i_b * stride_ub + (i_t - 1) * stride_un + i_p + o_p
                b_row += tl.load(p_row, mask=m_p, other=NEG_INF)
                p_tile = p_transition + (i_t - 1) * stride_tn + tl.cast(i_p, tl.int64) * C
                b_tile = tl.load(p_tile + o_tile, mask=m_tile, other=NEG_INF)
                b_pair = tl.exp((b_row - b_shift)[:, None] + b_tile - b_message[None, :]) * b_grad[None, :]
                if not SHARED:
                    tl.store(p_pair + tl.cast(i_p, tl.int64) * C + o_tile, b_pair, mask=m_tile)
                tl.store(p_d_unary + (i_t - 1) * C + i_p + o_p, tl.sum(b_pair, axis=1), mask=m_p)
            tl.debug_barrier()  # the row just written is the vector carried to the next step
            b_grad = tl.load(p_d_unary + (i_t - 1) * C + o_c, mask=m_c, other=0.0)
        b_message = b_next
        b_next = tl.load(p_message + (i_t - 2) * C, mask=within(o_c, C, i_t > 1), other=NEG_INF)
        b_unary = tl.load(p_unary + (i_t - 2) * stride_un, mask=within(o_c, C, i_t > 1), other=NEG_INF)

    b_zero = tl.zeros([BLOCK_C], b_grad.dtype)
    for i_t in range(b_len, N):
        tl.store(p_d_unary + i_t * C + o_c, b_zero, mask=m_c)
    if not SHARED:
        for i_t in range(tl.maximum(b_len, 1), N):
            for i_p in range(C):
                tl.store(d_transition + ((i_b * (N - 1) + i_t - 1) * C + i_p) * C + o_c, b_zero, mask=m_c)


@triton.jit
def transition_kernel(
    unary,  # (B, N, C)
    transition,  # (C, C)
    lengths,  # (B,) or None
    message,  # (B, N, C), from forward_kernel
    shift,  # (B, N), from backward_kernel
    d_unary,  # (B, N, C), from backward_kernel
    partial,  # (S, C, C), written
    N,
    C,
    steps,  # B * (N - 1): every (sequence, position after the first)
    chunk,  # steps a program: S * chunk >= steps
    stride_ub,
    stride_un,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """partial[s] = the sum of pair over the s-th chunk of steps; padded steps are skipped.

    Limit on a GPU: B N C^2 exponentials; each step reads only 3 BLOCK_C + BLOCK_P words, from L2.
    """
    i_c = tl.program_id(0)
    i_p = tl.program_id(1)
    i_s = tl.program_id(2).to(tl.int64)
    o_c = i_c * BLOCK_C + tl.arange(0, BLOCK_C)
    o_p = i_p * BLOCK_P + tl.arange(0, BLOCK_P)
    o_tile = o_p.to(tl.int64)[:, None] * C + o_c[None, :]
    m_c = o_c < C
    m_p = o_p < C
    m_tile = m_p[:, None] & m_c[None, :]
    NEG_INF: tl.constexpr = float("-inf")
    b_transition = tl.load(transition + o_tile, mask=m_tile, other=NEG_INF)
    b_total = tl.zeros([BLOCK_P, BLOCK_C], b_transition.dtype)
    for i_step in range(i_s * chunk, tl.minimum((i_s + 1) * chunk, steps)):
        i_b = i_step // (N - 1)
        i_t = i_step % (N - 1) + 1
        b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
        if i_t < b_len:
            i_row = i_b * N + i_t
            b_alpha = tl.load(message + (i_row - 1) * C + o_p, mask=m_p, other=NEG_INF)
            b_alpha += tl.load(unary + i_b * stride_ub + (i_t - 1) * stride_un + o_p, mask=m_p, other=NEG_INF)
            b_alpha -= tl.load(shift + i_row - 1)
            b_message = finite(tl.load(message + i_row * C + o_c, mask=m_c, other=NEG_INF))
            b_grad = tl.load(d_unary + i_row * C + o_c, mask=m_c, other=0.0)
            b_total += tl.exp(b_alpha[:, None] + b_transition - b_message[None, :]) * b_grad[None, :]
    tl.store(partial + i_s * C * C + o_tile, b_total, mask=m_tile)
