"""The C++ kernels of Alignment beyond small cases: odd sizes, wide ranges, bands, strides, threads, torch.library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alignment_cases import MODES
from cases import DTYPES, NEG_INF
from torch import Tensor

import structlearn as sl
from structlearn.ops import alignment as ops
from structlearn.ops import alignment_count as count_ops
from structlearn.ops import alignment_sum as sum_ops

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def draw(shape: tuple[int, ...], spread: float, forbidden: float = 0.0) -> Tensor:
    x = (torch.randn(shape, dtype=torch.float64) * spread * 64).round() / 64
    return x.masked_fill(torch.rand(shape) < forbidden, NEG_INF)


def potentials(b: int, n: int, m: int, affine: bool, spread: float = 1.0, forbidden: float = 0.0) -> list[Tensor]:
    shapes = [(b, n, m), (b, n), (b, m), (b, n), (b, m)][: 5 if affine else 3]
    return [draw(shape, spread, forbidden if len(shape) == 3 else 0.0) for shape in shapes]


def make(leaves: list[Tensor], **options: Any) -> sl.Alignment:
    match, gap_x, gap_y, *opens = leaves
    return sl.Alignment(match, gap=(gap_x, gap_y), gap_open=(opens[0], opens[1]) if opens else None, **options)


def check(given: list[Tensor], dtype: torch.dtype, **options: Any) -> None:
    """Values and gradients against the reference in float64, up to the digits that the range of scores leaves."""
    given = [x.to(dtype) for x in given]
    eps = torch.finfo(dtype).eps
    _, n, m = given[0].shape
    largest = max([float(x[x.isfinite()].abs().max()) for x in given if x.isfinite().any()], default=1.0)
    atol = eps * ((n + m) * largest * 2 + 20)
    results: list[list[Tensor]] = []
    for backend, wide in (("cpu", dtype), ("reference", torch.float64)):
        leaves = [x.detach().to(wide, copy=True).requires_grad_() for x in given]
        s = make(leaves, backend=backend, **options)
        log_z, best = s.log_partition(), s.max()
        found = [log_z, best]
        for value in (log_z, best):
            alive = torch.where(value == NEG_INF, 0.0, value)
            found += torch.autograd.grad(
                alive.sum(), leaves, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        results.append([x.detach().double() for x in found])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=16 * eps, atol=4 * atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_odd_sizes(mode: str, affine: bool, dtype: torch.dtype) -> None:
    for n, m in ((16, 16), (17, 33), (33, 17), (63, 40), (1, 50), (50, 1), (70, 9)):
        check(potentials(2, n, m, affine), dtype, mode=mode)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_ragged_and_banded(mode: str, affine: bool, dtype: torch.dtype) -> None:
    x = torch.tensor([40, 17, 1, 0, 33, 40])
    y = torch.tensor([5, 36, 20, 9, 36, 0])
    given = potentials(6, 40, 36, affine)
    for b in range(6):
        given[0][b, x[b] :] = float("nan")
        given[0][b, :, y[b] :] = float("nan")
        for scores, length in zip(given[1:], (x, y, x, y), strict=False):
            scores[b, length[b] :] = float("nan")
    clean = [v.nan_to_num(0.0, neginf=NEG_INF) for v in given]
    for band in (None, 0, 3, 20, 60):
        options = {"mode": mode, "x_lengths": x, "y_lengths": y, "band": band}
        check(clean, dtype, **options)
        poisoned = make([v.to(dtype) for v in given], backend="cpu", **options)
        whole = make([v.to(dtype) for v in clean], backend="cpu", **options)
        assert torch.equal(poisoned.log_partition(), whole.log_partition())
        for a, b in zip(poisoned.marginals(), whole.marginals(), strict=True):
            assert a is b is None or torch.equal(a, b)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("forbidden", [0.0, 0.5])
@pytest.mark.parametrize("spread", [10.0, 20.0, 100.0, 1000.0])
def test_wide_ranges(spread: float, forbidden: float, mode: str, dtype: torch.dtype) -> None:
    check(potentials(4, 37, 22, True, spread, forbidden), dtype, mode=mode)
    check(potentials(4, 22, 37, False, spread, forbidden), dtype, mode=mode)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", [-30.0, 30.0])
def test_totals_that_no_float_holds(level: float, mode: str, dtype: torch.dtype) -> None:
    """log Z near 100 times 30: every row of nodes needs an exponent of its own."""
    given = potentials(2, 100, 90, True)
    check([given[0] + level, *(x - 5.0 for x in given[1:])], dtype, mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("difference", [0.0, 1.0, -1.0, 1e-3])
@pytest.mark.parametrize("level", [0.0, 1e8])
def test_best_paths_where_opening_and_extending_a_gap_tie(level: float, difference: float, mode: str) -> None:
    """Ties are resolved as in the reference; at 1e8 float32 does not tell the two scores of a gap apart."""
    torch.manual_seed(0)
    match = torch.randint(-2, 3, (6, 37, 41)).float()
    match[:, 0, 0] += level
    gaps = {"gap": -1.0, "gap_open": -1.0 - difference, "mode": mode}
    own, reference = (sl.Alignment(match, **gaps, backend=name) for name in ("cpu", "reference"))  # type: ignore[arg-type]
    if level == 0.0:
        assert torch.equal(own.argmax(), reference.argmax())
    rounding = {"rtol": 1e-6, "atol": 1e-5}  # of float32 sums; the reference adds in float64
    torch.testing.assert_close(reference.score(own.argmax()), reference.max(), **rounding)
    torch.testing.assert_close(own.max(), reference.max(), **rounding)


@pytest.mark.parametrize("size", [37, 300])
def test_value_and_gradient_of_one_call_equal_the_operators(size: int) -> None:
    """Once with all steps of a pair kept, once with steps done again."""
    torch.manual_seed(0)
    match = torch.randn(2, size, size + 5, dtype=torch.float64, requires_grad=True)
    log_z = sl.Alignment(match, gap=-0.3, gap_open=-1.0).log_partition()
    (together,) = torch.autograd.grad(log_z.sum(), match, retain_graph=True)
    (apart,) = torch.autograd.grad(log_z.sum(), match)
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-14)


def test_strides() -> None:
    match = torch.randn(7, 3, 10, dtype=torch.float64)[:, :, ::2].permute(1, 0, 2)
    gap = torch.randn(6, dtype=torch.float64)[::2]
    for options in ({}, {"gap_open": gap * 2}):
        found = [
            (s.argmax(), s.log_partition(), s.marginals().match, s.entropy())
            for s in (
                sl.Alignment(match, gap=gap, backend="cpu", **options),
                sl.Alignment(match.contiguous(), gap=gap.clone(), backend="cpu", **options),
            )
        ]
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_results_are_the_same_in_every_run_and_on_every_number_of_threads() -> None:
    match = torch.randn(20, 60, 70)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            s = sl.Alignment(match, gap=-0.5, gap_open=-2.0, x_lengths=torch.arange(20) * 3, backend="cpu")
            found.append((s.argmax(), s.log_partition(), *s.marginals(), s.entropy(), *s.topk(3)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))


def test_samples_follow_the_marginals() -> None:
    given = [x.float() for x in potentials(2, 6, 5, True)]
    for mode in MODES:
        s = make(given, mode=mode, backend="cpu")
        drawn = s.sample(4000, generator=torch.Generator().manual_seed(5))
        pairs = s.pairs(drawn)
        used = torch.zeros(2, 7, 6)
        for b in range(2):
            i, j = pairs[:, b].reshape(-1, 2).clamp(min=-1).unbind(-1)
            used[b].index_put_((i, j), torch.ones(len(i)), accumulate=True)
        assert torch.allclose(used[:, :6, :5] / 4000, s.marginals().match, atol=0.04)


B, N, M = 3, 4, 3


def arguments(affine: bool, mode: int = 0) -> list[Any]:
    leaves: list[Any] = [x.requires_grad_() for x in potentials(B, N, M, affine)]
    opens = [] if affine else [None, None]
    return [*leaves, *opens, torch.tensor([4, 2, 0]), torch.tensor([3, 3, 1]), mode, -1]


def samples(args: list[Any]) -> dict[str, tuple[Any, ...]]:
    """Arguments for every operator of the alignment."""
    quiet = [x.detach() if isinstance(x, Tensor) else x for x in args]
    path = ops.best(*quiet, True, "cpu")[0]
    log_z, kept = sum_ops.forward(*quiet, True, "cpu")
    grad = torch.randn(B, dtype=torch.float64, requires_grad=True)
    directions = [None if x is None else torch.randn_like(x) for x in quiet[:5]]
    table = torch.zeros((B, 3), dtype=torch.float64)
    steps = [torch.ones(x.shape, dtype=torch.int64) if i == 0 else None for i, x in enumerate(quiet[:5])]
    return {
        "alignment_best": (*quiet, True, "cpu"),
        "alignment_max": (*args, True, "cpu"),
        "alignment_score": (*args, path[None]),
        "alignment_score_backward": (*quiet, path[None], grad[None]),
        "alignment_forward": (*args, True, "cpu"),
        "alignment_backward": (*args, log_z, kept, grad, "cpu"),
        "alignment_second": (*quiet, grad.detach(), *directions),
        "alignment_entropy": tuple(args),
        "alignment_entropy_backward": (*quiet, grad.detach()),
        "alignment_kbest": (*quiet, 3),
        "alignment_sample": (*quiet, torch.rand((2, B, N + M + 1), dtype=torch.float64)),
        "alignment_best_by_count": (*quiet, *steps, 3, table, table + 1),
    }


def test_every_operator_is_checked() -> None:
    schemas = torch._C._jit_get_all_schemas()
    names = {s.name.removeprefix("structlearn::") for s in schemas if s.name.startswith("structlearn::alignment_")}
    assert names == set(samples(arguments(True)))
    assert count_ops.best_by_count


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("name", sorted(samples(arguments(True))))
def test_opcheck(name: str, affine: bool) -> None:
    torch.library.opcheck(getattr(torch.ops.structlearn, name).default, samples(arguments(affine))[name])


@pytest.mark.parametrize("affine", [False, True])
def test_compiles_whole(affine: bool) -> None:
    path = torch.tensor([[0, 0, 0, 1, -100, -100, -100], [0, 0, 2, -100, -100, -100, -100], [2, *[-100] * 6]])

    def function(*args: Any) -> tuple[Tensor, ...]:
        leaves, lengths = [x for x in args[:5] if x is not None], args[5:7]
        s = make(leaves, x_lengths=lengths[0], y_lengths=lengths[1], backend="cpu")
        best, scores = s.topk(2)
        return s.max(), s.score(path), s.log_partition(), s.entropy(), s.argmax(), best, scores, s.marginals().match

    results = []
    for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(3)
        args = arguments(affine)
        found = run(*args)
        loss = sum(x.square().sum() for x in found if x.requires_grad)
        results.append((*found, *torch.autograd.grad(loss, [x for x in args[:5] if x is not None])))  # type: ignore[arg-type]
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
