"""Pieces that the kernels share."""

import triton
import triton.language as tl


@triton.jit
def bounded(b_score):
    """Scores with finite ones at or above -2^112 (float64: -2^1000).

    Sums over all parts of an output then stay finite, so that an output is as good as forbidden by a mask of finfo.min
    but never infeasible; only -inf forbids. Values so far below others have no weight.
    """
    LOWEST: tl.constexpr = -(2.0**112) if b_score.dtype.primitive_bitwidth == 32 else -(2.0**1000)
    return tl.where(b_score == float("-inf"), b_score, tl.maximum(b_score, LOWEST))


@triton.jit
def load_score(p_score, m_score, other=float("-inf")):
    """Scores of parts as :func:`bounded` gives them, ``other`` where the mask is off."""
    return bounded(tl.load(p_score, mask=m_score, other=other))


@triton.jit
def finite(b_max):
    """The maximum to subtract before exp: 0 where nothing is feasible, so that -inf - -inf never arises."""
    return tl.where(b_max == float("-inf"), 0.0, b_max)


@triton.jit
def probability(b_log):
    """exp, and finite: of scores beyond 1e7 (float64: 1e15) rounding may leave logarithms far above 0."""
    return tl.exp(tl.minimum(b_log, 1.0))


@triton.jit
def within(o_c, C, m_row):
    """Mask of the states of a row that is there, none otherwise.

    One comparison rather than `(o_c < C) & m_row`: the interpreter does not broadcast a scalar mask.
    """
    return o_c < tl.where(m_row, C, 0)
