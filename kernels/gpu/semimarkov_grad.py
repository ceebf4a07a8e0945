"""Gradient of the semi-Markov chain's log-partition, by the chain rule through the recurrence of `semimarkov_sum`.

With ends[t, c] the weighted probability that a segment labelled c ends before t, starts[t, c] that one starts at t,
and e = t + w + 1,

    d_segments[t, w, c] = ends[e, c] exp(message[t, c] + segments[t, w, c] + scale[t] - scale[e] - ending[e, c])
    starts[t, c]        = sum_w d_segments[t, w, c]
    pair[t, p, c]       = starts[t, c] exp(ending[t, p] + transition[p, c] - message[t, c])
    ends[t, p]          = sum_c pair[t, p, c]
    d_transition        = pair[t] at each position, or sum_{b, t} pair[t] where all positions share it

The exponentials are at most 1 and sum to 1: nothing overflows, and nothing drifts with the length.

Limits on a GPU: N dependent steps a sequence as in the forward pass, then writing the W C words a step of the gradient.
A shared transition's gradient is a pass of its own, as for the linear chain: a fixed tile of (p, c) stays in registers
while positions stream by, and partial sums are added up without atomics, so every run gives the same result.
"""

import triton
import triton.language as tl

from .common import finite, load_score, probability, within


