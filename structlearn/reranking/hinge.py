"""Linear SVMs of all slices at once, as one batched hinge that runs wherever torch does.

    min over w_j of  1/2 |w_j|^2 + C sum_i max(0, 1 - <w_j, d_ji>)   for every slice j,

d_ji the difference between the two candidates of a pair. Samples of all slices form one sparse matrix (P, F); one step
is a product with the weights (F, S) and one with its transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch


def batched_hinge(
    slices: Sequence[Any], C: float, *, steps: int = 300, device: str | torch.device = "cpu"
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Weights (S, F) of S CSR matrices (P_j, F) of differences, by dual ascent with projection.

    The dual is max over 0 <= a <= C of sum a - 1/2 |sum_i a_i d_i|^2; gradient steps of length 1/L with momentum, L the
    largest eigenvalue of each slice's Gram matrix, converge and need no step size from the caller.
    """
    stacked = scipy.sparse.vstack(slices).tocsr()
    ids = torch.from_numpy(np.repeat(np.arange(len(slices)), [m.shape[0] for m in slices])).to(device)
    rows = _sparse(stacked, device)
    columns = _sparse(stacked.T.tocsr(), device)
    place = (torch.arange(len(ids), device=ids.device), ids)

    def weights(a: torch.Tensor) -> torch.Tensor:
        spread = torch.zeros((len(ids), len(slices)), dtype=torch.float64, device=ids.device)
        spread[place] = a
        return columns @ spread

    def margins(a: torch.Tensor) -> torch.Tensor:
        return (rows @ weights(a))[place]

    # Power iteration; a few per cent above it make the step safe.
    v = torch.ones(len(ids), dtype=torch.float64, device=ids.device)
    sizes = torch.zeros(len(slices), dtype=torch.float64, device=ids.device)
    for _ in range(30):
        norms = torch.zeros_like(sizes).index_add_(0, ids, v * v).sqrt().clamp(min=1e-300)
        v = margins(v / norms[ids])
    largest = torch.zeros_like(sizes).index_add_(0, ids, v * v).sqrt()
    step = 1 / (1.1 * largest.clamp(min=1e-12))[ids]
    a = b = torch.zeros_like(v)
    t = 1.0
    for _ in range(steps):
        after = (b + step * (1 - margins(b))).clamp(0.0, C)
        following = (1 + (1 + 4 * t * t) ** 0.5) / 2
        b = after + (t - 1) / following * (after - a)
        a, t = after, following
    return weights(a).T.cpu().numpy()


def _sparse(matrix: Any, device: str | torch.device) -> torch.Tensor:
    entries = matrix.tocoo()
    places = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
    values = torch.from_numpy(entries.data.astype(np.float64))
    return torch.sparse_coo_tensor(places, values, matrix.shape, device=device, check_invariants=False).coalesce()
