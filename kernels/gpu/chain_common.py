"""Pieces that the chain kernels share."""

import triton
import triton.language as tl


@triton.jit
def finite(b_max):
    """The maximum to subtract before exp: 0 where nothing is feasible, so that -inf - -inf never arises."""
    return tl.where(b_max == float("-inf"), 0.0, b_max)


@triton.jit
def within(o_c, C, m_row):
    """Mask of the states of a row that is there, none otherwise.

    One comparison rather than `(o_c < C) & m_row`: the interpreter does not broadcast a scalar mask.
    """
    return o_c < tl.where(m_row, C, 0)
