"""Span trees with large offsets, wide scores and masks by finite numbers, in the C++ kernels.

float32 and float64 potentials against sums in extended precision over the same numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import DTYPES, NEG_INF, numbers
from oracles import span_tree as oracle
from torch import Tensor

import structlearn as sl
from structlearn.structures.counting import Counter

pytestmark = pytest.mark.usefixtures("poisoned_memory")

MASKS = [-1e4, -1e30, "min"]
N, LENGTHS = 24, torch.tensor([24, 23, 9, 1, 0, 24])  # more than four sentences, which share a chart
SHORT = torch.tensor([6, 5, 3, 2, 1, 0])


def mask_value(mask: float | str, dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min if mask == "min" else float(mask)


def draw(dtype: torch.dtype, scale: float, n: int = N, labels: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(labels)
    return (scale * (2 * torch.rand((6, n, n, labels), generator=g) - 1)).to(dtype)


def check_sums(marginals: Tensor, lengths: Tensor) -> None:
    """The whole sentence and every word are spans of every tree, and there are 2n - 1 in all."""
    for parts, n in zip(marginals.double(), lengths.tolist(), strict=True):
        spans = parts.sum(-1)
        if n:
            assert float(spans[0, n - 1]) == pytest.approx(1, abs=1e-5)
            torch.testing.assert_close(spans.diagonal()[:n], torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-5)
        assert float(spans.sum()) == pytest.approx(max(2 * n - 1, 0), abs=1e-5 * (2 * n + 1))


def check(spans: Tensor, lengths: Tensor, marginal: float, entropy: float) -> None:
    """log Z, its gradient and marginals by all their ways, entropy and best score within these errors in float32."""
    dtype, eps = spans.dtype, torch.finfo(spans.dtype).eps
    digits = 1.0 if dtype is torch.float32 else 1e-7  # the oracle's own: 1e6 in extended precision
    values = [oracle.totals(numbers(x), int(n)) for x, n in zip(spans, lengths, strict=True)]
    rows = [
        oracle.marginals(numbers(x), int(n)) if n else (np.zeros(x.shape), 0.0)
        for x, n in zip(spans, lengths, strict=True)
    ]
    leaf = spans.clone().requires_grad_()
    s, quiet = (sl.SpanTree(x, lengths=lengths, backend="cpu") for x in (leaf, spans))
    log_z, both = quiet.log_partition_and_marginals()
    for found in (log_z, s.log_partition()):
        np.testing.assert_allclose(numbers(found), [value[0] for value in values], rtol=4 * eps, atol=1e-5 * digits)
    np.testing.assert_allclose(numbers(quiet.max()), [value[1] for value in values], rtol=100 * eps)
    np.testing.assert_allclose(numbers(s.entropy()), [row[1] for row in rows], rtol=0, atol=entropy * digits)
    weight = torch.linspace(-1, 1, len(rows), dtype=dtype)
    (gradient,) = torch.autograd.grad(s.log_partition(), leaf, weight)
    ones = np.ones(len(rows))
    for parts, weights in ((both.spans, ones), (quiet.marginals().spans, ones), (gradient, numbers(weight))):
        expected = np.stack([w * row[0] for w, row in zip(weights, rows, strict=True)]).astype(float)
        np.testing.assert_allclose(numbers(parts), expected, rtol=0, atol=marginal * digits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [1, 3, 17])
@pytest.mark.parametrize("kind", ["none", "all", "row", "span", "width"])
def test_offsets_leave_no_trace(kind: str, labels: int, dtype: torch.dtype) -> None:
    spans = draw(dtype, 10.0, labels=labels)
    if kind == "all":
        spans = spans + 1e4
    if kind == "row":
        spans = spans + torch.tensor([1e4, -1e4, 1e4, -1e4, 1e4, 5e3], dtype=dtype)[:, None, None, None]
    if kind == "span":
        spans = spans + 1e4 * torch.rand((6, N, N, 1), dtype=dtype)
    if kind == "width":
        place = torch.arange(N, dtype=dtype)
        spans = spans + 1e4 / N * (place - place[:, None])[:, :, None]
    check(spans, LENGTHS, 1e-5, 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [100.0, 1e3, 1e4])
def test_wide_scores(scale: float, dtype: torch.dtype) -> None:
    check(draw(dtype, scale), LENGTHS, 1e-4, 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e8, 1e30])
def test_probabilities_sum_to_one(scale: float, dtype: torch.dtype) -> None:
    s = sl.SpanTree(draw(dtype, scale), lengths=LENGTHS, backend="cpu")
    check_sums(s.marginals().spans, LENGTHS)
    check_sums(s.log_partition_and_marginals()[1].spans, LENGTHS)


def everything(spans: Tensor) -> dict[str, Tensor]:
    """Every query that a mask must not disturb, with second derivatives along a fixed direction."""
    leaf = spans.clone().requires_grad_()
    s = sl.SpanTree(leaf, lengths=SHORT, backend="cpu")
    direction = torch.rand(spans.shape, generator=torch.Generator().manual_seed(0)).to(spans.dtype)
    log_z, entropy = s.log_partition(), s.entropy()
    (gradient,) = torch.autograd.grad(log_z.sum(), leaf, create_graph=True)
    y, scores = s.topk(3)
    counter = Counter(({"spans": (torch.arange(spans.shape[3]) > 0).long().expand(spans.shape)},), (12,))
    found = {
        "argmax": s.argmax(),
        "max": s.max(),
        "log Z": log_z,
        "entropy": entropy,
        "y": y,
        "scores": scores,
        "sample": s.sample(20, generator=torch.Generator().manual_seed(1)),
        "table": s.max_by_count(counter).table,
        "marginals": gradient,
        "second derivative": torch.autograd.grad((gradient * direction).sum(), leaf, retain_graph=True)[0],
        "gradient of the entropy": torch.autograd.grad(entropy.sum(), leaf)[0],
    }
    return {name: x.detach() for name, x in found.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_finite_masks_act_as_minus_infinity(mask: float | str, dtype: torch.dtype) -> None:
    spans = draw(dtype, 3.0, 6)
    masked = torch.rand(spans.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    masked[:, 0, :, 0] = masked[:, torch.arange(6), torch.arange(6), 0] = False  # leaves one tree to every sentence
    value = mask_value(mask, dtype)
    left, right = everything(spans.masked_fill(masked, NEG_INF)), everything(spans.masked_fill(masked, value))
    tolerance = 100 * torch.finfo(dtype).eps
    for name, expected in left.items():
        found = right[name]
        assert not found.isnan().any(), name
        allowed = expected > NEG_INF  # an output more, or a count more, may be had at the price of a mask
        if name == "y":
            allowed = (left["scores"] > NEG_INF)[..., None, None].expand(expected.shape)
        torch.testing.assert_close(found[allowed], expected[allowed], rtol=tolerance, atol=10 * tolerance, msg=name)
        if name in ("scores", "table"):
            assert (found[~allowed] <= value / 2).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("where", ["word", "sentence", "everything"])
def test_if_all_trees_are_masked_the_best_of_them_is_found(where: str, mask: float | str, dtype: torch.dtype) -> None:
    spans = draw(dtype, 3.0)
    value = mask_value(mask, dtype)
    if where == "word":
        spans[:, 0, 0] = value
    if where == "sentence":
        spans[torch.arange(6), 0, LENGTHS - 1] = value
    if where == "everything":
        spans[...] = value
    s = sl.SpanTree(spans, lengths=LENGTHS, backend="cpu")
    wide = numbers(spans).astype(np.longdouble)
    best = np.array(
        [float(np.clip(_best(x, int(n)), torch.finfo(dtype).min, None)) for x, n in zip(wide, LENGTHS, strict=True)]
    )
    for found in (s.max(), s.score(s.argmax()), s.topk(2)[1][0]):
        np.testing.assert_allclose(numbers(found), best, rtol=1e-6, atol=1e-4)
    assert s.log_partition().isfinite().all()
    assert (s.score(s.sample(5)) > NEG_INF).all()
    entropy = s.entropy()
    assert entropy.isfinite().all()
    assert (entropy >= 0).all()
    check_sums(s.marginals().spans, LENGTHS)


def _best(spans: np.ndarray, n: int) -> np.floating:
    """The best score over n words, in the precision of ``spans``."""
    chart = np.zeros((n, n), spans.dtype)
    for w in range(n):
        for i in range(n - w):
            chart[i, i + w] = spans[i, i + w].max()
            if w:
                chart[i, i + w] += (chart[i, i : i + w] + chart[i + 1 : i + w + 1, i + w]).max()
    return chart[0, n - 1] if n else spans.dtype.type(0)  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_beyond_the_range_saturate(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    for value in (most, -most):
        s = sl.SpanTree(torch.full((1, 3, 3, 2), value, dtype=dtype), backend="cpu")
        for found in (s.max(), s.score(s.argmax()), s.log_partition(), *s.topk(3)[1]):
            assert found.tolist() == [value]
        table = s.max_by_count(Counter(({"spans": torch.ones(1, 3, 3, 2, dtype=torch.int64)},), (7,))).table
        assert table[0].tolist() == [NEG_INF] * 5 + [value, NEG_INF]
    forbidden = sl.SpanTree(torch.full((1, 3, 3, 2), NEG_INF, dtype=dtype), backend="cpu")
    assert forbidden.max().item() == forbidden.log_partition().item() == NEG_INF


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_in_double_go_to_the_lowest_indices(dtype: torch.dtype) -> None:
    """Scores so large that the search is done again: integers, so that equal sums are equal."""
    spans = torch.randint(0, 2, (9, 5, 5, 2), generator=torch.Generator().manual_seed(3)).to(dtype)
    small, large = sl.SpanTree(spans, backend="cpu"), sl.SpanTree(spans * 2.0**20, backend="cpu")
    assert torch.equal(small.argmax(), large.argmax())
    assert torch.equal(small.topk(4)[0], large.topk(4)[0])
