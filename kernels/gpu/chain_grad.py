"""Gradient of the linear chain's log-partition, by the chain rule through the recurrence of `chain_sum`.

    pair[t, p, c]    = exp(alpha[t-1, p] + transition[t-1, p, c] - message[t, c]) d_unary[t, c]
    d_unary[t-1, p]  = sum_c pair[t, p, c]
    d_transition     = pair[t] at each position, or sum_{b, t} pair[t] where all positions share it

The exponential is at most 1 and sums to 1 over p: nothing overflows, and nothing drifts with the length.

Limits on a GPU: N dependent steps a sequence as in the forward pass, with C^2 exponentials each. Where each position
has its own transition, C^2 words read and C^2 written a step: memory bandwidth, once the batch fills the device.

Adding a step's pairs to a shared gradient in the same pass would read and write C^2 words a step. `transition_kernel`
computes the exponentials again instead, a fixed tile of (p, c) kept in registers while positions stream by: no
dependent steps, a bounded number of partial sums, no atomics, so the result is the same in every run.
"""

import triton
import triton.language as tl

from .common import finite, load_score, probability, within


@triton.jit
def last_gradient(p_message, p_unary, end, o_c, C, b_len, b_log_z, b_grad):
    """d_unary of the last position: grad softmax_c(alpha + end); the pointers are those of its rows.

    A row without outputs takes no gradient, whatever the incoming one holds.
    """
    NEG_INF: tl.constexpr = float("-inf")
    m_c = within(o_c, C, b_len > 0)
    b_alpha = tl.load(p_message, mask=m_c, other=NEG_INF) + load_score(p_unary, m_c)
    b_alpha -= finite(tl.max(b_alpha, axis=0))  # as in the forward pass, so that end meets the same numbers
    if end is not None:
        b_alpha += load_score(end + o_c, m_c)
    b_weight = tl.exp(b_alpha - finite(tl.max(b_alpha, axis=0)))
    m_feasible = (b_log_z != NEG_INF) & (b_len > 0)
    return b_weight * tl.where(m_feasible, b_grad / tl.where(m_feasible, tl.sum(b_weight, axis=0), 1.0), 0.0)


