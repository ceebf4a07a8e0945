"""A study measures one kind of structure: workers for each thread count, for memory and for scaling, then a report.

A file such as `benchmarks/chain.py` declares a `Study` and hands it to `main`.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import harness, limits, process, report, roofline
from benchmarks.harness import Contestant, Effort, Operation, Row
from benchmarks.limits import Line, Memory, Scaling
from benchmarks.peers import contestants
from benchmarks.quiet import Quiet
from benchmarks.report import Bar

Shape = tuple[int, ...]
RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Plan:
    """What one run measures.

    Args:
        shapes: the cases whose speed is compared.
        memory: the case whose peak memory is compared; `warm` has as many states but little else.
        large: the case that has to run at all; `axes` gives, for each axis, the shapes on the way to it.
        patience: seconds that a process may wait in all for others on the machine to pause.
        size: the product of the first `size` letters of a shape is what time should be linear in.
    """

    shapes: tuple[Shape, ...]
    memory: Shape
    warm: Shape
    large: Shape
    axes: Mapping[str, tuple[Shape, ...]]
    effort: Effort = field(default_factory=Effort)
    size: int = 2
    patience: float = 120.0


@dataclass(frozen=True)
class Study:
    """One kind of structure: `key`_`operation` names the contestants of an operation in `benchmarks/peers`."""

    key: str
    module: str
    title: str
    operations: tuple[Operation, ...]
    make: Callable[[Any], Any]
    full: Plan
    quick: Plan
    bars: Callable[[Operation, Sequence[Row], Plan], list[Bar]]

    def operation(self, name: str) -> Operation:
        """The operation of that name."""
        return next(operation for operation in self.operations if operation.name == name)

    def contestants(self, operation: Operation) -> list[Contestant]:
        """Ours first, then the peers."""
        return contestants(f"{self.key}_{operation.name}")


def _speed(study: Study, plan: Plan, threads: int) -> list[Row]:
    rows: list[Row] = []
    quiet = Quiet(plan.patience)
    for operation in study.operations:
        roof = roofline.addmax(threads) if operation.unit == "cells" else roofline.matmul()
        for shape in plan.shapes:
            case = study.make(shape)
            entrants = [*study.contestants(operation), roof]
            found = harness.measure(operation, case, entrants, threads=threads, effort=plan.effort, quiet=quiet)
            timed = sorted((row.median_ms, row.contestant) for row in found if row.median_ms and row.role != "roofline")
            told = ", ".join(f"{name} {median:.3g} ms" for median, name in timed[:3])
            print(f"{operation.name} {case}, threads {threads}: {told or 'nobody could be timed'}", flush=True)
            rows += found
    return rows


def _memory(study: Study, plan: Plan, name: str) -> list[Memory]:
    operation = study.operation(name)
    case, warm = study.make(plan.memory), study.make(plan.warm)
    entrants = [x for x in study.contestants(operation) if x.role != "floor"]
    return limits.memory(operation, case, warm, entrants)


def _scaling(study: Study, plan: Plan, name: str) -> Scaling:
    operation = study.operation(name)
    axes = {
        axis: [(math.prod(shape[: plan.size]), lambda shape=shape: study.make(shape)) for shape in shapes]
        for axis, shapes in plan.axes.items()
    }
    ours, large = study.contestants(operation)[0], study.make(plan.large)
    return limits.scaling(operation, ours, large, axes, plan.effort, Quiet(plan.patience))


def _work(study: Study, plan: Plan, jobs: Sequence[str], threads: int) -> dict[str, Any]:
    """What a worker process does: each job is "speed", "memory:operation" or "scaling:operation"."""
    process.set_threads(threads)
    found: dict[str, Any] = {}
    for job in jobs:
        kind, _, operation = job.partition(":")
        if kind == "speed":
            found[job] = [asdict(row) for row in _speed(study, plan, threads)]
        elif kind == "memory":
            found[job] = [asdict(row) for row in _memory(study, plan, operation)]
        else:
            found[job] = asdict(_scaling(study, plan, operation))
    return found


def _read_scaling(record: dict[str, Any]) -> Scaling:
    lines = {axis: Line(**line) for axis, line in record["lines"].items()}
    return Scaling(**(record | {"lines": lines}))


def _limit_bars(used: Sequence[Memory], scaled: Sequence[Scaling]) -> list[Bar]:
    bars = []
    for row in used:
        if row.role == "ours":
            value = None if row.extra is None else row.extra / row.inputs
            text = f"{row.operation} {row.case}: peak memory over inputs"
            bars.append(Bar(text, 4, value, at_most=True, note="" if row.status == "ok" else row.status))
    for result in scaled:
        text = f"{result.operation} {result.case}"
        done = 1.0 if result.status == "ok" else 0.0
        bars.append(Bar(f"{text}: runs within memory and agrees", 1, done, unit="", note=result.status))
        for axis, line in result.lines.items():
            off = 100 * abs(line.slope_ratio - 1)
            bars.append(
                Bar(
                    f"{text}: slope along {axis}, deviation from linear",
                    15,
                    off,
                    at_most=True,
                    unit=" %",
                    sure=line.calm,
                )
            )
    return bars


def _render(
    study: Study, plan: Plan, rows: Sequence[Row], used: Sequence[Memory], scaled: Sequence[Scaling]
) -> list[str]:
    """The tables; the bars are left out of a quick run, whose shapes they do not speak of."""
    lines = ["Median ms a call (times structlearn's median, in the same run).", ""]
    counts = sorted({row.threads for row in rows}, reverse=True)
    for threads in counts:
        verdicts: list[Bar] = []
        for operation in study.operations:
            here = [row for row in rows if row.operation == operation.name and row.threads == threads]
            lines += [f"## {operation.name}, threads: {threads}", "", *report.table(here), ""]
            verdicts += study.bars(operation, here, plan)
        if threads == counts[0]:
            verdicts += _limit_bars(used, scaled)
        if plan is study.full:
            lines += [f"## Bars, threads: {threads}", "", *report.bar_table(verdicts), ""]
    return lines + report.memory_lines(used) + report.scaling_lines(scaled)


def main(study: Study, arguments: Sequence[str] | None = None) -> None:
    """Measure everything in worker processes, print the report and write <key>.csv and <key>.md."""
    parser = argparse.ArgumentParser(prog=f"python -m {study.module}", description=study.title)
    parser.add_argument("--quick", action="store_true", help="small shapes, few samples: does it run, not how fast")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for CSV and Markdown")
    parser.add_argument("--thread-counts", type=int, nargs="+", help="default: 1 2, or 2 if quick")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    plan = study.quick if options.quick else study.full
    if options.worker:
        options.out.write_text(json.dumps(_work(study, plan, options.worker, options.threads)))
        return

    counts = options.thread_counts or ([2] if options.quick else [1, 2])
    header, flags = report.machine(), ["--quick"] if options.quick else []
    memory_jobs = [f"memory:{operation.name}" for operation in study.operations]
    scaling_jobs = [f"scaling:{operation.name}" for operation in study.operations]

    def run(jobs: Sequence[str], threads: int, plain_malloc: bool = False) -> dict[str, Any]:
        arguments = [*flags, "--worker", *jobs]
        found: dict[str, Any] = process.run(study.module, arguments, threads=threads, plain_malloc=plain_malloc)
        return found

    rows: list[Row] = []
    found: dict[str, Any] = {}
    for threads in counts:
        # Libraries and compiled peers load slowly, so a quick run does all its jobs in one process.
        extra = [*memory_jobs, *scaling_jobs] if options.quick and threads == max(counts) else []
        found |= run(["speed", *extra], threads)
        rows += [Row(**record) for record in found["speed"]]
    if not options.quick:
        for job in memory_jobs:
            found |= run([job], max(counts), plain_malloc=True)
        found |= run(scaling_jobs, max(counts))
    used = [Memory(**record) for job in memory_jobs for record in found[job]]
    scaled = [_read_scaling(found[job]) for job in scaling_jobs]

    lines = [f"# {study.title}", "", *(f"- {line}" for line in [*header, report.disturbance(rows)]), ""]
    text = "\n".join(lines + _render(study, plan, rows, used, scaled))
    options.results.mkdir(parents=True, exist_ok=True)
    report.write_csv(options.results / f"{study.key}.csv", rows)
    (options.results / f"{study.key}.md").write_text(text)
    print(text)
