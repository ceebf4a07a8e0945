"""Alignment: every query of every backend against enumeration, and what the contract says of odd inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alignment_cases import (
    FIELDS,
    MODES,
    AlignmentCase,
    alignment_cases,
    band_cases,
    forbidden_cases,
    square_cases,
    tie_cases,
)
from cases import QUERIES, assert_close
from oracles import Row
from queries import CHECKS
from torch import Tensor

import structlearn as sl
from structlearn.errors import ArgumentError, DTypeError, LabelError, LengthsError, PotentialError, ShapeError

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BACKENDS = ("reference", "cpu")


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [*alignment_cases(), *square_cases()], ids=str)
def test_query_equals_enumeration(case: AlignmentCase, backend: str, query: str) -> None:
    CHECKS[query](case.problem().make(backend), case.problem())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [*tie_cases(), *band_cases()], ids=str)
def test_ties_and_bands(case: AlignmentCase, backend: str) -> None:
    for query in QUERIES:
        CHECKS[query](case.problem().make(backend), case.problem())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", forbidden_cases(), ids=str)
def test_forbidden_parts_and_rows(case: AlignmentCase, backend: str) -> None:
    problem = case.problem()
    dead = sum(not row.feasible for row in problem.rows)
    if case.mode == "global":  # elsewhere matching nothing is free
        assert 0 < dead < len(case.x_lengths), "the case must mix both kinds of rows"
    for query in QUERIES:
        CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [*alignment_cases(), *forbidden_cases()], ids=str)
def test_gradients_of_max_and_log_partition(case: AlignmentCase, backend: str) -> None:
    problem = case.problem()
    weight = torch.linspace(-1.5, 2.0, len(case.x_lengths), dtype=case.dtype)
    for of, query in ((Row.best_parts, "max"), (Row.expected_parts, "log_partition")):
        leaves = problem.leaves()
        value = getattr(problem.make(backend, **leaves), query)()
        value.backward(weight.masked_fill(value == float("-inf"), 1.0))
        grad = [float(w) for w in weight.masked_fill(value.detach() == float("-inf"), 1.0)]
        expected = problem.expected(of, grad)
        for name, leaf in leaves.items():
            assert_close(leaf.grad, expected[name], case.dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("affine", [False, True])
def test_gradcheck(mode: str, affine: bool, backend: str) -> None:
    case = AlignmentCase("gradcheck", mode=mode, affine=affine, x_lengths=(3, 2), y_lengths=(2, 3), N=3, M=3, seed=9)
    problem = case.problem()
    leaves = {name: x.nan_to_num(0.0).requires_grad_() for name, x in problem.potentials.items()}
    path = problem.make(backend).sample(1)[0]

    def query(name: str, *values: Tensor) -> Any:
        s = problem.make(backend, **dict(zip(leaves, values, strict=True)))
        return s.score(path) if name == "score" else getattr(s, name)()

    for name in ("log_partition", "entropy", "score"):
        assert torch.autograd.gradcheck(lambda *v, name=name: query(name, *v), tuple(leaves.values()))
    assert torch.autograd.gradgradcheck(lambda *v: query("log_partition", *v), tuple(leaves.values()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("affine", [False, True])
def test_reversal(mode: str, affine: bool, backend: str) -> None:
    """Reading both sequences backwards changes neither max nor log Z, if opening scores the same at every position."""
    g = torch.Generator().manual_seed(3)
    match = torch.randn((3, 7, 5), generator=g, dtype=torch.float64)
    gap_x, gap_y = (
        torch.randn((3, 7), generator=g, dtype=torch.float64),
        torch.randn((3, 5), generator=g, dtype=torch.float64),
    )
    if affine:  # the first position of a gap becomes its last, so scores by position would move
        gap_x, gap_y = gap_x[:, :1].expand(3, 7), gap_y[:, :1].expand(3, 5)
    gap_open = torch.randn(3, generator=g, dtype=torch.float64) if affine else None
    options: dict[str, Any] = {"gap_open": gap_open, "mode": mode, "backend": backend}
    one = sl.Alignment(match, gap=(gap_x, gap_y), **options)
    other = sl.Alignment(match.flip(1, 2), gap=(gap_x.flip(1), gap_y.flip(1)), **options)
    assert_close(one.max(), other.max(), torch.float64)
    assert_close(one.log_partition(), other.log_partition(), torch.float64)
    assert_close(one.marginals().match, other.marginals().match.flip(1, 2), torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", alignment_cases(), ids=str)
def test_posteriors_add_up(case: AlignmentCase, backend: str) -> None:
    """Every position is matched or stands in a gap; where gaps are free the paid ones leave room below 1."""
    p = case.problem().make(backend).marginals()
    gap_x = p.gap_x if p.open_x is None else p.gap_x + p.open_x
    gap_y = p.gap_y if p.open_y is None else p.gap_y + p.open_y
    for total, lengths in ((p.match.sum(2) + gap_x, case.x_lengths), (p.match.sum(1) + gap_y, case.y_lengths)):
        full = (torch.arange(total.shape[1]) < torch.tensor(lengths)[:, None]).double()
        if case.mode == "global":
            assert_close(total, full, case.dtype)
        assert bool((total.double() <= full + 1e-5).all())


def test_gap_scores_in_every_shape() -> None:
    g = torch.Generator().manual_seed(1)
    match = torch.randn((2, 3, 4), generator=g, dtype=torch.float64)
    per_pair = torch.tensor([-1.0, -2.0], dtype=torch.float64)

    def value(gap: Any, **options: Any) -> Tensor:
        return sl.Alignment(match, gap=gap, **options).log_partition()

    scalar = torch.tensor(-1.0, dtype=torch.float64)
    full = (torch.full((2, 3), -1.0, dtype=torch.float64), torch.full((2, 4), -1.0, dtype=torch.float64))
    for gap in (-1, -1.0, scalar, per_pair[:1].expand(2), full, (-1.0, full[1]), (scalar, -1.0)):
        assert_close(value(gap), value(-1.0), torch.float64)
    assert_close(value(per_pair)[1], value(-2.0)[1], torch.float64)
    assert_close(value(-1.0, gap_open=-1.0), value(-1.0), torch.float64)
    assert not torch.allclose(value((-1.0, -2.0)), value((-2.0, -1.0)))


def test_gradient_reaches_a_shared_gap_score() -> None:
    gap = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    gap_open = torch.tensor([-2.0, -3.0], dtype=torch.float64, requires_grad=True)
    match = torch.randn((2, 3, 4), dtype=torch.float64)

    def log_z(gap: Tensor, gap_open: Tensor) -> Tensor:
        return sl.Alignment(match, gap=gap, gap_open=gap_open).log_partition()

    assert torch.autograd.gradcheck(log_z, (gap, gap_open))


@pytest.mark.parametrize("n", range(6))
def test_counts_are_delannoy_numbers(n: int) -> None:
    def delannoy(a: int, b: int) -> int:
        return 1 if a == 0 or b == 0 else delannoy(a - 1, b) + delannoy(a, b - 1) + delannoy(a - 1, b - 1)

    for mode, affine in (("global", True), ("global", False), ("semiglobal", True)):
        s = sl.Alignment(torch.zeros((1, n, 4)), gap=0.0, gap_open=0.0 if affine else None, mode=mode)  # type: ignore[arg-type]
        assert s.count().tolist() == [delannoy(n, 4)]


def test_pairs_and_equal_outputs() -> None:
    match = torch.zeros((3, 3, 3))
    lengths = {"x_lengths": [3, 2, 0], "y_lengths": [3, 1, 0]}
    y = torch.tensor([[1, 0, 2, 0, 2, 9], [2, 1, 1, -100, 0, 0], [-100] * 6])
    s = sl.Alignment(match, gap=0.0, **lengths)  # type: ignore[arg-type]
    assert s.pairs(y)[0].tolist() == [[1, 0], [2, 2], [-100, -100]]
    assert s.score(y).tolist() == [0.0, 0.0, 0.0]
    assert s.pairs(y)[1:].eq(-100).all()
    other = torch.tensor([[1, 0, 2, 0, 7, 7], [1, 2, 1, 0, 0, 0], [5] * 6])
    assert s.same_output(y, other).tolist() == [True, False, True]
    local = sl.Alignment(match, gap=0.0, mode="local", **lengths)  # type: ignore[arg-type]
    assert local.same_output(y, other).tolist() == [True, True, True]


def test_mistakes_are_named() -> None:
    match = torch.zeros((2, 3, 4))
    with pytest.raises(ShapeError, match=r"match: expected \(B, N, M\), got \(3, 4\)"):
        sl.Alignment(match[0], gap=-1.0)
    with pytest.raises(ShapeError, match=r"gap: expected .* got \(2, 3\); scores by position come as a pair"):
        sl.Alignment(match, gap=torch.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"gap_open: .*\(B, M\) = \(2, 4\), got \(2, 3\)"):
        sl.Alignment(match, gap=-1.0, gap_open=(torch.zeros((2, 3)), torch.zeros((2, 3))))
    with pytest.raises(DTypeError, match="gap: expected a number or a tensor, got str"):
        sl.Alignment(match, gap="-1")  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match=r"gap: expected torch\.float32"):
        sl.Alignment(match, gap=torch.tensor(-1.0, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="mode: expected one of"):
        sl.Alignment(match, gap=-1.0, mode="glocal")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="band: expected an integer >= 0"):
        sl.Alignment(match, gap=-1.0, band=-1)
    with pytest.raises(LengthsError, match=r"y_lengths: expected values in 0\.\.4"):
        sl.Alignment(match, gap=-1.0, y_lengths=[5, 1])
    with pytest.raises(PotentialError, match=r"match: expected no NaN at unpadded places, got NaN at \(1, 2, 0\)"):
        sl.Alignment(
            match.index_put((torch.tensor(1), torch.tensor(2), torch.tensor(0)), torch.tensor(float("nan"))),
            gap=-1.0,
            validate=True,
        )
    too_long = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [0, 0, 2, 1, 1, 2, 2]])
    for backend in BACKENDS:
        s = sl.Alignment(match, gap=-1.0, backend=backend)
        with pytest.raises(
            LabelError, match="3 positions of x and 4 of y, got 1 at operation 4 of batch row 1, after 3 and 3; 0 match"
        ):
            s.score(too_long)
        with pytest.raises(LabelError, match=r"operations 0, 1 or 2 .*got -100 at operation 0 of batch row 0"):
            s.score(torch.full((2, 7), -100))


def test_replace_keeps_the_space() -> None:
    case = AlignmentCase("replace", mode="semiglobal", affine=True, band=1)
    s = case.problem().make("reference")
    t = s.replace(match=s.match * 2)
    assert (t.mode, t.band, t.backend) == ("semiglobal", 1, "reference")
    assert t.x_lengths.tolist() == list(case.x_lengths)
    assert set(t.potentials) == set(FIELDS)
    assert_close(t.replace(match=s.match).log_partition(), s.log_partition(), torch.float64)
