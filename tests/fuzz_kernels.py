"""Calls the kernels of a sanitizer's build on random instances until the time is over; `make sanitize` runs it.

usage: fuzz_kernels.py FOLDER SECONDS [SEED [THREADS]]

FOLDER holds the build. With several THREADS the calls of a seed run at once, for ThreadSanitizer.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from pathlib import Path


def use_build(folder: str) -> None:
    """Has the package find the kernels of ``folder`` before its own."""
    spec = importlib.util.find_spec("structlearn")
    assert spec is not None
    assert spec.loader is not None
    assert spec.submodule_search_locations is not None
    spec.submodule_search_locations.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules["structlearn"] = module
    spec.loader.exec_module(module)


def main() -> None:
    folder, seconds = str(Path(sys.argv[1]).resolve()), float(sys.argv[2])
    seed, workers = [*map(int, sys.argv[3:5]), *(0, 1)[len(sys.argv) - 3 :]]
    use_build(folder)
    import torch
    from kernel_calls import Instances, outcome

    from structlearn.ops import _library

    found = Path(_library._open()._name)  # type: ignore[union-attr]
    assert found.parent == Path(folder), found
    torch.set_num_threads(2)
    until, count, first = time.monotonic() + seconds, 0, seed
    while time.monotonic() < until:
        given = list(Instances(seed, size=4 if seed % 8 == 7 else 1, odd=seed % 2 == 1).calls().values())
        if workers > 1:
            threads = [
                threading.Thread(target=lambda calls=given: [outcome(call) for call in calls]) for _ in range(workers)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            for call in given:
                outcome(call)
        count, seed = count + workers * len(given), seed + 1
    print(f"{count} calls, seeds {first} to {seed - 1}, nothing found")


if __name__ == "__main__":
    main()
