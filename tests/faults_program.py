"""Run under the library made of failing_memory.cpp: every call with every one of its allocations failing in turn.

usage: faults_program.py LIBRARY memory|threads|limit
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_calls import Instances, equal, outcome

import structlearn as sl


def refusal(call: Callable[[], object]) -> str | None:
    """The words in which a call refuses for want of memory, torch's own among them; None if it does not."""
    try:
        call()
    except (MemoryError, RuntimeError) as error:
        return str(error)
    return None


def memory(faults: ctypes.CDLL) -> dict[str, int]:
    count, refused = 0, 0
    for seed, size in ((1, 1), (3, 4)):  # the second is large enough for several threads
        for name, call in Instances(seed, size).calls().items():
            expected, k, failed = outcome(call), 0, True
            while failed:
                # Of the first nearly every one, then ever fewer: large calls make thousands that are alike.
                k += 1 + k // (4 if size == 1 else 1)
                faults.fail_memory(k)
                found: list[Any] = []
                words = refusal(lambda: found.append(outcome(call)))  # noqa: B023
                assert "expected" in words if words else equal(found[0], expected), (seed, name, k, words)
                refused += words is not None
                failed = faults.failed() > 0
                faults.fail_memory(0)
                count += failed
            assert equal(outcome(call), expected), (seed, name, "afterwards")
    return {"failed": count, "refused": refused}


def threads(faults: ctypes.CDLL) -> dict[str, int]:
    """No thread, then all but the later ones: the answers are those of enough threads."""
    k = int(sys.argv[3])
    torch.set_num_threads(4)
    faults.fail_threads(k)
    calls = Instances(3, 4).calls()
    found = {name: outcome(call) for name, call in calls.items()}
    counted = faults.failed()
    faults.fail_threads(0)
    for name, call in calls.items():
        assert equal(outcome(call), found[name]), name
    return {"failed": counted}


def limit(_: object) -> dict[str, int]:
    """Large inputs in an address space that leaves no room to work in."""
    s = [
        lambda: sl.SpanTree(torch.zeros(1, 700, 700, 2), backend="cpu"),
        lambda: sl.Alignment(torch.zeros(2, 3000, 3000), gap=torch.zeros(2), backend="cpu"),
        lambda: sl.LinearChain(torch.zeros(4, 30000, 20), torch.zeros(20, 20), backend="cpu"),
        lambda: sl.SemiMarkov(torch.zeros(1, 20000, 20, 20), torch.zeros(20, 20), backend="cpu"),
    ]
    structures = [make() for make in s]
    ready = sum(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize")
    )
    for megabytes in (1, 4, 16, 64):
        resource.setrlimit(resource.RLIMIT_AS, (ready * 1024 + (megabytes << 20), -1))
        for structure in structures:
            queries = structure.argmax, structure.log_partition, lambda s=structure: s.topk(4), structure.marginals
            for query in queries:
                words = refusal(query)
                assert words is None or "memory" in words, words
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    for structure in structures:
        structure.argmax()
    return {}


if __name__ == "__main__":
    torch.set_num_threads(2)
    library = ctypes.CDLL(sys.argv[1]) if sys.argv[1] else None
    print(json.dumps({"memory": memory, "threads": threads, "limit": limit}[sys.argv[2]](library)))
