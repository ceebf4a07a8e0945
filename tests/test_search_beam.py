"""Beam search: against enumeration and Viterbi, against the queue, one example at a time."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import structlearn as sl
from structlearn.errors import ArgumentError, InfeasibleError, ShapeError
from structlearn.search import Node, SearchSpace, TaggingSpace, beam_search, best_first, queue_search
from structlearn.search.queue import Queue, beam, greedy
from structlearn.search.ranking import distinct, top


def problem(b: int = 5, n: int = 5, c: int = 3, *, integers: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    unary, transition = torch.randn(b, n, c, dtype=torch.float64), torch.randn(c, c, dtype=torch.float64)
    if integers:  # many ties
        unary, transition = unary.round(), transition.round()
    lengths = torch.randint(1, n + 1, (b,))
    lengths[0], lengths[-1] = n, 1
    unary[torch.arange(n) >= lengths[:, None]] = torch.nan
    return unary, transition, lengths


def enumerate_best(unary: Tensor, transition: Tensor, length: int) -> tuple[tuple[int, ...], float]:
    def score(y: tuple[int, ...]) -> float:
        total = sum(float(unary[n, c]) for n, c in enumerate(y))
        return total + sum(float(transition[p, c]) for p, c in itertools.pairwise(y))

    best = max(itertools.product(range(unary.shape[1]), repeat=length), key=score)
    return best, score(best)


@pytest.mark.parametrize(("beam", "recombine"), [(None, False), (None, True), (10**6, False), (3, True)])
def test_unlimited_beam_is_viterbi_is_enumeration(beam: int | None, recombine: bool) -> None:
    unary, transition, lengths = problem()
    found = beam_search(TaggingSpace(unary, transition, lengths=lengths), beam, recombine=recombine)
    chain = sl.LinearChain(unary, transition, lengths=lengths)
    torch.testing.assert_close(found.output, chain.argmax(), rtol=0, atol=0)
    torch.testing.assert_close(found.score, chain.max())
    for b, n in enumerate(lengths.tolist()):
        best, score = enumerate_best(unary[b], transition, n)
        assert found.output[b, :n].tolist() == list(best)
        assert float(found.score[b]) == pytest.approx(score)


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("recombine", [False, True])
@pytest.mark.parametrize("k", [1, 2, 4, None])
@pytest.mark.parametrize("heuristic", ["none", "optimistic", "exact"])
def test_batch_equals_queue_to_the_bit(heuristic: str, k: int | None, recombine: bool, integers: bool) -> None:
    unary, transition, lengths = problem(integers=integers)
    options = {"heuristic": heuristic}
    whole = beam_search(TaggingSpace(unary, transition, lengths=lengths, **options), k, recombine=recombine)  # type: ignore[arg-type]
    for b, n in enumerate(lengths.tolist()):
        space = TaggingSpace(unary[b : b + 1, :n], transition, **options)  # type: ignore[arg-type]
        alone = beam_search(space, k, recombine=recombine)
        goal = queue_search(space, beam(k, recombine=recombine))
        assert list(goal.path) == whole.output[b, :n].tolist() == alone.output[0].tolist()
        assert float(goal.g) == float(whole.score[b]) == float(alone.score[0])


def test_greedy_takes_the_best_label_each_time() -> None:
    unary, transition, _ = problem(1, 6, 4)
    unary = torch.randn(1, 6, 4, dtype=torch.float64)
    labels = [int(unary[0, 0].argmax())]
    for n in range(1, 6):
        labels.append(int((unary[0, n] + transition[labels[-1]]).argmax()))
    assert beam_search(TaggingSpace(unary, transition), 1).output[0].tolist() == labels
    assert list(queue_search(TaggingSpace(unary, transition), greedy).path) == labels


@pytest.mark.parametrize("heuristic", ["optimistic", "exact"])
def test_a_star_finds_the_best(heuristic: str) -> None:
    unary, transition, lengths = problem(6)
    for b, n in enumerate(lengths.tolist()):
        space = TaggingSpace(unary[b : b + 1, :n], transition, heuristic=heuristic)  # type: ignore[arg-type]
        taken: list[Node[tuple[Tensor, ...]]] = []
        goal = queue_search(space, best_first, trace=lambda node, _, taken=taken: taken.append(node))  # type: ignore[misc]
        assert list(goal.path) == list(enumerate_best(unary[b], transition, n)[0])
        if heuristic == "exact":  # nothing off the best path is ever taken
            assert len(taken) == n + 1
        for node in taken:
            assert float(node.f) >= float(goal.g) - 1e-9


def test_trace_of_a_queue() -> None:
    # unary (2, 2), transition 0 but for [0, 0] = -3: the scores of paths are written beside them.
    unary = torch.tensor([[[2.0, 1.0], [1.0, 0.0]]])
    transition = torch.tensor([[-3.0, 0.0], [0.0, 0.0]])
    seen: list[tuple[tuple[int, ...], list[tuple[tuple[int, ...], float]]]] = []

    def trace(node: Node[tuple[Tensor, ...]], queue: Queue) -> None:
        seen.append((node.path, [(n.path, float(n.g)) for n in queue]))

    goal = queue_search(TaggingSpace(unary, transition), beam(2), trace=trace)
    assert seen == [
        ((), []),
        ((0,), [((1,), 1.0)]),  # 2 and 1
        ((1,), [((0, 1), 2.0), ((0, 0), 0.0)]),  # 2 + 0, 2 + 1 - 3
        ((0, 1), [((1, 0), 2.0)]),  # 1 + 1 = 2 comes after the equal (0, 1); (1, 1) = 1 is cut with (0, 0)
    ]
    assert goal.path == (0, 1)
    assert beam_search(TaggingSpace(unary, transition), 2).output.tolist() == [[0, 1]]


def test_first_of_equals() -> None:
    zeros = torch.zeros(2, 4, 3)
    for k in (1, 2, 5, None):
        assert not beam_search(TaggingSpace(zeros, torch.zeros(3, 3)), k).output.any()


def test_top_is_a_stable_sort() -> None:
    scores = torch.randint(-2, 3, (64, 40)).double()
    scores[scores == -2] = -torch.inf
    for k in (1, 3, 39, 40):
        expected = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
        found = top(scores, k)
        alive = scores.gather(1, expected) > -torch.inf
        assert torch.equal(found[alive], expected[alive])
        assert torch.equal(scores.gather(1, found), scores.gather(1, expected))


def test_distinct_keeps_the_first_best_of_a_key() -> None:
    f = torch.tensor([[1.0, 3.0, 3.0, 2.0, -torch.inf]])
    keys = torch.tensor([[0, 1, 1, 0, 2]])
    assert distinct(f, keys).tolist() == [[-torch.inf, 3.0, -torch.inf, 2.0, -torch.inf]]


def test_length_one_and_a_beam_beyond_the_space() -> None:
    unary = torch.tensor([[[0.0, 2.0, 1.0]]])
    assert beam_search(TaggingSpace(unary, torch.zeros(3, 3)), 50).output.tolist() == [[1]]


class Steps(NamedTuple):
    total: Tensor


class Knapsack(SearchSpace[Steps]):
    """Items are taken or left, one after the other; states of equal weight have equal futures."""

    reach, operators = 1, 2

    def __init__(self, weights: Tensor, values: Tensor, limit: int) -> None:
        self.weights, self.values, self.limit = weights, values, limit
        self.batch_size, self.layers = weights.shape

    def initial(self) -> Steps:
        return Steps(torch.zeros((self.batch_size, 1, 2), dtype=torch.int64))

    def expand(self, state: Steps) -> Tensor:
        at = state.total[..., 1].clamp(max=self.layers - 1)
        heavier = state.total[..., 0] + self.weights.gather(1, at)
        take = torch.where(heavier <= self.limit, self.values.gather(1, at), -torch.inf)
        scores = torch.stack([torch.zeros_like(take), take], -1)
        return scores.masked_fill(self.is_goal(state)[..., None], -torch.inf)

    def advance(self, state: Steps, operator: Tensor) -> Steps:
        at = state.total[..., 1].clamp(max=self.layers - 1)
        weight = state.total[..., 0] + self.weights.gather(1, at) * operator
        return Steps(torch.stack([weight, state.total[..., 1] + 1], -1))

    def is_goal(self, state: Steps) -> Tensor:
        return state.total[..., 1] >= self.layers

    def y_good(self, state: Steps, gold: Tensor) -> Tensor:
        raise NotImplementedError

    def output(self, operators: Tensor) -> Tensor:
        return operators

    def keys(self, state: Steps) -> Tensor:
        both = torch.arange(2).expand(*state.total.shape[:2], 2)
        return (
            self.advance(Steps(state.total[:, :, None].expand(-1, -1, 2, -1).flatten(1, 2)), both.flatten(1))
            .total[..., 0]
            .view(self.batch_size, -1, 2)
        )


def test_recombination_by_keys_is_exact_dynamic_programming() -> None:
    weights, values = torch.randint(1, 5, (6, 9)), torch.rand(6, 9)
    space = Knapsack(weights, values, 12)
    exact = beam_search(space, None)
    # Weights 0..12 are all the states that a layer has.
    small = beam_search(space, 16, recombine=True)
    assert torch.equal(exact.output, small.output)
    torch.testing.assert_close(exact.score, small.score)
    for b in range(6):
        goal = queue_search(Knapsack(weights[b : b + 1], values[b : b + 1], 12), beam(16, recombine=True))
        assert list(goal.path) == small.output[b].tolist()


def test_mistakes_are_named() -> None:
    unary, transition, _ = problem()
    with pytest.raises(ShapeError, match=r"unary: expected \(B, N, C\), got \(5, 3\)"):
        TaggingSpace(unary[:, 0], transition)
    with pytest.raises(ShapeError, match=r"transition: expected \(C, C\) = \(3, 3\), got \(2, 3\)"):
        TaggingSpace(unary, transition[:2])
    with pytest.raises(ArgumentError, match=r"heuristic: .*got 'best'"):
        TaggingSpace(unary, transition, heuristic="best")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="beam: expected an integer >= 1, or None for no limit, got 0"):
        beam_search(TaggingSpace(unary, transition), 0)
    with pytest.raises(ArgumentError, match=r"k: .*got 0"):
        beam(0)
    with pytest.raises(ArgumentError, match="space: expected one example, got 5"):
        queue_search(TaggingSpace(unary, transition), greedy)
    shut = torch.zeros(3, 2, 2)
    shut[1, 1] = -torch.inf
    with pytest.raises(InfeasibleError, match="none for example 1"):
        beam_search(TaggingSpace(shut, torch.zeros(2, 2)), 3)
    with pytest.raises(InfeasibleError, match="an empty queue"):
        queue_search(TaggingSpace(shut[1:2], torch.zeros(2, 2)), best_first)
