"""Random constraints on random chains, every query on every path, against enumeration in plain Python."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st
from oracles import constraints as oracle
from oracles.costs import segment_f1, violation
from torch import Tensor

import structlearn as sl
from structlearn import constraints as sc
from structlearn.errors import InfeasibleError, InferenceError, LabelError
from structlearn.structures.base import PAD

NAMES = "OAB"
Pair = tuple[sc.Constraint, oracle.Test]


def labels(draw: random.Random) -> list[str]:
    return draw.sample(NAMES, draw.randint(1, 2))


def atom(draw: random.Random) -> Pair:
    kind = draw.choice(["count", "implies", "forbid", "require", "regular", "linear", "placed", "allowed", "overlap"])
    first, then, k = labels(draw), labels(draw), draw.randint(0, 2)
    one, other = "".join(first), "".join(then)
    if kind == "count":
        word, low, high = draw.choice([("at_most", 0, k), ("at_least", k, 99), ("exactly", k, k)])
        return getattr(sc, word)(k, first), oracle.count(one, low, high)
    if kind == "implies":
        before = draw.random() < 0.5
        return sc.implies(first, then, before=before), oracle.implies(one, other, before=before)
    if kind == "forbid":
        return sc.forbid(first, then), oracle.forbid(one, other)
    if kind == "require":
        return sc.require(first, then), oracle.require(one, other)
    if kind == "regular":
        text = draw.choice(["O* A? .{1,2}", "(O | A B)*", "(A | B)+ O?", "(O|A){2,3} B*"])
        return sc.regular(text), oracle.regular(text.replace(" ", ""))
    sense, bound = draw.choice(["<=", ">=", "=="]), draw.choice([0.0, 1.0, 1.5, 2.0])
    holds = {"<=": bound.__ge__, ">=": bound.__le__, "==": bound.__eq__}[sense]
    if kind == "linear":
        weights = {label: draw.choice([1.0, 2.0, 0.5, -1.0]) for label in first}
        return sc.linear(weights, sense, bound), oracle.linear(lambda t, c: weights.get(c, 0.0), holds)
    if kind == "placed":
        place = draw.randint(0, 2)
        return (
            sc.linear({(place, first[0]): 2.0, then[0]: 1.0}, sense, bound),
            oracle.linear(lambda t, c: 2.0 * (t == place and c == first[0]) + (c == then[0]), holds),
        )
    if kind == "allowed":
        listed = ["".join(draw.choices(NAMES, k=draw.randint(0, 4))) for _ in range(8)]
        return sc.allowed([*listed, *listed[:3]]), oracle.listed(listed)
    return sc.no_overlap("O"), oracle.apart("O")


def compound(draw: random.Random) -> Pair:
    (a, one), (b, two), (c, three) = (atom(draw) for _ in range(3))
    kind = draw.randint(0, 3)
    if kind == 0:
        return a, one
    if kind == 1:
        return a & b, lambda y, s: one(y, s) and two(y, s)
    if kind == 2:
        return a | b, lambda y, s: one(y, s) or two(y, s)
    return (a | b) & c, lambda y, s: (one(y, s) or two(y, s)) and three(y, s)


class Problem(NamedTuple):
    """A batch under a constraint, and s'(y) of every allowed output of each row."""

    chain: sl.LinearChain
    spans: Tensor
    constraint: sc.Constraint
    rows: list[dict[oracle.Output, float]]

    def on(self, method: str) -> sc.Constrained:
        compiled = sc.Compiled(self.constraint, list(NAMES), method=method)  # type: ignore[arg-type]
        return sc.Constrained(self.chain, compiled, spans=self.spans)


