"""Interleaved timing of contestants that first have to agree on the answer.

An `Operation` says what has to be computed and how an answer is judged; a `Contestant` computes it in its own way.
`measure` asks every contestant once, refuses those whose answer differs, and times the others in turns, so that
whatever else the machine does falls on all of them alike.
"""

import importlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.quiet import Quiet
from benchmarks.timing import Effort, time_in_turns

__all__ = ["Contestant", "Effort", "Operation", "Row", "measure", "missing", "time_in_turns"]

Role = Literal["ours", "untaped", "peer", "wrapped", "level", "floor", "roofline"]


@dataclass(frozen=True)
class Contestant:
    """One way of computing an operation.

    Args:
        name: as printed.
        prepare: case -> call; imports the library, makes its native inputs, and returns the call that is timed.
        read: native result -> the form that `Operation.check` judges; never timed.
        requires: modules that have to import; if one does not, the contestant is listed as not installed.
        role: "ours"; "untaped", ours without autograd; "peer", an alternative that the bars name; "wrapped", a peer's
            kernel given tensors and autograd; "level", an improved variant that no library ships; "floor", what
            torch itself takes, whose answer nobody looks at; "roofline", the machine's own limit.
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
    """One contestant on one case: `status` is "ok", or the reason why there is no speed.

    `calm` says that enough samples were undisturbed, `sure` that those of ours were too, so that the ratio tells
    something about the contestants rather than about what else the machine did.
    """

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
    calm: bool = False
    sure: bool = False
    calls_per_sample: int = 0
    cores_used: float | None = None
    ratio_to_ours: float | None = None
    units_per_second: float | None = None
    roofline_fraction: float | None = None

    @property
    def least_ms(self) -> float | None:
        """The median, or the fastest sample where too many were disturbed, which only makes a call slower."""
        return self.median_ms if self.calm else self.min_ms

    @property
    def least_ratio(self) -> float | None:
        """What `ratio_to_ours` is at the least, however ours and this contestant were disturbed."""
        if self.ratio_to_ours is None or not self.median_ms or self.least_ms is None:
            return None
        return self.ratio_to_ours * self.least_ms / self.median_ms


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
        if contestant.role in ("floor", "roofline"):
            return "ok", call
        difference = operation.check(case, expected, contestant.read(result))
    except MemoryError:
        return "out of memory", None
    except Exception as error:  # a peer that fails is reported and the others are still measured
        return f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}", None
    return ("ok", call) if difference is None else (f"refused: {difference}", None)


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
        row.disturbed, row.calm = len(timing.walls) - len(timing.undisturbed), timing.calm
        row.cores_used = statistics.median(timing.cores) if timing.cores else None
        if row.role == "roofline":
            # It does a fixed amount of work of its own and returns it. By its median like all others: when a neighbour
            # has half of a core's units, the limit is as much lower as what is held against it.
            row.units_per_second = float(call()) / timing.median
        else:
            row.units_per_second = operation.work(case) / timing.median
    _compare([row for row, _ in timed])
    return rows


def _compare(rows: Sequence[Row]) -> None:
    """Fill in each row's ratio to ours and its share of the roofline."""
    ours = next((row for row in rows if row.role == "ours"), None)
    roof = next((row.units_per_second for row in rows if row.role == "roofline"), None)
    for row in rows:
        if row.role == "roofline":
            continue
        if ours is not None and ours.median_ms and row.median_ms:
            row.ratio_to_ours = row.median_ms / ours.median_ms
            row.sure = ours.calm and row.calm
        if roof and row.units_per_second and row.role != "floor":
            row.roofline_fraction = row.units_per_second / roof
