"""Sums over the processes that train together; with one process there is nothing to add."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def processes() -> int:
    """How many train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def anywhere(here: bool) -> bool:
    """Whether something holds in any process."""
    if processes() == 1:
        return here
    found = torch.tensor([int(here)])
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)


def total(here: int) -> int:
    """A number, added up over all processes."""
    if processes() == 1:
        return here
    found = torch.tensor([here])
    dist.all_reduce(found)
    return int(found)


def sum_of_rows(rows: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (U,) with gradients (U, C) of every process, as the rows of any with sums, sorted."""
    count, size = dist.get_world_size(), torch.tensor([len(rows)])
    sizes = [torch.empty_like(size) for _ in range(count)]
    dist.all_gather(sizes, size)
    most = int(torch.cat(sizes).max())
    # Processes may only send equal sizes: the rest is cut off again.
    sent = (torch.nn.functional.pad(rows, (0, most - len(rows))), _longer(gradient, most))
    got = []
    for own in sent:
        parts = [torch.empty_like(own) for _ in range(count)]
        dist.all_gather(parts, own)
        got.append(torch.cat([part[: int(n)] for part, n in zip(parts, sizes, strict=True)]))
    whole, at = got[0].unique(return_inverse=True)
    return whole, gradient.new_zeros((len(whole), gradient.shape[1])).index_add_(0, at, got[1])


def _longer(rows: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, 0, 0, size - len(rows)))
