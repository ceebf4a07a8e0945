"""Batches of examples of similar length, the same for any number of processes.

An epoch's order depends on the seed and the epoch alone. A step takes ``batch_size`` examples for each process, which
they divide among themselves; the last step may have fewer. In training every process takes part in every step, with a
share of 0 if there is nothing left for it; in evaluation every example is seen once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from structlearn.errors import ArgumentError


class Rows(NamedTuple):
    """The examples of a batch and the weight of its loss."""

    places: list[int]
    share: float


class BucketSampler(DistributedSampler[Rows]):
    """Yields :class:`Rows`. Lightning leaves a DistributedSampler alone and calls ``set_epoch``.

    Args:
        lengths: of the examples.
        batch_size: B, for each process.
        shuffle: a training order; otherwise by length.
        seed: of the order.
        noise: lengths are mixed up to this, so that an example meets others in every epoch.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        noise: float = 3.0,
        replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ArgumentError("batch_size", "an integer >= 1", batch_size, "32 is a start")
        known = dist.is_available() and dist.is_initialized()
        self.num_replicas = replicas or (dist.get_world_size() if known else 1)
        self.rank = rank if rank is not None else (dist.get_rank() if known else 0)
        if not len(lengths):
            raise ArgumentError("data", "examples", "none", "the file that was read has none; see its format in docs")
        if len(lengths) < self.num_replicas:
            # A process without any batch would leave the others waiting at the end.
            expected = f"at least {self.num_replicas} examples, one for each process"
            raise ArgumentError("data", expected, len(lengths), "use fewer processes")
        self.lengths = torch.as_tensor(lengths)
        self.batch_size, self.shuffle, self.seed, self.noise = batch_size, shuffle, seed, noise
        self.epoch = 0
        self.skip = 0

    def _steps(self) -> list[list[int]]:
        """The examples of every step, of all processes together."""
        size = self.batch_size * self.num_replicas
        if not self.shuffle:
            return [rows.tolist() for rows in self.lengths.argsort(stable=True).split(size)]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        noise = torch.rand(len(order), generator=generator) * self.noise
        steps = order[(self.lengths[order] + noise).argsort(stable=True)].split(size)
        return [steps[i].tolist() for i in torch.randperm(len(steps), generator=generator).tolist()]

    def __iter__(self) -> Iterator[Rows]:  # type: ignore[override]
        steps, self.skip = self._steps()[self.skip :], 0
        for step in steps:
            own = step[self.rank :: self.num_replicas]
            if own:
                yield Rows(own, len(own) * self.num_replicas / len(step))
            elif self.shuffle:
                yield Rows(step[:1], 0.0)

    def __len__(self) -> int:
        # Steps never depend on the order, so their number is that of full ones and a last one.
        steps = math.ceil(len(self.lengths) / (self.batch_size * self.num_replicas))
        left = len(self.lengths) % (self.batch_size * self.num_replicas)
        last_is_mine = left == 0 or self.rank < left
        return steps if self.shuffle or last_is_mine else steps - 1
