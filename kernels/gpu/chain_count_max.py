"""Kernel of count-augmented Viterbi: the best labelling of a chain for each value g of some statistics.

    A_t[c, q, g] = unary[t, c] + max { A_{t-1}[p, q', g - step(q', p, c)] + transition[p, c] : next(q', p, c) = q }
    table[g]     = max over (c, q) of A_{n-1}[c, q, g - last(q, c)] + end[c]
    value        = max over g of offset[g] + slope[g] * table[g]

One program owns one sequence and walks its positions in order. A step fills tiles of (BLOCK_R rows (c, q), BLOCK_S
values of g), each by one pass over the R = C Q rows (p, q') before it, so that a row read serves BLOCK_R rows. What a
label adds by itself shifts the tile as it is stored, what the automaton adds shifts the row as it is read. All A_t stay
in memory, with a barrier between positions; the best labelling is found from them again, last position first.

Additions keep the order written above, equal candidates keep the lowest (label, state) and equal values the lowest g:
ties fall as in the reference.

What limits it on a GPU: R^2 S additions and maxima a position on the one multiprocessor that a sequence has, fed from
L1 while one A_t fits there, else from L2; for small tables, the dependent steps there and back with a barrier each.
"""

import triton
import triton.language as tl

from .common import finite, load_score, within


@triton.jit
def increments(pointers, mask, S):
    """Increments of g; those that leave the table need no exact value, and a sum of two must fit 32 bits."""
    return tl.minimum(tl.load(pointers, mask=mask, other=0), S).to(tl.int32)


@triton.jit
def put(p_chart, b_tile, o_row, o_g, b_shift, R, S):
    """A tile (BLOCK_R, BLOCK_S) moved up by b_shift (BLOCK_R,), and -inf in the places that this leaves empty."""
    p_tile = p_chart + o_row.to(tl.int64)[:, None] * S + o_g[None, :]
    o_to = o_g[None, :] + b_shift[:, None]
    m_row = (o_row < R)[:, None]
    tl.store(p_tile + b_shift[:, None], b_tile, mask=m_row & (o_to < S))
    m_left = m_row & (o_g < S)[None, :] & (o_g[None, :] < b_shift[:, None])
    tl.store(p_tile, tl.full(b_tile.shape, float("-inf"), b_tile.dtype), mask=m_left)


