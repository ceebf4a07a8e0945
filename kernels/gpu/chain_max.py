"""Max-semiring kernels of the linear chain: best labelling and k best labellings.

    alpha[0, c] = start[c] + unary[0, c]
    alpha[t, c] = max_p (alpha[t-1, p] + transition[t-1, p, c]) + unary[t, c]

One program owns one sequence and walks its positions in order. The C x C candidates of a step form tiles of
(BLOCK_P predecessors, BLOCK_C states). When one tile holds them all, alpha stays in registers and a shared transition
is read once. Otherwise alpha goes through two global rows used in turn, so that one barrier a step orders writes and
reads.

Additions keep the order written above, and equal candidates keep the lowest predecessor: ties fall as in the other
backends. Columns beyond C hold -inf, which never wins against a real candidate.

What limits them on a GPU: the N dependent steps of a sequence (a reduction, a layout change and their barriers each),
until C^2 words of transition a step, from L2 if shared and tiled, from memory if not shared, take longer. Programs
run side by side until registers run out (`resources.csv`), so throughput comes from the batch.
"""

import triton
import triton.language as tl

from .common import load_score, within


@triton.jit
def viterbi_kernel(
    unary,  # (B, N, C)
    transition,  # (C, C) if SHARED, else (B, N-1, C, C)
    start,  # (C,) or None
    end,  # (C,) or None
    lengths,  # (B,) or None
    rows,  # (B, 2, C) scratch; None when one tile holds a step
    pointers,  # (B, N, C) scratch: best predecessor of every state
    labels,  # (B, N) filled with the padding label
    score,  # (B,)
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
    p_unary = unary + i_b * stride_ub + o_c
    p_transition = transition + i_b * stride_tb
    o_tile = o_p[:, None] * C + o_c[None, :]  # within a tile, so 32 bits hold it
    p_pointers = pointers + i_b * N * C
    NEG_INF: tl.constexpr = float("-inf")

    b_alpha = load_score(p_unary, within(o_c, C, b_len > 0))
    if start is not None:
        b_alpha = load_score(start + o_c, m_c) + b_alpha
    # The unary row of the next step is fetched one step early: its latency would otherwise add to every step.
    b_unary = load_score(p_unary + stride_un, within(o_c, C, b_len > 1))
    if BLOCK_P < BLOCK_C:
        p_rows = rows + i_b * 2 * C
        tl.store(p_rows + o_c, b_alpha, mask=m_c)
        tl.debug_barrier()
    elif SHARED:
        b_transition = load_score(p_transition + o_tile, (o_p[:, None] < C) & m_c[None, :])

    for i_t in range(1, b_len):
        if BLOCK_P >= BLOCK_C:
            if not SHARED:
                p_tile = p_transition + (i_t - 1) * stride_tn
                b_transition = load_score(p_tile + o_tile, (o_p[:, None] < C) & m_c[None, :])
            b_best, b_from = tl.max(b_alpha[:, None] + b_transition, axis=0, return_indices=True)
        else:
            b_best = tl.full([BLOCK_C], NEG_INF, b_alpha.dtype)
            b_from = tl.zeros([BLOCK_C], tl.int32)
            p_row = p_rows + (i_t - 1) % 2 * C
            for i_p in range(0, C, BLOCK_P):
                m_p = i_p + o_p < C
                b_row = tl.load(p_row + i_p + o_p, mask=m_p, other=NEG_INF)
                p_tile = p_transition + (i_t - 1) * stride_tn + tl.cast(i_p, tl.int64) * C
                b_tile = load_score(p_tile + o_tile, m_p[:, None] & m_c[None, :])
                b_value, b_index = tl.max(b_row[:, None] + b_tile, axis=0, return_indices=True)
                b_from = tl.where(b_value > b_best, b_index + i_p, b_from)
                b_best = tl.maximum(b_value, b_best)
        b_alpha = b_best + b_unary
        b_unary = load_score(p_unary + (i_t + 1) * stride_un, within(o_c, C, i_t + 1 < b_len))
        tl.store(p_pointers + i_t * C + o_c, b_from.to(pointers.dtype.element_ty), mask=m_c)
        if BLOCK_P < BLOCK_C:
            tl.store(p_rows + i_t % 2 * C + o_c, b_alpha, mask=m_c)
            tl.debug_barrier()

    if end is not None:
        b_alpha += load_score(end + o_c, m_c)
    b_score, b_label = tl.max(b_alpha, axis=0, return_indices=True)
    tl.store(score + i_b, tl.where(b_len > 0, b_score, 0.0))
    if b_score > NEG_INF:
        tl.debug_barrier()  # pointers written by other threads of this program are read from here on
        p_labels = labels + i_b * N
        tl.store(p_labels + b_len - 1, b_label.to(tl.int64))
        for i_step in range(1, b_len):
            b_label = tl.load(p_pointers + (b_len - i_step) * C + b_label).to(tl.int32)
            tl.store(p_labels + b_len - i_step - 1, b_label.to(tl.int64))


@triton.jit
def kbest_kernel(
    unary,  # (B, N, C)
    transition,  # (C, C) if SHARED, else (B, N-1, C, C)
    start,  # (C,) or None
    end,  # (C,) or None
    lengths,  # (B,) or None
    rows,  # (B, 2, K, C) scratch: the K best scores of every state, best first
    pointers,  # (B, N, K, C) scratch: predecessor * K + its rank
    labels,  # (K, B, N) filled with the padding label
    scores,  # (K, B)
    B,
    N,
    C,
    K,
    stride_ub,
    stride_un,
    stride_tb,
    stride_tn,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """K rounds a step; each takes, for every state, the first candidate after the last one taken.

    Candidates are ordered by falling score, then by predecessor * K + rank. The candidate of rank r of a predecessor
    has r others of it in front, so round j looks at ranks 0..j only: K (K + 1) / 2 passes over C^2 candidates a step,
    nothing to keep between rounds but the last one taken, any C and K.
    """
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_c = tl.arange(0, BLOCK_C)
    o_p = tl.arange(0, BLOCK_P)
    o_k = tl.arange(0, BLOCK_K)
    m_c = o_c < C
    p_unary = unary + i_b * stride_ub + o_c
    p_transition = transition + i_b * stride_tb
    o_tile = o_p[:, None] * C + o_c[None, :]  # within a tile, so 32 bits hold it
    p_rows = rows + i_b * 2 * K * C
    p_pointers = pointers + i_b * N * K * C
    NEG_INF: tl.constexpr = float("-inf")
    LAST: tl.constexpr = 2147483647

    b_alpha = load_score(p_unary, within(o_c, C, b_len > 0))
    if start is not None:
        b_alpha = load_score(start + o_c, m_c) + b_alpha
    tl.store(p_rows + o_c, b_alpha, mask=m_c)
    for i_k in range(1, K):
        tl.store(p_rows + i_k * C + o_c, tl.full([BLOCK_C], NEG_INF, b_alpha.dtype), mask=m_c)
    tl.debug_barrier()

    for i_t in range(1, b_len):
        b_unary = load_score(p_unary + i_t * stride_un, m_c)
        p_old = p_rows + (i_t - 1) % 2 * K * C
        p_new = p_rows + i_t % 2 * K * C
        b_taken = tl.full([BLOCK_C], float("inf"), b_alpha.dtype)
        b_taken_from = tl.full([BLOCK_C], -1, tl.int32)
        for i_k in range(K):
            b_best = tl.full([BLOCK_C], NEG_INF, b_alpha.dtype)
            b_from = tl.full([BLOCK_C], LAST, tl.int32)
            for i_p in range(0, C, BLOCK_P):
                m_p = i_p + o_p < C
                p_tile = p_transition + (i_t - 1) * stride_tn + tl.cast(i_p, tl.int64) * C
                b_tile = load_score(p_tile + o_tile, m_p[:, None] & m_c[None, :])
                for i_r in range(i_k + 1):
                    b_row = tl.load(p_old + i_r * C + i_p + o_p, mask=m_p, other=NEG_INF)
                    b_next = b_row[:, None] + b_tile
                    o_next = ((i_p + o_p) * K + i_r)[:, None]
                    m_tied = (b_next == b_taken[None, :]) & (o_next > b_taken_from[None, :])
                    b_next = tl.where((b_next < b_taken[None, :]) | m_tied, b_next, NEG_INF)
                    b_value, b_index = tl.max(b_next, axis=0, return_indices=True)
                    b_index = (b_index + i_p) * K + i_r
                    m_better = (b_value > b_best) | ((b_value == b_best) & (b_index < b_from))
                    b_from = tl.where(m_better, b_index, b_from)
                    b_best = tl.maximum(b_value, b_best)
            b_taken = b_best
            b_taken_from = b_from
            tl.store(p_new + i_k * C + o_c, b_best + b_unary, mask=m_c)
            tl.store(p_pointers + (i_t * K + i_k) * C + o_c, b_from, mask=m_c)
        tl.debug_barrier()

    b_end = tl.zeros([BLOCK_C], b_alpha.dtype)
    if end is not None:
        b_end = load_score(end + o_c, m_c)
    p_last = p_rows + tl.maximum(b_len - 1, 0) % 2 * K * C
    b_scores = tl.full([BLOCK_K], NEG_INF, b_alpha.dtype)
    o_flat = tl.zeros([BLOCK_K], tl.int32)
    b_last = tl.full([], float("inf"), b_alpha.dtype)
    b_last_from = tl.full([], -1, tl.int32)
    for i_k in range(K):
        b_best = tl.full([], NEG_INF, b_alpha.dtype)
        b_from = tl.full([], LAST, tl.int32)
        for i_r in range(i_k + 1):
            b_next = tl.load(p_last + i_r * C + o_c, mask=m_c, other=NEG_INF) + b_end
            m_tied = (b_next == b_last) & (o_c * K + i_r > b_last_from)
            b_value, b_index = tl.max(tl.where((b_next < b_last) | m_tied, b_next, NEG_INF), 0, return_indices=True)
            b_index = b_index * K + i_r
            m_better = (b_value > b_best) | ((b_value == b_best) & (b_index < b_from))
            b_from = tl.where(m_better, b_index, b_from)
            b_best = tl.maximum(b_value, b_best)
        b_last = b_best
        b_last_from = b_from
        b_scores = tl.where(o_k == i_k, b_best, b_scores)
        o_flat = tl.where(o_k == i_k, b_from, o_flat)
    # The empty sequence has one output, of score 0.
    b_scores = tl.where(within(o_k, 1, b_len == 0), 0.0, b_scores)
    tl.store(scores + o_k.to(tl.int64) * B + i_b, b_scores, mask=o_k < K)

    m_k = b_scores > NEG_INF
    p_labels = labels + (o_k.to(tl.int64) * B + i_b) * N
    for i_step in range(1, b_len + 1):
        i_t = b_len - i_step
        b_label = o_flat // K
        tl.store(p_labels + i_t, b_label.to(tl.int64), mask=m_k)
        o_flat = tl.load(p_pointers + (i_t * K + o_flat % K) * C + b_label, mask=m_k & within(o_k, K, i_t > 0), other=0)
