"""The reference on finite masks, huge scores, offsets and degenerate sizes, against enumeration in long double."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cases import DTYPES, NEG_INF
from oracles import Row
from oracles import alignment as alignment_oracle
from oracles import categorical as categorical_oracle
from oracles import chain as chain_oracle
from oracles import grammar as grammar_oracle
from oracles import semimarkov as semimarkov_oracle
from oracles import span_tree as tree_oracle
from torch import Tensor

import structlearn as sl
from structlearn.errors import InfeasibleError, LabelError, PotentialError
from structlearn.structures.counting import Counter

B, N, C = 4, 3, 2
LENGTHS = (3, 2, 1, 0)
K = 3
RULES = [(a, left, right) for a in range(2) for left in range(4) for right in range(4)]
Potentials = dict[str, Tensor]


@dataclass(frozen=True)
class Space:
    """An output space: the shapes of its potentials, how to make the structure, and its outputs in full."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    shared: tuple[str, ...]  # fields without a batch axis
    make: Callable[..., Any]
    rows: Callable[..., list[Row]]
    labels: Callable[[Any], Any]  # an output of the oracle as nested lists

    def __str__(self) -> str:
        return self.name

    def draw(self, dtype: torch.dtype, seed: int, spread: float = 2.0) -> Potentials:
        g = torch.Generator().manual_seed(seed)
        return {
            name: (torch.randn(shape, generator=g, dtype=torch.float64) * spread).to(dtype)
            for name, shape in self.shapes.items()
        }


def padded(y: Any, size: int = N) -> list[int]:
    return [*y, *[-100] * (size - len(y))]


def second_order_rows(second: np.ndarray, **rest: Any) -> list[Row]:
    return [
        Row(
            row.outputs,
            [
                [*parts, *[("second", triple) for triple in zip(y, y[1:], y[2:], strict=False)]]
                for y, parts in zip(row.outputs, row.parts, strict=True)
            ],
            {**row.fields, "second": second},
        )
        for row in chain_oracle.rows(**rest)
    ]


def alignment_space(mode: str, affine: bool) -> Space:
    shapes = {"match": (B, N, 2), "gap_x": (B, N), "gap_y": (B, 2)}
    if affine:
        shapes |= {"open_x": (B, N), "open_y": (B, 2)}

    def make(lengths: Any, match: Tensor, gap_x: Tensor, gap_y: Tensor, **opens: Tensor) -> sl.Alignment:
        return sl.Alignment(
            match,
            gap=(gap_x, gap_y),
            gap_open=(opens["open_x"], opens["open_y"]) if opens else None,
            mode=mode,  # type: ignore[arg-type]
            x_lengths=lengths,
            y_lengths=lengths if lengths is None else [min(n, 2) for n in lengths],
            backend="reference",
        )

    def rows(lengths: tuple[int, ...], **arrays: Any) -> list[Row]:
        return alignment_oracle.rows(**arrays, mode=mode, lengths=(lengths, [min(n, 2) for n in lengths]))

    name = f"alignment-{mode}-{'affine' if affine else 'linear'}"
    return Space(name, shapes, (), make, rows, lambda y: padded(y, N + 2))


