"""Feature maps of trees: scores are products with joint features, which count rules and sum over spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import structlearn as sl
from structlearn.errors import ArgumentError, LabelError, ShapeError
from structlearn.features import FeatureMap, RuleMap, SpanScorerMap

GRAMMAR = sl.Grammar([[0, 1, 2], [1, 3, 4], [2, 5, 1], [2, 5, 4], [1, 1, 1]], ("S", "NP", "VP"), ("D", "N", "V"))
LENGTHS = torch.tensor([5, 4, 1, 0])
TAGS = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 1, -100], [1, -100, -100, -100, -100], [-100] * 5])
X = torch.randn(4, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def randomised(feature_map: FeatureMap) -> FeatureMap:
    for p in feature_map.parameters():
        nn.init.normal_(p)
    return feature_map.double()


CASES: dict[str, tuple[FeatureMap, Tensor]] = {
    "tags": (RuleMap(GRAMMAR), TAGS),
    "ambiguous_tags": (RuleMap(GRAMMAR, tags=torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 1]])), TAGS),
    "features": (RuleMap(GRAMMAR, 3), X),
    "encoded": (RuleMap(GRAMMAR, 4, encoder=nn.Linear(3, 4)), X),
    "biaffine": (SpanScorerMap(3, 2, hidden=4), X),
    "mlp": (SpanScorerMap(3, 2, scorer="mlp", hidden=4), X),
    "biaffine_encoded": (SpanScorerMap(6, 2, hidden=4, encoder=nn.Linear(3, 6)), X),
}


@pytest.mark.parametrize("name", CASES)
def test_score_is_the_product_of_weights_and_joint_features(name: str) -> None:
    feature_map, x = CASES[name]
    feature_map = randomised(feature_map)
    structure: Any = feature_map(x, LENGTHS)
    y = structure.sample(1, torch.Generator().manual_seed(0))[0]
    joint = feature_map.joint(x, y, LENGTHS)
    assert joint.shape == (4, feature_map.weights().numel())
    torch.testing.assert_close(joint @ feature_map.weights(), structure.score(y))


def test_joint_features_of_a_derivation_are_its_histogram() -> None:
    feature_map = randomised(RuleMap(GRAMMAR))
    structure: Any = feature_map(TAGS, LENGTHS)
    joint = feature_map.joint(TAGS, structure.argmax(), LENGTHS)
    assert joint[0].tolist() == [1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 2, 2, 1]
    assert joint[1].tolist() == [1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 2, 1]
    assert joint[2].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0]
    assert joint[3].tolist() == [0] * 14


def test_roots_are_restricted() -> None:
    roots = torch.tensor([True, False, False, False, False, False])
    structure: Any = RuleMap(GRAMMAR, roots=roots)(TAGS[:3], LENGTHS[:3])
    assert structure.max().tolist() == [0.0, 0.0, float("-inf")]


@pytest.mark.parametrize("scorer", ["biaffine", "mlp"])
def test_span_scores_are_the_ones_written_in_the_docstring(scorer: Any) -> None:
    feature_map: Any = randomised(SpanScorerMap(3, 2, scorer=scorer, hidden=4))
    x = X.clone()
    for b, n in enumerate(LENGTHS.tolist()):
        x[b, n:] = torch.nan
    spans = feature_map(x, LENGTHS).spans
    zero = torch.zeros(3, dtype=torch.float64)
    for b, n in enumerate(LENGTHS.tolist()):

        def post(k: int, b: int = b, n: int = n) -> Tensor:
            return torch.cat([x[b, k - 1] if k > 0 else zero, x[b, k] if k < n else zero])

        for i in range(n):
            for j in range(i, n):
                left, right = feature_map.left(post(i)), feature_map.right(post(j + 1))
                if scorer == "mlp":
                    expected = feature_map.weight @ (left + right).relu() + feature_map.bias
                else:
                    left, right = (torch.cat([z.relu(), torch.ones(1).double()]) for z in (left, right))
                    expected = torch.stack([left @ u @ right for u in feature_map.bilinear])
                np.testing.assert_allclose(spans[b, i, j].detach(), expected.detach(), atol=1e-12)


def test_gradients_reach_the_encoder_under_a_slack_rescaled_loss() -> None:
    encoder = nn.Linear(3, 6)
    feature_map: Any = randomised(SpanScorerMap(6, 2, hidden=4, encoder=encoder))
    gold = sl.SpanTree(torch.randn(2, 5, 5, 2), lengths=LENGTHS[:2]).argmax()
    loss = sl.StructuredHinge(sl.costs.BracketF1(), rescaling="slack")
    loss(feature_map(X[:2], LENGTHS[:2]), gold).backward()
    assert encoder.weight.grad is not None
    assert float(encoder.weight.grad.abs().sum()) > 0


def test_a_rule_map_learns_to_attach() -> None:
    """V D N D N: the last NP goes into the first one or beside it; only the rule weights can tell."""
    grammar = sl.Grammar([[0, 3, 1], [1, 1, 1], [0, 0, 1], [1, 4, 5]], ("S", "NP"), ("X", "V", "D", "N"))
    feature_map = RuleMap(grammar, roots=torch.tensor([True] + [False] * 5))
    tags = torch.tensor([[1, 2, 3, 2, 3]])
    both, _ = feature_map(tags).topk(2)
    optimiser = torch.optim.SGD(feature_map.parameters(), lr=0.2)
    for gold in (both[0], both[1]):
        for _ in range(40):
            optimiser.zero_grad()
            sl.StructuredHinge(sl.costs.BracketF1())(feature_map(tags), gold).backward()
            optimiser.step()
        assert torch.equal(feature_map(tags).argmax(), gold)


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="scorer"):
        SpanScorerMap(3, 2, scorer="dot")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="in_features"):
        RuleMap(GRAMMAR, encoder=nn.Linear(2, 3))
    with pytest.raises(ShapeError, match=r"tags: expected \(T, P\) with P=3"):
        RuleMap(GRAMMAR, tags=torch.ones(2, 2))
    with pytest.raises(ShapeError, match=r"roots: expected \(S,\) with S=6"):
        RuleMap(GRAMMAR, roots=torch.ones(2))
    with pytest.raises(LabelError, match=r"x: expected tags in 0\.\.2 .* got 7 at \(0, 1\)"):
        RuleMap(GRAMMAR)(torch.tensor([[0, 7]]))
    with pytest.raises(ShapeError, match=r"x: expected \(B, N\) tags"):
        RuleMap(GRAMMAR)(X)


def test_a_derivation_of_no_words_has_no_features() -> None:
    feature_map = sl.features.RuleMap(sl.Grammar([(0, 0, 0), (0, 1, 1)], 1, 1))
    words, chart = (torch.zeros(size, dtype=torch.int64) for size in ((2, 0), (2, 0, 0)))
    found = feature_map.joint(words, chart)
    assert found.shape == (2, len(feature_map.weights()))
    assert not found.any()
