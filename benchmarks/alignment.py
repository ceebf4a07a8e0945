"""Alignments: best path, best score, and log-partition with its gradient, beside every peer.

`python -m benchmarks.alignment` writes results/alignment.csv and results/alignment.md.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import alignment_cases as cases
from benchmarks import alignment_peers as peers
from benchmarks import harness, process, report
from benchmarks.alignment_cases import AlignmentCase
from benchmarks.harness import Contestant, Effort, Operation, Row
from benchmarks.quiet import Quiet
from benchmarks.report import Bar

Shape = tuple[int, int, int]
RESULTS = Path(__file__).with_name("results")
FULL = ((32, 100, 100), (32, 300, 300), (32, 1000, 1000))
QUICK = ((3, 20, 17),)
MEMORY_LIMIT_MB = 64


def check_path(case: AlignmentCase, expected: Any, found: Any) -> str | None:
    """Every path has to attain the best score."""
    return check_score(case, expected, cases.path_scores(case, found))


def check_score(case: AlignmentCase, expected: Any, found: Any) -> str | None:
    """Integer scores are sums of integers in float32 too: no rounding."""
    wrong = ~(np.asarray(found, dtype=np.float64) == expected)
    if not wrong.any():
        return None
    row = int(np.argmax(wrong))
    return f"pair {row} scores {found[row]}, not {expected[row]}"


def check_partition(case: AlignmentCase, expected: Any, found: Any) -> str | None:
    """log Z relative to itself, and the posteriors of matches; float32 in log space holds them to about 1e-3."""
    for name, tolerance, want, got in zip(("log Z", "gradient"), (1e-5, 5e-3), expected, found, strict=True):
        error = np.abs(want - got).max() / max(1.0, np.abs(want).max())
        if not error <= tolerance:
            return f"{name} differs by {error:.2g}"
    return None


OPERATIONS: dict[str, tuple[Operation, tuple[Contestant, ...], Any]] = {
    "path": (
        Operation("path", cases.best_scores, check_path, lambda case: case.cells, "cells"),
        peers.TRACE,
        cases.protein_case,
    ),
    "score": (
        Operation("score", cases.best_scores, check_score, lambda case: case.cells, "cells"),
        peers.SCORE,
        cases.protein_case,
    ),
    "partition": (
        Operation("partition", cases.partition, check_partition, lambda case: case.cells, "cells"),
        peers.PARTITION,
        cases.random_case,
    ),
}


def _work(
    names: Sequence[str], shapes: Sequence[tuple[int, int, int]], threads: int, quick: bool
) -> list[dict[str, Any]]:
    process.set_threads(threads)
    effort = Effort(rounds=3, fewest=2, seconds=0.02) if quick else Effort(rounds=20, fewest=5, seconds=0.3)
    rows = []
    for name in names:
        operation, contestants, make = OPERATIONS[name]
        for shape in shapes:
            quiet = Quiet(0.0 if quick else 2.0)
            rows += harness.measure(operation, make(shape), contestants, threads=threads, effort=effort, quiet=quiet)
            done = [row for row in rows if row.operation == name and row.case == str(make(shape)) and row.median_ms]
            told = ", ".join(f"{row.contestant} {row.median_ms:.3g} ms" for row in done)
            print(f"{name} {make(shape)}, threads {threads}: {told}", flush=True)
    return [asdict(row) for row in rows]


def _memory(shape: tuple[int, int, int]) -> int:
    """Bytes that argmax adds at its peak."""
    process.set_threads(2)
    peers.ours_trace(cases.protein_case((2, 8, 8)))()
    return process.extra_memory(peers.ours_trace(cases.protein_case(shape)))


def _fastest(rows: Sequence[Row], case: str, families: Sequence[str]) -> Row | None:
    found = [r for r in rows if r.case == case and r.family in families and r.median_ms is not None]
    return min(found, key=lambda row: row.median_ms or 0.0, default=None)


def bars(rows: Sequence[Row], threads: int) -> list[Bar]:
    """The multiples that were asked for, one for each size; that over the package DeepBLAST is in deepblast.py."""
    asked = (
        ("path", ("parasail",), 1.0, "over parasail's fastest 16-bit trace"),
        ("score", ("nw_striped_16",), 0.5, "over parasail nw_striped_16, whose lanes are half as wide"),
        ("partition", ("deepblast",), 8.0, "over numba pair by pair, as DeepBLAST does it"),
        ("partition", ("torch",), 20.0, "over a torch anti-diagonal loop"),
        ("partition", ("numba",), 8.0, "over numba"),
        ("partition", ("jax",), 8.0, "over JAX"),
    )
    found = []
    for operation, families, limit, text in asked:
        here = [row for row in rows if row.operation == operation and row.threads == threads]
        for case in dict.fromkeys(row.case for row in here):
            rival = _fastest(here, case, families)
            if rival is not None:
                name = f"{operation} {case}: {text}"
                found.append(report.bar_against(name, limit, here, rival, rival.contestant))
                if families in (("numba",), ("jax",)):
                    found.append(report.untaped_bar(f"{name}, values without autograd", limit, here, case, rival))
    return found


def _render(rows: Sequence[Row], memory: int | None, quick: bool) -> list[str]:
    lines = ["# Alignments, float32; shapes are B×N×M", "", *(f"- {line}" for line in report.machine())]
    lines += [
        f"- {report.disturbance(rows)}",
        "",
        "Median ms a call (times structlearn's median, in the same run).",
        "",
    ]
    for threads in sorted({row.threads for row in rows}):
        for name in OPERATIONS:
            here = [row for row in rows if row.operation == name and row.threads == threads]
            if not here:
                continue
            lines += [f"## {name}, threads: {threads}", "", *report.table(here)]
            lines += ["GCUPS: " + "; ".join(_speeds(here, case) for case in dict.fromkeys(r.case for r in here)), ""]
        if not quick:
            lines += [f"## Bars, threads: {threads}", "", *report.bar_table(bars(rows, threads)), ""]
    if memory is not None:
        bar = Bar("path: memory beyond the inputs at the largest shape", MEMORY_LIMIT_MB, memory / 1e6, True, " MB")
        lines += ["## Memory", "", *report.bar_table([bar]), ""]
    return lines


def _speeds(rows: Sequence[Row], case: str) -> str:
    told = [f"{r.contestant} {r.units_per_second / 1e9:.3g}" for r in rows if r.case == case and r.units_per_second]
    return f"{case}: " + ", ".join(told)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in worker processes, one for each thread count, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alignment", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small shape: does it run, not how fast")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for CSV and Markdown")
    parser.add_argument("--operations", nargs="+", choices=tuple(OPERATIONS), default=list(OPERATIONS))
    parser.add_argument("--thread-counts", type=int, nargs="+", default=[1])
    parser.add_argument("--worker", choices=("speed", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    shapes = QUICK if options.quick else FULL
    if options.worker:
        speed = options.worker == "speed"
        result = _work(options.operations, shapes, options.threads, options.quick) if speed else _memory(shapes[-1])
        options.out.write_text(json.dumps(result))
        return
    flags = [*(["--quick"] if options.quick else []), "--operations", *options.operations]
    rows: list[Row] = []
    for threads in options.thread_counts:
        found = process.run("benchmarks.alignment", [*flags, "--worker", "speed"], threads=threads)
        rows += [Row(**record) for record in found]
    memory = process.run("benchmarks.alignment", [*flags, "--worker", "memory"], threads=2, plain_malloc=True)
    options.results.mkdir(parents=True, exist_ok=True)
    report.write_csv(options.results / "alignment.csv", rows)
    text = "\n".join(_render(rows, memory, options.quick))
    (options.results / "alignment.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
