"""Kernels of the exact structured SVM: float64, in place, on the CPU."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from structlearn.ops._library import kernel


def _pack(*values: Tensor | int | float) -> bytes:
    """A struct of pointers, 64-bit integers and doubles, in the order of the C declaration."""
    words = [v.data_ptr() if isinstance(v, Tensor) else v for v in values]
    return struct.pack("".join("d" if isinstance(v, float) else "q" for v in words), *words)


def ascend(
    planes: tuple[Tensor | int, ...],
    b: Tensor,
    head: Tensor,
    following: Tensor,
    idle: Tensor,
    products: tuple[Tensor, Tensor],
    order: Tensor,
    alpha: Tensor,
    w: Tensor,
    slope: Tensor,
    *,
    box: float,
    ridge: float,
    tolerance: float,
    passes: int,
    steps: int,
    most_idle: int,
    share: float,
) -> int:
    """Block-coordinate ascent on ``alpha`` and ``w`` in place; the passes made, -1 where the dual is unbounded."""
    args = _pack(
        *planes, b, head, following, idle, *products, order, len(order), alpha, w, slope,
        float(box), float(ridge), float(tolerance), passes, steps, most_idle, float(share),
    )  # fmt: skip
    return int(kernel("svm_ascend", torch.float64, 1)(args))


def products(
    planes: tuple[Tensor | int, ...], start: int, following: Tensor, gram_start: Tensor, scratch: Tensor, gram: Tensor
) -> None:
    """<a_p, a_q> for planes p from ``start`` on and q = p and its elders, into ``gram``; ``scratch`` (d,) is 0."""
    function = kernel("svm_products", torch.float64, 7)
    ends = [x.data_ptr() for x in (following, gram_start, scratch, gram)]
    function(_pack(*planes), start, len(following), *ends)


def slacks(
    planes: tuple[Tensor | int, ...],
    b: Tensor,
    head: Tensor,
    following: Tensor,
    order: Tensor,
    w: Tensor,
    idle: Tensor,
    most_idle: int,
) -> Tensor:
    """max(0, max of b - <w, a>) over the planes of each block in ``order`` that were idle at most ``most_idle``."""
    out = torch.empty(len(order), dtype=torch.float64)
    function = kernel("svm_slacks", torch.float64, 10)
    ends = [x.data_ptr() for x in (b, head, following, order)]
    function(_pack(*planes), *ends, len(order), w.data_ptr(), out.data_ptr(), idle.data_ptr(), most_idle)
    return out


def dots(planes: tuple[Tensor | int, ...], start: int, stop: int, w: Tensor) -> Tensor:
    """<w, a_p> for planes start..stop-1."""
    out = torch.empty(stop - start, dtype=torch.float64)
    kernel("svm_dots", torch.float64, 5)(_pack(*planes), start, stop, w.data_ptr(), out.data_ptr())
    return out


def combine(planes: tuple[Tensor | int, ...], start: int, stop: int, scale: Tensor, w: Tensor) -> None:
    """w += sum_p scale_p a_p for planes start..stop-1, in place."""
    kernel("svm_combine", torch.float64, 5)(_pack(*planes), start, stop, scale.data_ptr(), w.data_ptr())


def smo(
    gram: Tensor, b: Tensor, group: Tensor, alpha: Tensor, slope: Tensor, held: Tensor,
    *, box: float, tolerance: float, steps: int,
) -> int:  # fmt: skip
    """Pairwise steps on ``alpha`` in place; the steps made, -1 where the dual is unbounded."""
    args = _pack(
        gram, b, group, alpha, slope, held, float(box), float(tolerance), len(b), len(group) - 1, steps
    )  # fmt: skip
    return int(kernel("svm_smo", torch.float64, 1)(args))
