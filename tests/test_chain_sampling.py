"""Draws from a LinearChain: exact frequencies, reproducible, padded like every other output."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from cases import BACKENDS, ChainCase

import structlearn as sl

DRAWS = {"reference": 6000, "cpu": 20000, "torch-struct": 6000}


def chi_square(counts: Counter[tuple[int, ...]], probabilities: dict[tuple[int, ...], float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom; outputs expected fewer than 5 times are pooled."""
    n = sum(counts.values())
    assert set(counts) <= {y for y, p in probabilities.items() if p > 0}, "an impossible output was drawn"
    cells = [(counts[y], n * p) for y, p in probabilities.items() if n * p >= 5]
    seen, expected = (sum(c[i] for c in cells) for i in (0, 1))
    if n - expected > 1e-6:
        cells.append((n - seen, n - expected))
    return sum((s - e) ** 2 / e for s, e in cells), len(cells) - 1


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("backend", DRAWS)
def test_frequencies_are_the_probabilities(backend: str, per_position: bool) -> None:
    case = ChainCase(
        "drawn",
        B=3,
        N=3,
        C=3,
        lengths=(3, 1, 2),
        per_position=per_position,
        start=True,
        end=True,
        spread=0.7,
        forbidden=0.1,
        seed=2,
    )
    problem = case.problem()
    assert all(row.feasible for row in problem.rows)
    drawn = problem.make(backend).sample(DRAWS[backend], torch.Generator().manual_seed(11))
    assert drawn.shape == (DRAWS[backend], 3, 3)
    for b, row in enumerate(problem.rows):
        n = len(row.outputs[0])
        assert (drawn[:, b, n:] == -100).all()
        counts = Counter(map(tuple, drawn[:, b, :n].tolist()))
        statistic, freedom = chi_square(counts, dict(zip(row.outputs, row.probabilities, strict=True)))
        limit = freedom + 5 * np.sqrt(2 * freedom) + 15  # above the 1 - 1e-6 quantile at every freedom
        assert statistic < limit, f"row {b}: chi-square {statistic:.1f} at {freedom} degrees of freedom"


@pytest.mark.parametrize("per_position", [False, True])
def test_both_kernels_draw_alike_from_a_seed(per_position: bool) -> None:
    """The interpreter is too slow for frequencies; the C++ kernel has the right ones, and the rule is the same."""
    case = ChainCase(
        "alike", B=3, N=4, C=3, lengths=(4, 0, 3), per_position=per_position, start=True, end=True, spread=0.7
    )
    cpu, triton = (case.problem().make(b).sample(12, torch.Generator().manual_seed(1)) for b in ("cpu", "triton"))
    assert torch.equal(cpu, triton)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_repeats_and_draws_are_independent(backend: str) -> None:
    s = ChainCase("repeat", B=2, N=4, C=3, lengths=(4, 3), spread=0.3).problem().make(backend)
    first = s.sample(8, torch.Generator().manual_seed(5))
    assert torch.equal(first, s.sample(8, torch.Generator().manual_seed(5)))
    assert not torch.equal(first, s.sample(8, torch.Generator().manual_seed(6)))
    assert len({tuple(y) for y in first[:, 0].tolist()}) > 1
    torch.manual_seed(9)
    second = s.sample(3)
    torch.manual_seed(9)
    assert torch.equal(second, s.sample(3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_carry_no_gradient_and_default_to_one(backend: str) -> None:
    case = ChainCase("one", B=2, N=2, C=2, lengths=(2, 0), dead=(0,))
    drawn = case.problem().make(backend, **case.problem().leaves()).sample()
    assert not drawn.requires_grad
    assert drawn.tolist() == [[[-100, -100], [-100, -100]]]


def test_many_draws_from_the_reference_cost_one_pass() -> None:
    s = sl.LinearChain(torch.zeros(2, 3, 2), torch.zeros(2, 2), backend="reference")
    drawn = s.sample(20_000, torch.Generator().manual_seed(0))
    assert drawn.double().mean((0, 2)).sub(0.5).abs().max() < 0.01