def problem(seed: int) -> Problem:
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    size = draw.choice([0, 1, 2, 3, 4, 5])
    lengths = [size, 0, min(size, 1), draw.randint(0, size)]
    b, c = len(lengths), len(NAMES)
    unary, edges = normal(b, size, c), {"start": normal(c), "end": normal(c)}
    shared = draw.random() < 0.5
    transition = normal(c, c) if shared else normal(b, max(size - 1, 0), c, c)
    if draw.random() < 0.3:
        edges, transition = {}, torch.zeros(c, c, dtype=torch.float64)
    if draw.random() < 0.3 and size:
        unary[draw.randrange(b), draw.randrange(size), draw.randrange(c)] = -torch.inf
    for row, n in enumerate(lengths):
        unary[row, n:] = torch.nan
        if transition.dim() == 4:
            transition[row, max(n - 1, 0) :] = torch.nan
    spans = torch.randint(0, 6, (b, size, 2), generator=generator).sort(-1).values
    chain = sl.LinearChain(unary, transition, **edges, lengths=torch.tensor(lengths))
    hard, test = compound(draw)
    soft, penalties = [], []
    for _ in range(draw.randint(0, 2)):
        constraint, other = atom(draw)
        price = round(draw.random(), 2)
        soft.append(sc.soft(constraint, price))
        penalties.append((other, price))
    whole = hard
    for part in soft:
        whole = whole & part
    rows = []
    for row, n in enumerate(lengths):
        steps = transition if transition.dim() == 2 else transition[row, : max(n - 1, 0)]
        arrays = {name: x.numpy() for name, x in edges.items()}
        ends = spans[row, :n].tolist()
        scores = oracle.scored(NAMES, unary[row, :n].numpy(), steps.numpy(), ends, [test], penalties, **arrays)
        rows.append(scores)
    return Problem(chain, spans, whole, rows)


def methods(constraint: sc.Constraint) -> list[str]:
    regular = not constraint.needs_spans and sc.Compiled(constraint, list(NAMES)).automaton is not None
    return ["auto", "enumeration", "ilp", *(["automaton"] if regular else [])]


def word(y: Tensor) -> oracle.Output:
    return tuple(NAMES[c] for c in y.tolist() if c >= 0)


def code(y: oracle.Output, size: int, fill: int) -> list[int]:
    return [*(NAMES.index(label) for label in y), *[fill] * (size - len(y))]


def finite(scores: dict[oracle.Output, float]) -> dict[oracle.Output, float]:
    return {y: score for y, score in scores.items() if score > -np.inf}


