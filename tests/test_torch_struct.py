"""torch-struct's LinearChainCRF: adapters both ways, and an outside opinion on every query."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch_struct
from cases import BACKENDS, ChainCase, assert_close, chain_cases, forbidden_cases

import structlearn as sl
from structlearn.errors import ArgumentError, BackendError
from structlearn.torch_struct import from_torch_struct, to_torch_struct


def labels_of(parts: torch.Tensor, n: int) -> list[int]:
    """Edge indicators (M, C, C) [current, previous] to the labels of positions 1..n."""
    return parts[:n].sum(-1).argmax(-1).tolist()


@pytest.mark.parametrize("case", [*chain_cases(), *forbidden_cases()], ids=str)
def test_torch_struct_agrees_with_enumeration(case: ChainCase) -> None:
    """What to_torch_struct builds, queried by torch-struct alone."""
    problem = case.problem()
    theirs = to_torch_struct(problem.make())
    rows = [b for b, row in enumerate(problem.rows) if row.feasible and row.outputs[0]]
    assert len(rows) >= 2
    oracle = [problem.rows[b] for b in rows]
    assert_close(theirs.partition[rows], [row.log_partition for row in oracle], case.dtype)
    assert_close(theirs.max[rows], [row.max for row in oracle], case.dtype)
    assert_close(theirs.entropy[rows], [row.entropy for row in oracle], case.dtype)
    marginals, best = theirs.marginals.sum(-1), theirs.argmax
    for b, row in zip(rows, oracle, strict=True):
        n = len(row.outputs[0])
        assert labels_of(best[b], n) == list(row.topk(1)[0][0])
        assert_close(marginals[b, :n], row.expected_parts()["unary"][:n], case.dtype)


def test_a_labelling_in_their_parts_has_our_probability() -> None:
    problem = ChainCase("parts", B=1, N=3, C=3, lengths=None, start=True, end=True).problem()
    s = problem.make()
    theirs = to_torch_struct(s)
    for y in product(range(3), repeat=3):
        parts = torch_struct.LinearChainCRF.struct.to_parts(torch.tensor([[0, *y]]), 3)
        ours = s.score(torch.tensor([y])) - s.log_partition()
        torch.testing.assert_close(theirs.log_prob(parts.double()), ours)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [None, (4, 2, 3)])
def test_their_potentials_here(lengths: tuple[int, ...] | None, backend: str) -> None:
    g = torch.Generator().manual_seed(4)
    edges = torch.randn((3, 3, 3, 3), generator=g, dtype=torch.float64)
    given = None if lengths is None else torch.tensor(lengths)
    theirs = torch_struct.LinearChainCRF(edges.clone(), lengths=given)
    s = from_torch_struct(torch_struct.LinearChainCRF(edges.clone(), lengths=given), backend=backend)
    assert isinstance(s, sl.LinearChain)
    assert s.backend == backend
    torch.testing.assert_close(s.log_partition(), theirs.partition.detach())
    torch.testing.assert_close(s.max(), theirs.max.detach())
    torch.testing.assert_close(s.marginals().transition.mT, theirs.marginals.detach())
    sequences, _ = torch_struct.LinearChainCRF.struct.from_parts(theirs.argmax.detach())
    for b, n in enumerate(lengths or (4, 4, 4)):
        assert s.argmax()[b, :n].tolist() == sequences[b, :n].tolist()
    kmax = theirs.kmax(3).detach()
    torch.testing.assert_close(s.topk(3)[1], kmax)


def test_there_and_back() -> None:
    for case in (
        ChainCase("shared", start=True, end=True, lengths=(4, 3, 1, 2, 4)),
        ChainCase("steps", per_position=True, lengths=None),
    ):
        s = case.problem().make()
        back = from_torch_struct(to_torch_struct(s))
        torch.testing.assert_close(back.log_partition().detach(), s.log_partition())
        torch.testing.assert_close(back.max().detach(), s.max())
        # The extra first position has one label, and the others follow it.
        assert torch.equal(back.argmax()[:, 1:], s.argmax())


def test_gradients_pass_through_the_adapters() -> None:
    problem = ChainCase("tape", start=True, end=True, lengths=(4, 2, 1, 3, 4)).problem()
    leaves = problem.leaves()
    found = torch.autograd.grad(to_torch_struct(problem.make(**leaves)).partition.sum(), list(leaves.values()))
    for value, expected in zip(found, problem.expected().values(), strict=True):
        assert_close(value, expected, problem.dtype)
    edges = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    (found_edges,) = torch.autograd.grad(
        from_torch_struct(torch_struct.LinearChainCRF(edges)).log_partition().sum(), edges
    )
    torch.testing.assert_close(found_edges, torch_struct.LinearChainCRF(edges.detach().clone()).marginals.detach())


def test_our_potentials_are_left_alone() -> None:
    unary, transition = torch.randn(2, 3, 2), torch.randn(2, 2)
    theirs = to_torch_struct(sl.LinearChain(unary, transition))
    assert theirs.partition.requires_grad, "torch-struct makes its own edges ask for gradients"
    assert not unary.requires_grad
    assert not transition.requires_grad


def structures(fill: float, share: float, backend: str) -> list[sl.Structure]:
    """A chain, a tree and a grammar of which ``share`` of the scores, or all, are ``fill``."""
    g = torch.Generator().manual_seed(5)

    def scores(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g).masked_fill(torch.rand(shape, generator=g) < share, fill)

    rules = [(0, a, b) for a in range(3) for b in range(3)]
    grammar = sl.Grammar(rules, 1, 2)
    return [
        sl.LinearChain(scores(3, 4, 3), scores(3, 3), lengths=[4, 2, 0], backend=backend),
        sl.SpanTree(scores(3, 4, 4, 3), lengths=[4, 2, 0], backend=backend),
        sl.WeightedCFG(grammar, scores(3, 4, 2), scores(9), torch.zeros(3), lengths=[4, 1, 0], backend=backend),
    ]


@pytest.mark.parametrize("fill", [-1e4, -1e30, torch.finfo(torch.float32).min, -float("inf")])
def test_masks_are_right_where_an_output_is_left(fill: float) -> None:
    for found, expected in zip(
        structures(fill, 0.1, "torch-struct"), structures(-float("inf"), 0.1, "reference"), strict=True
    ):
        torch.testing.assert_close(found.log_partition(), expected.log_partition())
        torch.testing.assert_close(found.max(), expected.max())
        torch.testing.assert_close(found.argmax(), expected.argmax())


@pytest.mark.parametrize("fill", [-1e5, -1e8, -1e9, -3e9, -1e30, torch.finfo(torch.float32).min, 1e30])
def test_scores_that_their_zeros_would_pass_for(fill: float) -> None:
    """Nothing but such scores."""
    for found, expected in zip(structures(fill, 1.0, "torch-struct"), structures(fill, 1.0, "reference"), strict=True):
        torch.testing.assert_close(found.log_partition(), expected.log_partition())
        torch.testing.assert_close(found.max(), expected.max())
        # How many ways there are is lost in the rounding of large scores, but not that each is an output.
        ways, expected_ways = found.marginals()[0], expected.marginals()[0]
        torch.testing.assert_close(ways.sum(), expected_ways.sum())
        if abs(fill) < 1e9:
            torch.testing.assert_close(ways, expected_ways)
        torch.testing.assert_close(found.argmax(), expected.argmax())
        assert bool((found.max() > -float("inf")).all())


def test_infinite_scores_are_refused() -> None:
    for s in structures(float("inf"), 1.0, "torch-struct"):
        for query in (s.log_partition, s.max, s.marginals):
            with pytest.raises(BackendError, match=r"scores below \+inf for torch-struct, got .*; pass backend='auto'"):
                query()


def test_what_has_no_counterpart_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"distribution: expected .*LinearChainCRF.*, got AlignmentCRF"):
        from_torch_struct(torch_struct.AlignmentCRF(torch.randn(1, 2, 2, 3)))
    with pytest.raises(ArgumentError, match=r"structure: expected .*LinearChain.*, got Categorical"):
        to_torch_struct(sl.Categorical(torch.zeros(1, 2)))
    with pytest.raises(BackendError, match="B=0; pass backend='auto'"):
        to_torch_struct(sl.LinearChain(torch.zeros(0, 2, 2), torch.zeros(2, 2)))
    grammar = sl.Grammar(torch.zeros((0, 3), dtype=torch.int64), 0, 2)
    s = sl.WeightedCFG(grammar, torch.ones(3, 2, 2), torch.zeros(0), torch.zeros(2), backend="torch-struct")
    for query in (s.max, s.log_partition):
        with pytest.raises(BackendError, match=r"at least one nonterminal for torch-struct.*; pass backend='auto'"):
            query()
