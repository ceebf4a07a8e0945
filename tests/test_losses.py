"""Hinge losses and the most violated output against enumeration of every output."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from cases import Problem, assert_close
from hypothesis import given
from hypothesis import strategies as st
from oracles import costs as oracle
from torch import Tensor

import structlearn as sl
from structlearn.errors import ArgumentError, InferenceError, LabelError, ShapeError

NEG_INF = float("-inf")
TAGS = ("O", "B-X", "I-X", "B-Y")
CONFUSION = [[0.0, 1.0, 2.0, 1.0], [2.0, 0.0, 1.0, 3.0], [1.0, 1.0, 0.0, 2.0], [1.0, 2.0, 2.0, 0.0]]
WEIGHTS = [1.0, 2.0, 1.0, 3.0]
FORMS = list(itertools.product(("margin", "slack"), (False, True)))


@dataclass(frozen=True)
class CostCase:
    name: str
    cost: sl.costs.Cost
    delta: oracle.Delta


CHAIN_COSTS = [
    CostCase("zero_one", sl.costs.ZeroOne(), oracle.zero_one),
    CostCase("hamming", sl.costs.Hamming(), oracle.hamming()),
    CostCase("hamming_positions", sl.costs.Hamming(position_weight=torch.tensor(WEIGHTS)), oracle.hamming(WEIGHTS)),
    CostCase(
        "hamming_labels",
        sl.costs.Hamming(torch.tensor([1.0, 3.0, 2.0, 1.0])),
        oracle.hamming(None, [[w * (i != j) for j in range(4)] for i, w in enumerate([1.0, 3.0, 2.0, 1.0])]),
    ),
    CostCase("hamming_half", sl.costs.Hamming(torch.full((4,), 0.5)), oracle.hamming([0.5] * 4)),
    CostCase(
        "hamming_fractions",
        sl.costs.Hamming(torch.tensor([0.3, 0.9, 0.0, 1 / 3]), position_weight=torch.tensor([1.5, 0.1, 0.7, 2.0])),
        lambda gold, y: sum(
            [1.5, 0.1, 0.7, 2.0][t] * [0.3, 0.9, 0.0, 1 / 3][a] * (a != b)
            for t, (a, b) in enumerate(zip(gold, y, strict=True))
        ),
    ),
    CostCase(
        "hamming_of_a_unit",
        sl.costs.Hamming(math.pi * torch.tensor(CONFUSION, dtype=torch.float64), normalize=True),
        lambda gold, y: math.pi * oracle.hamming(None, CONFUSION)(gold, y) / max(len(gold), 1),
    ),
    CostCase("hamming_confusion", sl.costs.Hamming(torch.tensor(CONFUSION)), oracle.hamming(None, CONFUSION)),
    CostCase(
        "hamming_mean",
        sl.costs.Hamming(normalize=True),
        lambda gold, y: oracle.hamming()(gold, y) / max(len(gold), 1),
    ),
    CostCase("f1", sl.costs.F1(outside=0), oracle.f1(0)),
    CostCase("segment_f1", sl.costs.SegmentF1(TAGS), oracle.segment_f1(TAGS)),
]
TREE = sl.Taxonomy([(), 0, 0, 1, 1, 2])
# Nodes 3 and 4 meet at 1, one step up; 5 meets them at the root, two steps up.
TREE_TABLE = [[0.0, 1.0, 2.0], [1.0, 0.0, 2.0], [2.0, 2.0, 0.0]]
CLASS_COSTS = [
    CostCase("zero_one", sl.costs.ZeroOne(), oracle.zero_one),
    CostCase("hamming", sl.costs.Hamming(), oracle.hamming()),
    CostCase("tree", sl.costs.TreeCost(TREE), lambda gold, y: TREE_TABLE[gold[0]][y[0]]),
]


def chain_problem(dtype: torch.dtype, shared: bool = True) -> Problem:
    """Lengths 4, 3, 1, 0, 4 over 4 labels with a forbidden transition and NaN in the padding."""
    lengths = (4, 3, 1, 0, 4)
    unary = 1.5 * torch.randn(5, 4, 4, dtype=dtype)
    transition = torch.randn(4, 4, dtype=dtype) if shared else torch.randn(5, 3, 4, 4, dtype=dtype)
    transition[..., 3, 2] = NEG_INF
    for b, n in enumerate(lengths):
        unary[b, n:] = torch.nan
        if not shared:
            transition[b, max(n - 1, 0) :] = torch.nan
    edges = {name: torch.randn(4, dtype=dtype) for name in ("start", "end")}
    return Problem(sl.LinearChain, {"unary": unary, "transition": transition, **edges}, lengths)


CHAIN_GOLD = torch.tensor([[1, 2, 0, 3], [0, 3, 1, -100], [2, 9, 9, 9], [-100] * 4, [3, 1, 2, 2]])


def golds(problem: Problem) -> list[tuple[int, ...]]:
    assert problem.lengths is not None
    return [tuple(CHAIN_GOLD[b, :n].tolist()) for b, n in enumerate(problem.lengths)]


def expected(problem: Problem, gold: list[tuple[int, ...]], delta: oracle.Delta, rescaling: str, squared: bool) -> Any:
    """For every row: H of each output, and the outputs."""
    found = []
    for row, truth in zip(problem.rows, gold, strict=True):
        at = row.scores[list(row.outputs).index(truth)]
        with np.errstate(invalid="ignore"):
            values = [
                oracle.violation(delta(truth, y), s - at, rescaling, squared) if s > NEG_INF else NEG_INF
                for y, s in zip(row.outputs, row.scores, strict=True)
            ]
        found.append((np.array(values), list(row.outputs)))
    return found


def check(problem: Problem, gold: Tensor, truths: Any, case: CostCase, backend: str, form: Any, inference: str) -> None:
    rescaling, squared = form
    options: Any = {"rescaling": rescaling, "squared": squared, "inference": inference}
    structure = problem.make(backend)
    found = sl.most_violated(structure, gold, case.cost, **options)
    y, value, cost = found
    assert found.exact.all()
    table = expected(problem, truths, case.delta, rescaling, squared)
    assert_close(value, [values.max() for values, _ in table], problem.dtype, 10.0)
    for b, (values, outputs) in enumerate(table):
        labels = y[b].reshape(-1).tolist()
        n = len(truths[b])
        assert all(label == -100 for label in labels[n:])
        place = outputs.index(tuple(labels[:n]))
        assert_close(value[b], values[place], problem.dtype, 10.0)
        assert_close(cost[b], case.delta(truths[b], tuple(labels[:n])), problem.dtype, 10.0)
    loss = sl.StructuredHinge(case.cost, **options, reduction="none")(structure, gold)
    best = np.array([max(values.max(), 0.0) for values, _ in table])
    assert_close(loss, best**2 if squared else best, problem.dtype, 100.0)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f[0]}-{'squared' if f[1] else 'linear'}")
@pytest.mark.parametrize("case", CHAIN_COSTS, ids=lambda c: c.name)
@pytest.mark.parametrize("backend", ["reference", "cpu", "torch-struct"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per-position"])
def test_chain_violations(case: CostCase, form: Any, backend: str, dtype: torch.dtype, shared: bool) -> None:
    problem = chain_problem(dtype, shared)
    check(problem, CHAIN_GOLD, golds(problem), case, backend, form, "exact")


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f[0]}-{'squared' if f[1] else 'linear'}")
@pytest.mark.parametrize("case", CHAIN_COSTS[1:6], ids=lambda c: c.name)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_lambda_search_finds_the_same_value(case: CostCase, form: Any, backend: str, dtype: torch.dtype) -> None:
    problem = chain_problem(dtype)
    check(problem, CHAIN_GOLD, golds(problem), case, backend, form, "search")


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f[0]}-{'squared' if f[1] else 'linear'}")
@pytest.mark.parametrize("case", CLASS_COSTS, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_class_violations(case: CostCase, form: Any, dtype: torch.dtype) -> None:
    scores = torch.randn(6, 3, dtype=dtype)
    scores[5, 1] = NEG_INF
    problem = Problem(sl.Categorical, {"scores": scores})
    gold = torch.tensor([0, 1, 2, 0, 1, 2])
    check(problem, gold, [(int(k),) for k in gold], case, "reference", form, "exact")


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f[0]}-{'squared' if f[1] else 'linear'}")
@pytest.mark.parametrize("case", CHAIN_COSTS, ids=lambda c: c.name)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_subgradient_is_the_slope_of_the_loss(case: CostCase, form: Any, backend: str) -> None:
    problem = chain_problem(torch.float64)
    loss = sl.StructuredHinge(case.cost, rescaling=form[0], squared=form[1], reduction="sum")
    leaves = problem.leaves()
    loss(problem.make(backend, **leaves), CHAIN_GOLD).backward()
    gradients = {name: x.grad for name, x in leaves.items()}
    step = 1e-6  # far below the distance to a tie on random scores, far above rounding of the loss
    with torch.no_grad():
        direction = {
            name: torch.randn_like(x).masked_fill(~x.isfinite(), 0.0) for name, x in problem.potentials.items()
        }
        ends = [
            loss(
                problem.make(backend, **{k: x + s * step * direction[k] for k, x in problem.potentials.items()}),
                CHAIN_GOLD,
            )
            for s in (1.0, -1.0)
        ]
    slope = sum((gradients[name] * direction[name]).nansum() for name in gradients)
    assert all(bool(g.isfinite().all()) for g in gradients.values())
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6)


@given(st.integers(0, 10**6), st.sampled_from(["slack", "margin"]), st.booleans(), st.sampled_from([1, 6]))
def test_exact_is_never_below_the_recursion(seed: int, rescaling: str, squared: bool, which: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    chain = sl.LinearChain(
        torch.randn(4, 5, 4, generator=generator, dtype=torch.float64) * 2,
        torch.randn(4, 4, generator=generator, dtype=torch.float64),
    )
    gold = torch.randint(0, 4, (4, 5), generator=generator)
    options: Any = {"rescaling": rescaling, "squared": squared}
    cost = CHAIN_COSTS[which].cost
    exact = sl.most_violated(chain, gold, cost, **options)
    heuristic = sl.most_violated(chain, gold, cost, **options, inference="recursion")
    assert (exact.value >= heuristic.value - 1e-9).all()
    assert exact.exact.all()
    assert not heuristic.exact.any()


def test_the_recursion_can_lose() -> None:
    """Keeping one partial output a state is not enough: found by trying seeds, and checked by enumeration above."""
    losses = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        chain = sl.LinearChain(
            torch.randn(8, 5, 3, generator=generator, dtype=torch.float64) * 3,
            torch.randn(3, 3, generator=generator, dtype=torch.float64) * 3,
        )
        gold = torch.randint(0, 3, (8, 5), generator=generator)
        exact, heuristic = (
            sl.most_violated(chain, gold, sl.costs.Hamming(), rescaling="slack", inference=i).value
            for i in ("exact", "recursion")
        )
        losses += int((exact > heuristic + 1e-6).sum())
    assert losses > 0


@given(st.integers(0, 10**6), st.sampled_from(FORMS), st.sampled_from(CHAIN_COSTS))
def test_hinge_bounds_the_cost_of_the_prediction(seed: int, form: Any, case: CostCase) -> None:
    generator = torch.Generator().manual_seed(seed)
    chain = sl.LinearChain(
        torch.randn(3, 4, 4, generator=generator, dtype=torch.float64),
        torch.randn(4, 4, generator=generator, dtype=torch.float64),
    )
    gold = torch.randint(0, 4, (3, 4), generator=generator)
    loss = sl.StructuredHinge(case.cost, rescaling=form[0], squared=form[1], reduction="none")(chain, gold)
    assert (loss >= case.cost(chain, gold, chain.argmax()) - 1e-9).all()


def test_all_formulations_agree_for_a_zero_one_cost() -> None:
    problem = chain_problem(torch.float64)
    values = [
        sl.StructuredHinge(sl.costs.ZeroOne(), rescaling=r, squared=s, reduction="none")(
            problem.make("cpu"), CHAIN_GOLD
        )  # type: ignore[arg-type]
        for r, s in FORMS
    ]
    for (_, squared), value in zip(FORMS, values, strict=True):
        torch.testing.assert_close(value.sqrt() if squared else value, values[0])


def test_slack_rescaling_is_invariant_to_the_scale_of_the_cost_and_margin_is_not() -> None:
    """Prop. 7: with Delta -> 7 Delta the slack-rescaled maximiser stays and H scales by 7."""
    chain, gold = chain_problem(torch.float64).make("cpu"), CHAIN_GOLD
    scaled = sl.costs.Hamming(position_weight=torch.full((4,), 7.0))
    plain, times = (sl.most_violated(chain, gold, c, rescaling="slack") for c in (sl.costs.Hamming(), scaled))
    assert torch.equal(plain.y, times.y)
    torch.testing.assert_close(7 * plain.value, times.value)
    margin, margin_times = (sl.most_violated(chain, gold, c).value for c in (sl.costs.Hamming(), scaled))
    assert not torch.allclose(7 * margin, margin_times)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_probabilistic_losses(backend: str) -> None:
    problem = chain_problem(torch.float64)
    structure = problem.make(backend)
    crf = sl.CRFLoss(reduction="none")(structure, CHAIN_GOLD)
    perceptron = sl.PerceptronLoss(reduction="none")(structure, CHAIN_GOLD)
    for case in CHAIN_COSTS[:5]:
        soft = sl.SoftmaxMargin(case.cost, reduction="none")(structure, CHAIN_GOLD)
        for b, (row, truth) in enumerate(zip(problem.rows, golds(problem), strict=True)):
            at = row.scores[list(row.outputs).index(truth)]
            costs = np.array([case.delta(truth, y) for y in row.outputs])
            assert_close(soft[b], np.log(np.exp(row.scores + costs).sum()) - at, torch.float64, 10.0)
            assert_close(crf[b], row.log_partition - at, torch.float64, 10.0)
            assert_close(perceptron[b], row.max - at, torch.float64, 10.0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions(reduction: Any) -> None:
    chain, gold = chain_problem(torch.float64).make("cpu"), CHAIN_GOLD
    cost = sl.costs.Hamming()
    for make in (
        lambda r: sl.StructuredHinge(cost, reduction=r),
        lambda r: sl.SoftmaxMargin(cost, reduction=r),
        lambda r: sl.CRFLoss(reduction=r),
        lambda r: sl.PerceptronLoss(reduction=r),
    ):
        each = make("none")(chain, gold)
        torch.testing.assert_close(make(reduction)(chain, gold), getattr(each, reduction)())


def test_large_batch_margin_matches_the_reference() -> None:
    """Above the thread threshold and over every row-block size."""
    chain = [
        sl.LinearChain(unary, transition, lengths=lengths, backend=backend)
        for unary, transition, lengths in [(torch.randn(19, 40, 17), torch.randn(17, 17), torch.randint(0, 41, (19,)))]
        for backend in ("cpu", "reference")
    ]
    gold = torch.randint(0, 17, (19, 40))
    for loss in (sl.StructuredHinge(sl.costs.Hamming(), reduction="none"), sl.CRFLoss(reduction="none")):
        torch.testing.assert_close(loss(chain[0], gold), loss(chain[1], gold), rtol=2e-5, atol=2e-4)


class Opaque(sl.costs.Cost):
    def __call__(self, structure: sl.Structure, gold: Any, y: Any) -> Tensor:
        return (gold != y).any(-1).float()


@pytest.mark.parametrize("form", [("margin", False), ("margin", True), ("slack", False), ("slack", True)], ids=str)
def test_search_over_two_statistics_finds_what_counting_finds(form: tuple[Any, bool]) -> None:
    chain = sl.LinearChain(torch.randn(9, 7, 3).double(), torch.randn(3, 3).double())
    gold = torch.randint(0, 3, (9, 7))
    options: Any = {"rescaling": form[0], "squared": form[1]}
    exact = sl.most_violated(chain, gold, sl.costs.F1(), **options)
    found = sl.most_violated(chain, gold, sl.costs.F1(), **options, inference="search")
    torch.testing.assert_close(found.value, exact.value)
    assert bool(found.exact.all())


def test_an_opaque_cost_raises_and_names_the_alternatives() -> None:
    chain = sl.LinearChain(torch.randn(2, 3, 4), torch.randn(4, 4))
    gold = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(InferenceError, match=r"cost: expected one that decomposes.*additive.*counted.*search"):
        sl.StructuredHinge(Opaque())(chain, gold)
    with pytest.raises(InferenceError, match="additive over parts for inference='search'"):
        sl.most_violated(chain, gold, Opaque(), rescaling="slack", inference="search")
    with pytest.raises(InferenceError, match="additive over parts, or 0/1"):
        sl.SoftmaxMargin(sl.costs.F1())(chain, gold)
    with pytest.raises(InferenceError, match="recursion"):
        sl.most_violated(chain, gold, sl.costs.ZeroOne(), inference="recursion")
    irrational = sl.costs.Hamming(position_weight=torch.tensor([3.0, 2.0, 1.7]).sqrt())
    with pytest.raises(InferenceError, match=r"multiples of one unit.*inference='search'.*takes any weights"):
        sl.most_violated(chain, gold, irrational, rescaling="slack")


def test_fractional_weights_are_searched_with_an_honest_proof() -> None:
    problem = chain_problem(torch.float64)
    weights = [0.3**0.5, 0.5, 1.7**0.5, 0.9]
    cost = sl.costs.Hamming(position_weight=torch.tensor(weights, dtype=torch.float64))
    for rescaling, squared in FORMS:
        found = sl.most_violated(
            problem.make("cpu"),
            CHAIN_GOLD,
            cost,
            rescaling=rescaling,
            squared=squared,
            inference="search",  # type: ignore[arg-type]
        )
        table = expected(problem, golds(problem), oracle.hamming(weights), rescaling, squared)
        for b, (values, _) in enumerate(table):
            assert float(found.value[b]) <= values.max() + 1e-9
            if bool(found.exact[b]):
                assert_close(found.value[b], values.max(), torch.float64, 10.0)
    assert found.exact.any()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: sl.costs.Hamming(torch.tensor([1.0, -1.0])),
            ArgumentError,
            "label_weight: expected finite weights >= 0, got -1",
        ),
        (lambda: sl.costs.Hamming(torch.ones(2, 2)), ArgumentError, "label_weight: expected a zero diagonal"),
        (lambda: sl.Taxonomy([1, 2, 0]), ArgumentError, r"parents: expected no cycle, got 0 -> 1 -> 2 -> 0"),
        (lambda: sl.Taxonomy([5]), ArgumentError, "parents: expected nodes in 0..0, got 5 above node 0"),
        (lambda: sl.costs.SegmentF1(["O", "X-B"]), ArgumentError, "tags: expected 'O' or a prefix of BI"),
        (lambda: sl.StructuredHinge("hamming"), ArgumentError, "cost: expected a structlearn.costs.Cost, got str"),  # type: ignore[arg-type]
        (
            lambda: sl.StructuredHinge(sl.costs.Hamming(), rescaling="both"),
            ArgumentError,
            "rescaling: expected 'margin'",
        ),  # type: ignore[arg-type]
        (
            lambda: sl.StructuredHinge(sl.costs.Hamming(), inference="fast"),
            ArgumentError,
            "inference: expected 'exact'",
        ),  # type: ignore[arg-type]
        (lambda: sl.CRFLoss(reduction="max"), ArgumentError, "reduction: expected 'mean', 'sum' or 'none', got 'max'"),  # type: ignore[arg-type]
    ],
)
def test_bad_options(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "loss",
    [
        sl.StructuredHinge(sl.costs.Hamming()),
        sl.StructuredHinge(sl.costs.F1(), rescaling="slack"),
        sl.CRFLoss(),
        sl.PerceptronLoss(),
    ],
)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_gold_outside_the_space(loss: Any, backend: str) -> None:
    chain = sl.LinearChain(torch.randn(2, 3, 4), torch.randn(4, 4), lengths=[3, 2], backend=backend)
    with pytest.raises(LabelError, match=r"labels in 0..3 at unpadded positions, got 7 at .*1, .*1"):
        loss(chain, torch.tensor([[0, 1, 2], [0, 7, 9]]))
    forbidden = chain.transition.clone()
    forbidden[1, 2] = NEG_INF
    with pytest.raises(LabelError, match=r"score -inf in batch row 1, transition 1 -> 2 into position 1"):
        loss(chain.replace(transition=forbidden), torch.tensor([[0, 1, 3], [1, 2, 0]]))
    with pytest.raises(ShapeError, match=r"y|gold"):
        loss(chain, torch.zeros(2, 4, dtype=torch.int64))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("inference", ["exact", "search"])
@pytest.mark.parametrize("cost", [sl.costs.Hamming(), sl.costs.F1(), sl.costs.ZeroOne()], ids=repr)
@pytest.mark.parametrize("shape", [(0, 3), (0, 0), (2, 0), (2, 3)])
def test_no_examples_and_empty_outputs_cost_nothing(shape: Any, cost: Any, inference: Any, backend: Any) -> None:
    """(2, 3) has lengths of 0 and a padded gold full of junk."""
    b, n = shape
    gold = torch.full((b, n), 77)
    for rescaling, squared in FORMS:
        for reduction in ("mean", "sum", "none"):
            unary = torch.full((b, n, 2), torch.nan, requires_grad=True)
            chain = sl.LinearChain(unary, torch.zeros(2, 2), lengths=torch.zeros(b, dtype=torch.int64), backend=backend)
            options: Any = {"rescaling": rescaling, "squared": squared, "inference": inference, "reduction": reduction}
            loss = sl.StructuredHinge(cost, **options)(chain, gold)
            assert loss.shape == ((b,) if reduction == "none" else ())
            assert not loss.any()
            (grad,) = torch.autograd.grad(loss.sum(), unary, allow_unused=True, materialize_grads=True)
            assert not grad.any()
    for other in (sl.CRFLoss(), sl.PerceptronLoss(), sl.SoftmaxMargin(sl.costs.Hamming())):
        assert float(other(chain, gold).detach()) == 0.0


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_slack_of_second_order_chains_of_any_size(backend: str, size: float) -> None:
    """Large transitions make the chain over pairs of labels wider than the scores and the tables of the cost."""
    torch.manual_seed(0)
    unary, transition, second = (size * torch.randn(s) for s in ((4, 3, 2), (2, 2), (2, 2, 2)))
    chain = sl.SecondOrderChain(unary, transition, second, backend=backend)
    gold = torch.tensor([[0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 1]])
    loss = sl.StructuredHinge(sl.costs.Hamming(), rescaling="slack", reduction="none")(chain, gold)
    outputs = torch.tensor(list(itertools.product(range(2), repeat=3)))
    scores = (
        unary.gather(2, outputs.T.expand(4, 3, 8)).sum(1)
        + transition[outputs[:, :-1], outputs[:, 1:]].sum(1)
        + second[tuple(outputs.T)]
    )
    here = (gold[:, None] == outputs).all(2)
    delta = (gold[:, None] != outputs).sum(2)
    expected = (delta * (1.0 + scores - scores[here][:, None])).amax(1)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slack_where_a_finite_number_masks_every_output(backend: str, dtype: torch.dtype) -> None:
    """Cost times such a gold's score is beyond the dtype's range; what is found is an output, if one up to rounding."""
    low = torch.finfo(dtype).min
    chain = sl.LinearChain(torch.full((1, 3, 2), low, dtype=dtype), torch.zeros(2, 2, dtype=dtype), backend=backend)
    tree = sl.SpanTree(torch.full((1, 2, 2, 2), low, dtype=dtype), backend=backend)
    for structure, gold in ((chain, [[0, 1, 1]]), (tree, [[[0, 1], [-100, 0]]])):
        found = sl.most_violated(structure, torch.tensor(gold), sl.costs.Hamming(), rescaling="slack")
        assert structure.score(found.y).isfinite().all()
        assert 0 <= found.value <= 3
