"""Pairs of sequences that every contestant aligns, and float64 answers by anti-diagonals in numpy."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LETTERS = "ARNDCQEGHILKMFPSTWYV"


@dataclass(frozen=True, eq=False)
class AlignmentCase:
    """match (B,N,M) float32 and the letters it comes from; gap scores are integers, as parasail wants them."""

    shape: tuple[int, int, int]
    match: NDArray[np.float32]
    sequences: tuple[tuple[str, ...], tuple[str, ...]]
    gap: float
    gap_open: float

    def __str__(self) -> str:
        return "×".join(map(str, self.shape))

    @property
    def cells(self) -> float:
        """B·N·M."""
        return float(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return self.match.nbytes


@functools.lru_cache(maxsize=4)
def protein_case(shape: tuple[int, int, int]) -> AlignmentCase:
    """Random proteins and mutated copies of them, BLOSUM62, gaps 11 and 1."""
    from structlearn.data.substitution import substitution_table

    b, n, m = shape
    random = np.random.default_rng([7, *shape])
    x = random.integers(0, 20, (b, n))
    kept = x[:, np.minimum(np.arange(m), n - 1)]
    y = np.where(random.random((b, m)) < 0.4, kept, random.integers(0, 20, (b, m)))
    table = substitution_table("BLOSUM62").numpy()
    match = np.ascontiguousarray(table[x[:, :, None], y[:, None, :]], dtype=np.float32)
    words = tuple(tuple("".join(LETTERS[k] for k in row) for row in side) for side in (x, y))
    return AlignmentCase(shape, match, (words[0], words[1]), -1.0, -11.0)


@functools.lru_cache(maxsize=4)
def random_case(shape: tuple[int, int, int]) -> AlignmentCase:
    """Standard normal match scores, linear gaps of -1."""
    random = np.random.default_rng([8, *shape])
    return AlignmentCase(shape, random.standard_normal(shape, dtype=np.float32), ((), ()), -1.0, -1.0)


def best_scores(case: AlignmentCase) -> NDArray[np.float64]:
    """max s(y), (B,), affine gaps, one anti-diagonal after the other."""
    b, n, m = case.shape
    low = -np.inf
    M, X, Y = (np.full((b, n + 2), low) for _ in range(3))
    H_before = M.copy()
    M[:, 1] = 0.0  # column i + 1 holds row i
    H = M.copy()
    rows = np.arange(n + 1)
    for d in range(1, n + m + 1):
        j = d - rows
        inside = (j >= 0) & (j <= m)
        reached = np.full((b, n + 1), low)
        both = inside & (rows >= 1) & (j >= 1)
        reached[:, both] = H_before[:, rows[both]] + case.match[:, rows[both] - 1, j[both] - 1]
        above = slice(0, n + 1)
        x = np.maximum(np.maximum(M, Y)[:, above] + case.gap_open, X[:, above] + case.gap)
        y = np.maximum(np.maximum(M, X)[:, 1:] + case.gap_open, Y[:, 1:] + case.gap)
        H_before = H
        M, X, Y = (np.full((b, n + 2), low) for _ in range(3))
        M[:, 1:] = np.where(inside, reached, low)
        X[:, 1:] = np.where(inside & (rows >= 1), x, low)
        Y[:, 1:] = np.where(inside & (j >= 1), y, low)
        H = np.maximum(np.maximum(M, X), Y)
    result: NDArray[np.float64] = H[:, n + 1]
    return result


def path_scores(case: AlignmentCase, paths: NDArray[np.int64]) -> NDArray[np.float64]:
    """s(y) of paths (B, at most N+M), affine gaps; NaN where a path does not consume both sequences exactly."""
    _, n, m = case.shape
    found = []
    for b, path in enumerate(paths):
        i = j = 0
        total, before = 0.0, -1
        for op in path[path >= 0]:
            if i + (op != 2) > n or j + (op != 1) > m:
                total = np.nan
                break
            total += case.match[b, i, j] if op == 0 else case.gap if op == before else case.gap_open
            i, j, before = i + (op != 2), j + (op != 1), op
        found.append(total if (i, j) == (n, m) else np.nan)
    return np.array(found)


def partition(case: AlignmentCase) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """log Z (B,) and d Σ log Z / d match (B,N,M), linear gaps, in float64."""
    alpha = totals(case.match.astype(np.float64), case.gap, case.gap)
    beta = totals(case.match[:, ::-1, ::-1].astype(np.float64), case.gap, case.gap)[:, ::-1, ::-1]
    log_z = alpha[:, -1, -1]
    gradient = np.exp(alpha[:, :-1, :-1] + case.match + beta[:, 1:, 1:] - log_z[:, None, None])
    return log_z, gradient


def totals(match: NDArray[np.float64], gap: float, border: float) -> NDArray[np.float64]:
    """log of the sum over paths into every node, (B,N+1,M+1); leading gaps score ``border`` a position."""
    b, n, m = match.shape
    total = np.full((b, n + 1, m + 1), -np.inf)
    total[:, 0] = border * np.arange(m + 1)
    total[:, :, 0] = border * np.arange(n + 1)
    for d in range(2, n + m + 1):
        i = np.arange(max(1, d - m), min(n, d - 1) + 1)
        j = d - i
        parts = (total[:, i - 1, j - 1] + match[:, i - 1, j - 1], total[:, i - 1, j] + gap, total[:, i, j - 1] + gap)
        total[:, i, j] = np.logaddexp(np.logaddexp(parts[0], parts[1]), parts[2])
    return total
