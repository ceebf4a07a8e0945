"""The one table that drives the structure tests: structure x backend x dtype x shape of the potentials x lengths.

A case makes the structure and its oracle from the same numbers: potentials are drawn in the case's dtype and
the oracle gets those, widened to float64. Padded places hold NaN throughout.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from oracles import Fields, Row, stack_rows
from oracles import categorical as categorical_oracle
from oracles import chain as chain_oracle
from torch import Tensor

import structlearn as sl

NEG_INF = float("-inf")
BACKENDS = ("reference", "cpu", "triton", "torch-struct")
DTYPES = (torch.float32, torch.float64)
QUERIES = ("argmax", "max", "score", "log_partition", "marginals", "entropy", "topk", "sample", "count")


def tolerance(dtype: torch.dtype, scale: float = 1.0) -> dict[str, float]:
    """For ``assert_close``: a few units in the last place of ``scale``."""
    return {"rtol": 2e-5, "atol": 2e-5 * scale} if dtype is torch.float32 else {"rtol": 1e-10, "atol": 1e-11 * scale}


def assert_close(actual: Tensor, expected: Any, dtype: torch.dtype, scale: float = 1.0) -> None:
    """Every entry of ``actual``, compared in float64; infinities must be equal and NaN fails."""
    expected = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    torch.testing.assert_close(actual.detach().double(), expected, **tolerance(dtype, scale))


def numbers(x: Tensor | None) -> np.ndarray | None:
    return None if x is None else x.detach().double().numpy()


@dataclass(frozen=True, eq=False)
class Problem:
    """Potentials of one batch with everything that is true about it."""

    structure: type[sl.Structure]
    potentials: dict[str, Tensor]
    lengths: tuple[int, ...] | None = None

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.potentials.values())).dtype

    @property
    def shared(self) -> tuple[str, ...]:
        """The fields that have no batch axis."""
        transition = self.potentials.get("transition")
        return ("start", "end") if transition is None or transition.dim() == 4 else ("transition", "start", "end")

    def make(self, backend: str = "auto", **changed: Tensor) -> Any:
        """The structure; ``changed`` replaces potentials."""
        options: dict[str, Any] = {"backend": backend}
        if self.structure is sl.LinearChain:
            options["lengths"] = None if self.lengths is None else torch.tensor(self.lengths, dtype=torch.int64)
        return self.structure(**{**self.potentials, **changed}, **options)  # type: ignore[arg-type]

    def leaves(self) -> dict[str, Tensor]:
        """Copies of the potentials that ask for gradients."""
        return {name: x.detach().clone().requires_grad_() for name, x in self.potentials.items()}

    @functools.cached_property
    def rows(self) -> list[Row]:
        """The enumeration oracle."""
        arrays = {name: numbers(x) for name, x in self.potentials.items()}
        if self.structure is sl.Categorical:
            return categorical_oracle.rows(**arrays)  # type: ignore[arg-type]
        return chain_oracle.rows(**arrays, lengths=self.lengths)  # type: ignore[arg-type]

    @functools.cached_property
    def log_space(self) -> list[chain_oracle.LogSpace | None]:
        """The float64 oracle for chains that are too large to enumerate."""
        return chain_oracle.log_space_rows(**{n: numbers(x) for n, x in self.potentials.items()}, lengths=self.lengths)  # type: ignore[arg-type]

    def expected(self, of: Any = Row.expected_parts, grad: Sequence[float] | None = None) -> Fields:
        """Per-row results of ``of`` in the shapes of the potentials, weighted by ``grad``."""
        return stack_rows(self.rows, self.shared, of, grad)

    def labels(self, b: int, y: tuple[int, ...]) -> list[int] | int:
        """Output ``y`` of row ``b`` as the structure writes it."""
        if self.structure is sl.Categorical:
            return y[0]
        return [*y, *[-100] * (self.potentials["unary"].shape[1] - len(y))]


@dataclass(frozen=True)
class ChainCase:
    """Sizes and kinds of a random :class:`LinearChain` batch."""

    name: str
    B: int = 5
    N: int = 4
    C: int = 3
    lengths: tuple[int, ...] | None = (4, 3, 1, 0, 2)
    per_position: bool = False
    start: bool = False
    end: bool = False
    dtype: torch.dtype = torch.float64
    spread: float = 2.0  # standard deviation of the potentials
    integers: bool = False  # small integer potentials: exact sums, many ties
    forbidden: float = 0.0  # share of -inf
    seed: int = 0
    dead: tuple[int, ...] = ()  # rows whose every output is forbidden, each at its last position

    def __str__(self) -> str:
        return self.name

    def _draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        if self.integers:
            x = (torch.rand(shape, generator=generator) < 0.2).to(self.dtype)
        else:
            x = (torch.randn(shape, generator=generator, dtype=torch.float64) * self.spread).to(self.dtype)
        return x.masked_fill(torch.rand(shape, generator=generator) < self.forbidden, NEG_INF)

    def problem(self) -> Problem:
        return _chain_problem(self)

    def sized_for(self, backend: str) -> ChainCase:
        """The case itself, or a smaller one for Triton's interpreter, which takes milliseconds a step."""
        return replace(self, B=4, N=3, C=2, lengths=(3, 1, 0, 2)) if backend == "triton" else self


