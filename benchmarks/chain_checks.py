"""Chains: the operations, how an answer is judged, and the bars that the speeds have to clear."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks import cases
from benchmarks.cases import ChainCase, Partition
from benchmarks.harness import Operation, Row
from benchmarks.report import Bar, bar_against, geometric_mean, reachable, untaped_bar
from benchmarks.study import Plan

# float32 sums of some hundred terms of size 1 round at about 1e-6 of the total; near ties may fall either way.
SCORE_TOLERANCE = 1e-5
LOG_Z_TOLERANCE = 2e-5
# log-space recurrences in float32 hold log Z ≈ 10^3 to 10^-4, and a marginal is the exponential of such differences.
GRADIENT_TOLERANCE = 2e-3

# Here only the overhead of a call is measured, and the multiples asked are lower.
OVERHEAD_ONLY = "(1,20,9)"


def check_labels(case: ChainCase, expected: NDArray[np.float64], labels: NDArray[np.int64]) -> str | None:
    """Every path has to score within rounding of the best; labels (B, at least the longest length)."""
    longest = int(case.lengths.max())
    if labels.ndim != 2 or labels.shape[0] != case.shape[0] or labels.shape[1] < longest:
        return f"labels have shape {labels.shape}, not {case.shape[:2]}"
    full = np.zeros(case.shape[:2], dtype=np.int64)
    full[:, :longest] = labels[:, :longest]
    real = full[case.mask]
    if real.min() < 0 or real.max() >= case.shape[2]:
        return f"labels outside 0..{case.shape[2] - 1}"
    gaps = np.abs(expected - cases.chain_path_scores(case, full)) / np.maximum(1.0, np.abs(expected))
    worst = int(np.argmax(gaps))
    if gaps[worst] <= SCORE_TOLERANCE:
        return None
    return f"path {worst} misses the best score {expected[worst]:.6g} by {gaps[worst]:.2g} of it"


def check_partition(case: ChainCase, expected: Partition, found: Partition) -> str | None:
    """log Z, and both gradients relative to their largest entry."""
    for name, tolerance, want, got in (
        ("log Z", LOG_Z_TOLERANCE, expected.log_z, found.log_z),
        ("unary gradient", GRADIENT_TOLERANCE, expected.unary, found.unary),
        ("transition gradient", GRADIENT_TOLERANCE, expected.transition, found.transition),
    ):
        if want.shape != got.shape:
            return f"{name} has shape {got.shape}, not {want.shape}"
        error = np.abs(want - got).max() / max(1.0, np.abs(want).max())
        if not error <= tolerance:
            return f"{name} differs by {error:.2g} of its largest entry"
    return None


def _spot_labels(case: ChainCase, labels: NDArray[np.int64]) -> str | None:
    few = case.rows(min(4, case.shape[0]))
    return check_labels(few, cases.chain_best_scores(few), labels[: few.shape[0]])


def _spot_partition(case: ChainCase, found: Partition) -> str | None:
    """The transition gradient sums over all sequences, so of that only the sum is known: Σ (length − 1)."""
    few = case.rows(min(4, case.shape[0]))
    expected = cases.chain_partition(few)
    count = few.shape[0]
    off = abs(float(found.transition.sum()) / case.steps - 1)
    if not off <= GRADIENT_TOLERANCE:
        return f"transition gradient sums to {found.transition.sum():.6g}, not {case.steps}"
    return check_partition(few, expected, Partition(found.log_z[:count], found.unary[:count], expected.transition))


VITERBI = Operation(
    "viterbi",
    cases.chain_best_scores,
    check_labels,
    lambda case: float(case.steps * case.shape[2] ** 2),
    "cells",
    _spot_labels,
)
# A step costs three products of C² multiply-adds: forward, backward, transition gradient.
PARTITION = Operation(
    "partition",
    cases.chain_partition,
    check_partition,
    lambda case: 6.0 * case.steps * case.shape[2] ** 2,
    "flop",
    _spot_partition,
)


def _fastest(rows: Sequence[Row], case: str, role: str = "peer", family: str = "") -> Row | None:
    found = [
        row
        for row in rows
        if row.case == case and row.role == role and row.median_ms is not None and family in ("", row.family)
    ]
    return min(found, key=lambda row: row.least_ms or 0.0, default=None)


def _against(text: str, limit: float, rows: Sequence[Row], rival: Row | None) -> Bar:
    if rival is None:
        return Bar(text, limit, None, note="no rival ran")
    return bar_against(text, limit, rows, rival, rival.contestant)


def _mean(text: str, limit: float, bars: Sequence[Bar], most: float | None = None) -> Bar:
    """The geometric mean of some bars' values."""
    sure, least = all(bar.sure for bar in bars), geometric_mean(bar.value if bar.sure else bar.least for bar in bars)
    by = "torch alone and products at the roofline"
    mean = geometric_mean(bar.value for bar in bars)
    return Bar(text, limit, mean, sure=sure, least=least, reachable=most, limited_by=by)


