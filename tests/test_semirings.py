"""Semirings: their laws on random elements, their sums against plain numpy, and the recurrence over each."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from cases import NEG_INF, ChainCase, numbers
from hypothesis import given
from hypothesis.extra import numpy as hnp
from torch import Tensor

from structlearn.semirings import Count, Entropy, KMax, Log, Max, Sample, Semiring, first_argmax, log_sum_exp
from structlearn.structures.chain import total

LAWFUL: dict[str, Semiring] = {
    "Log": Log(),
    "Max": Max(),
    "KMax(1)": KMax(1),
    "KMax(3)": KMax(3),
    "Count": Count(),
    "Entropy": Entropy(),
}

value = st.one_of(st.floats(-20, 20), st.integers(-2, 2).map(float), st.just(NEG_INF))


@st.composite
def elements(draw: st.DrawFn, semiring: Semiring, parts: int = 3) -> list[Tensor]:
    """Elements (width, 2), each the sum of a few lifted potentials: what a recurrence can hold."""

    def one() -> Tensor:
        x = torch.from_numpy(draw(hnp.arrays(np.float64, (2, draw(st.integers(1, 3))), elements=value)))
        return semiring.sum(semiring.times(semiring.ones_like(x), semiring.lift(x)), -1)

    return [one() for _ in range(parts)]


def plus(semiring: Semiring, *xs: Tensor) -> Tensor:
    return semiring.sum(torch.stack(xs, -1), -1)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LAWFUL)
@given(data=st.data())
def test_laws(name: str, data: st.DataObject) -> None:
    s = LAWFUL[name]
    a, b, c = data.draw(elements(s))
    close(plus(s, a, plus(s, b, c)), plus(s, plus(s, a, b), c))
    close(plus(s, a, b), plus(s, b, a))
    close(s.times(a, s.times(b, c)), s.times(s.times(a, b), c))
    close(s.times(a, b), s.times(b, a))
    one = s.ones_like(torch.zeros(2, dtype=torch.float64))
    close(s.times(a, one), a)
    zero = s.lift(torch.full((2,), NEG_INF, dtype=torch.float64)).expand(s.width, 2)
    close(plus(s, a, zero), a)


@pytest.mark.parametrize("name", LAWFUL)
@given(data=st.data())
def test_times_distributes_over_plus(name: str, data: st.DataObject) -> None:
    s = LAWFUL[name]
    a, b, c = data.draw(elements(s))
    left, right = s.times(a, plus(s, b, c)), plus(s, s.times(a, b), s.times(a, c))
    if name == "Entropy":
        feasible = (left[0] > NEG_INF).expand_as(left)
        close(left[feasible], right[feasible])
    else:
        close(left, right)


@given(x=hnp.arrays(np.float64, (3, 4), elements=st.one_of(value, st.sampled_from([1e3, -1e3, 1e5]))))
def test_log_sum_exp(x: np.ndarray) -> None:
    t = torch.from_numpy(x).requires_grad_()
    found = log_sum_exp(t, -1)
    expected = np.logaddexp.reduce(x, -1)
    np.testing.assert_allclose(numbers(found), expected, rtol=1e-12)
    (gradient,) = torch.autograd.grad(torch.where(found.isinf(), 0.0, found).sum(), t)
    assert gradient.isfinite().all()
    np.testing.assert_allclose(numbers(gradient.sum(-1)), expected > NEG_INF, atol=1e-12)


def test_log_sum_exp_has_second_derivatives() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: log_sum_exp(x, -1), (x,))
    assert torch.autograd.gradgradcheck(lambda x: log_sum_exp(x, 0), (x,))


@given(x=hnp.arrays(np.float64, (3, 5), elements=st.integers(-1, 1).map(float) | st.just(NEG_INF)))
def test_first_argmax_is_the_lowest(x: np.ndarray) -> None:
    for axis in (0, 1):
        found = first_argmax(torch.from_numpy(x), axis - 2)
        assert found.squeeze(axis).tolist() == x.argmax(axis).tolist()


def test_max_and_kmax_pass_the_gradient_to_the_lowest_index() -> None:
    x = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(Max().sum(x, -1).sum(), x)
    assert gradient.tolist() == [[0, 1, 0, 0, 0]]
    best = KMax(4).sum(x.unsqueeze(0), -1)
    assert best[:, 0].tolist() == [2, 2, 2, 1]
    for rank, place in enumerate((1, 2, 4, 0)):
        (gradient,) = torch.autograd.grad(best[rank, 0], x, retain_graph=True)
        assert gradient.argmax().item() == place


def test_kmax_pads_with_zero() -> None:
    assert KMax(3).sum(torch.tensor([[[1.0, 5.0]]]), -1)[:, 0].tolist() == [5, 1, NEG_INF]


def test_count_of_all_allowed_is_c_to_the_n() -> None:
    for n in range(5):
        for c in range(1, 4):
            unary, transition = torch.zeros(2, n, c), torch.zeros(c, c)
            lengths = torch.tensor([n, max(n - 1, 0)])
            assert total(Count(), unary, transition, None, None, lengths).tolist() == [[c**n, c ** max(n - 1, 0)]]


def test_one_recurrence_serves_every_semiring() -> None:
    problem = ChainCase("all", B=3, N=3, C=3, lengths=None, forbidden=0.2, start=True, end=True, dead=(2,)).problem()
    args = (*(problem.potentials[f] for f in ("unary", "transition", "start", "end")), torch.full((3,), 3))
    rows = problem.rows
    expected = {
        "Log": [[r.log_partition for r in rows]],
        "Max": [[r.max for r in rows]],
        "KMax(1)": [[r.max for r in rows]],
        "KMax(3)": [[(r.topk(3) + [((), NEG_INF)] * 3)[i][1] for r in rows] for i in range(3)],
        "Count": [[r.count for r in rows]],
        "Entropy": [[r.log_partition for r in rows], [r.entropy for r in rows]],
    }
    for name, semiring in LAWFUL.items():
        np.testing.assert_allclose(numbers(total(semiring, *args)), expected[name], rtol=1e-12, err_msg=name)


def test_sample_is_log_forward_and_draws_backward() -> None:
    weights = torch.tensor([0.1, 0.0, 0.6, 0.3]).log()
    semiring = Sample(3000, torch.Generator().manual_seed(0))
    x = semiring.lift(weights).clone().requires_grad_()
    value = semiring.sum(x, -1)
    torch.testing.assert_close(value, torch.zeros(3000))
    (drawn,) = torch.autograd.grad(value.sum(), x)
    assert (drawn.sum(-1) == 1).all()
    share = drawn.mean(0)
    assert share[1] == 0
    for k, p in ((0, 0.1), (2, 0.6), (3, 0.3)):
        assert abs(float(share[k]) - p) < 5 * math.sqrt(p * (1 - p) / 3000)
    dead = torch.full((1, 2), NEG_INF, requires_grad=True)
    (nothing,) = torch.autograd.grad(Sample(1).sum(dead, -1).sum(), dead)
    assert not nothing.any()
