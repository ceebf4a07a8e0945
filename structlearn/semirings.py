"""Semirings: what (+) and (x) mean in a dynamic program.

A dynamic program computes (+)_y (x)_{parts of y} potential(part). Its recurrence is written once, in
``structures/``, over an object with the five members of :class:`Semiring`; choosing the semiring chooses
the question:

=========  ==================  ==================  =============================================
semiring   a (+) b             a (x) b             total
=========  ==================  ==================  =============================================
Log        log(e^a + e^b)      a + b               log partition; its gradient: marginals
Max        max(a, b)           a + b               best score; its gradient: the best output
KMax(k)    k largest of both   k largest sums      k best scores; their gradients: the outputs
Sample(n)  log(e^a + e^b)      a + b               log partition; its gradient: n drawn outputs
Count      a + b               a * b               number of outputs that are not forbidden
Entropy    (log-sum, mixture)  (sum, sum)          (log partition, entropy)
Counted    max for each count  (max, +) by count   best score for each value of a statistic
=========  ==================  ==================  =============================================

An element is a tensor with one leading axis of size ``width`` (k for KMax, n for Sample, 2 for Entropy, the number
of values for Counted, else 1) in front of the batch. :func:`evaluate` runs a recurrence such that no sum of finite
potentials is rounded to float32 on the way or becomes infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

NEG_INF = float("-inf")


class Units(NamedTuple):
    """How a recurrence over potentials of ``dtype`` holds scores: in float64, as multiples of ``unit``.

    The range of float64 has room for any sum of float32 potentials. For float64 ones the unit is 2^32, so that a sum of
    2^32 parts stays finite; dividing by a power of two is exact but for subnormal numbers.
    """

    dtype: torch.dtype
    unit: float

    @staticmethod
    def of(potential: Tensor) -> Units:
        """The units in which sums of potentials like this one are finite."""
        widened = potential.dtype is torch.float32 and potential.device.type != "mps"  # which has no float64
        return Units(potential.dtype, 1.0 if widened else 2.0**32)

    def widen(self, x: Tensor) -> Tensor:
        """Potentials as a recurrence holds them."""
        return x.to(torch.float64) if self.unit == 1.0 else x / self.unit

    def narrow(self, x: Tensor) -> Tensor:
        """Totals in the dtype of the potentials; finite ones beyond its range become its largest or lowest number.

        The gradient passes through these, too: the parts of an output stay its parts.
        """
        limit = torch.finfo(self.dtype).max / self.unit
        finite = x.detach().clamp(-limit, limit) + (x - x.detach())
        return (torch.where(x.isinf(), x, finite) * self.unit).to(self.dtype)


def in_units(function: Callable[..., Tensor], potentials: Sequence[Tensor | None]) -> Tensor:
    """``function(unit, *potentials)``, sums of potentials, computed in :class:`Units`.

    The result is a function of all potentials in autograd's eyes, twice differentiable, also of those that small
    instances do not use.
    """
    first = potentials[0]
    assert first is not None
    units = Units.of(first)
    result = units.narrow(function(units.unit, *(None if x is None else units.widen(x) for x in potentials)))
    unused = [x[..., :0].exp().sum() for x in potentials if x is not None and x.requires_grad]
    return result + sum(unused) if unused else result


def evaluate(semiring: Semiring, recurrence: Callable[..., Tensor], potentials: Sequence[Tensor | None]) -> Tensor:
    """``recurrence(semiring, *potentials)``, totals over outputs, in :class:`Units`."""
    if not semiring.adds_scores:
        return recurrence(semiring, *potentials)
    return in_units(lambda unit, *wide: recurrence(semiring.in_units(unit), *wide), potentials)


def log_sum_exp(x: Tensor, dim: int, unit: float = 1.0) -> Tensor:
    """log sum_i exp(x_i) along ``dim`` for x in multiples of ``unit``, -inf with zero gradient if every x_i is -inf.

    ``torch.logsumexp`` has the same values but NaN gradients there.
    """
    top = x.detach().amax(dim, keepdim=True)
    top = top.masked_fill(top.isinf(), 0.0)
    total = _scaled(x - top, unit).exp().sum(dim, keepdim=True)
    dead = total == 0
    return (_scaled(total.masked_fill(dead, 1.0).log(), 1 / unit) + top).masked_fill(dead, NEG_INF).squeeze(dim)


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


def first_argmax(x: Tensor, dim: int) -> Tensor:
    """Lowest index of the largest entry along ``dim``, kept as size 1; ``torch.argmax`` leaves ties open."""
    size = x.shape[dim]
    shape = [1] * x.dim()
    shape[dim] = size
    index = torch.arange(size, device=x.device).view(shape)
    return torch.where(x == x.amax(dim, keepdim=True), index, size).amin(dim, keepdim=True).clamp(max=size - 1)


class Semiring:
    """The operations a recurrence needs. ``zero`` and ``one`` are the neutral elements' first entries."""

    width = 1
    zero: float = NEG_INF
    one: float = 0.0
    adds_scores = True  # elements are scores, or in their units

    def in_units(self, unit: float) -> Semiring:
        """The semiring for potentials in multiples of ``unit``; whatever adds and compares does not see the unit."""
        return self

    def lift(self, potential: Tensor) -> Tensor:
        """Potentials (...) as elements (1 or width, ...)."""
        return potential.unsqueeze(0)

    def ones_like(self, potential: Tensor) -> Tensor:
        """The element 1 for each entry of ``potential``, (width, ...)."""
        one = potential.new_full((self.width, *potential.shape), self.zero)
        one[0] = self.one
        return one

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """Elementwise a (x) b, broadcasting."""
        return a + b

    def sum(self, x: Tensor, dim: int) -> Tensor:
        """(+) along ``dim``, given as a negative axis."""
        raise NotImplementedError


