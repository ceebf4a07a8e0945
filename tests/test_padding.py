"""Costs, losses and scores never read what stands at padded places of gold or of an output, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alignment_cases import AlignmentCase
from grammar_cases import GrammarCase
from torch import Tensor

import structlearn as sl
from structlearn.errors import ArgumentError, InferenceError
from structlearn.metrics import PositionError
from structlearn.metrics.segments import SegmentScore
from structlearn.structures.base import PAD

TAGS = ("O", "B-A", "I-A", "B-B", "I-B")
LENGTHS = (4, 2, 0, 1)
PADDING: dict[str, Callable[[Tensor], Tensor]] = {
    "-1": lambda y: torch.full_like(y, -1),
    "0": torch.zeros_like,
    "1": torch.ones_like,
    "10**6": lambda y: torch.full_like(y, 10**6),
    "lowest": lambda y: torch.full_like(y, torch.iinfo(torch.int64).min),
    "garbage": lambda y: torch.randint(-9, 9, y.shape, generator=torch.Generator().manual_seed(0)),
}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def chain(lengths: tuple[int, ...] = LENGTHS, size: int = 4) -> sl.LinearChain:
    return sl.LinearChain(random(len(lengths), size, 5), random(5, 5), lengths=torch.tensor(lengths))


def second_order() -> sl.SecondOrderChain:
    return sl.SecondOrderChain(random(4, 4, 5), random(5, 5), random(5, 5, 5), lengths=torch.tensor(LENGTHS))


def semimarkov() -> sl.SemiMarkov:
    return sl.SemiMarkov(random(4, 4, 2, 3), random(3, 3), lengths=torch.tensor(LENGTHS))


def trees() -> sl.SpanTree:
    return sl.SpanTree(random(4, 4, 4, 3), lengths=torch.tensor(LENGTHS))


def grammar() -> sl.WeightedCFG:
    return GrammarCase("padding").problem().make()


def alignment() -> sl.Alignment:
    return AlignmentCase("padding", x_lengths=(3, 2, 0, 3), y_lengths=(3, 4, 2, 1), N=3).problem().make()


POSITIONS = {"zero_one": sl.costs.ZeroOne(), "hamming": sl.costs.Hamming(), "mean": sl.costs.Hamming(normalize=True)}
CHAIN = POSITIONS | {"f1": sl.costs.F1(), "segment_f1": sl.costs.SegmentF1(TAGS)}
CASES: dict[str, tuple[Callable[[], Any], dict[str, sl.costs.Cost]]] = {
    "chain": (chain, CHAIN),
    "second_order": (second_order, CHAIN),
    "no_positions": (lambda: chain((0, 0), 0), CHAIN),
    "semimarkov": (semimarkov, POSITIONS | {"f1": sl.costs.F1(), "segment_f1": sl.costs.SegmentF1()}),
    "trees": (trees, POSITIONS | {"f1": sl.costs.F1(outside=()), "brackets": sl.costs.BracketF1()}),
    "grammar": (grammar, POSITIONS | {"brackets": sl.costs.BracketF1(preterminals=False)}),
    "alignment": (alignment, POSITIONS | {"pairs": sl.costs.AlignedPairs()}),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (_, costs) in CASES.items() for name in costs])
def test_costs_and_losses_do_not_read_padding(kind: str, name: str) -> None:
    make, costs = CASES[kind]
    structure, cost = make(), costs[name]
    gold, y = structure.topk(3)[0][0], structure.sample(1)[0]
    padding = structure.padded(gold) == PAD
    if kind in ("trees", "grammar"):  # within a sentence, PAD says that there is no span
        padding = ~structure.mask

    def answers(gold: Tensor, y: Tensor) -> list[Any]:
        found: list[Any] = [cost(structure, gold, y), structure.score(gold), structure.same_output(gold, y)]
        if (counted := cost.counted(structure, gold)) is not None:
            found += [counted.values, torch.tensor(counted.counter.sizes)]
        for rescaling in ("margin", "slack"):
            for squared in (False, True):
                try:
                    worst = sl.most_violated(structure, gold, cost, rescaling=rescaling, squared=squared)  # type: ignore[arg-type]
                except (InferenceError, ArgumentError) as error:
                    found.append(str(error))
                    continue
                loss = sl.StructuredHinge(cost, rescaling=rescaling, squared=squared, reduction="none")  # type: ignore[arg-type]
                found += [structure.padded(worst.y), worst.value, worst.cost, loss(structure, gold)]
        return [*found, sl.PerceptronLoss()(structure, gold), sl.CRFLoss()(structure, gold)]

    expected = answers(structure.padded(gold), structure.padded(y))
    for fill in PADDING.values():
        dirty = [torch.where(padding, fill(x), x) if kind != "alignment" or x is gold else x for x in (gold, y)]
        for one, other in zip(expected, answers(*dirty), strict=True):
            if isinstance(one, Tensor):
                torch.testing.assert_close(other, one, rtol=0, atol=0)
            else:
                assert other == one


@pytest.mark.parametrize("padding", PADDING)
def test_metrics_do_not_read_gold_s_padding(padding: str) -> None:
    structure = semimarkov()
    gold, predicted = structure.topk(2)[0]
    dirty = torch.where(gold == PAD, PADDING[padding](gold), gold)
    score = SegmentScore(3)
    assert score(predicted, dirty) == score(predicted, gold)
    segments = [{s for s in row if s[2] != 0} for row in structure.segments_of(gold)]
    others = [{s for s in row if s[2] != 0} for row in structure.segments_of(predicted)]
    matched = sum(len(a & b) for a, b in zip(segments, others, strict=True))
    expected = 2 * matched / sum(map(len, segments + others))
    assert float(score(predicted, dirty)["f1"]) == pytest.approx(expected)

    labels = chain()
    gold, predicted = labels.topk(2)[0]
    dirty = torch.where(gold == PAD, PADDING[padding](gold), gold)
    error = PositionError()
    assert error(predicted, dirty) == error(predicted, gold)