@triton.jit
def semimarkov_backward_kernel(
    segments,  # (B, N, W, C)
    transition,  # (C, C) [current, previous] if SHARED: the sum over c runs along registers; else (B, N-1, C, C)
    lengths,  # (B,) or None
    values,  # (B, N, 2, C), from semimarkov_forward_kernel
    scales,  # (B, N+1), likewise
    grad,  # (B,)
    ends,  # (B, N+1, C) scratch
    starts,  # (B, N, C), written where semimarkov_transition_kernel reads it
    d_segments,  # (B, N, W, C), written; 0 where padded
    d_transition,  # (B, N-1, C, C), written; 0 where padded; None if SHARED
    N,
    W,
    C,
    stride_sb,
    stride_sn,
    stride_sw,
    stride_tb,
    stride_tn,
    SHARED: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_w = tl.arange(0, BLOCK_W)
    o_c = tl.arange(0, BLOCK_C)
    o_p = tl.arange(0, BLOCK_P)
    m_c = o_c < C
    o_tile = o_p[:, None] * C + o_c[None, :]  # within a tile, so 32 bits hold it
    p_segments = segments + i_b * stride_sb + o_c[None, :]
    p_grad = d_segments + i_b * N * W * C + o_c[None, :]
    p_values = values + i_b * N * 2 * C
    p_scales = scales + i_b * (N + 1)
    p_ends = ends + i_b * (N + 1) * C
    p_starts = starts + i_b * N * C
    NEG_INF: tl.constexpr = float("-inf")

    # A row without outputs takes no gradient, whatever the incoming one holds.
    b_weight = tl.exp(tl.load(p_values + (b_len - 1) * 2 * C + o_c, mask=within(o_c, C, b_len > 0), other=NEG_INF))
    b_total = tl.sum(b_weight, axis=0)
    b_weight *= tl.where(b_total > 0, tl.load(grad + i_b) / tl.where(b_total > 0, b_total, 1.0), 0.0)
    tl.store(p_ends + b_len * C + o_c, b_weight, mask=m_c)
    tl.debug_barrier()

    for i_step in range(1, b_len + 1):
        i_t = b_len - i_step
        b_message = tl.load(p_values + (i_t * 2 + 1) * C + o_c, mask=m_c, other=NEG_INF)
        b_scale = tl.load(p_scales + i_t)
        b_starts = tl.zeros([BLOCK_C], b_message.dtype)
        for i_w in range(0, W, BLOCK_W):
            o_end = i_t + 1 + i_w + o_w
            m_w = (i_w + o_w < W) & (o_end <= b_len)
            m_tile = m_w[:, None] & m_c[None, :]
            p_tile = p_segments + (i_t * stride_sn + (i_w + o_w).to(tl.int64) * stride_sw)[:, None]
            b_offset = (b_scale - tl.load(p_scales + o_end, mask=m_w, other=0.0)).to(b_message.dtype)
            b_x = b_message[None, :] + (load_score(p_tile, m_tile) + b_offset[:, None])
            o_row = o_end[:, None] * C + o_c[None, :]
            p_ending = p_values + (o_end[:, None] - 1) * 2 * C + o_c[None, :]
            b_ending = finite(tl.load(p_ending, mask=m_tile, other=NEG_INF))
            b_part = probability(b_x - b_ending) * tl.load(p_ends + o_row, mask=m_tile, other=0.0)
            b_starts += tl.sum(b_part, axis=0)
            p_out = p_grad + ((i_t * W + i_w + o_w) * C)[:, None]
            tl.store(p_out, b_part, mask=(i_w + o_w < W)[:, None] & m_c[None, :])
        tl.store(p_starts + i_t * C + o_c, b_starts, mask=m_c)
        if i_t > 0:
            if SHARED:
                # Tiles of (BLOCK_P current, BLOCK_C previous) labels.
                b_ending = tl.load(p_values + (i_t - 1) * 2 * C + o_c, mask=m_c, other=NEG_INF)
                b_ends = tl.zeros([BLOCK_C], b_message.dtype)
                tl.debug_barrier()  # orders the store of starts before these loads
                for i_p in range(0, C, BLOCK_P):
                    m_p = i_p + o_p < C
                    b_row = tl.load(p_values + (i_t * 2 + 1) * C + i_p + o_p, mask=m_p, other=NEG_INF)
                    b_row_grad = tl.load(p_starts + i_t * C + i_p + o_p, mask=m_p, other=0.0)
                    p_matrix = transition + tl.cast(i_p, tl.int64) * C
                    b_tile = load_score(p_matrix + o_tile, m_p[:, None] & m_c[None, :])
                    b_x = b_ending[None, :] + b_tile - finite(b_row)[:, None]
                    b_ends += tl.sum(probability(b_x) * b_row_grad[:, None], axis=0)
                tl.store(p_ends + i_t * C + o_c, b_ends, mask=m_c)
            else:
                # Tiles of (BLOCK_P previous, BLOCK_C current) labels, read once and written once.
                for i_p in range(0, C, BLOCK_P):
                    m_p = i_p + o_p < C
                    m_tile = m_p[:, None] & m_c[None, :]
                    b_row = tl.load(p_values + (i_t - 1) * 2 * C + i_p + o_p, mask=m_p, other=NEG_INF)
                    i_tile = tl.cast(i_p, tl.int64) * C
                    p_matrix = transition + i_b * stride_tb + (i_t - 1) * stride_tn + i_tile
                    b_x = b_row[:, None] + load_score(p_matrix + o_tile, m_tile)
                    b_pair = probability(b_x - finite(b_message)[None, :]) * b_starts[None, :]
                    p_pair = d_transition + (i_b * (N - 1) + i_t - 1) * C * C + i_tile
                    tl.store(p_pair + o_tile, b_pair, mask=m_tile)
                    tl.store(p_ends + i_t * C + i_p + o_p, tl.sum(b_pair, axis=1), mask=m_p)
        tl.debug_barrier()

    b_zero = tl.zeros([BLOCK_C], b_weight.dtype)
    for i_t in range(b_len * W, N * W):
        tl.store(d_segments + (i_b * N * W + i_t) * C + o_c, b_zero, mask=m_c)
    if not SHARED:
        for i_t in range(tl.maximum(b_len, 1), N):
            for i_p in range(C):
                tl.store(d_transition + ((i_b * (N - 1) + i_t - 1) * C + i_p) * C + o_c, b_zero, mask=m_c)


@triton.jit
def semimarkov_transition_kernel(
    transition,  # (C, C)
    lengths,  # (B,) or None
    values,  # (B, N, 2, C), from semimarkov_forward_kernel
    starts,  # (B, N, C), from semimarkov_backward_kernel
    partial,  # (S, C, C), written
    N,
    C,
    steps,  # B * (N - 1): every (sequence, position after the first)
    chunk,  # steps a program: S * chunk >= steps
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """partial[s] = the sum of pair over the s-th chunk of steps; padded steps are skipped.

    Limit on a GPU: B N C^2 exponentials; each step reads only 2 BLOCK_C + BLOCK_P words, from L2.
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
            b_ending = tl.load(values + (i_row - 1) * 2 * C + o_p, mask=m_p, other=NEG_INF)
            b_message = finite(tl.load(values + (i_row * 2 + 1) * C + o_c, mask=m_c, other=NEG_INF))
            b_starts = tl.load(starts + i_row * C + o_c, mask=m_c, other=0.0)
            b_total += probability(b_ending[:, None] + b_transition - b_message[None, :]) * b_starts[None, :]
    tl.store(partial + i_s * C * C + o_tile, b_total, mask=m_tile)
