"""Worker processes: thread counts must be set before libraries load, and peak memory needs a process of its own."""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def environment(threads: int, *, plain_malloc: bool = False) -> dict[str, str]:
    """Variables that hold every library to `threads` threads.

    `plain_malloc` maps every block above 64 KiB on its own and returns it at once, so that resident memory follows
    what is allocated rather than what the allocator keeps for later.
    """
    count = str(threads)
    names = ("OMP", "MKL", "OPENBLAS", "NUMBA", "VECLIB", "NUMEXPR")
    variables = dict(os.environ) | {f"{name}_NUM_THREADS": count for name in names}
    variables["VECLIB_MAXIMUM_THREADS"] = count
    # XLA sizes its thread pool by NPROC, and its matrix products by the flag.
    variables["NPROC"] = count
    variables["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    variables["JAX_PLATFORMS"] = "cpu"
    if plain_malloc:
        variables |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    return variables


def set_threads(threads: int) -> None:
    """Hold the libraries that ignore the environment to `threads`."""
    import torch

    torch.set_num_threads(threads)


def run(module: str, arguments: Sequence[str], *, threads: int, plain_malloc: bool = False) -> Any:
    """Run `python -m module arguments --threads T --out file` and return the JSON that it writes there."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", module, *arguments, "--threads", str(threads), "--out", str(out)]
        variables = environment(threads, plain_malloc=plain_malloc)
        subprocess.run(command, cwd=ROOT, env=variables, check=True)
        return json.loads(out.read_text())


def measured(
    module: str, about: str | None, work: Callable[[bool], Any], *, threads: int, results: Path
) -> tuple[argparse.Namespace, Any]:
    """Command line of a study with one worker: its options, and what `work(quick)` gave there; None in the worker."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--quick", action="store_true", help="a small batch, few samples: does it run, not how fast")
    parser.add_argument("--results", type=Path, default=results, help="folder for the Markdown table")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=threads, help="threads for everybody")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        set_threads(options.threads)
        options.out.write_text(json.dumps(work(options.quick)))
        return options, None
    flags = ["--worker", *(["--quick"] if options.quick else [])]
    return options, run(module, flags, threads=options.threads)


def _status(key: str) -> int:
    """Bytes of a field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def extra_memory(call: Callable[[], Any], repeats: int = 3) -> int:
    """Most resident bytes that one call adds to the process, its results included: the largest of `repeats` calls.

    Needs Linux, which resets the high-water mark on request.
    """
    most = 0
    gc.collect()
    for _ in range(repeats):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        result = call()
        most = max(most, _status("VmHWM") - before)
        del result
    return most