@functools.lru_cache(maxsize=256)
def _chain_problem(case: ChainCase) -> Problem:
    g = torch.Generator().manual_seed(case.seed)
    B, N, C = case.B, case.N, case.C
    unary = case._draw(g, B, N, C)
    transition = case._draw(g, B, max(N - 1, 0), C, C) if case.per_position else case._draw(g, C, C)
    potentials = {"unary": unary, "transition": transition}
    potentials |= {name: case._draw(g, C) for name in ("start", "end") if getattr(case, name)}
    for b in case.dead:
        unary[b, (case.lengths[b] if case.lengths else N) - 1] = NEG_INF
    for b, n in enumerate(case.lengths or ()):
        unary[b, n:] = float("nan")
        if case.per_position:
            transition[b, max(n - 1, 0) :] = float("nan")
    return Problem(sl.LinearChain, potentials, case.lengths)


def chain_cases() -> list[ChainCase]:
    """Every transition shape with and without start and end, in both dtypes."""
    return [
        ChainCase(
            ("steps" if per_position else "shared") + "-start" * start + "-end" * end + "-" + str(dtype)[6:],
            per_position=per_position,
            start=start,
            end=end,
            dtype=dtype,
            seed=seed,
        )
        for seed, (per_position, start, end, dtype) in enumerate(
            itertools.product((False, True), (False, True), (False, True), DTYPES)
        )
    ]


def tie_cases() -> list[ChainCase]:
    """Integer potentials, where sums are exact and many outputs share a score."""
    return [
        replace(c, name=f"ties-{c.name}", integers=True, forbidden=0.1, seed=c.seed + 100)
        for c in chain_cases()
        if c.start == c.end
    ]


def forbidden_cases() -> list[ChainCase]:
    """Many -inf, with whole rows forbidden among feasible ones."""
    return [
        replace(c, name=f"forbidden-{c.name}", forbidden=0.25, dead=(1, 2), seed=c.seed + 300)
        for c in chain_cases()
        if c.start == c.end
    ]


def categorical_problem(dtype: torch.dtype, kind: str) -> Problem:
    g = torch.Generator().manual_seed(7)
    scores = torch.randn((5, 4), generator=g, dtype=torch.float64).mul(2).to(dtype)
    if kind == "ties":
        scores = scores.round()
    if kind == "forbidden":
        scores = scores.masked_fill(torch.rand((5, 4), generator=g) < 0.4, NEG_INF)
        scores[2] = NEG_INF
    if kind == "one class":
        scores = scores[:, :1]
    return Problem(sl.Categorical, {"scores": scores.contiguous()})
