"""Categorical: every query against enumeration, gradients and sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import DTYPES, QUERIES, Problem, assert_close, categorical_problem, numbers
from oracles import Row
from queries import CHECKS

import structlearn as sl
from structlearn.errors import BackendError

KINDS = ("plain", "ties", "forbidden", "one class")


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_query_equals_enumeration(dtype: torch.dtype, kind: str, query: str) -> None:
    problem = categorical_problem(dtype, kind)
    for backend in ("auto", "reference"):
        CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str) -> None:
    problem = categorical_problem(torch.float64, kind)
    for query, of in (("log_partition", Row.expected_parts), ("max", Row.best_parts)):
        leaves = problem.leaves()
        value = getattr(problem.make(**leaves), query)()
        torch.where(value.isinf(), 0.0, value).sum().backward()
        assert_close(leaves["scores"].grad, problem.expected(of)["scores"], problem.dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "ties"])
def test_gradcheck(kind: str) -> None:
    scores = categorical_problem(torch.float64, kind).potentials["scores"]
    where = scores.isfinite()
    y = torch.zeros(len(scores), dtype=torch.int64)

    def function(query: str, x: torch.Tensor) -> torch.Tensor:
        s = sl.Categorical(scores.masked_scatter(where, x))
        value = {"topk": lambda: s.topk(3)[1], "score": lambda: s.score(y), "marginals": lambda: s.marginals().scores}
        found = value.get(query, getattr(s, query))()
        return found[found.isfinite()]

    x = scores[where].clone().requires_grad_()
    for query in ("log_partition", "entropy", "max", "topk", "score", "marginals"):
        assert torch.autograd.gradcheck(lambda v, query=query: function(query, v), (x,))
    for query in ("log_partition", "entropy", "marginals"):
        assert torch.autograd.gradgradcheck(lambda v, query=query: function(query, v), (x,))


def test_forbidden_rows_leave_the_others_alone() -> None:
    scores = categorical_problem(torch.float32, "forbidden").potentials["scores"].clone().requires_grad_()
    s = sl.Categorical(scores)
    for value in (s.log_partition(), s.max(), s.entropy(), s.marginals().scores[:, 0], s.topk(2)[1][0]):
        (gradient,) = torch.autograd.grad(torch.where(value.isinf(), 0.0, value).sum(), scores, retain_graph=True)
        assert gradient.isfinite().all()
        assert not gradient[2].any()
    assert s.sample(4)[:, 2].tolist() == [-100] * 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e2, 1e4])
def test_wide_range(size: float, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    scores = (torch.randn((6, 5), generator=g) + size * torch.tensor([1.0, 1.0, -1.0, 1.0, 0.0])).to(dtype)
    problem = Problem(sl.Categorical, {"scores": scores})
    s = problem.make()
    tight = {"rtol": 1e-5 if dtype is torch.float32 else 1e-12}
    np.testing.assert_allclose(numbers(s.marginals().scores), problem.expected()["scores"], atol=1e-7, **tight)
    np.testing.assert_allclose(numbers(s.entropy()), [row.entropy for row in problem.rows], **tight)
    np.testing.assert_allclose(numbers(s.log_partition()), [row.log_partition for row in problem.rows], **tight)


def test_sampling_frequencies_and_reproducibility() -> None:
    problem = categorical_problem(torch.float64, "forbidden")
    s, n = problem.make(), 20_000
    drawn = s.sample(n, torch.Generator().manual_seed(3))
    assert torch.equal(drawn, s.sample(n, torch.Generator().manual_seed(3)))
    for b, row in enumerate(problem.rows):
        if row.feasible:
            seen = np.bincount(drawn[:, b].numpy(), minlength=4)
            possible = row.probabilities > 0
            assert not seen[~possible].any()
            expected = n * row.probabilities[possible]
            chi2 = ((seen[possible] - expected) ** 2 / expected).sum()
            assert chi2 < 25.0, "the 0.9999 quantile of chi-square at 4 degrees of freedom is 23.5"


def test_half_precision_and_empty_batches() -> None:
    s = sl.Categorical(torch.randn(3, 4, dtype=torch.bfloat16))
    assert s.log_partition().dtype is torch.float32
    empty = sl.Categorical(torch.zeros(0, 3))
    assert empty.argmax().shape == empty.max().shape == empty.log_partition().shape == empty.entropy().shape == (0,)
    assert empty.topk(2)[0].shape == empty.sample(2).shape == (2, 0)


def test_only_the_reference_runs_it() -> None:
    with pytest.raises(
        BackendError, match=r"backend: expected one of \('auto', 'reference'\).*got 'cpu'; pass backend='auto'"
    ):
        sl.Categorical(torch.zeros(1, 2), backend="cpu")


def test_compiles_whole() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        s = sl.Categorical(scores)
        return (s.log_partition() - s.score(y) + s.entropy() + s.max()).sum() + s.topk(2)[1].sum()

    x, y = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 3, 1])
    loss(x, y).backward()
    compiled, x.grad = x.grad, None
    s = sl.Categorical(x)
    ((s.log_partition() - s.score(y) + s.entropy() + s.max()).sum() + s.topk(2)[1].sum()).backward()
    torch.testing.assert_close(compiled, x.grad)
