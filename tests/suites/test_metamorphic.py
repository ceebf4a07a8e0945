"""What must not change an answer, and what must change it in a known way: no oracle is asked.

Bits stay the same under other values in the padding. Up to rounding, values stay the same under other neighbours in the
batch (kernels work on several rows at a time), with other threads (sums over rows are added up chunk by chunk) and on
another instruction set (whose vectors are added up in another order); labels do not change at all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import structlearn

from .answers import DISCRETE, all_answers, answers, compare, row
from .cases import PADDING, Case, Problem
from .checks import numbers
from .structures import ENTRIES, Entry

pytestmark = pytest.mark.usefixtures("poisoned_memory")
ENGINES = ("reference", "cpu")
PAIRS = [(entry, engine) for entry in ENTRIES for engine in entry.engines if engine in ENGINES]
each = pytest.mark.parametrize(("entry", "engine"), PAIRS, ids=str)
ROUNDING = {"f32": 2e-5, "f64": 1e-10}
RAGGED = ("normal", "forbidden", "mask-1e4", "mask-1e30-most", "ties", "offset-row")


def problems(entry: Entry, engine: str, kinds: tuple[str, ...] = RAGGED) -> list[Problem]:
    """Few of them for the reference, which runs row by row alike."""
    size = entry.sizes[0].name
    if engine == "reference":
        return [Case(entry.name, size=size, kind=kind, dtype="f32").problem for kind in kinds[1:3]]
    return [
        Case(entry.name, size=size, kind=kind, dtype=dtype, seed=i).problem
        for i, (kind, dtype) in enumerate((kind, dtype) for kind in kinds for dtype in ("f32", "f64"))
    ]


def pick(problem: Problem, rows: list[int], changed: dict[str, Tensor] | None = None) -> tuple[dict[str, Tensor], Any]:
    """Potentials and lengths of some rows, in that order."""
    values = problem.values if changed is None else changed
    potentials = {name: x if name in problem.entry.shared else x[rows] for name, x in values.items()}
    return potentials, None if problem.lengths is None else problem.lengths[rows]


def error(problem: Problem) -> float:
    """Rounding of the answers of a row: log Z around offsets of 1e4 has an ulp of 1e-3."""
    offset = problem.case.kind.startswith("offset") or problem.case.kind == "mask-1e4"
    return ROUNDING[problem.case.dtype] * (10 if offset else 1)


@each
def test_a_row_alone(entry: Entry, engine: str) -> None:
    for problem in problems(entry, engine):
        together = answers(problem.make(engine))
        for b in range(problem.batch):
            alone = answers(entry.build(*pick(problem, [b]), engine))
            compare(row(together, problem, b), row(alone, problem, 0), error(problem), f"{problem.case} row {b}")


@each
def test_neighbours_of_another_kind(entry: Entry, engine: str) -> None:
    """Rows of -inf, of huge and of far lower scores beside a row leave it alone."""
    for problem in problems(entry, engine, ("normal", "forbidden")):
        before = answers(problem.make(engine))
        for value in (float("-inf"), 1e30, -1e30, 1e5):
            for b in range(0, min(problem.batch, 3), 2):
                changed = {
                    name: x if name in entry.shared else x.clone().index_fill_(0, others(problem, b), value)
                    for name, x in problem.values.items()
                }
                after = answers(entry.build(changed, problem.lengths, engine))
                what = f"{problem.case} row {b} beside {value}"
                compare(row(after, problem, b), row(before, problem, b), error(problem), what)


def others(problem: Problem, b: int) -> Tensor:
    return torch.tensor([i for i in range(problem.batch) if i != b])


@each
def test_padding_is_not_read(entry: Entry, engine: str) -> None:
    for kind in ("normal", "forbidden", "mask-min"):
        for dtype in ("f32", "f64")[: 2 if engine == "cpu" else 1]:
            size = entry.sizes[0].name
            found = [
                answers(Case(entry.name, size=size, kind=kind, dtype=dtype, padding=padding).problem.make(engine))
                for padding in PADDING
            ]
            for other in found[1:]:
                compare(other, found[0], 0, f"{kind} {dtype}")


@each
def test_permuted_rows(entry: Entry, engine: str) -> None:
    for problem in problems(entry, engine):
        order = torch.randperm(problem.batch, generator=torch.Generator().manual_seed(3)).tolist()
        before, after = answers(problem.make(engine)), answers(entry.build(*pick(problem, order), engine))
        for new, old in enumerate(order):
            compare(row(after, problem, new), row(before, problem, old), error(problem), str(problem.case))


@each
def test_few_rows_among_thousands_of_empty_ones(entry: Entry, engine: str) -> None:
    empty = (0, 0) if entry.pairs else 0
    size = entry.sizes[0]
    if size.lengths is None or empty not in size.lengths:
        return
    problem = Case(entry.name, size=size.name, dtype="f32").problem
    nothing = size.lengths.index(empty)
    order = [nothing] * 3000
    places = {b: 7 + 811 * b for b in range(min(problem.batch, 3))}
    for b, place in places.items():
        order[place] = b
    s = entry.build(*pick(problem, order), engine)
    log_z, y = s.log_partition(), s.argmax()
    expected, labels = problem.make(engine).log_partition(), problem.make(engine).argmax()
    for b, place in places.items():
        torch.testing.assert_close(log_z[place], expected[b])
        assert torch.equal(y[place], labels[b])
    rest = torch.ones(len(order), dtype=torch.bool).index_fill_(0, torch.tensor([*places.values()]), False)
    assert not log_z[rest].any()
    assert (y[rest] == -100).all()


@each
def test_shifted_scores(entry: Entry, engine: str) -> None:
    """A constant on a field that every output uses k times adds k times as much to scores and log Z, and no more."""
    for problem in problems(entry, engine, ("normal", "forbidden", "ties")):
        before = answers(problem.make(engine))
        for name in problem.values:
            times = [used_times(problem, b, name) for b in range(problem.batch)]
            if None in times:
                continue
            for constant in (-8.0, 1024.0):
                shifted = {**problem.values, name: problem.values[name] + constant}
                after = answers(entry.build(shifted, problem.lengths, engine))
                what = f"{problem.case} {name} {constant:+}"
                by = np.array(times) * constant
                expected = {q: x + by if q in ("max", "topk scores", "log_partition") else x for q, x in before.items()}
                compare(after, expected, 10 * error(problem) * (1 + abs(constant) / 100), what)


def used_times(problem: Problem, b: int, name: str) -> int | None:
    """How many parts of that field every output of row b has; None if not all have the same number."""
    space = problem.rows[b].space
    ends = np.cumsum([0, *(int(np.prod(s)) for s in space.shapes.values())])
    at = list(space.shapes).index(name)
    totals = set(space.counts[:, ends[at] : ends[at + 1]].sum(1).tolist())
    return int(totals.pop()) if len(totals) == 1 else 0 if not totals else None


@each
def test_permuted_labels(entry: Entry, engine: str) -> None:
    for problem in problems(entry, engine, ("normal", "forbidden", "mask-1e4")):
        if not entry.labelled:
            return
        some, axes = next(iter(entry.labelled.items()))
        labels = problem.values[some].shape[axes[0]]
        order = torch.randperm(labels, generator=torch.Generator().manual_seed(4))

        def permuted(fields: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
            found = {}
            for name, x in fields.items():
                for axis in entry.labelled[name]:
                    x = x.index_select(axis, order)
                found[name] = x
            return found

        s = problem.make(engine)
        t = entry.build(permuted(problem.values, order), problem.lengths, engine)
        for query in ("max", "log_partition", "entropy", "count"):
            compare({query: numbers(getattr(t, query)())}, {query: numbers(getattr(s, query)())}, error(problem), query)
        expected = permuted({n: x for n, x in s.marginals()._asdict().items() if x is not None}, order)
        for name, x in t.marginals()._asdict().items():
            if x is not None:
                compare({name: numbers(x)}, {name: numbers(expected[name])}, error(problem), name)


def test_threads() -> None:
    """Work is cut by sizes and the number of threads: sums over rows may differ in their last digits, rows may not."""
    threads = torch.get_num_threads()
    runs = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        runs.append(all_answers())
    torch.set_num_threads(threads)
    for other in runs[1:]:
        for name, x in runs[0].items():
            compare({name: other[name]}, {name: x}, 1e-6 if " f32 " in name else 1e-13, name)


@pytest.mark.parametrize("isa", ["base", "avx2", "avx512"])
def test_instruction_sets(isa: str, tmp_path: Path) -> None:
    if not any((Path(folder) / f"_kernels_{isa}.so").exists() for folder in structlearn.__path__):
        pytest.skip(f"this build has no kernels for {isa}")
    if isa.upper() not in ("BASE", *capabilities()):
        pytest.skip(f"this machine has no {isa}")
    file = tmp_path / "answers.npz"
    environment = os.environ | {"STRUCTLEARN_ISA": isa, "PYTHONPATH": str(Path(__file__).parents[1])}
    program = [sys.executable, "-m", "suites.answers", str(file), "2"]
    subprocess.run(program, env=environment, check=True, timeout=300)
    with np.load(file) as found:
        for name, x in all_answers().items():
            query = name.split()[3]
            tolerance = 0.0 if query in DISCRETE else 2e-5 if " f32 " in name else 1e-11
            compare({query: found[name]}, {query: x}, tolerance, name)


def capabilities() -> tuple[str, ...]:
    """Of this machine."""
    best = torch.backends.cpu.get_cpu_capability()
    return ("AVX2", "AVX512") if best == "AVX512" else (best,)
