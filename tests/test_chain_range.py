"""Potentials of wide range, where products of probabilities underflow: values and gradients must not notice.

The C++ kernels work with scaled probabilities and fall back to log space row by row; every case here is one
that loses digits, or everything, if that decision is late.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cases import DTYPES, NEG_INF, Problem, numbers
from torch import Tensor

import structlearn as sl

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def span(problem: Problem) -> float:
    """Length times the largest size of a finite potential: what a score can grow to."""
    return problem.potentials["unary"].shape[1] * max(
        float(x[x.isfinite()].abs().max()) for x in problem.potentials.values()
    )


def compare(
    found: dict[str, Tensor | None], unary: np.ndarray, pairs: np.ndarray, weight: np.ndarray, atol: float
) -> None:
    """Gradients of sum_b weight_b log Z_b against the marginals of every row."""
    unary = unary * weight[:, None, None]
    pairs = pairs * weight[:, None, None, None]
    shared = found["transition"].dim() == 2
    expected = {
        "unary": (unary, 1),
        "start": (unary[:, 0].sum(0), len(unary)),
        "end": (unary[:, -1].sum(0), len(unary)),
    }
    expected["transition"] = (pairs.sum((0, 1)), len(unary) * pairs.shape[1]) if shared else (pairs, 1)
    for name, x in found.items():
        if x is not None:
            value, terms = expected[name]
            np.testing.assert_allclose(numbers(x), value, rtol=0, atol=atol * terms, err_msg=name)


def check(problem: Problem, backend: str = "cpu") -> None:
    """log Z, entropy and their gradients' ingredients against float64 in log space, row by row."""
    eps = torch.finfo(problem.dtype).eps
    # Kernels keep sums relative at every position; the others let them grow, so they lose that many digits more.
    atol = eps * span(problem) * (0.3 if backend == "cpu" and problem.dtype is torch.float32 else 4.0) + 20 * eps
    leaves = problem.leaves()
    s = problem.make(backend, **leaves)
    log_z = s.log_partition()
    rows = [row for row in problem.log_space if row is not None]
    assert len(rows) == len(log_z)
    np.testing.assert_allclose(numbers(log_z), [row.log_partition for row in rows], rtol=4 * eps, atol=atol)
    dead = log_z.isinf()
    unary = np.stack([row.unary_marginals() for row in rows])
    pairs = np.stack([row.pair_marginals() for row in rows])
    # Equal weights, unequal ones and no tape are three ways through the kernels.
    weights = torch.linspace(-1.0, 1.0, len(rows), dtype=problem.dtype)
    for weight in (torch.ones_like(log_z), weights):
        gradients = torch.autograd.grad(problem.make(backend, **leaves).log_partition(), list(leaves.values()), weight)
        compare(dict(zip(leaves, gradients, strict=True)), unary, pairs, numbers(weight), atol)
    compare(problem.make(backend).marginals()._asdict(), unary, pairs, np.ones(len(rows)), atol)
    np.testing.assert_allclose(
        numbers(s.entropy()), [0.0 if d else row.entropy for d, row in zip(dead, rows, strict=True)], atol=4 * atol
    )
    # The best score is a plain sum along the path, one rounding an addition.
    best = [row.viterbi()[1] for row in rows]
    np.testing.assert_allclose(numbers(s.max()), best, rtol=eps * unary.shape[1], atol=atol)


