"""A primal active-set method for small duals: finite, and exact where pairwise steps crawl.

    max  <b, alpha> - 1/2 alpha^T J alpha,   alpha >= 0,   sum of alpha over each group <= box

Variables are free (alpha > 0) or fixed at 0, groups are full (sum = box) or not. A step goes to the optimum over the
free variables with full groups kept full, or as far as alpha >= 0 and the box allow; what stops it becomes fixed or
full. At that optimum, the full group with the most negative multiplier is released, or the fixed variable with the
largest slope is freed. Where J has no curvature along a direction that ascends, the step is as long as the constraints
allow; if none limits it, the dual is unbounded and the direction proves it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Of the largest singular value: below it, J counts as singular.
RANK = 1e-13
# A direction r is without curvature if |sum r a| is below this share of sum r b times the norm of the planes.
LEAST_MARGIN = 1e-6


def active_set(
    gram: Tensor, b: Tensor, group: Tensor, box: float, start: Tensor, tolerance: float
) -> tuple[Tensor, bool]:
    """alpha from ``start``, and whether the dual is bounded; if it is not, a direction along which it grows."""
    m = len(b)
    # Variables in units in which J has a diagonal of ones: planes may differ in size by orders of magnitude.
    diagonal = gram.diagonal()
    unit = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    J, slope_at_0 = gram * unit * unit[:, None], b * unit
    largest = float(diagonal.max().clamp(min=0.0).sqrt())
    groups = int(group[-1]) + 1
    z = start / unit
    free = z > 0

    def held() -> Tensor:
        return torch.zeros(groups, dtype=torch.float64).index_add_(0, group, z * unit)

    full = held() >= (1 - 1e-12) * box
    for _ in range(10 * m + 20):
        at = free.nonzero().flatten()
        tight = full.nonzero().flatten()
        rows = (group[at] == tight[:, None]).double() * unit[at]
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-300)
        slope = slope_at_0 - J @ z
        step, left = _newton(J[at[:, None], at], rows, slope[at])
        flat = bool((left / unit[at]).abs().gt(0.1 * tolerance).any())
        if flat:
            step = left
        step = step - rows.T @ (rows @ step)  # rounding, which a long step would multiply
        length, place, filled = _longest(
            z[at], step, unit[at], group[at], box - held(), full, math.inf if flat else 1.0
        )
        if math.isinf(length):
            ray = torch.zeros(m, dtype=torch.float64)
            ray[at] = (step * unit[at]).clamp(min=0.0)
            gain, square = float(b @ ray), float(ray @ gram @ ray)
            if gain > 0 and square <= (LEAST_MARGIN * gain * largest) ** 2:
                return ray, False
            break
        z[at] += length * step
        z.clamp_(min=0.0)
        if filled is not None:
            full[filled] = True
            continue
        if place is not None:
            z[at[place]], free[at[place]] = 0.0, False
            continue
        slope = (slope_at_0 - J @ z) / unit
        # At that optimum, the free variables of a full group have one slope: the group's multiplier.
        price = torch.zeros(groups, dtype=torch.float64).index_add_(0, group[at], slope[at])
        price = torch.where(full, price / torch.bincount(group[at], minlength=groups).clamp(min=1), 0.0)
        if float(price.min()) < -0.1 * tolerance:
            full[price.argmin()] = False
            continue
        reward = torch.where(free, -math.inf, slope - price[group])
        if not float(reward.max()) > 0.5 * tolerance:
            break
        free[reward.argmax()] = True
    return z * unit, True


def _newton(J: Tensor, rows: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The step to the optimum under rows @ step = 0, and the part of the slope along which J has no curvature."""
    f, t = len(slope), len(rows)
    if f == 0:
        return slope, slope
    system = torch.zeros(f + t, f + t, dtype=torch.float64)
    system[:f, :f], system[:f, f:], system[f:, :f] = J, rows.T, rows
    right = torch.cat([slope, slope.new_zeros(t)])
    values, vectors = torch.linalg.eigh(system)
    keep = values.abs() > RANK * values.abs().max()
    parts = vectors[:, keep].T @ right
    solution = vectors[:, keep] @ (parts / values[keep])
    left = right - vectors[:, keep] @ parts
    return solution[:f], left[:f]


def _longest(
    z: Tensor, step: Tensor, unit: Tensor, group: Tensor, room: Tensor, full: Tensor, most: float
) -> tuple[float, int | None, int | None]:
    """How far ``step`` can be taken, and the place in z or the group that stops it; neither for the whole step."""
    length, place = most, None
    down = step < 0
    if bool(down.any()):
        ratio = torch.where(down, z / -step, math.inf)
        if float(ratio.min()) < length:
            length, place = float(ratio.min()), int(ratio.argmin())
    growth = torch.zeros_like(room).index_add_(0, group, step * unit)
    grows = (growth > 0) & ~full
    if bool(grows.any()):
        ratio = torch.where(grows, room.clamp(min=0.0) / growth, math.inf)
        if float(ratio.min()) < length:
            return float(ratio.min()), None, int(ratio.argmin())
    return length, place, None
