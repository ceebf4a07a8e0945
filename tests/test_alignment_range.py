"""Alignments over the whole range of scores, under masks of every kind, and of empty sequences."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from alignment_cases import FIELDS, MODES
from cases import DTYPES, NEG_INF
from oracles import alignment as oracle
from range_cases import KINDS, MASKS, check, curvature, draw, masked, wide
from torch import Tensor

import structlearn as sl

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make(fields: dict[str, Tensor], mode: str, **options: Any) -> sl.Alignment:
    gap_open = (fields["open_x"], fields["open_y"]) if "open_x" in fields else None
    return sl.Alignment(
        fields["match"],
        gap=(fields["gap_x"], fields["gap_y"]),
        gap_open=gap_open,
        mode=mode,  # type: ignore[arg-type]
        backend="cpu",
        **options,
    )


def shapes(b: int, n: int, m: int, affine: bool) -> dict[str, tuple[int, ...]]:
    every = {"match": (b, n, m), "gap_x": (b, n), "gap_y": (b, m), "open_x": (b, n), "open_y": (b, m)}
    return {name: every[name] for name in FIELDS[: 5 if affine else 3]}


def check_all(fields: dict[str, Tensor], mode: str, lengths: tuple[list[int], list[int]] | None = None) -> None:
    b, n, m = fields["match"].shape
    x, y = lengths or ([n] * b, [m] * b)
    options = {} if lengths is None else {"x_lengths": x, "y_lengths": y}
    rows = [{name: wide(value)[i] for name, value in fields.items()} for i in range(b)]
    truth = [oracle.graph(row, x[i], y[i], mode).solve() for i, row in enumerate(rows)]
    sizes = [max([float(abs(v[np.isfinite(v)]).max(initial=0)) for v in row.values()]) for row in rows]
    check(make(fields, mode, **options), truth, sizes, n + m + 1, set(FIELDS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_every_size_under_every_mask(kind: str, mode: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(7)
    for (mask, share), affine in itertools.product([("none", 0.0), *((k, 0.3) for k in MASKS)], (False, True)):
        b, n, m = 3, int(rng.integers(0, 6)), int(rng.integers(0, 6))
        fields = {
            name: masked(rng, draw(rng, shape, kind, dtype, n + m + 1), mask, share)
            for name, shape in shapes(b, n, m, affine).items()
        }
        check_all(fields, mode)
        check_all(fields, mode, (rng.integers(0, n + 1, b).tolist(), rng.integers(0, m + 1, b).tolist()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask", ["-1e4", "-1e30", "lowest"])
def test_all_outputs_masked_by_finite_scores(mask: str, mode: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(8)
    for affine, share in itertools.product((False, True), (1.0, 0.8)):
        fields = {
            name: masked(rng, draw(rng, shape, "usual", dtype, 10), mask, share)
            for name, shape in shapes(2, 4, 3, affine).items()
        }
        check_all(fields, mode)
        if mode == "global":
            found = make(fields, mode).marginals()
            total = found.match.sum(-1) + found.gap_x + (0.0 if found.open_x is None else found.open_x)
            torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_finite_masks_and_forbidden_parts_give_the_same_derivatives(
    mode: str, affine: bool, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(9)
    fields = {name: draw(rng, shape, "usual", dtype, 10) for name, shape in shapes(3, 5, 4, affine).items()}
    where = torch.tensor(rng.random((3, 5, 4)) < 0.4)
    results = []
    for value in (NEG_INF, -1e4, -1e30, torch.finfo(dtype).min):
        leaves = {name: x.clone() for name, x in fields.items()}
        leaves["match"][where] = value
        leaves["gap_x"][:, 2] = value
        leaves = {name: x.requires_grad_() for name, x in leaves.items()}
        results.append(curvature(make(leaves, mode), leaves, 3))
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_long_pairs_around_a_large_offset(mode: str, dtype: torch.dtype) -> None:
    """As many steps as two blocks of rows take, so that scales pass from block to block."""
    rng = np.random.default_rng(10)
    for kind, affine in itertools.product(("ten", "field offset", "position offset"), (False, True)):
        fields = {name: draw(rng, shape, kind, dtype, 99) for name, shape in shapes(1, 20, 37, affine).items()}
        check_all(fields, mode)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_empty_sequences(mode: str, affine: bool, dtype: torch.dtype) -> None:
    """An empty tensor is a null pointer, which must not be read as "no open scores"."""
    rng = np.random.default_rng(11)
    for b, n, m in ((2, 0, 3), (2, 3, 0), (2, 0, 0), (0, 3, 2), (0, 0, 0), (1, 1, 1)):
        fields = {name: draw(rng, shape, "usual", dtype, 10) for name, shape in shapes(b, n, m, affine).items()}
        check_all(fields, mode)
        leaves = {name: x.requires_grad_() for name, x in fields.items()}
        s = make(leaves, mode)
        assert s.score(s.argmax()).shape == (b,)
        assert all(bool(x.isfinite().all()) for x in curvature(s, leaves, 0))
        (gradient,) = torch.autograd.grad(s.max().sum(), leaves["gap_y"], retain_graph=True)
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_expanded_potentials(mode: str, affine: bool) -> None:
    """Stride 0 along any axis reads as a copy does."""
    torch.manual_seed(0)
    for empty in (False, True):
        b, n, m = 0 if empty else 3, 4, 5
        for axis in range(3):
            for name in FIELDS[: 5 if affine else 3]:
                fields = {k: torch.randn(shape) for k, shape in shapes(b, n, m, affine).items()}
                shape = fields[name].shape
                fields[name] = torch.randn([1 if d == axis else size for d, size in enumerate(shape)]).expand(shape)
                copied = {k: v.clone() for k, v in fields.items()}
                found = [
                    (
                        s.argmax(),
                        s.max(),
                        s.log_partition(),
                        s.entropy(),
                        *s.topk(2),
                        s.score(s.argmax()),
                        *s.marginals(),
                    )
                    for s in (make(fields, mode), make(copied, mode))
                ]
                for one, other in zip(*found, strict=True):
                    assert one is other is None or torch.equal(one, other)


def test_a_large_gap_score_that_no_inner_cell_uses() -> None:
    """Every gap of a 1 x 1 pair is free, so weights beyond the range never met a sum."""
    match, large = torch.zeros(1, 1, 1, dtype=torch.float64), torch.full((1, 1), 3000.0, dtype=torch.float64)
    s = sl.Alignment(match, gap=(large, large), gap_open=(large, large), mode="semiglobal", backend="cpu")
    assert all(bool(x.isfinite().all()) for x in s.marginals() if x is not None)
