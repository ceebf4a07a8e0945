"""The table of alignments: mode x gap model x dtype, ragged, with NaN in every padded place."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from cases import DTYPES, NEG_INF, Problem, numbers
from oracles import Row
from oracles import alignment as oracle
from torch import Tensor

import structlearn as sl

MODES = ("global", "local", "semiglobal")
FIELDS = ("match", "gap_x", "gap_y", "open_x", "open_y")
X_LENGTHS, Y_LENGTHS = (4, 2, 0, 3, 1, 0), (3, 4, 2, 0, 1, 0)


@dataclass(frozen=True, eq=False)
class AlignmentProblem(Problem):
    """A batch of pairs; ``lengths`` holds those of x, then those of y."""

    mode: str = "global"
    band: int | None = None

    @property
    def shared(self) -> tuple[str, ...]:
        return ()

    @property
    def both(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        if self.lengths is None:
            return None
        half = len(self.lengths) // 2
        return self.lengths[:half], self.lengths[half:]

    def make(self, backend: str = "auto", **changed: Tensor) -> Any:
        given: dict[str, Any] = {**self.potentials, **changed}
        x, y = (None, None) if self.both is None else self.both
        return sl.Alignment(
            given["match"],
            gap=(given["gap_x"], given["gap_y"]),
            gap_open=(given["open_x"], given["open_y"]) if "open_x" in given else None,
            mode=self.mode,  # type: ignore[arg-type]
            x_lengths=x,
            y_lengths=y,
            band=self.band,
            backend=backend,
        )

    @functools.cached_property
    def rows(self) -> list[Row]:
        arrays = {name: numbers(x) for name, x in self.potentials.items()}
        return oracle.rows(**arrays, mode=self.mode, lengths=self.both, band=self.band)  # type: ignore[arg-type]

    def labels(self, b: int, y: tuple[int, ...]) -> list[int]:
        return [*y, *[-100] * (sum(self.potentials["match"].shape[1:]) - len(y))]


@dataclass(frozen=True)
class AlignmentCase:
    """Sizes and kinds of a random batch of pairs."""

    name: str
    mode: str = "global"
    affine: bool = False
    N: int = 4
    M: int = 4
    x_lengths: tuple[int, ...] = X_LENGTHS
    y_lengths: tuple[int, ...] = Y_LENGTHS
    dtype: torch.dtype = torch.float64
    spread: float = 2.0
    integers: bool = False
    forbidden: float = 0.0
    band: int | None = None
    seed: int = 0

    def __str__(self) -> str:
        return self.name

    def _draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        if self.integers:
            x = torch.randint(-1, 2, shape, generator=generator).to(self.dtype)
        else:
            # Paths 1 2 and 2 1 use the same scores: on a grid of 1/64 their sums are exact, and so are such ties.
            x = (
                (torch.randn(shape, generator=generator, dtype=torch.float64) * self.spread * 64)
                .round()
                .div(64)
                .to(self.dtype)
            )
        return x.masked_fill(torch.rand(shape, generator=generator) < self.forbidden, NEG_INF)

    def problem(self) -> AlignmentProblem:
        return _problem(self)


@functools.lru_cache(maxsize=256)
def _problem(case: AlignmentCase) -> AlignmentProblem:
    g = torch.Generator().manual_seed(case.seed)
    B, N, M = len(case.x_lengths), case.N, case.M
    shapes = {"match": (B, N, M), "gap_x": (B, N), "gap_y": (B, M), "open_x": (B, N), "open_y": (B, M)}
    potentials = {name: case._draw(g, *shapes[name]) for name in FIELDS[: 5 if case.affine else 3]}
    for b, (n, m) in enumerate(zip(case.x_lengths, case.y_lengths, strict=True)):
        for name, value in potentials.items():
            if name == "match":
                value[b, :, m:] = float("nan")
            value[b, (m if name.endswith("_y") else n) :] = float("nan")
    return AlignmentProblem(sl.Alignment, potentials, case.x_lengths + case.y_lengths, case.mode, case.band)


def alignment_cases() -> list[AlignmentCase]:
    """Every mode with linear and affine gaps, in both dtypes."""
    return [
        AlignmentCase(
            f"{mode}-{'affine' if affine else 'linear'}-{str(dtype).removeprefix('torch.')}",
            mode=mode,
            affine=affine,
            dtype=dtype,
            seed=seed,
        )
        for seed, (mode, affine, dtype) in enumerate(itertools.product(MODES, (False, True), DTYPES))
    ]


def tie_cases() -> list[AlignmentCase]:
    """Small integers, where sums are exact and many paths share a score."""
    return [
        replace(c, name=f"ties-{c.name}", integers=True, forbidden=0.05, seed=c.seed + 100) for c in alignment_cases()
    ]


def forbidden_cases() -> list[AlignmentCase]:
    """Many -inf, and whole pairs forbidden among feasible ones (no local pair is: the empty alignment is allowed)."""
    return [replace(c, name=f"forbidden-{c.name}", forbidden=0.4, seed=c.seed + 200) for c in alignment_cases()]


def band_cases() -> list[AlignmentCase]:
    """A band of 0, 1 or 2."""
    return [
        replace(c, name=f"band{band}-{c.name}", band=band, seed=c.seed + 300, integers=band == 1)
        for c in alignment_cases()
        for band in (0, 1, 2)
        if c.dtype is torch.float64
    ]


def square_cases() -> list[AlignmentCase]:
    """All 1,683 paths of 5 x 5, without padding."""
    return [
        replace(c, name=f"5x5-{c.name}", N=5, M=5, x_lengths=(5, 5), y_lengths=(5, 5), seed=c.seed + 400)
        for c in alignment_cases()
    ]
