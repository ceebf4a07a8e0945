"""Weights as whole multiples of one unit, so that sums of them can be counted.

Given to the last digit of their dtype, weights are whole multiples of 1/q (0.3, 0.5 and 1.7 of 1/10) or of a q-th part
of the smallest of them (pi, 2 pi and 3 pi of pi), for a small q; or they are not, and sums of them cannot be counted.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

import torch
from torch import Tensor

# Tables of counts grow with it.
LARGEST_DENOMINATOR = 1000
# More different weights than this are measurements rather than a user's choice.
MOST_WEIGHTS = 4096


class Multiples(NamedTuple):
    """``whole`` int64, as the weights; weights = whole * unit."""

    whole: Tensor
    unit: float


def multiples(weights: Tensor) -> Multiples | None:
    """The weights, all >= 0, as multiples of the largest unit that there is, or None."""
    values, place = weights.detach().double().cpu().unique(return_inverse=True)
    if len(values) > MOST_WEIGHTS:
        return None
    eps = torch.finfo(weights.dtype).eps if weights.is_floating_point() else 0.0
    positive = [value for value in values.tolist() if value > 0]
    if not positive:
        return Multiples(torch.zeros_like(place), 1.0)
    for base in (1.0, positive[0]):
        parts = [Fraction(value / base).limit_denominator(LARGEST_DENOMINATOR) for value in positive]
        close = all(abs(float(part) * base - value) <= eps * value for part, value in zip(parts, positive, strict=True))
        q = lcm(*(part.denominator for part in parts))
        if close and q <= LARGEST_DENOMINATOR:
            wholes = [int(part * q) for part in parts]
            shared = gcd(*wholes)
            table = torch.tensor([0] * (len(values) - len(positive)) + [whole // shared for whole in wholes])
            return Multiples(table[place], base * shared / q)
    return None
