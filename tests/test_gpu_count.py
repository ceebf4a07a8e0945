"""Count-augmented Viterbi in Triton, interpreted: against enumeration, the reference, and through the losses."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cases import NEG_INF, ChainCase, Problem, assert_close
from test_losses import CHAIN_COSTS, CHAIN_GOLD, FORMS, CostCase, chain_problem, check, golds
from torch import Tensor

import structlearn as sl
from structlearn.gpu import chain_count, launch
from structlearn.structures.chain_count import tables
from structlearn.structures.counting import Counter, LabelCounter

pytestmark = pytest.mark.usefixtures("poisoned_memory")

DTYPES = (torch.float32, torch.float64)
Walk = list[tuple[int, int]]  # (label, state) of every position


@dataclass(frozen=True)
class Counting:
    """Increments of every kind, those of one kind alone, or an automaton; small and random."""

    name: str
    fields: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (9,)
    states: int = 0
    classes: int = 2
    scale: int = 1  # of what a part adds

    def __str__(self) -> str:
        return self.name

    def make(self, problem: Problem) -> Counter | LabelCounter:
        g = torch.Generator().manual_seed(3)
        b, n, c = problem.potentials["unary"].shape
        if self.states:
            classes = torch.randint(0, self.classes, (b, n), generator=g)
            cells = (self.classes, self.states, c + 1, c)
            following = torch.randint(0, self.states, cells, generator=g)
            step = torch.randint(0, 3, cells, generator=g) * self.scale
            last = torch.randint(0, 2, (self.states, c), generator=g) * self.scale
            return LabelCounter(classes, following, step, last, self.sizes)
        each = {name: x for name, x in problem.potentials.items() if name in self.fields}
        many = (
            {name: torch.randint(0, 2, x.shape, generator=g) * self.scale for name, x in each.items()}
            for _ in self.sizes
        )
        return Counter(tuple(many), self.sizes)


COUNTERS = [
    Counting("labels", ("unary",)),
    Counting("nothing"),
    Counting("transitions", ("transition", "end"), (6,)),
    Counting("two", ("unary", "transition", "start", "end"), (10, 10)),
    Counting("automaton", states=3, sizes=(7,)),
]
KINDS = [
    ChainCase("edges", N=3, lengths=(3, 1, 0, 2, 3), per_position=True, start=True, end=True),
    ChainCase("ties", N=3, lengths=(3, 1, 0, 2, 3), start=True, end=True, dtype=torch.float32, integers=True),
    ChainCase("full", B=3, N=3, lengths=None, per_position=True, end=True, dtype=torch.float32, integers=True),
    ChainCase("dead", N=3, lengths=(3, 1, 0, 2, 3), start=True, forbidden=0.3, dead=(0, 3)),
]


def walk(counter: Counter | LabelCounter, b: int, y: tuple[int, ...], c: int) -> tuple[tuple[int, ...], Walk]:
    """Statistics of an output by definition, and the automaton's way through it."""
    if isinstance(counter, LabelCounter):
        state, before, index = 0, c, 0
        way = []
        for t, label in enumerate(y):
            cell = (int(counter.classes[b, t]), state, before, label)
            state, before, index = int(counter.next[cell]), label, index + int(counter.step[cell])
            way.append((label, state))
        return (index + (int(counter.last[state, before]) if y else 0),), way
    found = []
    for increment in counter.increments:
        total = sum(int(increment["unary"][b, t, label]) for t, label in enumerate(y)) if "unary" in increment else 0
        if "transition" in increment:
            steps = increment["transition"]
            pairs = itertools.pairwise(y)
            total += sum(int(steps[p, q] if steps.dim() == 2 else steps[b, t, p, q]) for t, (p, q) in enumerate(pairs))
        if y and "start" in increment:
            total += int(increment["start"][y[0]])
        if y and "end" in increment:
            total += int(increment["end"][y[-1]])
        found.append(total)
    return tuple(found), [(label, 0) for label in y]