class Log(Semiring):
    """(log-sum-exp, +)."""

    def __init__(self, unit: float = 1.0) -> None:
        self.unit = unit

    def in_units(self, unit: float) -> Log:
        return Log(unit)

    def sum(self, x: Tensor, dim: int) -> Tensor:
        return log_sum_exp(x, dim, self.unit)


class Max(Semiring):
    """(max, +); the gradient goes to the lowest index among equals."""

    def sum(self, x: Tensor, dim: int) -> Tensor:
        return x.gather(dim, first_argmax(x.detach(), dim)).squeeze(dim)


class KMax(Semiring):
    """The k largest, sorted; equals in the order of (index, rank)."""

    def __init__(self, k: int) -> None:
        self.width = k

    def _keep(self, candidates: Tensor) -> Tensor:
        """(m, ...) candidates to the (k, ...) largest; missing ones are -inf."""
        best = candidates.sort(dim=0, descending=True, stable=True).values[: self.width]
        missing = self.width - best.shape[0]
        if missing > 0:
            best = torch.cat([best, best.new_full((missing, *best.shape[1:]), NEG_INF)])
        return best

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        if a.shape[0] == 1 or b.shape[0] == 1:
            return a + b
        pairs = a.unsqueeze(1) + b.unsqueeze(0)
        return self._keep(pairs.flatten(0, 1))

    def sum(self, x: Tensor, dim: int) -> Tensor:
        return self._keep(x.movedim(dim, 0).flatten(0, 1))


