"""Constrained inference: 0/1 programs of semantic-role-like sentences, and the automaton beside the 0/1 program.

    python -m benchmarks.constraints

Sentences have 15 candidates with random spans and 20 roles, of which 6 may occur once, random scores; each of 30 is
another program. Before anything is timed the answers are compared: ours with scipy's milp, automaton with 0/1 program.
All calls take turns; a time is the median of a call, scores to labels, everything included. Processor time is given
beside it, for a busy machine stretches the clock's.
"""

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import harness, process, report
from benchmarks.harness import Effort
from benchmarks.quiet import Quiet
from benchmarks.report import Bar
from benchmarks.study import RESULTS

SENTENCES, PARTS, ROLES, CORE, WORDS = 30, 15, 20, 6, 30
CHAIN = (32, 20, 8)
TOLERANCE = 1e-6


def _sentences(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (size, 15, 20) and spans (size, 15, 2)."""
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(size, PARTS, ROLES, generator=generator, dtype=torch.float64)
    spans = torch.randint(0, WORDS, (size, PARTS, 2), generator=generator).sort(-1).values
    return unary, spans


def _milp(unary: np.ndarray, spans: np.ndarray) -> float:
    """The same program by scipy: x[t, c], one label a part, core roles once, parts over one word not both labelled."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    rows, low, high = [], [], []

    def add(row: np.ndarray, a: float, b: float) -> None:
        rows.append(row.reshape(-1))
        low.append(a)
        high.append(b)

    for t in range(PARTS):
        row = np.zeros((PARTS, ROLES))
        row[t] = 1
        add(row, 1, 1)
    for c in range(1, CORE + 1):
        row = np.zeros((PARTS, ROLES))
        row[:, c] = 1
        add(row, -np.inf, 1)
    for word in range(WORDS):
        row = np.zeros((PARTS, ROLES))
        row[(spans[:, 0] <= word) & (spans[:, 1] >= word), 1:] = 1
        add(row, -np.inf, 1)
    limits = LinearConstraint(np.stack(rows), low, high)
    found = milp(-unary.reshape(-1), constraints=limits, integrality=np.ones(unary.size), bounds=Bounds(0, 1))
    return float(-found.fun)


def _calls(quick: bool) -> tuple[dict[str, Callable[[], Any]], list[str], dict[str, int]]:
    """Named calls, what differs between ways to the same answer, and how the sentences were solved."""
    from structlearn import constraints as sc
    from structlearn.structures import LinearChain

    unary, spans = _sentences(4 if quick else SENTENCES)
    once = sc.no_overlap()
    for c in range(1, CORE + 1):
        once = once & sc.at_most(1, c)
    roles, known = (sc.Compiled(once, ROLES, method="ilp", threads=1) for _ in range(2))
    # Neighbours in a random graph are not both labelled 1: odd cycles make the relaxation fractional.
    edges = np.argwhere(np.triu(np.random.default_rng(0).random((PARTS, PARTS)) < 0.5, 1)).tolist()
    graph = sc.everything()
    for i, j in edges:
        graph = graph & sc.linear({(i, 1): 1, (j, 1): 1}, "<=", 1)
    alone, pair = (sc.Compiled(graph, 2, method="ilp", threads=n) for n in (1, 2))
    nodes = sc.independent(torch.rand(4 if quick else 16, PARTS, 2, generator=torch.Generator().manual_seed(2)))
    nodes = nodes.replace(unary=nodes.unary * torch.tensor([0.0, 1.0]))
    turns = itertools.cycle(range(len(unary)))

    def single(compiled: sc.Compiled) -> Any:
        b = next(turns)
        return sc.Constrained(sc.independent(unary[b : b + 1]), compiled, spans=spans[b : b + 1]).solve()

    def first() -> Any:
        roles.programs.clear()
        return single(roles)

    def scipy() -> float:
        b = next(turns)
        return _milp(unary[b].numpy(), spans[b].numpy())

    def batch() -> Any:
        return sc.Constrained(sc.independent(unary), known, spans=spans).solve()

    generator = torch.Generator().manual_seed(1)
    shape = (3, 5, 4) if quick else CHAIN
    chain = LinearChain(torch.randn(shape, generator=generator), torch.zeros(shape[2], shape[2]))
    regular = sc.at_most(2, 1) & sc.forbid(2, 3) & sc.implies(3, 1)
    automaton, program = (sc.Compiled(regular, shape[2], method=m, threads=1) for m in ("automaton", "ilp"))  # type: ignore[arg-type]
    flow = sc.Compiled(sc.regular("(0 | 1 2* 3)*"), shape[2], method="ilp", threads=1)
    states = sc.Compiled(sc.regular("(0 | 1 2* 3)*"), shape[2], method="automaton")
    calls: dict[str, Callable[[], Any]] = {
        "one sentence": first,
        "one sentence, its rows known": lambda: single(known),
        "one sentence, scipy milp": scipy,
        f"{len(unary)} sentences at once": batch,
        "16 graphs that branch, 1 thread": lambda: sc.Constrained(nodes, alone).solve(),
        "16 graphs that branch, 2 threads": lambda: sc.Constrained(nodes, pair).solve(),
        "chains, automaton": lambda: sc.Constrained(chain, automaton).solve(),
        "chains, 0/1 program": lambda: sc.Constrained(chain, program).solve(),
        "regular language, automaton": lambda: sc.Constrained(chain, states).solve(),
        "regular language, 0/1 program": lambda: sc.Constrained(chain, flow).solve(),
    }
    solved = batch()
    wrong = [
        f"sentence {b}: {float(solved.score[b]):.6g} against scipy's {best:.6g}"
        for b in range(len(unary))
        if abs(float(solved.score[b]) - (best := _milp(unary[b].numpy(), spans[b].numpy()))) > TOLERANCE
    ]
    for kind in ("chains", "regular language"):
        a, b = calls[f"{kind}, automaton"](), calls[f"{kind}, 0/1 program"]()
        if not torch.equal(a.y, b.y) or not bool((a.optimal & b.optimal).all()):
            wrong.append(f"{kind}: automaton and 0/1 program differ")
    a, b = (sc.Constrained(nodes, compiled).solve() for compiled in (alone, pair))
    if not torch.equal(a.score, b.score) or "milp" not in a.path:
        wrong.append("graphs: one thread and two differ, or nothing branched")
    return calls, wrong, dict(Counter(solved.path))


def _work(quick: bool) -> dict[str, Any]:
    calls, wrong, paths = _calls(quick)
    if wrong:
        raise SystemExit("refused: results differ: " + "; ".join(wrong))
    effort = Effort(rounds=2, fewest=1, seconds=0.01) if quick else Effort(rounds=60, seconds=1.0)
    timings = harness.time_in_turns(list(calls.values()), effort, Quiet(0.0 if quick else 30.0))
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(2 if quick else 60):
        for name, call in calls.items():
            quick_call = timings[list(calls).index(name)].median < 0.005
            if turn < 5 or quick_call:
                repeats = 10 if quick_call else 1
                call()  # fills the caches
                began = time.process_time()
                for _ in range(repeats):
                    call()
                cpu[name].append((time.process_time() - began) / repeats)
    return {
        "cpu": {name: statistics.median(seconds) * 1e3 for name, seconds in cpu.items()},
        "ms": {name: timing.median * 1e3 for name, timing in zip(calls, timings, strict=True)},
        "calm": {name: timing.calm for name, timing in zip(calls, timings, strict=True)},
        "paths": paths,
    }


def _bars(found: dict[str, Any]) -> list[Bar]:
    ms, cpu, calm = found["ms"], found["cpu"], found["calm"]
    one, alone, pair = "one sentence", "16 graphs that branch, 1 thread", "16 graphs that branch, 2 threads"
    bars = [
        Bar(f"0/1 program of {PARTS} × {ROLES} roles, processor time", 1, cpu[one], at_most=True, unit=" ms"),
        Bar("the same, its rows known", 1, cpu[f"{one}, its rows known"], at_most=True, unit=" ms"),
        Bar(
            "0/1 program in a batch, each",
            1,
            cpu[f"{SENTENCES} sentences at once"] / SENTENCES,
            at_most=True,
            unit=" ms",
        ),
        Bar(
            "a batch that branches in 2 threads, its time over 1 thread's",
            1,
            ms[pair] / ms[alone],
            at_most=True,
            sure=calm[pair],
        ),
    ]
    for kind in ("chains", "regular language"):
        ratio = cpu[f"{kind}, 0/1 program"] / cpu[f"{kind}, automaton"]
        bars.append(Bar(f"{kind}: 0/1 program over automaton, processor time", 50, ratio))
    return bars


def main() -> None:
    """Measure in a worker process, print the tables and write constraints.md."""
    options, work = process.measured("benchmarks.constraints", __doc__, _work, threads=1, results=RESULTS)
    if work is None:
        return
    found: dict[str, Any] = work
    paths = ", ".join(f"{count} {path}" for path, count in found["paths"].items())
    lines = [
        f"# Constrained inference: {PARTS} candidates × {ROLES} roles, and chains {CHAIN}",
        "",
        *(f"- {line}" for line in report.machine()),
        f"- sentences solved by: {paths}; all proven optimal and equal to scipy's milp",
        "- chains: at_most(2, 1) & forbid(2, 3) & implies(3, 1), and regular('(0 | 1 2* 3)*'); the same labels",
        "",
        "| call | median ms | processor ms |",
        "|---|---|---|",
        *(f"| {name} | {value:.3g} | {found['cpu'][name]:.3g} |" for name, value in found["ms"].items()),
        "",
    ]
    if not options.quick:
        lines += [*report.bar_table(_bars(found)), ""]
    text = "\n".join(lines)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "constraints.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
