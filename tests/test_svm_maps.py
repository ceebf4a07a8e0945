"""Exact SVMs over grammars, over candidates with their alignments, and by n-slack with a kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import structlearn as sl
from structlearn.data.homologues import HiddenModel
from structlearn.features import AlignmentMap, Family, FeatureMap, HomologueChoiceMap, RuleMap

GRAMMAR = sl.Grammar([[0, 3, 1], [1, 1, 1], [0, 0, 1], [1, 4, 5]], ("S", "NP"), ("X", "V", "D", "N"))
TAGS = torch.tensor([[1, 2, 3, 2, 3, 0, 0], [1, 2, 3, 2, 3, 2, 3], [1, 2, 3, 0, 0, 0, 0]])
LENGTHS = torch.tensor([5, 7, 3])


def rule_map() -> RuleMap:
    return RuleMap(GRAMMAR, roots=torch.tensor([True] + [False] * 5))


@pytest.mark.parametrize("rescaling", [None, "slack", "margin"])
def test_grammar_maps_train_to_the_gold_trees(rescaling: Any) -> None:
    """Attaching low is learnt from three sentences; the certificate is recomputed from the trained weights."""
    teacher = rule_map()
    with torch.no_grad():
        teacher.rule.copy_(torch.tensor([0.0, 1.0, -1.0, 0.0]))
    gold = teacher(TAGS, LENGTHS).argmax()
    cost = sl.costs.BracketF1()
    model = sl.StructuredSVM(rule_map(), cost, rescaling=rescaling, penalty="quadratic", C=100.0, gap=1e-4)
    model.fit(TAGS, gold, LENGTHS)
    assert model.certificate_.converged
    structure = model.feature_map_.double()(TAGS, LENGTHS)
    assert torch.equal(structure.argmax(), gold)
    used = sl.costs.ZeroOne() if rescaling is None else cost
    found = sl.most_violated(structure, gold, used, rescaling=rescaling or "margin", squared=True)
    xi = found.value.detach().clamp(min=0).double()
    primal = 0.5 * float(model.coef_ @ model.coef_) + 100.0 / 6 * float(xi.square().sum())
    assert primal == pytest.approx(model.certificate_.primal, rel=1e-4)
    assert model.certificate_.dual <= primal * (1 + 1e-9)


def test_rule_histograms_are_gradients_of_the_score() -> None:
    feature_map = rule_map().double()
    y = feature_map(TAGS, LENGTHS).argmax()
    for mine, slow in zip(
        feature_map.histograms(TAGS, y, LENGTHS), FeatureMap.histograms(feature_map, TAGS, y, LENGTHS), strict=True
    ):
        torch.testing.assert_close(mine, slow)


def families(size: int) -> Family:
    g = torch.Generator().manual_seed(0)
    found = HiddenModel.random(5, keep=0.7, relatives=2, insert=0.1, delete=0.1, generator=g).draw(
        size, length=12, decoys=3, generator=g
    )
    # The homologue last, so that ties, which go to the first, are mistakes.
    parts = found.natives, found.native_lengths, found.candidates.flip(1), found.lengths.flip(1), found.paths
    return Family(*parts, torch.full((size,), 3))


@pytest.mark.parametrize("gap_open", [None, -1.0])
def test_alignment_histograms_are_gradients_of_the_score(gap_open: float | None) -> None:
    x = families(4)
    feature_map = AlignmentMap(5, gap=-0.4, gap_open=gap_open).double()
    with torch.no_grad():
        feature_map.substitution.copy_(torch.randn(5, 5))
    pair, lengths = (x.natives, x.candidates[:, 0]), (x.native_lengths, x.lengths[:, 0])
    y = feature_map(pair, lengths).argmax()
    slow = FeatureMap.histograms(feature_map, pair, y, lengths)
    for mine, other in zip(feature_map.histograms(pair, y, lengths), slow, strict=True):
        torch.testing.assert_close(mine, other)


def test_candidates_by_their_best_alignments_train_to_the_homologues() -> None:
    x = families(8)
    start = HomologueChoiceMap(AlignmentMap(5, gap=0.0))
    model = sl.StructuredSVM(start, sl.costs.ZeroOne(), rescaling=None, penalty="quadratic", C=80.0, eps=0.01)
    model.fit(x, x.chosen)
    assert model.certificate_.converged
    assert torch.equal(model.predict(x), x.chosen)
    trained = model.feature_map_
    assert torch.equal(trained(x.unaligned()).argmax(), x.chosen)
    # Psi is linear in w: the score of the homologue is that of its given alignment.
    given = trained.joint(x, x.chosen) @ trained.weights()
    torch.testing.assert_close(given, trained(x).score(x.chosen))


@pytest.mark.parametrize("penalty", ["linear", "quadratic"])
@pytest.mark.parametrize("rescaling", [None, "slack", "margin"])
def test_kernelised_n_slack_meets_one_slack(penalty: Any, rescaling: Any) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, 3, generator=g, dtype=torch.float64)
    y, lengths = (x.sum(-1) > 0).long() + (x[..., 0] > 1), torch.tensor([3, 2] * 3)
    options: dict[str, Any] = {"rescaling": rescaling, "penalty": penalty, "C": 2.0, "kernel": "poly"}
    chain, cost = sl.features.ChainMap(3, 3), sl.costs.Hamming()
    first = sl.StructuredSVM(chain, cost, solver="one_slack", gap=1e-4, **options).fit(x, y, lengths)
    second = sl.StructuredSVM(chain, cost, solver="n_slack", gap=1e-4, **options).fit(x, y, lengths)
    assert second.certificate_.primal == pytest.approx(first.certificate_.primal, rel=3e-4)
    assert second.certificate_.dual <= first.certificate_.primal
    assert torch.equal(second.predict(x, lengths), first.predict(x, lengths))
