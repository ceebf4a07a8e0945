"""Interleaved timing of contestants that first have to agree on the answer.

An `Operation` says what has to be computed and how an answer is judged; a `Contestant` computes it in its own way.
`measure` asks every contestant once, refuses those whose answer differs, and times the others in turns, so that
whatever else the machine does falls on all of them alike.
"""

import gc
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.quiet import Quiet, preemptions

Role = Literal["ours", "peer", "wrapped", "level", "roofline"]

# After a parallel region, OpenMP threads of the previous contestant spin for about a millisecond before they sleep.
SETTLE_SECONDS = 0.002
# A timed sample repeats the call until it lasts this long: 1000 times the resolution of the clock, yet shorter than a
# time slice of the scheduler (about 3 ms), which a process that has just slept gets whole even on a busy machine.
SAMPLE_SECONDS = 0.001
# So many undisturbed samples are enough to leave the others out.
CALM_SAMPLES = 5
# A call that takes longer than this fills the caches by itself, so the untimed call before each sample is left out.
LONG_CALL_SECONDS = 0.1
# Calls beyond this are timed once.
SLOW_CALL_SECONDS = 1.0


@dataclass(frozen=True)
class Contestant:
    """One way of computing an operation.

    Args:
        name: as printed.
        prepare: case -> call; imports the library, makes its native inputs, and returns the call that is timed.
        read: native result -> the form that `Operation.check` judges; never timed.
        requires: modules that have to import; if one does not, the contestant is listed as not installed.
        role: "ours"; "peer", an alternative that the bars name; "wrapped", a peer's kernel given tensors and autograd;
            "level", an improved variant that no library ships; "roofline", the machine's own limit.
        family: groups the variants of one library for the bars.
        cannot: case -> reason why it is not even tried, or None.
        compiles_by_shape: a warm-up at another shape does not count (it matters when memory is measured).
    """

    name: str
    prepare: Callable[[Any], Callable[[], Any]]
    read: Callable[[Any], Any] = field(default=lambda result: result)
    requires: tuple[str, ...] = ()
    role: Role = "peer"
    family: str = ""
    cannot: Callable[[Any], str | None] = field(default=lambda case: None)
    compiles_by_shape: bool = False


@dataclass(frozen=True)
class Operation:
    """What is computed: `expect` gives the answer by an independent route, `check` says how a result differs from it.

    Args:
        name: as printed.
        expect: case -> expected answer.
        check: (case, expected, answer) -> None if they agree, else the difference in words.
        work: case -> units of work (cells or flops), to be held against the roofline.
        unit: "cells" of a max-plus product or "flop"; it chooses the roofline.
        spot: (case, answer) -> as `check`, for a case too large for `expect`.
    """

    name: str
    expect: Callable[[Any], Any]
    check: Callable[[Any, Any, Any], str | None]
    work: Callable[[Any], float]
    unit: str
    spot: Callable[[Any, Any], str | None] = field(default=lambda case, answer: None)


@dataclass
class Row:
    """One contestant on one case: `status` is "ok", or the reason why there is no speed."""

    operation: str
    case: str
    threads: int
    contestant: str
    role: str
    family: str
    status: str
    median_ms: float | None = None
    min_ms: float | None = None
    samples: int = 0
    disturbed: int = 0
    calls_per_sample: int = 0
    cores_used: float | None = None
    ratio_to_ours: float | None = None
    units_per_second: float | None = None
    roofline_fraction: float | None = None


@dataclass(frozen=True)
class Effort:
    """How long to measure: at most `rounds` samples each, at least `fewest`, about `seconds` for each contestant."""

    rounds: int = 60
    fewest: int = 5
    seconds: float = 0.8


@dataclass
class Timing:
    """Seconds a call, cores used and preemptions, one entry a sample; `calls` calls make a sample."""

    calls: int = 1
    quota: int = 0
    warm: bool = True
    walls: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)

    @property
    def calm(self) -> list[float]:
        """Seconds a call of the samples in which no other process took a core away, if there are enough of them."""
        calm = [wall for wall, count in zip(self.walls, self.preempted, strict=True) if count == 0]
        return calm if len(calm) >= CALM_SAMPLES else self.walls

    @property
    def median(self) -> float:
        """Median seconds a call over the calm samples."""
        return statistics.median(self.calm)


