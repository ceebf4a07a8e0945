"""torch-struct's SemiMarkovCRF: adapters both ways, and an outside opinion on log Z, marginals and the best score."""

from __future__ import annotations

import pytest
import torch
import torch_struct
from cases import assert_close
from semimarkov_cases import SemiMarkovCase, cases, forbidden_cases

import structlearn as sl
from structlearn.errors import ArgumentError
from structlearn.torch_struct import from_torch_struct, to_torch_struct


@pytest.mark.parametrize("case", [*cases(), *forbidden_cases()], ids=str)
def test_torch_struct_agrees_with_enumeration(case: SemiMarkovCase) -> None:
    problem = case.problem()
    theirs = to_torch_struct(problem.make())
    rows = [b for b, row in enumerate(problem.rows) if row.feasible]
    assert_close(theirs.partition[rows], [problem.rows[b].log_partition for b in rows], case.dtype)
    assert_close(theirs.max[rows], [problem.rows[b].max for b in rows], case.dtype)
    edges = theirs.marginals[rows]
    expected = problem.expected()["segments"][rows, :, : edges.shape[2] - 1]
    beyond = torch.isnan(problem.potentials["segments"][rows, :, : edges.shape[2] - 1])
    assert_close(edges[:, :, 1:].sum(-2).masked_fill(beyond, 0.0), expected, case.dtype)


def test_a_segmentation_in_their_parts_has_our_probability() -> None:
    s = sl.SemiMarkov(torch.randn(1, 4, 3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64))
    y = s.encode([[(0, 2, 1), (3, 3, 0)]])
    theirs = to_torch_struct(s)
    # Their sequences hold labels at starts, -1 inside, and a last node.
    parts = torch_struct.SemiMarkovCRF.struct.to_parts(torch.tensor([[1, -1, -1, 0, 0]]), (2, 4))
    torch.testing.assert_close(theirs.log_prob(parts.double()), s.score(y) - s.log_partition())


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_their_potentials_here(backend: str) -> None:
    """Edges that depend on width and both labels at once; rows as long as torch-struct handles: all of them."""
    edges = torch.randn(2, 4, 4, 3, 3, dtype=torch.float64)
    theirs = torch_struct.SemiMarkovCRF(edges)
    ours = from_torch_struct(theirs, backend=backend)
    assert isinstance(ours, sl.SemiMarkov)
    torch.testing.assert_close(ours.log_partition(), theirs.partition)
    torch.testing.assert_close(ours.max(), theirs.max)
    pairs = ours.marginals().segments.unflatten(-1, (3, 3))
    torch.testing.assert_close(pairs, theirs.marginals[:, :, 1:].mT)


def test_there_and_back() -> None:
    s = sl.SemiMarkov(torch.randn(3, 5, 2, 2), torch.randn(2, 2), lengths=[5, 3, 0])
    again = from_torch_struct(to_torch_struct(s))
    torch.testing.assert_close(again.log_partition(), s.log_partition())
    torch.testing.assert_close(again.entropy(), s.entropy())


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ArgumentError, match="B=0"):
        to_torch_struct(sl.SemiMarkov(torch.zeros(0, 2, 2, 2), torch.zeros(2, 2)))
