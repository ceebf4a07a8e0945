"""Every notebook runs from top to bottom, and is stored with small outputs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def runner() -> Any:
    spec = importlib.util.spec_from_file_location("run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def pictures(notebook: Any) -> int:
    return sum("image/png" in output.get("data", {}) for cell in code_cells(notebook) for output in cell["outputs"])


def test_there_is_one_for_each_subject() -> None:
    subjects = "alignment chain_hinge_and_crf exact_certificate laso parsing slack_and_margin"
    assert [path.stem for path in NOTEBOOKS] == subjects.split()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Notebooks are for one core; what they assert is asserted here.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ran = runner().executed(path)
    assert all(cell["execution_count"] for cell in code_cells(ran))
    assert pictures(ran) >= 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_whole_and_small(path: Path) -> None:
    stored = json.loads(path.read_text())
    assert path.stat().st_size < 300_000
    assert [cell["execution_count"] for cell in code_cells(stored)] == list(range(1, len(code_cells(stored)) + 1))
    assert pictures(stored) >= 1
    assert not any(output["output_type"] == "error" for cell in code_cells(stored) for output in cell["outputs"])
    text = "\n".join("".join(cell["source"]) for cell in stored["cells"] if cell["cell_type"] == "markdown")
    for part in ("**What.**", "**Why.**", "## What to change"):
        assert part in text, f"{path.name}: a newcomer looks for {part}"
