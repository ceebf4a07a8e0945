"""What grows with the input: peak memory of one call, and time over size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import harness, process
from benchmarks.harness import Contestant, Effort, Operation
from benchmarks.quiet import Quiet

# A slope is a difference of two times: with five samples each, it moved by 30 % from run to run.
SLOPE_SAMPLES = 15


@dataclass
class Memory:
    """Peak resident bytes that one call adds, next to the bytes of its inputs."""

    operation: str
    case: str
    contestant: str
    role: str
    inputs: int
    status: str = "ok"
    extra: int | None = None


def memory(operation: Operation, case: Any, small: Any, contestants: Sequence[Contestant]) -> list[Memory]:
    """Measure everyone who can run `case`, in order: ours comes first, while the process is fresh.

    The warm-up uses `small`: what it leaves behind in caches and scratch space must not serve the measured call.
    """
    rows = []
    for contestant in contestants:
        row = Memory(operation.name, str(case), contestant.name, contestant.role, case.nbytes)
        rows.append(row)
        reason = contestant.cannot(case) or harness.missing(contestant.requires)
        if reason is not None:
            row.status = reason
            continue
        try:
            call = contestant.prepare(case)
            (call if contestant.compiles_by_shape else contestant.prepare(small))()
            # Peers that take hundreds of MB take them page by page, which is slow; once is enough to see it.
            row.extra = process.extra_memory(call, repeats=3 if contestant.role == "ours" else 1)
        except Exception as error:  # a peer that fails is reported and the others are still measured
            row.status = f"failed: {type(error).__name__}: {error}"
    return rows


@dataclass
class Line:
    """Seconds over size along one axis; sizes ascend."""

    sizes: list[int]
    seconds: list[float]
    calm: bool = True

    @property
    def slope_ratio(self) -> float:
        """Slope of time over size in the upper half, over that in the lower half: 1 if time is linear."""
        middle = len(self.sizes) // 2
        low = (self.seconds[middle] - self.seconds[0]) / (self.sizes[middle] - self.sizes[0])
        high = (self.seconds[-1] - self.seconds[middle]) / (self.sizes[-1] - self.sizes[middle])
        return high / low


@dataclass
class Scaling:
    """One operation of ours up to a large case: it ran, agreed on a spot check, and took this long on the way."""

    operation: str
    case: str
    inputs: int
    status: str = "ok"
    extra: int | None = None
    lines: dict[str, Line] = field(default_factory=dict)


def scaling(
    operation: Operation,
    contestant: Contestant,
    large: Any,
    axes: Mapping[str, Sequence[tuple[int, Callable[[], Any]]]],
    effort: Effort,
    quiet: Quiet,
) -> Scaling:
    """Run `large`, check it, then time along each axis: (size, maker of the case), ascending, in turns."""
    result = Scaling(operation.name, str(large), large.nbytes)
    reason = harness.missing(contestant.requires)
    if reason is not None:
        result.status = reason
        return result
    try:
        call = contestant.prepare(large)
        difference = operation.spot(large, contestant.read(call()))
        if difference is not None:
            result.status = f"refused: {difference}"
            return result
        result.extra = process.extra_memory(call, repeats=1)
        steady = replace(effort, fewest=max(effort.fewest, min(effort.rounds, SLOPE_SAMPLES)))
        for axis, points in axes.items():
            timings = harness.time_in_turns([contestant.prepare(make()) for _, make in points], steady, quiet)
            result.lines[axis] = Line(
                [size for size, _ in points],
                [timing.median for timing in timings],
                all(timing.calm for timing in timings),
            )
    except Exception as error:  # the rest of the run must still be reported
        result.status = f"failed: {type(error).__name__}: {error}"
    return result
