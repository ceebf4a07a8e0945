"""Candidates and layers, and which candidates stay: the highest, the first of equals, one of equal futures."""

from __future__ import annotations

from typing import Generic, NamedTuple

import torch
from torch import Tensor

from structlearn.search.space import S

STAY = -1


class Candidates(NamedTuple):
    """What may enter a layer: M candidates an example."""

    g: Tensor  # (B, M) score of the path, -inf where there is none
    f: Tensor  # (B, M) g + h, by which they are ranked; -inf for those that recombination drops
    every: Tensor  # (B, M) f before recombination
    good: Tensor | None  # (B, M) bool
    parent: Tensor  # (M,) where it comes from, a number within the lattice
    operator: Tensor  # (M,) or STAY


class Layer(NamedTuple, Generic[S]):
    """K hypotheses an example, the best first; where there are fewer, g is -inf."""

    state: S
    g: Tensor  # (B, K)
    good: Tensor | None  # (B, K) bool, if there is gold
    parent: Tensor  # (B, K)
    operator: Tensor  # (B, K)


def top(scores: Tensor, k: int) -> Tensor:
    """(B, k): indices of the k highest of scores (B, M), descending; equal ones by lowest index. k <= M."""
    if scores.device.type == "cpu" and k < scores.shape[1]:
        # torch.topk is several times faster than a sort but leaves ties open: put those it took into order, and sort
        # only if one that it left out equals the last that it took.
        values, index = scores.topk(k + 1)
        tied = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)
        if not bool(tied.any()):
            return index[:, :k]
        if not bool(tied[:, -1].any()):
            index = index[:, :k].sort(1).values
            order = scores.gather(1, index).sort(dim=1, descending=True, stable=True).indices
            return index.gather(1, order)
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :k]


def distinct(f: Tensor, keys: Tensor) -> Tensor:
    """f (B, M) with -inf for all but the best of equal keys (B, M), the first of equals."""
    size = int(keys.max()) + 1
    best = f.new_full((f.shape[0], size), -torch.inf).scatter_reduce(1, keys, f, "amax")
    place = torch.arange(f.shape[1], device=f.device).expand_as(f)
    tied = torch.where(f == best.gather(1, keys), place, f.shape[1])
    first = torch.full_like(best, f.shape[1], dtype=torch.int64).scatter_reduce(1, keys, tied, "amin")
    return f.masked_fill(place != first.gather(1, keys), -torch.inf)


def by_layer(x: Tensor, reach: int) -> Tensor:
    """(B, K, W*S) to (W, B, K*S)."""
    b, k, _ = x.shape
    return x.view(b, k, reach, -1).permute(2, 0, 1, 3).reshape(reach, b, -1)


def distinct_columns(f: Tensor, step: int) -> Tensor:
    """f (B, R*step) with -inf for all but the highest, first of equals, of the R entries of each of the columns."""
    table = f.view(f.shape[0], -1, step)
    best = table.max(1, keepdim=True).indices
    rows = torch.arange(table.shape[1], device=f.device)[:, None]
    return table.masked_fill(rows != best, -torch.inf).view_as(f)