@pytest.mark.parametrize("seed", range(60))
def test_best_outputs_and_scores(seed: int) -> None:
    given = problem(seed)
    tops = [max(finite(row).values(), default=-np.inf) for row in given.rows]
    size = given.chain.unary.shape[1]
    draws = [list(oracle.outputs(NAMES, int(n)))[:: max(1, len(NAMES) ** int(n) // 20)] for n in given.chain.lengths]
    for method in methods(given.constraint):
        s = given.on(method)
        np.testing.assert_allclose(s.max(), tops)
        solution = s.solve()
        np.testing.assert_allclose(solution.score, tops)
        assert bool(solution.optimal.all())
        for y, top, row in zip(solution.y, tops, given.rows, strict=True):
            if top > -np.inf:
                assert row[word(y)] == pytest.approx(top)
            else:
                assert (y == PAD).all()
        if min(tops) == -np.inf:
            with pytest.raises(InfeasibleError):
                s.argmax()
        for k in range(max(map(len, draws))):
            outputs = [row[k % len(row)] for row in draws]
            y = torch.tensor([code(o, size, 10**6) for o in outputs], dtype=torch.int64).view(len(outputs), size)
            expected = [row.get(o, -np.inf) for row, o in zip(given.rows, outputs, strict=True)]
            np.testing.assert_allclose(s.score(y), expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(60, 120))
def test_sums_and_k_best(seed: int) -> None:
    given = problem(seed)
    rows = [finite(row) for row in given.rows]
    totals = [np.logaddexp.reduce(list(row.values())) if row else -np.inf for row in rows]
    shares = [{y: np.exp(x - z) for y, x in row.items()} for row, z in zip(rows, totals, strict=True)]
    for method in methods(given.constraint):
        s = given.on(method)
        if s.path == "ilp":
            with pytest.raises(InferenceError, match="solved as a 0/1 program"):
                s.log_partition()
            continue
        np.testing.assert_allclose(s.log_partition(), totals)
        np.testing.assert_allclose(s.count(), [len(row) for row in rows])
        entropies = [-sum(p * np.log(p) for p in share.values()) for share in shares]
        np.testing.assert_allclose(s.entropy(), entropies, atol=1e-9)
        marginals = s.marginals().unary
        expected = np.zeros(marginals.shape)
        for b, share in enumerate(shares):
            for y, p in share.items():
                for t, label in enumerate(y):
                    expected[b, t, NAMES.index(label)] += p
        np.testing.assert_allclose(marginals, expected, atol=1e-9)
        best, scores = s.topk(4)
        for b, row in enumerate(rows):
            top = sorted(row.values(), reverse=True)[:4]
            np.testing.assert_allclose(scores[:, b], [*top, *[-np.inf] * (4 - len(top))])
            words = [word(y) for y in best[: len(top), b]]
            assert len(set(words)) == len(top)
            np.testing.assert_allclose([row[y] for y in words], top)
        for y, row in zip(s.sample(8).transpose(0, 1), rows, strict=True):
            assert not row or {word(one) for one in y} <= row.keys()


@pytest.mark.parametrize("rescaling", ["margin", "slack"])
@pytest.mark.parametrize("seed", range(120, 160))
def test_the_most_violated_output(seed: int, rescaling: Any) -> None:
    given = problem(seed)
    rows, size = [finite(row) for row in given.rows], given.chain.unary.shape[1]
    golds = [min(row, key=lambda y: row[y]) if row else None for row in rows]
    if None in golds:
        gold = torch.zeros(len(rows), size, dtype=torch.int64)
        for method in methods(given.constraint):
            with pytest.raises(LabelError, match=f"batch row {golds.index(None)}|score -inf"):
                sl.StructuredHinge(sl.costs.Hamming(), rescaling=rescaling)(given.on(method), gold)
        return
    gold = torch.tensor([code(y, size, -7) for y in golds if y is not None], dtype=torch.int64).view(len(rows), size)

    def violation(row: dict[oracle.Output, float], right: oracle.Output, y: oracle.Output) -> float:
        delta, difference = sum(a != b for a, b in zip(right, y, strict=True)), row[y] - row[right]
        return delta + difference if rescaling == "margin" else delta * (1.0 + difference)

    expected = [max(violation(row, right, y) for y in row) for row, right in zip(rows, golds, strict=True)]  # type: ignore[arg-type]
    for method in methods(given.constraint):
        s = given.on(method)
        loss = sl.StructuredHinge(sl.costs.Hamming(), rescaling=rescaling, reduction="none")
        if s.path == "ilp" and rescaling == "slack":
            with pytest.raises(ValueError, match="counting under this constraint"):
                loss(s, gold)
            continue
        np.testing.assert_allclose(loss(s, gold), expected, atol=1e-9)
        np.testing.assert_allclose(sl.PerceptronLoss(reduction="none")(s, gold), s.max() - s.score(gold), atol=1e-9)


ODD_NAMES = ["O", "it's", 'a "quote"', "Ä", "3", "x\\y"]
_label = st.sampled_from([*ODD_NAMES, *range(len(ODD_NAMES))])
_labels = st.one_of(_label, st.lists(_label, min_size=1, max_size=3))
_count = st.integers(0, 3)
_number = st.floats(-1e9, 1e9, allow_nan=False)
_key = st.one_of(_label, st.tuples(_count, _label))
_step = st.lists(st.integers(-1, 2), min_size=len(ODD_NAMES), max_size=len(ODD_NAMES))
_dfa = st.builds(
    sc.DFA,
    st.lists(_step, min_size=3, max_size=3),
    start=st.integers(0, 2),
    accept=st.lists(st.integers(0, 2), max_size=3),
)
_atoms = st.one_of(
    st.builds(sc.everything),
    st.builds(sc.no_overlap, _labels),
    *(st.builds(make, _count, _labels) for make in (sc.at_most, sc.at_least, sc.exactly)),
    st.builds(sc.implies, _labels, _labels, before=st.booleans()),
    st.builds(sc.forbid, _labels, _labels),
    st.builds(sc.require, _labels, _labels),
    st.builds(sc.regular, st.sampled_from(["O* 3 | Ä{1,2} .", "(O | it's)+ x\\y?"])),
    st.builds(sc.regular, _dfa),
    st.builds(
        sc.linear,
        st.dictionaries(_key, _number, min_size=1, max_size=3),
        st.sampled_from(["<=", ">=", "=="]),
        _number,
    ),
    st.builds(sc.allowed, st.lists(st.lists(_label, max_size=3), min_size=1, max_size=6)),
)
_hard = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
    ),
    max_leaves=4,
)
_softened = st.builds(
    lambda hard, inner, price: hard & sc.soft(inner, price), _hard, _hard, st.floats(0, 1e9, allow_nan=False)
)


@examples(st.one_of(_hard, _softened))
def test_every_constraint_is_read_back_from_its_text(constraint: sc.Constraint) -> None:
    again = sc.parse(repr(constraint))
    assert repr(again) == repr(constraint)
    names = sc.Labels(ODD_NAMES)
    y = np.array(list(np.ndindex((len(ODD_NAMES) + 1,) * 2)))
    y = y[(y[:, 0] < names.count) | (y[:, 1] == names.count)]  # padding comes last
    spans = sc.language.Spans(np.array([[[0, 1], [1, 2]]]))
    for one, other in zip(sc.language.walk(constraint), sc.language.walk(again), strict=True):
        np.testing.assert_array_equal(one.satisfied(y, names, spans), other.satisfied(y, names, spans))


def test_long_lists_are_cut_in_messages_alone() -> None:
    listed = sc.allowed([[f"label{i}"] for i in range(100)])
    assert "label99" in repr(listed)
    assert len(f"{listed}") < 250
    assert f"{listed}".endswith(" ...")


def test_an_automaton_judges_instances_without_positions_by_its_first_state() -> None:
    chain = sl.LinearChain(torch.zeros(2, 2, 2), torch.zeros(2, 2), lengths=torch.tensor([2, 0]))
    some = sc.DFA([[1, 1], [1, 1]], accept=[1])(chain)
    assert some.max().tolist() == [0.0, -np.inf]
    assert some.count().tolist() == [4.0, 0.0]
    assert some.log_partition().tolist()[1] == -np.inf
    assert some.entropy().tolist()[1] == 0.0
    with pytest.raises(InfeasibleError, match=r"batch rows \[1\]"):
        some.argmax()
    gold = torch.zeros(2, 2, dtype=torch.int64)
    with pytest.raises(LabelError, match="batch row 1, which ends in a state that does not accept"):
        sl.CRFLoss()(some, gold)
    priced = sc.DFA([[1, 1], [1, 1]], accept=[0, 1])(chain, torch.tensor([-0.5, 0.25]))
    assert priced.max().tolist() == priced.score(gold).tolist() == [0.25, -0.5]
    assert priced.max_by_count(sl.costs.Hamming().counted(priced, gold).counter).table[1].tolist()[0] == -0.5  # type: ignore[union-attr]


@pytest.mark.parametrize("rescaling", ["margin", "slack"])
@pytest.mark.parametrize(
    ("constraint", "test"),
    [
        (sc.exactly(1, "B-X"), oracle.count("X", 1, 1)),
        (sc.allowed([["O"] * 3, ["B-X", "I-X", "O"], ["O", "B-X", "I-X"], ["B-X"], ["B-X"]]), None),
    ],
)
def test_segments_under_constraints(constraint: sc.Constraint, test: Any, rescaling: Any) -> None:
    """F1 of segments, which counts on the automaton and looks through a list."""
    tags, letters = ["O", "B-X", "I-X"], "OXI"
    test = test or oracle.listed(["OOO", "XIO", "OXI", "X"])
    unary = torch.randn(2, 3, 3, dtype=torch.float64)
    chain = sl.LinearChain(unary, torch.zeros(3, 3, dtype=torch.float64), lengths=torch.tensor([3, 1]))
    s = sc.Constrained(chain, sc.Compiled(constraint, tags))
    gold = torch.tensor([[1, 2, 0], [1, 99, -3]])
    loss = sl.StructuredHinge(sl.costs.SegmentF1(tags), rescaling=rescaling, reduction="none")(s, gold)
    delta = segment_f1(tags)
    for b, n in enumerate((3, 1)):
        right = tuple(gold[b, :n].tolist())
        rows = oracle.scored(letters, unary[b, :n].numpy(), np.zeros((3, 3)), [], [test])
        codes = {tuple(letters.index(c) for c in y): score for y, score in rows.items()}
        values = [violation(delta(right, y), x - codes[right], rescaling, False) for y, x in codes.items()]
        assert float(loss[b]) == pytest.approx(max(values))
