"""Semi-Markov chains with large offsets, wide scores and masks by finite numbers, in the C++ kernels.

float32 and float64 potentials against sums in extended precision over the same numbers.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cases import DTYPES, NEG_INF, numbers
from oracles import semimarkov as oracle
from torch import Tensor

import structlearn as sl
from structlearn.ops import semimarkov as ops
from structlearn.structures.counting import Counter

pytestmark = pytest.mark.usefixtures("poisoned_memory")

MASKS = [-1e4, -1e30, "min"]
LENGTHS = torch.tensor([100, 99, 37, 1, 0])


def mask_value(mask: float | str, dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min if mask == "min" else float(mask)


def draw(
    dtype: torch.dtype, per_position: bool, scale: float = 10.0, W: int = 4, C: int = 3, N: int = 100
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(W)
    shape = (5, N - 1, C, C) if per_position else (C, C)
    segments, transition = (scale * (2 * torch.rand(s, generator=g) - 1) for s in ((5, N, W, C), shape))
    return segments.to(dtype), transition.to(dtype)


def coverage(marginals: Tensor, n: int) -> Tensor:
    """The probability that some segment covers each of n positions, from marginals (N, W, C)."""
    covered = torch.zeros(n, dtype=torch.float64)
    for start, width in itertools.product(range(n), range(marginals.shape[1])):
        covered[start : start + width + 1] += marginals[start, width].double().sum()
    return covered


def check(segments: Tensor, transition: Tensor, lengths: Tensor, marginal: float, entropy: float) -> None:
    """log Z, its gradient and marginals by all their ways, entropy and best score within these errors in float32."""
    dtype, eps = segments.dtype, torch.finfo(segments.dtype).eps
    digits = 1.0 if dtype is torch.float32 else 1e-7  # the oracle's own: 1e6 in extended precision
    rows = [
        oracle.totals(numbers(x), numbers(transition if transition.dim() == 2 else y), int(n))
        for x, y, n in zip(segments, transition if transition.dim() == 4 else segments, lengths, strict=True)
    ]
    leaves = [segments.clone().requires_grad_(), transition.clone().requires_grad_()]
    s = sl.SemiMarkov(*leaves, lengths=lengths, backend="cpu")
    quiet = sl.SemiMarkov(segments, transition, lengths=lengths, backend="cpu")
    log_z, both = quiet.log_partition_and_marginals()
    wanted = np.array([float(row.log_partition) for row in rows])
    for found in (log_z, s.log_partition()):
        np.testing.assert_allclose(numbers(found), wanted, rtol=4 * eps, atol=1e-5 * digits)
    np.testing.assert_allclose(numbers(quiet.max()), [float(row.best) for row in rows], rtol=100 * eps)
    np.testing.assert_allclose(
        numbers(s.entropy()), [float(row.entropy) for row in rows], rtol=0, atol=entropy * digits
    )
    weight = torch.linspace(-1, 1, len(rows), dtype=dtype)
    gradient = torch.autograd.grad(s.log_partition(), leaves, weight)
    ones = np.ones(len(rows))
    for parts, weights in ((both, ones), (quiet.marginals(), ones), (gradient, numbers(weight))):
        expected = np.stack([w * row.segments for w, row in zip(weights, rows, strict=True)]).astype(float)
        np.testing.assert_allclose(numbers(parts[0]), expected, rtol=0, atol=marginal * digits)
        pairs = np.stack([w * row.transition for w, row in zip(weights, rows, strict=True)]).astype(float)
        terms = int(lengths.sum()) if transition.dim() == 2 else 1
        pairs = pairs.sum(0) if transition.dim() == 2 else pairs
        np.testing.assert_allclose(numbers(parts[1]), pairs, rtol=0, atol=marginal * digits * terms)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("kind", ["none", "segments", "transition", "row", "position", "width"])
def test_offsets_leave_no_trace(kind: str, per_position: bool, dtype: torch.dtype) -> None:
    segments, transition = draw(dtype, per_position)
    if kind == "segments":
        segments = segments + 1e4
    if kind == "transition":
        transition = transition - 1e4
    if kind == "row":
        segments = segments + torch.tensor([1e4, -1e4, 1e4, -1e4, 1e4], dtype=dtype)[:, None, None, None]
    if kind == "position":
        segments = segments + 1e4 * torch.rand((5, 100, 1, 1), dtype=dtype)
    if kind == "width":
        segments = segments + 1e4 * torch.arange(1, 5, dtype=dtype)[:, None]
    check(segments, transition, LENGTHS, 1e-5, 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("scale", [100.0, 1e3, 1e4])
def test_wide_scores(scale: float, per_position: bool, dtype: torch.dtype) -> None:
    check(*draw(dtype, per_position, scale), LENGTHS, 1e-4, 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e8, 1e30])
def test_the_segments_that_cover_a_position_sum_to_one(scale: float, dtype: torch.dtype) -> None:
    segments, transition = draw(dtype, False, scale, W=6, C=5)
    found = sl.SemiMarkov(segments, transition, lengths=LENGTHS, backend="cpu").marginals().segments
    for parts, n in zip(found, LENGTHS.tolist(), strict=True):
        torch.testing.assert_close(coverage(parts, n), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-5)


def everything(segments: Tensor, transition: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """Every query that a mask must not disturb, with second derivatives along a fixed direction."""
    leaves = [segments.clone().requires_grad_(), transition.clone().requires_grad_()]
    s = sl.SemiMarkov(*leaves, lengths=lengths, backend="cpu")
    g = torch.Generator().manual_seed(0)
    direction = [torch.rand(x.shape, generator=g).to(x.dtype) for x in leaves]
    log_z, entropy = s.log_partition(), s.entropy()
    gradient = torch.autograd.grad(log_z.sum(), leaves, create_graph=True)
    along = sum((x * v).sum() for x, v in zip(gradient, direction, strict=True))
    assert isinstance(along, Tensor)
    y, scores = s.topk(3)
    counter = Counter(({"segments": torch.ones_like(segments, dtype=torch.int64)},), (segments.shape[1] + 1,))
    found = {
        "argmax": s.argmax(),
        "max": s.max(),
        "log Z": log_z,
        "entropy": entropy,
        "y": y,
        "scores": scores,
        "sample": s.sample(20, generator=torch.Generator().manual_seed(1)),
        "table": s.max_by_count(counter).table,
    }
    for name, parts in (
        ("marginals of", gradient),
        ("second derivative by", torch.autograd.grad(along, leaves)),
        ("gradient of the entropy by", torch.autograd.grad(entropy.sum(), leaves)),
    ):
        found |= {f"{name} {field}": x for field, x in zip(("segments", "transition"), parts, strict=True)}
    return {name: x.detach() for name, x in found.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_finite_masks_act_as_minus_infinity(mask: float | str, per_position: bool, dtype: torch.dtype) -> None:
    lengths = torch.tensor([9, 8, 4, 2, 1])
    segments, transition = draw(dtype, per_position, 3.0, N=9)
    g = torch.Generator().manual_seed(1)
    masked = [torch.rand(x.shape, generator=g) < 0.3 for x in (segments, transition)]
    masked[0][..., 0, 0] = False  # leaves outputs of single positions
    masked[1][..., 0, 0] = False
    value = mask_value(mask, dtype)
    results = [
        everything(segments.masked_fill(masked[0], x), transition.masked_fill(masked[1], x), lengths)
        for x in (NEG_INF, value)
    ]
    tolerance = 100 * torch.finfo(dtype).eps
    for name, expected in results[0].items():
        found = results[1][name]
        assert not found.isnan().any(), name
        allowed = expected > NEG_INF  # an output more, or a count more, may be had at the price of a mask
        if name == "y":
            allowed = (results[0]["scores"] > NEG_INF)[..., None].expand(expected.shape)
        torch.testing.assert_close(found[allowed], expected[allowed], rtol=tolerance, atol=10 * tolerance, msg=name)
        if name in ("scores", "table"):
            assert (found[~allowed] <= value / 2).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("where", ["position", "segments", "transition", "everything"])
def test_if_all_outputs_are_masked_the_best_of_them_is_found(where: str, mask: float | str, dtype: torch.dtype) -> None:
    lengths = torch.tensor([9, 8, 4, 2, 1])
    segments, transition = draw(dtype, False, 3.0, N=9)
    value = mask_value(mask, dtype)
    if where == "position":
        segments[:, 0] = value
    if where in ("segments", "everything"):
        segments[...] = value
    if where in ("transition", "everything"):
        transition[...] = value
    s = sl.SemiMarkov(segments, transition, lengths=lengths, backend="cpu")
    best = torch.tensor(
        [
            float(oracle.totals(numbers(x), numbers(transition), int(n)).best)
            for x, n in zip(segments, lengths, strict=True)
        ],
        dtype=torch.float64,
    )
    best = best.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)
    for found in (s.max(), s.score(s.argmax()), s.topk(2)[1][0]):
        torch.testing.assert_close(found, best, rtol=1e-6, atol=1e-4)
    assert s.log_partition().isfinite().all()
    assert (s.score(s.sample(5)) > NEG_INF).all()
    entropy = s.entropy()
    assert entropy.isfinite().all()
    assert (entropy >= 0).all()
    for parts, n in zip(s.marginals().segments, lengths.tolist(), strict=True):
        torch.testing.assert_close(coverage(parts, n), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_beyond_the_range_saturate(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    for value in (most, -most):
        s = sl.SemiMarkov(torch.full((1, 4, 1, 2), value, dtype=dtype), torch.zeros(2, 2, dtype=dtype), backend="cpu")
        for found in (s.max(), s.score(s.argmax()), s.log_partition(), *s.topk(3)[1]):
            assert found.tolist() == [value]
        table = s.max_by_count(Counter(({"segments": torch.ones(1, 4, 1, 2, dtype=torch.int64)},), (6,))).table
        assert table[0].tolist() == [NEG_INF] * 4 + [value, NEG_INF]
    forbidden = sl.SemiMarkov(torch.full((1, 4, 1, 2), NEG_INF, dtype=dtype), torch.zeros(2, 2, dtype=dtype))
    assert forbidden.max().item() == forbidden.log_partition().item() == NEG_INF


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_masks_in_ordinary_use_stay_on_the_fast_pass(mask: float | str, dtype: torch.dtype) -> None:
    segments, transition = draw(dtype, False, 3.0, C=5)
    value = mask_value(mask, dtype)
    segments[:, 20:30, :, 1] = value
    transition[2, 3] = transition[4, 1] = value
    transition[:, 4] = value
    scales = ops.forward(segments, transition, LENGTHS, True, "cpu")[2]
    assert not scales[:, 0].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_in_double_go_to_the_lowest_indices(dtype: torch.dtype) -> None:
    """Scores so large that the search is done again: integers, so that equal sums are equal."""
    g = torch.Generator().manual_seed(3)
    segments = torch.randint(0, 2, (6, 5, 3, 2), generator=g).to(dtype)
    transition = torch.randint(0, 2, (2, 2), generator=g).to(dtype)
    small = sl.SemiMarkov(segments, transition, backend="cpu")
    large = sl.SemiMarkov(segments * 2.0**20, transition * 2.0**20, backend="cpu")
    assert torch.equal(small.argmax(), large.argmax())
    assert torch.equal(small.topk(4)[0], large.topk(4)[0])


def test_segments_beside_huge_scores_that_no_output_uses() -> None:
    segments = torch.tensor([[-1.0, 2.0], [0.0, NEG_INF], [NEG_INF, 3.0]], dtype=torch.float64).view(1, 3, 1, 2)
    s, expected = (
        sl.SemiMarkov(segments, torch.tensor([[1.0, 2.0], [-4.0, top]], dtype=torch.float64), backend="cpu")
        for top in (1e17, NEG_INF)
    )
    torch.testing.assert_close(s.log_partition(), expected.log_partition())
    torch.testing.assert_close(s.marginals().segments, expected.marginals().segments)
    torch.testing.assert_close(s.entropy(), expected.entropy())
