"""Chains whose scores stand on large offsets, are large, or mask outputs by large finite numbers.

The oracle works in ``np.longdouble`` on the same numbers. Where masks leave another output, it has -inf in their
places; where all outputs are masked, it has the scores less the masks, which all outputs have in common.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from cases import DTYPES, NEG_INF, Problem
from oracles.chain import LogSpace, log_space_rows
from torch import Tensor

import structlearn as sl
from structlearn.structures.counting import Counter

pytestmark = pytest.mark.usefixtures("poisoned_memory")

# One label, a vector's edges, and both sides of where sequences go by lanes.
LABELS = (1, 2, 9, 16, 17, 36)
MASKS = (-1e4, -1e30, "min")


def draw(seed: int, batch: int, length: int, labels: int, per_position: bool, spread: float) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def scores(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=g, dtype=torch.float64) * spread).clamp(-3 * spread, 3 * spread)

    steps = (batch, length - 1, labels, labels) if per_position else (labels, labels)
    return {
        "unary": scores(batch, length, labels),
        "transition": scores(*steps),
        "start": scores(labels),
        "end": scores(labels),
    }


def make(potentials: dict[str, Tensor], dtype: torch.dtype, lengths: tuple[int, ...] | None = None) -> Problem:
    return Problem(sl.LinearChain, {name: x.to(dtype) for name, x in potentials.items()}, lengths)


def oracle(problem: Problem, **changed: Tensor) -> list[LogSpace | None]:
    arrays = {name: x.detach().numpy().astype(np.longdouble) for name, x in {**problem.potentials, **changed}.items()}
    return log_space_rows(**arrays, lengths=problem.lengths)


def bar(dtype: torch.dtype, single: float) -> float:
    """An error that float32 may have, at the precision of the dtype."""
    return single if dtype is torch.float32 else single * 2.0**-29


def check(
    problem: Problem, rows: list[LogSpace | None], times: float = 1.0, shift: np.ndarray | float = 0.0
) -> sl.LinearChain:
    """Every query against the oracle; ``shift`` is what the oracle's scores lack. The errors allowed are promises."""
    dtype, chain = problem.dtype, problem.make("cpu")
    limits, steps = torch.finfo(dtype), max(1.0, problem.potentials["unary"].shape[1] / 100)
    marginal, surprise = bar(dtype, 1e-5) * times * steps, bar(dtype, 1e-4) * times * steps
    shift = np.broadcast_to(shift, len(rows))
    leaves = problem.leaves()
    with_gradient = problem.make("cpu", **leaves).log_partition()
    weights = torch.linspace(0.5, 1.0, len(rows), dtype=dtype)
    weighted = torch.autograd.grad(with_gradient, leaves["unary"], weights)[0]
    log_z, parts = chain.log_partition_and_marginals()
    best, labels, entropies, sampled = chain.max(), chain.argmax(), chain.entropy(), chain.sample(3)
    ranked, ranked_scores = chain.topk(3)
    pairs = 0.0
    for b, row in enumerate(rows):
        if row is None:
            assert log_z[b] == 0
            assert best[b] == 0
            assert entropies[b] == 0
            continue
        n = len(row.unary)
        size = sum(float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in (row.unary, row.steps, row.start, row.end))
        own = 4 * float(np.finfo(np.longdouble).eps) * n * size  # rounding of the oracle itself
        expected = row.unary_marginals()
        np.testing.assert_allclose(parts.unary[b, :n].double(), expected.astype(float), rtol=0, atol=marginal + own)
        np.testing.assert_allclose(
            weighted[b, :n].double(), (expected * float(weights[b])).astype(float), rtol=0, atol=marginal + own
        )
        np.testing.assert_allclose(parts.unary[b, :n].double().sum(-1), 1.0, rtol=0, atol=bar(dtype, 1e-5))
        assert (parts.unary[b, n:] == 0).all()
        if parts.transition.dim() == 4:
            found = parts.transition[b, : n - 1].double()
            np.testing.assert_allclose(found, row.pair_marginals().astype(float), rtol=0, atol=marginal + own)
        else:
            pairs = pairs + row.pair_marginals().sum(0)
        np.testing.assert_allclose(float(entropies[b]), row.entropy, rtol=20 * limits.eps, atol=surprise + own * n)
        sums = 4 * (n + 2) * limits.eps * size  # n additions of T, each rounded
        for value in (log_z[b], with_gradient[b]):
            wanted = np.clip(row.log_partition + shift[b], limits.min, limits.max)
            rounding = (10 + n) * limits.eps + (sums if dtype is torch.float64 else 0.0)
            np.testing.assert_allclose(float(value), wanted, rtol=8 * limits.eps, atol=rounding)
        top = row.viterbi()[1]
        wanted = np.clip(top + shift[b], limits.min, limits.max)
        np.testing.assert_allclose(float(best[b]), wanted, rtol=4 * (n + 2) * limits.eps, atol=sums)
        for y in (labels[b], ranked[0, b]):
            assert score(row, y[:n]) >= top - sums
        assert (ranked_scores[1:, b] <= ranked_scores[:-1, b]).all()
        for y in sampled[:, b, :n]:
            assert score(row, y) > -np.inf
    if parts.transition.dim() == 2:
        np.testing.assert_allclose(
            parts.transition.double(), np.asarray(pairs, float), rtol=0, atol=(marginal + own) * len(rows) * n
        )
    return chain


