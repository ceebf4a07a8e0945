"""Timing of several calls in turns, and which samples were disturbed."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.quiet import Quiet, waiting

# After a parallel region, OpenMP threads of the previous contestant spin for about a millisecond before they sleep.
SETTLE_SECONDS = 0.002
# A timed sample repeats the call until it lasts this long: 1000 times the resolution of the clock, yet shorter than a
# time slice of the scheduler (about 3 ms), which a process that has just slept gets whole even on a busy machine.
SAMPLE_SECONDS = 0.001
# Before it, untimed calls run for so long, or once. A process that wakes from its sleep finds its code and data out of
# the caches and the branches unlearnt: the first calls of 0.1 ms take twice as long as those of a loop that runs.
WARM_SECONDS = 0.002
# A sample is undisturbed if its threads waited for a core for no more than this share of its time.
CALM_WAIT = 0.05
# So many undisturbed samples (or half of all, if that is less) are enough to leave the others out.
CALM_SAMPLES = 5
# A call that takes longer than this fills the caches by itself, so the untimed calls before each sample are left out.
# Above what the largest chain takes: along its axes every size must be warmed, or the last one seems to grow faster.
LONG_CALL_SECONDS = 0.5
# Calls beyond this are timed once.
SLOW_CALL_SECONDS = 1.0


@dataclass(frozen=True)
class Effort:
    """How long to measure: at most `rounds` samples each, at least `fewest`, about `seconds` for each contestant."""

    rounds: int = 60
    fewest: int = 5
    seconds: float = 0.8


@dataclass
class Timing:
    """Seconds a call, cores used and share of the time spent waiting for one, an entry a sample of `calls` calls.

    `warm` calls come before each sample.
    """

    calls: int = 1
    quota: int = 0
    warm: int = 0
    walls: list[float] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    @property
    def undisturbed(self) -> list[float]:
        """Seconds a call of the samples that hardly waited for a core."""
        return [wall for wall, wait in zip(self.walls, self.waits, strict=True) if wait <= CALM_WAIT]

    @property
    def calm(self) -> bool:
        """Whether there are enough such samples to speak for the call."""
        return len(self.undisturbed) >= min(CALM_SAMPLES, (len(self.walls) + 1) // 2)

    @property
    def median(self) -> float:
        """Median seconds a call, over the undisturbed samples if they are enough."""
        return statistics.median(self.undisturbed if self.calm else self.walls)


def _plan(call: Callable[[], Any], effort: Effort) -> Timing:
    """Calls a sample, samples and warming, set from the time of a few calls."""
    waited, start = waiting(), time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    if seconds > SLOW_CALL_SECONDS:
        # This call already is a measured, warmed-up sample; more of them would only cost time.
        return Timing(walls=[seconds], waits=[(waiting() - waited) / seconds])
    timing = Timing()
    if seconds < LONG_CALL_SECONDS:
        for _ in range(3):
            start = time.perf_counter()
            call()
            seconds = min(seconds, time.perf_counter() - start)
        timing.warm = max(1, round(WARM_SECONDS / seconds))
    timing.calls = max(1, round(SAMPLE_SECONDS / seconds))
    each = SETTLE_SECONDS + seconds * (timing.calls + timing.warm)
    timing.quota = min(effort.rounds, max(effort.fewest, int(effort.seconds / each)))
    return timing


def _sample(call: Callable[[], Any], timing: Timing, quiet: Quiet) -> None:
    calls = timing.calls
    time.sleep(SETTLE_SECONDS)
    quiet.wait()
    for _ in range(timing.warm):
        call()
    waited, cpu, start = waiting(), time.process_time(), time.perf_counter()
    for _ in range(calls):
        call()
    wall = time.perf_counter() - start
    timing.walls.append(wall / calls)
    timing.cores.append((time.process_time() - cpu) / wall)
    timing.waits.append((waiting() - waited) / wall)


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
