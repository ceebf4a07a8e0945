"""Outside pass of weighted grammars, width by width from the top; `grammar_kernels` states the recurrence."""

import triton
import triton.language as tl

from .common import finite, load_score, probability


@triton.jit
def grammar_gate_kernel(
    share,  # (B, N, N, S): P
    raw,  # (B, N, N, NT)
    rules,  # (R,) with stride_r = 0, or (B, R)
    lengths,  # (B,) or None
    pair_start,  # (Q + 1,)
    pair_rules,  # (R,)
    pair_parents,  # (R,)
    gates,  # (B, N, Q), written for the spans of this width: g
    N,
    S,
    Q,
    NT,
    width,
    most,  # rules that a pair has at most
    stride_r,
    BLOCK_Q: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    i_i = tl.program_id(1).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_q = tl.program_id(2) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    NEG_INF: tl.constexpr = float("-inf")
    if i_i + width <= b_len:
        m_q = o_q < Q
        i_cell = (i_b * N + width - 1) * N + i_i
        b_begin = tl.load(pair_start + o_q, mask=m_q, other=0)
        b_count = tl.load(pair_start + o_q + 1, mask=m_q, other=0) - b_begin
        b_top = tl.full([BLOCK_Q], NEG_INF, share.dtype.element_ty)
        b_sum = tl.zeros([BLOCK_Q], share.dtype.element_ty)
        for i_t in range(most):
            m_t = b_count > i_t
            b_parent = tl.load(pair_parents + b_begin + i_t, mask=m_t, other=0)
            b_rule = tl.load(pair_rules + b_begin + i_t, mask=m_t, other=0)
            b_x = tl.log(tl.load(share + i_cell * S + b_parent, mask=m_t, other=0.0))
            b_x += load_score(rules + i_b * stride_r + b_rule, m_t)
            b_x -= finite(tl.load(raw + i_cell * NT + b_parent, mask=m_t, other=0.0))
            b_new = tl.maximum(b_top, b_x)
            b_safe = finite(b_new)
            b_sum = b_sum * tl.exp(b_top - b_safe) + tl.exp(b_x - b_safe)
            b_top = b_new
        tl.store(gates + (i_b * N + i_i) * Q + o_q, b_top + tl.log(b_sum), mask=m_q)


@triton.jit
def grammar_child_kernel(
    chart,  # (B, N, N, S): a
    gates,  # (B, N, Q), of this width
    lengths,  # (B,) or None
    left_start,  # (S + 1,): pairs by their left child
    pair_right,  # (Q,)
    right_start,  # (S + 1,): right_pairs by their right child
    right_pairs,  # (Q,)
    pair_left,  # (Q,)
    share,  # (B, N, N, S): P, added to at smaller widths
    N,
    S,
    Q,
    width,
    most_left,  # pairs that a left child has at most
    most_right,
    BLOCK_S: tl.constexpr,
):
    """One program a (sentence, smaller span, block of symbols): what it is part of at this width, on either side."""
    i_b = tl.program_id(0).to(tl.int64)
    i_span = tl.program_id(1).to(tl.int64)
    i_u = i_span // N + 1  # words
    i_i = i_span % N
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_s = tl.program_id(2) * BLOCK_S + tl.arange(0, BLOCK_S)
    NEG_INF: tl.constexpr = float("-inf")
    if i_i + i_u <= b_len:
        m_s = o_s < S
        i_beside = width - i_u
        p_here = ((i_b * N + i_u - 1) * N + i_i) * S + o_s
        b_here = tl.load(chart + p_here, mask=m_s, other=NEG_INF)
        b_share = tl.load(share + p_here, mask=m_s, other=0.0)
        if i_i + width <= b_len:
            p_beside = chart + ((i_b * N + i_beside - 1) * N + i_i + i_u) * S
            b_begin = tl.load(left_start + o_s, mask=m_s, other=0)
            b_count = tl.load(left_start + o_s + 1, mask=m_s, other=0) - b_begin
            for i_t in range(most_left):
                m_t = b_count > i_t
                b_other = tl.load(pair_right + b_begin + i_t, mask=m_t, other=0)
                b_x = tl.load(gates + (i_b * N + i_i) * Q + b_begin + i_t, mask=m_t, other=NEG_INF)
                b_share += probability(b_x + b_here + tl.load(p_beside + b_other, mask=m_t, other=NEG_INF))
        if i_i >= i_beside:
            p_beside = chart + ((i_b * N + i_beside - 1) * N + i_i - i_beside) * S
            b_begin = tl.load(right_start + o_s, mask=m_s, other=0)
            b_count = tl.load(right_start + o_s + 1, mask=m_s, other=0) - b_begin
            for i_t in range(most_right):
                m_t = b_count > i_t
                b_pair = tl.load(right_pairs + b_begin + i_t, mask=m_t, other=0)
                b_other = tl.load(pair_left + b_pair, mask=m_t, other=0)
                b_x = tl.load(gates + (i_b * N + i_i - i_beside) * Q + b_pair, mask=m_t, other=NEG_INF)
                b_share += probability(b_x + b_here + tl.load(p_beside + b_other, mask=m_t, other=NEG_INF))
        tl.store(share + p_here, b_share, mask=m_s)


@triton.jit
def grammar_rule_kernel(
    share,  # (B, N, N, S)
    raw,  # (B, N, N, NT)
    pairs,  # (B, N, Q), of this width: x
    rules,  # (R,) with stride_r = 0, or (B, R)
    lengths,  # (B,) or None
    table,  # (R, 3)
    rule_pair,  # (R,)
    d_rules,  # (B, R), added to
    N,
    S,
    Q,
    NT,
    R,
    width,
    stride_r,
    BLOCK_R: tl.constexpr,
):
    """Expected uses of each rule over the spans of this width."""
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    m_r = o_r < R
    NEG_INF: tl.constexpr = float("-inf")
    b_parent = tl.load(table + o_r * 3, mask=m_r, other=0)
    b_pair = tl.load(rule_pair + o_r, mask=m_r, other=0)
    b_rule = load_score(rules + i_b * stride_r + o_r, m_r)
    p_total = d_rules + i_b * R + o_r
    b_total = tl.load(p_total, mask=m_r, other=0.0)
    for i_i in range(b_len - width + 1):
        i_cell = (i_b * N + width - 1) * N + i_i
        b_x = b_rule + tl.load(pairs + (i_b * N + i_i) * Q + b_pair, mask=m_r, other=NEG_INF)
        b_x -= finite(tl.load(raw + i_cell * NT + b_parent, mask=m_r, other=0.0))
        b_total += probability(b_x) * tl.load(share + i_cell * S + b_parent, mask=m_r, other=0.0)
    tl.store(p_total, b_total, mask=m_r)
