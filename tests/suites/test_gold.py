"""Losses read nothing beyond a row's length in gold, and take repeated rows and views of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import structlearn as sl

from .cases import Case
from .checks import with_junk
from .structures import ENTRIES, Entry

pytestmark = pytest.mark.usefixtures("poisoned_memory")
PAIRS = [(entry, engine) for entry in ENTRIES for engine in entry.engines if engine in ("cpu", "reference")]
ZERO_ONE = sl.costs.ZeroOne()
LOSSES: dict[str, Any] = {
    "CRF": sl.CRFLoss(reduction="none"),
    "perceptron": sl.PerceptronLoss(reduction="none"),
    "hinge-margin": sl.StructuredHinge(ZERO_ONE, reduction="none"),
    "hinge-slack": sl.StructuredHinge(ZERO_ONE, rescaling="slack", reduction="none"),
}
OWN_COSTS = {
    "LinearChain": (sl.costs.Hamming(), sl.costs.F1(1)),
    "SecondOrderChain": (sl.costs.Hamming(),),
    "SemiMarkov": (sl.costs.Hamming(), sl.costs.SegmentF1()),
    "SpanTree": (sl.costs.Hamming(), sl.costs.BracketF1()),
    "WeightedCFG": (sl.costs.Hamming(), sl.costs.BracketF1()),
    "Alignment": (sl.costs.AlignedPairs(),),
    "Categorical": (sl.costs.Hamming(),),
    "Candidates": (),
}


def losses(entry: Entry) -> dict[str, Any]:
    own = OWN_COSTS[entry.name.partition("-")[0]]
    return LOSSES | {f"hinge-{cost}": sl.StructuredHinge(cost, reduction="none") for cost in own}


def gold_of(entry: Entry, engine: str) -> Any:
    problem = Case(entry.name, size=entry.sizes[0].name, dtype="f64", seed=5).problem
    s = problem.make(engine)
    rows = [row.space.outputs[len(row.space.outputs) // 2] for row in problem.rows]
    return problem, s, torch.tensor(rows, dtype=torch.int64).view(s.argmax().shape)


@pytest.mark.parametrize(("entry", "engine"), PAIRS, ids=str)
def test_padding_of_gold(entry: Entry, engine: str) -> None:
    problem, s, y = gold_of(entry, engine)
    if not entry.gold_is_padded:
        return
    for name, loss in losses(entry).items():
        expected = loss(s, y)
        assert expected.isfinite().all(), name
        for junk in (0, 1, -1, 10**6):
            torch.testing.assert_close(loss(s, with_junk(problem, y, junk)), expected, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize(("entry", "engine"), PAIRS, ids=str)
def test_views_of_gold(entry: Entry, engine: str) -> None:
    """Of another integer type, with steps between entries, one row for all."""
    _, s, y = gold_of(entry, engine)
    views = {
        "int32": y.int(),
        "steps": torch.stack([y + 1, y], -1)[..., 1],
        "transposed": y.T.contiguous().T if y.dim() == 2 else y,
    }
    for name, loss in losses(entry).items():
        expected = loss(s, y)
        for view, gold in views.items():
            torch.testing.assert_close(loss(s, gold), expected, rtol=0, atol=0, msg=f"{name} {view}")
    same = Case(entry.name, size=entry.sizes[1].name, dtype="f64", seed=6).problem
    t = same.make(engine)
    one = t.argmax()[:1]
    for name, loss in losses(entry).items():
        everywhere = one.expand(t.batch_size, *one.shape[1:])
        torch.testing.assert_close(loss(t, everywhere), loss(t, everywhere.contiguous()), rtol=0, atol=0, msg=name)
