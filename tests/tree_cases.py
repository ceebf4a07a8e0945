"""Random batches of trees with their enumeration, in the form that ``queries.CHECKS`` takes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cases import NEG_INF, numbers
from oracles import Fields, Row, stack_rows
from oracles import span_tree as span_tree_oracle
from torch import Tensor

import structlearn as sl


@dataclass(frozen=True)
class TreeCase:
    """Sizes and kinds of a random :class:`SpanTree` batch."""

    name: str
    N: int = 4
    L: int = 2
    lengths: tuple[int, ...] | None = (4, 3, 1, 0, 2)
    dtype: torch.dtype = torch.float64
    spread: float = 2.0  # standard deviation of the potentials
    integers: bool = False  # small integer potentials: exact sums, many ties
    forbidden: float = 0.0  # share of -inf
    dead: tuple[int, ...] = ()  # rows whose every output is forbidden, each at its last word
    seed: int = 0
    batch: int = 5

    def __str__(self) -> str:
        return self.name

    def problem(self) -> TreeProblem:
        return _problem(self)


@dataclass(frozen=True, eq=False)
class TreeProblem:
    """Potentials of one batch with everything that is true about it."""

    potentials: dict[str, Tensor]
    lengths: tuple[int, ...] | None

    @property
    def dtype(self) -> torch.dtype:
        return self.potentials["spans"].dtype

    def make(self, backend: str = "auto", **changed: Tensor) -> sl.SpanTree:
        lengths = None if self.lengths is None else torch.tensor(self.lengths, dtype=torch.int64)
        return sl.SpanTree(**{**self.potentials, **changed}, lengths=lengths, backend=backend)

    @functools.cached_property
    def rows(self) -> list[Row]:
        return span_tree_oracle.rows(numbers(self.potentials["spans"]), self.lengths)  # type: ignore[arg-type]

    def expected(self, of: Any = Row.expected_parts, grad: Sequence[float] | None = None) -> Fields:
        """Per-row results of ``of`` in the shapes of the potentials, weighted by ``grad``."""
        return stack_rows(self.rows, (), of, grad)

    def labels(self, b: int, y: Any) -> list[list[int]]:
        """Output ``y`` of row ``b`` as the structure writes it."""
        return span_tree_oracle.chart(y, self.potentials["spans"].shape[1])


@functools.lru_cache(maxsize=64)
def _problem(case: TreeCase) -> TreeProblem:
    g = torch.Generator().manual_seed(case.seed)
    shape = (case.batch, case.N, case.N, case.L)
    if case.integers:
        spans = torch.randint(0, 2, shape, generator=g).to(case.dtype)
    else:
        spans = (torch.randn(shape, generator=g, dtype=torch.float64) * case.spread).to(case.dtype)
    spans = spans.masked_fill(torch.rand(shape, generator=g) < case.forbidden, NEG_INF)
    lengths = case.lengths or (case.N,) * case.batch
    for b, n in enumerate(lengths):
        if b in case.dead:
            spans[b, n - 1, n - 1] = NEG_INF
        spans[b, :, n:] = float("nan")
        spans[b, n:] = float("nan")
    below = torch.ones(case.N, case.N, dtype=torch.bool).tril(-1)
    spans[:, below] = float("nan")
    return TreeProblem({"spans": spans}, case.lengths)


def tree_cases() -> list[TreeCase]:
    """Both dtypes, ragged and full, one and several labels."""
    return [
        TreeCase("ragged-f64"),
        TreeCase("ragged-f32", dtype=torch.float32, seed=1),
        TreeCase("three-labels-f64", L=3, seed=2),
        TreeCase("one-label-f32", L=1, N=5, lengths=(5, 4, 5, 2, 1), dtype=torch.float32, seed=3),
        TreeCase("full-f64", N=5, lengths=None, batch=1, seed=4),
        TreeCase("full-f32", N=5, lengths=None, batch=2, dtype=torch.float32, seed=5),
    ]


def tie_cases() -> list[TreeCase]:
    """Integer potentials, where sums are exact and many trees share a score."""
    return [
        TreeCase(f"ties-{name}", L=labels, integers=True, forbidden=0.05, dtype=dtype, seed=seed)
        for seed, (name, labels, dtype) in enumerate(
            (("f32", 2, torch.float32), ("f64", 2, torch.float64), ("three-labels-f32", 3, torch.float32)), 104
        )
    ]


def forbidden_cases() -> list[TreeCase]:
    """Many -inf, with whole rows forbidden among feasible ones."""
    return [
        TreeCase(f"forbidden-{dtype}".replace("torch.", ""), forbidden=0.3, dead=(1, 2), dtype=dtype, seed=205)
        for dtype in (torch.float32, torch.float64)
    ]
