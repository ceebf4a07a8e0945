"""The frame of the experiments, and each of them in smoke mode without any corpus."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from structlearn import cli
from structlearn.errors import ArgumentError
from structlearn.experiments import MODULES, load
from structlearn.experiments.base import Mean, Report, Settings, Table
from structlearn.experiments.reproduce import beside, tables_of
from structlearn.experiments.results import write_page


@pytest.mark.parametrize("name", MODULES)
def test_smoke_run_writes_tables_and_picture(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "no corpora here"
    assert cli.main(["reproduce", name, "--smoke", "--data", str(missing), "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert record["name"] == name
    assert record["smoke"]
    assert record["seed"] == 0
    assert {"torch", "structlearn", "python"} <= set(record["versions"])
    assert record["tables"]
    for table in tables_of(record):
        assert any(isinstance(cell, int | float | Mean) for row in table.rows for cell in row)
        for cell in (cell for row in table.rows for cell in row if isinstance(cell, float)):
            assert math.isfinite(cell)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "smoke" in capsys.readouterr().out


def test_list_names_every_experiment_and_its_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "--list"]) == 0
    told = capsys.readouterr().out
    for name in MODULES:
        assert name in told
        assert load(name).name == name
        assert load(name).paper in told


def test_mistakes_are_told_with_their_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "nothing"]) == 2
    assert "--list" in capsys.readouterr().err
    assert cli.main(["reproduce"]) == 2
    assert cli.main(["reproduce", "taxonomy", "--data", str(tmp_path)]) == 2
    assert "STRUCTLEARN_DATA" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="2 cells a row"):
        Table("t", ["a", "b"], [["x"]])


def test_published_cells_stand_beside_ours_with_the_difference() -> None:
    table = Table(
        "t", ["m", "e", "n"], [["a", Mean(5.5, 0.25), 12], ["b", None, 3]], [["a", 5.0, None], ["b", 1.0, None]]
    )
    header, rows = beside(table)
    assert header == ["m", "e", "paper", "diff", "n"]
    assert rows == [["a", "5.50 ± 0.25", "5.00", "+0.50", "12"], ["b", "–", "1.00", "–", "3"]]


def test_intervals() -> None:
    # t_{0.975, 2} = 4.302653
    assert Mean.of([1.0, 2.0, 3.0]).half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert Mean.of([2.0]) == Mean(2.0, None)
    # Wilson's interval of 8 in 10 is (0.4902, 0.9433).
    assert Mean.share(8, 10).half == pytest.approx(100 * (0.9433 - 0.4902) / 2, abs=0.01)


def test_page_is_written_from_full_runs_only(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert cli.main(["reproduce", "taxonomy", "--smoke", "--out", str(folder)]) == 0
    page = tmp_path / "results.md"
    write_page(page)
    assert "## taxonomy" not in page.read_text(encoding="utf-8")
    record = json.loads((folder / "taxonomy.json").read_text(encoding="utf-8"))
    (folder / "taxonomy.json").write_text(json.dumps(record | {"smoke": False}), encoding="utf-8")
    (folder / "taxonomy.md").write_text("What follows from it.\n", encoding="utf-8")
    write_page(page)
    told = page.read_text(encoding="utf-8")
    assert "## taxonomy" in told
    assert "results/taxonomy.png" in told
    assert "| tax Δ |" in told
    assert "\nWhat follows from it.\n" in told
    assert Report([], []).draw is None
    assert Settings(data=tmp_path).has("taxonomy") is False
