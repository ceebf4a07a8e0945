"""Gradients of LinearChain: against enumeration, by finite differences, and where derivatives end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import BACKENDS, ChainCase, Problem, assert_close, chain_cases, forbidden_cases, tie_cases
from oracles import Row
from torch import Tensor

import structlearn as sl
from structlearn.errors import DerivativeError

poisoned = pytest.mark.usefixtures("poisoned_memory")
FAST = ("reference", "cpu", "torch-struct")
GRAD = (0.5, -2.0, 1.5, 3.0, -1.0)


def gradients(problem: Problem, backend: str, of: Callable[[Any], Tensor]) -> dict[str, Tensor]:
    """d (GRAD . of(structure)) / d potentials."""
    leaves = problem.leaves()
    value = of(problem.make(backend, **leaves))
    grad = torch.tensor(GRAD, dtype=problem.dtype)
    found = torch.autograd.grad(torch.where(value.isinf(), 0.0, value) @ grad, list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def check(problem: Problem, found: dict[str, Tensor], of: Callable[[Row], Any]) -> None:
    expected = problem.expected(of, GRAD)
    for name, value in found.items():
        assert value.shape == problem.potentials[name].shape
        assert_close(value, expected[name], problem.dtype, scale=5.0)


@poisoned
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [*chain_cases()[::3], *forbidden_cases()[::3]], ids=str)
def test_first_derivatives(case: ChainCase, backend: str) -> None:
    problem = case.problem()
    check(problem, gradients(problem, backend, lambda s: s.log_partition()), Row.expected_parts)
    check(problem, gradients(problem, backend, lambda s: s.max()), Row.best_parts)
    if backend == "triton" and case.forbidden:
        return

    def second_best(row: Row) -> Any:
        weights = np.zeros(len(row.outputs))
        best = row.topk(2)
        if len(best) == 2:
            weights[row.outputs.index(best[1][0])] = 1.0
        return row.expected_parts(weights)

    check(problem, gradients(problem, backend, lambda s: s.topk(2)[1][1]), second_best)

    def first_output(row: Row) -> Any:
        return row.expected_parts(np.eye(len(row.outputs))[0])

    y = torch.zeros(problem.potentials["unary"].shape[:2], dtype=torch.int64)
    leaves = problem.leaves()
    problem.make(backend, **leaves).score(y).backward(torch.tensor(GRAD, dtype=problem.dtype))
    check(problem, {name: x.grad for name, x in leaves.items() if x.grad is not None}, first_output)


@poisoned
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("case", tie_cases()[::3], ids=str)
def test_the_gradient_of_max_marks_the_lowest_output_among_equals(case: ChainCase, backend: str) -> None:
    check(case.problem(), gradients(case.problem(), backend, lambda s: s.max()), Row.best_parts)


@poisoned
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("per_position", [False, True])
def test_forbidden_rows_and_padding_get_exactly_zero(per_position: bool, backend: str) -> None:
    case = ChainCase("dead", B=5, dead=(0, 2), per_position=per_position, start=True, end=True, dtype=torch.float32)
    for query in ("max", "log_partition", "entropy"):
        leaves = case.problem().leaves()
        value = getattr(case.problem().make(backend, **leaves), query)()
        expected = [0.0, 0.0] if query == "entropy" else [-np.inf, -np.inf]
        assert value[[0, 2]].tolist() == expected
        value.sum().backward()
        for x in leaves.values():
            assert x.grad is not None
            assert x.grad.isfinite().all()
        for b, n in enumerate(case.lengths or ()):
            kept = 0 if b in case.dead else n
            assert not leaves["unary"].grad[b, kept:].any()  # type: ignore[index]
            if per_position:
                assert not leaves["transition"].grad[b, max(kept - 1, 0) :].any()  # type: ignore[index]
        assert leaves["unary"].grad[1].any()  # type: ignore[index]


SMALL = [
    ChainCase("shared", B=3, N=3, C=2, lengths=(3, 1, 2), start=True, end=True, spread=1.0),
    ChainCase("steps", B=2, N=3, C=3, lengths=(3, 0), per_position=True, end=True, spread=1.0),
    ChainCase("forbidden", B=3, N=3, C=2, lengths=None, forbidden=0.15, dead=(1,), spread=1.0, seed=5),
]


def finite_inputs(
    case: ChainCase, backend: str, of: Callable[[Any], Tensor]
) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """``of`` as a function of the finite unpadded potentials alone; differences cannot move the others."""
    problem = case.problem()
    where = {name: x.isfinite() for name, x in problem.potentials.items()}

    def function(*flat: Tensor) -> Tensor:
        moved = {
            name: x.masked_scatter(where[name], v)
            for (name, x), v in zip(problem.potentials.items(), flat, strict=True)
        }
        value = of(problem.make(backend, **moved))
        return value[value.isfinite()]

    return function, tuple(x[where[name]].clone().requires_grad_() for name, x in problem.potentials.items())


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_gradcheck(case: ChainCase, backend: str) -> None:
    y = torch.zeros((case.B, case.N), dtype=torch.int64)
    for of in (
        lambda s: s.log_partition(),
        lambda s: s.entropy(),
        lambda s: s.max(),
        lambda s: s.topk(3)[1],
        lambda s: s.score(y),
        lambda s: s.marginals().unary,
        lambda s: s.marginals().transition,
    ):
        assert torch.autograd.gradcheck(*finite_inputs(case, backend, of))


def test_gradcheck_triton() -> None:
    case = ChainCase("tiny", B=2, N=2, C=2, lengths=(2, 1), start=True, end=True, spread=1.0)
    assert torch.autograd.gradcheck(*finite_inputs(case, "triton", lambda s: s.log_partition()))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_gradgradcheck(case: ChainCase, backend: str) -> None:
    y = torch.zeros((case.B, case.N), dtype=torch.int64)
    for of in (lambda s: s.log_partition(), lambda s: s.max(), lambda s: s.score(y)):
        assert torch.autograd.gradgradcheck(*finite_inputs(case, backend, of))


@pytest.mark.parametrize("case", [*chain_cases()[::5], *forbidden_cases()[::3]], ids=str)
def test_second_derivatives_agree_with_the_reference(case: ChainCase) -> None:
    found = []
    for backend in ("reference", "cpu"):
        leaves = case.problem().leaves()
        log_z = case.problem().make(backend, **leaves).log_partition()
        first = torch.autograd.grad(
            torch.where(log_z.isinf(), 0.0, log_z).sum(), list(leaves.values()), create_graph=True
        )
        product = sum((g * torch.linspace(-1, 1, g.numel(), dtype=g.dtype).view(g.shape)).nansum() for g in first)
        found.append(torch.autograd.grad(product, list(leaves.values())))
    for cpu, reference in zip(found[1], found[0], strict=True):
        assert cpu.isfinite().all()
        tight = case.dtype is torch.float64
        torch.testing.assert_close(cpu, reference, rtol=1e-8 if tight else 1e-3, atol=1e-9 if tight else 1e-4)


def test_derivatives_end_with_a_clear_error() -> None:
    problem = SMALL[0].problem()

    def derivative(backend: str, order: int) -> None:
        leaves = problem.leaves()
        value = problem.make(backend, **leaves).log_partition().sum()
        for _ in range(order):
            (value,) = torch.autograd.grad(value, leaves["unary"], create_graph=True)
            value = (value**2).sum()

    derivative("reference", 3)
    derivative("cpu", 2)
    derivative("triton", 1)
    with pytest.raises(
        DerivativeError, match=r"log_partition: expected at most two derivatives, got a third.*reference"
    ):
        derivative("cpu", 3)
    with pytest.raises(
        DerivativeError, match=r"second derivative of log_partition, got 'triton'; pass backend='reference'"
    ):
        derivative("triton", 2)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("only", ["unary", "transition", "start", "end"])
def test_one_potential_alone_asks_for_gradients(only: str, backend: str) -> None:
    problem = ChainCase("only", B=3, N=3, C=3, lengths=(3, 1, 0), start=True, end=True).problem()
    x = problem.potentials[only].clone().requires_grad_()
    s = problem.make(backend, **{only: x})
    for value in (
        s.log_partition(),
        s.entropy(),
        s.max(),
        s.topk(2)[1][0],
        s.score(torch.zeros((3, 3), dtype=torch.int64)),
    ):
        (g,) = torch.autograd.grad(value.sum(), x, retain_graph=True)
        assert g.isfinite().all()
    s.log_partition().sum().backward()
    assert x.grad is not None
    assert_close(x.grad, problem.expected()[only], problem.dtype)
    (differentiable,) = torch.autograd.grad(getattr(s.marginals(), only).square().sum(), x)
    assert differentiable.isfinite().all()


def test_marginals_are_the_gradient_in_the_same_pass() -> None:
    problem = ChainCase("pass").problem()
    leaves = problem.leaves()
    m = sl.LinearChain(**leaves, lengths=problem.lengths).marginals()
    assert m.unary.requires_grad
    assert m.start is None
    assert m.end is None


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_potentials_that_short_chains_do_not_use_have_gradients(backend: str, n: int) -> None:
    leaves = [torch.randn(size, requires_grad=True) for size in ((2, n, 3), (3, 3), (3,), (3,))]
    s = sl.LinearChain(*leaves[:2], start=leaves[2], end=leaves[3], backend=backend)
    for value in (s.log_partition(), s.max(), s.entropy()):
        found = torch.autograd.grad(value.sum(), leaves)
        assert found[1].tolist() == [[0.0] * 3] * 3