def missing(modules: Sequence[str]) -> str | None:
    """The reason why one of the modules cannot be imported, or None."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            return f"not installed ({error.name})"
        except Exception as error:  # a broken peer must not end the run of the others
            return f"not importable: {type(error).__name__}: {error}"
    return None


def _enter(
    contestant: Contestant, operation: Operation, case: Any, expected: Any
) -> tuple[str, Callable[[], Any] | None]:
    """Ask once and judge the answer: ("ok", the call to time), or the reason why there is nothing to time."""
    reason = contestant.cannot(case) or missing(contestant.requires)
    if reason is not None:
        return reason, None
    try:
        call = contestant.prepare(case)
        result = call()
        if contestant.role == "roofline":
            return "ok", call
        difference = operation.check(case, expected, contestant.read(result))
    except MemoryError:
        return "out of memory", None
    except Exception as error:  # a peer that fails is reported and the others are still measured
        return f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}", None
    return ("ok", call) if difference is None else (f"refused: {difference}", None)


def _plan(call: Callable[[], Any], effort: Effort) -> Timing:
    """Calls a sample, samples and warming, set from the time of a few calls."""
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    if seconds > SLOW_CALL_SECONDS:
        # This call already is a measured, warmed-up sample; more of them would only cost time.
        return Timing(walls=[seconds], preempted=[0])
    timing = Timing(warm=seconds < LONG_CALL_SECONDS)
    if timing.warm:
        for _ in range(3):
            start = time.perf_counter()
            call()
            seconds = min(seconds, time.perf_counter() - start)
    timing.calls = max(1, round(SAMPLE_SECONDS / seconds))
    each = SETTLE_SECONDS + seconds * (timing.calls + timing.warm)
    timing.quota = min(effort.rounds, max(effort.fewest, int(effort.seconds / each)))
    return timing


def _sample(call: Callable[[], Any], timing: Timing, quiet: Quiet) -> None:
    calls = timing.calls
    time.sleep(SETTLE_SECONDS)
    quiet.wait()
    if timing.warm:
        call()
    before, cpu, start = preemptions(), time.process_time(), time.perf_counter()
    for _ in range(calls):
        call()
    wall = time.perf_counter() - start
    timing.walls.append(wall / calls)
    timing.cores.append((time.process_time() - cpu) / wall)
    timing.preempted.append(preemptions() - before)


def time_in_turns(calls: Sequence[Callable[[], Any]], effort: Effort, quiet: Quiet) -> list[Timing]:
    """Time each call in turns with the others; the garbage collector rests meanwhile."""
    gc.collect()
    gc.disable()
    try:
        timings = [_plan(call, effort) for call in calls]
        for turn in range(effort.rounds):
            for call, timing in zip(calls, timings, strict=True):
                # Fewer samples are spread over all rounds, so that slow and quick calls see the same weather.
                if turn * timing.quota // effort.rounds != (turn + 1) * timing.quota // effort.rounds:
                    _sample(call, timing, quiet)
    finally:
        gc.enable()
    return timings


def measure(
    operation: Operation,
    case: Any,
    contestants: Sequence[Contestant],
    *,
    threads: int,
    effort: Effort,
    quiet: Quiet,
) -> list[Row]:
    """One row for each contestant on `case`; those that agree are timed in turns, the others say why they are not."""
    expected = operation.expect(case)
    rows: list[Row] = []
    timed: list[tuple[Row, Callable[[], Any]]] = []
    for contestant in contestants:
        status, call = _enter(contestant, operation, case, expected)
        row = Row(operation.name, str(case), threads, contestant.name, contestant.role, contestant.family, status)
        rows.append(row)
        if call is not None:
            timed.append((row, call))

    for (row, call), timing in zip(timed, time_in_turns([call for _, call in timed], effort, quiet), strict=True):
        row.median_ms, row.min_ms = timing.median * 1e3, min(timing.walls) * 1e3
        row.samples, row.calls_per_sample = len(timing.walls), timing.calls
        row.disturbed = sum(count > 0 for count in timing.preempted)
        row.cores_used = statistics.median(timing.cores) if timing.cores else None
        # A roofline does a fixed amount of work of its own, whatever the case, and returns it.
        row.units_per_second = (float(call()) if row.role == "roofline" else operation.work(case)) / timing.median
    _compare([row for row, _ in timed])
    return rows


def _compare(rows: Sequence[Row]) -> None:
    """Fill in each row's ratio to ours and its share of the roofline."""
    ours = next((row.median_ms for row in rows if row.role == "ours"), None)
    roof = next((row.units_per_second for row in rows if row.role == "roofline"), None)
    for row in rows:
        if row.role == "roofline":
            continue
        if ours and row.median_ms:
            row.ratio_to_ours = row.median_ms / ours
        if roof and row.units_per_second:
            row.roofline_fraction = row.units_per_second / roof
