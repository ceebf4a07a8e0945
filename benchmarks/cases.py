"""Ragged batches that every contestant gets, and float64 answers by the plainest route."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAD = -100


@dataclass(frozen=True, eq=False)
class ChainCase:
    """unary (B,N,C) and transition (C,C) float32, lengths (B,) int64 spread evenly over N/2..N, in random order."""

    shape: tuple[int, int, int]
    unary: NDArray[np.float32]
    transition: NDArray[np.float32]
    lengths: NDArray[np.int64]

    def __str__(self) -> str:
        return f"({','.join(map(str, self.shape))})"

    @property
    def steps(self) -> int:
        """Σ_b (length_b − 1): the transitions that a recurrence has to work through."""
        return int((self.lengths - 1).clip(min=0).sum())

    @property
    def mask(self) -> NDArray[np.bool_]:
        """(B,N): which positions are real."""
        return np.arange(self.shape[1])[None, :] < self.lengths[:, None]

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return self.unary.nbytes + self.transition.nbytes + self.lengths.nbytes

    def rows(self, count: int) -> "ChainCase":
        """The first `count` sequences."""
        return ChainCase((count, *self.shape[1:]), self.unary[:count], self.transition, self.lengths[:count])


@functools.lru_cache(maxsize=16)
def chain_case(shape: tuple[int, int, int], seed: int = 0) -> ChainCase:
    """Standard normal potentials for (B,N,C)."""
    batch, positions, labels = shape
    random = np.random.default_rng([seed, *shape])
    unary = random.standard_normal(shape, dtype=np.float32)
    transition = random.standard_normal((labels, labels), dtype=np.float32)
    lengths = np.linspace(positions, positions / 2, batch).round().astype(np.int64)
    random.shuffle(lengths)
    return ChainCase(shape, unary, transition, lengths)


def chain_path_scores(case: ChainCase, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """F(y) = Σ_n unary[n,y_n] + Σ_n transition[y_{n−1},y_n] in float64, (B,), for labels (B,N)."""
    mask = case.mask
    safe = np.where(mask, labels, 0)
    unary = np.take_along_axis(case.unary.astype(np.float64), safe[:, :, None], axis=2)[:, :, 0]
    moves = case.transition.astype(np.float64)[safe[:, :-1], safe[:, 1:]]
    total: NDArray[np.float64] = (unary * mask).sum(1) + (moves * mask[:, 1:]).sum(1)
    return total


def chain_best_scores(case: ChainCase) -> NDArray[np.float64]:
    """max_y F(y) in float64, (B,)."""
    unary, transition, mask = case.unary.astype(np.float64), case.transition.astype(np.float64), case.mask
    best = unary[:, 0]
    for n in range(1, case.shape[1]):
        step = (best[:, :, None] + transition).max(1) + unary[:, n]
        best = np.where(mask[:, n, None], step, best)
    result: NDArray[np.float64] = best.max(1)
    return result


def _logsumexp(scores: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    top = scores.max(axis, keepdims=True)
    total: NDArray[np.float64] = np.log(np.exp(scores - top).sum(axis)) + top.squeeze(axis)
    return total


@dataclass(frozen=True)
class Partition:
    """log Z (B,), d Σ log Z / d unary (B,N,C), d Σ log Z / d transition (C,C)."""

    log_z: NDArray[np.float64]
    unary: NDArray[np.float64]
    transition: NDArray[np.float64]


def chain_partition(case: ChainCase) -> Partition:
    """log Σ_y exp F(y) and its gradients, by forward and backward recurrences in log space."""
    unary, transition, mask = case.unary.astype(np.float64), case.transition.astype(np.float64), case.mask
    positions = case.shape[1]
    alpha = unary.copy()
    for n in range(1, positions):
        step = _logsumexp(alpha[:, n - 1, :, None] + transition, 1) + unary[:, n]
        alpha[:, n] = np.where(mask[:, n, None], step, alpha[:, n - 1])
    log_z = _logsumexp(alpha[:, -1], 1)

    beta = np.zeros_like(unary[:, 0])
    gradient, moves = np.zeros_like(unary), np.zeros_like(transition)
    for n in range(positions - 1, -1, -1):
        here = mask[:, n, None]
        gradient[:, n] = np.where(here, np.exp(alpha[:, n] + beta - log_z[:, None]), 0.0)
        if n > 0:
            pairs = transition + (unary[:, n] + beta)[:, None, :]
            joint = np.exp(alpha[:, n - 1, :, None] + pairs - log_z[:, None, None])
            moves += (joint * here[:, :, None]).sum(0)
            beta = np.where(here, _logsumexp(pairs, 2), beta)
    return Partition(log_z, gradient, moves)
