"""What checks by mutants share: damage to bytes and to plain data, and how an attempt to read a mutant may end."""

from __future__ import annotations

import copy
import random
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from structlearn.errors import FormatError

SECONDS = 10.0  # of processor time for one mutant; whole files and models are read in some 10 ms
HANG = 60  # seconds
BYTES = 1 << 30


class Report:
    """Counts how attempts end, and collects what should not be."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.limit = _peak() + BYTES // 2

    def attempt(
        self,
        name: str,
        kind: str,
        read: Callable[[], object],
        path: Path,
        allowed: tuple[type[Exception], ...] = (FormatError,),
    ) -> None:
        """Calls ``read``, which has to give something or raise one of ``allowed``, a FormatError with the path."""
        peak, began = _peak(), time.process_time()
        signal.signal(signal.SIGALRM, _hangs)
        signal.alarm(HANG)
        try:
            read()
            self.ends[f"{kind}: reads"] += 1
        except allowed as error:
            self.ends[f"{kind}: {type(error).__name__}"] += 1
            text = str(error)
            if len(text) > 2000 or (isinstance(error, FormatError) and str(path) not in text):
                self.wrong.append(f"{kind} {name}: {text[:300]}")
        except BaseException:
            self.wrong.append(f"{kind} {name}: {traceback.format_exc()[-1500:]}")
        finally:
            signal.alarm(0)
        spent, more = time.process_time() - began, _peak() - peak
        if spent > SECONDS or (more and _peak() > self.limit):
            self.wrong.append(f"{kind} {name}: {spent:.1f} s, {more:,} bytes more, {_peak():,} in all")

    def printed(self) -> bool:
        """Prints the report; whether anything is wrong."""
        print(*(f"{number:6} {name}" for name, number in sorted(self.ends.items())), *self.wrong, sep="\n")
        print(f"{_peak():,} bytes at most, {len(self.wrong)} wrong")
        return bool(self.wrong)


def _hangs(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"still reading after {HANG} s")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all parts of plain data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, item in items for p in places(item, (*path, key)))]


def changed(draw: random.Random, value: Any, values: Sequence[Any]) -> Any:
    """Plain data with one part replaced by one of ``values``, removed, repeated or renamed."""
    path = draw.choice(places(value))
    if not path:
        return copy.deepcopy(draw.choice(values))
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    key, way = path[-1], draw.randrange(5)
    if way == 0:
        del inside[key]
    elif way == 1 and isinstance(inside, dict):
        inside[draw.choice(("x", "class_path", "files", 3, ""))] = inside.pop(key)
    elif way == 2 and isinstance(inside, list):
        inside.insert(0, inside[key])
    else:
        inside[key] = copy.deepcopy(draw.choice(values))
    return value


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Bytes flipped, cut, repeated or put in."""
    way, at = draw.randrange(5), draw.randrange(len(data) + 1)
    if way == 0:
        return data[:at]
    if way == 1:
        return data + bytes(draw.randrange(256) for _ in range(draw.randrange(1, 100)))
    if way == 2:
        return data[:at] + data[draw.randrange(len(data) + 1) :]
    some = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 20))):
        # Headers come first, and are where a byte means most.
        some[draw.randrange(min(len(some), draw.choice((8, 200, 10**9))))] = draw.randrange(256)
    return bytes(some)
