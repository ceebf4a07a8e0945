"""Kernels of weighted grammars: CKY over (max, +) and in log space, the best derivation, and the outside pass.

    x[i, j, q]   = max_k or log sum_k exp (a[i, k, left of q] + a[k+1, j, right of q])     for pairs q of children
    raw[i, j, A] = max_r or log sum_r exp (rule_scores[r] + x[i, j, pair of r])            for the rules r of A
    a[i, j, A]   = raw[i, j, A] + spans[i, j, A]

and from the top down, with P the probability of a constituent,

    g[i, j, q]   = log sum over the rules r of q of exp(log P[i, j, A_r] + rule_scores[r] - raw[i, j, A_r])
    P[i, k, B]  += exp(g[i, j, q] + a[i, k, B] + a[k+1, j, C])                             and P[k+1, j, C] likewise.

Charts are (N, N, S) by [width - 1, first word, symbol]. Widths are launches of their own, one or two kernels each, with
every span of that width in the batch side by side; x and g are kept for one width alone and formed again on the way
down, so that memory is N^2 S. A constituent gathers from those above it: no atomics, the same bits in every run.

What limits them on a GPU: gathers of two numbers from L2 for each pair and cut, B N^3 Q / 6 of them each way.
"""

import triton
import triton.language as tl

from .common import bounded, finite, load_score


@triton.jit
def grammar_word_kernel(
    terms,  # (B, N, P)
    lengths,  # (B,) or None
    chart,  # (B, N, N, S), written at width 1
    N,
    P,
    NT,
    stride_b,
    stride_n,
    BLOCK_S: tl.constexpr,
):
    """One program a word: preterminals from terms, -inf for nonterminals and for padding."""
    i_b = tl.program_id(0).to(tl.int64)
    i_n = tl.program_id(1).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    S = NT + P
    for i_s in range(0, S, BLOCK_S):
        o_s = i_s + tl.arange(0, BLOCK_S)
        m_word = (o_s >= NT) & (o_s < tl.where(i_n < b_len, S, 0))
        b_x = load_score(terms + i_b * stride_b + i_n * stride_n + o_s - NT, m_word)
        tl.store(chart + (i_b * N * N + i_n) * S + o_s, b_x, mask=o_s < S)


