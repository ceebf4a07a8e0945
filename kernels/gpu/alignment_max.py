"""Best alignment by anti-diagonals (max-plus), with the choices of every node for the way back.

    M[i, j] = max(M, X, Y)[i-1, j-1] + match[i-1, j-1]
    X[i, j] = max(max(M, Y)[i-1, j] + open_x[i-1], X[i-1, j] + gap_x[i-1])
    Y[i, j] = max(max(M, X)[i, j-1] + open_y[j-1], Y[i, j-1] + gap_y[j-1])

One program owns one pair. All nodes of an anti-diagonal d = i + j are independent; lane o is row i of a tile of BLOCK
rows, and tiles follow one another until the diagonal is done. Neighbours are other lanes, so three diagonals of M, X
and Y go through global rows used in turn, and one barrier a diagonal orders writes and reads. Sums keep the order of
the other backends, so ties fall alike. What limits it on a GPU: the N + M barriers of a pair; throughput comes from the
batch.
"""

import triton
import triton.language as tl

from .common import load_score


@triton.jit
def pick(b_value, b_code, b_other, code):
    """The larger of two values and where it came from; the first of equals."""
    better = b_other > b_value
    return tl.where(better, b_other, b_value), tl.where(better, code, b_code)


@triton.jit
def gap_scores(scores, stride, o_at, m_at, m_free, SEMIGLOBAL: tl.constexpr):
    """Gap scores of the positions o_at; 0 where a semiglobal end is free."""
    b_score = load_score(scores + o_at * stride, m_at)
    if SEMIGLOBAL:
        b_score = tl.where(m_at & m_free, 0.0, b_score)
    return b_score


