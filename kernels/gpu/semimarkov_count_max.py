"""Kernel of count-augmented Viterbi: the best segmentation for each value g of some statistics.

    message[0, c, g] = 0 at g = 0
    message[t, c, g] = max_p (ending[t, p, g - transition_step[p, c]] + transition[p, c])
    ending[t, c, g]  = max_w (message[s, c, g - segment_step[s, w, c]] + segments[s, w, c]),   s = t - w - 1
    table[g]         = max_c ending[n, c, g]
    value            = max over g of offset[g] + slope[g] * table[g]

One program owns one sequence and walks its positions in order. Both maxima fill tiles of (BLOCK_R labels, BLOCK_S
values of g), one by a pass over the widths, the other over the labels before. What a part adds shifts the row as it is
read. All rows stay in memory, with a barrier after each maximum; the best segmentation is found from them again, last
segment first.

Additions keep the order written above, equal candidates keep the smallest width and the lowest label, and equal values
the lowest g: ties fall as in the reference.

What limits it on a GPU: C (C + W) S additions and maxima a position on the one multiprocessor that a sequence has, fed
from L2 once W rows of messages exceed L1; for small tables, the dependent steps there and back with two barriers each.
"""

import triton
import triton.language as tl

from .chain_count_max import before, increments
from .common import finite, load_score, within


@triton.jit
def moved(p_rows, o_row, o_g, b_shift, m_row, S):
    """rows[o_row, o_g - b_shift] as a tile, -inf where that is below 0; one shift a row."""
    o_old = o_g[None, :] - b_shift[:, None]
    m_old = m_row[:, None] & (o_old >= 0) & (o_g < S)[None, :]
    return tl.load(p_rows + o_row.to(tl.int64)[:, None] * S + o_old, mask=m_old, other=float("-inf"))


