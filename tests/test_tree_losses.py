"""Violations over trees, against enumeration of every tree; bracket F1 against the metric."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from grammar_cases import GrammarCase
from oracles.costs import violation
from oracles.span_tree import chart
from tree_cases import TreeCase

import structlearn as sl
from structlearn.data.treebank import parse_tree
from structlearn.metrics import bracket_counts

Tree = tuple[tuple[int, int, Any], ...]
FORMS = list(itertools.product(("margin", "slack"), (False, True)))


def _f1(gold: Counter[Any], y: Counter[Any]) -> float:
    both = sum(gold.values()) + sum(y.values())
    return 1.0 - 2.0 * sum((gold & y).values()) / both if both else 0.0


def hamming(gold: Tree, y: Tree) -> float:
    return float(len(set(y) - set(gold)))


def weighted(weights: list[float]) -> Callable[[Tree, Tree], float]:
    """Spans of y that gold does not have, by the label that gold has there; the last weight is for none."""

    def cost(gold: Tree, y: Tree) -> float:
        there = {(i, j): label for i, j, label in gold}
        return sum(weights[there.get(span[:2], -1)] for span in set(y) - set(gold))

    return cost


def over_larger(gold: Tree, y: Tree) -> float:
    return _f1(*(Counter(s for s in z if s[0] < s[1]) for z in (gold, y)))


def without_label_0(gold: Tree, y: Tree) -> float:
    return _f1(*(Counter(s for s in z if s[2] != 0) for z in (gold, y)))


def by_names(inner: list[list[str]], single: list[list[str]]) -> Callable[[Tree, Tree], float]:
    """1 - F1 where label l stands for the constituents inner[l], over single words single[l]."""

    def bag(z: Tree) -> Counter[Any]:
        return Counter((i, j, name) for i, j, label in z for name in (single if i == j else inner)[label])

    return lambda gold, y: _f1(bag(gold), bag(y))


NAMES = ("S+NP", "@NP~DT", "NP-SBJ")
SPAN_COSTS: dict[str, tuple[sl.costs.Cost, Callable[[Tree, Tree], float]]] = {
    "zero_one": (sl.costs.ZeroOne(), lambda gold, y: float(set(gold) != set(y))),
    "hamming": (sl.costs.Hamming(), hamming),
    "hamming_normalized": (sl.costs.Hamming(normalize=True), lambda gold, y: hamming(gold, y) / max(len(gold), 1)),
    "hamming_half": (sl.costs.Hamming(torch.full((4,), 0.5)), lambda gold, y: 0.5 * hamming(gold, y)),
    "hamming_fractions": (sl.costs.Hamming(torch.tensor([0.3, 0.6, 0.0, 1.5])), weighted([0.3, 0.6, 0.0, 1.5])),
    "f1_all_spans": (sl.costs.F1(outside=()), lambda gold, y: _f1(Counter(gold), Counter(y))),
    "brackets": (sl.costs.BracketF1(), over_larger),
    "brackets_outside": (sl.costs.BracketF1(outside=0, preterminals=False), without_label_0),
    "brackets_names": (sl.costs.BracketF1(NAMES), by_names([["S", "NP"], [], ["NP"]], [["S"], [], []])),
}


def _check(
    structure: Any, rows: list[Any], outputs: Callable[[int, Any], Tree], make: Callable[[int, Any], Any], cost: Any,
    delta: Callable[[Tree, Tree], float], form: tuple[Any, bool], inference: Any = "exact",
) -> None:  # fmt: skip
    truths = [row.outputs[(7 * b + 3) % len(row.outputs)] for b, row in enumerate(rows)]
    gold = torch.tensor([make(b, y) for b, y in enumerate(truths)])
    gold = torch.where(structure.mask, gold, 77)  # padding may hold any label
    options: Any = {"rescaling": form[0], "squared": form[1], "inference": inference}
    found = sl.most_violated(structure, gold, cost, **options)
    loss = sl.StructuredHinge(cost, **options, reduction="none")(structure, gold)
    assert bool(found.exact.all())
    for b, row in enumerate(rows):
        true = outputs(b, truths[b])
        at = float(row.scores[row.outputs.index(truths[b])])
        costs = [delta(true, outputs(b, y)) for y in row.outputs]
        values = [violation(d, float(s) - at, *form) for d, s in zip(costs, row.scores, strict=True)]
        best = max(values)
        np.testing.assert_allclose(float(found.value[b]), best, atol=1e-9)
        chosen = found.y[b].tolist()
        picked = [i for i, y in enumerate(row.outputs) if make(b, y) == chosen]
        assert len(picked) == 1
        np.testing.assert_allclose(values[picked[0]], best, atol=1e-9)
        np.testing.assert_allclose(float(found.cost[b]), costs[picked[0]], atol=1e-9)
        np.testing.assert_allclose(float(loss[b]), max(best, 0.0) ** (2 if form[1] else 1), atol=1e-9)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", SPAN_COSTS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_span_tree_violations(name: str, form: tuple[Any, bool], backend: str) -> None:
    problem = TreeCase("losses", L=3, lengths=(4, 3, 1, 0, 2), seed=5).problem()
    cost, delta = SPAN_COSTS[name]
    n = 4
    _check(problem.make(backend), problem.rows, lambda b, y: tuple(y), lambda b, y: chart(y, n), cost, delta, form)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", ["hamming", "hamming_fractions", "brackets", "brackets_outside", "brackets_names"])
def test_search_finds_what_counting_finds(name: str, form: tuple[Any, bool]) -> None:
    cost, delta = SPAN_COSTS[name]
    for seed in range(3):
        problem = TreeCase("losses", L=3, lengths=(4, 3, 1, 0, 2), spread=1.0, seed=seed).problem()
        make = problem.make("cpu")
        _check(make, problem.rows, lambda b, y: tuple(y), lambda b, y: chart(y, 4), cost, delta, form, "search")


def _named_grammar(problem: Any) -> sl.Grammar:
    """Two nonterminals, one intermediate, and a preterminal with a phrase above it."""
    return sl.Grammar(problem.grammar.rules, ["NP-SBJ", "@NP~DT"], ["NP+NN", "VB"])


GRAMMAR_COSTS: dict[str, tuple[sl.costs.Cost, Callable[[Tree, Tree], float]]] = {
    "zero_one": (sl.costs.ZeroOne(), lambda gold, y: float(set(gold) != set(y))),
    "hamming": (sl.costs.Hamming(), hamming),
    "hamming_fractions": (
        sl.costs.Hamming(torch.tensor([0.3, 0.6, 0.0, 1.5, 0.9])),
        weighted([0.3, 0.6, 0.0, 1.5, 0.9]),
    ),
    "brackets": (sl.costs.BracketF1(), by_names([["NP"], []], [[], [], ["NP"], []])),
}


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", GRAMMAR_COSTS)
@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("how", [("reference", "exact"), ("cpu", "exact"), ("cpu", "search")], ids=str)
def test_grammar_violations(name: str, form: tuple[Any, bool], spans: bool, how: tuple[str, str]) -> None:
    case = GrammarCase("losses", spans=spans, own_rules=spans, lengths=(4, 3, 1, 2, 4), seed=3)
    problem = case.problem()
    grammar = _named_grammar(problem)
    potentials: Any = problem.potentials
    structure = sl.WeightedCFG(grammar, **potentials, lengths=torch.tensor(case.lengths), backend=how[0])
    rules = grammar.rules.tolist()

    def symbols(b: int, y: Any) -> Tree:
        return tuple((i, j, 2 + entry if i == j else rules[entry][0]) for i, j, entry in y)

    cost, delta = GRAMMAR_COSTS[name]
    # Two derivations of a dense grammar never share their symbols, so outputs and labelled trees are one to one.
    _check(structure, problem.rows, symbols, lambda b, y: chart(y, 4), cost, delta, form, how[1])


def test_bracket_f1_is_the_metric_of_the_restored_trees() -> None:
    from structlearn.data.extract import extract_grammar

    bank = [
        parse_tree("(TOP (S (NP-SBJ (DT the) (JJ old) (NN man)) (VP (VBD saw) (NP (DT a) (NN dog)))))"),
        parse_tree("(TOP (S (NP (NN man)) (VP (VBD saw) (PRT (RP up)) (NP (NP (NN dog)) (JJ old)))))"),
        parse_tree("(TOP (S (VP (VBD saw) (ADVP (RB up)))))"),
        parse_tree("(TOP (FRAG (NN man)))"),
    ]
    extracted = extract_grammar(bank, h=1)
    grammar = sl.Grammar(extracted.rules, extracted.nonterminals, extracted.preterminals)
    lengths = [len(tree.leaves()) for tree in bank]
    p = grammar.num_preterminals
    structure = sl.WeightedCFG(
        grammar, torch.randn(4, 6, p), torch.randn(grammar.num_rules), torch.zeros(grammar.num_symbols), lengths=lengths
    )
    words = [tree.leaves() for tree in bank]
    gold = structure.chart([extracted.to_cnf(tree) for tree in bank])
    draws = structure.sample(30, generator=torch.Generator().manual_seed(0))
    cost = sl.costs.BracketF1()
    found = cost(structure, gold, draws)
    assert float(found.max()) > 0
    for k, y in enumerate(draws):
        trees = structure.trees(y, words)
        for b, tree in enumerate(trees):
            assert tree is not None
            if tree.label.startswith("@"):
                continue  # no tree of a treebank has an intermediate node at the top
            counts = bracket_counts(extracted.from_cnf(tree), bank[b])
            assert counts is not None
            both = counts.predicted + counts.gold
            expected = 1.0 - 2.0 * counts.matched / both if both else 0.0
            np.testing.assert_allclose(float(found[k, b]), expected, atol=1e-6)


def test_tree_losses_train_what_made_the_potentials() -> None:
    spans = torch.randn(3, 5, 5, 4, dtype=torch.float64, requires_grad=True)
    gold = sl.SpanTree(torch.randn(3, 5, 5, 4, dtype=torch.float64)).argmax()
    for loss in (
        sl.StructuredHinge(sl.costs.BracketF1(), rescaling="slack"),
        sl.StructuredHinge(sl.costs.Hamming(), rescaling="margin", squared=True),
        sl.SoftmaxMargin(sl.costs.Hamming()),
        sl.CRFLoss(),
        sl.PerceptronLoss(),
    ):
        (grad,) = torch.autograd.grad(loss(sl.SpanTree(spans), gold), spans)
        assert bool(grad.isfinite().all())
        assert float(grad.abs().sum()) > 0


def test_labels_must_fit_the_structure() -> None:
    s = sl.SpanTree(torch.zeros(1, 3, 3, 2))
    gold = s.argmax()
    with pytest.raises(sl.errors.ShapeError, match="labels: expected L=2 names, got 3"):
        sl.most_violated(s, gold, sl.costs.BracketF1(["A", "B", "C"]))
    with pytest.raises(sl.errors.ArgumentError, match=r"outside: expected labels in 0\.\.1"):
        sl.most_violated(s, gold, sl.costs.BracketF1(outside=2))
    with pytest.raises(sl.errors.ArgumentError, match="a SpanTree or WeightedCFG"):
        sl.most_violated(
            sl.LinearChain(torch.zeros(1, 3, 2), torch.zeros(2, 2)), torch.zeros(1, 3).long(), sl.costs.BracketF1()
        )
