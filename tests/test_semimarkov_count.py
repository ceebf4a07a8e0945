"""SemiMarkov: the best segmentation for each value of statistics, and the losses built on it, against enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from cases import NEG_INF, assert_close
from oracles import Row
from semimarkov_cases import SemiMarkovCase, SemiMarkovProblem, cases, forbidden_cases, tie_cases
from torch import Tensor

import structlearn as sl
from structlearn.structures.counting import Counter

BACKENDS = ("reference", "cpu", "triton")
CASES = [c for c in (*cases(), *tie_cases(), *forbidden_cases()) if c.N > 2]
# Fields that count, number of statistics.
COUNTS = list(itertools.product([("segments",), ("transition",), ("segments", "transition")], [1, 2]))


def _combinations() -> list[Any]:
    """Every case with every kind of counting; interpreted, each kind with one or two cases."""
    table = [(case, *counts, backend) for backend in BACKENDS[:2] for case in CASES[::3] for counts in COUNTS]
    table += [(case, *COUNTS[i % len(COUNTS)], "triton") for i, case in enumerate(CASES[::9])]
    return [pytest.param(*x, id=f"{x[0]}-{'+'.join(x[1])}-{x[2]}-{x[3]}") for x in table]


def _increments(problem: SemiMarkovProblem, fields: tuple[str, ...], seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randint(0, 3, problem.potentials[name].shape, generator=g) for name in fields}


def _statistic(increment: dict[str, Tensor], row: Row, b: int, shared: bool) -> list[int]:
    """The statistic of every output of row b."""
    own = {name: x if name == "transition" and shared else x[b] for name, x in increment.items()}
    return [sum(int(own[name][place]) for name, place in parts if name in own) for parts in row.parts]


@pytest.mark.parametrize(("case", "fields", "statistics", "backend"), _combinations())
def test_best_for_every_count(case: SemiMarkovCase, fields: tuple[str, ...], statistics: int, backend: str) -> None:
    problem = case.problem()
    shared = not case.per_position
    increments = tuple(_increments(problem, fields, seed) for seed in range(statistics))
    counts = [
        np.array([_statistic(increment, row, b, shared) for increment in increments])
        for b, row in enumerate(problem.rows)
    ]
    sizes = tuple(int(max(c[j].max(initial=0) for c in counts)) + 1 for j in range(statistics))
    found = problem.make(backend).max_by_count(Counter(increments, sizes))
    expected = np.full((case.B, *sizes), -np.inf)
    for b, row in enumerate(problem.rows):
        for count, score in zip(counts[b].T, row.scores, strict=True):
            place = (b, *count)
            expected[place] = max(expected[place], score)
    assert_close(found.table, expected, case.dtype)

    # Decode for every row the entry of an output, walking through the outputs.
    for k in range(0, 12, 5):
        picks = [k % len(row.outputs) for row in problem.rows]
        y = found.decode(torch.tensor(np.stack([c[:, i] for c, i in zip(counts, picks, strict=True)])))
        for b, row in enumerate(problem.rows):
            same = (counts[b] == counts[b][:, [picks[b]]]).all(0)
            scores = np.where(same, row.scores, -np.inf)
            best = int(scores.argmax())
            wanted = problem.labels(b, row.outputs[best]) if scores[best] > -np.inf else [-100] * case.N
            if case.integers or wanted[0] == -100:
                assert y[b].tolist() == wanted
            else:  # outputs of one score may differ by rounding
                attained = row.scores[row.outputs.index(tuple(v for v in y[b].tolist() if v != -100))]
                assert attained == pytest.approx(scores[best], rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rescaling", ["margin", "slack"])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(
    "cost", [sl.costs.Hamming(), sl.costs.F1(), sl.costs.ZeroOne()], ids=lambda c: type(c).__name__
)
def test_most_violated_equals_enumeration(cost: sl.costs.Cost, rescaling: str, squared: bool, backend: str) -> None:
    problem = SemiMarkovCase("losses", N=5, lengths=(5, 4, 1, 2, 3), seed=11).problem()
    s = problem.make(backend)
    gold = torch.tensor([problem.labels(b, row.outputs[len(row.outputs) // 2]) for b, row in enumerate(problem.rows)])
    found = sl.most_violated(s, gold, cost, rescaling=rescaling, squared=squared)
    assert found.exact.all()
    for b, row in enumerate(problem.rows):
        truth = row.outputs[len(row.outputs) // 2]
        base = row.scores[row.outputs.index(truth)]
        best = NEG_INF
        for y, score in zip(row.outputs, row.scores, strict=True):
            delta = _delta(cost, truth, y) ** (0.5 if squared else 1)
            best = max(best, delta + score - base if rescaling == "margin" else delta * (1 + score - base))
        assert float(found.value[b]) == pytest.approx(best)


def _spread(code: tuple[int, ...], labels: int = 2) -> list[int]:
    return list(itertools.accumulate(code, lambda before, v: before if v == -1 else v % labels, initial=0))[1:]


def _delta(cost: sl.costs.Cost, gold: tuple[int, ...], y: tuple[int, ...]) -> float:
    if isinstance(cost, sl.costs.ZeroOne):
        return float(gold != y)
    pairs = list(zip(_spread(gold), _spread(y), strict=True))
    if isinstance(cost, sl.costs.Hamming):
        return float(sum(a != b for a, b in pairs))
    right, true, predicted = (
        sum(map(f, pairs)) for f in (lambda p: p[0] == p[1] == 1, lambda p: p[0] == 1, lambda p: p[1] == 1)
    )
    return 1 - 2 * right / (true + predicted) if true + predicted else 0.0
