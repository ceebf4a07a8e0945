"""Laws that hold for every LinearChain, on whatever hypothesis thinks of."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from cases import NEG_INF, Problem, numbers
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

import structlearn as sl

BACKENDS = ("reference", "cpu", "torch-struct")
SLACK = 1e4 * torch.finfo(torch.float64).eps  # scores reach 1e4 here

potential = st.one_of(
    st.floats(-30, 30, allow_subnormal=False),
    st.integers(-2, 2).map(float),
    st.sampled_from([0.0, NEG_INF, -700.0, 700.0]),
)


@st.composite
def chains(draw: st.DrawFn) -> Problem:
    b, n, c = draw(st.integers(1, 3)), draw(st.integers(0, 4)), draw(st.integers(1, 3))

    def tensor(*shape: int) -> torch.Tensor:
        return torch.from_numpy(draw(hnp.arrays(np.float64, shape, elements=potential, fill=st.just(0.0))))

    potentials = {"unary": tensor(b, n, c)}
    potentials["transition"] = tensor(b, max(n - 1, 0), c, c) if draw(st.booleans()) else tensor(c, c)
    potentials |= {name: tensor(c) for name in ("start", "end") if draw(st.booleans())}
    lengths = tuple(draw(st.lists(st.integers(0, n), min_size=b, max_size=b)))
    for row, length in enumerate(lengths):
        potentials["unary"][row, length:] = float("nan")
        if potentials["transition"].dim() == 4:
            potentials["transition"][row, max(length - 1, 0) :] = float("nan")
    return Problem(sl.LinearChain, potentials, lengths)


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chains())
def test_values_are_ordered(backend: str, problem: Problem) -> None:
    s = problem.make(backend)
    best, log_z, entropy, count = (numbers(x) for x in (s.max(), s.log_partition(), s.entropy(), s.count()))
    for b, row in enumerate(problem.rows):
        assert count[b] == row.count
        assert (best[b] > NEG_INF) == (log_z[b] > NEG_INF) == row.feasible
        if row.feasible:
            assert best[b] - SLACK <= log_z[b] <= best[b] + math.log(row.count) + SLACK
            assert -SLACK <= entropy[b] <= math.log(row.count) + SLACK
        else:
            assert entropy[b] == 0.0


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chains())
def test_values_equal_enumeration(backend: str, problem: Problem) -> None:
    s = problem.make(backend)
    for found, expected in (
        (s.max(), [row.max for row in problem.rows]),
        (s.log_partition(), [row.log_partition for row in problem.rows]),
        (s.entropy(), [row.entropy for row in problem.rows]),
    ):
        np.testing.assert_allclose(numbers(found), expected, rtol=1e-10, atol=SLACK)


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chains())
def test_marginals_add_up(backend: str, problem: Problem) -> None:
    s = problem.make(backend)
    m = s.marginals()
    unary, transition = numbers(m.unary), numbers(m.transition)
    assert ((unary >= 0) & (unary <= 1 + 1e-9)).all()
    mask = numbers(s.mask) > 0
    alive = np.array([row.feasible for row in problem.rows])
    np.testing.assert_allclose(unary.sum(-1), mask & alive[:, None], atol=1e-9)
    steps = (mask[:, 1:] & alive[:, None]).astype(float)
    if transition.ndim == 4:
        np.testing.assert_allclose(transition.sum((2, 3)), steps, atol=1e-9)
        np.testing.assert_allclose(transition.sum(3), unary[:, : transition.shape[1]] * steps[..., None], atol=1e-9)
        np.testing.assert_allclose(transition.sum(2), unary[:, 1:] * steps[..., None], atol=1e-9)
    else:
        np.testing.assert_allclose(transition.sum(), steps.sum(), atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chains(), k=st.integers(1, 5))
def test_the_k_best_are_distinct_sorted_and_scored(backend: str, problem: Problem, k: int) -> None:
    s = problem.make(backend)
    labels, scores = s.topk(k)
    torch.testing.assert_close(scores[0], s.max(), rtol=1e-12, atol=1e-9)
    assert torch.equal(labels[0], s._best()[0])
    assert (scores[:-1] >= scores[1:]).all()
    for b, row in enumerate(problem.rows):
        found = min(k, row.count)
        assert (scores[:, b] > NEG_INF).sum() == found
        assert len({tuple(y) for y in labels[:found, b].tolist()}) == found
        if found:
            rescored = s.score(labels.masked_fill(labels < 0, 0))[:found, b]
            torch.testing.assert_close(rescored, scores[:found, b], rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chains(), shift=st.floats(-50, 50))
def test_a_shift_of_a_position_moves_values_by_itself(backend: str, problem: Problem, shift: float) -> None:
    s = problem.make(backend)
    if s.unary.shape[1] == 0:
        return
    moved = problem.make(backend, unary=torch.cat([s.unary[:, :1] + shift, s.unary[:, 1:]], 1))
    by = shift * s.mask[:, 0].double()
    torch.testing.assert_close(moved.max(), s.max() + by, rtol=1e-11, atol=1e-9)
    torch.testing.assert_close(moved.log_partition(), s.log_partition() + by, rtol=1e-11, atol=1e-9)
    torch.testing.assert_close(moved.entropy(), s.entropy(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(moved.marginals().unary, s.marginals().unary, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
@given(problem=chains())
def test_gradients_are_finite_and_name_no_forbidden_part(backend: str, problem: Problem) -> None:
    leaves = problem.leaves()
    s = problem.make(backend, **leaves)
    for value in (s.max(), s.log_partition(), s.entropy(), s.topk(2)[1][1]):
        gradients = torch.autograd.grad(
            torch.where(value.isinf(), 0.0, value).sum(), list(leaves.values()), allow_unused=True
        )
        for x, g in zip(leaves.values(), gradients, strict=True):
            if g is not None:
                assert g.isfinite().all()
                assert not g[x == NEG_INF].any()


@settings(max_examples=6)
@given(problem=chains())
def test_triton_agrees_with_the_reference(problem: Problem) -> None:
    s, expected = problem.make("triton"), problem.make("reference")
    assert torch.equal(s._best()[0], expected._best()[0])
    for query in ("max", "log_partition"):
        torch.testing.assert_close(getattr(s, query)(), getattr(expected, query)(), rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(s.marginals().unary, expected.marginals().unary, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(s.marginals().transition, expected.marginals().transition, rtol=1e-8, atol=1e-8)