@triton.jit
def grammar_pair_kernel(
    chart,  # (B, N, N, S)
    lengths,  # (B,) or None
    pair_left,  # (Q,)
    pair_right,  # (Q,)
    pairs,  # (B, N, Q), written for the spans of this width
    N,
    S,
    Q,
    width,
    LOG: tl.constexpr,
    BLOCK_Q: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    i_i = tl.program_id(1).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_q = tl.program_id(2) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    NEG_INF: tl.constexpr = float("-inf")
    if i_i + width <= b_len:
        m_q = o_q < Q
        b_left = tl.load(pair_left + o_q, mask=m_q, other=0)
        b_right = tl.load(pair_right + o_q, mask=m_q, other=0)
        p_chart = chart + i_b * N * N * S
        b_top = tl.full([BLOCK_Q], NEG_INF, chart.dtype.element_ty)
        b_sum = tl.zeros([BLOCK_Q], chart.dtype.element_ty)
        for i_u in range(1, width):
            p_left = p_chart + ((i_u - 1) * N + i_i) * S
            p_right = p_chart + ((width - i_u - 1) * N + i_i + i_u) * S
            b_x = tl.load(p_left + b_left, mask=m_q, other=NEG_INF) + tl.load(
                p_right + b_right, mask=m_q, other=NEG_INF
            )
            b_new = tl.maximum(b_top, b_x)
            if LOG:
                b_safe = finite(b_new)
                b_sum = b_sum * tl.exp(b_top - b_safe) + tl.exp(b_x - b_safe)
            b_top = b_new
        if LOG:
            b_top += tl.log(b_sum)
        tl.store(pairs + (i_b * N + i_i) * Q + o_q, b_top, mask=m_q)


@triton.jit
def grammar_parent_kernel(
    pairs,  # (B, N, Q), from grammar_pair_kernel
    rules,  # (R,) with stride_r = 0, or (B, R)
    spans,  # (B, N, N, NT) or None
    lengths,  # (B,) or None
    parent_start,  # (NT + 1,)
    parent_rules,  # (R,)
    rule_pair,  # (R,)
    chart,  # (B, N, N, S), written at this width, -inf beyond the sentence
    raw,  # (B, N, N, NT), written at this width where LOG
    N,
    S,
    Q,
    NT,
    width,
    stride_r,
    stride_b,
    stride_i,
    stride_j,
    LOG: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """One program a (sentence, first word, symbol): the rules of a nonterminal; -inf for preterminals."""
    i_b = tl.program_id(0).to(tl.int64)
    i_i = tl.program_id(1).to(tl.int64)
    i_a = tl.program_id(2)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_r = tl.arange(0, BLOCK_R)
    NEG_INF: tl.constexpr = float("-inf")
    b_top = tl.full([], NEG_INF, chart.dtype.element_ty)
    i_cell = (i_b * N + width - 1) * N + i_i
    if (i_a < NT) & (i_i + width <= b_len):
        b_sum = tl.full([], 0.0, chart.dtype.element_ty)
        b_begin = tl.load(parent_start + i_a)
        b_end = tl.load(parent_start + i_a + 1)
        for i_r in range(b_begin, b_end, BLOCK_R):
            m_r = i_r + o_r < b_end
            b_rule = tl.load(parent_rules + i_r + o_r, mask=m_r, other=0)
            b_pair = tl.load(rule_pair + b_rule, mask=m_r, other=0)
            b_x = tl.load(pairs + (i_b * N + i_i) * Q + b_pair, mask=m_r, other=NEG_INF)
            b_x += load_score(rules + i_b * stride_r + b_rule, m_r)
            b_new = tl.maximum(b_top, tl.max(b_x, axis=0))
            if LOG:
                b_safe = finite(b_new)
                b_sum = b_sum * tl.exp(b_top - b_safe) + tl.sum(tl.exp(b_x - b_safe), axis=0)
            b_top = b_new
        if LOG:
            b_top += tl.log(b_sum)
            tl.store(raw + i_cell * NT + i_a, b_top)
        if spans is not None:
            b_top += bounded(tl.load(spans + i_b * stride_b + i_i * stride_i + (i_i + width - 1) * stride_j + i_a))
    tl.store(chart + i_cell * S + i_a, b_top)


@triton.jit
def grammar_root_kernel(
    chart,  # (B, N, N, S)
    roots,  # (S,) with stride_o = 0, or (B, S)
    lengths,  # (B,) or None
    total,  # (B,), written
    symbol,  # (B,), written without LOG: the best root, the lowest of equals
    N,
    S,
    stride_o,
    LOG: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    NEG_INF: tl.constexpr = float("-inf")
    p_cell = chart + (i_b * N + tl.maximum(b_len - 1, 0)) * N * S
    b_top = tl.full([], NEG_INF, chart.dtype.element_ty)
    b_sum = tl.full([], 0.0, chart.dtype.element_ty)
    b_symbol = tl.full([], 0, tl.int32)
    for i_s in range(0, S, BLOCK_S):
        o_s = i_s + tl.arange(0, BLOCK_S)
        m_s = o_s < tl.where(b_len > 0, S, 0)
        b_x = tl.load(p_cell + o_s, mask=m_s, other=NEG_INF)
        b_x += load_score(roots + i_b * stride_o + o_s, m_s)
        b_value, b_index = tl.max(b_x, axis=0, return_indices=True)
        b_new = tl.maximum(b_top, b_value)
        if LOG:
            b_safe = finite(b_new)
            b_sum = b_sum * tl.exp(b_top - b_safe) + tl.sum(tl.exp(b_x - b_safe), axis=0)
        b_symbol = tl.where(b_value > b_top, b_index + i_s, b_symbol)
        b_top = b_new
    if LOG:
        b_top += tl.log(b_sum)
    else:
        tl.store(symbol + i_b, b_symbol)
    tl.store(total + i_b, tl.where(b_len > 0, b_top, 0.0))


@triton.jit
def grammar_trace_kernel(
    chart,  # (B, N, N, S), from the kernels above without LOG
    rules,  # (R,) with stride_r = 0, or (B, R)
    lengths,  # (B,) or None
    score,  # (B,)
    symbol,  # (B,)
    table,  # (R, 3)
    parent_start,  # (NT + 1,)
    parent_rules,  # (R,)
    stack,  # (B, N, 3) scratch
    labels,  # (B, N, N) filled with the padding label
    N,
    S,
    NT,
    stride_r,
    BLOCK_R: tl.constexpr,
):
    """The best derivation from the whole down: rule and cut of each constituent are found again, the lowest of equals.

    Limit on a GPU: 2N - 1 dependent steps a sentence, each over the cuts of all rules of one symbol.
    """
    i_b = tl.program_id(0).to(tl.int64)
    b_len = i_b * 0 + N if lengths is None else tl.load(lengths + i_b)
    o_r = tl.arange(0, BLOCK_R)
    NEG_INF: tl.constexpr = float("-inf")
    p_chart = chart + i_b * N * N * S
    p_stack = stack + i_b * N * 3
    b_steps = tl.where(tl.load(score + i_b) > NEG_INF, tl.maximum(2 * b_len - 1, 0), 0)
    b_depth = b_len * 0
    b_first = b_len * 0
    b_width = b_len
    b_symbol = tl.load(symbol + i_b).to(tl.int64)
    for _ in range(b_steps):
        p_label = labels + (i_b * N + b_first) * N + b_first + b_width - 1
        if b_width > 1:
            b_most = tl.full([], NEG_INF, chart.dtype.element_ty)
            b_rule = b_len * 0
            b_begin = tl.load(parent_start + b_symbol)
            b_end = tl.load(parent_start + b_symbol + 1)
            for i_r in range(b_begin, b_end, BLOCK_R):
                m_r = i_r + o_r < b_end
                b_id = tl.load(parent_rules + i_r + o_r, mask=m_r, other=0)
                b_left = tl.load(table + b_id * 3 + 1, mask=m_r, other=0)
                b_right = tl.load(table + b_id * 3 + 2, mask=m_r, other=0)
                b_top = tl.full([BLOCK_R], NEG_INF, chart.dtype.element_ty)
                for i_u in range(1, b_width):
                    p_left = p_chart + ((i_u - 1) * N + b_first) * S
                    p_right = p_chart + ((b_width - i_u - 1) * N + b_first + i_u) * S
                    b_x = tl.load(p_left + b_left, mask=m_r, other=NEG_INF)
                    b_top = tl.maximum(b_top, b_x + tl.load(p_right + b_right, mask=m_r, other=NEG_INF))
                b_top += load_score(rules + i_b * stride_r + b_id, m_r)
                b_value, b_index = tl.max(b_top, axis=0, return_indices=True)
                b_found = tl.load(parent_rules + i_r + b_index).to(tl.int64)
                b_rule = tl.where(b_value > b_most, b_found, b_rule)
                b_most = tl.maximum(b_most, b_value)
            tl.store(p_label, b_rule)
            b_l = tl.load(table + b_rule * 3 + 1).to(tl.int64)
            b_r = tl.load(table + b_rule * 3 + 2).to(tl.int64)
            b_best = tl.full([], NEG_INF, chart.dtype.element_ty)
            b_cut = b_len * 0 + 1
            for i_u in range(1, b_width):
                b_x = tl.load(p_chart + ((i_u - 1) * N + b_first) * S + b_l)
                b_x += tl.load(p_chart + ((b_width - i_u - 1) * N + b_first + i_u) * S + b_r)
                b_cut = tl.where(b_x > b_best, i_u, b_cut)
                b_best = tl.maximum(b_best, b_x)
            p_top = p_stack + b_depth * 3
            tl.store(p_top, b_first + b_cut)
            tl.store(p_top + 1, b_width - b_cut)
            tl.store(p_top + 2, b_r)
            b_depth += 1
            b_width = b_cut
            b_symbol = b_l
        else:
            tl.store(p_label, b_symbol - NT)
            # A word is done and takes the last part that waits.
            b_depth -= 1
            tl.debug_barrier()
            p_top = p_stack + tl.maximum(b_depth, 0) * 3
            b_first = tl.load(p_top, mask=b_depth >= 0, other=0)
            b_width = tl.load(p_top + 1, mask=b_depth >= 0, other=1)
            b_symbol = tl.load(p_top + 2, mask=b_depth >= 0, other=0)
            tl.debug_barrier()
