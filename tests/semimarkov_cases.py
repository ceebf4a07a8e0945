"""The table that drives the semi-Markov tests; padded places hold NaN throughout."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from cases import DTYPES, NEG_INF, Problem, numbers
from oracles import Row
from oracles import semimarkov as oracle
from torch import Tensor

import structlearn as sl


@dataclass(frozen=True, eq=False)
class SemiMarkovProblem(Problem):
    """Potentials of one batch of semi-Markov chains with everything that is true about it."""

    def make(self, backend: str = "auto", **changed: Tensor) -> Any:
        lengths = None if self.lengths is None else torch.tensor(self.lengths, dtype=torch.int64)
        return sl.SemiMarkov(**{**self.potentials, **changed}, lengths=lengths, backend=backend)  # type: ignore[arg-type]

    @functools.cached_property
    def rows(self) -> list[Row]:
        return oracle.rows(**{name: numbers(x) for name, x in self.potentials.items()}, lengths=self.lengths)  # type: ignore[arg-type]

    def labels(self, b: int, y: tuple[int, ...]) -> list[int]:
        return [*y, *[-100] * (self.potentials["segments"].shape[1] - len(y))]


@dataclass(frozen=True)
class SemiMarkovCase:
    """Sizes and kinds of a random :class:`SemiMarkov` batch."""

    name: str
    B: int = 5
    N: int = 4
    W: int = 3
    C: int = 2
    lengths: tuple[int, ...] | None = (4, 3, 1, 0, 2)
    per_position: bool = False
    dtype: torch.dtype = torch.float64
    spread: float = 2.0  # standard deviation of the potentials
    integers: bool = False  # small integer potentials: exact sums, many ties
    forbidden: float = 0.0  # share of -inf
    seed: int = 0

    def __str__(self) -> str:
        return self.name

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        if self.integers:
            x = torch.randint(-1, 2, shape, generator=generator).to(self.dtype)
        else:
            x = (torch.randn(shape, generator=generator, dtype=torch.float64) * self.spread).to(self.dtype)
        return x.masked_fill(torch.rand(shape, generator=generator) < self.forbidden, NEG_INF)

    def problem(self) -> SemiMarkovProblem:
        return _problem(self)


@functools.lru_cache(maxsize=256)
def _problem(case: SemiMarkovCase) -> SemiMarkovProblem:
    g = torch.Generator().manual_seed(case.seed)
    B, N, W, C = case.B, case.N, case.W, case.C
    segments = case.draw(g, B, N, W, C)
    transition = case.draw(g, B, max(N - 1, 0), C, C) if case.per_position else case.draw(g, C, C)
    for b, n in enumerate(case.lengths or [N] * B):
        for start, width in itertools.product(range(N), range(W)):
            if start + width >= n:
                segments[b, start, width] = float("nan")
        if case.per_position:
            transition[b, max(n - 1, 0) :] = float("nan")
    return SemiMarkovProblem(sl.SemiMarkov, {"segments": segments, "transition": transition}, case.lengths)


# W below, at and above N; N odd and even; one label; one position; equal lengths.
SHAPES: dict[str, dict[str, Any]] = {
    "ragged": {},
    "width 1": {"W": 1, "C": 3},
    "width 2": {"N": 5, "W": 2, "lengths": (5, 0, 4, 2, 1)},
    "wider than long": {"N": 3, "W": 6, "lengths": (3, 2, 1, 0, 3)},
    "one label": {"C": 1, "N": 5, "lengths": (5, 4, 0, 1, 3)},
    "one position": {"B": 3, "N": 1, "lengths": None},
    "all long": {"B": 2, "N": 4, "C": 3, "W": 2, "lengths": None},
}


def cases() -> list[SemiMarkovCase]:
    """Every shape with shared and per-position transitions, in both dtypes."""
    return [
        SemiMarkovCase(
            f"{name}-{'steps' if per_position else 'shared'}-{str(dtype).removeprefix('torch.')}",
            per_position=per_position,
            dtype=dtype,
            seed=seed,
            **shape,
        )
        for seed, ((name, shape), per_position, dtype) in enumerate(
            itertools.product(SHAPES.items(), (False, True), DTYPES)
        )
    ]


def interpreted(case: SemiMarkovCase) -> bool:
    """Every shape once, with every kind of transition and dtype among them: the Triton interpreter is slow."""
    return case.seed // 4 % 4 == case.seed % 4


def combinations(table: list[SemiMarkovCase], backends: tuple[str, ...]) -> list[Any]:
    """(case, backend) for every test that runs a table through the backends."""
    return [
        pytest.param(case, backend, id=f"{case}-{backend}")
        for case, backend in itertools.product(table, backends)
        if backend != "triton" or interpreted(case)
    ]


def tie_cases() -> list[SemiMarkovCase]:
    """Integer potentials, where sums are exact and many outputs share a score."""
    return [replace(c, name=f"ties-{c}", integers=True, forbidden=0.1, seed=c.seed + 100) for c in cases()]


def forbidden_cases() -> list[SemiMarkovCase]:
    """Many -inf, with whole rows forbidden among feasible ones."""
    return [
        replace(c, name=f"forbidden-{c}", forbidden=0.65, seed=c.seed + 200)
        for c in cases()
        if c.name.startswith(("ragged", "width 2"))
    ]
