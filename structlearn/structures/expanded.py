"""Chains whose labels carry memory: an automaton's state, or the label before.

An expanded chain has labels e in 0..E-1, each emitting a label emit[e] in 0..C-1, such that every label sequence
that is allowed at all is emitted by exactly one expanded sequence. Its potentials are built from the plain ones, so
every query is the :class:`LinearChain` query on the inner chain, with its kernels, read through ``emit``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from structlearn.semirings import Units
from structlearn.structures import checks
from structlearn.structures.base import PAD, Structure, marginals_by_autograd
from structlearn.structures.chain import LinearChain
from structlearn.structures.counting import CountedBest, Counter, CountTable, LabelCounter


class ExpandedChain(Structure):
    """A chain over C labels answered by an inner chain over E >= C labels; a subclass builds ``inner`` and ``emit``."""

    inner: LinearChain
    emit: Tensor
    unary: Tensor

    @abstractmethod
    def encode(self, y: Tensor) -> Tensor:
        """The expanded labels (..., B, N) that emit y; for a forbidden y some that score -inf."""

    @property
    def lengths(self) -> Tensor | None:
        """(B,), as given."""
        return self.inner.lengths

    @property
    def batch_size(self) -> int:
        return self.unary.shape[0]

    @property
    def mask(self) -> Tensor:
        """(B, N), true at unpadded positions."""
        return self.inner.mask

    def _emitted(self, labels: Tensor) -> Tensor:
        return self.emit[labels.clamp(min=0)].masked_fill(labels < 0, PAD)

    def _narrow(self, x: Tensor) -> Tensor:
        """Results of an inner chain that is wider than the plain potentials, in their dtype."""
        return x if x.dtype is self.unary.dtype else Units(self.unary.dtype, 1.0).narrow(x)

    def _best(self) -> tuple[Tensor, Tensor]:
        labels, score = self.inner._best()
        return self._emitted(labels), self._narrow(score)

    def max(self) -> Tensor:
        return self._narrow(self.inner.max())

    def score(self, y: Tensor) -> Tensor:
        """s(y) for labels (B, N), or (K, B, N) with scores (K, B); -inf for outputs that are not allowed."""
        return self._narrow(self.inner.score(self.encode(self.positions(y)[0])))

    def log_partition(self) -> Tensor:
        return self._narrow(self.inner.log_partition())

    def marginals(self) -> Any:
        """d (sum_b log Z_b) / d potentials, in the fields of this chain."""
        return marginals_by_autograd(self)

    def entropy(self) -> Tensor:
        return self._narrow(self.inner.entropy())

    def count(self) -> Tensor:
        """Number of outputs that are not forbidden, (B,), float64."""
        return self.inner.count()

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """Labels (k, B, N) and scores (k, B) of the k best outputs, best first."""
        labels, scores = self.inner.topk(k)
        return self._emitted(labels), self._narrow(scores)

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """n draws, labels (n, B, N)."""
        return self._emitted(self.inner.sample(n, generator))

    def padded(self, y: Tensor) -> Tensor:
        return y.masked_fill(~self.mask, PAD)

    def same_output(self, y: Tensor, z: Tensor) -> Tensor:
        return ((y == z) | ~self.mask).all(-1)

    def positions(self, y: Tensor) -> tuple[Tensor, Tensor, int, torch.dtype]:
        b, n, c = self.unary.shape
        y = checks.check_label_tensor("y", y, (b, n), self.unary.device)
        mask = self.mask
        checks.check_labels("y", y, mask, c)
        return y.masked_fill(~mask, 0), mask, c, self.unary.dtype

    def parts_of_positions(self, table: Tensor) -> dict[str, Tensor]:
        return {"unary": table}

    def _inner_counter(self, counter: Counter | LabelCounter) -> Counter | LabelCounter:
        """The same statistics, counted on the expanded labels."""
        if isinstance(counter, Counter):
            increments = tuple(
                {name: x.expand(self.unary.shape)[..., self.emit] for name, x in field.items()}
                for field in counter.increments
            )
            return Counter(increments, counter.sizes)
        before = torch.cat([self.emit, self.emit.new_full((1,), self.unary.shape[2])])
        following, step = (x[:, :, before][..., self.emit] for x in (counter.next, counter.step))
        return LabelCounter(counter.classes, following, step, counter.last[:, self.emit], counter.sizes)

    def max_by_count(self, counter: Counter | LabelCounter) -> CountTable:
        found = self.inner.max_by_count(self._inner_counter(counter))
        return CountTable(self._narrow(found.table), lambda index: self._emitted(found.decode(index)))

    def best_by_count(self, counter: Counter | LabelCounter, offset: Tensor, slope: Tensor) -> CountedBest:
        wide = self.inner.unary.dtype
        found = self.inner.best_by_count(self._inner_counter(counter), offset.to(wide), slope.to(wide))
        return CountedBest(self._emitted(found.y), found.index, self._narrow(found.value))