@triton.jit
def backward_kernel(
    unary,  # (B, N, C)
    transposed,  # (C, C) [current, previous], so that the sum over c runs along registers, not across a warp
    end,  # (C,) or None
    lengths,  # (B,) or None
    message,  # (B, N, C), from forward_kernel
    log_z,  # (B,), from forward_kernel
    grad,  # (B,)
    d_unary,  # (B, N, C), written; 0 where padded
    shift,  # (B, N), written where transition_kernel reads it
    N,
    C,
    stride_ub,
    stride_un,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """d_unary where all positions share one transition; tiles are (BLOCK_P current, BLOCK_C previous) states."""
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_p = tl.arange(0, BLOCK_C)
    o_c = tl.arange(0, BLOCK_P)
    m_p = o_p < C
    o_tile = o_c[:, None] * C + o_p[None, :]  # within a tile, so 32 bits hold it
    p_unary = unary + i_b * stride_ub + o_p
    p_message = message + i_b * N * C
    p_grad = d_unary + i_b * N * C
    i_last = b_len - 1
    NEG_INF: tl.constexpr = float("-inf")

    p_row = p_message + i_last * C + o_p
    b_log_z = tl.load(log_z + i_b)
    b_grad = last_gradient(p_row, p_unary + i_last * stride_un, end, o_p, C, b_len, b_log_z, tl.load(grad + i_b))
    m_last = within(o_p, C, b_len > 0)
    tl.store(p_grad + i_last * C + o_p, b_grad, mask=m_last)
    b_message = tl.load(p_row, mask=m_last, other=NEG_INF)
    if BLOCK_P >= BLOCK_C:
        b_transposed = load_score(transposed + o_tile, (o_c[:, None] < C) & m_p[None, :])

    # Rows of the next step are fetched one step early, off the path of the recurrence.
    m_more = within(o_p, C, b_len > 1)
    b_prev = tl.load(p_row - C, mask=m_more, other=NEG_INF)
    b_unary = load_score(p_unary + (i_last - 1) * stride_un, m_more)
    for i_step in range(1, b_len):
        i_t = b_len - i_step
        b_alpha = b_prev + b_unary
        b_shift = finite(tl.max(b_alpha, axis=0))
        tl.store(shift + i_b * N + i_t - 1, b_shift)
        b_alpha -= b_shift
        if BLOCK_P >= BLOCK_C:
            b_x = b_alpha[None, :] + b_transposed - finite(b_message)[:, None]
            b_grad = tl.sum(probability(b_x) * b_grad[:, None], axis=0)
        else:
            tl.debug_barrier()  # orders the stores of the previous gradient before these loads
            b_grad = tl.zeros([BLOCK_C], b_alpha.dtype)
            for i_c in range(0, C, BLOCK_P):
                m_c = i_c + o_c < C
                b_row = tl.load(p_message + i_t * C + i_c + o_c, mask=m_c, other=NEG_INF)
                b_row_grad = tl.load(p_grad + i_t * C + i_c + o_c, mask=m_c, other=0.0)
                p_tile = transposed + tl.cast(i_c, tl.int64) * C
                b_tile = load_score(p_tile + o_tile, m_c[:, None] & m_p[None, :])
                b_x = b_alpha[None, :] + b_tile - finite(b_row)[:, None]
                b_grad += tl.sum(probability(b_x) * b_row_grad[:, None], axis=0)
        tl.store(p_grad + (i_t - 1) * C + o_p, b_grad, mask=m_p)
        b_message = b_prev
        m_more = within(o_p, C, i_t > 1)
        b_prev = tl.load(p_message + (i_t - 2) * C + o_p, mask=m_more, other=NEG_INF)
        b_unary = load_score(p_unary + (i_t - 2) * stride_un, m_more)
    for i_t in range(b_len, N):
        tl.store(p_grad + i_t * C + o_p, tl.zeros([BLOCK_C], b_grad.dtype), mask=m_p)


@triton.jit
def backward_position_kernel(
    unary,  # (B, N, C)
    transition,  # (B, N-1, C, C)
    end,  # (C,) or None
    lengths,  # (B,) or None
    message,  # (B, N, C), from forward_kernel
    log_z,  # (B,), from forward_kernel
    grad,  # (B,)
    d_unary,  # (B, N, C), written; 0 where padded
    d_transition,  # (B, N-1, C, C), written; 0 where padded
    N,
    C,
    stride_ub,
    stride_un,
    stride_tb,
    stride_tn,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """d_unary and d_transition where each position has its own transition, read once and written once.

    The vector carried goes through the row of d_unary just written, whatever the tile: memory sets the pace here.
    """
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_c = tl.arange(0, BLOCK_C)
    o_p = tl.arange(0, BLOCK_P)
    m_c = o_c < C
    o_tile = o_p[:, None] * C + o_c[None, :]  # within a tile, so 32 bits hold it
    p_unary = unary + i_b * stride_ub
    p_message = message + i_b * N * C
    p_grad = d_unary + i_b * N * C
    i_last = b_len - 1
    NEG_INF: tl.constexpr = float("-inf")

    p_row = p_message + i_last * C + o_c
    p_row_unary = p_unary + i_last * stride_un + o_c
    b_grad = last_gradient(p_row, p_row_unary, end, o_c, C, b_len, tl.load(log_z + i_b), tl.load(grad + i_b))
    tl.store(p_grad + i_last * C + o_c, b_grad, mask=within(o_c, C, b_len > 0))
    for i_step in range(1, b_len):
        i_t = b_len - i_step
        b_message = finite(tl.load(p_message + i_t * C + o_c, mask=m_c, other=NEG_INF))
        b_alpha = tl.load(p_message + (i_t - 1) * C + o_c, mask=m_c, other=NEG_INF)
        b_alpha += load_score(p_unary + (i_t - 1) * stride_un + o_c, m_c)
        b_shift = finite(tl.max(b_alpha, axis=0))
        for i_p in range(0, C, BLOCK_P):
            m_p = i_p + o_p < C
            m_tile = m_p[:, None] & m_c[None, :]
            b_row = tl.load(p_message + (i_t - 1) * C + i_p + o_p, mask=m_p, other=NEG_INF)
            b_row += load_score(p_unary + (i_t - 1) * stride_un + i_p + o_p, m_p)
            i_tile = tl.cast(i_p, tl.int64) * C
            p_tile = transition + i_b * stride_tb + (i_t - 1) * stride_tn + i_tile
            b_x = (b_row - b_shift)[:, None] + load_score(p_tile + o_tile, m_tile)
            b_pair = probability(b_x - b_message[None, :]) * b_grad[None, :]
            p_pair = d_transition + (i_b * (N - 1) + i_t - 1) * C * C + i_tile
            tl.store(p_pair + o_tile, b_pair, mask=m_tile)
            tl.store(p_grad + (i_t - 1) * C + i_p + o_p, tl.sum(b_pair, axis=1), mask=m_p)
        tl.debug_barrier()  # orders the stores above before this load
        b_grad = tl.load(p_grad + (i_t - 1) * C + o_c, mask=m_c, other=0.0)
    b_zero = tl.zeros([BLOCK_C], b_grad.dtype)
    for i_t in range(b_len, N):
        tl.store(p_grad + i_t * C + o_c, b_zero, mask=m_c)
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
    b_transition = load_score(transition + o_tile, m_tile)
    b_total = tl.zeros([BLOCK_P, BLOCK_C], b_transition.dtype)
    for i_step in range(i_s * chunk, tl.minimum((i_s + 1) * chunk, steps)):
        i_b = i_step // (N - 1)
        i_t = i_step % (N - 1) + 1
        b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
        if i_t < b_len:
            i_row = i_b * N + i_t
            b_alpha = tl.load(message + (i_row - 1) * C + o_p, mask=m_p, other=NEG_INF)
            b_alpha += load_score(unary + i_b * stride_ub + (i_t - 1) * stride_un + o_p, m_p)
            b_alpha -= tl.load(shift + i_row - 1)
            b_message = finite(tl.load(message + i_row * C + o_c, mask=m_c, other=NEG_INF))
            b_grad = tl.load(d_unary + i_row * C + o_c, mask=m_c, other=0.0)
            b_total += probability(b_alpha[:, None] + b_transition - b_message[None, :]) * b_grad[None, :]
    tl.store(partial + i_s * C * C + o_tile, b_total, mask=m_tile)
