"""WeightedCFG: every query of every backend against enumeration, and what the contract says of odd inputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import NEG_INF, QUERIES, assert_close
from grammar_cases import GrammarCase, GrammarProblem, forbidden_cases, grammar_cases, tie_cases
from oracles import Row
from queries import CHECKS, K

import structlearn as sl

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BACKENDS = ("reference", "cpu", "triton", "torch-struct")


# The interpreter takes seconds a case: one of each kind, and only what has kernels of its own.
TRITON_CASES = ("dense-own-spans-f64", "sparse-f64", "sparse-own-f32", "forbidden-sparse-f64", "ties-sparse-f32")
TRITON_QUERIES = ("argmax", "max", "log_partition", "marginals")


def _takes(case: GrammarCase, backend: str) -> bool:
    """torch-struct has no span scores."""
    return not (case.spans and backend == "torch-struct") and (backend != "triton" or case.name in TRITON_CASES)


def _pairs(cases: list[GrammarCase]) -> list[Any]:
    """Every case with every backend that takes it."""
    return [
        pytest.param(case, backend, id=f"{case}-{backend}")
        for case in cases
        for backend in BACKENDS
        if _takes(case, backend)
    ]


def _queries(backend: str) -> tuple[str, ...]:
    return TRITON_QUERIES if backend == "triton" else tuple(QUERIES)


def _score(s: sl.WeightedCFG, problem: GrammarProblem) -> None:
    rows = problem.rows
    if not all(row.outputs for row in rows):
        return
    picks = [[(b + 7 * k) % len(row.outputs) for b, row in enumerate(rows)] for k in range(K)]
    y = torch.tensor([[problem.labels(b, row.outputs[p[b]]) for b, row in enumerate(rows)] for p in picks])
    expected = [[row.scores[p[b]] for b, row in enumerate(rows)] for p in picks]
    y = torch.where(s.mask, y, 10**6)  # padding may hold any label
    assert_close(s.score(y), expected, problem.dtype)
    assert_close(s.score(y[0]), expected[0], problem.dtype)
    assert_close(s.score(y.view(2, 2, *y.shape[1:]).int()), [expected[:2], expected[2:]], problem.dtype)


GRAMMAR_CHECKS: dict[str, Any] = {**CHECKS, "score": _score}


@pytest.mark.parametrize(
    ("case", "backend", "query"),
    [
        pytest.param(*pair.values, query, id=f"{pair.id}-{query}")
        for pair in _pairs(grammar_cases())
        for query in _queries(pair.values[1])
    ],
)
def test_query_equals_enumeration(case: GrammarCase, backend: str, query: str) -> None:
    GRAMMAR_CHECKS[query](case.problem().make(backend), case.problem())


@pytest.mark.parametrize(("case", "backend"), _pairs(forbidden_cases()))
def test_forbidden_parts_and_rows(case: GrammarCase, backend: str) -> None:
    problem = case.problem()
    assert 0 < sum(not row.feasible for row in problem.rows) < 5, "the case must mix both kinds of rows"
    for query in _queries(backend):
        GRAMMAR_CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize(("case", "backend"), _pairs(tie_cases()))
def test_ties_go_to_the_lowest_index_in_every_backend(case: GrammarCase, backend: str) -> None:
    problem = case.problem()
    best = [row.topk(2) for row in problem.rows]
    assert any(len(b) == 2 and b[0][1] == b[1][1] for b in best), "the case must hold ties"
    for query in ("argmax", "topk"):
        GRAMMAR_CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize(("case", "backend"), _pairs([*grammar_cases(), *forbidden_cases()]))
def test_gradients_equal_enumeration(case: GrammarCase, backend: str) -> None:
    problem = case.problem()
    grad = [0.5 + b for b in range(5)]
    for query, of in (("log_partition", Row.expected_parts), ("max", Row.best_parts)):
        leaves = {name: x.clone().requires_grad_() for name, x in problem.potentials.items()}
        value = getattr(problem.make(backend, **leaves), query)()
        found = torch.autograd.grad(value, list(leaves.values()), torch.tensor(grad, dtype=problem.dtype))
        expected = problem.expected(of, grad)
        for name, x in zip(leaves, found, strict=True):
            assert_close(x, expected[name], problem.dtype, 5.0)


@pytest.mark.parametrize("case", [c for c in grammar_cases() if "f64" in c.name], ids=str)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_second_derivatives(case: GrammarCase, backend: str) -> None:
    problem = case.problem()
    mask = problem.make().mask
    clean = dict(problem.potentials)
    clean["terms"] = clean["terms"].masked_fill(~mask.diagonal(0, 1, 2)[..., None], 0.0)
    if "spans" in clean:
        clean["spans"] = clean["spans"].masked_fill(~mask.triu(1)[..., None], 0.0)
    names = list(clean)
    leaves = [clean[name].clone().requires_grad_() for name in names]

    def make(values: tuple[torch.Tensor, ...]) -> sl.WeightedCFG:
        return problem.make(backend, **dict(zip(names, values, strict=True)))

    alive = problem.make().max() > NEG_INF
    for f in (
        lambda *x: make(x).log_partition()[alive],
        lambda *x: tuple(m for m in make(x).marginals() if m is not None),
        lambda *x: make(x).entropy(),
    ):
        assert torch.autograd.gradcheck(f, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *x: make(x).log_partition()[alive], leaves, fast_mode=True)


def test_span_marginals_are_the_gradient_of_span_scores() -> None:
    problem = grammar_cases()[0].problem()
    with_spans = problem.make(spans=torch.zeros(5, 4, 4, 2, dtype=torch.float64))
    for backend in ("reference", "cpu"):
        found = problem.make(backend).span_marginals()
        assert_close(found, with_spans.marginals().spans, torch.float64)
        assert_close(found.sum((1, 2, 3)), [max(n - 1, 0) for n in problem.lengths or ()], torch.float64)


def dense_grammar(nonterminals: int, preterminals: int) -> sl.Grammar:
    s = nonterminals + preterminals
    grid = torch.cartesian_prod(torch.arange(nonterminals), torch.arange(s), torch.arange(s))
    return sl.Grammar(grid, nonterminals, preterminals)


def test_counts_are_catalan_numbers_times_labels() -> None:
    grammar = dense_grammar(3, 2)
    for n in (2, 5, 9):
        catalan = math.comb(2 * n - 2, n - 1) // n
        for dtype in (torch.float32, torch.float64):
            s = sl.WeightedCFG(
                grammar,
                torch.zeros(2, n, 2, dtype=dtype),
                torch.zeros(len(grammar.rules), dtype=dtype),
                torch.zeros(3, dtype=dtype),
            )
            assert s.count().tolist() == [catalan * 3 ** (n - 1) * 2**n] * 2
            zero = s.log_partition().double().exp() / s.count()
            assert_close(zero, [1.0, 1.0], dtype, 10.0)
