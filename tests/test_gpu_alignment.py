"""The Triton kernels of Alignment under the interpreter, against enumeration and the C++ kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from alignment_cases import MODES, AlignmentCase
from cases import NEG_INF
from queries import CHECKS

import structlearn as sl
from structlearn.errors import DerivativeError

pytestmark = pytest.mark.usefixtures("poisoned_memory")
CASE = AlignmentCase("gpu", N=3, M=3, x_lengths=(3, 2, 0, 1), y_lengths=(2, 3, 1, 0), seed=11)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_queries_equal_enumeration(mode: str, affine: bool) -> None:
    problem = replace(CASE, mode=mode, affine=affine).problem()
    for query in ("argmax", "max", "log_partition", "marginals"):
        CHECKS[query](problem.make("triton"), problem)


@pytest.mark.parametrize("mode", MODES)
def test_ties_bands_and_forbidden_parts(mode: str) -> None:
    for options in ({"integers": True}, {"band": 1, "integers": True}, {"forbidden": 0.4}):
        case: Any = replace(CASE, mode=mode, affine=True, **options)
        problem = case.problem()
        for query in ("argmax", "max", "log_partition", "marginals"):
            CHECKS[query](problem.make("triton"), problem)


def test_tiles_and_gradients_equal_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagonal of 11 rows in tiles of 4."""
    from structlearn.gpu import alignment as gpu

    monkeypatch.setattr(gpu, "_block", lambda match: (4, 1))
    torch.manual_seed(2)
    match = torch.randn(1, 10, 3)
    gap = torch.tensor(-0.7)
    found = []
    for backend in ("triton", "cpu"):
        leaves = [x.clone().requires_grad_() for x in (match, gap)]
        s = sl.Alignment(leaves[0], gap=leaves[1], gap_open=-1.5, backend=backend)
        value = s.log_partition() + s.max()
        found.append((value.detach(), s.argmax(), *torch.autograd.grad(value.sum(), leaves)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_second_derivatives_are_refused() -> None:
    match = torch.randn(1, 2, 2, dtype=torch.float64, requires_grad=True)
    log_z = sl.Alignment(match, gap=-1.0, backend="triton").log_partition()
    (first,) = torch.autograd.grad(log_z.sum(), match, create_graph=True)
    with pytest.raises(DerivativeError, match="'cpu' or 'reference' for a second derivative"):
        first.square().sum().backward()


def test_an_infeasible_pair_has_no_gradient() -> None:
    match = torch.full((2, 2, 2), NEG_INF, dtype=torch.float64)
    match[1] = 0.0
    leaf = match.requires_grad_()
    s = sl.Alignment(leaf, gap=NEG_INF, backend="triton")
    log_z = s.log_partition()
    assert log_z.tolist() == [NEG_INF, 0.0]
    log_z[1].backward()
    assert leaf.grad is not None
    assert leaf.grad[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert leaf.grad[1].tolist() == [[1.0, 0.0], [0.0, 1.0]]
