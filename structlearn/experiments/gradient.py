"""Training by gradient descent, and the real letters, for the experiments that compare losses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from structlearn.structures.base import PAD


class Batch(NamedTuple):
    """Inputs (B, N, ...), labels (B, N) padded with -100, lengths (B,)."""

    x: Tensor
    labels: Tensor
    lengths: Tensor

    def take(self, rows: Tensor) -> Batch:
        """Those rows, padded to the longest of them."""
        longest = int(self.lengths[rows].max())
        return Batch(self.x[rows, :longest], self.labels[rows, :longest], self.lengths[rows])

    def split(self, first: int) -> tuple[Batch, Batch]:
        """The first examples and the rest."""
        rows = torch.arange(len(self.lengths))
        return self.take(rows[:first]), self.take(rows[first:])


def read_letters(folder: Path) -> tuple[Batch, Tensor]:
    """The words of the corpus and their folds (B,)."""
    data = np.load(folder / "letters.npz")
    pixels = torch.from_numpy(np.unpackbits(data["pixels"], axis=1)).float()
    labels = torch.from_numpy(data["labels"].astype(np.int64))
    starts = torch.from_numpy(data["word_start"].astype(np.int64))
    lengths = starts.diff()
    x = torch.zeros(len(lengths), int(lengths.max()), pixels.shape[1])
    y = torch.full(x.shape[:2], PAD)
    inside = torch.arange(x.shape[1]) < lengths[:, None]
    x[inside], y[inside] = pixels, labels
    return Batch(x, y, lengths), torch.from_numpy(data["fold"].astype(np.int64))


def train(
    model: nn.Module,
    loss: nn.Module,
    data: Batch,
    *,
    epochs: int,
    rate: float,
    size: int = 16,
    seed: int = 0,
    decay: float = 0.0,
    head: Sequence[nn.Parameter] = (),
) -> None:
    """Adam with a rate that falls to zero, on loss + decay/2 |head|^2."""
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * -(-len(data.lengths) // size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(data.lengths), generator=draw).split(size):
            part = data.take(rows)
            optimizer.zero_grad()
            value = loss(model(part.x, part.lengths), part.labels)
            if decay:
                value = value + 0.5 * decay * torch.stack([p.square().sum() for p in head]).sum()
            value.backward()
            optimizer.step()
            schedule.step()


def error(model: nn.Module, data: Batch, size: int = 512) -> float:
    """Share of positions labelled wrong, in percent."""
    wrong = total = 0
    with torch.no_grad():
        for rows in torch.arange(len(data.lengths)).split(size):
            part = data.take(rows)
            structure: Any = model(part.x, part.lengths)
            inside = part.labels != PAD
            wrong += int(((structure.argmax() != part.labels) & inside).sum())
            total += int(inside.sum())
    return 100 * wrong / total
