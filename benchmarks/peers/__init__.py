"""One file for each peer. A file names its contestants by operation in `CONTESTANTS` and imports its library lazily."""

import importlib

from benchmarks.harness import Contestant

# The order in which the tables list them.
MODULES = (
    "ours",
    "torch_alone",
    "numba",
    "jax",
    "hmmlearn",
    "torch_loops",
    "pytorch_crf",
    "torchcrf",
    "supar",
    "torch_struct",
)


def contestants(operation: str) -> list[Contestant]:
    """Everyone who can be asked for `operation`, ours first."""
    found: list[Contestant] = []
    for name in MODULES:
        table: dict[str, tuple[Contestant, ...]] = importlib.import_module(f"benchmarks.peers.{name}").CONTESTANTS
        found.extend(table.get(operation, ()))
    return found