@triton.jit
def before(
    p_chart,  # (R, S): A at the position to label
    p_into,  # scores of going on from label p, stride_into apart; None for 0
    stride_into,
    p_next,  # state after (q, p), laid out as p_step; None where it is not asked for
    b_state,  # the state it must be
    p_step,  # increment of going on from (q, p); None for 0
    stride_q,
    stride_p,
    b_left,  # what the labels up to the next position add
    R,
    S,
    Q: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The lowest row (p, q) on a best way to the next position, and what the labels up to this one add."""
    b_best = tl.full([], float("-inf"), p_chart.dtype.element_ty)
    b_row = tl.zeros([], tl.int32)
    for i_r in range(0, R, BLOCK):
        o_row = i_r + tl.arange(0, BLOCK)
        o_p = (o_row // Q).to(tl.int64)
        m_row = o_row < R
        m_old = m_row
        o_old = o_row.to(tl.int64) * S + b_left
        if p_step is not None:
            o_cell = (o_row % Q).to(tl.int64) * stride_q + o_p * stride_p
            b_shift = increments(p_step + o_cell, m_row, S)
            o_old -= b_shift
            m_old = m_old & (b_shift <= b_left)
            if p_next is not None:
                m_old = m_old & (tl.load(p_next + o_cell, mask=m_row, other=-1) == b_state)
        b_score = tl.load(p_chart + o_old, mask=m_old, other=float("-inf"))
        if p_into is not None:
            b_score += load_score(p_into + o_p * stride_into, m_row)
        b_value, b_index = tl.max(b_score, axis=0, return_indices=True)
        b_row = tl.where(b_value > b_best, b_index + i_r, b_row)
        b_best = tl.maximum(b_value, b_best)
    if p_step is not None:
        b_cell = (b_row % Q).to(tl.int64) * stride_q + (b_row // Q).to(tl.int64) * stride_p
        b_left -= tl.load(p_step + b_cell).to(tl.int32)
    return b_row, b_left


@triton.jit
def count_kernel(
    unary,  # (B, N, C)
    transition,  # (C, C) or (B, N-1, C, C)
    start,  # (C,) or None
    end,  # (C,) or None
    lengths,  # (B,) or None
    unary_step,  # (B, N, C) or None
    classes,  # (B, N), or None for class 0 everywhere
    following,  # (K, Q, C+1, C), p = C before the first label; None for one state and no increments
    step,  # (K, Q, C+1, C), None with following
    last,  # (Q, C) or None
    offset,  # (B, S)
    slope,  # (B, S)
    charts,  # (B, N, C, Q, S) scratch
    labels,  # (B, N) filled with the padding label
    index,  # (B,)
    value,  # (B,)
    table,  # (B, S)
    N,
    C,
    S,
    stride_ub,
    stride_un,
    stride_tb,
    stride_tn,
    Q: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_BACK: tl.constexpr,  # rows at a time on the way back
):
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    R = C * Q
    chart = (i_b * 0 + R) * S  # size of one A_t, and of the cells of one class: either may need 64 bits
    automaton = (i_b * 0 + Q) * (C + 1) * C
    o_r = tl.arange(0, BLOCK_R)
    # Were loads of whole rows vectorised, each would pass through shared memory to get the layout of the tile.
    o_s = tl.max_contiguous(tl.arange(0, BLOCK_S), 1)
    p_unary = unary + i_b * stride_ub
    p_transition = transition + i_b * stride_tb
    p_charts = charts + i_b * N * chart
    b_rows = tl.where(b_len > 0, R, 0)  # no chart is written or read for the empty sequence
    i_class = i_b * 0
    NEG_INF: tl.constexpr = float("-inf")
    UNROLL: tl.constexpr = 4 if following is None else 2  # loads in flight, as many as registers hold

    if classes is not None:
        i_class = tl.load(classes + i_b * N, mask=b_len > 0, other=0) * automaton
    for i_r in range(0, b_rows, BLOCK_R):
        o_row = i_r + o_r
        m_r = o_row < R
        b_first = load_score(p_unary + o_row // Q, m_r)
        if start is not None:
            b_first = load_score(start + o_row // Q, m_r) + b_first
        b_shift = tl.zeros([BLOCK_R], tl.int32)
        if unary_step is not None:
            b_shift = increments(unary_step + i_b * N * C + o_row // Q, m_r, S)
        if following is not None:
            o_cell = i_class + C * C + o_row // Q
            m_state = tl.load(following + o_cell, mask=m_r, other=-1) == o_row % Q
            b_first = tl.where(m_state, b_first, NEG_INF)
            b_shift += increments(step + o_cell, m_r, S)
        for i_s in range(0, S, BLOCK_S):
            b_tile = tl.where((i_s + o_s)[None, :] == 0, b_first[:, None], NEG_INF)
            put(p_charts, b_tile, o_row, i_s + o_s, b_shift, R, S)
    tl.debug_barrier()

    for i_t in range(1, b_len):
        p_old = p_charts + (i_t - 1) * chart
        p_matrix = p_transition + (i_t - 1) * stride_tn
        if classes is not None:
            i_class = tl.load(classes + i_b * N + i_t) * automaton
        for i_r in range(0, R, BLOCK_R):
            o_row = i_r + o_r
            m_r = o_row < R
            b_unary = load_score(p_unary + i_t * stride_un + o_row // Q, m_r)
            b_shift = tl.zeros([BLOCK_R], tl.int32)
            if unary_step is not None:
                b_shift = increments(unary_step + (i_b * N + i_t) * C + o_row // Q, m_r, S)
            for i_s in range(0, S, BLOCK_S):
                o_g = i_s + o_s
                b_best = tl.full([BLOCK_R, BLOCK_S], NEG_INF, b_unary.dtype)
                for i_old in tl.range(0, R, loop_unroll_factor=UNROLL):
                    i_p = tl.cast(i_old // Q, tl.int64)
                    p_row = p_old + tl.cast(i_old, tl.int64) * S
                    b_into = load_score(p_matrix + i_p * C + o_row // Q, m_r)
                    if following is None:
                        b_row = tl.load(p_row + o_g, mask=o_g < S, other=NEG_INF)[None, :]
                    else:
                        o_cell = i_class + (i_old % Q * (C + 1) + i_p) * C + o_row // Q
                        m_state = tl.load(following + o_cell, mask=m_r, other=-1) == o_row % Q
                        o_old = o_g[None, :] - increments(step + o_cell, m_r, S)[:, None]
                        m_old = m_state[:, None] & (o_old >= 0) & (o_g < S)[None, :]
                        b_row = tl.load(p_row + o_old, mask=m_old, other=NEG_INF)
                    b_best = tl.maximum(b_row + b_into[:, None], b_best)
                put(p_old + chart, b_best + b_unary[:, None], o_row, o_g, b_shift, R, S)
        tl.debug_barrier()

    p_end = p_charts + tl.maximum(b_len - 1, 0) * chart
    b_value = tl.full([], NEG_INF, unary.dtype.element_ty)
    b_index = tl.zeros([], tl.int32)
    for i_s in range(0, S, BLOCK_S):
        o_g = i_s + o_s
        m_g = o_g < S
        # The empty sequence has one output, of score 0 and statistics 0.
        b_table = tl.where(within(o_g, 1, b_len == 0), 0.0, tl.full([BLOCK_S], NEG_INF, b_value.dtype))
        for i_r in range(0, b_rows, BLOCK_R):
            o_row = i_r + o_r
            m_r = o_row < R
            o_old = o_row.to(tl.int64)[:, None] * S + o_g[None, :]
            m_old = m_r[:, None] & m_g[None, :]
            if last is not None:
                b_shift = increments(last + o_row % Q * C + o_row // Q, m_r, S)
                o_old -= b_shift[:, None]
                m_old = m_old & (b_shift[:, None] <= o_g[None, :])
            b_score = tl.load(p_end + o_old, mask=m_old, other=NEG_INF)
            if end is not None:
                b_score += load_score(end + o_row // Q, m_r)[:, None]
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
        p_labels = labels + i_b * N
        b_row, b_left = before(p_end, end, 1, None, 0, last, C, 1, b_index, R, S, Q, BLOCK_BACK)
        tl.store(p_labels + b_len - 1, (b_row // Q).to(tl.int64))
        for i_back in range(1, b_len):
            i_t = b_len - i_back  # has its label; the position before it gets one
            b_label = b_row // Q
            p_old = p_charts + (i_t - 1) * chart
            p_into = p_transition + (i_t - 1) * stride_tn + b_label
            if unary_step is not None:
                b_left -= tl.load(unary_step + (i_b * N + i_t) * C + b_label).to(tl.int32)
            if following is None:
                b_row, b_left = before(p_old, p_into, C, None, 0, None, 0, 0, b_left, R, S, Q, BLOCK_BACK)
            else:
                if classes is not None:
                    i_class = tl.load(classes + i_b * N + i_t) * automaton
                p_next = following + i_class + b_label
                p_step = step + i_class + b_label
                b_row, b_left = before(
                    p_old, p_into, C, p_next, b_row % Q, p_step, (C + 1) * C, C, b_left, R, S, Q, BLOCK_BACK
                )
            tl.store(p_labels + i_t - 1, (b_row // Q).to(tl.int64))
