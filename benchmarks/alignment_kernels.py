"""Alignment kernels of the peers: numba in log space over the batch, and pair by pair as DeepBLAST does it."""

import numba
import numpy as np


@numba.njit(cache=True)
def _log_add(a, b):  # type: ignore[no-untyped-def]
    if a < b:
        a, b = b, a
    return a if b == -np.inf else a + np.log1p(np.exp(b - a))


@numba.njit(parallel=True, cache=True)
def partition(match, gap):  # type: ignore[no-untyped-def]
    """log Z (B,) and its gradient by match (B,N,M), global, linear gaps."""
    B, N, M = match.shape
    log_z = np.empty(B, match.dtype)
    gradient = np.empty_like(match)
    for b in numba.prange(B):
        alpha = np.empty((N + 1, M + 1), match.dtype)
        beta = np.empty((N + 1, M + 1), match.dtype)
        alpha[0, 0] = 0.0
        for i in range(N + 1):
            for j in range(M + 1):
                if i + j == 0:
                    continue
                total = np.float32(-np.inf)
                if i > 0 and j > 0:
                    total = alpha[i - 1, j - 1] + match[b, i - 1, j - 1]
                if i > 0:
                    total = _log_add(total, alpha[i - 1, j] + gap)
                if j > 0:
                    total = _log_add(total, alpha[i, j - 1] + gap)
                alpha[i, j] = total
        log_z[b] = alpha[N, M]
        beta[N, M] = 0.0
        for i in range(N, -1, -1):
            for j in range(M, -1, -1):
                if i == N and j == M:
                    continue
                total = np.float32(-np.inf)
                if i < N and j < M:
                    total = beta[i + 1, j + 1] + match[b, i, j]
                    gradient[b, i, j] = np.exp(alpha[i, j] + total - log_z[b])
                if i < N:
                    total = _log_add(total, beta[i + 1, j] + gap)
                if j < M:
                    total = _log_add(total, beta[i, j + 1] + gap)
                beta[i, j] = total
    return log_z, gradient


@numba.njit(cache=True)
def smooth_pair(match, gap, log_z, gradient, b):  # type: ignore[no-untyped-def]
    """One pair by the smoothed maximum and its stored weights: three exponentials and a logarithm a cell."""
    N, M = match.shape
    V = np.zeros((N + 1, M + 1))
    Q = np.zeros((N + 2, M + 2, 3))
    for i in range(1, N + 1):
        V[i, 0] = V[i - 1, 0] + gap
        Q[i, 0, 1] = 1.0
    for j in range(1, M + 1):
        V[0, j] = V[0, j - 1] + gap
        Q[0, j, 2] = 1.0
    for i in range(1, N + 1):
        for j in range(1, M + 1):
            m, x, y = V[i - 1, j - 1] + match[i - 1, j - 1], V[i - 1, j] + gap, V[i, j - 1] + gap
            top = max(m, x, y)
            a, c, d = np.exp(m - top), np.exp(x - top), np.exp(y - top)
            total = a + c + d
            V[i, j] = top + np.log(total)
            Q[i, j, 0], Q[i, j, 1], Q[i, j, 2] = a / total, c / total, d / total
    log_z[b] = V[N, M]
    E = np.zeros((N + 2, M + 2))
    E[N, M] = 1.0
    for i in range(N, -1, -1):
        for j in range(M, -1, -1):
            if i < N or j < M:
                E[i, j] = (
                    E[i + 1, j + 1] * Q[i + 1, j + 1, 0] + E[i + 1, j] * Q[i + 1, j, 1] + E[i, j + 1] * Q[i, j + 1, 2]
                )
            if i > 0 and j > 0:
                gradient[b, i - 1, j - 1] = E[i, j] * Q[i, j, 0]


def smooth(match, gap):  # type: ignore[no-untyped-def]
    """All pairs, one after the other from Python."""
    log_z = np.empty(len(match))
    gradient = np.empty(match.shape)
    for b in range(len(match)):
        smooth_pair(match[b], gap, log_z, gradient, b)
    return log_z, gradient


@numba.njit(parallel=True, cache=True)
def trace(match, gap, gap_open):  # type: ignore[no-untyped-def]
    """Best affine score (B,) and path (B,N+M), plain loops, one byte a cell."""
    B, N, M = match.shape
    scores = np.empty(B, match.dtype)
    paths = np.full((B, N + M), -100, np.int64)
    low = np.float32(-1e30)
    for b in numba.prange(B):
        H = np.empty(M + 1, match.dtype)
        X = np.full(M + 1, low, match.dtype)
        back = np.zeros((N + 1, M + 1), np.uint8)
        H[0] = 0.0
        for j in range(1, M + 1):
            H[j] = gap_open + (j - 1) * gap
        for i in range(1, N + 1):
            diagonal = H[0]
            H[0] = gap_open + (i - 1) * gap
            Y = low
            for j in range(1, M + 1):
                bits = 0
                opened = H[j] + gap_open
                extended = X[j] + gap
                if opened >= extended:
                    X[j] = opened
                    bits |= 4
                else:
                    X[j] = extended
                opened = H[j - 1] + gap_open
                extended = Y + gap
                if opened >= extended:
                    Y = opened
                    bits |= 8
                else:
                    Y = extended
                best = diagonal + match[b, i - 1, j - 1]
                if X[j] > best:
                    best = X[j]
                    bits |= 1
                if best < Y:
                    best = Y
                    bits = (bits & ~1) | 2
                diagonal = H[j]
                H[j] = best
                back[i, j] = bits
        scores[b] = H[M]
        i, j, length, state = N, M, 0, 0
        while i > 0 or j > 0:
            if i == 0:
                op, j = 2, j - 1
            elif j == 0:
                op, i = 1, i - 1
            else:
                bits = back[i, j]
                if state == 0:
                    state = bits & 3
                if state == 0:
                    op, i, j = 0, i - 1, j - 1
                elif state == 1:
                    op = 1
                    state = 0 if bits & 4 else 1
                    i -= 1
                else:
                    op = 2
                    state = 0 if bits & 8 else 2
                    j -= 1
            paths[b, length] = op
            length += 1
        paths[b, :length] = paths[b, :length][::-1].copy()
    return scores, paths
