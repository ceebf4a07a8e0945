"""Kernels of labelled span trees: CKY over (max, +) and in log space, the best tree, and the outside pass.

    label[i, j]  = max_c or log sum_c exp  spans[i, j, c]
    cut[i, j]    = max_k or log sum_k exp (inside[i, k] + inside[k+1, j])
    inside[i, j] = cut[i, j] + label[i, j]
    P[i, j]      = sum over the spans above it of P[above] exp(inside[i, j] + inside[beside] - cut[above])

Charts are (N, N) by [width - 1, first word], so the spans of one width are neighbours: one program owns a sentence and
takes the widths in order, a vector of first words at a time. A span gathers from the larger ones above it rather than
adding to its parts, so no two lanes write one place: no atomics, the same bits in every run. The exponential in P is at
most 1 and sums to 1 over k.

What limits them on a GPU: N^2 / 2 dependent steps of two coalesced loads each, from L2; the labels are read once by a
program for each first word, at the speed of memory. Programs run side by side until registers run out.
"""

import triton
import triton.language as tl

from .common import finite, load_score, probability


@triton.jit
def span_label_kernel(
    spans,  # (B, N, N, L)
    lengths,  # (B,) or None
    label,  # (B, N, N) by [width - 1, first word], written at the spans of the sentence
    N,
    L,
    stride_b,
    stride_i,
    stride_j,
    LOG: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """One program a (sentence, first word): the labels of its spans summed, or their maximum."""
    i_b = tl.program_id(0).to(tl.int64)
    i_i = tl.program_id(1).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_l = tl.arange(0, BLOCK_L)
    NEG_INF: tl.constexpr = float("-inf")
    p_row = spans + i_b * stride_b + i_i * stride_i
    for i_j in range(i_i, b_len, BLOCK_J):
        o_j = i_j + tl.arange(0, BLOCK_J)
        m_j = o_j < b_len
        b_top = tl.full([BLOCK_J], NEG_INF, spans.dtype.element_ty)
        b_sum = tl.zeros([BLOCK_J], spans.dtype.element_ty)
        for i_l in range(0, L, BLOCK_L):
            m_tile = m_j[:, None] & (i_l + o_l < L)[None, :]
            b_x = load_score(p_row + o_j[:, None] * stride_j + i_l + o_l[None, :], m_tile)
            b_new = tl.maximum(b_top, tl.max(b_x, axis=1))
            if LOG:
                b_safe = finite(b_new)
                b_sum = b_sum * tl.exp(b_top - b_safe) + tl.sum(tl.exp(b_x - b_safe[:, None]), axis=1)
            b_top = b_new
        if LOG:
            b_top += tl.log(b_sum)
        tl.store(label + (i_b * N + o_j - i_i) * N + i_i, b_top, mask=m_j)


@triton.jit
def span_inside_kernel(
    label,  # (B, N, N), from span_label_kernel
    lengths,  # (B,) or None
    inside,  # (B, N, N), written
    cut,  # (B, N, N), written where LOG and the span has two words or more
    total,  # (B,), written
    N,
    LOG: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_lane = tl.arange(0, BLOCK_I)
    NEG_INF: tl.constexpr = float("-inf")
    p_label = label + i_b * N * N
    p_inside = inside + i_b * N * N
    p_cut = cut + i_b * N * N
    for i_i in range(0, b_len, BLOCK_I):
        o_i = i_i + o_lane
        m_i = o_i < b_len
        tl.store(p_inside + o_i, tl.load(p_label + o_i, mask=m_i, other=NEG_INF), mask=m_i)
    for i_w in range(2, b_len + 1):
        tl.debug_barrier()  # orders the stores of smaller widths before these loads
        for i_i in range(0, b_len - i_w + 1, BLOCK_I):
            o_i = i_i + o_lane
            m_i = o_i < b_len - i_w + 1
            b_top = tl.full([BLOCK_I], NEG_INF, label.dtype.element_ty)
            b_sum = tl.zeros([BLOCK_I], label.dtype.element_ty)
            for i_u in range(1, i_w):
                b_x = tl.load(p_inside + (i_u - 1) * N + o_i, mask=m_i, other=NEG_INF)
                b_x += tl.load(p_inside + (i_w - i_u - 1) * N + o_i + i_u, mask=m_i, other=NEG_INF)
                b_new = tl.maximum(b_top, b_x)
                if LOG:
                    b_safe = finite(b_new)
                    b_sum = b_sum * tl.exp(b_top - b_safe) + tl.exp(b_x - b_safe)
                b_top = b_new
            if LOG:
                b_top += tl.log(b_sum)
                tl.store(p_cut + (i_w - 1) * N + o_i, b_top, mask=m_i)
            b_label = tl.load(p_label + (i_w - 1) * N + o_i, mask=m_i, other=NEG_INF)
            tl.store(p_inside + (i_w - 1) * N + o_i, b_top + b_label, mask=m_i)
    tl.debug_barrier()
    b_total = tl.load(p_inside + tl.maximum(b_len - 1, 0) * N, mask=b_len > 0, other=0.0)
    tl.store(total + i_b, b_total)


@triton.jit
def span_trace_kernel(
    spans,  # (B, N, N, L)
    lengths,  # (B,) or None
    inside,  # (B, N, N), from span_inside_kernel without LOG
    stack,  # (B, N) scratch
    labels,  # (B, N, N) filled with the padding label
    N,
    L,
    stride_b,
    stride_i,
    stride_j,
    BLOCK_U: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """The best tree from the whole down: label and cut of each span are found again, the lowest of equals.

    Limit on a GPU: 2N - 1 dependent steps a sentence, each with two reductions.
    """
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_u = tl.arange(0, BLOCK_U)
    o_l = tl.arange(0, BLOCK_L)
    NEG_INF: tl.constexpr = float("-inf")
    p_inside = inside + i_b * N * N
    p_stack = stack + i_b * N
    b_best = tl.load(p_inside + tl.maximum(b_len - 1, 0) * N, mask=b_len > 0, other=NEG_INF)
    b_steps = tl.where(b_best > NEG_INF, 2 * b_len - 1, 0)
    b_depth = b_len * 0
    b_first = b_len * 0
    b_width = b_len
    for _ in range(b_steps):
        p_row = spans + i_b * stride_b + b_first * stride_i + (b_first + b_width - 1) * stride_j
        b_top = tl.full([], NEG_INF, spans.dtype.element_ty)
        b_label = tl.full([], 0, tl.int32)
        for i_l in range(0, L, BLOCK_L):
            b_x = load_score(p_row + i_l + o_l, i_l + o_l < L)
            b_value, b_index = tl.max(b_x, axis=0, return_indices=True)
            b_label = tl.where(b_value > b_top, b_index + i_l, b_label)
            b_top = tl.maximum(b_top, b_value)
        tl.store(labels + (i_b * N + b_first) * N + b_first + b_width - 1, b_label.to(tl.int64))
        b_most = tl.full([], NEG_INF, spans.dtype.element_ty)
        b_cut = b_len * 0 + 1
        for i_u in range(1, b_width, BLOCK_U):
            m_u = i_u + o_u < b_width
            b_x = tl.load(p_inside + (i_u + o_u - 1) * N + b_first, mask=m_u, other=NEG_INF)
            b_x += tl.load(p_inside + (b_width - i_u - o_u - 1) * N + b_first + i_u + o_u, mask=m_u, other=NEG_INF)
            b_value, b_index = tl.max(b_x, axis=0, return_indices=True)
            b_cut = tl.where(b_value > b_most, i_u + b_index, b_cut)
            b_most = tl.maximum(b_most, b_value)
        # The right part waits; a single word is done and takes the last one that waits.
        if b_width > 1:
            tl.store(p_stack + b_depth, (b_first + b_cut) * (N + 1) + b_width - b_cut)
            b_depth += 1
            b_width = b_cut
        else:
            b_depth -= 1
            tl.debug_barrier()
            b_next = tl.load(p_stack + tl.maximum(b_depth, 0), mask=b_depth >= 0, other=0)
            b_first = b_next // (N + 1)
            b_width = b_next % (N + 1)
            tl.debug_barrier()


@triton.jit
def span_outside_kernel(
    inside,  # (B, N, N), from span_inside_kernel with LOG
    cut,  # (B, N, N), from span_inside_kernel
    lengths,  # (B,) or None
    log_z,  # (B,)
    grad,  # (B,)
    share,  # (B, N, N), written at the spans of the sentence
    N,
    BLOCK_I: tl.constexpr,
):
    """P of every span, times grad; a row without outputs takes no gradient, whatever the incoming one holds."""
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_lane = tl.arange(0, BLOCK_I)
    NEG_INF: tl.constexpr = float("-inf")
    p_inside = inside + i_b * N * N
    p_cut = cut + i_b * N * N
    p_share = share + i_b * N * N
    b_grad = tl.where(tl.load(log_z + i_b) != NEG_INF, tl.load(grad + i_b), 0.0)
    tl.store(p_share + tl.maximum(b_len - 1, 0) * N, b_grad, mask=b_len > 0)
    for i_step in range(1, b_len):
        tl.debug_barrier()  # orders the stores of larger widths before these loads
        i_w = b_len - i_step
        for i_i in range(0, i_step + 1, BLOCK_I):
            o_i = i_i + o_lane
            m_i = o_i <= i_step
            b_here = tl.load(p_inside + (i_w - 1) * N + o_i, mask=m_i, other=NEG_INF)
            b_share = tl.zeros([BLOCK_I], inside.dtype.element_ty)
            for i_above in range(i_w + 1, b_len + 1):
                i_beside = i_above - i_w
                p_above = (i_above - 1) * N + o_i
                m_left = o_i <= b_len - i_above
                b_x = b_here + tl.load(p_inside + (i_beside - 1) * N + o_i + i_w, mask=m_left, other=NEG_INF)
                b_x -= finite(tl.load(p_cut + p_above, mask=m_left, other=0.0))
                b_share += probability(b_x) * tl.load(p_share + p_above, mask=m_left, other=0.0)
                m_right = m_i & (o_i >= i_beside)
                b_x = b_here + tl.load(p_inside + (i_beside - 1) * N + o_i - i_beside, mask=m_right, other=NEG_INF)
                b_x -= finite(tl.load(p_cut + p_above - i_beside, mask=m_right, other=0.0))
                b_share += probability(b_x) * tl.load(p_share + p_above - i_beside, mask=m_right, other=0.0)
            tl.store(p_share + (i_w - 1) * N + o_i, b_share, mask=m_i)


@triton.jit
def span_gradient_kernel(
    spans,  # (B, N, N, L)
    lengths,  # (B,) or None
    label,  # (B, N, N), from span_label_kernel with LOG
    share,  # (B, N, N), from span_outside_kernel
    d_spans,  # (B, N, N, L), written in full
    N,
    L,
    stride_b,
    stride_i,
    stride_j,
    BLOCK_J: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """One program a (sentence, first word): P[i, j] exp(spans[i, j, c] - label[i, j]), 0 where there is no span."""
    i_b = tl.program_id(0).to(tl.int64)
    i_i = tl.program_id(1).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_l = tl.arange(0, BLOCK_L)
    p_row = spans + i_b * stride_b + i_i * stride_i
    p_out = d_spans + (i_b * N + i_i) * N * L
    for i_j in range(0, N, BLOCK_J):
        o_j = i_j + tl.arange(0, BLOCK_J).to(tl.int64)
        m_span = (o_j >= i_i) & (o_j < b_len)
        p_chart = (i_b * N + o_j - i_i) * N + i_i
        b_share = tl.load(share + p_chart, mask=m_span, other=0.0)
        b_label = finite(tl.load(label + p_chart, mask=m_span, other=0.0))
        for i_l in range(0, L, BLOCK_L):
            m_l = i_l + o_l < L
            m_tile = m_span[:, None] & m_l[None, :]
            b_x = load_score(p_row + o_j[:, None] * stride_j + i_l + o_l[None, :], m_tile)
            b_out = b_share[:, None] * probability(b_x - b_label[:, None])
            tl.store(p_out + o_j[:, None] * L + i_l + o_l[None, :], b_out, mask=(o_j < N)[:, None] & m_l[None, :])
