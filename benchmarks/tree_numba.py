"""Numba inside-outside and CKY over labelled spans, parallel over sentences. Imported only where numba is installed."""

import math

import numba
import numpy as np


@numba.njit(parallel=True, cache=True)
def span_partition(spans):  # type: ignore[no-untyped-def]
    """log Z (B,) and d sum log Z / d spans: inside and outside in log space, the latter as shares from the top down."""
    batch, n, _, labels = spans.shape
    log_z = np.empty(batch, dtype=spans.dtype)
    gradient = np.zeros_like(spans)
    for b in numba.prange(batch):
        label = np.empty((n, n), dtype=spans.dtype)
        cut = np.empty((n, n), dtype=spans.dtype)
        inside = np.empty((n, n), dtype=spans.dtype)
        share = np.zeros((n, n), dtype=spans.dtype)
        terms = np.empty(n, dtype=spans.dtype)
        for w in range(n):
            for i in range(n - w):
                j = i + w
                top = spans[b, i, j, 0]
                for c in range(1, labels):
                    top = max(top, spans[b, i, j, c])
                total = spans.dtype.type(0)
                for c in range(labels):
                    total += math.exp(spans[b, i, j, c] - top)
                label[i, j] = top + math.log(total)
                cut[i, j] = 0
                if w > 0:
                    top = inside[i, i] + inside[i + 1, j]
                    for k in range(i, j):
                        terms[k] = inside[i, k] + inside[k + 1, j]
                        top = max(top, terms[k])
                    total = spans.dtype.type(0)
                    for k in range(i, j):
                        total += math.exp(terms[k] - top)
                    cut[i, j] = top + math.log(total)
                inside[i, j] = label[i, j] + cut[i, j]
        log_z[b] = inside[0, n - 1]
        share[0, n - 1] = 1
        for w in range(n - 1, -1, -1):
            for i in range(n - w):
                j = i + w
                mine = share[i, j]
                for k in range(i, j):
                    part = mine * math.exp(inside[i, k] + inside[k + 1, j] - cut[i, j])
                    share[i, k] += part
                    share[k + 1, j] += part
                for c in range(labels):
                    gradient[b, i, j, c] = mine * math.exp(spans[b, i, j, c] - label[i, j])
    return log_z, gradient


@numba.njit(parallel=True, fastmath={"nsz", "arcp", "contract", "afn", "reassoc"}, cache=True)
def span_partition_both(spans):  # type: ignore[no-untyped-def]
    """The same with approximate functions, and a second chart whose rows run over first words."""
    batch, n, _, labels = spans.shape
    log_z = np.empty(batch, dtype=spans.dtype)
    gradient = np.zeros_like(spans)
    for b in numba.prange(batch):
        label = np.empty((n, n), dtype=spans.dtype)
        cut = np.empty((n, n), dtype=spans.dtype)
        inside = np.empty((n, n), dtype=spans.dtype)
        by_end = np.empty((n, n), dtype=spans.dtype)  # [j, i]: the same, contiguous over i
        share = np.zeros((n, n), dtype=spans.dtype)
        by_end_share = np.zeros((n, n), dtype=spans.dtype)
        terms = np.empty(n, dtype=spans.dtype)
        for w in range(n):
            for i in range(n - w):
                j = i + w
                top = spans[b, i, j, 0]
                for c in range(1, labels):
                    top = max(top, spans[b, i, j, c])
                total = spans.dtype.type(0)
                for c in range(labels):
                    total += math.exp(spans[b, i, j, c] - top)
                label[i, j] = top + math.log(total)
                cut[i, j] = 0
                if w > 0:
                    top = inside[i, i] + by_end[j, i + 1]
                    for k in range(i, j):
                        terms[k] = inside[i, k] + by_end[j, k + 1]
                        top = max(top, terms[k])
                    total = spans.dtype.type(0)
                    for k in range(i, j):
                        total += math.exp(terms[k] - top)
                    cut[i, j] = top + math.log(total)
                inside[i, j] = label[i, j] + cut[i, j]
                by_end[j, i] = inside[i, j]
        log_z[b] = inside[0, n - 1]
        share[0, n - 1] = 1
        for w in range(n - 1, -1, -1):
            for i in range(n - w):
                j = i + w
                mine = share[i, j] + by_end_share[j, i]
                for k in range(i, j):
                    part = mine * math.exp(inside[i, k] + by_end[j, k + 1] - cut[i, j])
                    share[i, k] += part
                    by_end_share[j, k + 1] += part
                for c in range(labels):
                    gradient[b, i, j, c] = mine * math.exp(spans[b, i, j, c] - label[i, j])
    return log_z, gradient


@numba.njit(cache=True)
def _read_tree(label, cut, chart):  # type: ignore[no-untyped-def]
    """Writes the labels of the tree that the cuts (N,N) describe into its chart (N,N)."""
    n = len(chart)
    first = np.empty(2 * n, dtype=np.int32)
    last = np.empty(2 * n, dtype=np.int32)
    first[0], last[0], size = 0, n - 1, 1
    while size > 0:
        size -= 1
        i, j = first[size], last[size]
        chart[i, j] = label[i, j]
        if i < j:
            k = cut[i, j]
            first[size], last[size] = i, k
            first[size + 1], last[size + 1] = k + 1, j
            size += 2


@numba.njit(parallel=True, cache=True)
def span_argmax(spans, pad):  # type: ignore[no-untyped-def]
    """Charts (B,N,N) of the best trees: maxima, with labels and cuts kept for every span."""
    batch, n, _, labels = spans.shape
    chart = np.full((batch, n, n), pad, dtype=np.int64)
    for b in numba.prange(batch):
        best = np.empty((n, n), dtype=spans.dtype)
        label = np.empty((n, n), dtype=np.int32)
        cut = np.empty((n, n), dtype=np.int32)
        for w in range(n):
            for i in range(n - w):
                j = i + w
                top, where = spans[b, i, j, 0], 0
                for c in range(1, labels):
                    if spans[b, i, j, c] > top:
                        top, where = spans[b, i, j, c], c
                label[i, j] = where
                if w > 0:
                    most, at = best[i, i] + best[i + 1, j], i
                    for k in range(i + 1, j):
                        x = best[i, k] + best[k + 1, j]
                        if x > most:
                            most, at = x, k
                    cut[i, j] = at
                    top += most
                best[i, j] = top
        _read_tree(label, cut, chart[b])
    return chart


@numba.njit(parallel=True, cache=True)
def span_argmax_both(spans, pad):  # type: ignore[no-untyped-def]
    """The same with a second chart whose rows run over first words, so that all reads are contiguous."""
    batch, n, _, labels = spans.shape
    chart = np.full((batch, n, n), pad, dtype=np.int64)
    for b in numba.prange(batch):
        best = np.empty((n, n), dtype=spans.dtype)
        by_end = np.empty((n, n), dtype=spans.dtype)
        label = np.empty((n, n), dtype=np.int32)
        cut = np.empty((n, n), dtype=np.int32)
        for w in range(n):
            for i in range(n - w):
                j = i + w
                top, where = spans[b, i, j, 0], 0
                for c in range(1, labels):
                    if spans[b, i, j, c] > top:
                        top, where = spans[b, i, j, c], c
                label[i, j] = where
                if w > 0:
                    most, at = best[i, i] + by_end[j, i + 1], i
                    for k in range(i + 1, j):
                        x = best[i, k] + by_end[j, k + 1]
                        if x > most:
                            most, at = x, k
                    cut[i, j] = at
                    top += most
                best[i, j] = top
                by_end[j, i] = top
        _read_tree(label, cut, chart[b])
    return chart
