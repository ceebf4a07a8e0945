"""Batches of trees that every contestant gets, float64 answers by the plainest route, and how answers are judged."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Operation

Array = NDArray[Any]
# float32 sums of a hundred terms of size 1; near ties may fall either way.
SCORE_TOLERANCE = 1e-5
# Marginals are exponentials of differences of sums of size 10^2.
GRADIENT_TOLERANCE = 2e-3


@dataclass(frozen=True, eq=False)
class SpanCase:
    """spans (B,N,N,L) float32, every sentence N words."""

    spans: NDArray[np.float32]

    def __str__(self) -> str:
        b, n, _, labels = self.spans.shape
        return f"B={b} N={n} L={labels}"


@functools.lru_cache(maxsize=4)
def span_case(shape: tuple[int, int, int]) -> SpanCase:
    """Standard normal potentials for (B,N,L)."""
    b, n, labels = shape
    random = np.random.default_rng([1, *shape])
    return SpanCase(random.standard_normal((b, n, n, labels), dtype=np.float32))


@dataclass(frozen=True, eq=False)
class DenseCase:
    """All triples of symbols are rules: terms (B,N,P), rules (NT,S,S), roots (NT,), float32, P = 2 NT."""

    terms: NDArray[np.float32]
    rules: NDArray[np.float32]
    roots: NDArray[np.float32]

    def __str__(self) -> str:
        b, n, _ = self.terms.shape
        return f"B={b} N={n} NT={self.roots.shape[0]}"


@functools.lru_cache(maxsize=4)
def dense_case(shape: tuple[int, int, int]) -> DenseCase:
    """Normalised scores, as a neural PCFG makes them, for (B,N,NT)."""
    b, n, nt = shape
    random = np.random.default_rng([2, *shape])
    s = 3 * nt

    def log_softmax(*sizes: int) -> Array:
        x = random.standard_normal(sizes, dtype=np.float32)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    rules = log_softmax(nt, s * s).reshape(nt, s, s)
    return DenseCase(log_softmax(b, n, 2 * nt), rules, log_softmax(nt))


def span_best(case: SpanCase) -> Array:
    """max_y s(y), (B,), in float64."""
    label = case.spans.astype(np.float64).max(-1)
    n = label.shape[1]
    best = np.zeros_like(label)
    for w in range(n):
        for i in range(n - w):
            cuts = best[:, i, i : i + w] + best[:, i + 1 : i + w + 1, i + w] if w else None
            best[:, i, i + w] = label[:, i, i + w] + (0.0 if cuts is None else cuts.max(-1))
    return best[:, 0, n - 1]


def check_span_score(case: SpanCase, expected: Array, chart: Array) -> str | None:
    """``chart`` (B,N,N): labels of a binary tree, negative elsewhere, that scores within rounding of the best."""
    for b, labels in enumerate(chart):
        score, stack, n = 0.0, [(0, labels.shape[0] - 1)], 0
        while stack:
            i, j = stack.pop()
            n += 1
            if labels[i, j] < 0:
                return f"sentence {b} has no label on {i}..{j}"
            score += float(case.spans[b, i, j, labels[i, j]])
            if i < j:
                cut = next((k for k in range(i, j) if labels[i, k] >= 0 and labels[k + 1, j] >= 0), None)
                if cut is None:
                    return f"sentence {b} is no tree at {i}..{j}"
                stack += [(i, cut), (cut + 1, j)]
        if n != int((labels >= 0).sum()):
            return f"sentence {b} has labels outside its tree"
        if abs(score - expected[b]) > SCORE_TOLERANCE * max(1.0, abs(expected[b])):
            return f"tree {b} scores {score:.6g}, not {expected[b]:.6g}"
    return None


def check_close(case: Any, expected: dict[str, Array], found: dict[str, Array]) -> str | None:
    """log Z within rounding and every gradient relative to its largest entry."""
    for name, want in expected.items():
        got = found[name]
        if want.shape != got.shape:
            return f"{name} has shape {got.shape}, not {want.shape}"
        tolerance = SCORE_TOLERANCE if name == "log Z" else GRADIENT_TOLERANCE
        error = np.abs(want - got).max() / max(1.0, np.abs(want).max())
        if not error <= tolerance:
            return f"{name} differs by {error:.2g} of its largest entry"
    return None


def span_partition(case: SpanCase) -> dict[str, Array]:
    """log Z (B,) and d sum log Z / d spans in float64: inside sums, then the chain rule from the whole to the parts."""
    spans = case.spans.astype(np.float64)
    b, n = spans.shape[:2]
    label = np.logaddexp.reduce(spans, -1)
    inside = np.zeros((b, n, n))
    cuts = {}
    for w in range(n):
        for i in range(n - w):
            j = i + w
            cuts[i, j] = inside[:, i, i:j] + inside[:, i + 1 : j + 1, j]
            inside[:, i, j] = label[:, i, j] + (np.logaddexp.reduce(cuts[i, j], -1) if w else 0.0)
    share = np.zeros((b, n, n))
    share[:, 0, n - 1] = 1.0
    for w in range(n - 1, 0, -1):
        for i in range(n - w):
            j = i + w
            parts = share[:, i, j, None] * np.exp(cuts[i, j] - np.logaddexp.reduce(cuts[i, j], -1)[:, None])
            share[:, i, i:j] += parts
            share[:, i + 1 : j + 1, j] += parts
    gradient = share[..., None] * np.exp(spans - label[..., None])
    return {"log Z": inside[:, 0, n - 1], "spans": gradient * np.triu(np.ones((n, n)))[..., None]}


def dense_best(case: DenseCase) -> Array:
    """max_y s(y), (B,), in float64: the best cut for every pair of children, then the rules."""
    terms, rules = case.terms.astype(np.float64), case.rules.astype(np.float64)
    b, n, p = terms.shape
    nt = case.roots.shape[0]
    flat = rules.reshape(nt, -1)
    chart = np.full((b, n, n, nt + p), -np.inf)
    chart[:, np.arange(n), np.arange(n), nt:] = terms
    for w in range(1, n):
        for i in range(n - w):
            j = i + w
            pairs = np.full((b, nt + p, nt + p), -np.inf)
            for k in range(i, j):
                np.maximum(pairs, chart[:, i, k, :, None] + chart[:, k + 1, j, None, :], out=pairs)
            for row in range(b):
                chart[row, i, j, :nt] = (pairs[row].ravel() + flat).max(1)
    return (chart[:, 0, n - 1, :nt] + case.roots).max(-1)


def dense_score(case: DenseCase, counts: dict[str, Array]) -> Array:
    """s(y), (B,), from how often y uses each part: terms (B,N,P), rules (B,NT,S,S), roots (B,NT)."""
    return (
        (counts["terms"] * case.terms.astype(np.float64)).sum((1, 2))
        + np.einsum("bijk,ijk->b", counts["rules"], case.rules.astype(np.float64))
        + (counts["roots"] * case.roots.astype(np.float64)).sum(1)
    )


def check_dense_score(case: DenseCase, expected: Array, counts: dict[str, Array]) -> str | None:
    """A derivation has N words, N-1 rules and one root, and scores within rounding of the best."""
    b, n, _ = case.terms.shape
    for name, count in (("terms", n), ("rules", n - 1), ("roots", 1)):
        found = counts[name].reshape(b, -1).sum(1)
        if not np.allclose(found, count):
            return f"{name} count {found[0]:.3g}, not {count}"
    gap = np.abs(dense_score(case, counts) - expected) / np.maximum(1.0, np.abs(expected))
    return None if gap.max() <= SCORE_TOLERANCE else f"a derivation misses the best score by {gap.max():.2g} of it"


def _expected_dense(case: DenseCase) -> dict[str, Array]:
    import torch

    from benchmarks.tree_torch import dense_loop

    leaves = [torch.tensor(x, dtype=torch.float64).requires_grad_() for x in (case.terms, case.rules, case.roots)]
    log_z = dense_loop(*leaves)
    grads = torch.autograd.grad(log_z.sum(), leaves)
    names = ("terms", "rules", "roots")
    return {"log Z": log_z.detach().numpy(), **{k: g.numpy() for k, g in zip(names, grads, strict=True)}}


def _cells(n: int) -> float:
    return (n - 1) * n * (n + 1) / 6


SPAN_ARGMAX = Operation(
    "span argmax", span_best, check_span_score, lambda c: len(c.spans) * _cells(c.spans.shape[1]), "cells"
)
SPAN_PARTITION = Operation(
    "span partition", span_partition, check_close, lambda c: 6.0 * len(c.spans) * _cells(c.spans.shape[1]), "flop"
)
DENSE_ARGMAX = Operation("dense argmax", dense_best, check_dense_score, lambda c: 1.0, "cells")
DENSE_PARTITION = Operation("dense partition", _expected_dense, check_close, lambda c: 1.0, "flop")
