"""Generative substitution scores: log-odds of aligned letters, by counting.

    W[a, b] = log( p(a, b) / (p(a) q(b)) ),   p(a, b) = (n(a, b) + c) / (sum n + c A^2),

with n(a, b) the number of aligned pairs of letters in the training alignments, p(a) and q(b) their frequencies on
either side (in gaps too), and the Laplace constant c. Gaps get one score that is not estimated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.structures import paths


def log_odds(
    x: Tensor,
    y: Tensor,
    path: Tensor,
    num_letters: int,
    *,
    x_lengths: Tensor | None = None,
    y_lengths: Tensor | None = None,
    laplace: float = 1.0,
) -> Tensor:
    """(A, A) log-odds from aligned pairs of sequences.

    Args:
        x, y: letters (B, N) and (B, M).
        path: alignments (B, N+M).
        num_letters: A.
        x_lengths, y_lengths: (B,), the whole if not given.
        laplace: c > 0, added to every count.
    """
    if not laplace > 0:
        raise ArgumentError("laplace", "a number > 0", laplace, "a pair that was not seen has no finite log-odds at 0")
    n = torch.full((len(x),), x.shape[1]) if x_lengths is None else x_lengths
    m = torch.full((len(y),), y.shape[1]) if y_lengths is None else y_lengths
    steps = paths.read(path, n, m)
    match = (steps.op == paths.MATCH) & steps.real
    rows = torch.arange(len(x))[:, None].expand(match.shape)[match]
    pairs = torch.bincount(
        x[rows, steps.i[match]] * num_letters + y[rows, steps.j[match]], minlength=num_letters**2
    ).view(num_letters, num_letters)

    def frequency(tokens: Tensor, lengths: Tensor) -> Tensor:
        inside = torch.arange(tokens.shape[1]) < lengths[:, None]
        count = torch.bincount(tokens[inside], minlength=num_letters).double() + laplace
        return (count / count.sum()).log()

    joint = pairs.double() + laplace
    table = (joint / joint.sum()).log() - frequency(x, n)[:, None] - frequency(y, m)[None, :]
    return table.to(torch.get_default_dtype())