@triton.jit
def semimarkov_count_kernel(
    segments,  # (B, N, W, C)
    transition,  # (C, C) with stride_tb = stride_tn = 0, or (B, N-1, C, C)
    lengths,  # (B,) or None
    segment_step,  # (B, N, W, C) or None
    transition_step,  # of the transition's shape, contiguous, or None
    offset,  # (B, S)
    slope,  # (B, S)
    charts,  # (B, N, 2, C, S) scratch: message[t] and ending[t + 1]
    codes,  # (B, N) filled with the padding label
    index,  # (B,)
    value,  # (B,)
    table,  # (B, S)
    N,
    W,
    C,
    S,
    stride_sb,
    stride_sn,
    stride_sw,
    stride_tb,
    stride_tn,
    stride_eb,  # of transition_step
    stride_en,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_BACK: tl.constexpr,  # labels or widths at a time on the way back
):
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    chart = (i_b * 0 + C) * S  # size of one message or ending, which may need 64 bits
    o_r = tl.arange(0, BLOCK_R)
    # Were loads of whole rows vectorised, each would pass through shared memory to get the layout of the tile.
    o_s = tl.max_contiguous(tl.arange(0, BLOCK_S), 1)
    p_segments = segments + i_b * stride_sb
    p_transition = transition + i_b * stride_tb
    p_charts = charts + i_b * N * 2 * chart
    b_rows = tl.where(b_len > 0, C, 0)  # no chart is written or read for the empty sequence
    NEG_INF: tl.constexpr = float("-inf")
    dtype = segments.dtype.element_ty

    for i_r in range(0, b_rows, BLOCK_R):
        o_row = i_r + o_r
        for i_s in range(0, S, BLOCK_S):
            o_g = i_s + o_s
            b_tile = tl.where((o_g == 0)[None, :], 0.0, tl.full([BLOCK_R, BLOCK_S], NEG_INF, dtype))
            p_tile = p_charts + o_row.to(tl.int64)[:, None] * S + o_g[None, :]
            tl.store(p_tile, b_tile, mask=(o_row < C)[:, None] & (o_g < S)[None, :])
    tl.debug_barrier()

    for i_t in range(1, b_len + 1):
        p_ending = p_charts + (2 * i_t - 1) * chart
        for i_r in range(0, C, BLOCK_R):
            o_row = i_r + o_r
            m_r = o_row < C
            for i_s in range(0, S, BLOCK_S):
                o_g = i_s + o_s
                b_best = tl.full([BLOCK_R, BLOCK_S], NEG_INF, dtype)
                for i_w in range(tl.minimum(W, i_t)):
                    i_start = i_t - 1 - i_w
                    p_part = p_segments + i_start * stride_sn + tl.cast(i_w, tl.int64) * stride_sw
                    b_part = load_score(p_part + o_row, m_r)
                    b_shift = tl.zeros([BLOCK_R], tl.int32)
                    if segment_step is not None:
                        b_shift = increments(segment_step + ((i_b * N + i_start) * W + i_w) * C + o_row, m_r, S)
                    b_row = moved(p_charts + 2 * i_start * chart, o_row, o_g, b_shift, m_r, S)
                    b_best = tl.maximum(b_row + b_part[:, None], b_best)
                p_tile = p_ending + o_row.to(tl.int64)[:, None] * S + o_g[None, :]
                tl.store(p_tile, b_best, mask=m_r[:, None] & (o_g < S)[None, :])
        tl.debug_barrier()
        if i_t < b_len:
            p_matrix = p_transition + (i_t - 1) * stride_tn
            for i_r in range(0, C, BLOCK_R):
                o_row = i_r + o_r
                m_r = o_row < C
                for i_s in range(0, S, BLOCK_S):
                    o_g = i_s + o_s
                    b_best = tl.full([BLOCK_R, BLOCK_S], NEG_INF, dtype)
                    for i_p in tl.range(0, C, loop_unroll_factor=2):
                        i_row = tl.cast(i_p, tl.int64)
                        b_into = load_score(p_matrix + i_row * C + o_row, m_r)
                        p_row = p_ending + i_row * S
                        if transition_step is None:
                            b_row = tl.load(p_row + o_g, mask=o_g < S, other=NEG_INF)[None, :]
                        else:
                            p_step = transition_step + i_b * stride_eb + (i_t - 1) * stride_en + i_row * C
                            b_row = moved(p_row, o_row * 0, o_g, increments(p_step + o_row, m_r, S), m_r, S)
                        b_best = tl.maximum(b_row + b_into[:, None], b_best)
                    p_tile = p_charts + 2 * i_t * chart + o_row.to(tl.int64)[:, None] * S + o_g[None, :]
                    tl.store(p_tile, b_best, mask=m_r[:, None] & (o_g < S)[None, :])
            tl.debug_barrier()

    p_end = p_charts + tl.maximum(2 * b_len - 1, 0) * chart
    b_value = tl.full([], NEG_INF, dtype)
    b_index = tl.zeros([], tl.int32)
    for i_s in range(0, S, BLOCK_S):
        o_g = i_s + o_s
        m_g = o_g < S
        # The empty sequence has one output, of score 0 and statistics 0.
        b_table = tl.where(within(o_g, 1, b_len == 0), 0.0, tl.full([BLOCK_S], NEG_INF, dtype))
        for i_r in range(0, b_rows, BLOCK_R):
            o_row = i_r + o_r
            p_tile = p_end + o_row.to(tl.int64)[:, None] * S + o_g[None, :]
            b_score = tl.load(p_tile, mask=(o_row < C)[:, None] & m_g[None, :], other=NEG_INF)
            b_table = tl.maximum(tl.max(b_score, axis=0), b_table)
        tl.store(table + i_b * S + o_g, b_table, mask=m_g)
        b_offset = tl.load(offset + i_b * S + o_g, mask=m_g, other=NEG_INF)
        b_slope = tl.load(slope + i_b * S + o_g, mask=m_g, other=0.0)
        b_worth = tl.where(b_table > NEG_INF, b_offset + b_slope * finite(b_table), NEG_INF)
        b_top, b_at = tl.max(b_worth, axis=0, return_indices=True)
        b_index = tl.where(b_top > b_value, b_at + i_s, b_index)
        b_value = tl.maximum(b_top, b_value)
    tl.store(value + i_b, b_value)
    tl.store(index + i_b, b_index.to(tl.int64))

    if (b_value > NEG_INF) & (b_len > 0):
        p_codes = codes + i_b * N
        o_back = tl.arange(0, BLOCK_BACK)
        for i_t in range(0, b_len, BLOCK_BACK):
            tl.store(p_codes + i_t + o_back, tl.full([BLOCK_BACK], -1, tl.int64), mask=i_t + o_back < b_len)
        tl.debug_barrier()
        i_end = b_len
        b_label, b_left = before(p_end, None, 0, None, 0, None, 0, 0, b_index, C, S, 1, BLOCK_BACK)
        while i_end > 0:
            b_best = tl.full([], NEG_INF, dtype)
            b_width = tl.zeros([], tl.int32)
            for i_w in range(0, W, BLOCK_BACK):
                o_w = i_w + o_back
                o_start = i_end - 1 - o_w
                m_w = (o_w < W) & (o_start >= 0)
                o_old = o_start * 2 * chart + b_label.to(tl.int64) * S + b_left
                m_old = m_w
                if segment_step is not None:
                    p_step = segment_step + ((i_b * N + o_start) * W + o_w) * C + b_label
                    b_shift = increments(p_step, m_w, S)
                    o_old -= b_shift
                    m_old = m_old & (b_shift <= b_left)
                b_score = tl.load(p_charts + o_old, mask=m_old, other=NEG_INF)
                p_part = p_segments + o_start * stride_sn + o_w.to(tl.int64) * stride_sw + b_label
                b_score += load_score(p_part, m_w)
                b_top, b_at = tl.max(b_score, axis=0, return_indices=True)
                b_width = tl.where(b_top > b_best, b_at + i_w, b_width)
                b_best = tl.maximum(b_top, b_best)
            i_end -= b_width + 1
            tl.store(p_codes + i_end, b_width.to(tl.int64) * C + b_label)
            if segment_step is not None:
                b_left -= tl.load(segment_step + ((i_b * N + i_end) * W + b_width) * C + b_label).to(tl.int32)
            if i_end > 0:
                p_into = p_transition + (i_end - 1) * stride_tn + b_label
                p_old = p_charts + (2 * i_end - 1) * chart
                if transition_step is None:
                    b_label, b_left = before(p_old, p_into, C, None, 0, None, 0, 0, b_left, C, S, 1, BLOCK_BACK)
                else:
                    p_step = transition_step + i_b * stride_eb + (i_end - 1) * stride_en + b_label
                    b_label, b_left = before(p_old, p_into, C, None, 0, p_step, 0, C, b_left, C, S, 1, BLOCK_BACK)
