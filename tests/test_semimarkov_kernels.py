"""The C++ kernels of SemiMarkov beyond small cases: wide ranges, odd sizes, strides, threads, and torch.library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import DTYPES, NEG_INF
from torch import Tensor

import structlearn as sl
from structlearn.ops import semimarkov as ops
from structlearn.ops import semimarkov_count as count_ops
from structlearn.structures.counting import Counter

B, N, W, C = 3, 4, 2, 3


def check(segments: Tensor, transition: Tensor, lengths: Tensor | None, dtype: torch.dtype) -> None:
    """Values and gradients against the reference in float64, up to the digits that the range of scores leaves."""
    segments, transition = segments.to(dtype), transition.to(dtype)
    eps = torch.finfo(dtype).eps
    finite = [float(x[x.isfinite()].abs().max()) for x in (segments, transition) if x.isfinite().any()]
    atol = eps * (segments.shape[1] * max(finite, default=1.0) * (0.3 if dtype is torch.float32 else 4.0) + 20)
    found, expected = ([], [])
    for results, backend, wide in ((found, "cpu", dtype), (expected, "reference", torch.float64)):
        leaves = [x.detach().to(wide, copy=True).requires_grad_() for x in (segments, transition)]
        s = sl.SemiMarkov(*leaves, lengths=lengths, backend=backend)
        log_z, entropy, best = s.log_partition(), s.entropy(), s.max()
        dead = log_z == NEG_INF
        options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}  # one position has no transition
        gradients = torch.autograd.grad(torch.where(dead, 0.0, log_z).sum(), leaves, retain_graph=True, **options)
        curvature = torch.autograd.grad(torch.where(dead, 0.0, entropy).sum(), leaves, **options)
        results.extend(x.detach().double() for x in (log_z, entropy, best, *gradients, *curvature))
    log_z = expected[0]
    tolerances = [atol] * 3 + [atol, atol * segments[:, :, 0, 0].numel()] * 2
    for x, y, tolerance in zip(found, expected, tolerances, strict=True):
        torch.testing.assert_close(x, y, rtol=8 * eps, atol=4 * tolerance)


def draw(shape: tuple[int, ...], spread: float, forbidden: float = 0.0) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64) * spread
    return x.masked_fill(torch.rand(shape) < forbidden, NEG_INF)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("forbidden", [0.0, 0.6])
@pytest.mark.parametrize("spread", [1.0, 10.0, 30.0, 100.0, 1000.0])
def test_wide_ranges(spread: float, forbidden: float, shared: bool, dtype: torch.dtype) -> None:
    transition = draw((5, 5) if shared else (9, 10, 5, 5), spread, forbidden)
    lengths = torch.tensor([11, 11, 10, 9, 7, 5, 3, 1, 0])
    check(draw((9, 11, 4, 5), spread, forbidden), transition, lengths, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 63, 5, 1), (5, 31, 3, 33), (3, 17, 40, 17), (17, 9, 2, 8), (2, 6, 6, 65)]
)
def test_odd_sizes(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    b, n, _, c = shape
    check(draw(shape, 1.0), draw((c, c), 1.0), torch.arange(b) * 7 % n + 1, dtype)
    check(draw(shape, 1.0), draw((b, n - 1, c, c), 1.0), None, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_label_that_is_hopeless_now_and_certain_later(dtype: torch.dtype) -> None:
    """Scaled numbers lose label 1 at the front, where label 0 is better by e^200; then label 0 is forbidden."""
    segments = torch.zeros(1, 6, 2, 2, dtype=torch.float64)
    segments[:, :3, :, 1] = -200.0
    segments[:, 3:, :, 0] = NEG_INF
    transition = torch.tensor([[0.0, -500.0], [-500.0, 0.0]], dtype=torch.float64)
    check(segments, transition, None, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_candidates(dtype: torch.dtype) -> None:
    """Spans from a list, all others forbidden, and no two segments of one label: most sums are really 0."""
    segments = torch.full((1, 6, 3, 3), NEG_INF, dtype=torch.float64)
    for start, width, label in ((0, 1, 0), (0, 0, 1), (1, 1, 0), (2, 2, 1), (3, 1, 2), (2, 0, 2), (5, 0, 0), (3, 2, 1)):
        segments[0, start, width, label] = 0.1 * (start + width + label)
    transition = torch.zeros(3, 3, dtype=torch.float64).fill_diagonal_(NEG_INF)
    check(segments, transition, None, dtype)
    scales = ops.forward(segments.to(dtype), transition.to(dtype), None, True, "cpu")[2]
    assert not scales[:, 0].isnan().any(), "a structural 0 is no reason for log space"


def test_strides() -> None:
    whole = torch.randn(2 * W, B, C, N, dtype=torch.float64)
    segments = whole[::2].permute(1, 3, 0, 2)
    transition = torch.randn(C, C, dtype=torch.float64).T
    assert not segments.is_contiguous()
    for backend in ("cpu", "reference"):
        a = sl.SemiMarkov(segments, transition, backend=backend)
        b = sl.SemiMarkov(segments.contiguous(), transition.contiguous(), backend=backend)
        assert torch.equal(a.argmax(), b.argmax())
        assert torch.equal(a.log_partition(), b.log_partition())
        assert torch.equal(a.marginals().segments, b.marginals().segments)


def test_results_are_the_same_in_every_run() -> None:
    segments, transition = torch.randn(20, 60, 6, 12), torch.randn(12, 12)
    lengths = torch.randint(1, 61, (20,))
    found = []
    before = torch.get_num_threads()
    try:
        for _ in range(3):
            torch.set_num_threads(2)
            s = sl.SemiMarkov(segments, transition, lengths=lengths)
            found.append((s.argmax(), s.log_partition(), *s.marginals(), s.entropy(), *s.topk(3)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))


def arguments(per_position: bool = False) -> list[Any]:
    """segments, transition, lengths."""
    segments = torch.randn(B, N, W, C, dtype=torch.float64, requires_grad=True)
    shape = (B, N - 1, C, C) if per_position else (C, C)
    return [segments, torch.randn(shape, dtype=torch.float64, requires_grad=True), torch.tensor([4, 1, 3])]


def samples(args: list[Any]) -> dict[str, tuple[Any, ...]]:
    """Arguments for every operator."""
    quiet = [x.detach() for x in args]
    codes = torch.tensor([[0, 4, -1, 2], [1, 0, 0, 0], [5, -1, 0, 0]])
    _, values, scales = ops.forward(*quiet, True, "cpu")
    grad = torch.randn(B, dtype=torch.float64, requires_grad=True)
    directions = [torch.randn_like(x) for x in quiet[:2]]
    table = torch.randn(B, 5, dtype=torch.float64)
    steps = [torch.ones_like(quiet[0], dtype=torch.int64), torch.zeros_like(quiet[1], dtype=torch.int64)]
    return {
        "viterbi": (*quiet, "cpu"),
        "max": tuple(args),
        "score": (*args, codes[None]),
        "score_backward": (*quiet, codes[None], grad[None]),
        "forward": (*args, True, "cpu"),
        "backward": (*args, values, scales, grad, "cpu"),
        "second": (*quiet, grad.detach(), *directions),
        "entropy": tuple(args),
        "entropy_backward": (*quiet, grad.detach()),
        "kbest": (*quiet, 3, "cpu"),
        "sample": (*quiet, torch.rand((2, B, N, 2), dtype=torch.float64), "cpu"),
        "best_by_count": (*quiet, *steps, 5, table, table.exp(), "cpu"),
    }


def test_every_operator_is_checked() -> None:
    schemas = (s.name for s in torch._C._jit_get_all_schemas())
    names = {name.removeprefix("structlearn::semimarkov_") for name in schemas if "::semimarkov_" in name}
    assert names == set(samples(arguments()))
    assert count_ops.best_by_count is not None


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("name", sorted(samples(arguments())))
def test_opcheck(name: str, per_position: bool) -> None:
    operator = getattr(torch.ops.structlearn, f"semimarkov_{name}").default
    torch.library.opcheck(operator, samples(arguments(per_position))[name])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_compiles_whole(backend: str) -> None:
    y = torch.tensor([[0, 4, -1, 2], [1, 0, 0, 0], [5, -1, 0, 0]])

    def function(segments: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        s = sl.SemiMarkov(segments, transition, lengths=lengths, backend=backend)
        values = s.max(), s.score(y), s.log_partition(), s.entropy()
        if backend == "reference":  # reads outputs off gradients, which torch.compile does not trace
            return values
        return *values, s.argmax(), *s.topk(2), *s.marginals()

    results = []
    args = arguments()
    for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        found = run(*args)
        loss = sum(x.square().sum() for x in found if x.requires_grad)
        assert isinstance(loss, Tensor)
        results.append((*found, *torch.autograd.grad(loss, args[:2])))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


def test_inference_mode() -> None:
    args = arguments()
    with torch.inference_mode():
        for backend in ("cpu", "reference"):
            s = sl.SemiMarkov(*(x.detach() for x in args[:2]), lengths=args[2], backend=backend)
            s.topk(2), s.sample(2), s.marginals(), s.entropy()
            assert s.score(s.argmax()).tolist() == pytest.approx(s.max().tolist())
            s.max_by_count(Counter(({"segments": torch.ones_like(s.segments).long()},), (5,)))
