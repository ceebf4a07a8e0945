"""Learning as search: traces worked out by hand, a plain reference, bounds, averages."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import structlearn as sl
from structlearn.errors import ArgumentError, InfeasibleError
from structlearn.search import (
    ALMA,
    BeamSearchLoss,
    ChunkingSpace,
    JointScores,
    JointSpace,
    Perceptron,
    SearchSpace,
    TaggingSpace,
    beam_search,
)
from structlearn.search.comparison import compare
from structlearn.search.good_path import good_path
from structlearn.search.queue import initial_node, successors
from structlearn.search.updates import Update
from structlearn.search.violations import Violations, laso, lattice

GOLD = torch.tensor([[1, 1]])


def weights(n: int = 2, c: int = 2) -> tuple[Tensor, Tensor]:
    unary = torch.zeros(1, n, c, dtype=torch.float64, requires_grad=True)
    return unary, torch.zeros(c, c, dtype=torch.float64, requires_grad=True)


def learn(update: Update, unary: Tensor, transition: Tensor, gold: Tensor, beam: int) -> Violations:
    """The algorithm as published: weights move at every error, and the search goes on under them."""

    def rescore(found: Violations) -> tuple[TaggingSpace, float]:
        update(found)
        return TaggingSpace(unary, transition), update.margin

    return laso(TaggingSpace(unary, transition), gold, beam, margin=update.margin, rescore=rescore)


def test_perceptron_by_hand() -> None:
    # All scores 0, so label 0 comes first. Layer 1: (0) is kept, (1) was right: +-1 on unary[0]; restart from (1).
    # Layer 2: (1, 0) is taken for the goal, (1, 1) was right: +-1 on unary[1] and transition[1]; unary[0] cancels.
    unary, transition = weights()
    found = learn(Perceptron([unary, transition]), unary, transition, GOLD, 1)
    assert unary.tolist() == [[[-1, 1], [-1, 1]]]
    assert transition.tolist() == [[0, 0], [-1, 1]]
    assert (found.errors.tolist(), found.lost.tolist(), found.first.tolist()) == ([2], [2], [1])


def test_a_queue_of_two_by_hand() -> None:
    # (0) and (1) are kept; of (0,0), (0,1), (1,0), (1,1), all 0, the first two: half of each is taken off.
    unary, transition = weights()
    found = learn(Perceptron([unary, transition]), unary, transition, GOLD, 2)
    assert unary.tolist() == [[[-1, 1], [-0.5, 0.5]]]
    assert transition.tolist() == [[-0.5, -0.5], [0, 1]]
    assert found.first.tolist() == [2]


def test_alma_by_hand() -> None:
    # Δ1 = (-1, 1) on unary[0], |Δ1| = √2: w = Δ1, projected to Δ1/√2. Δ2 has four entries ±1, |Δ2| = 2, and is added
    # with step √2/√2 as Δ2/2: |w|² = 1 + 1, so all is divided by √2.
    unary, transition = weights()
    update = ALMA([unary, transition])
    assert update.margin == pytest.approx(0.1 / 0.9)
    learn(update, unary, transition, GOLD, 1)
    assert update.margin * update.scale == pytest.approx(0.1 / 0.9 / math.sqrt(3))
    update.fold()
    assert update.scale == 1
    torch.testing.assert_close(unary[0, 0].tolist(), [-0.5, 0.5])
    torch.testing.assert_close(unary[0, 1].tolist(), [-(8**-0.5), 8**-0.5])
    torch.testing.assert_close(transition[1].tolist(), [-(8**-0.5), 8**-0.5])


def test_alma_counts_errors_by_hand() -> None:
    # Examples are one word each, with a feature of their own, so e errors give |Δ| = √(2e).
    x, weight = torch.eye(2, dtype=torch.float64)[:, None], torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    none = torch.zeros(2, 2, dtype=torch.float64)
    update = ALMA([weight], count="errors")

    def step(rows: list[int], labels: list[int]) -> None:
        gold = torch.tensor(labels)[:, None]
        update(laso(TaggingSpace(x[rows] @ weight, none), gold, 1, margin=update.margin))
        update.fold()

    step([0, 1], [1, 1])  # k = 2, step √2 √(2/2) along Δ/2, and back onto the unit ball
    torch.testing.assert_close(weight.tolist(), [[-0.5, 0.5], [-0.5, 0.5]])
    assert update.margin == pytest.approx(0.1 / 0.9 / math.sqrt(3))
    step([0, 1], [0, 0])  # k = 4, step √2 √(2/4) along Δ/2
    torch.testing.assert_close(weight.tolist(), [[0.0, 0.0], [0.0, 0.0]])
    step([1], [1])  # k = 5, step √2 √(1/5) along Δ/√2
    torch.testing.assert_close(weight.tolist(), [[0.0, 0.0], [-(0.2**0.5), 0.2**0.5]])
    assert update.updates == 3
    again = ALMA([weight], count="errors")
    again.load_state_dict(update.state_dict())
    assert again.margin == update.margin == pytest.approx(0.1 / 0.9 / math.sqrt(6))


@pytest.mark.parametrize(("p", "count"), [(2.0, "updates"), (2.0, "errors"), (3.0, "updates"), (3.0, "errors")])
def test_alma_shortens_long_differences_alone(p: float, count: Any) -> None:
    """w <- P_q(f⁻¹(f(w) + C ((p-1) k)^(-1/2) P_p(Δ))), P onto the unit ball, for Δ inside it and outside."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    update, q = ALMA([weight], p=p, count=count), p / (p - 1)
    expected, k = torch.zeros(4, dtype=torch.float64), 0

    def link(x: Tensor, power: float) -> Tensor:
        size = x.norm(power)
        return x.sign() * x.abs() ** (power - 1) / size ** (power - 2) if float(size) else x

    for step, size in enumerate((0.3, 0.05, 4.0, 0.9, 1.5, 0.2)):
        delta = torch.randn(4, generator=generator, dtype=torch.float64)
        delta = delta * (size / delta.norm(p))
        errors = step % 3 + 1
        update(Violations((weight * delta).sum(), torch.tensor([errors]), torch.tensor([0]), torch.tensor([1])))
        as_many = errors if count == "errors" else 1
        k += as_many
        shortened = delta * min(1.0, math.sqrt(as_many) / size)
        moved = link(link(expected, q) + math.sqrt(2 / ((p - 1) * k)) * shortened, p)
        expected = moved / max(1.0, float(moved.norm(q)))
        torch.testing.assert_close(weight.detach() * update.scale, expected)


