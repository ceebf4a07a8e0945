"""The benchmarks run, list everyone, and refuse a speed to whoever answers wrongly. No speed is asserted."""

import csv
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import cases, harness, limits, report
from benchmarks import quiet as quiet_module
from benchmarks.cases import ChainCase, Partition, chain_case
from benchmarks.chain_checks import PARTITION, VITERBI
from benchmarks.harness import Contestant, Effort, Row
from benchmarks.peers import MODULES, contestants
from benchmarks.quiet import Quiet
from benchmarks.timing import Timing

ROOT = Path(__file__).resolve().parent.parent
BRIEF = Effort(rounds=2, fewest=1, seconds=0.001)
INSTALLED = {
    "numba": "numba",
    "jax": "JAX jit scan",
    "hmmlearn": "hmmlearn C++ (float64)",
    "torchcrf": "pytorch-crf",
    "TorchCRF": "TorchCRF",
    "torch_struct": "torch-struct",
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "benchmarks.chain", "--quick", "--results", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def rows(quick: Path) -> list[dict[str, str]]:
    with (quick / "chain.csv").open() as file:
        return list(csv.DictReader(file))


def test_quick_run_times_ours_everywhere(rows: list[dict[str, str]]) -> None:
    ours = [row for row in rows if row["role"] == "ours"]
    assert {(row["operation"], row["case"]) for row in ours} == {
        (operation, case) for operation in ("viterbi", "partition") for case in ("(4,12,5)",)
    }
    assert all(row["status"] == "ok" and float(row["median_ms"]) > 0 for row in ours)
    assert all(float(row["ratio_to_ours"]) == 1 for row in ours)


def test_quick_run_lists_every_contestant(rows: list[dict[str, str]]) -> None:
    for operation in ("viterbi", "partition"):
        listed = {row["contestant"] for row in rows if row["operation"] == operation}
        assert {contestant.name for contestant in contestants(f"chain_{operation}")} <= listed
    for row in rows:
        assert row["status"] == "ok" or row["status"].startswith(("not installed", "not importable", "no C compiler"))


@pytest.mark.parametrize("module", INSTALLED)
def test_installed_peers_agree(rows: list[dict[str, str]], module: str) -> None:
    status = {row["status"] for row in rows if row["contestant"].startswith(INSTALLED[module])}
    if importlib.util.find_spec(module) is None:
        assert all(text.startswith("not installed") for text in status)
    else:
        assert status == {"ok"}


def test_quick_report_has_every_section(quick: Path) -> None:
    text = (quick / "chain.md").read_text()
    for heading in ("## viterbi, threads: 2", "## partition, threads: 2", "## Memory at (4,20,32)", "## Scaling"):
        assert heading in text
    assert "torch " in text
    assert "refused" not in text


def _entrant(name: str, answer: Callable[[ChainCase], Any], role: harness.Role = "peer") -> Contestant:
    return Contestant(name, lambda case: lambda: answer(case), role=role)


def _best_labels(case: ChainCase) -> np.ndarray:
    """By enumeration, so small cases only."""
    batch, positions, labels = case.shape
    paths = np.stack(np.meshgrid(*[np.arange(labels)] * positions, indexing="ij"), -1).reshape(-1, positions)
    found = np.zeros((batch, positions), dtype=np.int64)
    for b in range(batch):
        single = ChainCase(
            (len(paths), positions, labels),
            case.unary[[b] * len(paths)],
            case.transition,
            case.lengths[[b] * len(paths)],
        )
        found[b] = paths[np.argmax(cases.chain_path_scores(single, paths))]
    return found


def _one_label_off(case: ChainCase) -> np.ndarray:
    labels = _best_labels(case)
    labels[-1, 0] = (labels[-1, 0] + 1) % case.shape[2]
    return labels


def _measure(operation: harness.Operation, case: ChainCase, *entrants: Contestant) -> dict[str, Row]:
    return {
        row.contestant: row
        for row in harness.measure(operation, case, entrants, threads=1, effort=BRIEF, quiet=Quiet(0.0))
    }


def test_wrong_path_is_refused_and_right_one_timed() -> None:
    found = _measure(
        VITERBI, chain_case((3, 5, 4)), _entrant("right", _best_labels, "ours"), _entrant("wrong", _one_label_off)
    )
    assert found["right"].status == "ok"
    assert found["right"].median_ms is not None
    assert found["wrong"].status.startswith("refused: path 2")
    assert found["wrong"].median_ms is None
    assert found["wrong"].ratio_to_ours is None
    assert any("– [1]" in line for line in report.table(list(found.values())))


@pytest.mark.parametrize("name", ["log_z", "unary", "transition"])
def test_wrong_partition_is_refused(name: str) -> None:
    def wrong(case: ChainCase) -> Partition:
        answer = cases.chain_partition(case)
        fields = {key: getattr(answer, key).copy() for key in ("log_z", "unary", "transition")}
        fields[name].flat[0] += 0.05 * max(1.0, np.abs(fields[name]).max())
        return Partition(**fields)

    found = _measure(
        PARTITION, chain_case((3, 5, 4)), _entrant("right", cases.chain_partition), _entrant("wrong", wrong)
    )
    assert found["right"].status == "ok"
    assert found["wrong"].status.startswith("refused: " + name.replace("_z", " Z").split("_")[0])
    assert found["wrong"].median_ms is None


def test_nan_is_refused() -> None:
    def poisoned(case: ChainCase) -> Partition:
        answer = cases.chain_partition(case)
        return Partition(answer.log_z * np.nan, answer.unary, answer.transition)

    assert _measure(PARTITION, chain_case((2, 4, 3)), _entrant("nan", poisoned))["nan"].status.startswith("refused")


def test_absent_and_failing_peers_are_listed() -> None:
    def fail(case: ChainCase) -> Any:
        raise RuntimeError("does not run")

    absent = Contestant("absent", lambda case: lambda: None, requires=("no_such_module_anywhere",))
    large = Contestant("large", lambda case: lambda: None, cannot=lambda case: "out of memory (33 GB asked)")
    found = _measure(VITERBI, chain_case((2, 4, 3)), absent, large, _entrant("failing", fail))
    assert found["absent"].status == "not installed (no_such_module_anywhere)"
    assert found["large"].status == "out of memory (33 GB asked)"
    assert found["failing"].status == "failed: RuntimeError: does not run"
    lines = "\n".join(report.table(list(found.values())))
    for status in (row.status for row in found.values()):
        assert status in lines


def test_torch_struct_is_not_asked_for_more_than_there_is() -> None:
    (contestant,) = (c for c in contestants("chain_viterbi") if c.name == "torch-struct")
    reason = contestant.cannot(ChainCase((512, 1000, 500), *[np.zeros(0)] * 3))  # type: ignore[arg-type]
    assert reason is not None
    assert reason.startswith("out of memory (")


def test_expected_partition_is_the_sum_over_all_paths() -> None:
    case = chain_case((2, 4, 3))
    answer = cases.chain_partition(case)
    for b, length in enumerate(case.lengths):
        paths = np.stack(np.meshgrid(*[np.arange(3)] * length, indexing="ij"), -1).reshape(-1, length)
        scores = case.unary[b, np.arange(length), paths].sum(1, dtype=np.float64)
        scores += case.transition[paths[:, :-1], paths[:, 1:]].sum(1, dtype=np.float64)
        assert answer.log_z[b] == pytest.approx(np.log(np.exp(scores).sum()), rel=1e-6)
        assert cases.chain_best_scores(case)[b] == pytest.approx(scores.max(), rel=1e-6)
    assert answer.unary.sum() == pytest.approx(case.lengths.sum())
    assert answer.transition.sum() == pytest.approx(case.steps)


def test_contestants_take_turns() -> None:
    order: list[str] = []

    def named(name: str) -> Callable[[], None]:
        def call() -> None:
            order.append(name)
            time.sleep(0.005)

        return call

    timings = harness.time_in_turns([named("a"), named("b")], Effort(rounds=4, fewest=4, seconds=0.0), Quiet(0.0))
    assert [len(timing.walls) for timing in timings] == [4, 4]
    sampled = order[8:]
    assert sampled == ["a", "a", "b", "b"] * 4


def test_disturbed_samples_do_not_count() -> None:
    walls = [1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0]
    few = Timing(walls=walls, waits=[0.0] * 5 + [0.4] * 6)
    assert few.calm
    assert few.median == 3.0
    many = Timing(walls=walls, waits=[0.0] * 4 + [0.4] * 7)
    assert not many.calm
    assert many.median == 9.0


def test_waiting_grows_only() -> None:
    first = quiet_module.waiting()
    assert 0 <= first <= quiet_module.waiting()


def test_bars_and_slopes() -> None:
    assert report.Bar("x", 2, 2.5).holds
    assert not report.Bar("x", 2, 1.9).holds
    assert not report.Bar("x", 2, None).holds
    assert [report.Bar("x", 2, value, sure=sure).verdict for value, sure in ((3, True), (1, True), (3, False))] == [
        "pass",
        "FAIL",
        "unsure",
    ]
    # By the rival's fastest sample a disturbed measurement may decide all the same.
    disturbed = harness.Row("x", "case", 1, "peer", "peer", "", "ok", median_ms=8.0, min_ms=6.0, ratio_to_ours=4.0)
    assert (disturbed.least_ms, disturbed.least_ratio) == (6.0, 3.0)
    for limit, verdict in ((2, "pass"), (3.5, "unsure"), (5, "unsure")):
        bar = report.bar_against("x", limit, [disturbed], disturbed)
        assert bar.verdict == verdict
        assert "by its fastest sample 3" in str(bar)
    assert [report.Bar("x", 2, value, reachable=most).verdict for value, most in ((1, 1.5), (1, 2.5), (3, 1.5))] == [
        "limit",
        "FAIL",
        "pass",
    ]
    assert "torch alone 1.5" in str(report.Bar("x", 2, 1.0, reachable=1.5))
    # A rival of 8 ms does in 8 ms what takes the roofline 1 ms; torch alone takes 1 ms.
    roles = {"peer": (8.0, 1.0), "floor": (1.0, None), "roofline": (5.0, 8.0)}
    rows = [
        harness.Row("x", "case", 1, role, role, "", "ok", median_ms=ms, units_per_second=units)
        for role, (ms, units) in roles.items()
    ]
    assert report.reachable(rows, rows[0]) == pytest.approx(8.0)
    assert report.reachable(rows, rows[0], computing=True) == pytest.approx(4.0)
    assert report.Bar("x", 4, 3.0, at_most=True).holds
    assert report.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert report.geometric_mean([2.0, None]) is None
    assert limits.Line([1, 2, 4], [3.0, 5.0, 9.0]).slope_ratio == pytest.approx(1.0)
    assert limits.Line([1, 2, 4], [1.0, 4.0, 16.0]).slope_ratio == pytest.approx(2.0)


def test_every_peer_module_declares_contestants() -> None:
    for name in MODULES:
        module = importlib.import_module(f"benchmarks.peers.{name}")
        assert module.CONTESTANTS