def worth(problem: Problem, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Offsets and slopes of small integers, some ruled out, some worth the same whatever the score."""
    g = torch.Generator().manual_seed(5)
    shape = (problem.potentials["unary"].shape[0], *sizes)
    offset, slope = (torch.randint(0, 3, shape, generator=g).to(problem.dtype) for _ in range(2))
    return offset.masked_fill(torch.rand(shape, generator=g) < 0.1, NEG_INF), slope


@pytest.mark.parametrize("counting", COUNTERS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_tables_and_best_labels_equal_enumeration(kind: ChainCase, counting: Counting) -> None:
    problem = kind.problem()
    counter = counting.make(problem)
    chain = problem.make("triton")
    offset, slope = worth(problem, counter.sizes)
    best = chain.best_by_count(counter, offset, slope)
    table = chain.max_by_count(counter).table
    for b, row in enumerate(problem.rows):
        expected = np.full(counter.sizes, NEG_INF)
        ways: dict[tuple[int, ...], list[tuple[float, Walk]]] = {}
        for y, score in zip(row.outputs, row.scores, strict=True):
            at, way = walk(counter, b, y, kind.C)
            if all(i < size for i, size in zip(at, counter.sizes, strict=True)) and score > NEG_INF:
                expected[at] = max(expected[at], score)
                ways.setdefault(at, []).append((score, way))
        assert_close(table[b], expected, kind.dtype)
        with np.errstate(invalid="ignore"):
            value = np.where(expected > NEG_INF, offset[b].numpy() + slope[b].numpy() * expected, NEG_INF)
        assert_close(best.value[b], value.max(), kind.dtype, 10.0)
        if value.max() == NEG_INF:
            assert best.index[b] == 0
            assert best.y[b].tolist() == [-100] * kind.N
            continue
        at = np.unravel_index(int(best.index[b]), counter.sizes)
        assert_close(best.value[b], value[at], kind.dtype, 10.0)
        if kind.integers:
            assert int(best.index[b]) == value.argmax()
        # On ties the lowest (label, state), last position first.
        tied = [way[::-1] for score, way in ways[tuple(map(int, at))] if np.isclose(score, expected[at], rtol=1e-6)]
        assert best.y[b].tolist() == problem.labels(b, tuple(label for label, _ in min(tied)[::-1]))


def test_the_way_back_keeps_to_the_state() -> None:
    """The parity of the labels 1 as a state: of the best ways to a label, half end in the other one."""
    problem = ChainCase("states", 4, 4, 3, (4, 3, 2, 4)).problem()
    following = torch.tensor([[0, 1, 0], [1, 0, 1]]).view(1, 2, 1, 3).repeat(1, 1, 4, 1)
    last = torch.tensor([[0, 0, 0], [1, 1, 1]])
    classes = torch.zeros(4, 4, dtype=torch.int64)
    counter = LabelCounter(classes, following, torch.zeros_like(following), last, (2,))
    found = problem.make("triton").max_by_count(counter)
    assert found.table.isfinite().all()
    for parity in (0, 1):
        labels = found.decode(torch.full((4, 1), parity))
        for b, row in enumerate(problem.rows):
            y = tuple(labels[b, : len(row.outputs[0])].tolist())
            assert y.count(1) % 2 == parity
            assert_close(found.table[b, parity], row.scores[list(row.outputs).index(y)], torch.float64)


def same(problem: Problem, counter: Counter | LabelCounter) -> None:
    """Every result of the launch function is that of the reference, which adds in float64."""
    offset, slope = worth(problem, counter.sizes)
    native, reference = problem.make("triton"), problem.make("reference")
    best, expected = (chain.best_by_count(counter, offset, slope) for chain in (native, reference))
    assert torch.equal(best.y, expected.y)
    assert torch.equal(best.index, expected.index)
    torch.testing.assert_close(best.value, expected.value)
    found, wanted = (chain.max_by_count(counter) for chain in (native, reference))
    torch.testing.assert_close(found.table, wanted.table)
    assert (found.table > NEG_INF).sum() > 1
    last = (found.table.flatten(1) > NEG_INF).long() * torch.arange(counter.size)
    index = torch.stack(torch.unravel_index(last.argmax(1), counter.sizes), -1)
    assert torch.equal(found.decode(index), wanted.decode(index))


# More rows (label, state) or values than a tile holds, or exactly as many.
@pytest.mark.parametrize(
    ("case", "counting"),
    [
        (ChainCase("values", 2, 2, 5, (2, 1)), Counting("", states=2, sizes=(701,), scale=140)),
        (ChainCase("two", 2, 3, 5, (3, 2), dtype=torch.float32), Counting("", ("unary",), sizes=(34, 34), scale=11)),
        (ChainCase("rows", 2, 2, 20, None, True, True, dtype=torch.float32), Counting("", states=2, sizes=(17,))),
        (ChainCase("labels", 1, 2, 33, None, end=True, integers=True), Counting("", ("unary",), sizes=(64,))),
        (ChainCase("one", 3, 4, 1, (4, 0, 1)), Counting("", ("unary", "transition"), sizes=(8,))),
    ],
    ids=["values", "two", "rows", "labels", "one"],
)
def test_tiles_equal_the_reference(case: ChainCase, counting: Counting) -> None:
    problem = case.problem()
    same(problem, counting.make(problem))


def test_the_way_back_over_several_tiles_breaks_ties_to_the_lowest_row() -> None:
    """270 labels that all score 0 but for two that beat them together."""
    unary = torch.zeros(1, 2, 270)
    transition = torch.zeros(270, 270)
    step = torch.zeros(1, 2, 270, dtype=torch.int64)
    counter = Counter(({"unary": step},), (2,))
    for first, last, expected in (((), (), [0, 0]), ((258, 269), (260, 264), [258, 260])):
        unary[0, 0, list(first)] = 1.0
        unary[0, 1, list(last)] = 1.0
        best = sl.LinearChain(unary, transition, backend="triton").best_by_count(
            counter, torch.zeros(1, 2), torch.ones(1, 2)
        )
        assert best.y.tolist() == [expected]
        assert best.value.tolist() == [2.0 * bool(first)]


def test_a_batch_beyond_the_scratch_takes_several_launches() -> None:
    problem = KINDS[0].problem()
    chain, counter = problem.make("triton"), COUNTERS[3].make(problem)
    offset, slope = (x.flatten(1) for x in worth(problem, counter.sizes))
    args: tuple[Any, ...] = (*chain._args, *tables(chain, counter), offset, slope)
    whole = chain_count.best_by_count(*args)
    one = 3 * 3 * counter.size * 8  # N, C and S of this problem, in float64
    for scratch, launches in ((2 * one, 3), (1, 5)):
        plan, outputs = chain_count.plan_best_by_count(*args, scratch_bytes=scratch)
        assert len(plan) == launches
        plan[0].args["charts"].fill_(1e9)  # all of them share it, and NaN would lose every comparison as -inf does
        launch.run(plan, chain.unary.device)
        assert all(torch.equal(a, b) for a, b in zip(whole, outputs, strict=True))


def test_strides_do_not_matter() -> None:
    b, n, c = 3, 4, 3
    unary = torch.randn(n, b, c).transpose(0, 1)
    transition = torch.randn(b, n - 1, c, c).transpose(-1, -2)
    potentials = {"unary": unary, "transition": transition, "end": torch.randn(c, 2)[:, 0]}
    steps = {"unary": torch.randint(0, 2, (b, 1, c)).expand(b, n, c), "end": torch.randint(0, 2, (c, 2))[:, 1]}
    same(Problem(sl.LinearChain, potentials, (4, 2, 1)), Counter((steps,), (6,)))


@pytest.mark.parametrize(("b", "n"), [(0, 3), (2, 0)])
def test_empty_batches_and_sequences(b: int, n: int) -> None:
    chain = sl.LinearChain(torch.zeros(b, n, 3), torch.zeros(3, 3), backend="triton")
    counter = Counter(({"unary": torch.ones(b, n, 3, dtype=torch.int64)},), (4,))
    best = chain.best_by_count(counter, torch.full((b, 4), 2.0), torch.ones(b, 4))
    assert best.y.shape == (b, n)
    assert best.value.tolist() == [2.0] * b
    assert chain.max_by_count(counter).table.tolist() == [[0.0, NEG_INF, NEG_INF, NEG_INF]] * b


COSTS = {case.name: case for case in CHAIN_COSTS}
# Every cost in every form, each in one dtype and with one kind of transition.
VIOLATIONS = [
    (COSTS[name], form, DTYPES[(i + j) % 2], (i + j // 2) % 2 == 0)
    for (i, name), (j, form) in itertools.product(
        enumerate(("hamming", "hamming_confusion", "f1", "segment_f1")), enumerate(FORMS)
    )
]
SEARCHES = [*[(COSTS["hamming"], form) for form in FORMS[1:]], (COSTS["hamming_confusion"], ("slack", False))]


def named(x: Any) -> str:
    if isinstance(x, CostCase):
        return x.name
    return f"{x[0]}-{'squared' if x[1] else 'linear'}" if isinstance(x, tuple) else str(x)


@pytest.mark.parametrize(("case", "form", "dtype", "shared"), VIOLATIONS, ids=named)
def test_violations_equal_enumeration(case: CostCase, form: Any, dtype: torch.dtype, shared: bool) -> None:
    problem = chain_problem(dtype, shared)
    check(problem, CHAIN_GOLD, golds(problem), case, "triton", form, "exact")


@pytest.mark.parametrize(("case", "form"), SEARCHES, ids=named)
def test_lambda_search_finds_the_same_value(case: CostCase, form: Any) -> None:
    problem = chain_problem(torch.float64)
    check(problem, CHAIN_GOLD, golds(problem), case, "triton", form, "search")


@pytest.mark.parametrize("form", [("slack", False), ("margin", True)], ids=named)
@pytest.mark.parametrize("case", [COSTS["hamming"], COSTS["segment_f1"]], ids=named)
def test_labels_and_subgradients_equal_those_of_the_reference(case: CostCase, form: Any) -> None:
    problem = chain_problem(torch.float64)
    loss = sl.StructuredHinge(case.cost, rescaling=form[0], squared=form[1], reduction="sum")
    found = []
    for backend in ("triton", "reference"):
        leaves = problem.leaves()
        chain = problem.make(backend, **leaves)
        loss(chain, CHAIN_GOLD).backward()
        y = sl.most_violated(chain, CHAIN_GOLD, case.cost, rescaling=form[0], squared=form[1]).y
        found.append((y, *[x.grad for x in leaves.values()]))
    for value, expected in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