def score(row: LogSpace, y: Tensor) -> float:
    labels = y.tolist()
    steps = sum(row.steps[t, p, c] for t, (p, c) in enumerate(itertools.pairwise(labels)))
    return float(row.start[labels[0]] + row.unary[range(len(labels)), labels].sum() + steps + row.end[labels[-1]])


OFFSETS: dict[str, Callable[[dict[str, Tensor], Tensor], None]] = {
    "unary": lambda x, r: x["unary"].add_(1e4 * r[0]),
    "transition": lambda x, r: x["transition"].add_(-1e4 * r[0]),
    "each field": lambda x, r: [v.add_(1e4 * z) for v, z in zip(x.values(), r, strict=False)] and None,
    "opposite": lambda x, r: [v.add_(z) for v, z in zip(x.values(), (1e4, -1e4, 9e3, -9e3), strict=True)] and None,
    "each row": lambda x, r: x["unary"].add_(1e4 * r[: len(x["unary"]), None, None]),
    "each position": lambda x, r: x["unary"].add_(1e4 * r[: x["unary"].shape[1], None]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("where", OFFSETS)
def test_offsets_cost_no_digits(where: str, per_position: bool, dtype: torch.dtype) -> None:
    for seed, labels in enumerate(LABELS):
        potentials = draw(seed, 9, 12, labels, per_position, 3.0)
        OFFSETS[where](potentials, torch.rand(12, generator=torch.Generator().manual_seed(seed)).double() * 2 - 1)
        problem = make(potentials, dtype, (12, 12, 7, 5, 3, 2, 1, 1, 0))
        check(problem, oracle(problem))


@pytest.mark.parametrize("dtype", DTYPES)
def test_offsets_cost_no_digits_in_long_chains(dtype: torch.dtype) -> None:
    potentials = draw(1, 2, 500, 5, False, 3.0)
    potentials["unary"] += 1e4
    problem = make(potentials, dtype)
    check(problem, oracle(problem))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("spread", [30.0, 300.0, 3e3])
def test_scores_of_ten_thousand(spread: float, per_position: bool, dtype: torch.dtype) -> None:
    for seed, labels in enumerate(LABELS):
        problem = make(draw(seed, 9, 8, labels, per_position, spread), dtype)
        check(problem, oracle(problem), times=10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("size", [50.0, 1e3, 1e4])
def test_what_a_transition_gives_the_next_label_takes(size: float, per_position: bool, dtype: torch.dtype) -> None:
    """Numbers of great size that nearly cancel in every output; with the first label they come from ``start``."""
    for seed, labels in enumerate(LABELS):
        potentials = draw(seed, 9, 8, labels, per_position, 1.0)
        given = size * torch.linspace(-1, 1, labels, dtype=torch.float64)
        for name, sign in (("transition", 1), ("start", 1), ("unary", -1)):
            potentials[name] += sign * given
        problem = make(potentials, dtype)
        check(problem, oracle(problem), times=10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [1e6, 1e8, 2.0**100])
def test_scores_of_any_size(spread: float, dtype: torch.dtype) -> None:
    for seed, labels in enumerate(LABELS):
        problem = make(draw(seed, 9, 6, labels, False, spread), dtype)
        check(problem, oracle(problem), times=10)
    # Many outputs alike: what matters is how many, which is the same for scores of any size.
    signs = {name: x.sign() for name, x in draw(0, 9, 6, 4, False, 1.0).items()}
    chain = make({name: x * spread for name, x in signs.items()}, dtype).make("cpu")
    parts, entropies = chain.marginals(), chain.entropy()
    for b, row in enumerate(oracle(make({name: x * 1e3 for name, x in signs.items()}, dtype))):
        assert row is not None
        expected = row.unary_marginals().astype(float)
        np.testing.assert_allclose(parts.unary[b].double(), expected, rtol=0, atol=bar(dtype, 1e-5))
        np.testing.assert_allclose(float(entropies[b]), row.entropy, rtol=0, atol=bar(dtype, 1e-4))


def masked(
    dtype: torch.dtype, mask: float | str, labels: int, per_position: bool, columns: bool, seed: int
) -> tuple[Problem, list[LogSpace | None]]:
    """A tenth to a third of all parts masked, in every field; label 0 is left, so that every row has an output."""
    value = torch.finfo(dtype).min if mask == "min" else float(mask)
    potentials, forbidden = draw(seed, 9, 7, labels, per_position, 2.0), {}
    g = torch.Generator().manual_seed(seed)
    for name, x in potentials.items():
        hit = torch.rand(x.shape, generator=g) < 0.3
        if columns:  # labels that nothing may lead to
            hit = (torch.rand(labels, generator=g) < 0.3).expand(x.shape).clone()
        hit[..., 0] = False
        potentials[name] = x.masked_fill(hit, value)
        forbidden[name] = x.to(dtype).masked_fill(hit, NEG_INF)
    problem = make(potentials, dtype, (7, 7, 7, 6, 4, 3, 2, 1, 0))
    return problem, oracle(problem, **forbidden)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_a_finite_mask_leaves_the_other_outputs(
    mask: float | str, columns: bool, per_position: bool, dtype: torch.dtype
) -> None:
    for seed, labels in enumerate(LABELS):
        problem, rows = masked(dtype, mask, labels, per_position, columns, seed)
        chain = check(problem, rows)
        # An output is missing from the k best only if there are fewer outputs.
        k = 5
        found = (chain.topk(k)[1] > NEG_INF).sum(0)
        assert found.tolist() == [min(k, labels ** (0 if row is None else len(row.unary))) for row in rows]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_derivatives_under_a_finite_mask(mask: float | str, dtype: torch.dtype) -> None:
    """Second derivatives and the entropy's gradient are those under -inf, by the reference in float64."""
    value = torch.finfo(dtype).min if mask == "min" else float(mask)
    potentials = {name: x.to(dtype) for name, x in draw(3, 4, 6, 5, False, 1.0).items()}
    hits = {
        name: torch.rand(x.shape, generator=torch.Generator().manual_seed(7)) < 0.2 for name, x in potentials.items()
    }
    for hit in hits.values():
        hit[..., 0] = False
    results = []
    for backend, fill, kind in (("cpu", value, dtype), ("reference", NEG_INF, torch.float64)):
        leaves = {n: x.to(kind).masked_fill(hits[n], fill).requires_grad_() for n, x in potentials.items()}
        chain = sl.LinearChain(**leaves, backend=backend)  # type: ignore[arg-type]
        first = torch.autograd.grad(chain.log_partition().sum(), list(leaves.values()), create_graph=True)
        along = sum((x * torch.cos(torch.arange(x.numel()).view(x.shape))).sum() for x in first)
        second = torch.autograd.grad(along, list(leaves.values()))
        # The reference has no gradient of the entropy at -inf: it is minus the second derivative along the scores.
        if backend == "cpu":
            entropy = torch.autograd.grad(chain.entropy().sum(), list(leaves.values()))
        else:
            finite = [x.detach().masked_fill(hits[n], 0.0) for n, x in leaves.items()]
            first = torch.autograd.grad(chain.log_partition().sum(), list(leaves.values()), create_graph=True)
            along = -sum((x * s).sum() for x, s in zip(first, finite, strict=True))
            entropy = torch.autograd.grad(along, list(leaves.values()))
        results.append([x.double().nan_to_num() for x in (*second, *entropy)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 if dtype is torch.float32 else 1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("labels", [1, 3, 9, 17])
@pytest.mark.parametrize("mask", MASKS)
def test_where_all_outputs_are_masked(mask: float | str, labels: int, dtype: torch.dtype) -> None:
    """One, two or three positions with no label unmasked: the others decide, and the sum may leave the range."""
    value = torch.finfo(dtype).min if mask == "min" else float(mask)
    potentials = {name: x.to(dtype) for name, x in draw(labels, 9, 6, labels, False, 1.0).items()}
    unary, bare = potentials["unary"].clone(), potentials["unary"].clone()
    for b in range(1, 9):
        places = [(2 * b + i) % 6 for i in range(1 + b % 3)]
        unary[b, places], bare[b, places] = value, 0.0
    problem = Problem(sl.LinearChain, {**potentials, "unary": unary})
    shift = np.array([0.0] + [(1 + b % 3) * value for b in range(1, 9)]).astype(np.longdouble)
    rows = oracle(problem, unary=bare)
    if abs(value) > 1e6:  # sums of single scores, which the best output's must not be for smaller ones
        check(problem, rows, shift=shift)
    else:
        check(problem, oracle(problem))


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_that_differ_leave_valid_answers(dtype: torch.dtype) -> None:
    limit = torch.finfo(dtype).min
    unary = torch.tensor([[[limit, -1e30], [-1e30, limit], [-1e4, limit]]], dtype=dtype).repeat(3, 1, 1)
    chain = sl.LinearChain(unary, torch.tensor([[limit, 0.0], [limit, limit]], dtype=dtype), backend="cpu")
    assert chain.argmax()[0, :2].tolist() in ([1, 0], [0, 1])
    assert chain.log_partition().tolist() == [limit] * 3
    assert chain.max().tolist() == [limit] * 3
    parts = chain.marginals()
    assert parts.unary.isfinite().all()
    assert parts.transition.isfinite().all()
    torch.testing.assert_close(parts.unary.sum(-1), torch.ones((3, 3), dtype=dtype))
    assert chain.entropy().isfinite().all()
    assert (chain.sample(4) >= 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_values_beyond_the_range_saturate(sign: int, dtype: torch.dtype) -> None:
    limit = torch.finfo(dtype).max
    for batch, labels in ((1, 3), (20, 3), (2, 20)):
        unary = torch.full((batch, 5, labels), sign * limit * 0.9, dtype=dtype)
        chain = sl.LinearChain(unary, torch.zeros((labels, labels), dtype=dtype), backend="cpu")
        y = torch.zeros((batch, 5), dtype=torch.int64)
        for value in (chain.log_partition(), chain.max(), chain.score(y), chain.topk(2)[1].flatten()):
            assert (value == sign * limit).all()
        assert (chain.argmax() == 0).all()
        torch.testing.assert_close(chain.marginals().unary, torch.full_like(unary, 1 / labels))
        worse = unary.clone()
        worse[..., 0] = -limit
        violation = sl.LinearChain(worse, chain.transition, backend="cpu").margin_violation(y, None)
        torch.testing.assert_close(violation, torch.full_like(violation, limit if sign > 0 else limit / 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_counted_maxima_under_finite_masks(mask: float | str, dtype: torch.dtype) -> None:
    """An entry is -inf only where no labelling has the count."""
    value = torch.finfo(dtype).min if mask == "min" else float(mask)
    potentials = {name: x.to(dtype) for name, x in draw(5, 3, 4, 3, False, 1.0).items()}
    potentials["unary"][1, :3] = value
    potentials["unary"][2, :, 1:] = value
    gold = torch.zeros((3, 4), dtype=torch.int64)
    wrong = (torch.arange(3) != gold[..., None]).long()
    counter = Counter(({"unary": wrong},), (5,))
    table = sl.LinearChain(**potentials, backend="cpu").max_by_count(counter).table  # type: ignore[arg-type]
    problem = Problem(sl.LinearChain, potentials)
    for b, row in enumerate(oracle(problem)):
        assert row is not None
        best = np.full(5, -np.inf)
        for y in itertools.product(range(3), repeat=4):
            count = sum(c != 0 for c in y)
            best[count] = max(best[count], score(row, torch.tensor(y)))
        limits = torch.finfo(dtype)
        np.testing.assert_allclose(
            table[b].double(), np.clip(best, limits.min, limits.max), rtol=20 * limits.eps, atol=20 * limits.eps
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_second_order_chains(mask: float | str, dtype: torch.dtype) -> None:
    """On an offset of the unaries and under masks: as the chain over pairs of labels in float64 with -inf."""
    value = torch.finfo(dtype).min if mask == "min" else float(mask)
    g = torch.Generator().manual_seed(11)
    unary = (torch.randn((5, 9, 3), generator=g) + 1e4).to(dtype)
    transition, second = torch.randn((3, 3), generator=g).to(dtype), torch.randn((3, 3, 3), generator=g).to(dtype)
    hits = torch.rand(unary.shape, generator=g) < 0.3
    hits[..., 0] = False
    chain = sl.SecondOrderChain(unary.masked_fill(hits, value), transition, second, backend="cpu")
    exact = unary.double() - 1e4
    expected = sl.SecondOrderChain(
        exact.masked_fill(hits, NEG_INF), transition.double(), second.double(), backend="reference"
    )
    atol = bar(dtype, 1e-5) if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(chain.marginals().unary.double(), expected.marginals().unary, rtol=0, atol=atol)
    torch.testing.assert_close(chain.entropy().double(), expected.entropy(), rtol=0, atol=10 * atol)
    assert (chain.argmax() == expected.argmax()).all()