class _SampledLogSum(torch.autograd.Function):
    """log-sum-exp whose gradient is a drawn one-hot vector instead of the softmax."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, generator: torch.Generator | None, unit: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.dim, ctx.generator, ctx.unit = dim, generator, unit
        return log_sum_exp(x, dim, unit)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        rows = x.movedim(ctx.dim, -1)
        p = _scaled(rows - log_sum_exp(rows, -1, ctx.unit).unsqueeze(-1), ctx.unit).exp().nan_to_num(0.0)
        dead = p.sum(-1, keepdim=True) == 0
        flat = p.masked_fill(dead, 1.0).reshape(-1, p.shape[-1])
        drawn = torch.multinomial(flat, 1, generator=ctx.generator).view(*p.shape[:-1], 1)
        hot = torch.zeros_like(p).scatter_(-1, drawn, 1.0).masked_fill(dead, 0.0)
        return (hot * grad.unsqueeze(ctx.dim).movedim(ctx.dim, -1)).movedim(-1, ctx.dim), None, None, None


class Sample(Semiring):
    """Log forward; backward draws, so the gradient of total i is the i-th sampled output."""

    def __init__(self, n: int, generator: torch.Generator | None = None, unit: float = 1.0) -> None:
        self.width = n
        self.generator = generator
        self.unit = unit

    def in_units(self, unit: float) -> Sample:
        return Sample(self.width, self.generator, unit)

    def lift(self, potential: Tensor) -> Tensor:
        return potential.unsqueeze(0).expand(self.width, *potential.shape)

    def ones_like(self, potential: Tensor) -> Tensor:
        return potential.new_zeros((self.width, *potential.shape))

    def sum(self, x: Tensor, dim: int) -> Tensor:
        return _SampledLogSum.apply(x, dim, self.generator, self.unit)  # type: ignore[no-untyped-call,no-any-return]


class Count(Semiring):
    """(+, x) on 1 for allowed and 0 for forbidden parts."""

    zero = 0.0
    one = 1.0
    adds_scores = False

    def lift(self, potential: Tensor) -> Tensor:
        return (potential > NEG_INF).to(torch.float64).unsqueeze(0)

    def ones_like(self, potential: Tensor) -> Tensor:
        return torch.ones((1, *potential.shape), dtype=torch.float64, device=potential.device)

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def sum(self, x: Tensor, dim: int) -> Tensor:
        return x.sum(dim)


class Entropy(Semiring):
    """Pairs (log weight, entropy so far); total (log Z, H).

    Choosing i with p_i ~ e^{a_i} among parts of entropy h_i has entropy sum_i p_i (h_i - log p_i): terms of one sign,
    where log Z - E[s(y)] would cancel. Both are held in multiples of the unit.
    """

    width = 2

    def __init__(self, unit: float = 1.0) -> None:
        self.unit = unit

    def in_units(self, unit: float) -> Entropy:
        return Entropy(unit)

    def lift(self, potential: Tensor) -> Tensor:
        return torch.stack([potential, torch.zeros_like(potential)])

    def ones_like(self, potential: Tensor) -> Tensor:
        return potential.new_zeros((2, *potential.shape))

    def sum(self, x: Tensor, dim: int) -> Tensor:
        log_weight, entropy = x.unbind(0)
        top = log_weight.detach().amax(dim, keepdim=True)
        relative = log_weight - top.masked_fill(top.isinf(), 0.0)
        log_p = relative - log_sum_exp(relative, dim, self.unit).unsqueeze(dim)
        log_p = log_p.masked_fill(log_weight == NEG_INF, NEG_INF)
        p = _scaled(log_p, self.unit).exp()
        # Beside p = 0, log p may be near the end of the range, and its product with a gradient beyond it.
        mixed = p * (entropy - log_p.masked_fill(p == 0, 0.0))
        return torch.stack([log_sum_exp(log_weight, dim, self.unit), mixed.sum(dim)])


class Counted(Semiring):
    """For each value g = 0..size-1 of an integer statistic, the best score; values add up under (x).

    A potential is an element once it is known by how much its part moves the statistic: :meth:`place`. The gradient
    goes to the lowest index among equals, and under (x) to the lowest value of the first factor.
    """

    def __init__(self, size: int) -> None:
        self.width = size

    def place(self, potential: Tensor, step: Tensor) -> Tensor:
        """Potentials (...) with increments ``step`` (...) as elements (size, ...)."""
        value = torch.arange(self.width, device=step.device).view(-1, *[1] * step.dim())
        return torch.where(value == step, potential, NEG_INF)

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        # The first factor by rising values, the second one by falling values, so that their sum is g.
        falling = torch.arange(self.width, device=a.device)
        second = falling[:, None] - falling
        pairs = a.unsqueeze(0) + b[second.clamp(min=0)]
        pairs = pairs.masked_fill((second < 0).view(*second.shape, *[1] * (pairs.dim() - 2)), NEG_INF)
        return Max().sum(pairs, 1)

    def sum(self, x: Tensor, dim: int) -> Tensor:
        return Max().sum(x, dim)
