"""Max-semiring kernels of the semi-Markov chain: best segmentation and k best segmentations.

    message[0, c] = 0,   message[t, c] = max_p (ending[t, p] + transition[p, c])
    ending[t, c]  = max_w (message[t-w-1, c] + segments[t-w-1, w, c])

One program owns one sequence and walks its positions in order. Messages go through global rows, ordered by a barrier a
step, since a step reads the last W of them: tiles of (BLOCK_W widths, BLOCK_C labels). The labels' maximum is the
chain's step, over tiles of (BLOCK_P labels before, BLOCK_C labels); when one tile holds it, `ending` stays in registers
and a shared transition is read once.

Additions keep the order written above, and equal candidates keep the smallest width and the lowest label: ties fall as
in the other backends.

What limits them on a GPU: the N dependent steps of a sequence (two reductions, a layout change and a barrier each),
until the W C words of segments a step, read once and one step early where one tile holds them, take longer.
"""

import triton
import triton.language as tl

from .common import load_score, within


@triton.jit
def semimarkov_viterbi_kernel(
    segments,  # (B, N, W, C)
    transition,  # (C, C) if SHARED, else (B, N-1, C, C)
    lengths,  # (B,) or None
    message,  # (B, N, C) scratch
    rows,  # (B, C) scratch; None when one tile holds a step
    widths,  # (B, N, C) scratch: best width of a segment that ends at a position
    pointers,  # (B, N, C) scratch: best label before a segment that starts at a position
    codes,  # (B, N) filled with the padding label
    score,  # (B,)
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
    p_message = message + i_b * N * C
    p_widths = widths + i_b * N * C
    p_pointers = pointers + i_b * N * C
    NEG_INF: tl.constexpr = float("-inf")

    tl.store(p_message + o_c, tl.zeros([BLOCK_C], message.dtype.element_ty), mask=within(o_c, C, b_len > 0))
    if BLOCK_P >= BLOCK_C and SHARED:
        b_transition = load_score(p_transition + o_tile, (o_p[:, None] < C) & m_c[None, :])
    if WHOLE:
        # Only width 1 ends at position 0. From here on a step's segments are fetched one step early.
        m_tile = (o_w[:, None] < tl.minimum(b_len, 1)) & m_c[None, :]
        b_segments = load_score(p_segments + o_w[:, None] * 0, m_tile)
    b_ending = tl.full([BLOCK_C], NEG_INF, segments.dtype.element_ty)
    tl.debug_barrier()

    for i_t in range(1, b_len + 1):
        b_ending = tl.full([BLOCK_C], NEG_INF, segments.dtype.element_ty)
        b_width = tl.zeros([BLOCK_C], tl.int32)
        for i_w in range(0, W, BLOCK_W):
            o_start = i_t - 1 - i_w - o_w
            m_tile = ((i_w + o_w < W) & (o_start >= 0))[:, None] & m_c[None, :]
            if not WHOLE:
                p_tile = p_segments + (o_start * stride_sn + (i_w + o_w).to(tl.int64) * stride_sw)[:, None]
                b_segments = load_score(p_tile, m_tile)
            b_message = tl.load(p_message + o_start[:, None] * C + o_c[None, :], mask=m_tile, other=NEG_INF)
            b_value, b_index = tl.max(b_message + b_segments, axis=0, return_indices=True)
            b_width = tl.where(b_value > b_ending, b_index + i_w, b_width)
            b_ending = tl.maximum(b_value, b_ending)
        if WHOLE:
            o_start = i_t - o_w
            m_tile = ((o_w < W) & (o_start >= 0) & (o_start < b_len - o_w))[:, None] & m_c[None, :]
            p_tile = p_segments + (o_start * stride_sn + o_w.to(tl.int64) * stride_sw)[:, None]
            b_segments = load_score(p_tile, m_tile)
        tl.store(p_widths + (i_t - 1) * C + o_c, b_width.to(widths.dtype.element_ty), mask=m_c)
        if i_t < b_len:
            if BLOCK_P >= BLOCK_C:
                if not SHARED:
                    p_matrix = p_transition + (i_t - 1) * stride_tn
                    b_transition = load_score(p_matrix + o_tile, (o_p[:, None] < C) & m_c[None, :])
                b_best, b_from = tl.max(b_ending[:, None] + b_transition, axis=0, return_indices=True)
            else:
                tl.store(rows + i_b * C + o_c, b_ending, mask=m_c)
                tl.debug_barrier()
                b_best = tl.full([BLOCK_C], NEG_INF, b_ending.dtype)
                b_from = tl.zeros([BLOCK_C], tl.int32)
                for i_p in range(0, C, BLOCK_P):
                    m_p = i_p + o_p < C
                    b_row = tl.load(rows + i_b * C + i_p + o_p, mask=m_p, other=NEG_INF)
                    p_matrix = p_transition + (i_t - 1) * stride_tn + tl.cast(i_p, tl.int64) * C
                    b_tile = load_score(p_matrix + o_tile, m_p[:, None] & m_c[None, :])
                    b_value, b_index = tl.max(b_row[:, None] + b_tile, axis=0, return_indices=True)
                    b_from = tl.where(b_value > b_best, b_index + i_p, b_from)
                    b_best = tl.maximum(b_value, b_best)
            tl.store(p_message + i_t * C + o_c, b_best, mask=m_c)
            tl.store(p_pointers + i_t * C + o_c, b_from.to(pointers.dtype.element_ty), mask=m_c)
        tl.debug_barrier()

    b_score, b_label = tl.max(b_ending, axis=0, return_indices=True)
    tl.store(score + i_b, tl.where(b_len > 0, b_score, 0.0))
    if b_score > NEG_INF:
        p_codes = codes + i_b * N
        for i_t in range(0, b_len, BLOCK_C):
            tl.store(p_codes + i_t + o_c, tl.full([BLOCK_C], -1, tl.int64), mask=i_t + o_c < b_len)
        tl.debug_barrier()
        i_end = b_len
        while i_end > 0:
            b_width = tl.load(p_widths + (i_end - 1) * C + b_label).to(tl.int32)
            i_end -= b_width + 1
            tl.store(p_codes + i_end, b_width.to(tl.int64) * C + b_label)
            b_label = tl.load(p_pointers + i_end * C + b_label, mask=i_end > 0, other=0).to(tl.int32)


@triton.jit
def after(b_taken, b_taken_from, b_best, b_from, b_next, i_first, i_rank, o, K):
    """The better of (b_best, b_from) and the first of a tile's candidates b_next that comes after the last one taken.

    Candidates are ordered by falling score, then by index * K + rank; row i of the tile has the index i_first + i.
    """
    m_tied = (b_next == b_taken[None, :]) & (((i_first + o) * K + i_rank)[:, None] > b_taken_from[None, :])
    b_next = tl.where((b_next < b_taken[None, :]) | m_tied, b_next, float("-inf"))
    b_value, b_index = tl.max(b_next, axis=0, return_indices=True)
    b_index = (b_index + i_first) * K + i_rank
    m_better = (b_value > b_best) | ((b_value == b_best) & (b_index < b_from))
    return tl.maximum(b_value, b_best), tl.where(m_better, b_index, b_from)


@triton.jit
def semimarkov_kbest_kernel(
    segments,  # (B, N, W, C)
    transition,  # (C, C) with stride_tb = stride_tn = 0, or (B, N-1, C, C)
    lengths,  # (B,) or None
    message,  # (B, N, K, C) scratch: the K best of every label, best first
    ending,  # (B, K, C) scratch, likewise
    widths,  # (B, N, K, C) scratch: width * K + rank
    pointers,  # (B, N, K, C) scratch: label before * K + its rank
    codes,  # (K, B, N) filled with the padding label
    scores,  # (K, B)
    B,
    N,
    W,
    C,
    K,
    stride_sb,
    stride_sn,
    stride_sw,
    stride_tb,
    stride_tn,
    BLOCK_W: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """K rounds for each maximum; each takes, for every label, the first candidate after the last one taken.

    As for the linear chain, round j looks at ranks 0..j only: K (K + 1) / 2 passes over C (C + W) candidates a step,
    nothing to keep between rounds but the last one taken, any C, W and K.
    """
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_w = tl.arange(0, BLOCK_W)
    o_c = tl.arange(0, BLOCK_C)
    o_p = tl.arange(0, BLOCK_P)
    o_k = tl.arange(0, BLOCK_K)
    m_c = o_c < C
    p_segments = segments + i_b * stride_sb + o_c[None, :]
    p_transition = transition + i_b * stride_tb
    o_tile = o_p[:, None] * C + o_c[None, :]  # within a tile, so 32 bits hold it
    p_message = message + i_b * N * K * C
    p_ending = ending + i_b * K * C
    p_widths = widths + i_b * N * K * C
    p_pointers = pointers + i_b * N * K * C
    NEG_INF: tl.constexpr = float("-inf")
    LAST: tl.constexpr = 2147483647
    dtype = segments.dtype.element_ty

    tl.store(p_message + o_c, tl.zeros([BLOCK_C], dtype), mask=within(o_c, C, b_len > 0))
    for i_k in range(1, K):
        tl.store(p_message + i_k * C + o_c, tl.full([BLOCK_C], NEG_INF, dtype), mask=within(o_c, C, b_len > 0))
    tl.debug_barrier()

    for i_t in range(1, b_len + 1):
        b_taken = tl.full([BLOCK_C], float("inf"), dtype)
        b_taken_from = tl.full([BLOCK_C], -1, tl.int32)
        for i_k in range(K):
            b_best = tl.full([BLOCK_C], NEG_INF, dtype)
            b_from = tl.full([BLOCK_C], LAST, tl.int32)
            for i_w in range(0, W, BLOCK_W):
                o_start = i_t - 1 - i_w - o_w
                m_tile = ((i_w + o_w < W) & (o_start >= 0))[:, None] & m_c[None, :]
                p_tile = p_segments + (o_start * stride_sn + (i_w + o_w).to(tl.int64) * stride_sw)[:, None]
                b_segments = load_score(p_tile, m_tile)
                for i_r in range(i_k + 1):
                    o_row = (o_start * K + i_r)[:, None] * C + o_c[None, :]
                    b_next = tl.load(p_message + o_row, mask=m_tile, other=NEG_INF) + b_segments
                    b_best, b_from = after(b_taken, b_taken_from, b_best, b_from, b_next, i_w, i_r, o_w, K)
            b_taken = b_best
            b_taken_from = b_from
            tl.store(p_ending + i_k * C + o_c, b_best, mask=m_c)
            tl.store(p_widths + ((i_t - 1) * K + i_k) * C + o_c, b_from, mask=m_c)
        tl.debug_barrier()
        if i_t < b_len:
            b_taken = tl.full([BLOCK_C], float("inf"), dtype)
            b_taken_from = tl.full([BLOCK_C], -1, tl.int32)
            for i_k in range(K):
                b_best = tl.full([BLOCK_C], NEG_INF, dtype)
                b_from = tl.full([BLOCK_C], LAST, tl.int32)
                for i_p in range(0, C, BLOCK_P):
                    m_p = i_p + o_p < C
                    p_matrix = p_transition + (i_t - 1) * stride_tn + tl.cast(i_p, tl.int64) * C
                    b_tile = load_score(p_matrix + o_tile, m_p[:, None] & m_c[None, :])
                    for i_r in range(i_k + 1):
                        b_row = tl.load(p_ending + i_r * C + i_p + o_p, mask=m_p, other=NEG_INF)
                        b_next = b_row[:, None] + b_tile
                        b_best, b_from = after(b_taken, b_taken_from, b_best, b_from, b_next, i_p, i_r, o_p, K)
                b_taken = b_best
                b_taken_from = b_from
                tl.store(p_message + (i_t * K + i_k) * C + o_c, b_best, mask=m_c)
                tl.store(p_pointers + (i_t * K + i_k) * C + o_c, b_from, mask=m_c)
            tl.debug_barrier()

    b_scores = tl.full([BLOCK_K], NEG_INF, dtype)
    o_flat = tl.zeros([BLOCK_K], tl.int32)
    b_last = tl.full([], float("inf"), dtype)
    b_last_from = tl.full([], -1, tl.int32)
    for i_k in range(K):
        b_best = tl.full([], NEG_INF, dtype)
        b_from = tl.full([], LAST, tl.int32)
        for i_r in range(i_k + 1):
            b_next = tl.load(p_ending + i_r * C + o_c, mask=within(o_c, C, b_len > 0), other=NEG_INF)
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
    m_k = b_scores > NEG_INF
    # The empty sequence has one output, of score 0.
    b_scores = tl.where(within(o_k, 1, b_len == 0), 0.0, b_scores)
    tl.store(scores + o_k.to(tl.int64) * B + i_b, b_scores, mask=o_k < K)

    p_codes = codes + (o_k.to(tl.int64) * B + i_b) * N
    for i_t in range(b_len):
        tl.store(p_codes + i_t, tl.full([BLOCK_K], -1, tl.int64), mask=m_k)
    tl.debug_barrier()
    b_end = tl.where(m_k, b_len, 0)
    while tl.max(b_end, axis=0) > 0:
        m_open = b_end > 0
        b_label = o_flat // K
        b_from = tl.load(p_widths + ((b_end - 1) * K + o_flat % K) * C + b_label, mask=m_open, other=0)
        b_end = tl.where(m_open, b_end - 1 - b_from // K, 0)
        tl.store(p_codes + b_end, (b_from // K).to(tl.int64) * C + b_label, mask=m_open)
        p_from = p_pointers + (b_end * K + b_from % K) * C + b_label
        o_flat = tl.load(p_from, mask=m_open & (b_end > 0), other=0)
