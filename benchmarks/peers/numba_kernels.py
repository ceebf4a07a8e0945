"""Numba kernels for chains, parallel over sequences. Imported only where numba is installed."""

import math

import numba
import numpy as np


def _compiled(function):  # type: ignore[no-untyped-def]
    """Parallel regions for prange alone: those that numba makes of array expressions cost more than they bring."""
    implicit = ("comprehension", "fusion", "inplace_binop", "numpy", "reduction", "setitem", "stencil")
    # numba empties the dictionary that it is given, so each kernel needs its own.
    options = {"prange": True} | dict.fromkeys(implicit, False)
    return numba.njit(parallel=options, fastmath=True, cache=True)(function)


@_compiled
def viterbi(unary, transition, lengths, pad):  # type: ignore[no-untyped-def]
    """Labels (B,N): plain loops, a back-pointer for every state."""
    batch, positions, labels = unary.shape
    out = np.full((batch, positions), pad, dtype=np.int64)
    for b in numba.prange(batch):
        length = lengths[b]
        pointers = np.empty((length, labels), dtype=np.int32)
        best, step = unary[b, 0].copy(), np.empty(labels, dtype=unary.dtype)
        for n in range(1, length):
            for j in range(labels):
                top, where = best[0] + transition[0, j], 0
                for i in range(1, labels):
                    score = best[i] + transition[i, j]
                    if score > top:
                        top, where = score, i
                step[j] = top + unary[b, n, j]
                pointers[n, j] = where
            best, step = step, best
        label = np.argmax(best)
        out[b, length - 1] = label
        for n in range(length - 1, 0, -1):
            label = pointers[n, label]
            out[b, n - 1] = label
    return out


@_compiled
def viterbi_lazy(unary, transition, lengths, pad):  # type: ignore[no-untyped-def]
    """Labels (B,N): the loops keep maxima only; the argmax is recovered along the best path."""
    batch, positions, labels = unary.shape
    out = np.full((batch, positions), pad, dtype=np.int64)
    columns = np.ascontiguousarray(transition.T)
    for b in numba.prange(batch):
        length = lengths[b]
        best = np.empty((length, labels), dtype=unary.dtype)
        best[0] = unary[b, 0]
        for n in range(1, length):
            row = best[n]
            first = best[n - 1, 0]
            for j in range(labels):
                row[j] = first + transition[0, j]
            for i in range(1, labels):
                score = best[n - 1, i]
                for j in range(labels):
                    row[j] = max(row[j], score + transition[i, j])
            for j in range(labels):
                row[j] += unary[b, n, j]
        label = np.argmax(best[length - 1])
        out[b, length - 1] = label
        for n in range(length - 1, 0, -1):
            top, where = best[n - 1, 0] + columns[label, 0], 0
            for i in range(1, labels):
                score = best[n - 1, i] + columns[label, i]
                if score > top:
                    top, where = score, i
            label = where  # type: ignore[assignment]
            out[b, n - 1] = label
    return out


@_compiled
def partition(unary, transition, lengths, workers):  # type: ignore[no-untyped-def]
    """log Z (B,) and d Σ log Z / d unary, d transition: forward and backward in scaled probability space.

    Each of the `workers` sums transition counts of its own.
    """
    batch, positions, labels = unary.shape
    log_z = np.zeros(batch, dtype=unary.dtype)
    gradient = np.zeros_like(unary)
    highest = transition.max()
    moves = np.exp(transition - highest)
    counts = np.zeros((workers, labels, labels), dtype=unary.dtype)
    for worker in numba.prange(workers):
        alpha = np.empty((positions, labels), dtype=unary.dtype)
        weight = np.empty((positions, labels), dtype=unary.dtype)
        beta, product = np.empty(labels, dtype=unary.dtype), np.empty(labels, dtype=unary.dtype)
        for b in range(worker, batch, workers):
            length = lengths[b]
            total_log = 0.0
            for n in range(length):
                row = alpha[n]
                if n == 0:
                    row[:] = 1.0
                else:
                    row[:] = 0.0
                    for i in range(labels):
                        mass = alpha[n - 1, i]
                        for j in range(labels):
                            row[j] += mass * moves[i, j]
                peak = unary[b, n].max()
                total = np.float32(0.0)
                for j in range(labels):
                    weight[n, j] = math.exp(unary[b, n, j] - peak)
                    row[j] *= weight[n, j]
                    total += row[j]
                inverse = np.float32(1.0) / total
                for j in range(labels):
                    row[j] *= inverse
                    weight[n, j] *= inverse
                total_log += math.log(total) + peak + (highest if n > 0 else 0.0)
            log_z[b] = total_log
            beta[:] = 1.0
            for n in range(length - 1, -1, -1):
                for j in range(labels):
                    gradient[b, n, j] = alpha[n, j] * beta[j]
                    product[j] = weight[n, j] * beta[j]
                if n > 0:
                    for i in range(labels):
                        mass, total = alpha[n - 1, i], np.float32(0.0)
                        for j in range(labels):
                            total += moves[i, j] * product[j]
                            counts[worker, i, j] += mass * product[j]
                        beta[i] = total
    return log_z, gradient, counts.sum(0) * moves
