"""Settings that every test shares; they are made before anything imports triton or reads the thread count."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

# Triton decides at import whether its kernels are compiled or interpreted.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Two workers of two threads each share two cores: a thread that spins while it waits keeps its partner from working.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Where bytecode may not lie beside the sources, it lies apart: else every process that a test starts spends eight
# seconds on compiling torch and lightning.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

import hypothesis
import pytest
import torch

from structlearn.ops import _native

torch.set_num_threads(2)

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50, print_blob=True)
hypothesis.settings.load_profile("ci")

DATA = Path(
    os.environ.get("STRUCTLEARN_DATA") or Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
).resolve()


def pytest_report_header() -> str:
    if DATA.is_dir():
        return f"corpora: {DATA}"
    return f"corpora: none, tests marked corpus are skipped ({DATA} is not a folder; set STRUCTLEARN_DATA)"


def pytest_configure(config: pytest.Config) -> None:
    # The interpreter evaluates log(0) where a masked lane holds 0; torch-struct declares no argument constraints.
    config.addinivalue_line("filterwarnings", "ignore:divide by zero encountered in log:RuntimeWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*does not define `arg_constraints`:UserWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if DATA.is_dir():
        return
    skip = pytest.mark.skip(reason=f"corpora are not here: {DATA} is not a folder; set STRUCTLEARN_DATA")
    for item in items:
        if item.get_closest_marker("corpus") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real corpora; for tests marked ``corpus``."""
    assert DATA.is_dir(), f"mark this test with pytest.mark.corpus: {DATA} is not a folder"
    return DATA


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """torch.empty, its kin and what kernels write to hold NaN (or no label) first: an entry left unwritten is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(1).isnan().all()
    _native.poison(True)
    yield
    _native.poison(False)
    torch.use_deterministic_algorithms(before)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


warnings.filterwarnings("ignore", message=".*does not define `arg_constraints`")
