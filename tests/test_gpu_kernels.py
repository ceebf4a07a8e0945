"""The chain's Triton kernels, interpreted, against enumeration and log space; then compiled, against their table."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import NEG_INF, ChainCase, Problem, assert_close
from oracles import Row
from torch import Tensor

from structlearn.gpu import aot, chain

pytestmark = pytest.mark.usefixtures("poisoned_memory")

DTYPES = (torch.float32, torch.float64)


def make(C: int, N: int, lengths: tuple[int, ...] | None, steps: bool, edges: bool, dtype: torch.dtype) -> ChainCase:
    kind = f"{'steps' if steps else 'shared'}-{'edges' if edges else 'plain'}-{str(dtype).removeprefix('torch.')}"
    return ChainCase(f"C{C}-{kind}", 5, N, C, lengths, steps, edges, edges, dtype, seed=C)


# Every combination at C = 3, each option once at the other sizes, which fill a block, a part of one, or one and a bit.
THREE = [make(3, 4, (4, 1, 0, 3, 2), *kind) for kind in itertools.product((False, True), (False, True), DTYPES)]
SIZES = [
    make(C, N, lengths, *kind)
    for C, N, lengths in ((1, 3, (3, 1, 0, 2, 3)), (9, 3, (3, 1, 0, 2, 3)), (16, 2, None), (17, 2, (2, 1, 2, 0, 2)))
    for kind in ((False, True, torch.float32), (True, False, torch.float64))
]
# An end without a start, ties, -inf with whole rows forbidden.
ODD = [
    *[replace(c, name=f"end-{c.name}", start=False) for c in THREE if c.end and c.dtype is torch.float32],
    *[replace(c, name=f"ties-{c.name}", integers=True, forbidden=0.1, seed=100) for c in THREE if c.start],
    *[replace(c, name=f"dead-{c.name}", forbidden=0.3, dead=(0, 4), seed=200) for c in THREE if c.start],
    *[replace(c, name=f"dead-{c.name}", forbidden=0.3, dead=(0, 4), seed=200) for c in SIZES if c.C == 9],
]
SMALL = [*THREE, *SIZES, *ODD]
# More states than one tile holds, with some forbidden: too many outputs to enumerate.
LARGE = [
    replace(make(C, 3, (3, 1, 2), steps, True, dtype), B=3, forbidden=0.2)
    for C, dtype, steps in (
        (64, torch.float32, False),
        (70, torch.float64, False),
        (70, torch.float64, True),
        (100, torch.float32, False),  # one tile forward, several backward
        (144, torch.float32, True),
    )
]


def arguments(problem: Problem) -> tuple[Any, ...]:
    x = problem.potentials
    lengths = None if problem.lengths is None else torch.tensor(problem.lengths)
    return x["unary"], x["transition"], x.get("start"), x.get("end"), lengths


def draw(row: Row, uniform: np.ndarray) -> tuple[int, ...]:
    """Last label first, each the lowest whose cumulative probability given the later ones exceeds its uniform."""
    y: tuple[int, ...] = ()
    n = len(row.outputs[0])
    for t in reversed(range(n)):
        weight = np.zeros(row.fields["unary"].shape[-1])
        for output, p in zip(row.outputs, row.probabilities, strict=True):
            if output[t + 1 :] == y:
                weight[output[t]] += p
        y = (int(np.argmax(np.cumsum(weight) > uniform[t] * weight.sum())), *y)
    return y


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_viterbi_and_kbest_equal_enumeration(case: ChainCase) -> None:
    problem = case.problem()
    labels, score = chain.viterbi(*arguments(problem))
    assert_close(score, [row.max for row in problem.rows], case.dtype)
    k = 4 if case.C <= 3 else 2  # 4 is more than the outputs of short rows
    many, scores = chain.kbest(*arguments(problem), k)
    assert torch.equal(many[0], labels)
    assert torch.equal(scores[0], score)
    empty = [-100] * case.N
    for b, row in enumerate(problem.rows):
        best = row.topk(k)
        missing = k - len(best)
        assert many[:, b].tolist() == [problem.labels(b, y) for y, _ in best] + [empty] * missing
        assert_close(scores[:, b], [s for _, s in best] + [NEG_INF] * missing, case.dtype)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_log_partition_and_gradient_equal_enumeration(case: ChainCase) -> None:
    problem = case.problem()
    log_z, alpha = chain.forward(*arguments(problem))
    assert_close(log_z, [row.log_partition for row in problem.rows], case.dtype)
    assert not alpha.isnan().any()
    weights = [2.0, -1.0, 0.5, 0.0, 3.0]
    grad = torch.tensor(weights, dtype=case.dtype)
    # What reaches a row without outputs is of no account.
    grad[[not row.feasible for row in problem.rows]] = float("nan")
    found = chain.backward(*arguments(problem), alpha, log_z, grad)
    expected = problem.expected(grad=weights)
    for name, value in zip(("unary", "transition", "start", "end"), found, strict=True):
        if name not in problem.potentials:
            assert value is None
        else:
            assert value is not None
            assert value.shape == problem.potentials[name].shape
            assert_close(value, expected[name], case.dtype, scale=3.0)


@pytest.mark.parametrize("case", [*THREE[::3], *SIZES[1::2], *ODD[::2]], ids=str)
def test_samples_equal_the_inverse_cdf_of_enumeration(case: ChainCase) -> None:
    problem = case.problem()
    _, alpha = chain.forward(*arguments(problem))
    uniform = torch.rand(3, case.B, case.N, dtype=case.dtype)
    uniform[0] = 0.0
    uniform[1] = 1.0 - torch.finfo(case.dtype).eps / 2
    labels = chain.sample(*arguments(problem), alpha, uniform)
    for b, row in enumerate(problem.rows):
        possible = {y for y, p in zip(row.outputs, row.probabilities, strict=True) if p > 0}
        for s in range(3):
            if not row.feasible:
                assert labels[s, b].tolist() == [-100] * case.N
                continue
            y = tuple(labels[s, b].tolist())
            assert problem.labels(b, y[: len(row.outputs[0])]) == list(y)
            assert y[: len(row.outputs[0])] in possible
            if s != 1:  # at the very end of the scale, rounding decides between states of negligible weight
                assert y[: len(row.outputs[0])] == draw(row, uniform[s, b].double().numpy())


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_tiles_equal_log_space(case: ChainCase) -> None:
    problem = case.problem()
    labels, score = chain.viterbi(*arguments(problem))
    many, scores = chain.kbest(*arguments(problem), 2)
    assert torch.equal(many[0], labels)
    assert torch.equal(scores[0], score)
    assert (scores[:-1] >= scores[1:]).all()
    log_z, alpha = chain.forward(*arguments(problem))
    d_unary, d_transition, d_start, d_end = chain.backward(*arguments(problem), alpha, log_z, torch.ones_like(log_z))
    pairs = np.zeros((case.B, case.N - 1, case.C, case.C))
    edges = np.zeros((2, case.C))
    for b, (row, n) in enumerate(zip(problem.log_space, case.lengths or (), strict=True)):
        assert row is not None
        y, best = row.viterbi()
        assert labels[b].tolist() == [*y, *[-100] * (case.N - n)]
        assert_close(score[b], best, case.dtype)
        assert_close(log_z[b], row.log_partition, case.dtype)
        marginals = np.zeros((case.N, case.C))
        marginals[:n] = row.unary_marginals()
        assert_close(d_unary[b], marginals, case.dtype)
        pairs[b, : n - 1] = row.pair_marginals()
        edges += marginals[[0, n - 1]]
    assert_close(d_transition, pairs if case.per_position else pairs.sum((0, 1)), case.dtype)
    assert d_start is not None
    assert d_end is not None
    assert_close(torch.stack([d_start, d_end]), edges, case.dtype)
    drawn = chain.sample(*arguments(problem), alpha, torch.rand(2, case.B, case.N, dtype=case.dtype))
    for b, row in enumerate(problem.log_space):
        for y in drawn[:, b, : len(row.unary)].tolist() if row is not None else ():
            assert all(row.unary[t, c] > -np.inf for t, c in enumerate(y))
            assert all(row.steps[t, p, c] > -np.inf for t, (p, c) in enumerate(itertools.pairwise(y)))


def test_kbest_over_tiles_breaks_ties_as_enumeration_does() -> None:
    case = ChainCase("ties", B=2, N=2, C=37, lengths=(2, 1), integers=True, end=True, dtype=torch.float32)
    problem = case.problem()
    labels, scores = chain.kbest(*arguments(problem), 6)
    for b, row in enumerate(problem.rows):
        best = row.topk(6)
        assert len({score for _, score in best}) < len(best), "the case must hold ties"
        assert labels[:, b].tolist() == [problem.labels(b, y) for y, _ in best]
        assert scores[:, b].tolist() == [s for _, s in best]


def test_viterbi_over_tiles_breaks_ties_to_the_lowest_predecessor() -> None:
    case = ChainCase("ties", B=2, N=3, C=144, lengths=(3, 2), integers=True, dtype=torch.float32)
    problem = case.problem()
    labels, _ = chain.viterbi(*arguments(problem))
    for b, row in enumerate(problem.log_space):
        assert row is not None
        y, best = row.viterbi()
        last = [(row.start + row.unary[0])[:, None] + row.steps[0]] if len(y) == 2 else []
        assert all((np.max(x + row.unary[1], axis=1) == best).sum() > 1 for x in last), "the case must hold ties"
        assert labels[b].tolist() == [*y, *[-100] * (case.N - len(y))]


def plain_log_z(unary: Tensor, transition: Tensor, start: Tensor, end: Tensor, lengths: Tensor) -> Tensor:
    """log Z (B,) by the textbook recursion, for autograd."""
    found = []
    for b, n in enumerate(lengths.tolist()):
        alpha = start + unary[b, 0]
        for t in range(1, n):
            step = transition if transition.dim() == 2 else transition[b, t - 1]
            alpha = torch.logsumexp(alpha[:, None] + step, 0) + unary[b, t]
        found.append(torch.logsumexp(alpha + end, 0))
    return torch.stack(found)


@pytest.mark.parametrize("per_position", [False, True])
def test_gradient_equals_autograd_and_strides_do_not_matter(per_position: bool) -> None:
    B, N, C = 3, 5, 6
    unary = torch.randn(N, B, C, dtype=torch.float64).transpose(0, 1)
    transition = torch.randn((B, N - 1, C, C) if per_position else (C, C), dtype=torch.float64).transpose(-1, -2)
    start, end = torch.randn(C, 2, dtype=torch.float64).unbind(1)
    lengths = torch.tensor([5, 1, 3])
    grad = torch.tensor(1.5, dtype=torch.float64).expand(B)
    leaves = [x.detach().clone().requires_grad_() for x in (unary, transition, start, end)]
    expected = torch.autograd.grad(plain_log_z(*leaves, lengths), leaves, grad)
    log_z, alpha = chain.forward(unary, transition, start, end, lengths)
    found = chain.backward(unary, transition, start, end, lengths, alpha, log_z, grad)
    for value, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)


def test_float32_keeps_its_digits_over_long_sequences() -> None:
    """log Z near 20000: marginals from unshifted float32 messages would be off by 1e-3."""
    case = ChainCase("long", B=1, N=120, C=4, lengths=None, dtype=torch.float32)
    problem = case.problem()
    problem.potentials["unary"].add_(160.0)
    row = problem.log_space[0]
    assert row is not None
    log_z, alpha = chain.forward(*arguments(problem))
    d_unary, d_transition, _, _ = chain.backward(*arguments(problem), alpha, log_z, torch.ones(1))
    torch.testing.assert_close(log_z.double(), torch.tensor([row.log_partition]).double(), rtol=1e-7, atol=0)
    np.testing.assert_allclose(d_unary[0].numpy(), row.unary_marginals(), atol=2e-5)
    np.testing.assert_allclose(d_unary[0].sum(1).numpy(), 1.0, atol=5e-6)
    np.testing.assert_allclose(d_transition.numpy(), row.pair_marginals().sum(0), rtol=2e-5)


def test_wide_potentials_stay_exact() -> None:
    case = ChainCase("wide", B=2, N=4, C=5, lengths=None, dtype=torch.float32, spread=3000.0, seed=3)
    problem = case.problem()
    log_z, alpha = chain.forward(*arguments(problem))
    d_unary = chain.backward(*arguments(problem), alpha, log_z, torch.ones(2))[0]
    assert_close(log_z, [row.log_partition for row in problem.rows], case.dtype)
    assert_close(d_unary, problem.expected()["unary"], case.dtype)


@pytest.mark.parametrize(("B", "N"), [(0, 3), (2, 0)])
def test_empty_batches_and_sequences(B: int, N: int) -> None:
    unary, transition, edge = torch.zeros(B, N, 3), torch.zeros(3, 3), torch.zeros(3)
    args = (unary, transition, edge, edge, torch.zeros(B, dtype=torch.int64))
    labels, score = chain.viterbi(*args)
    assert labels.shape == (B, N)
    assert score.tolist() == [0.0] * B
    labels, scores = chain.kbest(*args, 2)
    assert labels.shape == (2, B, N)
    assert scores.tolist() == [[0.0] * B, [NEG_INF] * B]
    log_z, alpha = chain.forward(*args)
    assert log_z.tolist() == [0.0] * B
    gradients = chain.backward(*args, alpha, log_z, torch.ones(B))
    assert [(g.shape, g.abs().sum().item()) for g in gradients if g is not None] == [(x.shape, 0.0) for x in args[:4]]
    assert chain.sample(*args, alpha, torch.zeros(4, B, N)).shape == (4, B, N)


def test_shared_gradient_is_the_same_in_every_run() -> None:
    args = arguments(ChainCase("again", B=4, N=9, C=5, lengths=None, dtype=torch.float32).problem())
    log_z, alpha = chain.forward(*args)
    first, second = (chain.backward(*args, alpha, log_z, torch.ones(4))[1] for _ in range(2))
    assert torch.equal(first, second)


def test_partial_sums_stay_below_the_size_of_unary() -> None:
    B, N, C = 16, 100, 200
    unary = torch.zeros(B, N, C)
    args = (unary, torch.zeros(C, C), None, None, None)
    _, (_, partial) = chain.plan_backward(*args, unary, torch.zeros(B), torch.zeros(B))
    assert partial.numel() <= unary.numel()


def run_python(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, because triton decides at import whether kernels are compiled or interpreted."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | environment
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)


# One tile and several; the whole table is for `python -m structlearn.gpu.aot --check`, as it takes minutes.
@pytest.mark.parametrize(("states", "architectures"), [("64", ("80", "90")), ("256", ("100",))])
def test_compiled_kernels_use_what_the_table_says(tmp_path: Path, states: str, architectures: tuple[str, ...]) -> None:
    command = ("-m", "structlearn.gpu.aot", "--check", "--states", states, "--dtypes", "float32")
    done = run_python(*command, "--architectures", *architectures, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    count = sum(1 for shared in (True, False) for _ in aot.launches(int(states), torch.float32, shared))
    assert done.stdout.strip() == f"{count * len(architectures)} compilations, 0 differences"


def test_the_table_covers_every_launch_without_spills() -> None:
    rows = aot.read()
    kernels = {
        (launch.name, "shared" if shared else "position")
        for shared in (True, False)
        for launch in aot.launches(16, torch.float32, shared)
    }
    wanted = {
        (kernel, dtype, str(C), where, f"sm_{arch}")
        for (kernel, where), dtype, C, arch in itertools.product(kernels, aot.DTYPES, aot.STATES, aot.ARCHITECTURES)
    }
    assert {tuple(row[name] for name in aot.KEY) for row in rows} == wanted
    assert {row["spill_bytes"] for row in rows} == {"0"}
    assert all(int(row["registers"]) * 32 * int(row["num_warps"]) <= 65536 for row in rows)


def test_a_difference_from_the_table_is_named() -> None:
    rows = aot.read()
    changed = [dict(row) for row in rows[:3]]
    changed[0]["registers"] = "1"
    changed[1]["spill_bytes"] = "8"
    changed[2]["states"] = "7"
    found = "\n".join(aot.differences(changed, rows))
    assert f"registers is 1, recorded {rows[0]['registers']}" in found
    assert "spills 8 bytes" in found
    assert "not in the table; run with --write" in found
    assert not aot.differences([changed[0] | {"triton": "0.0"}], rows), "another compiler may use other registers"


def test_launch_functions_import_without_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import structlearn.gpu.semimarkov_count, structlearn.gpu.aot"
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
