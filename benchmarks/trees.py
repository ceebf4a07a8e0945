"""Trees: spans, dense grammars, a treebank's grammar and violations, beside the peers. `python -m benchmarks.trees`.

Jobs run one after the other in processes of their own; `--jobs` names some of them, and the results of the others are
kept from the last run. Every contestant's answer is judged before anything is timed.
"""

import argparse
import csv
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks import harness, process, report, tree_cases
from benchmarks.harness import Effort, Operation, Row
from benchmarks.quiet import Quiet
from benchmarks.report import Bar
from benchmarks.study import RESULTS
from benchmarks.tree_cases import dense_case, span_case
from benchmarks.tree_peers import CONTESTANTS

JOBS = ("spans", "dense", "large", "treebank", "violations", "growth")
DATA = Path(os.environ.get("STRUCTLEARN_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
QUICK = Effort(rounds=2, fewest=1, seconds=0.01)
# One call of torch-struct takes ten seconds on the large grammar.
FULL = Effort(rounds=30, fewest=3, seconds=0.25)


def _compare(operations: Sequence[Operation], cases: Sequence[Any], effort: Effort, threads: int) -> list[Row]:
    quiet = Quiet(0.0 if effort is QUICK else 20.0)
    rows: list[Row] = []
    for operation in operations:
        for case in cases:
            found = harness.measure(
                operation, case, CONTESTANTS[operation.name], threads=threads, effort=effort, quiet=quiet
            )
            told = ", ".join(f"{r.contestant} {r.median_ms:.3g} ms" for r in found if r.median_ms)
            print(f"{operation.name} {case}: {told}", flush=True)
            rows += found
    return rows


def _alone(operation: str, case: str, calls: dict[str, Callable[[], Any]], effort: Effort, threads: int) -> list[Row]:
    """Rows of calls that are ours alone."""
    timings = harness.time_in_turns(list(calls.values()), effort, Quiet(0.0 if effort is QUICK else 10.0))
    rows = []
    for name, timing in zip(calls, timings, strict=True):
        row = Row(operation, case, threads, name, "ours", "", "ok", timing.median * 1e3, min(timing.walls) * 1e3)
        row.samples, row.calls_per_sample = len(timing.walls), timing.calls
        row.disturbed, row.calm = len(timing.walls) - len(timing.undisturbed), timing.calm
        row.sure = timing.calm
        rows.append(row)
    return rows


def _spans(effort: Effort, threads: int) -> list[Row]:
    shapes = [(2, 5, 3)] if effort is QUICK else [(16, n, labels) for labels in (10, 30) for n in (10, 20, 40)]
    cases = [span_case(shape) for shape in shapes]
    return _compare((tree_cases.SPAN_ARGMAX, tree_cases.SPAN_PARTITION), cases, effort, threads)


def _dense(effort: Effort, threads: int) -> list[Row]:
    shapes = [(2, 5, 3)] if effort is QUICK else [(16, 10, 10), (16, 20, 10), (16, 40, 10), (16, 10, 30), (16, 20, 30)]
    cases = [dense_case(shape) for shape in shapes]
    return _compare((tree_cases.DENSE_ARGMAX, tree_cases.DENSE_PARTITION), cases, effort, threads)


def _large(effort: Effort, threads: int) -> list[Row]:
    if effort is QUICK:
        return []
    operations = (tree_cases.DENSE_ARGMAX, tree_cases.DENSE_PARTITION)
    return _compare(operations, [dense_case((16, 40, 30))], Effort(rounds=6, fewest=1, seconds=0.3), threads)


def _treebank(effort: Effort, threads: int) -> list[Row]:
    """Milliseconds a sentence, for a grammar of all sentences of at most 40 words with markov order h=2, v=1."""
    import torch

    import structlearn as sl
    from structlearn.baselines.pcfg import PCFG
    from structlearn.data.treebank import read_treebank

    folder = DATA / "treebank"
    if not folder.is_dir() or effort is QUICK:
        return []
    trees = [tree for tree in read_treebank(folder) if len(tree.leaves()) <= 40]
    rows = []
    for name, smoothing in (("as counted", 0.0), ("smoothed", 1.0)):
        model = PCFG.fit(trees, h=2, v=1, smoothing=smoothing)
        g = model.grammar
        grammar = sl.Grammar(g.rules, g.nonterminals, g.preterminals)
        told = f"{name}: {grammar.num_symbols} symbols, {grammar.num_rules} rules"
        for limit, every in ((10, 1), (40, 50)):
            some = [tree for tree in trees if len(tree.leaves()) <= limit][::every]
            words = [tree.leaves() for tree in some]
            lengths = torch.tensor([len(row) for row in words])
            for kind, tags in (("tags", [[tag for _, tag in tree.pos()] for tree in some]), ("words", None)):
                terms = model.terms(words, tags)

                scores = model.rule_scores, model.root_scores

                def parse(grammar: Any = grammar, given: Any = (terms, *scores), lengths: Any = lengths) -> Any:
                    return sl.WeightedCFG(grammar, *given, lengths=lengths).argmax()

                case = f"≤ {limit} words, {kind} given"
                found = _alone("treebank", case, {told: parse}, effort, threads)
                for row in found:
                    row.median_ms = (row.median_ms or math.nan) / len(some)
                    row.min_ms = (row.min_ms or math.nan) / len(some)
                    row.units_per_second = 1e3 / row.median_ms
                    print(f"treebank {case}, {told}: {row.units_per_second:.4g} sentences a second", flush=True)
                rows += found
    return rows


def _violations(effort: Effort, threads: int) -> list[Row]:
    """The most violated tree under bracket F1, slack-rescaled and margin-rescaled, and under Hamming by plain CKY."""
    import torch

    import structlearn as sl

    n, b = (4, 2) if effort is QUICK else (10, 16)
    generator = torch.Generator().manual_seed(0)
    spans = sl.SpanTree(torch.randn((b, n, n, 10), generator=generator))
    nt = 4
    triples = torch.cartesian_prod(torch.arange(nt), torch.arange(3 * nt), torch.arange(3 * nt))
    grammar = sl.Grammar(triples, nt, 2 * nt)
    terms = torch.randn((b, n, 2 * nt), generator=generator)
    weights = torch.randn(grammar.num_rules, generator=generator)
    cfg = sl.WeightedCFG(grammar, terms, weights, torch.zeros(nt))
    rows = []
    f1, hamming = sl.costs.BracketF1(), sl.costs.Hamming()
    structures: list[tuple[str, Any]] = [(f"spans, N={n} L=10", spans), (f"dense grammar, N={n} NT={nt}", cfg)]
    for name, structure in structures:
        gold = structure.sample(1, generator)[0]
        calls = {
            f"{how}": lambda structure=structure, gold=gold, cost=cost, options=options: sl.most_violated(
                structure, gold, cost, **options
            )
            for how, cost, options in (
                ("bracket F1, slack, counting", f1, {"rescaling": "slack"}),
                ("bracket F1, slack, lambda-search", f1, {"rescaling": "slack", "inference": "search"}),
                ("bracket F1, margin, counting", f1, {}),
                ("Hamming, margin, plain CKY", hamming, {}),
            )
        }
        values = [calls[how]().value for how in list(calls)[:2]]
        if not torch.allclose(*values, rtol=1e-4):
            raise SystemExit("refused: counting and search differ")
        rows += _alone("violation", name, calls, effort, threads)
    return rows


def _growth(effort: Effort, threads: int) -> list[Row]:
    """Time against the number of words, one sentence a call."""
    import torch

    import structlearn as sl

    sizes = (4, 8) if effort is QUICK else (20, 40, 80, 160)
    rows = []
    for n in sizes:
        spans = torch.randn(1, n, n, 10).requires_grad_()
        case = dense_case((1, n, 10 if effort is not QUICK else 3))
        nt, s, _ = case.rules.shape
        triples = torch.cartesian_prod(torch.arange(nt), torch.arange(s), torch.arange(s))
        grammar = sl.Grammar(triples, nt, s - nt)
        terms, rules, roots = (torch.tensor(x, requires_grad=True) for x in (case.terms, case.rules, case.roots))

        def cfg(grammar: Any = grammar, terms: Any = terms, rules: Any = rules, roots: Any = roots) -> Any:
            return sl.WeightedCFG(grammar, terms, rules.flatten(), roots)

        calls: dict[str, Callable[[], Any]] = {
            "spans, argmax": lambda spans=spans: sl.SpanTree(spans).argmax(),
            "spans, partition": lambda spans=spans: sl.SpanTree(spans).log_partition().sum().backward(),
            "dense grammar, argmax": lambda cfg=cfg: cfg().argmax(),
            "dense grammar, partition": lambda cfg=cfg: cfg().log_partition().sum().backward(),
        }
        rows += _alone("growth", f"N={n}", calls, effort, threads)
    return rows


WORK: dict[str, Callable[[Effort, int], list[Row]]] = dict(
    zip(JOBS, (_spans, _dense, _large, _treebank, _violations, _growth), strict=True)
)
OPERATIONS = {
    "spans": ("span argmax", "span partition"),
    "dense": ("dense argmax", "dense partition"),
    "large": ("dense argmax", "dense partition"),
    "treebank": ("treebank",),
    "violations": ("violation",),
    "growth": ("growth",),
}


def _job(row: Row) -> str:
    if row.operation.startswith("dense"):
        return "large" if row.case == "B=16 N=40 NT=30" else "dense"
    return next(job for job, names in OPERATIONS.items() if row.operation in names)


def slope(rows: Sequence[Row], name: str) -> float | None:
    """The exponent p of time = c N^p, by least squares on the upper three sizes."""
    timed = [(r.case, r.median_ms) for r in rows if r.contestant == name and r.median_ms]
    points = sorted((math.log(float(case[2:])), math.log(ms)) for case, ms in timed)[-3:]
    if len(points) < 2:
        return None
    x, y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Every demand with what was measured."""
    found = []
    limits = {
        ("span partition", "torch-struct"): 8,
        ("span partition", "numba"): 3,
        ("span argmax", "torch-struct"): 15,
        ("span argmax", "numba"): 2,
        ("dense partition", "torch-struct"): 20,
        ("dense partition", "torch loop"): 3,
        ("dense argmax", "torch-struct"): 20,
    }
    for row in rows:
        limit = limits.get((row.operation, row.family))
        if limit is not None:
            note = "" if row.status == "ok" else row.status
            text = f"{row.operation} {row.case}: over {row.family}"
            same = [other for other in rows if other.operation == row.operation]
            found.append(report.bar_against(text, limit, same, row, note))
            if (row.operation, row.family) == ("span partition", "numba"):
                found.append(report.untaped_bar(f"{text}, values without autograd", limit, same, row.case, row))
        elif row.operation == "treebank":
            limit = 300 if "10" in row.case else 3
            text = f"treebank, {row.contestant}, {row.case}"
            found.append(Bar(text, limit, row.units_per_second, unit=" sentences/s", sure=row.sure))
    violations = [row for row in rows if row.operation == "violation"]
    for case in dict.fromkeys(row.case for row in violations):
        ms = {row.contestant: row.median_ms or math.nan for row in violations if row.case == case}
        slack = ms["bracket F1, slack, counting"]
        for rival in ("bracket F1, margin, counting", "Hamming, margin, plain CKY"):
            found.append(Bar(f"violation {case}: slack F1 over {rival}", 60, slack / ms[rival], at_most=True))
    growth = [row for row in rows if row.operation == "growth"]
    for name in dict.fromkeys(row.contestant for row in growth):
        found.append(Bar(f"growth, {name}: exponent of N", 3, slope(growth, name), at_most=True, unit=""))
    return found


def render(rows: Sequence[Row], quick: bool) -> str:
    """The tables and the bars."""
    lines = ["# Trees, float32, sentences of N words; shapes as named", ""]
    lines += [*(f"- {line}" for line in [*report.machine(), report.disturbance(rows)]), ""]
    lines += ["Median ms a call (times structlearn's median, in the same run); threads: 2.", ""]
    for name in ("span argmax", "span partition", "dense argmax", "dense partition", "violation", "growth"):
        here = [row for row in rows if row.operation == name]
        if here:
            lines += [f"## {name}", "", *report.table(here), ""]
    here = [row for row in rows if row.operation == "treebank"]
    if here:
        lines += ["## treebank, ms a sentence", "", *report.table(here), ""]
    if not quick:
        lines += ["## Bars", "", *report.bar_table(bars(rows)), ""]
    return "\n".join(lines)


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    kinds = {column.name: getattr(column.type, "__name__", str(column.type)) for column in fields(Row)}

    def value(name: str, text: str) -> Any:
        kind = kinds[name]
        if text == "":
            return None if "None" in kind else ""
        if kind == "bool":
            return text == "True"
        return int(text) if kind == "int" else float(text) if "float" in kind else text

    with path.open() as file:
        return [Row(**{name: value(name, text) for name, text in record.items()}) for record in csv.DictReader(file)]


def main() -> None:
    """Measure in worker processes, print the report and write trees.csv and trees.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small shapes, few samples: does it run, not how fast")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="which to measure again")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for CSV and Markdown")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=2, help="threads for everybody")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        process.set_threads(options.threads)
        effort = QUICK if options.quick else FULL
        found = [asdict(row) for job in options.jobs for row in WORK[job](effort, options.threads)]
        options.out.write_text(json.dumps(found))
        return
    kept = [row for row in _read(options.results / "trees.csv") if _job(row) not in options.jobs]
    flags = ["--worker", *(["--quick"] if options.quick else []), "--jobs"]
    # Libraries load slowly, so a quick run does all its jobs in one process.
    groups = [options.jobs] if options.quick else [[job] for job in options.jobs]
    rows = [
        Row(**record)
        for group in groups
        for record in process.run("benchmarks.trees", [*flags, *group], threads=options.threads)
    ]
    rows = sorted([*kept, *rows], key=lambda row: JOBS.index(_job(row)))
    options.results.mkdir(parents=True, exist_ok=True)
    report.write_csv(options.results / "trees.csv", rows)
    text = render(rows, options.quick)
    (options.results / "trees.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