@triton.jit
def best_kernel(
    match,  # (B, N, M)
    gap_x,  # (B, N), and so on; open_x and open_y None with linear gaps
    gap_y,
    open_x,
    open_y,
    x_lengths,  # (B,) or None
    y_lengths,
    rows,  # (B, 3, 3, N+1) scratch: diagonals in turn, states, rows
    codes,  # (B, N+1, M+1) scratch, uint8: 2 bits for each of M, X, Y
    ends,  # (B, N+1) scratch of local ends: best M of a row; None if not local
    places,  # (B, N+1) its column, int32
    path,  # (B, N+M) operations from the last to the first
    length,  # (B,) of path
    score,  # (B,)
    N,
    M,
    BAND,  # -1: none
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
    p_rows = rows + i_b * 9 * width
    p_codes = codes + i_b * width * (M + 1)
    p_match = match + i_b * stride_mb
    o_lane = tl.arange(0, BLOCK)

    for i_0 in range(0, b_n + 1, BLOCK):
        o = i_0 + o_lane
        m_row = o <= b_n
        b_nothing = tl.full([BLOCK], NEG_INF, match.dtype.element_ty)
        b_first = b_nothing if LOCAL else tl.where(o == 0, 0.0, b_nothing)
        for i_s in range(3):
            tl.store(p_rows + i_s * width + o, b_first if i_s == 0 else b_nothing, mask=m_row)
            tl.store(p_rows + (6 + i_s) * width + o, b_nothing, mask=m_row)
        if LOCAL:
            tl.store(ends + i_b * width + o, b_nothing, mask=m_row)
            tl.store(places + i_b * width + o, tl.zeros([BLOCK], tl.int32), mask=m_row)
    tl.debug_barrier()

    for i_d in range(1, b_n + b_m + 1):
        p_now = p_rows + i_d % 3 * 3 * width
        p_1 = p_rows + (i_d + 2) % 3 * 3 * width
        p_2 = p_rows + (i_d + 1) % 3 * 3 * width
        for i_0 in range(0, b_n + 1, BLOCK):
            o = i_0 + o_lane
            o_j = i_d - o
            m_in = (o <= b_n) & (o_j >= 0) & (o_j <= b_m) & (o_j - o >= b_low) & (o_j - o <= b_high)
            m_up, m_left = m_in & (o >= 1), m_in & (o_j >= 1)
            m_both = m_up & (o_j >= 1)

            b_M = tl.load(p_2 + o - 1, mask=m_both, other=NEG_INF)
            b_code = tl.zeros([BLOCK], tl.int32)
            if LOCAL:
                b_M, b_code = pick(tl.where(m_both, 0.0, b_M), b_code + 3, b_M, 0)
            b_M, b_code = pick(b_M, b_code, tl.load(p_2 + width + o - 1, mask=m_both, other=NEG_INF), 1)
            b_M, b_code = pick(b_M, b_code, tl.load(p_2 + 2 * width + o - 1, mask=m_both, other=NEG_INF), 2)
            o_cell = (o - 1).to(tl.int64) * stride_mn + o_j - 1
            b_M = b_M + load_score(p_match + o_cell, m_both)

            b_X = tl.load(p_1 + o - 1, mask=m_up, other=NEG_INF)
            b_same = tl.load(p_1 + width + o - 1, mask=m_up, other=NEG_INF)
            b_other = tl.load(p_1 + 2 * width + o - 1, mask=m_up, other=NEG_INF)
            m_free = (o_j == 0) | (o_j == b_m)
            b_gap = gap_scores(gap_x + i_b * stride_gxb, stride_gxn, o - 1, m_up, m_free, SEMIGLOBAL)
            b_from = tl.zeros([BLOCK], tl.int32)
            if open_x is None:
                b_X, b_from = pick(b_X, b_from, b_same, 1)
                b_X, b_from = pick(b_X, b_from, b_other, 2)
                b_X = b_X + b_gap
            else:
                b_open = gap_scores(open_x + i_b * stride_oxb, stride_oxn, o - 1, m_up, m_free, SEMIGLOBAL)
                b_X, b_from = pick(b_X, b_from, b_other, 2)
                b_X, b_from = pick(b_X + b_open, b_from, b_same + b_gap, 1)
            b_code = b_code | (b_from << 2)

            b_Y = tl.load(p_1 + o, mask=m_left, other=NEG_INF)
            b_other = tl.load(p_1 + width + o, mask=m_left, other=NEG_INF)
            b_same = tl.load(p_1 + 2 * width + o, mask=m_left, other=NEG_INF)
            m_free = (o == 0) | (o == b_n)
            b_gap = gap_scores(gap_y + i_b * stride_gyb, stride_gym, o_j - 1, m_left, m_free, SEMIGLOBAL)
            b_from = tl.zeros([BLOCK], tl.int32)
            b_Y, b_from = pick(b_Y, b_from, b_other, 1)
            if open_y is None:
                b_Y, b_from = pick(b_Y, b_from, b_same, 2)
                b_Y = b_Y + b_gap
            else:
                b_open = gap_scores(open_y + i_b * stride_oyb, stride_oym, o_j - 1, m_left, m_free, SEMIGLOBAL)
                b_Y, b_from = pick(b_Y + b_open, b_from, b_same + b_gap, 2)
            b_code = b_code | (b_from << 4)

            m_row = o <= b_n
            tl.store(p_now + o, b_M, mask=m_row)
            tl.store(p_now + width + o, b_X, mask=m_row)
            tl.store(p_now + 2 * width + o, b_Y, mask=m_row)
            tl.store(p_codes + o.to(tl.int64) * (M + 1) + o_j, b_code.to(tl.uint8), mask=m_in)
            if LOCAL:
                # A row meets each lane once a diagonal, so nobody else touches this entry.
                b_best = tl.load(ends + i_b * width + o, mask=m_both, other=NEG_INF)
                m_better = m_both & (b_M > b_best)
                tl.store(ends + i_b * width + o, b_M, mask=m_better)
                tl.store(places + i_b * width + o, o_j.to(tl.int32), mask=m_better)
        tl.debug_barrier()

    # The way back, one scalar step after the other.
    p_path = path + i_b * (N + M)
    i, j, op, k = b_n, b_m, i_b * 0, i_b * 0
    go = b_n + b_m > 0
    if LOCAL:
        b_best = tl.max(tl.full([BLOCK], 0.0, match.dtype.element_ty), axis=0)
        i_end = i_b * 0
        for i_r in range(1, b_n + 1):
            b_row = tl.load(ends + i_b * width + i_r)
            if b_row > b_best:
                b_best = b_row
                i_end = i_b * 0 + i_r
        i = i_end
        j = tl.load(places + i_b * width + i_end).to(tl.int64)
        j = tl.where(i_end > 0, j, 0)
        for _ in range(b_m - j):
            tl.store(p_path + k, 2)
            k += 1
        for _ in range(b_n - i):
            tl.store(p_path + k, 1)
            k += 1
        go = i_end > 0
    else:
        p_last = p_rows + (b_n + b_m) % 3 * 3 * width + b_n
        b_best = tl.load(p_last)
        b_X = tl.load(p_last + width)
        op = tl.where(b_X > b_best, op + 1, op)
        b_best = tl.maximum(b_best, b_X)
        b_Y = tl.load(p_last + 2 * width)
        op = tl.where(b_Y > b_best, op * 0 + 2, op)
        b_best = tl.maximum(b_best, b_Y)
        go = go & (b_best > NEG_INF)
    tl.store(score + i_b, b_best)
    while go:
        tl.store(p_path + k, op)
        k += 1
        b_code = tl.load(p_codes + i * (M + 1) + j).to(tl.int64)
        b_from = (b_code >> (2 * op)) & 3
        i -= tl.where(op == 2, 0, 1)
        j -= tl.where(op == 1, 0, 1)
        go = (i + j > 0) & (b_from < 3)
        op = b_from
    if LOCAL:
        for _ in range(j):
            tl.store(p_path + k, 2)
            k += 1
        for _ in range(i):
            tl.store(p_path + k, 1)
            k += 1
    tl.store(length + i_b, k)
