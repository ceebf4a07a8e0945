"""log Z of alignments by anti-diagonals, and its gradient.

The recurrence of `alignment_max.py` with log-sum-exp for max, alpha from the start and beta from the end; the marginal
of a part is exp(what leads to it + its score + what follows - log Z). One program owns one pair and walks diagonals, as
there. alpha is kept diagonal by diagonal, (3, N+M+1, N+1), so that a diagonal's loads and stores are contiguous; beta
needs three diagonals only. A lane adds to the gap gradients of its own row and column, one cell of each a diagonal, so
sums have one order. Limited by the exponentials of a cell (about 10 with affine gaps) and the barrier of a diagonal.
"""

import triton
import triton.language as tl

from .alignment_max import gap_scores
from .common import load_score, probability


@triton.jit
def log_add(b_a, b_b):
    """log(e^a + e^b), -inf where both are."""
    b_top = tl.maximum(b_a, b_b)
    b_finite = tl.where(b_top == float("-inf"), 0.0, b_top)
    return b_finite + tl.log(tl.exp(b_a - b_finite) + tl.exp(b_b - b_finite))


@triton.jit
def forward_kernel(
    match,  # as in best_kernel
    gap_x,
    gap_y,
    open_x,
    open_y,
    x_lengths,
    y_lengths,
    kept,  # (B, 3, N+M+1, N+1): M, X and Y by diagonal and row
    ends,  # (B, N+1) scratch: log of the sum of a row's local ends; None if not local
    log_z,  # (B,)
    N,
    M,
    BAND,
    stride_mb,
    stride_mn,
    stride_gxb,
    stride_gxn,
    stride_gyb,
    stride_gym,
    stride_oxb,
    stride_oxn,
    stride_oyb,
    stride_oym,
    LOCAL: tl.constexpr,
    SEMIGLOBAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    b_n = i_b * 0 + N if x_lengths is None else tl.load(x_lengths + i_b)
    b_m = i_b * 0 + M if y_lengths is None else tl.load(y_lengths + i_b)
    b_low = -b_n - b_m if BAND < 0 else tl.minimum(b_m - b_n, 0) - BAND
    b_high = b_n + b_m if BAND < 0 else tl.maximum(b_m - b_n, 0) + BAND
    NEG_INF: tl.constexpr = float("-inf")
    width = N + 1
    plane = (N + M + 1) * width
    p_M = kept + i_b * 3 * plane
    p_X = p_M + plane
    p_Y = p_X + plane
    p_match = match + i_b * stride_mb
    o_lane = tl.arange(0, BLOCK)

    for i_d in range(b_n + b_m + 1):
        o_now, o_1, o_2 = i_d * width, (i_d - 1) * width, (i_d - 2) * width
        for i_0 in range(0, b_n + 1, BLOCK):
            o = i_0 + o_lane
            o_j = i_d - o
            m_row = o <= b_n
            m_in = m_row & (o_j >= 0) & (o_j <= b_m) & (o_j - o >= b_low) & (o_j - o <= b_high)
            m_up, m_left = m_in & (o >= 1), m_in & (o_j >= 1)
            m_both = m_up & (o_j >= 1)

            b_M = tl.load(p_M + o_2 + o - 1, mask=m_both, other=NEG_INF)
            b_M = log_add(b_M, tl.load(p_X + o_2 + o - 1, mask=m_both, other=NEG_INF))
            b_M = log_add(b_M, tl.load(p_Y + o_2 + o - 1, mask=m_both, other=NEG_INF))
            if LOCAL:
                b_M = log_add(b_M, tl.where(m_both, 0.0, NEG_INF).to(b_M.dtype))
            o_cell = (o - 1).to(tl.int64) * stride_mn + o_j - 1
            b_M = b_M + load_score(p_match + o_cell, m_both)
            if not LOCAL:
                b_M = tl.where((o == 0) & (o_j == 0), 0.0, b_M)

            b_X = tl.load(p_M + o_1 + o - 1, mask=m_up, other=NEG_INF)
            b_X = log_add(b_X, tl.load(p_Y + o_1 + o - 1, mask=m_up, other=NEG_INF))
            b_same = tl.load(p_X + o_1 + o - 1, mask=m_up, other=NEG_INF)
            m_free = (o_j == 0) | (o_j == b_m)
            b_gap = gap_scores(gap_x + i_b * stride_gxb, stride_gxn, o - 1, m_up, m_free, SEMIGLOBAL)
            b_open = b_gap
            if open_x is not None:
                b_open = gap_scores(open_x + i_b * stride_oxb, stride_oxn, o - 1, m_up, m_free, SEMIGLOBAL)
            b_X = log_add(b_X + b_open, b_same + b_gap)

            b_Y = tl.load(p_M + o_1 + o, mask=m_left, other=NEG_INF)
            b_Y = log_add(b_Y, tl.load(p_X + o_1 + o, mask=m_left, other=NEG_INF))
            b_same = tl.load(p_Y + o_1 + o, mask=m_left, other=NEG_INF)
            m_free = (o == 0) | (o == b_n)
            b_gap = gap_scores(gap_y + i_b * stride_gyb, stride_gym, o_j - 1, m_left, m_free, SEMIGLOBAL)
            b_open = b_gap
            if open_y is not None:
                b_open = gap_scores(open_y + i_b * stride_oyb, stride_oym, o_j - 1, m_left, m_free, SEMIGLOBAL)
            b_Y = log_add(b_Y + b_open, b_same + b_gap)

            tl.store(p_M + o_now + o, b_M, mask=m_row)
            tl.store(p_X + o_now + o, b_X, mask=m_row)
            tl.store(p_Y + o_now + o, b_Y, mask=m_row)
            if LOCAL:
                b_ends = tl.load(ends + i_b * width + o, mask=m_both, other=NEG_INF)
                tl.store(ends + i_b * width + o, log_add(b_ends, b_M), mask=m_both)
        tl.debug_barrier()

    if LOCAL:
        b_zero = tl.full([BLOCK], 0.0, match.dtype.element_ty)
        b_top, b_sum = tl.max(b_zero, axis=0), tl.max(b_zero + 1.0, axis=0)  # the empty alignment
        for i_0 in range(1, b_n + 1, BLOCK):
            o = i_0 + o_lane
            b_ends = tl.load(ends + i_b * width + o, mask=o <= b_n, other=NEG_INF)
            b_new = tl.maximum(b_top, tl.max(b_ends, axis=0))
            b_sum = b_sum * tl.exp(b_top - b_new) + tl.sum(tl.exp(b_ends - b_new), axis=0)
            b_top = b_new
        tl.store(log_z + i_b, b_top + tl.log(b_sum))
    else:
        o_last = (b_n + b_m) * width + b_n
        b_z = log_add(tl.load(p_M + o_last), tl.load(p_X + o_last))
        tl.store(log_z + i_b, log_add(b_z, tl.load(p_Y + o_last)))


@triton.jit
def backward_kernel(
    match,  # as in forward_kernel
    gap_x,
    gap_y,
    open_x,
    open_y,
    x_lengths,
    y_lengths,
    kept,
    log_z,
    grad,  # (B,)
    rows,  # (B, 3, 3, N+2) scratch: beta of three diagonals
    d_match,  # (B, N, M), zeros; the others too
    d_gap_x,
    d_gap_y,
    d_open_x,  # None with linear gaps
    d_open_y,
    N,
    M,
    BAND,
    stride_mb,
    stride_mn,
    stride_gxb,
    stride_gxn,
    stride_gyb,
    stride_gym,
    stride_oxb,
    stride_oxn,
    stride_oyb,
    stride_oym,
    LOCAL: tl.constexpr,
    SEMIGLOBAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    b_n = i_b * 0 + N if x_lengths is None else tl.load(x_lengths + i_b)
    b_m = i_b * 0 + M if y_lengths is None else tl.load(y_lengths + i_b)
    b_low = -b_n - b_m if BAND < 0 else tl.minimum(b_m - b_n, 0) - BAND
    b_high = b_n + b_m if BAND < 0 else tl.maximum(b_m - b_n, 0) + BAND
    NEG_INF: tl.constexpr = float("-inf")
    plane = (N + M + 1) * (N + 1)
    p_M = kept + i_b * 3 * plane
    p_X = p_M + plane
    p_Y = p_X + plane
    width = N + 2  # one row more, so that the row below the last is there to read
    p_rows = rows + i_b * 9 * width
    p_match = match + i_b * stride_mb
    o_lane = tl.arange(0, BLOCK)
    b_z = tl.load(log_z + i_b)
    b_z = tl.where(b_z == NEG_INF, 0.0, b_z)
    b_grad = tl.load(grad + i_b)

    for i_r in range(b_n + b_m + 1):
        i_d = b_n + b_m - i_r
        p_now = p_rows + i_d % 3 * 3 * width
        p_1 = p_rows + (i_d + 1) % 3 * 3 * width
        p_2 = p_rows + (i_d + 2) % 3 * 3 * width
        for i_0 in range(0, b_n + 1, BLOCK):
            o = i_0 + o_lane
            o_j = i_d - o
            m_row = o <= b_n
            m_in = m_row & (o_j >= 0) & (o_j <= b_m) & (o_j - o >= b_low) & (o_j - o <= b_high)
            m_down, m_right = m_in & (o < b_n), m_in & (o_j < b_m)
            m_both = m_down & (o_j < b_m)

            o_cell = o.to(tl.int64) * stride_mn + o_j
            b_next = load_score(p_match + o_cell, m_both)
            b_next = b_next + tl.load(p_2 + o + 1, mask=m_both, other=NEG_INF)
            if not LOCAL:
                b_next = tl.where(m_in & (o == b_n) & (o_j == b_m), 0.0, b_next)
            b_below = tl.load(p_1 + width + o + 1, mask=m_down, other=NEG_INF)
            m_free = (o_j == 0) | (o_j == b_m)
            b_gap_x = gap_scores(gap_x + i_b * stride_gxb, stride_gxn, o, m_down, m_free, SEMIGLOBAL)
            b_open_x = b_gap_x
            if open_x is not None:
                b_open_x = gap_scores(open_x + i_b * stride_oxb, stride_oxn, o, m_down, m_free, SEMIGLOBAL)
            b_right = tl.load(p_1 + 2 * width + o, mask=m_right, other=NEG_INF)
            m_end = (o == 0) | (o == b_n)
            b_gap_y = gap_scores(gap_y + i_b * stride_gyb, stride_gym, o_j, m_right, m_end, SEMIGLOBAL)
            b_open_y = b_gap_y
            if open_y is not None:
                b_open_y = gap_scores(open_y + i_b * stride_oyb, stride_oym, o_j, m_right, m_end, SEMIGLOBAL)

            b_down = log_add(b_next, b_below + b_open_x)
            b_M = log_add(b_down, b_right + b_open_y)
            b_X = log_add(log_add(b_next, b_below + b_gap_x), b_right + b_open_y)
            b_Y = log_add(b_down, b_right + b_gap_y)
            if LOCAL:
                b_M = log_add(b_M, tl.where(m_in, 0.0, NEG_INF).to(b_M.dtype))
            tl.store(p_now + o, b_M, mask=m_row)
            tl.store(p_now + width + o, b_X, mask=m_row)
            tl.store(p_now + 2 * width + o, b_Y, mask=m_row)

            # Parts into this node; masked lanes hold -inf, whose exponential is 0.
            o_here, o_1 = i_d * (N + 1) + o, (i_d - 1) * (N + 1) + o
            m_up, m_left = m_in & (o >= 1), m_in & (o_j >= 1)
            b_p = probability(tl.load(p_M + o_here, mask=m_up & m_left, other=NEG_INF) + b_M - b_z) * b_grad
            o_out = (i_b * N + o - 1) * M + o_j - 1
            tl.store(d_match + o_out, b_p, mask=m_up & m_left)

            b_above = log_add(
                tl.load(p_M + o_1 - 1, mask=m_up, other=NEG_INF), tl.load(p_Y + o_1 - 1, mask=m_up, other=NEG_INF)
            )
            b_same = tl.load(p_X + o_1 - 1, mask=m_up, other=NEG_INF)
            b_gap = gap_scores(gap_x + i_b * stride_gxb, stride_gxn, o - 1, m_up, m_free, False)
            b_open = b_gap
            if open_x is not None:
                b_open = gap_scores(open_x + i_b * stride_oxb, stride_oxn, o - 1, m_up, m_free, False)
            m_paid = m_up
            if SEMIGLOBAL:
                m_paid = m_up & (o_j != 0) & (o_j != b_m)
            b_opened = probability(b_above + b_open + b_X - b_z) * b_grad
            b_extended = probability(b_same + b_gap + b_X - b_z) * b_grad
            o_x = i_b * N + o - 1
            if open_x is None:
                b_extended = b_extended + b_opened
            else:
                tl.store(d_open_x + o_x, tl.load(d_open_x + o_x, mask=m_paid, other=0.0) + b_opened, mask=m_paid)
            tl.store(d_gap_x + o_x, tl.load(d_gap_x + o_x, mask=m_paid, other=0.0) + b_extended, mask=m_paid)

            b_before = log_add(
                tl.load(p_M + o_1, mask=m_left, other=NEG_INF), tl.load(p_X + o_1, mask=m_left, other=NEG_INF)
            )
            b_same = tl.load(p_Y + o_1, mask=m_left, other=NEG_INF)
            b_gap = gap_scores(gap_y + i_b * stride_gyb, stride_gym, o_j - 1, m_left, m_end, False)
            b_open = b_gap
            if open_y is not None:
                b_open = gap_scores(open_y + i_b * stride_oyb, stride_oym, o_j - 1, m_left, m_end, False)
            m_paid = m_left
            if SEMIGLOBAL:
                m_paid = m_left & (o != 0) & (o != b_n)
            b_opened = probability(b_before + b_open + b_Y - b_z) * b_grad
            b_extended = probability(b_same + b_gap + b_Y - b_z) * b_grad
            o_y = i_b * M + o_j - 1
            if open_y is None:
                b_extended = b_extended + b_opened
            else:
                tl.store(d_open_y + o_y, tl.load(d_open_y + o_y, mask=m_paid, other=0.0) + b_opened, mask=m_paid)
            tl.store(d_gap_y + o_y, tl.load(d_gap_y + o_y, mask=m_paid, other=0.0) + b_extended, mask=m_paid)
        tl.debug_barrier()