def _multiples(rows: Sequence[Row], family: str, limit: float, overhead_limit: float) -> list[Bar]:
    """A bar for each case against one library, where that library can run at all."""
    bars = []
    for row in rows:
        if row.family != family or row.status.startswith(("out of memory", "not installed")):
            continue
        asked = overhead_limit if row.case == OVERHEAD_ONLY else limit
        note = "" if row.status == "ok" else row.status
        bars.append(bar_against(f"{row.operation} {row.case}: over {family}", asked, rows, row, note))
    return bars


def _viterbi_bars(rows: Sequence[Row], cases_: Sequence[str]) -> list[Bar]:
    bars = _multiples(rows, "pytorch-crf", 15, 8) + _multiples(rows, "torch-struct", 100, 20)
    text = "viterbi {}: over the fastest alternative"
    fastest = [_against(text.format(case), 2, rows, _fastest(rows, case)) for case in cases_]
    bars += [*fastest, _mean("viterbi, geometric mean: over the fastest alternative", 3, fastest)]
    bars += [_against(f"viterbi {case}: passes lazy argmax", 1, rows, _fastest(rows, case, "level")) for case in cases_]
    return bars


def _partition_bars(rows: Sequence[Row], cases_: Sequence[str]) -> list[Bar]:
    bars = _multiples(rows, "pytorch-crf", 10, 6) + _multiples(rows, "torch-struct", 100, 20)
    # jax and numba return plain values, as our call without autograd does; in an autograd.Function numba gives what
    # ours through autograd gives. The bars hold ours through autograd against plain values, too.
    kinds = [("jax", "autograd"), ("jax", "values"), ("numba", "autograd"), ("numba", "values"), ("numba", "wrapped")]
    for family, kind in kinds:
        role = "wrapped" if kind == "wrapped" else "peer"
        name = f"{family} in an autograd.Function" if kind == "wrapped" else family
        ours = "values" if kind == "values" else "autograd"
        each, most = [], []
        for case in cases_:
            rival = _fastest(rows, case, role, family)
            most.append(reachable(rows, rival, computing=True))
            text = f"partition {case}, {ours}: never slower than {name}"
            values = kind == "values"
            each.append(untaped_bar(text, 1, rows, case, rival) if values else _against(text, 1, rows, rival))
        best = None if kind == "values" else geometric_mean(most)
        bars += [*each, _mean(f"partition, {ours}, geometric mean: over {name}", 2, each, best)]
    return bars


def bars(operation: Operation, rows: Sequence[Row], plan: Plan) -> list[Bar]:
    """Every bar of one operation at one thread count."""
    names = list(dict.fromkeys(row.case for row in rows))
    found = (_viterbi_bars if operation is VITERBI else _partition_bars)(rows, names)
    wide = {str(shape).replace(" ", "") for shape in plan.shapes if shape[2] >= 50}
    for row in rows:
        if row.role in ("ours", "untaped") and row.case in wide:
            share = None if row.roofline_fraction is None else 100 * row.roofline_fraction
            text = f"{operation.name} {row.case}: share of the roofline"
            text += ", values without autograd" if row.role == "untaped" else ""
            found.append(Bar(text, 40, share, unit=" %", sure=row.sure))
    return found
