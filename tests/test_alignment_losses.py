"""Costs of alignments: the most violated path against enumeration, in every mode and both rescalings."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from alignment_cases import MODES, AlignmentCase
from cases import assert_close
from oracles import costs as oracle

import structlearn as sl
from structlearn.errors import ArgumentError

FORMS = list(itertools.product(("margin", "slack"), (False, True)))
NEG_INF = float("-inf")
CASE = AlignmentCase("losses", x_lengths=(3, 2, 0, 3), y_lengths=(3, 4, 2, 1), N=3, forbidden=0.08, seed=0)


def pairs(path: tuple[int, ...]) -> set[tuple[int, int]]:
    found, i, j = set(), 0, 0
    for op in path:
        if op == 0:
            found.add((i, j))
        i, j = i + (op != 2), j + (op != 1)
    return found


def missed(gold: tuple[int, ...], y: tuple[int, ...]) -> float:
    return float(len(pairs(gold) - pairs(y)))


COSTS: dict[str, tuple[sl.costs.Cost, Any]] = {
    "zero_one": (sl.costs.ZeroOne(), lambda gold, y: float(gold != y)),
    "pairs": (sl.costs.AlignedPairs(normalize=False), missed),
    "one_minus_q": (sl.costs.AlignedPairs(), lambda gold, y: missed(gold, y) / max(len(pairs(gold)), 1)),
    "hamming": (sl.costs.Hamming(), missed),
    "hamming_fractions": (
        sl.costs.Hamming(position_weight=torch.tensor([0.5, 0.3, 1.1])),
        lambda gold, y: sum((0.5, 0.3, 1.1)[i] for i, _ in pairs(gold) - pairs(y)),
    ),
    "hamming_mean": (sl.costs.Hamming(normalize=True), lambda gold, y: missed(gold, y) / max(len(pairs(gold)), 1)),
}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f[0]}-{'squared' if f[1] else 'linear'}")
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("mode", "name"), [(m, n) for m in MODES for n in COSTS if m == "global" or not n.startswith("hamming")]
)
def test_most_violated(mode: str, affine: bool, name: str, form: tuple[str, bool], backend: str) -> None:
    (rescaling, squared), (cost, delta) = form, COSTS[name]
    problem = replace(CASE, mode=mode, affine=affine).problem()
    truths = [
        max((y for y, s in zip(row.outputs, row.scores, strict=True) if s > NEG_INF), key=lambda y: len(pairs(y)))
        for row in problem.rows
    ]
    gold = torch.tensor([problem.labels(b, y) for b, y in enumerate(truths)])
    s = problem.make(backend)
    options: Any = {"rescaling": rescaling, "squared": squared}
    for inference in ("exact", "search"):
        found = sl.most_violated(s, gold, cost, **options, inference=inference)
        assert found.exact.all()
        best = []
        for b, row in enumerate(problem.rows):
            at = row.scores[list(row.outputs).index(truths[b])]
            values = [
                oracle.violation(delta(truths[b], y), score - at, rescaling, squared) if score > NEG_INF else NEG_INF
                for y, score in zip(row.outputs, row.scores, strict=True)
            ]
            best.append(max(values))
            y = tuple(op for op in found.y[b].tolist() if op != -100)
            assert_close(found.value[b], values[list(row.outputs).index(y)], problem.dtype, 10.0)
            assert_close(found.cost[b], delta(truths[b], y), problem.dtype, 10.0)
        assert_close(found.value, best, problem.dtype, 10.0)
        loss = sl.StructuredHinge(cost, **options, reduction="none", inference=inference)(s, gold)  # type: ignore[arg-type]
        expected = torch.tensor(best, dtype=problem.dtype).clamp(min=0.0)
        assert_close(loss, expected**2 if squared else expected, problem.dtype, 100.0)


@pytest.mark.parametrize("mode", MODES)
def test_softmax_margin_adds_the_cost(mode: str) -> None:
    problem = replace(CASE, mode=mode, forbidden=0.0).problem()
    gold = torch.tensor([problem.labels(b, row.outputs[-1]) for b, row in enumerate(problem.rows)])
    s = problem.make("cpu")
    found = sl.SoftmaxMargin(sl.costs.AlignedPairs(), reduction="none")(s, gold)
    for b, row in enumerate(problem.rows):
        truth = row.outputs[-1]
        cost = [missed(truth, y) / max(len(pairs(truth)), 1) for y in row.outputs]
        total = torch.logsumexp(torch.tensor(row.scores) + torch.tensor(cost), 0)
        assert_close(found[b], total - row.scores[-1], problem.dtype, 10.0)


def test_gradient_of_the_hinge_is_the_difference_of_histograms() -> None:
    torch.manual_seed(1)
    x, z = torch.randint(0, 4, (3, 6)), torch.randint(0, 4, (3, 5))
    alignment_map = sl.features.AlignmentMap(4, gap=-0.3, gap_open=-0.8)
    with torch.no_grad():
        alignment_map.substitution.normal_()
    s = alignment_map((x, z))
    gold = s.sample(1, generator=torch.Generator().manual_seed(2))[0]
    for rescaling in ("margin", "slack"):
        alignment_map.zero_grad()
        sl.StructuredHinge(sl.costs.AlignedPairs(), rescaling=rescaling, reduction="sum")(  # type: ignore[arg-type]
            alignment_map((x, z)), gold
        ).backward()
        y, _, cost = sl.most_violated(s, gold, sl.costs.AlignedPairs(), rescaling=rescaling)  # type: ignore[arg-type]
        weight = cost[:, None] if rescaling == "slack" else 1.0
        expected = (weight * (alignment_map.joint((x, z), y) - alignment_map.joint((x, z), gold))).sum(0)
        found = torch.cat([p.grad.flatten() for p in alignment_map.head_parameters()])  # type: ignore[union-attr]
        torch.testing.assert_close(found, expected)


def test_hamming_needs_paid_gaps() -> None:
    s = sl.Alignment(torch.zeros((1, 2, 2)), gap=-1.0, mode="local")
    with pytest.raises(ArgumentError, match=r"a global alignment, where every gap has a score.*use AlignedPairs\(\)"):
        sl.StructuredHinge(sl.costs.Hamming())(s, torch.tensor([[0, 0, -100, -100]]))
    with pytest.raises(ArgumentError, match="structure: expected an Alignment, got Categorical"):
        sl.StructuredHinge(sl.costs.AlignedPairs())(sl.Categorical(torch.zeros((1, 2))), torch.tensor([0]))
