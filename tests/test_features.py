"""Joint feature maps: the score is linear in the weights, with the joint features as coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from oracles import chain as chain_oracle
from torch import Tensor, nn

import structlearn as sl
from structlearn.errors import ArgumentError, LabelError, ShapeError
from structlearn.features import (
    ChainMap,
    FeatureMap,
    MulticlassMap,
    SegmentMap,
    SparseSegmentMap,
    TagSpanMap,
    TaxonomyMap,
)


def randomised(feature_map: FeatureMap) -> FeatureMap:
    for p in feature_map.parameters():
        nn.init.normal_(p)
    return feature_map.double()


X = torch.randn(4, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LENGTHS = torch.tensor([5, 3, 1, 0])
LATTICE = sl.Taxonomy([(), 0, 0, (1, 2), 2])
CASES: dict[str, tuple[FeatureMap, Tensor, Tensor, Tensor | None]] = {
    "multiclass": (MulticlassMap(3, 4), X[:, 0], torch.tensor([0, 3, 2, 1]), None),
    "taxonomy": (TaxonomyMap(3, sl.Taxonomy([(), 0, 0, 1, 1, 2])), X[:, 0], torch.tensor([0, 2, 1, 1]), None),
    "lattice": (TaxonomyMap(3, LATTICE, beta=torch.rand(2, 5)), X[:, 0], torch.tensor([0, 1, 1, 0]), None),
    "chain": (ChainMap(3, 4), X, torch.randint(0, 4, (4, 5)), LENGTHS),
    "chain_eta": (ChainMap(3, 4, eta=0.3), X, torch.randint(0, 4, (4, 5)), LENGTHS),
    "chain_window": (ChainMap(3, 4, window=2), X, torch.randint(0, 4, (4, 5)), LENGTHS),
    "chain_second": (ChainMap(3, 4, order=2), X, torch.randint(0, 4, (4, 5)), LENGTHS),
    "chain_input": (ChainMap(3, 4, input_transitions=True), X, torch.randint(0, 4, (4, 5)), LENGTHS),
    "segment": (
        SegmentMap(3, 2, 3, eta=0.7),
        X,
        torch.tensor([[2, -1, 0, 3, -1], [4, -1, -1, 0, 0], [1, 0, 0, 0, 0], [0] * 5]),
        LENGTHS,
    ),
    "chain_encoder": (ChainMap(6, 4, encoder=nn.Linear(3, 6)), X, torch.randint(0, 4, (4, 5)), LENGTHS),
}


@pytest.mark.parametrize("name", CASES)
def test_score_is_the_product_of_weights_and_joint_features(name: str) -> None:
    feature_map, x, y, lengths = CASES[name]
    feature_map = randomised(feature_map)
    joint = feature_map.joint(x, y, lengths)
    assert joint.shape == (4, feature_map.weights().numel())
    torch.testing.assert_close(joint @ feature_map.weights(), feature_map(x, lengths).score(y))


@pytest.mark.parametrize("name", CASES)
def test_joint_features_are_the_gradient_of_the_score(name: str) -> None:
    """Without one backward pass an instance, and whatever padded places hold."""
    feature_map, x, y, lengths = CASES[name]
    feature_map = randomised(feature_map)
    expected = torch.cat([part.flatten(1) for part in FeatureMap.histograms(feature_map, x, y, lengths)], 1)
    x, y = x.clone(), y.clone()
    for b, n in enumerate([] if lengths is None else lengths.tolist()):
        x[b, n:], y[b, n:] = torch.nan, -100
    joint = feature_map.joint(x, y, lengths)
    assert not joint.requires_grad
    torch.testing.assert_close(joint, expected)
    assert type(feature_map).histograms is not FeatureMap.histograms


@pytest.mark.parametrize("name", CASES)
def test_joint_features_of_nothing(name: str) -> None:
    feature_map, x, y, _ = CASES[name]
    feature_map = randomised(feature_map)
    size = feature_map.weights().numel()
    assert feature_map.joint(x[:0], y[:0]).shape == (0, size)
    if x.dim() == 3:
        assert feature_map.joint(x[:, :0], y[:, :0]).tolist() == [[0.0] * size] * 4


@pytest.mark.parametrize("name", CASES)
def test_joint_takes_one_output_an_instance(name: str) -> None:
    feature_map, x, y, lengths = CASES[name]
    feature_map = randomised(feature_map)
    with pytest.raises(ShapeError, match=r"y: expected .* got .* pass one output an instance"):
        feature_map.joint(x, torch.stack([y, y]), lengths)
    with pytest.raises(LabelError, match="y: "):
        feature_map.joint(x, torch.full_like(y, 1000), lengths)


def test_chain_features_are_the_ones_written_in_the_docstring() -> None:
    feature_map = randomised(ChainMap(3, 4, eta=0.5))
    y = torch.tensor([[0, 3, 3, 1, 2]] * 4)
    joint = feature_map.joint(X, y, LENGTHS)
    for b, n in enumerate(LENGTHS.tolist()):
        emission, transition = np.zeros((4, 3)), np.zeros((4, 4))
        for t in range(n):
            emission[y[b, t]] += X[b, t].numpy()
            if t:
                transition[y[b, t - 1], y[b, t]] += 0.5
        np.testing.assert_allclose(joint[b].detach().numpy(), np.concatenate([emission.ravel(), transition.ravel()]))


def test_windows_are_zero_beyond_the_ends_and_ignore_padding() -> None:
    feature_map = randomised(ChainMap(3, 2, window=1))
    x = X.clone()
    for b, n in enumerate(LENGTHS.tolist()):
        x[b, n:] = torch.nan
    unary = feature_map(x, LENGTHS).unary  # type: ignore[union-attr]
    weight = feature_map.get_parameter("emission").view(2, 3, 3)
    zero = torch.zeros(3, dtype=torch.float64)
    for b, n in enumerate(LENGTHS.tolist()):
        for t in range(n):
            around = torch.stack([x[b, s] if 0 <= s < n else zero for s in (t - 1, t, t + 1)])
            torch.testing.assert_close(unary[b, t], torch.einsum("cwf,wf->c", weight, around))


GRAMMAR = sl.Grammar([(0, 0, 0), (0, 1, 1), (0, 0, 1)], 1, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChainMap(3, 2),
        lambda: ChainMap(3, 2, window=1),
        lambda: ChainMap(3, 2, input_transitions=True),
        lambda: sl.features.SegmentMap(3, 2, 2),
        lambda: sl.features.RuleMap(GRAMMAR, 3),
        lambda: sl.features.SpanScorerMap(3, 2, hidden=4),
    ],
)
def test_nan_in_padding_does_not_reach_gradients(make: Any) -> None:
    feature_map = randomised(make())
    found = []
    for padding in (0.0, torch.nan):
        x = X.clone()
        for b, n in enumerate(LENGTHS.tolist()):
            x[b, n:] = padding
        value = feature_map(x, LENGTHS).log_partition().sum()
        found.append(torch.autograd.grad(value, list(feature_map.parameters())))
    for plain, with_nan in zip(*found, strict=True):
        assert torch.equal(plain, with_nan)


def test_a_flat_taxonomy_is_the_multiclass_map() -> None:
    flat, plain = randomised(TaxonomyMap(3, sl.Taxonomy.flat(4))), randomised(MulticlassMap(3, 4))
    plain.load_state_dict(flat.state_dict())
    torch.testing.assert_close(flat(X[:, 0]).scores, plain(X[:, 0]).scores)  # type: ignore[union-attr]
    y = torch.tensor([0, 1, 2, 3])
    torch.testing.assert_close(flat.joint(X[:, 0], y), plain.joint(X[:, 0], y))


def test_taxonomy_classes_share_the_nodes_above_them() -> None:
    """Lambda(y) of the lattice 0 above 1 and 2, node 3 under both, node 4 under 2."""
    assert LATTICE.classes == (3, 4)
    assert LATTICE.ancestors().int().tolist() == [[1, 1, 1, 1, 0], [1, 0, 1, 0, 1]]
    assert LATTICE.distance().tolist() == [[0, 1], [1, 0]]
    assert sl.Taxonomy.flat(3).distance().tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_gradients_reach_the_encoder() -> None:
    encoder = nn.Linear(3, 6).double()
    feature_map = randomised(ChainMap(6, 4, encoder=encoder))
    sl.CRFLoss()(feature_map(X[:3], LENGTHS[:3]), torch.zeros(3, 5, dtype=torch.int64)).backward()
    assert encoder.weight.grad is not None
    assert encoder.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_second_order_chain_against_enumeration(backend: str) -> None:
    unary, transition, second = (torch.randn(*s, dtype=torch.float64) for s in ((4, 5, 3), (3, 3), (3, 3, 3)))
    start = torch.randn(3, dtype=torch.float64)
    for b, n in enumerate(LENGTHS.tolist()):
        unary[b, n:] = torch.nan
    chain = sl.SecondOrderChain(unary, transition, second, start=start, lengths=LENGTHS, backend=backend)
    first = chain_oracle.rows(unary.numpy(), transition.numpy(), start.numpy(), None, LENGTHS.tolist())
    best = chain.argmax()
    for b, row in enumerate(first):
        extra = [sum(float(second[y[t - 2], y[t - 1], y[t]]) for t in range(2, len(y))) for y in row.outputs]
        scores = row.scores + np.array(extra)
        n = int(LENGTHS[b])
        assert tuple(best[b, :n].tolist()) == row.outputs[int(scores.argmax())]
        np.testing.assert_allclose(chain.max()[b].item(), scores.max())
        np.testing.assert_allclose(chain.log_partition()[b].item(), np.log(np.exp(scores).sum()))
        assert chain.count()[b] == 3**n
        p = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(chain.entropy()[b].item(), -(p * np.log(p)).sum(), atol=1e-9)
    marginals = chain.marginals()
    torch.testing.assert_close(marginals.unary.sum(), LENGTHS.sum().double())
    torch.testing.assert_close(marginals.second.sum(), (LENGTHS - 2).clamp(min=0).sum().double())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: ChainMap(3, 4)(torch.randn(2, 5, 4)),
            ShapeError,
            r"x: expected \(B, N, 3\) after the encoder, got \(2, 5, 4\)",
        ),
        (lambda: ChainMap(3, 4, order=3), ArgumentError, "order: expected 1 or 2, got 3"),
        (lambda: ChainMap(3, 4, window=-1), ArgumentError, "window"),
        (lambda: ChainMap(3, 4, order=2, input_transitions=True), ArgumentError, "input_transitions"),
        (
            lambda: TaxonomyMap(3, LATTICE, beta=torch.ones(5, 2)),
            ShapeError,
            r"beta: expected \(K, Z\) = \(2, 5\), got \(5, 2\)",
        ),
        (lambda: sl.SecondOrderChain(torch.randn(1, 2, 3), torch.randn(3, 3), torch.randn(3, 3)), ShapeError, "second"),
    ],
)
def test_bad_arguments(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_sparse_segments_are_dense_ones_with_begins_and_ends() -> None:
    torch.manual_seed(0)
    feature_map = randomised(SparseSegmentMap(6, 2, 3, sparse=False))
    ids, lengths = torch.randint(0, 6, (3, 5, 2)), torch.tensor([5, 3, 1])
    y = torch.tensor([[2, -1, 0, 3, -1], [4, -1, -1, -100, -100], [1, -100, -100, -100, -100]])
    table, width, transition = (p.detach() for p in feature_map.head_parameters())
    expected = []
    for row, sequence in zip(ids.tolist(), y.tolist(), strict=True):
        total, previous = 0.0, None
        for t, code in enumerate(sequence):
            if code < 0:
                continue
            w, c = divmod(code, 2)
            places = [(t, c), *((i, 2 + c) for i in range(t, t + w + 1)), (t + w, 4 + c)]
            total += sum(float(table[j, column]) for i, column in places for j in row[i] if j > 0) + float(width[w, c])
            total += 0.0 if previous is None else float(transition[previous, c])
            previous = c
        expected.append(total)
    torch.testing.assert_close(feature_map(ids, lengths).score(y), torch.tensor(expected, dtype=torch.float64))


def test_spans_are_scored_by_the_tags_at_their_ends_and_beside_them() -> None:
    torch.manual_seed(0)
    feature_map = randomised(TagSpanMap(4, 3, max_width=2))
    inner, outer, width = (p.detach() for p in feature_map.head_parameters())
    tags, lengths = torch.randint(0, 4, (2, 4)), [4, 2]
    spans = feature_map(tags, lengths).spans
    for b, n in enumerate(lengths):
        own = tags[b, :n].tolist()
        around = [4, *own, 4]
        for i in range(n):
            for j in range(i, n):
                found = inner[own[i], own[j]] + outer[around[i], around[j + 2]] + width[min(j - i, 1)]
                torch.testing.assert_close(spans[b, i, j], found)
