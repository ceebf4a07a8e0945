"""Generalisation bounds of learning locally and under constraints (Punyakanok, Roth, Yih and Zimak, 2005).

With probability 1 - delta over m examples, the hypothesis with the least training error has true error at most

    eps <= eps_opt + sqrt((log N(m) + log(1 / delta)) / m),

N(m) the number of ways in which the hypothesis space can label m examples. Halfspaces in R^d label them in at most
(e m / d)^d ways. A vector w in R^{cd} that picks one of 2^c outputs of c binary parts is cut, for each example, by the
hyperplanes w . (Phi(x, y) - Phi(x, y')) = 0, whose blocks are -x_i, 0 or x_i: fewer than 3^c of them, so N(m) is
at most (e m 3^c / cd)^{cd}. Learning under constraints has the larger space, but the smaller eps_opt where parts alone
cannot be separated; the bounds cross.
"""

from __future__ import annotations

import math

from structlearn.errors import ArgumentError


def growth_bound(log_growth: float, m: float, *, optimum: float = 0.0, delta: float = 0.05) -> float:
    """eps_opt + sqrt((log N(m) + log(1 / delta)) / m)."""
    if not 0 < delta < 1:
        raise ArgumentError("delta", "a probability in (0, 1)", delta, "0.05 gives a bound that holds 95 times in 100")
    return optimum + math.sqrt((max(log_growth, 0.0) + math.log(1 / delta)) / m)


def local_log_growth(m: float, d: int) -> float:
    """log (e m / d)^d for m >= d, and never more than the m log 2 of all labellings."""
    every = _examples(m) * math.log(2)
    return min(every, d * math.log(math.e * m / d)) if m >= d else every


def global_log_growth(m: float, c: int, d: int) -> float:
    """log (e m 3^c / cd)^{cd} = cd log(e m / cd) + c^2 d log 3, at most the m c log 2 of all labellings."""
    size, every = c * d, _examples(m) * c * math.log(2)
    if m * 3**c < size:
        return every
    return min(every, size * math.log(math.e * m / size) + size * c * math.log(3))


def _examples(m: float) -> float:
    if m < 1:
        raise ArgumentError("m", "at least one example", m, "a bound needs data")
    return m


def local_bound(m: float, d: int, *, optimum: float = 0.0, delta: float = 0.05) -> float:
    """Error of one part learnt alone in R^d (LO, L+I), whose best classifier errs by ``optimum``."""
    return growth_bound(local_log_growth(m, d), m, optimum=optimum, delta=delta)


def global_bound(m: float, c: int, d: int, *, optimum: float = 0.0, delta: float = 0.05) -> float:
    """Error of c binary parts in R^d each, learnt together under constraints (IBT)."""
    return growth_bound(global_log_growth(m, c, d), m, optimum=optimum, delta=delta)


def crossing(c: int, d: int, optimum: float, *, delta: float = 0.05) -> float | None:
    """The m from which the global bound is below the local one whose eps_opt is ``optimum``; None if it never is."""
    if optimum <= 0:
        return None
    low, high = 1.0, 2.0
    while global_bound(high, c, d, delta=delta) >= local_bound(high, d, optimum=optimum, delta=delta):
        high *= 2
        if high > 1e18:
            return None
    while high - low > 0.5:
        middle = (low + high) / 2
        if global_bound(middle, c, d, delta=delta) >= local_bound(middle, d, optimum=optimum, delta=delta):
            low = middle
        else:
            high = middle
    return high
