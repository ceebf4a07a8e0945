"""LinearChain: every query of every backend against enumeration, and what the contract says of odd inputs."""

from __future__ import annotations

import pytest
import torch
from cases import BACKENDS, QUERIES, ChainCase, Problem, assert_close, chain_cases, forbidden_cases, tie_cases
from queries import CHECKS

import structlearn as sl
from structlearn.errors import BackendError

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def test_the_table_covers_every_backend_and_query() -> None:
    assert sl.ops.backends() == BACKENDS
    assert set(CHECKS) == set(QUERIES)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", chain_cases(), ids=str)
def test_query_equals_enumeration(case: ChainCase, backend: str, query: str) -> None:
    problem = case.sized_for(backend).problem()
    CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize(
    ("case", "backend"),
    [(case, b) for i, case in enumerate(forbidden_cases()) for b in BACKENDS if b != "triton" or i % 3 == 0],
    ids=str,
)
def test_forbidden_parts_and_rows(case: ChainCase, backend: str) -> None:
    problem = case.problem()
    alive = [b for b, row in enumerate(problem.rows) if row.feasible and row.outputs[0]]
    assert len(alive) == case.B - len(case.dead) - 1, "feasible rows must stand beside the forbidden and the empty one"
    for query in QUERIES:
        CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize(
    ("case", "backend"),
    [(case, b) for i, case in enumerate(tie_cases()) for b in BACKENDS if b != "triton" or i % 3 == 0],
    ids=str,
)
def test_ties_go_to_the_lowest_index_in_every_backend(case: ChainCase, backend: str) -> None:
    problem = case.problem()
    best = [row.topk(2) for row in problem.rows]
    assert any(len(b) == 2 and b[0][1] == b[1][1] for b in best), "the case must hold ties"
    for query in ("argmax", "topk"):
        CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "triton"])
@pytest.mark.parametrize("n", [5, 7, 8, 13])
def test_ties_of_long_chains(n: int, backend: str) -> None:
    case = ChainCase("ties", B=4, N=n, C=3, lengths=(n, n - 1, 3, n), integers=True, seed=n)
    expected = [row.viterbi()[0] for row in case.problem().log_space if row is not None]
    assert case.problem().make(backend).argmax().tolist() == [
        case.problem().labels(b, tuple(y)) for b, y in enumerate(expected)
    ]
    labels, scores = case.problem().make(backend).topk(9)
    reference, reference_scores = case.problem().make("reference").topk(9)
    assert torch.equal(labels, reference)
    assert torch.equal(scores, reference_scores)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "case",
    [
        ChainCase("one position", B=3, N=1, C=3, lengths=None, start=True, end=True),
        ChainCase("one position, steps", B=2, N=1, C=2, lengths=(1, 0), per_position=True, dtype=torch.float32),
        ChainCase("one label", B=3, N=3, C=1, lengths=(3, 1, 0), start=True),
        ChainCase("no lengths", B=2, N=3, C=2, lengths=None, end=True),
        ChainCase("all shorter than N", B=3, N=5, C=2, lengths=(3, 2, 1), start=True, end=True),
        ChainCase("all shorter than N, steps", B=2, N=5, C=2, lengths=(2, 3), per_position=True, dtype=torch.float32),
        ChainCase("all empty", B=2, N=2, C=2, lengths=(0, 0), start=True, end=True),
        ChainCase("no positions", B=2, N=0, C=3, lengths=None, start=True, end=True),
        ChainCase("no positions, steps", B=2, N=0, C=3, lengths=(0, 0), per_position=True),
        ChainCase("all dead", B=2, N=3, C=2, lengths=(3, 1), dead=(0, 1)),
    ],
    ids=str,
)
def test_odd_sizes(case: ChainCase, backend: str) -> None:
    for query in QUERIES:
        CHECKS[query](case.problem().make(backend), case.problem())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("per_position", [False, True])
def test_empty_batch(per_position: bool, backend: str) -> None:
    s = ChainCase("none", B=0, N=3, C=2, lengths=None, per_position=per_position, start=True).problem().make(backend)
    if backend == "torch-struct":
        with pytest.raises(BackendError, match="B=0"):
            s.argmax()
        return
    assert s.argmax().shape == (0, 3)
    assert s.max().shape == s.log_partition().shape == s.entropy().shape == s.count().shape == (0,)
    assert s.score(torch.zeros((4, 0, 3), dtype=torch.int64)).shape == (4, 0)
    assert s.topk(2)[0].shape == s.sample(2).shape == (2, 0, 3)
    assert s.marginals().unary.shape == (0, 3, 2)
    assert not s.marginals().start.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_counting_gives_c_to_the_n(backend: str) -> None:
    lengths = torch.tensor([6, 0, 1, 4])
    s = sl.LinearChain(torch.zeros(4, 6, 3), torch.zeros(3, 3), lengths=lengths, backend=backend)
    assert s.count().tolist() == [3**6, 1, 3, 3**4]
    assert_close(s.log_partition().exp(), [3**6, 1, 3, 3**4], torch.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_are_left_alone(backend: str) -> None:
    problem = ChainCase("kept", B=3, N=3, C=2, lengths=(3, 0, 2), start=True, end=True, forbidden=0.1).problem()
    before = {name: x.clone() for name, x in problem.potentials.items()}
    for query in QUERIES:
        CHECKS[query](problem.make(backend), problem)
    for name, x in problem.potentials.items():
        assert torch.equal(x.nan_to_num(9.0), before[name].nan_to_num(9.0))
        assert not x.requires_grad
        assert x.grad is None
    s = problem.make(backend)
    for result in (s.max(), s.log_partition(), s.entropy(), s.marginals().unary, s.topk(2)[1]):
        assert not result.requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_queries_without_gradients(mode: type, backend: str) -> None:
    case = ChainCase("quiet", B=3, N=3, C=2, lengths=(3, 1, 2), start=True)
    with mode():
        made = Problem(sl.LinearChain, {name: x.clone() for name, x in case.problem().potentials.items()}, case.lengths)
        for query in QUERIES:
            CHECKS[query](made.make(backend), made)
    leaves = case.problem().leaves()
    with mode():
        for query in QUERIES:
            CHECKS[query](case.problem().make(backend, **leaves), case.problem())
        assert not case.problem().make(backend, **leaves).log_partition().requires_grad
