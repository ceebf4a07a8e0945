"""gradcheck and gradgradcheck of every query that promises a gradient, in float64, with rows of every length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from .cases import Case
from .structures import ENTRIES, Entry

pytestmark = pytest.mark.usefixtures("poisoned_memory")
PAIRS = [(entry, engine) for entry in ENTRIES for engine in entry.engines if engine in ("cpu", "reference")]
ONCE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "max": lambda s, y: s.max(),
    "score": lambda s, y: s.score(y),
    "log_partition": lambda s, y: s.log_partition(),
    "entropy": lambda s, y: s.entropy(),
    "topk": lambda s, y: s.topk(2)[1].clamp(min=-1e3),
}
TWICE = ("log_partition",)


def arguments(entry: Entry, engine: str, query: str) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """The query as a function of potentials, and those; without padding, for differences move every entry."""
    problem = Case(entry.name, size=entry.sizes[1 if entry.name == "Candidates" else 0].name, seed=11).problem
    values = {name: x.nan_to_num(0.0) for name, x in problem.values.items()}
    y = problem.make(engine).argmax()

    def function(*given: Tensor) -> Tensor:
        s = entry.build(dict(zip(values, given, strict=True)), problem.lengths, engine)
        return ONCE[query](s, y)

    return function, tuple(x.requires_grad_() for x in values.values())


@pytest.mark.parametrize("query", ONCE)
@pytest.mark.parametrize(("entry", "engine"), PAIRS, ids=str)
def test_gradcheck(entry: Entry, engine: str, query: str) -> None:
    function, given = arguments(entry, engine, query)
    if not function(*given).requires_grad:
        assert query == "topk", f"{query} has no graph"
        return
    assert torch.autograd.gradcheck(function, given, fast_mode=True)


@pytest.mark.parametrize("query", TWICE)
@pytest.mark.parametrize(("entry", "engine"), PAIRS, ids=str)
def test_gradgradcheck(entry: Entry, engine: str, query: str) -> None:
    function, given = arguments(entry, engine, query)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=True)
