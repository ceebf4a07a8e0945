"""SemiMarkov: every query of every backend against enumeration, and what the contract says of odd inputs."""

from __future__ import annotations

import pytest
import torch
from cases import QUERIES, assert_close
from oracles import Row
from queries import CHECKS
from semimarkov_cases import SemiMarkovCase, cases, combinations, forbidden_cases, tie_cases
from torch import Tensor

import structlearn as sl
from structlearn.errors import DerivativeError

BACKENDS = ("reference", "cpu", "triton")

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(("case", "backend"), combinations(cases(), BACKENDS))
def test_query_equals_enumeration(case: SemiMarkovCase, backend: str, query: str) -> None:
    CHECKS[query](case.problem().make(backend), case.problem())


@pytest.mark.parametrize(("case", "backend"), combinations(forbidden_cases(), BACKENDS))
def test_forbidden_parts_and_rows(case: SemiMarkovCase, backend: str) -> None:
    problem = case.problem()
    assert 0 < sum(not row.feasible for row in problem.rows) < case.B, "the case must mix both kinds of rows"
    for query in QUERIES:
        CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize(("case", "backend"), combinations(tie_cases(), BACKENDS))
def test_ties_go_to_the_lowest_indices(case: SemiMarkovCase, backend: str) -> None:
    for query in ("argmax", "topk", "max"):
        CHECKS[query](case.problem().make(backend), case.problem())


@pytest.mark.parametrize(("case", "backend"), combinations([*cases()[:8], *forbidden_cases()[:4]], BACKENDS))
def test_gradients_equal_enumeration(case: SemiMarkovCase, backend: str) -> None:
    """d max = parts of the best output, d log Z = expected parts, none for rows without output; no NaN anywhere."""
    problem = case.problem()
    grad = torch.linspace(0.5, 2.0, case.B, dtype=case.dtype)
    for query, of in (("log_partition", Row.expected_parts), ("max", Row.best_parts)):
        expected = problem.expected(of, grad.tolist())
        leaves = problem.leaves()
        value = getattr(problem.make(backend, **leaves), query)()
        found = torch.autograd.grad(value, list(leaves.values()), grad)
        for name, g in zip(leaves, found, strict=True):
            assert_close(g, expected[name], case.dtype)


@pytest.mark.parametrize("case", [c for c in cases() if c.dtype is torch.float64 and c.N > 2], ids=str)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_gradcheck(case: SemiMarkovCase, backend: str) -> None:
    """First and second derivatives of log Z, and the gradient of the entropy."""
    problem = case.problem()
    leaves = problem.leaves()
    names = list(leaves)

    def value(query: str, *potentials: Tensor) -> Tensor:
        result = getattr(problem.make(backend, **dict(zip(names, potentials, strict=True))), query)()
        assert isinstance(result, Tensor)
        return result

    # Padding holds NaN, which finite differences would touch.
    clean = tuple(x.detach().nan_to_num(0.0).requires_grad_() for x in leaves.values())
    assert torch.autograd.gradcheck(lambda *x: value("log_partition", *x), clean)
    assert torch.autograd.gradgradcheck(lambda *x: value("log_partition", *x), clean, fast_mode=True)
    assert torch.autograd.gradcheck(lambda *x: value("entropy", *x), clean, fast_mode=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [True, False])
def test_width_one_is_a_linear_chain(backend: str, shared: bool) -> None:
    lengths = torch.tensor([5, 1, 0, 3])
    unary, transition = torch.randn(4, 5, 3), torch.randn(3, 3) if shared else torch.randn(4, 4, 3, 3)
    semi = sl.SemiMarkov(unary[:, :, None], transition, lengths=lengths, backend=backend)
    chain = sl.LinearChain(unary, transition, lengths=lengths, backend=backend)
    assert torch.equal(semi.argmax(), chain.argmax())
    assert torch.equal(semi.topk(3)[0], chain.topk(3)[0])
    for query in ("max", "log_partition", "entropy"):
        torch.testing.assert_close(getattr(semi, query)(), getattr(chain, query)())
    torch.testing.assert_close(semi.marginals().segments[:, :, 0], chain.marginals().unary)
    torch.testing.assert_close(semi.marginals().transition, chain.marginals().transition)


@pytest.mark.parametrize("backend", BACKENDS)
def test_count_is_the_number_of_compositions(backend: str) -> None:
    """C labels and no limit on width: C (C+1)^(n-1) segmentations."""
    s = sl.SemiMarkov(torch.zeros(1, 7, 7, 3), torch.zeros(3, 3), backend=backend)
    assert s.count().tolist() == [3 * 4**6]
    assert_close(s.log_partition().exp(), [3 * 4**6], torch.float32)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_sampling_frequencies(backend: str) -> None:
    problem = SemiMarkovCase("few", B=1, N=3, W=2, C=2, lengths=None, spread=1.0, seed=3).problem()
    n = 20000
    drawn = problem.make(backend).sample(n, generator=torch.Generator().manual_seed(0))[:, 0].tolist()
    (row,) = problem.rows
    for y, p in zip(row.outputs, row.probabilities, strict=True):
        # 4.5 standard deviations of a binomial frequency.
        assert abs(drawn.count(list(y)) / n - p) < 4.5 * (p * (1 - p) / n) ** 0.5 + 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_at_all(backend: str) -> None:
    for b, n in ((0, 3), (2, 0), (0, 0)):
        segments = torch.zeros(b, n, 2, 3, requires_grad=True)
        s = sl.SemiMarkov(segments, torch.zeros(3, 3), backend=backend)
        assert s.argmax().shape == (b, n)
        assert s.log_partition().tolist() == s.max().tolist() == s.entropy().tolist() == [0.0] * b
        assert s.topk(2)[0].shape == s.sample(2).shape == (2, b, n)
        assert s.topk(2)[1].tolist() == [[0.0] * b, [float("-inf")] * b]
        assert s.score(torch.zeros(b, n, dtype=torch.int64)).tolist() == [0.0] * b
        assert s.marginals().segments.shape == (b, n, 2, 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_is_computed_in_float32(backend: str) -> None:
    segments, transition = torch.randn(2, 4, 3, 2).bfloat16(), torch.randn(2, 2).bfloat16()
    s = sl.SemiMarkov(segments, transition, backend=backend)
    wide = sl.SemiMarkov(segments.float(), transition.float(), backend=backend)
    assert torch.equal(s.log_partition(), wide.log_partition())
    assert torch.equal(s.argmax(), wide.argmax())


def test_triton_has_no_second_derivative() -> None:
    leaves = SemiMarkovCase("one", B=1, N=2, lengths=None).problem().leaves()
    segments = sl.SemiMarkov(**leaves, backend="triton").marginals().segments
    with pytest.raises(DerivativeError, match="second derivative of log_partition, got 'triton'"):
        segments.sum().backward()
