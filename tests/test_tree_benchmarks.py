"""The benchmark of trees runs, judges every contestant and lists all of them. No speed is asserted."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import tree_cases, trees
from benchmarks.harness import Row
from benchmarks.tree_peers import CONTESTANTS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "benchmarks.trees", "--quick", "--results", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    assert "## span partition" in (folder / "trees.md").read_text()
    with (folder / "trees.csv").open() as file:
        return list(csv.DictReader(file))


def test_everyone_is_listed_and_agrees(rows: list[dict[str, str]]) -> None:
    for operation, contestants in CONTESTANTS.items():
        here = [row for row in rows if row["operation"] == operation]
        assert {row["contestant"] for row in here} == {contestant.name for contestant in contestants}
        assert all(row["status"] == "ok" or row["status"].startswith("not i") for row in here)
        assert all(row["status"] == "ok" for row in here if row["role"] == "ours")
    assert {row["operation"] for row in rows} >= {"violation", "growth"}


def test_wrong_answers_are_refused() -> None:
    case = tree_cases.span_case((2, 4, 3))
    ours = CONTESTANTS["span argmax"][0]
    best, chart = tree_cases.span_best(case), ours.read(ours.prepare(case)())
    assert tree_cases.check_span_score(case, best, chart) is None
    assert tree_cases.check_span_score(case, best + 0.1, chart) is not None
    other = chart.copy()
    other[0, 0, 3] = -100
    assert "no label on 0..3" in str(tree_cases.check_span_score(case, best, other))
    expected = tree_cases.span_partition(case)
    assert tree_cases.check_close(case, expected, expected) is None
    wrong = expected | {"spans": expected["spans"] * 1.01}
    assert "spans differs" in str(tree_cases.check_close(case, expected, wrong))
    dense = tree_cases.dense_case((2, 4, 2))
    ours = CONTESTANTS["dense argmax"][0]
    counts = ours.read(ours.prepare(dense)())
    assert tree_cases.check_dense_score(dense, tree_cases.dense_best(dense), counts) is None
    none = {name: np.zeros_like(x) for name, x in counts.items()}
    assert tree_cases.check_dense_score(dense, tree_cases.dense_best(dense), none) is not None


def test_the_exponent_of_growth() -> None:
    rows = [Row("growth", f"N={n}", 2, "x", "ours", "", "ok", 2.0 * n**2.5) for n in (10, 20, 40, 80)]
    assert abs((trees.slope(rows, "x") or 0) - 2.5) < 1e-9
