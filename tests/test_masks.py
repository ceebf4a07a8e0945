"""Masks and automata on chains, against enumeration of the allowed outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracles import chain as chain_oracle

import structlearn as sl
from structlearn.constraints import DFA, ChainMask
from structlearn.errors import ArgumentError, LabelError, ShapeError
from structlearn.tags import parse_tags

LENGTHS = (4, 3, 1, 0)
SCHEMES: dict[str, tuple[str, ...]] = {
    "BIO": ("O", "B-X", "I-X", "B-Y", "I-Y"),
    "IOB1": ("O", "B-X", "I-X", "I-Y", "B-Y"),
    "BIOES": ("O", "B-X", "I-X", "E-X", "S-X"),
}


def valid(tags: list[str], scheme: str) -> bool:
    """By the definition of each scheme, one tag at a time."""
    for before, tag, after in zip(["O", *tags], tags, [*tags[1:], "O"], strict=False):
        if scheme == "BIO" and tag[0] == "I" and (before == "O" or before[2:] != tag[2:]):
            return False
        if scheme == "IOB1" and tag[0] == "B" and (before == "O" or before[2:] != tag[2:]):
            return False
        if scheme == "BIOES":
            if tag[0] in "IE" and (before[0] not in "BI" or before[2:] != tag[2:]):
                return False
            if tag[0] in "BI" and (after[0] not in "IE" or after[2:] != tag[2:]):
                return False
    return True


def problem(classes: int) -> tuple[sl.LinearChain, list[Any]]:
    unary, transition = (
        torch.randn(4, 4, classes, dtype=torch.float64),
        torch.randn(classes, classes, dtype=torch.float64),
    )
    for b, n in enumerate(LENGTHS):
        unary[b, n:] = torch.nan
    chain = sl.LinearChain(unary, transition, lengths=torch.tensor(LENGTHS))
    return chain, chain_oracle.rows(unary.numpy(), transition.numpy(), None, None, LENGTHS)


def check(constrained: Any, rows: list[Any], allowed: Callable[[tuple[int, ...]], bool]) -> None:
    best = constrained.argmax()
    for b, row in enumerate(rows):
        kept = [i for i, y in enumerate(row.outputs) if allowed(y)]
        scores = row.scores[kept]
        assert tuple(best[b, : LENGTHS[b]].tolist()) == row.outputs[kept[int(scores.argmax())]]
        np.testing.assert_allclose(float(constrained.max()[b]), scores.max())
        np.testing.assert_allclose(float(constrained.log_partition()[b]), np.log(np.exp(scores).sum()))
        assert int(constrained.count()[b]) == len(kept)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_valid_tag_sequences_remain(scheme: Any) -> None:
    names = SCHEMES[scheme]
    chain, rows = problem(len(names))
    check(ChainMask.from_tags(names, scheme)(chain), rows, lambda y: valid([names[c] for c in y], scheme))


def test_masks_combine() -> None:
    chain, rows = problem(5)
    no_repeat = ChainMask(~torch.eye(5, dtype=torch.bool), end=torch.tensor([True, True, False, True, True]))
    both = ChainMask.from_tags(SCHEMES["BIO"]) & no_repeat
    check(
        both(chain),
        rows,
        lambda y: (
            valid([SCHEMES["BIO"][c] for c in y], "BIO")
            and all(a != b for a, b in itertools.pairwise(y))
            and (not y or y[-1] != 2)
        ),
    )


# Reads 2 at most once, and must end outside state 2, which label 1 after a 2 leads to.
AUTOMATON = DFA([[0, 0, 1], [1, 2, -1], [1, 2, -1]], accept=[0, 1])


def accepted(y: tuple[int, ...]) -> bool:
    state = 0
    for c in y:
        state = int(AUTOMATON.next[state, c])
        if state < 0:
            return False
    return state in AUTOMATON.accept


def test_automaton_intersected_with_a_chain() -> None:
    chain, rows = problem(3)
    constrained = AUTOMATON(chain)
    check(constrained, rows, accepted)
    labels, scores = constrained.topk(200)
    for b, row in enumerate(rows):
        kept = sorted((s for y, s in zip(row.outputs, row.scores, strict=True) if accepted(y)), reverse=True)
        found = scores[:, b][scores[:, b] > float("-inf")]
        np.testing.assert_allclose(found.numpy(), kept)
        assert all(accepted(tuple(y[: LENGTHS[b]].tolist())) for y in labels[: len(kept), b])
    drawn = constrained.sample(50)
    assert all(accepted(tuple(y[b, :n].tolist())) for y in drawn for b, n in enumerate(LENGTHS))


@pytest.mark.parametrize("form", list(itertools.product(("margin", "slack"), (False, True))))
@pytest.mark.parametrize(
    "cost", [sl.costs.Hamming(), sl.costs.F1(0), sl.costs.ZeroOne(), sl.costs.SegmentF1(("O", "B-X", "I-X"))]
)
def test_loss_augmented_inference_keeps_to_the_constraint(form: Any, cost: Any) -> None:
    chain, rows = problem(3)
    gold = torch.tensor([[0, 2, 0, 1], [1, 0, 2, -100], [2, -100, -100, -100], [-100] * 4])
    gold[0] = torch.tensor([0, 2, 0, 0])
    constrained = AUTOMATON(chain)
    found = sl.most_violated(constrained, gold, cost, rescaling=form[0], squared=form[1])
    for b, row in enumerate(rows):
        n = LENGTHS[b]
        truth = tuple(gold[b, :n].tolist())
        best = -np.inf
        outputs = torch.tensor([[*y, *[-100] * (4 - n)] for y in row.outputs])
        each = sl.LinearChain(
            chain.unary[b : b + 1].expand(len(outputs), -1, -1), chain.transition, lengths=[n] * len(outputs)
        )
        deltas = cost(each, gold[b : b + 1].expand(len(outputs), -1), outputs).tolist()
        at = row.scores[list(row.outputs).index(truth)]
        for y, s, delta in zip(row.outputs, row.scores, deltas, strict=True):
            if accepted(y):
                size = delta**0.5 if form[1] else delta
                best = max(best, size + s - at if form[0] == "margin" else size * (1 + s - at))
        np.testing.assert_allclose(float(found.value[b]), best, atol=1e-9)
        assert accepted(tuple(found.y[b, :n].tolist()))


def test_gold_that_breaks_a_constraint_is_reported_with_its_place() -> None:
    chain, _ = problem(3)
    gold = torch.tensor([[0, 2, 0, 0], [2, 0, 2, 0], [0] * 4, [0] * 4])
    with pytest.raises(LabelError, match="batch row 1, label 2 at position 2 is refused by the automaton"):
        sl.StructuredHinge(sl.costs.Hamming())(AUTOMATON(chain), gold)
    with pytest.raises(LabelError, match="which ends in a state that does not accept"):
        sl.CRFLoss()(AUTOMATON(chain), torch.tensor([[0, 0, 2, 1], [0] * 4, [0] * 4, [0] * 4]))
    mask = ChainMask.from_tags(("O", "B-X", "I-X"))
    with pytest.raises(LabelError, match="batch row 0, transition 0 -> 2 into position 1"):
        sl.CRFLoss()(mask(chain), gold)
    with pytest.raises(LabelError, match="start with label 2"):
        sl.CRFLoss()(mask(chain), torch.tensor([[2, 2, 2, 2]] * 4))


def test_segments_are_read_as_conlleval_does() -> None:
    tags = parse_tags(("O", "B-X", "I-X", "I-Y"))
    assert tags.segments([2, 2, 0, 1, 1, 2, 3]) == [(0, 1, "X"), (3, 3, "X"), (4, 5, "X"), (6, 6, "Y")]
    tags = parse_tags(("O", "B-X", "I-X", "E-X", "S-X"), "BIOES")
    assert tags.segments([1, 2, 3, 4, 0, 1, 3]) == [(0, 2, "X"), (3, 3, "X"), (5, 6, "X")]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ChainMask(torch.ones(2, 3)), ShapeError, r"transition: expected \(C, C\)"),
        (
            lambda: ChainMask(torch.ones(2, 2))(problem(3)[0]),
            ShapeError,
            "mask: expected 3 labels, as the chain has, got 2",
        ),
        (lambda: DFA([[5]], accept=[0]), ArgumentError, r"next: expected states in 0\.\.0, or -1, got 5"),
        (lambda: DFA([[0]], accept=[1]), ArgumentError, r"accept: expected states in 0\.\.0"),
        (lambda: AUTOMATON(problem(4)[0]), ShapeError, "dfa: expected 4 labels, as the chain has, got 3"),
        (lambda: parse_tags(["O"], "IO"), ArgumentError, "scheme"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