EDGES = {"start": (C,), "end": (C,)}
SPACES = [
    Space(
        "chain",
        {"unary": (B, N, C), "transition": (C, C), **EDGES},
        ("transition", "start", "end"),
        lambda lengths, **p: sl.LinearChain(**p, lengths=lengths, backend="reference"),
        chain_oracle.rows,
        padded,
    ),
    Space(
        "chain-by-position",
        {"unary": (B, N, C), "transition": (B, N - 1, C, C)},
        (),
        lambda lengths, **p: sl.LinearChain(**p, lengths=lengths, backend="reference"),
        chain_oracle.rows,
        padded,
    ),
    Space(
        "second-order",
        {"unary": (B, N, C), "transition": (C, C), "second": (C, C, C), **EDGES},
        ("transition", "second", "start", "end"),
        lambda lengths, **p: sl.SecondOrderChain(**p, lengths=lengths, backend="reference"),
        second_order_rows,
        padded,
    ),
    Space(
        "semimarkov",
        {"segments": (B, N, 2, C), "transition": (C, C)},
        ("transition",),
        lambda lengths, **p: sl.SemiMarkov(**p, lengths=lengths, backend="reference"),
        semimarkov_oracle.rows,
        padded,
    ),
    Space(
        "semimarkov-by-position",
        {"segments": (B, N, 3, C), "transition": (B, N - 1, C, C)},
        (),
        lambda lengths, **p: sl.SemiMarkov(**p, lengths=lengths, backend="reference"),
        semimarkov_oracle.rows,
        padded,
    ),
    Space(
        "tree",
        {"spans": (B, N, N, C)},
        (),
        lambda lengths, **p: sl.SpanTree(**p, lengths=lengths, backend="reference"),
        tree_oracle.rows,
        lambda y: tree_oracle.chart(y, N),
    ),
    Space(
        "grammar",
        {"terms": (B, N, 2), "rule_scores": (B, len(RULES)), "root_scores": (4,), "spans": (B, N, N, 2)},
        ("root_scores",),
        lambda lengths, **p: sl.WeightedCFG(sl.Grammar(RULES, 2, 2), **p, lengths=lengths, backend="reference"),
        lambda lengths, **arrays: grammar_oracle.rows(RULES, 2, **arrays, lengths=lengths),
        lambda y: tree_oracle.chart(y, N),
    ),
    *(alignment_space(mode, affine) for mode in ("global", "local", "semiglobal") for affine in (False, True)),
    Space(
        "categorical",
        {"scores": (B, 4)},
        (),
        lambda lengths, **p: sl.Categorical(**p),
        lambda lengths, scores: categorical_oracle.rows(scores),
        lambda y: y[0],
    ),
    Space(
        "candidates",
        {"scores": (B, 4)},
        (),
        lambda lengths, **p: sl.Candidates(**p),
        lambda lengths, scores: categorical_oracle.rows(scores),
        lambda y: y[0],
    ),
]
every_space = pytest.mark.parametrize("space", SPACES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


class Truth:
    """Every query of one instance in long double, whose range no sum here leaves."""

    def __init__(self, space: Space, row: Row) -> None:
        self.row = row
        self.outputs = [str(space.labels(y)) for y in row.outputs]
        zero = np.longdouble(0)
        self.scores = np.array([sum((row.fields[f][i] for f, i in parts), zero) for parts in row.parts])
        self.best = self.scores.max(initial=-np.inf)
        self.feasible = self.best > -np.inf
        self.p = np.exp(self.scores - self.best) if self.feasible else np.zeros_like(self.scores)
        mass = self.p.sum()
        self.log_z = self.best + np.log(mass) if self.feasible else np.longdouble(-np.inf)
        self.p = self.p / mass if self.feasible else self.p
        used = self.p[self.p > 0]
        self.entropy = float(-(used * np.log(used)).sum())
        # Beside scores of this size no dtype holds what tells nearly equal outputs apart, nor the log of their number.
        near = self.scores >= self.best - 1e-6 * abs(self.best)
        self.drowned = self.feasible and abs(self.best) > 1e15 and int(near.sum()) > 1

    @functools.cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """How often each output uses each potential, (outputs, ...)."""
        counts = {name: np.zeros((len(self.outputs), *value.shape)) for name, value in self.row.fields.items()}
        for i, parts in enumerate(self.row.parts):
            for name, index in parts:
                counts[name][(i, *index)] += 1
        return counts

    def expected(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        weight = np.asarray(weight, dtype=np.float64)
        return {name: np.tensordot(weight, counts, 1) for name, counts in self.counts.items()}


def truths(space: Space, potentials: Potentials) -> list[Truth]:
    arrays = {name: value.numpy().astype(np.longdouble) for name, value in potentials.items()}
    return [Truth(space, row) for row in space.rows(lengths=LENGTHS, **arrays)]


def saturated(values: Any, dtype: torch.dtype) -> np.ndarray:
    """What results of ``dtype`` can hold: finite values beyond its range are its lowest or largest number."""
    values = np.asarray(values, dtype=np.longdouble)
    limit = torch.finfo(dtype)
    return np.where(np.isfinite(values), values.clip(limit.min, limit.max), values).astype(np.float64)


def close(found: Tensor, expected: Any, atol: float, rtol: float) -> None:
    np.testing.assert_allclose(found.detach().double().numpy(), np.asarray(expected, np.float64), rtol=rtol, atol=atol)


def stacked(space: Space, rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Fields of rows as the batch has them."""
    return {
        name: np.sum([row[name] for row in rows], 0) if name in space.shared else np.stack([row[name] for row in rows])
        for name in rows[0]
    }


def check(space: Space, potentials: Potentials, atol: float) -> None:
    """All queries; ``atol`` bounds the errors of probabilities, 10 atol those of entropies and second derivatives."""
    dtype = next(iter(potentials.values())).dtype
    eps = torch.finfo(dtype).eps
    leaves = {name: value.clone().requires_grad_() for name, value in potentials.items()}
    s, rows = space.make(LENGTHS, **leaves), truths(space, potentials)
    # A score is a sum of parts of some size, each rounded to float64 at worst.
    unmasked = [x[x > -1e9].abs().max() for x in potentials.values() if (x > -1e9).any()]
    value_atol = 64 * torch.finfo(torch.float64).eps * float(max(unmasked, default=torch.zeros(()))) + eps
    value_rtol = 8 * eps

    def values(found: Tensor, expected: Any) -> None:
        close(found, saturated(expected, dtype), value_atol, value_rtol)
        assert (found.detach().isinf().numpy() == np.isinf(np.asarray(expected, np.longdouble))).all()

    clear = [b for b, t in enumerate(rows) if not t.drowned]

    def fields(found: Any, expected: dict[str, np.ndarray], atol: float) -> None:
        for name, value in found.items():
            if name not in space.shared:
                close(value[clear], expected[name][clear], atol, 0)
            elif len(clear) == B:
                close(value, expected[name], atol, 0)

    values(s.log_partition(), [t.log_z for t in rows])
    values(s.max(), [t.best for t in rows])
    assert s.count().tolist() == [int((t.scores > -np.inf).sum()) for t in rows]
    entropy_scale = 1 + max(t.entropy for t in rows)
    close(s.entropy()[clear], [rows[b].entropy for b in clear], 10 * atol * entropy_scale, 0)

    marginals = {name: x for name, x in s.marginals()._asdict().items() if x is not None}
    assert all(x.dtype is dtype for x in marginals.values())
    fields(marginals, stacked(space, [t.expected(t.p) for t in rows]), atol)
    fields(gradients(s.log_partition(), leaves), stacked(space, [t.expected(t.p) for t in rows]), atol)
    for b, t in enumerate(rows):
        if t.drowned:
            check_distribution(space, t, {name: x[b] for name, x in marginals.items() if name not in space.shared})
            assert -1e-6 <= s.entropy()[b] <= np.log(len(t.outputs)) * (1 + 1e-6)
    assert all(x.isfinite().all() for x in marginals.values())

    g = torch.Generator().manual_seed(0)
    toward = {name: torch.randn(x.shape, generator=g, dtype=torch.float64).to(dtype) for name, x in leaves.items()}
    along = sum((marginals[name] * v).sum() for name, v in toward.items())
    second = []
    for b, t in enumerate(rows):
        change = sum(
            np.tensordot(
                t.counts[name].reshape(len(t.p), -1), (v if name in space.shared else v[b]).flatten().double(), 1
            )
            for name, v in toward.items()
        )
        p = np.asarray(t.p, np.float64)
        second.append(t.expected(p * (change - (p * change).sum())))
    fields(gradients(along, leaves), stacked(space, second), 100 * atol)

    chosen = stacked(space, [best_parts(t, y) for t, y in zip(rows, s._best()[0], strict=True)])
    fields(gradients(s.max(), leaves), chosen, 0)
    if all(t.feasible for t in rows):
        assert torch.equal(s.argmax(), s._best()[0])
    else:
        with pytest.raises(InfeasibleError):
            s.argmax()

    best, scores = s.topk(K)
    for b, t in enumerate(rows):
        expected = np.sort(t.scores[t.scores > -np.inf])[::-1][:K]
        values(scores[:, b], [*expected, *[-np.inf] * (K - len(expected))])
        names = [str(y.tolist()) for y in best[: len(expected), b]]
        assert len(set(names)) == len(names)
        values(scores[: len(names), b], [t.scores[t.outputs.index(name)] for name in names])
    with torch.no_grad():
        values(s.topk(K)[1], scores.detach().numpy())
        some = torch.where((scores == NEG_INF).view(*scores.shape, *[1] * (best.dim() - 2)), s._best()[0], best)
        if all(t.feasible for t in rows):
            found = [[t.scores[t.outputs.index(str(y[b].tolist()))] for b, t in enumerate(rows)] for y in some]
            values(s.score(some), found)

    for drawn in s.sample(5, torch.Generator().manual_seed(1)):
        for b, t in enumerate(rows):
            if t.feasible:
                at = t.outputs.index(str(drawn[b].tolist()))
                assert t.scores[at] > -np.inf if t.drowned else t.p[at] > 0
    check_counts(space, s, rows, values)


def check_distribution(space: Space, t: Truth, marginals: Potentials) -> None:
    """Marginals between 0 and what an output can use; those that sum to the same for every output do so."""
    for name, x in marginals.items():
        counts = t.counts[name]
        allowed = counts[t.scores > -np.inf]
        assert (x.detach().numpy() >= -1e-6).all()
        assert (x.detach().numpy() <= allowed.max(0) + 1e-5).all()
        sums = allowed.reshape(len(allowed), -1).sum(1)
        assert sums.min() - 1e-5 <= float(x.detach().sum()) <= sums.max() + 1e-5


def best_parts(t: Truth, y: Tensor) -> dict[str, np.ndarray]:
    weight = np.zeros(len(t.outputs))
    if t.feasible:
        weight[t.outputs.index(str(y.tolist()))] = 1
    return t.expected(weight)


def gradients(value: Tensor, leaves: Potentials) -> Potentials:
    return dict(zip(leaves, torch.autograd.grad(value.sum(), list(leaves.values()), retain_graph=True), strict=True))


def check_counts(space: Space, s: Any, rows: list[Truth], values: Callable[[Tensor, Any], None]) -> None:
    field, shape = next(iter(space.shapes.items()))
    step = torch.randint(2, shape, generator=torch.Generator().manual_seed(2))
    counter = Counter(({field: step},), (2 * N + 2,))
    found = s.max_by_count(counter)
    statistic = [
        (t.counts[field].reshape(len(t.p), -1) @ step[b].flatten().numpy()).astype(int) for b, t in enumerate(rows)
    ]
    table = np.stack(
        [
            [t.scores[g == k].max(initial=-np.inf) for k in range(counter.size)]
            for t, g in zip(rows, statistic, strict=True)
        ]
    )
    values(found.table, table)
    index = found.table.argmax(1)
    for b, y in enumerate(found.decode(index[:, None])):
        if rows[b].feasible:
            at = rows[b].outputs.index(str(y.tolist()))
            assert statistic[b][at] == index[b]
            values(found.table[b, index[b]], rows[b].scores[at])
    flat = torch.zeros_like(found.table)
    best = s.best_by_count(counter, flat, flat + 1)
    values(best.value, [t.best for t in rows])
    double = s.best_by_count(counter, flat, flat + 2)
    assert ((double.value > NEG_INF) == (best.value > NEG_INF)).all()


def tolerance(dtype: torch.dtype) -> float:
    """Float32 results are rounded once; float64 ones lose a few digits to the size of scores."""
    return 1e-6 if dtype is torch.float32 else 1e-11


def masked(potentials: Potentials, values: list[float], share: float, seed: int) -> Potentials:
    g = torch.Generator().manual_seed(seed)
    hit = {}
    for name, x in potentials.items():
        value = torch.tensor(values, dtype=x.dtype)[torch.randint(len(values), x.shape, generator=g)]
        hit[name] = torch.where(torch.rand(x.shape, generator=g) < share, value, x)
    return hit


def lowest(dtype: torch.dtype, space: Space | None = None) -> float:
    """The lowest mask; a quarter of it in float64 where a structure adds two potentials before its recurrence does."""
    halves = space is not None and space.name == "second-order" and dtype is torch.float64
    return torch.finfo(dtype).min / (4 if halves else 1)


@every_space
@every_dtype
def test_masks(space: Space, dtype: torch.dtype) -> None:
    """Counted maxima beside the queries that tests/suites checks over single kinds of masks, offsets and sizes."""
    values = [-1e4, -1e30, lowest(dtype, space), NEG_INF]
    for seed, share in enumerate((0.3, 0.8)):
        check(space, masked(space.draw(dtype, seed), values, share, seed), tolerance(dtype))


@every_space
@every_dtype
def test_every_output_masked_by_finite_numbers(space: Space, dtype: torch.dtype) -> None:
    given = space.draw(dtype, 1)
    for name in ([], list(given)[:1], list(given)):
        check(space, given | {n: torch.full_like(given[n], lowest(dtype)) for n in name}, tolerance(dtype))


@every_space
@every_dtype
def test_scores_up_to_a_quarter_of_the_range(space: Space, dtype: torch.dtype) -> None:
    size = 2.0 ** math.floor(math.log2(torch.finfo(dtype).max / 4 / (4 * N)))
    for seed in range(2):
        # On a grid, since paths that use the same scores in another order tie, and sums must not round them apart.
        grid = {name: (x * 16).round().clamp(-32, 32) / 32 for name, x in space.draw(dtype, seed).items()}
        given = {name: x * size for name, x in grid.items()}
        check(space, given, tolerance(dtype))
        check(space, masked(given, [lowest(dtype, space)], 0.3, 1), tolerance(dtype))


@every_dtype
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_long_chains_within_the_bar(shift: float, dtype: torch.dtype) -> None:
    """100 steps around an offset, against forward-backward in numpy: marginals within 1e-5, entropy within 1e-4."""
    g = torch.Generator().manual_seed(7)
    unary, transition, edge = (
        (10 * (2 * torch.rand(shape, generator=g, dtype=torch.float64) - 1) + shift * sign).to(dtype)
        for shape, sign in (((2, 100, 5), 1), ((5, 5), -1), ((5,), 1))
    )
    chain = sl.LinearChain(unary, transition, start=edge, end=edge, backend="reference")
    rows = chain_oracle.log_space_rows(*(x.double().numpy() for x in (unary, transition, edge, edge)))
    close(chain.marginals().unary, [row.unary_marginals() for row in rows if row], 1e-5, 0)
    close(chain.entropy(), [row.entropy for row in rows if row], 1e-4, 1e-6)
    close(chain.log_partition(), [row.log_partition for row in rows if row], 0, 4 * torch.finfo(dtype).eps)


def degenerate() -> list[Any]:
    """Spaces of one output, of none, and batches of nothing: (name, potentials, structure of them)."""
    found: list[Any] = []

    def add(name: str, make: Callable[..., Any], **shapes: tuple[int, ...]) -> None:
        found.append(pytest.param(make, shapes, id=name))

    for b, n in itertools.product((0, 2), (0, 1, 2)):
        size = f"B={b}-N={n}"
        for c in (1, 2):
            steps = (b, max(n - 1, 0), c, c)
            for kind, shape in (("shared", (c, c)), ("steps", steps)):
                edges = {"start": (c,), "end": (c,)}
                chain = functools.partial(sl.LinearChain, backend="reference")
                add(f"chain-{kind}-{size}-C={c}", chain, unary=(b, n, c), transition=shape, **edges)
                semi = functools.partial(sl.SemiMarkov, backend="reference")
                add(f"semimarkov-{kind}-{size}-C={c}", semi, segments=(b, n, c, c), transition=shape)
            second = functools.partial(sl.SecondOrderChain, backend="reference")
            add(f"second-{size}-C={c}", second, unary=(b, n, c), transition=(c, c), second=(c, c, c), start=(c,))
            tree = functools.partial(sl.SpanTree, backend="reference")
            add(f"tree-{size}-L={c}", tree, spans=(b, n, n, c))
        for nt, rules in ((0, []), (1, []), (1, [(0, 0, 1), (0, 1, 1)]), (2, RULES)):
            p = 1 if nt < 2 else 2
            grammar = functools.partial(sl.WeightedCFG, sl.Grammar(rules, nt, p), backend="reference")
            for own, spans in ((False, False), (True, True)):
                shapes = {"terms": (b, n, p), "rule_scores": (len(rules),), "root_scores": (nt + p,)}
                if own:
                    shapes |= {"rule_scores": (b, len(rules)), "root_scores": (b, nt)}
                if spans:
                    shapes["spans"] = (b, n, n, nt)
                add(f"grammar-{size}-NT={nt}-R={len(rules)}-own={own}", grammar, **shapes)
        for m, space in itertools.product((0, 1), SPACES):
            if space.name.startswith("alignment"):
                sizes = {"match": (b, n, m), "gap_x": (b, n), "gap_y": (b, m), "open_x": (b, n), "open_y": (b, m)}
                add(f"{space}-{size}-M={m}", functools.partial(space.make, None), **{f: sizes[f] for f in space.shapes})
    for b, k in itertools.product((0, 2), (1, 2)):
        add(f"categorical-B={b}-K={k}", sl.Categorical, scores=(b, k))
        add(f"candidates-B={b}-K={k}", sl.Candidates, scores=(b, k))
    return found


def no_lengths(make: Any, shapes: Any) -> bool:
    return make in (sl.Categorical, sl.Candidates) or "match" in shapes


@pytest.mark.parametrize(("make", "shapes"), degenerate())
@pytest.mark.parametrize(("fill", "empty"), [(1.0, False), (NEG_INF, False), (1.0, True)])
def test_every_query_of_degenerate_spaces(make: Any, shapes: dict[str, Any], fill: float, empty: bool) -> None:
    """Every query answers, every differentiable one has a graph to every potential, and nothing is NaN."""
    if empty and no_lengths(make, shapes):
        return
    leaves = {name: torch.full(shape, fill, requires_grad=True) for name, shape in shapes.items()}
    s = make(**leaves, **({"lengths": [0] * s_batch(shapes)} if empty else {}))
    y, best = s._best()
    feasible = bool((best > NEG_INF).all())
    if feasible:
        assert torch.equal(s.argmax(), y)
    else:
        with pytest.raises(InfeasibleError):
            s.argmax()
    assert s.count().shape == s.max().shape == (s.batch_size,)
    assert ((s.count() > 0) == (best > NEG_INF)).all()
    assert s.sample(2).shape == (2, *y.shape)
    for k in (1, 3):
        outputs, scores = s.topk(k)
        assert outputs.shape == (k, *y.shape)
        assert scores.shape == (k, s.batch_size)
        assert torch.equal(scores[0].detach(), s.max().detach())
    found = [s.max(), s.log_partition(), s.entropy(), s.topk(2)[1], *s.marginals()]
    if feasible:
        found += [s.score(y), s.score(y[None]), s.difference(y, y)]
        assert (s.entropy() >= 0).all()
    for value in found:
        if value is None:
            continue
        assert value.requires_grad
        assert not value.isnan().any()
        for gradient in torch.autograd.grad(value.sum(), list(leaves.values()), retain_graph=True):
            assert gradient.isfinite().all()
    field = next(iter(shapes))
    counter = Counter(({field: torch.zeros(shapes[field], dtype=torch.int64)},), (2,))
    table = s.max_by_count(counter).table
    assert torch.equal(table[:, 0], best)
    assert (table[:, 1] == NEG_INF).all()
    flat = torch.zeros_like(table)
    assert torch.equal(s.best_by_count(counter, flat, flat + 1).value, best)
    assert s.max_by_count(counter).decode(torch.zeros((s.batch_size, 1), dtype=torch.int64)).shape == y.shape


@every_dtype
@pytest.mark.parametrize("space", [s for s in SPACES if s.name != "second-order"], ids=str)
def test_validate_refuses_scores_beyond_the_range_and_no_masks(space: Space, dtype: torch.dtype) -> None:
    given = space.draw(dtype, 0)
    lengths = None if space.name in ("categorical", "candidates") else [N, N, N, N]
    for name in given:
        for value in (lowest(dtype), NEG_INF, -1e30, torch.finfo(dtype).max / 8):
            validated(space, given | {name: torch.full_like(given[name], value)}, lengths)
        for value in (float("inf"), torch.finfo(dtype).max, torch.finfo(dtype).max / 3):
            with pytest.raises(PotentialError, match=r"expected scores up to finfo.max / 4 = [0-9.e+]+, got .* at \("):
                validated(space, given | {name: torch.full_like(given[name], value)}, lengths)
        with pytest.raises(PotentialError, match=r"no NaN at unpadded places, got NaN at \("):
            validated(space, given | {name: torch.full_like(given[name], math.nan)}, lengths)


def validated(space: Space, potentials: Potentials, lengths: Any) -> None:
    made = space.make(lengths, **potentials)
    options: dict[str, Any] = {"backend": "reference", "validate": True}
    if isinstance(made, sl.Alignment):
        opens = None if made.open_x is None else (made.open_x, made.open_y)
        sl.Alignment(made.match, gap=(made.gap_x, made.gap_y), gap_open=opens, mode=made.mode, **options)  # type: ignore[arg-type]
    elif isinstance(made, sl.WeightedCFG):
        sl.WeightedCFG(made.grammar, **made.potentials, **options)
    else:
        type(made)(**made.potentials, **options)


@every_dtype
@pytest.mark.parametrize("value", [math.nan, float("inf")])
def test_validate_reads_no_padding(value: float, dtype: torch.dtype) -> None:
    unary = torch.zeros(2, 3, 2, dtype=dtype)
    unary[1, 1:] = value
    transition = torch.zeros(2, 2, dtype=dtype)
    sl.LinearChain(unary, transition, lengths=[3, 1], validate=True)
    sl.LinearChain(unary.nan_to_num(0.0, 0.0).half(), transition.half(), lengths=[3, 1], validate=True)
    sl.Categorical(torch.full((1, 2), 6e4, dtype=torch.float16), validate=True)  # computed in float32


def test_gold_that_start_forbids_is_placed_in_one_position() -> None:
    start = torch.tensor([0.0, NEG_INF])
    for steps in (torch.zeros(1, 0, 2, 2), torch.zeros(2, 2)):
        for backend in ("reference", "cpu"):
            chain = sl.LinearChain(torch.zeros(1, 1, 2), steps, start=start, backend=backend)
            with pytest.raises(LabelError, match="score -inf in batch row 0, start with label 1; "):
                sl.CRFLoss()(chain, torch.tensor([[1]]))
            assert chain.forbidden_place(torch.tensor([[0]]), 0) == ""
    assert sl.LinearChain(torch.zeros(1, 0, 2), steps, start=start).forbidden_place(torch.zeros(1, 0), 0) == ""


@pytest.mark.parametrize("offset", [1e4, -1e4])
@pytest.mark.parametrize("mask", [NEG_INF, -1e4, torch.finfo(torch.float32).min])
def test_pairs_of_a_second_order_chain_are_added_without_loss_on_the_cpu(mask: float, offset: float) -> None:
    """The sums that pairs of labels need are made in Python, for every engine."""
    given = next(s for s in SPACES if s.name == "second-order").draw(torch.float32, 11)
    given["transition"][0, 1] = given["unary"][:, :, 0] = mask
    given |= {"unary": given["unary"] + offset, "transition": given["transition"] + offset}
    found = sl.SecondOrderChain(**given, backend="cpu")
    expected = sl.SecondOrderChain(**{name: x.double() for name, x in given.items()}, backend="reference")
    assert found.log_partition().dtype is found.marginals().unary.dtype is torch.float32
    torch.testing.assert_close(found.log_partition(), expected.log_partition().float())
    for value, truth in zip(found.marginals(), expected.marginals(), strict=True):
        torch.testing.assert_close(value, truth.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("made", ["lengths", "all"])
def test_second_order_lengths_made_in_inference_mode_on_the_cpu(made: str) -> None:
    given = next(s for s in SPACES if s.name == "second-order").draw(torch.float32, 0)
    with torch.inference_mode():
        lengths = torch.tensor(LENGTHS)
        given = {name: x.clone() for name, x in given.items()} if made == "all" else given
    found = sl.SecondOrderChain(**given, lengths=lengths, backend="cpu").marginals()
    plain = {name: x.clone() for name, x in given.items()}
    expected = sl.SecondOrderChain(**plain, lengths=LENGTHS, backend="cpu").marginals()
    for value, truth in zip(found, expected, strict=True):
        assert torch.equal(value, truth)


def s_batch(shapes: dict[str, Any]) -> int:
    return int(next(iter(shapes.values()))[0])


@every_space
@pytest.mark.parametrize("inference", ["lengths", "potentials", "both", "queries", "all"])
def test_tensors_made_in_inference_mode(space: Space, inference: str) -> None:
    with torch.inference_mode(inference in ("lengths", "both", "all")):
        lengths: Any = torch.tensor(LENGTHS)
    lengths = LENGTHS if space.name.startswith("alignment") else lengths
    with torch.inference_mode(inference in ("potentials", "both", "all")):
        given = {name: x.clone() for name, x in space.draw(torch.float32, 0).items()}
    plain = space.make(LENGTHS, **space.draw(torch.float32, 0))
    with torch.inference_mode(inference in ("queries", "all")):
        s = space.make(lengths, **given)
        for name in ("argmax", "max", "log_partition", "entropy", "count"):
            assert torch.equal(getattr(s, name)(), getattr(plain, name)())
        assert torch.equal(s.score(plain.argmax()), plain.max())
        assert torch.equal(s.topk(2)[0], plain.topk(2)[0])
        assert s.sample(2).shape == plain.sample(2).shape
        for found, expected in zip(s.marginals(), plain.marginals(), strict=True):
            assert expected is None or torch.equal(found, expected)
        step = torch.zeros(next(iter(space.shapes.values())), dtype=torch.int64)
        counter = Counter(({next(iter(space.shapes)): step},), (2,))
        assert torch.equal(s.max_by_count(counter).table, plain.max_by_count(counter).table)
    if inference == "lengths":
        leaves = {name: x.requires_grad_() for name, x in given.items()}
        s = space.make(lengths, **leaves)
        for value in (s.max(), s.log_partition(), s.entropy(), s.topk(2)[1], *s.marginals()):
            assert value is None or torch.autograd.grad(
                value[value > NEG_INF].sum(), list(leaves.values()), retain_graph=True
            )


@every_space
def test_second_derivatives_through_the_units(space: Space) -> None:
    leaves = [x[:2].clone() if n not in space.shared else x for n, x in space.draw(torch.float64, 9).items()]

    def log_partition(*given: Tensor) -> Tensor:
        lengths = None if space.name in ("categorical", "candidates") else (3, 2)
        return space.make(lengths, **dict(zip(space.shapes, given, strict=True))).log_partition()

    def entropy(*given: Tensor) -> Tensor:
        lengths = None if space.name in ("categorical", "candidates") else (3, 2)
        return space.make(lengths, **dict(zip(space.shapes, given, strict=True))).entropy()

    leaves = [x.requires_grad_() for x in leaves]
    assert torch.autograd.gradcheck(log_partition, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(log_partition, leaves, fast_mode=True)
    assert torch.autograd.gradcheck(entropy, leaves, fast_mode=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", [1.0, 1e3])
def test_entropy_gradient_beside_masks_at_the_end_of_the_range(dtype: torch.dtype, weight: float) -> None:
    """The incoming gradient times a masked part's log p is beyond the range, beside a probability of 0."""
    low = torch.finfo(dtype).min
    masked, forbidden = (torch.tensor([[0.0, x, 1.0]], dtype=dtype, requires_grad=True) for x in (low, NEG_INF))
    for scores in (masked, forbidden):
        (sl.Categorical(scores).entropy() * weight).sum().backward()
        chain = sl.LinearChain(scores[:, None], torch.zeros(3, 3, dtype=dtype), backend="reference")
        (chain.entropy() * weight).sum().backward()
    torch.testing.assert_close(masked.grad, forbidden.grad)
    assert masked.grad is not None
    assert masked.grad.isfinite().all()
