"""Log-semiring kernels of the semi-Markov chain: log-partition and samples; `semimarkov_grad` has the gradient.

    message[0, c] = 0,   message[t, c] = log sum_p exp(ending[t, p] + transition[p, c])
    ending[t, c]  = log sum_w exp(message[s, c] + segments[s, w, c] + scale[s] - scale[t]),   s = t - w - 1
    log_z         = scale[n] + log sum_c exp(ending[n, c])

scale[t] makes the largest ending[t] 0, in float64: every stored number stays as large as one step's potentials,
whatever the length. What `values` keeps is both, values[t, 1] = message[t] and values[t-1, 0] = ending[t].

Programs, tiles and barriers are those of `semimarkov_max`. -inf is handled where a difference of two could arise: a
maximum of -inf is replaced by 0 before it is subtracted, so that exp gives 0 and never NaN. Where nothing can end at t,
scale[t] is that of the position before.

What limits them on a GPU: N dependent steps, until C (C + W) exponentials a step (16 a cycle on a multiprocessor) or
reading the segments take longer.
"""

import triton
import triton.language as tl

from .common import finite, load_score, within


@triton.jit
def semimarkov_forward_kernel(
    segments,  # (B, N, W, C)
    transition,  # (C, C) if SHARED, else (B, N-1, C, C)
    lengths,  # (B,) or None
    values,  # (B, N, 2, C) zeros, written
    scales,  # (B, N+1) float64 zeros, written
    log_z,  # (B,), written
    N,
    W,
    C,
    stride_sb,
    stride_sn,
    stride_sw,
    stride_tb,
    stride_tn,
    SHARED: tl.constexpr,
    WHOLE: tl.constexpr,  # BLOCK_W >= W
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
    p_segments = segments + i_b * stride_sb + o_c[None, :]
    p_transition = transition + i_b * stride_tb
    o_tile = o_p[:, None] * C + o_c[None, :]  # within a tile, so 32 bits hold it
    p_values = values + i_b * N * 2 * C
    p_scales = scales + i_b * (N + 1)
    NEG_INF: tl.constexpr = float("-inf")

    if BLOCK_P >= BLOCK_C and SHARED:
        b_transition = load_score(p_transition + o_tile, (o_p[:, None] < C) & m_c[None, :])
    if WHOLE:
        m_tile = (o_w[:, None] < tl.minimum(b_len, 1)) & m_c[None, :]
        b_segments = load_score(p_segments + o_w[:, None] * 0, m_tile)
    b_ending = tl.full([BLOCK_C], NEG_INF, segments.dtype.element_ty)
    b_scale = tl.full([], 0.0, tl.float64)

    for i_t in range(1, b_len + 1):
        b_max = tl.full([BLOCK_C], NEG_INF, segments.dtype.element_ty)
        b_sum = tl.zeros([BLOCK_C], segments.dtype.element_ty)
        for i_w in range(0, W, BLOCK_W):
            o_start = i_t - 1 - i_w - o_w
            m_w = (i_w + o_w < W) & (o_start >= 0)
            m_tile = m_w[:, None] & m_c[None, :]
            if not WHOLE:
                p_tile = p_segments + (o_start * stride_sn + (i_w + o_w).to(tl.int64) * stride_sw)[:, None]
                b_segments = load_score(p_tile, m_tile)
            b_offset = (tl.load(p_scales + o_start, mask=m_w, other=0.0) - b_scale).to(b_sum.dtype)
            p_message = p_values + (o_start[:, None] * 2 + 1) * C + o_c[None, :]
            b_x = tl.load(p_message, mask=m_tile, other=NEG_INF) + (b_segments + b_offset[:, None])
            b_new = tl.maximum(b_max, tl.max(b_x, axis=0))
            b_safe = finite(b_new)
            b_sum = b_sum * tl.exp(b_max - b_safe) + tl.sum(tl.exp(b_x - b_safe[None, :]), axis=0)
            b_max = b_new
        if WHOLE:
            o_start = i_t - o_w
            m_tile = ((o_w < W) & (o_start >= 0) & (o_start < b_len - o_w))[:, None] & m_c[None, :]
            p_tile = p_segments + (o_start * stride_sn + o_w.to(tl.int64) * stride_sw)[:, None]
            b_segments = load_score(p_tile, m_tile)
        b_ending = finite(b_max) + tl.log(b_sum)  # log 0 = -inf where nothing ends in a label
        b_top = finite(tl.max(b_ending, axis=0))
        b_ending -= b_top
        b_scale += b_top.to(tl.float64)
        tl.store(p_scales + i_t, b_scale)
        tl.store(p_values + (i_t - 1) * 2 * C + o_c, b_ending, mask=m_c)
        if i_t < b_len:
            if BLOCK_P >= BLOCK_C:
                if not SHARED:
                    p_matrix = p_transition + (i_t - 1) * stride_tn
                    b_transition = load_score(p_matrix + o_tile, (o_p[:, None] < C) & m_c[None, :])
                b_x = b_ending[:, None] + b_transition
                b_max = finite(tl.max(b_x, axis=0))
                b_sum = tl.sum(tl.exp(b_x - b_max[None, :]), axis=0)
            else:
                tl.debug_barrier()  # orders the store of ending before these loads
                b_max = tl.full([BLOCK_C], NEG_INF, b_ending.dtype)
                b_sum = tl.zeros([BLOCK_C], b_ending.dtype)
                for i_p in range(0, C, BLOCK_P):
                    m_p = i_p + o_p < C
                    b_row = tl.load(p_values + (i_t - 1) * 2 * C + i_p + o_p, mask=m_p, other=NEG_INF)
                    p_matrix = p_transition + (i_t - 1) * stride_tn + tl.cast(i_p, tl.int64) * C
                    b_tile = load_score(p_matrix + o_tile, m_p[:, None] & m_c[None, :])
                    b_x = b_row[:, None] + b_tile
                    b_new = tl.maximum(b_max, tl.max(b_x, axis=0))
                    b_safe = finite(b_new)
                    b_sum = b_sum * tl.exp(b_max - b_safe) + tl.sum(tl.exp(b_x - b_safe[None, :]), axis=0)
                    b_max = b_new
                b_max = finite(b_max)
            tl.store(p_values + (i_t * 2 + 1) * C + o_c, b_max + tl.log(b_sum), mask=m_c)
        tl.debug_barrier()

    b_whole = b_scale + tl.log(tl.sum(tl.exp(b_ending), axis=0))  # the largest is 0, or all are -inf
    tl.store(log_z + i_b, tl.where(b_len > 0, b_whole, 0.0))


@triton.jit
def draw(b_x, b_uniform, o, BLOCK: tl.constexpr):
    """The lowest index whose share of exp(b_x), added up, exceeds b_uniform; b_x must have a finite entry.

    A parallel scan may step back by a rounding error, so an entry of weight 0 is ruled out explicitly, and the last
    entry of positive weight stands in when none passes the bar.
    """
    b_weight = tl.exp(b_x - finite(tl.max(b_x, axis=0)))
    b_cumulative = tl.cumsum(b_weight, axis=0)
    m_open = b_weight > 0
    b_bar = b_uniform * tl.max(b_cumulative, axis=0)
    b_first = tl.min(tl.where(m_open & (b_cumulative > b_bar), o, BLOCK), axis=0)
    return tl.where(b_first < BLOCK, b_first, tl.max(tl.where(m_open, o, 0), axis=0))


@triton.jit
def semimarkov_sample_kernel(
    segments,  # (B, N, W, C)
    transition,  # (C, C) with stride_tb = stride_tn = 0, or (B, N-1, C, C)
    lengths,  # (B,) or None
    values,  # (B, N, 2, C), from semimarkov_forward_kernel
    scales,  # (B, N+1), likewise
    log_z,  # (B,), likewise
    uniform,  # (S, B, N, 2)
    codes,  # (S, B, N) filled with the padding label
    B,
    N,
    W,
    C,
    stride_sb,
    stride_sn,
    stride_sw,
    stride_tb,
    stride_tn,
    BLOCK_W: tl.constexpr,  # >= W
    BLOCK_C: tl.constexpr,
):
    """Last segment first: its label has weights exp(ending[t, c] + transition[c, next]), then its width
    exp(message[s, c] + segments[s, w, c] + scale[s]); both drawn by inverse CDF.

    One program a (sample, sequence). Limit on a GPU: dependent loads, two a segment; samples run side by side.
    """
    i_sb = tl.program_id(0).to(tl.int64)
    i_b = i_sb % B
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_w = tl.arange(0, BLOCK_W)
    o_c = tl.arange(0, BLOCK_C)
    m_c = o_c < C
    NEG_INF: tl.constexpr = float("-inf")
    p_values = values + i_b * N * 2 * C
    p_scales = scales + i_b * (N + 1)
    p_codes = codes + i_sb * N
    i_end = tl.where(tl.load(log_z + i_b) > NEG_INF, b_len, 0)
    for i_t in range(0, i_end, BLOCK_C):
        tl.store(p_codes + i_t + o_c, tl.full([BLOCK_C], -1, tl.int64), mask=i_t + o_c < i_end)
    tl.debug_barrier()
    b_label = tl.full([], 0, tl.int32)
    while i_end > 0:
        b_x = tl.load(p_values + (i_end - 1) * 2 * C + o_c, mask=m_c, other=NEG_INF)
        p_column = transition + i_b * stride_tb + (i_end - 1) * stride_tn + o_c.to(tl.int64) * C + b_label
        b_x += load_score(p_column, within(o_c, C, i_end < b_len), 0.0)
        p_uniform = uniform + (i_sb * N + i_end - 1) * 2
        b_label = draw(b_x, tl.load(p_uniform), o_c, BLOCK_C)
        o_start = i_end - 1 - o_w
        m_w = (o_w < W) & (o_start >= 0)
        b_x = tl.load(p_values + (o_start * 2 + 1) * C + b_label, mask=m_w, other=NEG_INF)
        p_segments = segments + i_b * stride_sb + o_start * stride_sn + o_w.to(tl.int64) * stride_sw + b_label
        b_offset = tl.load(p_scales + o_start, mask=m_w, other=0.0) - tl.load(p_scales + i_end)
        b_x += load_score(p_segments, m_w) + b_offset.to(b_x.dtype)
        b_width = draw(b_x, tl.load(p_uniform + 1), o_w, BLOCK_W)
        i_end -= b_width + 1
        tl.store(p_codes + i_end, b_width.to(tl.int64) * C + b_label)