def test_shares_of_float64_scores_are_float64() -> None:
    unary = torch.tensor([[[3.0, 2.0, 1.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    space = TaggingSpace(unary, torch.zeros(4, 4, dtype=torch.float64))
    violations = laso(space, torch.tensor([[3]]), 3)
    assert torch.autograd.grad(violations.value, unary)[0].tolist() == [[[-1 / 3, -1 / 3, -1 / 3, 1.0]]]
    assert float(violations.value.detach()) == pytest.approx(-2.0, abs=1e-15)


def test_margin_makes_a_close_win_an_error() -> None:
    unary = torch.tensor([[[0.0, 0.05]]], requires_grad=True)
    space = TaggingSpace(unary, torch.zeros(2, 2))
    gold = torch.tensor([[1]])
    assert laso(space, gold, 2).errors.tolist() == [0]
    found = laso(space, gold, 2, margin=0.1)
    assert (found.errors.tolist(), found.lost.tolist()) == ([1], [0])
    assert torch.autograd.grad(found.value, unary)[0].tolist() == [[[-1, 1]]]


def reference(unary: Tensor, transition: Tensor, gold: Tensor, k: int) -> tuple[Tensor, Tensor, int]:
    """LaSO with perceptron updates for one example, hypotheses as lists of labels."""
    unary, transition, errors = unary.clone(), transition.clone(), 0
    n, c = unary.shape
    queue: list[list[int]] = [[]]

    def score(y: list[int]) -> float:
        total = 0.0
        for i, label in enumerate(y):
            total = total + float(unary[i, label] + (transition[y[i - 1], label] if i else 0.0))
        return total

    def move(y: list[int], by: float) -> None:
        for i, label in enumerate(y):
            unary[i, label] += by
            if i:
                transition[y[i - 1], label] += by

    for t in range(1, n + 1):
        right = gold[:t].tolist()
        queue = sorted(([*y, label] for y in queue for label in range(c)), key=lambda y: -score(y))[:k]
        if right not in queue or (t == n and queue[0] != right):
            nodes = queue[: queue.index(right)] if right in queue else queue
            errors += 1
            move(right, 1.0)
            for y in list(nodes):
                move(y, -1 / len(nodes))
            queue = [right]
    return unary, transition, errors


@pytest.mark.parametrize("k", [1, 3, 100])
def test_learning_equals_a_plain_reference(k: int) -> None:
    unary = torch.randn(1, 5, 3, dtype=torch.float64)
    transition = torch.randn(3, 3, dtype=torch.float64)
    for _ in range(6):
        gold = torch.randint(3, (1, 5))
        expected = reference(unary[0], transition, gold[0], k)
        unary, transition = unary.clone().requires_grad_(), transition.clone().requires_grad_()
        found = learn(Perceptron([unary, transition]), unary, transition, gold, k)
        torch.testing.assert_close(unary.detach()[0], expected[0])
        torch.testing.assert_close(transition.detach(), expected[1])
        assert int(found.errors) == expected[2]
        unary, transition = unary.detach(), transition.detach()


@pytest.mark.parametrize("strategy", ["laso", "early", "max_violation", "standard", "lattice"])
@pytest.mark.parametrize("recombine", [False, True])
def test_batch_equals_one_by_one(strategy: str, recombine: bool) -> None:
    unary = torch.randn(6, 6, 3, dtype=torch.float64)
    transition = torch.randn(3, 3, dtype=torch.float64)
    lengths = torch.tensor([6, 3, 1, 5, 6, 2])
    unary[torch.arange(6) >= lengths[:, None]] = torch.nan
    gold = torch.randint(3, (6, 6))

    def run(rows: slice, n: int) -> tuple[Violations, Tensor]:
        part = unary[rows, :n].clone().requires_grad_()
        space = TaggingSpace(part, transition, lengths=lengths[rows])
        options: dict[str, Any] = {"margin": 0.5, "recombine": recombine}
        if strategy == "laso":
            found = laso(space, gold[rows, :n], 2, **options)
        elif strategy == "lattice":
            found = lattice(space, gold[rows, :n], margin=0.5)
        else:
            found = compare(space, gold[rows, :n], 2, strategy=strategy, **options)  # type: ignore[arg-type]
        return found, torch.autograd.grad(found.value, part)[0]

    whole, grad = run(slice(None), 6)
    assert int(whole.errors.sum()) > 0
    for b, n in enumerate(lengths.tolist()):
        alone, part = run(slice(b, b + 1), n)
        assert torch.equal(part[0], grad[b, :n])
        assert not grad[b, n:].any()
        assert torch.equal(alone.errors[0], whole.errors[b])
        assert torch.equal(alone.lost[0], whole.lost[b])
        if int(alone.first[0]) < n:
            assert torch.equal(alone.first[0], whole.first[b])


@pytest.mark.parametrize("strategy", ["early", "max_violation", "standard"])
@pytest.mark.parametrize("kind", ["tagging", "chunking", "joint"])
def test_following_one_good_path_equals_searching_for_it(
    kind: str, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(1)
    lengths = torch.tensor([5, 1, 4, 3, 5, 2])
    shapes = {
        "tagging": [(6, 5, 3), (3, 3)],
        "chunking": [(6, 5, 2, 3), (4, 3), (6, 5, 4, 3)],
        "joint": [(6, 5, 4), (6, 5, 3), (5, 4), (4, 4), (4, 3), (5, 5, 3), (5, 5, 3)],
    }[kind]
    weights = [torch.randn(shape, generator=draw, requires_grad=True) for shape in shapes]

    def space() -> SearchSpace[Any]:
        if kind == "tagging":
            return TaggingSpace(weights[0], weights[1], lengths=lengths)
        if kind == "chunking":
            return ChunkingSpace(weights[0], weights[1], edges=weights[2], lengths=lengths)
        return JointSpace(JointScores(*weights), lengths=lengths)

    gold = beam_search(space(), 1).output
    with torch.no_grad():
        for weight in weights:
            weight += 0.7 * torch.randn(weight.shape, generator=draw)

    def run() -> tuple[Violations, tuple[Tensor, ...]]:
        found = compare(space(), gold, 2, strategy=strategy, margin=0.3)
        return found, torch.autograd.grad(found.value, weights, allow_unused=True, materialize_grads=True)

    found, grads = run()
    assert 0 < int(found.errors.sum()) < 6
    followed = good_path(space(), gold)
    assert followed is not None
    monkeypatch.setattr("structlearn.search.comparison.good_path", lambda *_: None)
    searched, others = run()
    for one, other in zip((*found, *grads), (*searched, *others), strict=True):
        torch.testing.assert_close(one, other)


def lowered_score(y: list[int], u: Any, v: Any, gold: list[int], margin: float) -> float:
    total = sum(u[i][c] + (v[y[i - 1]][c] if i else 0.0) for i, c in enumerate(y))
    return float(total) - margin * (y == gold[: len(y)])


@pytest.mark.parametrize("margin", [0.0, 0.7])
def test_lattice_equals_viterbi_columns(margin: float) -> None:
    # Prefixes as lists of labels: a column holds the best one that ends in each label.
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        unary = torch.randn(1, 5, 3, dtype=torch.float64, generator=draw, requires_grad=True)
        transition = torch.randn(3, 3, dtype=torch.float64, generator=draw, requires_grad=True)
        gold = torch.randint(3, (1, 5), generator=draw)

        u, v = unary[0].tolist(), transition.tolist()
        expected, right = torch.zeros(1, 5, 3, dtype=torch.float64), gold[0].tolist()
        score = partial(lowered_score, u=u, v=v, gold=right, margin=margin)
        queue: list[list[int]] = [[]]
        errors = 0
        for t in range(1, 6):
            good = right[:t]
            longer = [[*y, c] for y in queue for c in range(3)]
            best = [max((y for y in longer if y[-1] == c), key=score) for c in range(3)]
            queue = sorted(best, key=lambda y: -score(y))
            if good not in queue or (t == 5 and queue[0] != good):
                nodes = [y for y in queue if score(y) >= score(good) and y != good]
                for y, weight in [(good, 1.0), *((y, -1 / len(nodes)) for y in nodes)]:
                    for i, c in enumerate(y):
                        expected[0, i, c] += weight
                errors, queue = errors + 1, [good]
        found = lattice(TaggingSpace(unary, transition), gold, margin=margin)
        assert int(found.errors) == errors
        torch.testing.assert_close(torch.autograd.grad(found.value, unary)[0], expected)


def test_lattice_over_segments_errs_where_gold_is_not_the_argmax() -> None:
    segments, transition = torch.randn(6, 5, 3, 2), torch.randn(3, 2)
    space = ChunkingSpace(segments, transition, lengths=torch.tensor([5, 4, 1, 5, 3, 2]))
    best = beam_search(space, None, recombine=True).output
    assert not lattice(space, best).errors.any()
    other = torch.where(best >= 0, best // 2 * 2 + (best + 1) % 2, best)
    found = lattice(space, other)
    assert (found.errors > 0).all()
    assert float(found.value) < 0


def test_lattice_needs_states_with_equal_futures() -> None:
    with pytest.raises(ArgumentError, match=r"space: .*no keys"):
        lattice(Subset(torch.zeros(1, 4)), torch.tensor([[True, True, False, False]]))


def test_standard_with_exact_search_is_the_structured_perceptron() -> None:
    unary = torch.randn(5, 4, 3, dtype=torch.float64, requires_grad=True)
    transition = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    gold = torch.randint(3, (5, 4))
    found = compare(TaggingSpace(unary, transition), gold, None, strategy="standard", recombine=True)
    loss = sl.PerceptronLoss(reduction="sum")(sl.LinearChain(unary, transition), gold)
    torch.testing.assert_close(-found.value, loss)
    for ours, theirs in zip(
        torch.autograd.grad(-found.value, [unary, transition]),
        torch.autograd.grad(loss, [unary, transition]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_early_and_max_violation_by_hand() -> None:
    # Greedy. Paths of 0s: 1, then 6, then 5.5 against gold 1s: 0, 0, 4. Lost at layer 1; worst at layer 2, by 6.
    unary = torch.tensor([[[1.0, 0.0], [5.0, 0.0], [-0.5, 4.0]]], requires_grad=True)
    gold = torch.tensor([[1, 1, 1]])
    transition = torch.tensor([[0.0, -9.0], [-9.0, 0.0]])
    values = {}
    for strategy in ("early", "max_violation", "standard"):
        found = compare(TaggingSpace(unary, transition), gold, 1, strategy=strategy)  # type: ignore[arg-type]
        assert found.first.tolist() == [1]
        values[strategy] = float(found.value.detach())
    assert values == {"early": -1.0, "max_violation": -6.0, "standard": -1.5}


class Chosen(NamedTuple):
    taken: Tensor  # (B, K, A) bool


class Subset(SearchSpace[Chosen]):
    """Two of A items in any order: every order of the two in gold is a good path."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.batch_size, self.operators = scores.shape
        self.layers = 2

    def initial(self) -> Chosen:
        return Chosen(torch.zeros((self.batch_size, 1, self.operators), dtype=torch.bool))

    def expand(self, state: Chosen) -> Tensor:
        shut = state.taken | self.is_goal(state)[..., None]
        return self.scores[:, None].expand(state.taken.shape).masked_fill(shut, -torch.inf)

    def advance(self, state: Chosen, operator: Tensor) -> Chosen:
        return Chosen(state.taken.scatter(2, operator[..., None], True))

    def is_goal(self, state: Chosen) -> Tensor:
        return state.taken.sum(-1) == 2

    def y_good(self, state: Chosen, gold: Tensor) -> Tensor:
        return gold[:, None] & ~state.taken

    def output(self, operators: Tensor) -> Tensor:
        return torch.zeros_like(self.scores, dtype=torch.bool).scatter(1, operators, True)


def test_several_good_paths() -> None:
    scores = torch.tensor([[3.0, 2.0, 0.0, 0.0]], requires_grad=True)
    gold = torch.tensor([[False, False, True, True]])
    found = laso(Subset(scores), gold, 2)
    # Layer 1: items 0 and 1 are kept; the siblings are 2 and 3, half each, and the search goes on from both.
    # Layer 2: (2,0) and (3,0) are kept, both bad; the siblings (2,3) and (3,2) hold both items.
    # Δ: layer 1 (-1/2, -1/2, 1/2, 1/2); layer 2 (0,0,1,1) - (1, 0, 1/2, 1/2).
    assert (found.errors.tolist(), found.first.tolist()) == ([2], [1])
    assert torch.autograd.grad(found.value, scores)[0].tolist() == [[-1.5, -0.5, 1.0, 1.0]]
    node = initial_node(Subset(scores), gold=gold)
    assert [n.good for n in successors(Subset(scores), node, gold=gold)] == [False, False, True, True]


def test_unreachable_gold_names_the_example() -> None:
    segments, transition = torch.zeros(3, 4, 2, 2), torch.zeros(2, 2)
    gold = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 0], [2 * 2, -1, -1, 0]])
    with pytest.raises(InfeasibleError, match=r"gold: .*none for example 2"):
        laso(ChunkingSpace(segments, transition), gold, 3)
    with pytest.raises(InfeasibleError, match=r"gold: .*none for example 2"):
        compare(ChunkingSpace(segments, transition), gold, 3, strategy="early")
    with pytest.raises(ArgumentError, match=r"strategy: .*got 'laso'"):
        compare(ChunkingSpace(segments, transition), gold, 3, strategy="laso")  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [1, 3])
def test_updates_on_separable_data_stop_within_the_bound(k: int) -> None:
    # The feature of a position names its label, and noise is small: w* = the identity separates every prefix.
    labels = torch.randint(3, (12, 5))
    x = torch.eye(3, dtype=torch.float64)[labels] + 0.1 * torch.randn(12, 5, 3, dtype=torch.float64)
    weight = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    update, zero = Perceptron([weight]), torch.zeros(3, 3, dtype=torch.float64)
    best = torch.eye(3, dtype=torch.float64) - 1 / 3
    best = best / best.norm()
    deltas: list[Tensor] = []
    for _ in range(60):
        before = update.updates
        for b in range(12):

            def rescore(found: Violations, b: int = b) -> tuple[TaggingSpace, float]:
                deltas.append(torch.autograd.grad(found.value, weight, retain_graph=True)[0])
                update(found)
                return TaggingSpace((x[b : b + 1] @ weight), zero), 0.0

            laso(TaggingSpace(x[b : b + 1] @ weight, zero), labels[b : b + 1], k, rescore=rescore)
        if update.updates == before:
            break
    assert update.updates == before, "updates did not stop"
    radius = max(float(d.norm()) for d in deltas)
    margin = min(float((d * best).sum()) for d in deltas)
    assert margin > 0
    assert 0 < update.updates <= (radius / margin) ** 2


@pytest.mark.parametrize(
    "make", [Perceptron, ALMA, lambda w: ALMA(w, p=4.0), lambda w: ALMA(w, alpha=0.5, C=1.0, count="errors")]
)
def test_averages_and_norms(make: Any) -> None:
    x = torch.randn(6, 4, 5, dtype=torch.float64)
    gold = torch.randint(3, (6, 4))
    weight = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    transition = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    update, seen = make([weight, transition]), []
    for step in range(30):
        rows = slice(step % 3 * 2, step % 3 * 2 + 2)
        update(laso(TaggingSpace(x[rows] @ weight, transition), gold[rows], 2, margin=update.margin))
        if step == 20:
            update.fold()
        seen.append([weight.detach() * update.scale, transition.detach() * update.scale])
    for i, mean in enumerate(update.averaged()):
        torch.testing.assert_close(mean, torch.stack([w[i] for w in seen]).mean(0))
    if isinstance(update, ALMA):
        q = update.p / (update.p - 1)
        norms = [torch.cat([v.flatten() for v in w]).norm(q) for w in seen]
        assert max(float(n) for n in norms) <= 1 + 1e-9
        assert max(float(n) for n in norms) > 0.5


def test_alma_says_what_is_wrong() -> None:
    with pytest.raises(ArgumentError, match=r"alpha: .*got 0"):
        ALMA([torch.zeros(1)], alpha=0)
    with pytest.raises(ArgumentError, match=r"p: .*got 1"):
        ALMA([torch.zeros(1)], p=1)
    with pytest.raises(ArgumentError, match=r"count: .*got 'batches'"):
        ALMA([torch.zeros(1)], count="batches")  # type: ignore[arg-type]


@pytest.mark.parametrize(("k", "recombine"), [(None, False), (None, True), (4, True)])
def test_chunking_is_the_semimarkov_argmax(k: int | None, recombine: bool) -> None:
    segments, transition = torch.randn(5, 6, 3, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    lengths = torch.tensor([6, 4, 1, 5, 2])
    ends = torch.arange(6)[:, None] + torch.arange(3) + 1
    segments[ends > lengths[:, None, None]] = torch.nan
    structure = sl.SemiMarkov(segments, transition, lengths=lengths)
    space = ChunkingSpace(segments, transition, lengths=lengths)
    found = beam_search(space, k, recombine=recombine)
    assert torch.equal(found.output, structure.argmax())
    torch.testing.assert_close(found.score, structure.max())
    gold = structure.topk(3)[0][-1]
    gold[2] = structure.argmax()[2]
    learnt = compare(space, gold, k, strategy="standard", recombine=recombine)
    torch.testing.assert_close(learnt.value, (structure.score(gold) - structure.max()).sum())
    assert laso(space, structure.argmax(), 200).errors.tolist() == [0] * 5


def test_beam_search_loss() -> None:
    # Beam 1, margin 1: layer 1 gold 0 against 0.5: 1 - 0 + 0.5; layer 2 after the restart: gold wins by 3.
    unary = torch.tensor([[[0.5, 0.0], [0.0, 3.0]]], requires_grad=True)
    loss = BeamSearchLoss(1)(TaggingSpace(unary, torch.zeros(2, 2)), GOLD)
    assert float(loss.detach()) == 1.5
    assert torch.autograd.grad(loss, unary)[0].tolist() == [[[1, -1], [0, 0]]]
    sure = TaggingSpace(torch.tensor([[[0.0, 9.0], [0.0, 9.0]]], requires_grad=True), torch.zeros(2, 2))
    assert float(BeamSearchLoss(2)(sure, GOLD).detach()) == 0
    with pytest.raises(ArgumentError, match="beam"):
        BeamSearchLoss(0)
    with pytest.raises(ArgumentError, match="margin"):
        BeamSearchLoss(2, margin=0)


def test_beam_search_loss_trains_an_encoder() -> None:
    labels = torch.randint(4, (32, 6))
    inputs = (labels + torch.cat([labels[:, :1] * 0, labels[:, :-1]], 1)) % 4  # needs the previous label
    table, transition = torch.nn.Embedding(4, 16), torch.nn.Parameter(torch.zeros(4, 4))
    encoder = torch.nn.GRU(16, 16, batch_first=True)
    head = torch.nn.Linear(16, 4)
    modules = torch.nn.ModuleList([table, encoder, head])
    optimizer = torch.optim.Adam([*modules.parameters(), transition], lr=0.02)
    loss = BeamSearchLoss(2)
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(TaggingSpace(head(encoder(table(inputs))[0]), transition), labels)
        value.backward()
        optimizer.step()
    with torch.no_grad():
        found = beam_search(TaggingSpace(head(encoder(table(inputs))[0]), transition), 2)
    assert float((found.output == labels).double().mean()) > 0.9
