"""The chain's C++ kernels at every vector edge, row block, memory layout and thread count."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from cases import BACKENDS, DTYPES, ChainCase, Problem, assert_close, numbers
from torch import Tensor

import structlearn as sl

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def check_rows(s: Any, problem: Problem, B: int) -> None:
    """The first ``B`` rows of ``problem``, in the structure ``s``, against the float64 oracle."""
    rows, N = problem.log_space[:B], problem.potentials["unary"].shape[1]
    dtype = problem.dtype
    found = [row.viterbi() if row else ([], 0.0) for row in rows]
    assert s.argmax().tolist() == [problem.labels(b, tuple(y)) for b, (y, _) in enumerate(found)]
    assert_close(s.max(), [score for _, score in found], dtype)
    assert_close(s.log_partition(), [row.log_partition if row else 0.0 for row in rows], dtype)
    assert_close(s.entropy(), [row.entropy if row else 0.0 for row in rows], dtype, scale=4.0)
    unary, steps = np.zeros(s.unary.shape), np.zeros((B, max(N - 1, 0), *s.transition.shape[-2:]))
    ends = np.zeros((2, B, s.unary.shape[2]))
    for b, row in enumerate(rows):
        if row is not None:
            n = len(row.unary)
            unary[b, :n], steps[b, : n - 1] = row.unary_marginals(), row.pair_marginals()
            ends[:, b] = unary[b, 0], unary[b, n - 1]
    # No tape, a tape with unequal weights, and one that goes on are three ways through the kernels.
    weight = torch.linspace(-1.0, 2.0, B, dtype=dtype)
    leaves = {name: x.detach().clone().requires_grad_() for name, x in s.potentials.items()}
    gradients = torch.autograd.grad(s.replace(**leaves).log_partition(), list(leaves.values()), weight)
    for found, w in (
        (s.marginals()._asdict(), torch.ones(B)),
        (s.replace(**leaves).marginals()._asdict(), torch.ones(B)),
        (dict(zip(leaves, gradients, strict=True)), weight),
    ):
        w = np.asarray(w.double())
        pairs = steps * w[:, None, None, None]
        assert_close(found["unary"], unary * w[:, None, None], dtype)
        assert_close(found["transition"], pairs.sum((0, 1)) if s.transition.dim() == 2 else pairs, dtype, scale=B)
        for name, edge in zip(("start", "end"), ends, strict=True):
            if s.potentials.get(name) is not None:
                assert_close(found[name], w @ edge, dtype, scale=B)


def lengths(B: int, N: int) -> tuple[int, ...]:
    """Ragged, with 0, 1 and N, in no order."""
    return tuple((5 * b + N) % (N + 1) for b in range(B))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("C", [1, 2, 7, 8, 9, 15, 16, 17, 18, 24, 31, 33, 36, 48, 49, 51, 64, 65, 70])
def test_every_vector_edge_and_row_block(C: int, per_position: bool, dtype: torch.dtype) -> None:
    case = ChainCase(
        "sizes",
        B=19,
        N=6,
        C=C,
        lengths=lengths(19, 6),
        per_position=per_position,
        start=True,
        end=C % 2 == 1,
        dtype=dtype,
        spread=1.0,
        seed=C,
    )
    p = case.problem()
    for B in range(1, 20) if C in (1, 9, 17, 48) else (1, 8, 13, 19):
        given = p.potentials | {
            name: p.potentials[name][:B] for name in ("unary", "transition") if name not in p.shared
        }
        check_rows(sl.LinearChain(**given, lengths=case.lengths[:B], backend="cpu"), p, B)  # type: ignore[index]


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("C", [1, 9, 17, 33])
def test_topk_and_samples_at_vector_edges(C: int, per_position: bool) -> None:
    case = ChainCase("sizes", B=6, N=5, C=C, lengths=lengths(6, 5), per_position=per_position, end=True, seed=C)
    labels, scores = case.problem().make("cpu").topk(7)
    expected, expected_scores = case.problem().make("reference").topk(7)
    assert torch.equal(labels, expected)
    torch.testing.assert_close(scores, expected_scores)
    drawn = case.problem().make("cpu").sample(5)
    mask = case.problem().make("cpu").mask.expand(5, -1, -1)
    assert ((drawn >= 0) & (drawn < C)).equal(mask)
    assert (drawn[~mask] == -100).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
def test_many_threads_agree_with_the_reference(per_position: bool, dtype: torch.dtype) -> None:
    B, N, C = 24, 40, 20
    case = ChainCase(
        "large",
        B=B,
        N=N,
        C=C,
        lengths=lengths(B, N),
        per_position=per_position,
        start=True,
        end=True,
        dtype=dtype,
        spread=1.0,
    )
    assert sum(case.lengths or ()) * C * C > 150_000, "the kernels keep smaller work on one thread"
    grad = torch.randn(B, dtype=dtype)
    answers = []
    for backend, threads in (("reference", 1), ("cpu", 1), ("cpu", 2), ("cpu", 5)):
        torch.set_num_threads(threads)
        leaves = case.problem().leaves()
        s = case.problem().make(backend, **leaves)
        log_z = s.log_partition()
        gradients = torch.autograd.grad(log_z @ grad, list(leaves.values()))
        second = torch.autograd.grad(s.entropy() @ grad, list(leaves.values()))
        with torch.no_grad():
            answers.append((s.argmax(), s.max(), log_z, s.topk(3)[0], *gradients, *second))
    torch.set_num_threads(2)
    for answer in answers[1:]:
        for found, expected in zip(answer, answers[0], strict=True):
            torch.testing.assert_close(
                found,
                expected,
                rtol=1e-3 if dtype is torch.float32 else 1e-8,
                atol=1e-3 if dtype is torch.float32 else 1e-9,
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_layouts(backend: str) -> None:
    g = torch.Generator().manual_seed(3)
    B, N, C = 3, 4, 3
    unary = torch.randn((B, N, C), generator=g)
    steps = torch.randn((B, N - 1, C, C), generator=g)
    wide = torch.randn((B, N, 2 * C), generator=g)
    layouts: list[tuple[Tensor, Tensor]] = [
        (unary.permute(2, 0, 1).contiguous().permute(1, 2, 0), steps[0, 0].T),
        (wide[:, :, ::2], steps.mT),
        (wide[:, :, C:], steps[:1, :1].expand(B, N - 1, C, C)),
        (unary[:1].expand(B, N, C), steps.transpose(0, 1).contiguous().transpose(0, 1)),
        (unary.flip(1), torch.randn((C, 2 * C), generator=g)[:, :C]),
        (unary[:, :, :1].expand(B, N, C), steps[0, 0, 0].expand(C, C)),
    ]
    edge = torch.randn((C, 2), generator=g)[:, 0]
    count = torch.tensor([3, 9, 4, 9, 1, 9])[::2]
    for u, t in layouts:
        assert not (u.is_contiguous() and t.is_contiguous())
        expected = sl.LinearChain(
            u.contiguous(),
            t.contiguous(),
            start=edge.contiguous(),
            end=edge.contiguous(),
            lengths=count.contiguous(),
            backend="reference",
        )
        s = sl.LinearChain(u, t, start=edge, end=edge, lengths=count, backend=backend)
        assert torch.equal(s.argmax(), expected.argmax())
        torch.testing.assert_close(s.log_partition(), expected.log_partition())
        torch.testing.assert_close(s.score(s.argmax().T.contiguous().T), expected.max())
        torch.testing.assert_close(tuple(s.marginals()), tuple(expected.marginals()))
        torch.testing.assert_close(s.entropy(), expected.entropy())
        torch.testing.assert_close(s.topk(2)[0], expected.topk(2)[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(half: torch.dtype, backend: str) -> None:
    case = ChainCase("half", B=3, N=3, C=3, lengths=(3, 0, 2), start=True, end=True)
    given = {name: x.to(half) for name, x in case.problem().potentials.items()}
    s = Problem(sl.LinearChain, given, case.lengths).make(backend)
    wide = Problem(sl.LinearChain, {name: x.float() for name, x in given.items()}, case.lengths)
    assert s.log_partition().dtype is torch.float32
    assert torch.equal(s.argmax(), wide.make(backend).argmax())
    for query in ("max", "log_partition", "entropy"):
        assert torch.equal(getattr(s, query)(), getattr(wide.make(backend), query)())
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    Problem(sl.LinearChain, leaves, case.lengths).make(backend).log_partition().sum().backward()
    for name, expected in wide.expected().items():
        assert leaves[name].grad is not None
        assert leaves[name].grad.dtype is half
        np.testing.assert_allclose(numbers(leaves[name].grad), expected, atol=0.02)


def test_half_beside_float32_widens() -> None:
    unary, transition = torch.randn(2, 3, 4, dtype=torch.bfloat16), torch.randn(4, 4)
    s = sl.LinearChain(unary, transition)
    assert s.unary.dtype is torch.float32
    expected = sl.LinearChain(unary.float(), transition)
    assert torch.equal(s.log_partition(), expected.log_partition())
    assert math.isfinite(float(s.log_partition().sum()))
