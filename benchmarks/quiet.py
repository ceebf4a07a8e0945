"""On a shared machine: wait for a moment in which nobody else runs, and know which samples were disturbed.

With more runnable threads than cores, two threads that wait for each other lose whole time slices of the scheduler, and
a call of microseconds is measured as milliseconds. Such a sample tells nothing of the contestant.
"""

import contextlib
import time
from pathlib import Path

PAUSE_SECONDS = 0.01


def running() -> int:
    """Threads that run or want to, this one included; 1 where the system does not tell."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    except (OSError, IndexError, ValueError):
        return 1


def waiting() -> float:
    """Seconds in all that the threads of this process wanted a core and had none; 0 where the system does not tell."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        # A thread may end meanwhile.
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int(path.read_text().split()[1])
    return total * 1e-9


class Quiet:
    """Waits for quiet moments, for at most `patience` seconds in all."""

    def __init__(self, patience: float) -> None:
        self.patience = patience

    def wait(self) -> None:
        """Return once this is the only running thread, or once patience has run out."""
        start = time.perf_counter()
        while running() > 1 and time.perf_counter() - start < self.patience:
            time.sleep(PAUSE_SECONDS)
        self.patience -= time.perf_counter() - start