def problem(
    unary: Tensor, transition: Tensor, dtype: torch.dtype, per_position: bool = False, **edges: Tensor
) -> Problem:
    b, n, c = unary.shape
    if per_position:
        transition = transition.expand(b, n - 1, c, c)
    return Problem(
        sl.LinearChain,
        {name: x.to(dtype).clone() for name, x in {"unary": unary, "transition": transition, **edges}.items()},
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("spread", [3.0, 10.0, 30.0, 60.0, 100.0, 300.0, 1000.0])
@pytest.mark.parametrize("C", [2, 5, 9, 17])
def test_random_potentials(C: int, spread: float, per_position: bool, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(C)
    unary, transition, edge = (torch.randn(shape, generator=g) * spread for shape in ((9, 12, C), (C, C), (C,)))
    check(problem(unary, transition, dtype, per_position, start=edge, end=edge.flip(0)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [50.0, 200.0, 1000.0])
@pytest.mark.parametrize("backend", ["cpu", "reference", "torch-struct", "triton"])
def test_alternating_potentials(backend: str, size: float, dtype: torch.dtype) -> None:
    B, N, C = (2, 4, 2) if backend == "triton" else (10, 8, 3)
    sign = torch.tensor([-1.0, 1.0])[(torch.arange(B)[:, None, None] + torch.arange(N)[:, None] + torch.arange(C)) % 2]
    noise = torch.rand((B, N, C), generator=torch.Generator().manual_seed(1))
    against = torch.tensor([-1.0, 1.0])[(torch.arange(C)[:, None] + torch.arange(C)) % 2] * size / 2
    check(problem(sign * size + noise, against, dtype), backend)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("forbidden", [-1e4, NEG_INF])
@pytest.mark.parametrize("per_position", [False, True])
def test_start_and_stop_labels(per_position: bool, forbidden: float, dtype: torch.dtype) -> None:
    """Labels that nothing may precede or follow, as tutorials write them."""
    g = torch.Generator().manual_seed(2)
    C = 7
    unary, transition = torch.randn((10, 9, C), generator=g), torch.randn((C, C), generator=g)
    transition[:, C - 2], transition[C - 1, :] = forbidden, forbidden
    start, end = torch.full((C,), forbidden), torch.zeros(C)
    start[: C - 2] = torch.randn(C - 2, generator=g)
    check(problem(unary, transition, dtype, per_position, start=start, end=end))
    start[: C - 2], start[C - 2] = forbidden, 0.0
    check(problem(unary, transition, dtype, per_position, start=start, end=end))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["cpu", "reference", "triton"])
def test_partial_labels(backend: str, dtype: torch.dtype) -> None:
    """-inf unaries leave one, two or all labels; the mass sits on labellings that the scores dislike."""
    g = torch.Generator().manual_seed(3)
    B, N, C = (2, 4, 3) if backend == "triton" else (11, 10, 6)
    unary, transition = 20 * torch.randn((B, N, C), generator=g), 20 * torch.randn((C, C), generator=g)
    allowed = torch.zeros(B, N, C, dtype=torch.bool)
    worst = unary.argmin(-1, keepdim=True)
    allowed.scatter_(-1, worst, True).scatter_(-1, (worst + 1) % C, torch.rand((B, N, 1), generator=g) < 0.5)
    allowed |= torch.rand((B, N, 1), generator=g) < 0.2
    unary = unary.masked_fill(~allowed, NEG_INF)
    unary[1, 2] = NEG_INF
    check(problem(unary, transition, dtype), backend)
    check(problem(unary, transition, dtype, per_position=True), backend)


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_posterior_sits_where_the_forward_sums_are_lost(
    dtype: torch.dtype, mirrored: bool, per_position: bool
) -> None:
    """Label 2 carries the answer through a position where its forward value is below the smallest normal number.

    ``reach`` is how unlikely the way into labels 1 and 2 is, ``gap`` how much label 2 loses to label 1 there, and
    ``back`` what label 1 pays to return: the answer is max(-reach - gap, -reach - back), the sum lies between.
    """
    ways = (5.0, 20.0, 40.0, 55.0, 61.0, 63.0, 64.0, 66.0, 80.0, 87.0, 88.0, 103.0, 300.0, 640.0, 644.0, 650.0, 708.0)
    rows, steps = [], []
    for reach, gap, ahead in itertools.product(ways, (10.0, 25.4, 26.0, 64.0, 90.0, 300.0), (-0.5, 0.2, 2.0)):
        step = torch.zeros((3, 3), dtype=torch.float64)
        step[0, 1] = step[0, 2] = -reach
        step[1, 2] = -gap + ahead
        unary = torch.tensor(
            [[0.0, -900.0, -900.0], [-3000.0, 0.0, -gap], [-900.0, -900.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64
        )
        rows.append(unary.flip(0) if mirrored else unary)
        steps.append(step.T if mirrored else step)
    if per_position:
        check(problem(torch.stack(rows), torch.stack(steps)[:, None], dtype, per_position=True))
        return
    for unary, step in zip(rows[::2], steps[::2], strict=True):
        check(problem(unary[None], step, dtype))
        check(problem(unary[None] + torch.linspace(0, 2, 9)[:, None, None] * torch.eye(4, 3), step, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_hard_row_leaves_its_group_alone(dtype: torch.dtype) -> None:
    """Rows share registers; one that falls back must not disturb the others, nor count twice in the shared sums."""
    g = torch.Generator().manual_seed(4)
    unary, transition = torch.randn((11, 10, 5), generator=g), torch.randn((5, 5), generator=g)
    for b in range(11):
        hard = unary.clone()
        hard[b] *= 200
        check(problem(hard, transition, dtype))
        hard[b, 4] = NEG_INF
        check(problem(hard, transition, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_chains_keep_their_digits(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(5)
    for spread in (1.0, 8.0, 40.0):
        check(problem(spread * torch.randn((3, 400, 4), generator=g), spread * torch.randn((4, 4), generator=g), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_constant_added_everywhere_changes_nothing_but_the_value(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(6)
    unary, transition = torch.randn((4, 6, 5), generator=g), torch.randn((5, 5), generator=g)
    for shift in (-3e4, 3e4):
        check(problem(unary + shift, transition - shift / 2, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["transition", "unary"])
@pytest.mark.parametrize("huge", [1e15, 1e20, 1e25, 1e30])
def test_log_partition_beside_huge_scores_that_no_output_has(dtype: torch.dtype, where: str, huge: float) -> None:
    unary = torch.tensor([[[1000.0, NEG_INF], [20000.0, 0.0]]], dtype=dtype)
    transition = torch.tensor([[3.0, NEG_INF], [0.0, 0.0]], dtype=dtype)
    if where == "transition":
        transition[1, 1] = huge
    else:
        unary[0, 1, 1] = huge
    chain = sl.LinearChain(unary, transition.requires_grad_(), backend="cpu")
    assert chain.log_partition().item() == 21003.0
    assert chain.log_partition_and_marginals()[0].item() == 21003.0
