"""Random fits of every exact solver: no certificate is false (``tests/svm_cases.py`` runs thousands)."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from svm_cases import Classes, Searched, Whole, make, run

import structlearn as sl
from structlearn.errors import ArgumentError, InfeasibleError
from structlearn.solvers import ConvergenceWarning
from structlearn.solvers import qp as qps


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_no_certificate_is_false(first: int) -> None:
    outcomes = [(seed, run(make(seed))) for seed in range(first, first + 20)]
    assert [(seed, outcome.wrong) for seed, outcome in outcomes if outcome.wrong] == []
    assert sum(outcome.converged for _, outcome in outcomes) >= 17


def contradiction() -> tuple[torch.Tensor, torch.Tensor]:
    """Examples 1 and 3 are one point with two classes."""
    X = torch.tensor([[1.0, 0.0], [0.3, 1.0], [-1.0, 0.4], [0.3, 1.0]], dtype=torch.float64)
    return X, torch.tensor([0, 1, 2, 2])


@pytest.mark.parametrize("qp", [name for name in qps.METHODS if qps.installed(name)])
@pytest.mark.parametrize("variant", ["all", "own"])
def test_contradictory_constraints_are_named_early(qp: str, variant: Any) -> None:
    rounds = []
    model = sl.StructuredSVM(
        sl.features.MulticlassMap(2, 3), sl.costs.ZeroOne(), rescaling=None, penalty="hard", qp=qp, variant=variant
    )
    with pytest.raises(InfeasibleError, match=r"contradict each other.*in examples 1, 3; allow violations"):
        model.fit(*contradiction(), callback=rounds.append)
    assert len(rounds) < 20


def test_a_narrow_margin_is_no_contradiction() -> None:
    X = torch.tensor([[1.0, 1e-4], [1.0, -1e-4]], dtype=torch.float64)
    y = torch.tensor([0, 1])
    got = sl.StructuredSVM(
        sl.features.MulticlassMap(2, 2), sl.costs.ZeroOne(), rescaling=None, penalty="hard", gap=1e-6
    ).fit(X, y)
    # w = (u, -u) with <u, x> = 1/2 and -1/2: u = (0, 5000).
    assert got.certificate_.converged
    assert got.certificate_.primal == pytest.approx(5000.0**2, rel=1e-5)


@pytest.mark.parametrize("solver", ["n_slack", "one_slack", "bcfw"])
@pytest.mark.parametrize("gap", [None, 1e-6])
@pytest.mark.parametrize("penalty", ["linear", "quadratic"])
def test_data_that_w_0_satisfies(solver: Any, gap: float | None, penalty: Any) -> None:
    """Where no mistake costs anything, w = 0 is the optimum and its gap is 0."""
    cost = sl.costs.Hamming(torch.zeros(3))
    X, y = contradiction()
    got = sl.StructuredSVM(
        sl.features.MulticlassMap(2, 3), cost, rescaling="slack", penalty=penalty, solver=solver, gap=gap
    ).fit(X, y)
    assert got.certificate_.converged
    assert (got.certificate_.primal, got.certificate_.dual, got.certificate_.gap) == (0.0, 0.0, 0.0)
    assert not got.coef_.any()


def test_an_inexact_oracle_never_proves_the_optimum() -> None:
    X = [torch.randn(3, 2, dtype=torch.float64) for _ in range(5)]
    y = [torch.randint(3, (3,)) for _ in range(5)]
    with pytest.warns(ConvergenceWarning, match="did not prove"):
        model = sl.StructuredSVM(
            sl.features.ChainMap(2, 3), sl.costs.Hamming(), rescaling="slack", inference="recursion", max_rounds=500
        ).fit(X, y)
    assert not model.certificate_.converged
    assert model.certificate_.round < 500


def test_a_gap_that_float64_cannot_close_ends_in_words() -> None:
    X, y = contradiction()
    model = sl.StructuredSVM(
        sl.features.MulticlassMap(2, 3), sl.costs.ZeroOne(), C=1e6, gap=1e-300, solver="one_slack", max_rounds=2000
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        got = model.fit(X, y).certificate_
    if got.gap > 0:
        assert not got.converged
        assert got.status == "float64 cannot close the gap any further"


TABLE = np.array([[0.0, 1.0, 3.0], [2.0, 0.0, 0.5], [0.0, 1.0, 0.0]])


@pytest.mark.parametrize("solver", ["n_slack", "one_slack", "bcfw"])
@pytest.mark.parametrize("penalty", ["linear", "quadratic"])
def test_output_spaces_know_plain_mistakes(solver: Any, penalty: Any) -> None:
    """With rescaling=None every output of cost > 0 costs 1."""
    X, y = contradiction()
    points = list(X)
    model = sl.StructuredSVM(
        Searched(3, TABLE, False), rescaling=None, penalty=penalty, solver=solver, C=3.0, gap=1e-6
    ).fit(points, y.tolist())
    plain = 1.0 - np.eye(3)
    same = np.where((TABLE > 0) | (plain == 0), TABLE > 0, 0).astype(float)
    again = sl.StructuredSVM(
        Searched(3, same, False), rescaling="slack", penalty=penalty, solver=solver, C=3.0, gap=1e-6
    ).fit(points, y.tolist())
    assert model.certificate_.converged
    assert model.certificate_.primal == pytest.approx(again.certificate_.primal, rel=3e-6)


def test_output_spaces_and_the_hard_margin() -> None:
    X, y = contradiction()
    points, labels = list(X[:3]), y[:3].tolist()
    binary = Classes(3, 1.0 - np.eye(3), True)
    own = sl.StructuredSVM(binary, rescaling=None, penalty="hard", gap=1e-6).fit(points, labels)
    known = sl.StructuredSVM(
        sl.features.MulticlassMap(2, 3), sl.costs.ZeroOne(), rescaling=None, penalty="hard", gap=1e-6
    ).fit(X[:3], y[:3])
    assert own.certificate_.primal == pytest.approx(known.certificate_.primal, rel=3e-6)
    with pytest.raises(InfeasibleError, match="examples 1, 3"):
        sl.StructuredSVM(binary, rescaling=None, penalty="hard").fit(list(X), y.tolist())
    with pytest.raises(ArgumentError, match=r"define Classes\.most_violated for it, or binary = True"):
        sl.StructuredSVM(Classes(3, TABLE, False), rescaling=None).fit(points, labels)
    with pytest.raises(ArgumentError, match=r"cost: expected 0 or 1, as binary = True says, got 3\.0"):
        sl.StructuredSVM(Classes(3, TABLE, True)).fit(points, labels)


def test_an_output_space_that_answers_worse_than_gold_is_not_exact() -> None:
    class Wrong(Classes):
        def argmax(self, w: torch.Tensor, x: torch.Tensor, gold: int | None = None) -> int:
            scores = w.view(self.labels, -1) @ x
            return int(scores.argmin()) if bool(w.any()) else (0 if gold is None else (gold + 1) % self.labels)

    X, y = contradiction()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        got = sl.StructuredSVM(Wrong(3, 1.0 - np.eye(3), True), C=100.0, max_rounds=50).fit(list(X), y.tolist())
    assert not got.certificate_.converged
    assert not got.certificate_.exact


@pytest.mark.parametrize("kind", ["box", "ridge", "hard"])
@pytest.mark.parametrize("seed", range(8))
def test_small_programs_are_solved_to_the_last_digits(kind: str, seed: int) -> None:
    """Duplicated and nearly parallel planes of very different size, a box of 1e-3 to 1e6."""
    g = torch.Generator().manual_seed(seed)
    m, d = 30, 6
    a = torch.randn(m, d, generator=g, dtype=torch.float64)
    a[m // 2 :] = a[: m - m // 2].clone() + (1e-9 if seed % 2 else 0.0)
    if kind == "hard":
        a = a * (a @ torch.ones(d).double()).sign()[:, None]  # w = (1, ..., 1) separates
    else:
        a = a * 10.0 ** torch.randint(-2, 3, (m, 1), generator=g)
    b = torch.ones(m, dtype=torch.float64) if kind == "hard" else torch.rand(m, generator=g, dtype=torch.float64)
    group = torch.arange(m) // 3
    size = 10.0 ** float(torch.randint(-3, 7, (), generator=g))
    box, ridge = {"box": (size, 0.0), "ridge": (math.inf, 1 / size), "hard": (math.inf, 0.0)}[kind]
    program = qps.DualQP(a @ a.T, b, group, box, ridge)
    solution = qps.solve(program, tolerance=1e-8)
    assert solution.bounded
    assert 0 <= solution.gap + 1e-9 * abs(solution.dual) <= 1e-6 * abs(solution.dual)


def test_the_checker_notices_what_is_false() -> None:
    """The harness is worth what it catches."""
    import dataclasses

    from svm_cases import check

    case = make(next(s for s in range(500) if "penalty': 'linear'" in make(s).name and "'gap': 0.001" in make(s).name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.model.fit(*case.data)
    got, whole = case.model.certificate_, Whole(case)
    assert check(case, whole, got) is None
    lower = dataclasses.replace(got, converged=True, dual=got.primal - 0.1 * abs(got.primal) - 1.0)
    assert "converged with gap" in str(check(case, whole, lower))
    assert "above" in str(check(case, whole, dataclasses.replace(got, dual=1.1 * got.primal + 1.0)))
    assert "of a w with" in str(check(case, whole, dataclasses.replace(got, primal=1.1 * got.primal + 1.0)))
