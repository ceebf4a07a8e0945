"""Scores of every range and masks of every kind, and a check of all queries against long double sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from cases import NEG_INF
from oracles.hypergraph import Number, Solution
from torch import Tensor

# Sizes of scores, and what the whole field, every row and every position of it is moved by.
KINDS = {
    "usual": (1.0, 0.0, 0.0, 0.0),
    "ten": (10.0, 0.0, 0.0, 0.0),
    "field offset": (10.0, 1e4, 0.0, 0.0),
    "row offset": (10.0, 0.0, 1e4, 0.0),
    "position offset": (10.0, 0.0, 0.0, 1e4),
    "1e4": (1e4, 0.0, 0.0, 0.0),
    "1e6": (1e6, 0.0, 0.0, 0.0),
    "1e8": (1e8, 0.0, 0.0, 0.0),
    "1e30": (1e30, 0.0, 0.0, 0.0),
    "largest": (math.inf, 0.0, 0.0, 0.0),
}
MASKS = {"none": 0.0, "-inf": NEG_INF, "-1e4": -1e4, "-1e30": -1e30, "lowest": -math.inf}


def draw(rng: np.random.Generator, shape: Sequence[int], kind: str, dtype: torch.dtype, parts: int) -> Tensor:
    """Scores such that ``parts`` of them add up to at most a quarter of the dtype's range."""
    size, field, row, position = KINDS[kind]
    size = min(size, torch.finfo(dtype).max / 4 / parts)
    x = rng.uniform(-size, size, shape) + field * rng.choice([-1, 1])
    x += row * rng.uniform(-1, 1, (*shape[:1], *[1] * (len(shape) - 1)))
    x += position * rng.uniform(-1, 1, (*shape[:2], *[1] * (len(shape) - 2)))
    return torch.tensor(x).to(dtype)


def masked(rng: np.random.Generator, x: Tensor, mask: str, share: float) -> Tensor:
    if mask == "none":
        return x
    value = torch.finfo(x.dtype).min if mask == "lowest" else MASKS[mask]
    return x.masked_fill(torch.tensor(rng.random(x.shape) < share), value)


def wide(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy().astype(Number)


def saturated(x: Number, dtype: torch.dtype) -> Number:
    limits = torch.finfo(dtype)
    return x if x == NEG_INF else min(max(x, Number(limits.min)), Number(limits.max))


def close(found: Any, expected: Any, atol: float, rtol: float = 0.0) -> None:
    a, b = np.asarray(found, dtype=Number), np.asarray(expected, dtype=Number)
    with np.errstate(invalid="ignore"):
        fine = (a == b) | (np.abs(a - b) <= atol + rtol * np.abs(b))
    assert fine.all(), (a[~fine][:3], b[~fine][:3])


def check(s: Any, truth: Sequence[Solution], sizes: Sequence[float], parts: int, per_row: set[str]) -> None:
    """Every query of ``s`` against one solution a row; ``sizes`` are the largest scores of the rows.

    Fields outside ``per_row`` are shared by the batch. Probabilities are compared where log Z tells outputs apart.
    """
    dtype = s.max().dtype
    eps = torch.finfo(dtype).eps
    # Long double has digits for 1e-18 of the sums that an oracle adds up.
    exact = (4e-6 if dtype is torch.float32 else 1e-11) + 1e-18 * parts * min(max(sizes, default=0.0), 1e12)
    rounding = [4 * eps * parts * min(size, torch.finfo(dtype).max / 8 / parts) for size in sizes]
    told_apart = [t.log_partition == NEG_INF or abs(t.log_partition) < 1e12 for t in truth]
    feasible = [b for b, t in enumerate(truth) if t.max > NEG_INF]
    best = [saturated(t.max, dtype) for t in truth]

    scores = s.max().detach()
    for b in range(len(truth)):
        close(scores[b].item(), best[b], rounding[b], 2 * eps * parts)
    outputs, ranked = s.topk(2)
    drawn = s.sample(2)
    for b, t in enumerate(truth):
        assert [x > NEG_INF for x in ranked[:, b].tolist()] == [t.count > 0, t.count > 1]
        close(ranked[0, b].item(), best[b], rounding[b], 2 * eps * parts)
    if len(feasible) == len(truth):
        for y in (s.argmax(), outputs[0]):
            for b, x in enumerate(s.score(y).tolist()):
                close(x, best[b], rounding[b], 2 * eps * parts)
        assert bool((s.score(drawn) > NEG_INF).all())

    log_z, marginals = s.log_partition_and_marginals()
    for values in (s.log_partition(), log_z):
        for b, t in enumerate(truth):
            close(values[b].item(), saturated(t.log_partition, dtype), exact + eps * rounding[b], 4 * eps)
    entropies = s.entropy()
    for b, t in enumerate(truth):
        assert entropies[b] >= 0
        assert math.isfinite(entropies[b])
        if told_apart[b]:
            close(entropies[b].item(), t.entropy, 10 * exact, 1e-6)
    for found in (s.marginals(), marginals):
        for name, x in found._asdict().items():
            if x is None:
                continue
            assert bool(x.isfinite().all()), name
            expected = np.zeros(x.shape, Number)
            for b, t in enumerate(truth):
                for (field, index), p in t.marginals.items():
                    if field == name:
                        expected[(b, *index) if name in per_row else index] += p
            if all(told_apart):
                close(x.detach().double().numpy(), expected, exact, exact)


def curvature(s: Any, leaves: dict[str, Tensor], seed: int) -> list[Tensor]:
    """Second derivatives of log Z along a random direction, and gradients of the entropy."""
    generator = torch.Generator().manual_seed(seed)
    values = list(leaves.values())
    log_z = s.log_partition()
    alive = torch.where(log_z > NEG_INF, log_z, 0.0).sum()
    first = torch.autograd.grad(alive, values, create_graph=True)
    along = sum((g * torch.randn(g.shape, generator=generator).to(g.dtype)).sum() for g in first)
    return [*torch.autograd.grad(along, values), *torch.autograd.grad(s.entropy().sum(), values)]
