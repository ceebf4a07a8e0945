"""Exact structured SVMs on OCR letters, digits and growing numbers of words; ``python -m benchmarks.svm --data DIR``.

OCR letters, fold 0 trained, the rest tested: min 1/2 |w|^2 + 0.1 sum_i max_y [Hamming + F(y) - F(y_i)], no bias. A run
is timed in a process of its own, several times, each with its own seed, which sets the order of words; the table has
medians, and the smallest since the machine is shared. Excess is (P - P*) / P*, P* replaced by the run's own dual, which
is below it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import structlearn as sl
from structlearn.solvers import qp as qps

EXCESS = (0.0066, 0.0021, 0.001)  # the first two are where the fastest other trainer was measured
Letters = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def letters(folder: Path, chosen: Any) -> Letters:
    """Padded images (B, N, 128), labels (B, N) and lengths (B,) of the words that ``chosen`` takes by fold."""
    data = np.load(folder / "ocr" / "letters.npz")
    pixels, labels, start = np.unpackbits(data["pixels"], axis=1), data["labels"].astype(np.int64), data["word_start"]
    rows = np.flatnonzero(chosen(data["fold"]))
    lengths = torch.tensor([int(start[i + 1] - start[i]) for i in rows])
    x = torch.zeros(len(rows), int(lengths.max()), 128, dtype=torch.float64)
    y = torch.full(x.shape[:2], -100)
    for i, row in enumerate(rows):
        here = slice(start[row], start[row + 1])
        x[i, : lengths[i]] = torch.as_tensor(pixels[here])
        y[i, : lengths[i]] = torch.as_tensor(labels[here])
    return x, y, lengths


def model(solver: str, C: float, **options: Any) -> sl.StructuredSVM:
    return sl.StructuredSVM(
        sl.features.ChainMap(128, 26), sl.costs.Hamming(), C=C, solver=solver, eps=0.1, **{"gap": 1e-3, **options}
    )  # type: ignore[arg-type]


def one_run(folder: Path, solver: str, seed: int) -> None:
    """Prints seconds, CPU seconds, primal, dual, rounds, oracle calls, accuracy, MB beyond what importing took, and
    seconds to each excess.
    """
    train, test = letters(folder, lambda fold: fold == 0), letters(folder, lambda fold: fold != 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    fitted = model(solver, 0.1 * len(train[0]), random_state=seed).fit(*train)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    c = fitted.certificate_
    passed = [min(row.seconds for row in fitted.history_ if row.primal <= c.dual * (1 + most)) for most in EXCESS]
    print(wall, cpu, c.primal, c.dual, c.round, c.oracle_calls / len(train[0]), fitted.score(*test), memory, *passed)


def ocr(folder: Path, repeats: int) -> list[str]:
    excess = " | ".join(f"s to {100 * most:.2g} %" for most in EXCESS)
    lines = [
        "| solver | seconds (least) | CPU seconds | primal | dual | rounds | oracle calls / n | letters right (least) "
        f"| MB | {excess} |",
        "|---" * (9 + len(EXCESS)) + "|",
    ]
    for solver, times in (("bcfw", repeats), ("n_slack", 1), ("one_slack", 1)):
        runs = []
        for seed in range(times):
            options = ["--data", str(folder), "--run", solver, "--seed", str(seed)]
            command = [sys.executable, "-m", "benchmarks.svm", *options]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            runs.append([float(v) for v in out])
        columns = list(zip(*runs, strict=True))
        wall, cpu, primal, dual, rounds, calls, right, memory, *passed = map(statistics.median, columns)
        lines.append(
            f"| {solver} | {wall:.2f} ({min(columns[0]):.2f}) | {cpu:.2f} | {primal:.3f} | {dual:.3f} | {rounds:.0f} "
            f"| {calls:.0f} | {right:.4f} ({min(columns[6]):.4f}) | {memory:.0f} "
            f"| {' | '.join(f'{seconds:.2f}' for seconds in passed)} |"
        )
    return lines


def growth(folder: Path) -> list[str]:
    """1-slack with C/n fixed in the objective's form C/n sum xi: rounds must not grow, oracle time must be linear."""
    x, y, lengths = letters(folder, lambda fold: fold >= 0)
    lines = ["| n | rounds | oracle seconds | of these a call, microseconds |", "|---|---|---|---|"]
    for n in (100, 300, 1000, 3000, 6000):
        fitted = model("one_slack", 1.0, gap=1e-2).fit(x[:n], y[:n], lengths[:n])
        c = fitted.certificate_
        lines.append(f"| {n} | {c.round} | {c.oracle_seconds:.3f} | {1e6 * c.oracle_seconds / c.oracle_calls:.1f} |")
    return lines


def programs(folder: Path) -> list[str]:
    """Real duals: 1-slack after some rounds, n-slack over some words."""
    train = letters(folder, lambda fold: fold == 0)
    cases: list[tuple[str, qps.DualQP]] = []
    for rounds in (12, 50, 150):
        found = model("one_slack", 62.6, max_rounds=rounds)
        solver = found._solver(found._problem(*train))
        for _ in range(rounds):
            solver.round()
        group = torch.zeros(len(solver.b), dtype=torch.int64)  # type: ignore[attr-defined]
        cases.append((f"1-slack, {len(group)}", qps.DualQP(solver.gram, solver.b, group, 62.6)))  # type: ignore[attr-defined]
    for words in (60, 150):
        part = tuple(v[:words] for v in train)
        found = model("n_slack", 0.1 * words)
        solver = found._solver(found._problem(*part))
        for _ in range(12):
            solver.round()
        planes = solver.set.dense()  # type: ignore[attr-defined]
        group = torch.unique_consecutive(solver.set.block.view, return_inverse=True)[1]  # type: ignore[attr-defined]
        program = qps.DualQP(planes @ planes.T, solver.set.b.view.clone(), group, 0.1)  # type: ignore[attr-defined]
        cases.append((f"n-slack, {len(group)} in {program.groups} blocks", program))
    methods = [m for m in qps.METHODS if m != "auto" and qps.installed(m)]
    lines = [f"| variables | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    for name, program in cases:
        cells = []
        for method in methods:
            if method == "qpth" and len(program.b) > 600:
                cells.append("not run")
                continue
            best = min((qps.solve(program, method, tolerance=1e-4) for _ in range(3)), key=lambda s: s.seconds)
            cells.append(f"{1e3 * best.seconds:.2f}" + ("*" if "+" in best.method else ""))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "Milliseconds, least of three; *: finished by smo, its own answer having a gap above 1e-6 of the dual.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--run", choices=["bcfw", "n_slack", "one_slack"], help="one run in this process")
    parser.add_argument("--seed", type=int, default=0, help="of that run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["ocr", "growth", "programs"])
    given = parser.parse_args()
    if given.run:
        one_run(given.data, given.run, given.seed)
        return
    parts = {
        "OCR letters, relative gap 1e-3": ("ocr", lambda: ocr(given.data, given.repeats)),
        "Growing n, 1-slack, C = 1, relative gap 1e-2": ("growth", lambda: growth(given.data)),
        "Quadratic programs": ("programs", lambda: programs(given.data)),
    }
    for title, (name, run) in parts.items():
        if given.only in (None, name):
            print(f"## {title}\n\n" + "\n".join(run()) + "\n", flush=True)


if __name__ == "__main__":
    main()
