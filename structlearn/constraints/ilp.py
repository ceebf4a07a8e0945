"""0/1 programs solved by HiGHS (extra ``ilp``): the linear relaxation first, branching only where it is fractional.

A whole optimum of the relaxation is an optimum of the program, and semantic-role-like programs nearly always have one.
Only conjuncts that some answer broke take part: an optimum under some of the constraints that happens to keep all of
them is an optimum under all of them. Each thread keeps one HiGHS object, whose run releases the GIL.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from structlearn.constraints.highs import pool, solver
from structlearn.constraints.instances import Answer as Answer
from structlearn.constraints.instances import Instance as Instance
from structlearn.constraints.instances import Task as Task
from structlearn.constraints.instances import in_time, loose_bound
from structlearn.constraints.instances import value as value
from structlearn.constraints.language import Bools, Constraint, Floats, Ints, Spans
from structlearn.constraints.program import Program, build

_WHOLE = 1e-6
_KNOWN = 4096  # some 40 MB of programs of 15 x 20 roles


def solve(instances: Sequence[Instance], task: Task) -> list[Answer]:
    """The best output of each instance under all constraints.

    In rounds: what is still open is solved under the conjuncts that its answers broke so far, then all answers are
    checked together.
    """
    answers: dict[int, Answer] = {}
    active: dict[int, Bools] = {}
    local: dict[int, Ints] = {}
    size = len(task.hard) + len(task.soft)
    bound = [loose_bound(instance) for instance in instances]
    for i, instance in enumerate(instances):
        best = instance.unary.argmax(1)
        if not len(best):
            allowed = not _broken({i: best}, instances, task)[i][: len(task.hard)].any()
            answers[i] = Answer(best if allowed else None, "local", True, bound[i])
        elif instance.transition is not None:
            active[i] = np.ones(size, dtype=bool)
        elif not np.isfinite(instance.unary[np.arange(len(best)), best]).all():
            answers[i] = Answer(None, "local", True, -np.inf)
        else:
            local[i] = best
    for i, broken in _broken(local, instances, task).items():
        if broken.any():
            active[i] = broken
        else:
            answers[i] = Answer(local[i], "local", True, bound[i])
    left = dict.fromkeys(active, task.time_limit)
    branched: set[int] = set()
    while active:
        found: dict[int, Ints] = {}
        relaxed = {}
        for i, conjuncts in active.items():
            began = time.perf_counter()
            relaxed[i] = _relax(conjuncts, instances[i], task, left[i], bound[i])
            left[i] -= time.perf_counter() - began
        whole = _branch_all({i: one for i, one in relaxed.items() if one.path == "fractional"}, instances, task, left)
        branched |= whole.keys()
        for i, (y, path, limit, *_) in (relaxed | whole).items():
            bound[i] = limit
            if path == "stopped":
                answers[i] = in_time(y, instances[i], task, limit)
            elif y is None:
                answers[i] = Answer(None, "milp" if i in branched else "lp", True, -np.inf)
            else:
                found[i] = y
        still = {}
        for i, broken in _broken(found, instances, task).items():
            if (broken & ~active[i]).any():
                still[i] = active[i] | broken
            else:
                answers[i] = Answer(found[i], "milp" if i in branched else "lp", True, bound[i])
        active = still
    return [answers[i] for i in range(len(instances))]


def _broken(found: dict[int, Ints], instances: Sequence[Instance], task: Task) -> dict[int, Bools]:
    """Which conjuncts, hard then soft, outputs break."""
    rows = list(found)
    if len(rows) < 2:
        return {i: ~task.checks.kept(found[i][None], instances[i].spans)[0] for i in rows}
    most = max(len(found[i]) for i in rows)
    y = np.full((len(rows), most), task.checks.labels.count)
    ends = np.zeros((len(rows), most, 2), dtype=np.int64)
    for row, i in enumerate(rows):
        n, spans = len(found[i]), instances[i].spans
        y[row, :n] = found[i]
        if spans is not None:
            ends[row, :n] = spans.ends[0, :n]
    broken = ~task.checks.kept(y, None if instances[rows[0]].spans is None else Spans(ends))
    return dict(zip(rows, broken, strict=True))


class _Found(NamedTuple):
    """An output, if any, what came of it ("optimal", "infeasible", "fractional", "stopped"), a bound, the program."""

    y: Ints | None
    path: str
    bound: float
    program: Program
    kept: Ints
    cost: Floats


def _relax(active: Bools, instance: Instance, task: Task, seconds: float, bound: float) -> _Found:
    """The best output under the active conjuncts, if the relaxation is whole."""
    deadline = time.perf_counter() + seconds
    hard = tuple(c for c, on in zip(task.hard, active, strict=False) if on)
    chosen = active[len(task.hard) :]
    soft = tuple(s.hard for s, on in zip(task.soft, chosen, strict=True) if on)
    n, c = instance.unary.shape
    program = _program(active, hard, soft, instance, task)
    cost = program.costs(instance.unary, instance.transition, task.penalties[chosen])
    kept = program.useful(cost)
    kept = kept[np.isfinite(cost[kept])]
    found = _Found(None, "stopped", bound, program, kept, cost)
    highs = solver()
    highs.load(program, kept, cost)
    left = deadline - time.perf_counter()
    status = highs.run(left) if left > 0 else "stopped"
    if status != "optimal":
        return found._replace(path=status)
    values = highs.values()
    bound = min(bound, highs.highs.getObjectiveValue())
    if (np.abs(values - values.round())[program.whole[kept]] < _WHOLE).all():
        return found._replace(y=_labels(values, kept, n, c), path="optimal", bound=bound)
    return found._replace(path="fractional", bound=bound)


def _program(
    active: Bools, hard: tuple[Constraint, ...], soft: tuple[Constraint, ...], instance: Instance, task: Task
) -> Program:
    """Rows do not depend on scores: a sentence that comes again finds its program."""
    scored, spans = instance.transition is not None, instance.spans
    key = (active.tobytes(), len(instance.unary), b"" if spans is None else spans.ends.tobytes(), scored)
    known = {} if task.programs is None else task.programs
    if key not in known:
        if len(known) >= _KNOWN:
            known.clear()
        known[key] = build(hard, soft, len(instance.unary), task.checks.labels, spans, transitions=scored)
    return known[key]


def _branch_all(
    relaxed: dict[int, _Found], instances: Sequence[Instance], task: Task, left: dict[int, float]
) -> dict[int, _Found]:
    """Branch and bound where the relaxation is fractional, in threads: HiGHS releases the GIL while it runs.

    Relaxations are not worth a thread: handing one over takes as long as solving it.
    """

    def one(i: int) -> _Found:
        return _branch(relaxed[i], instances[i], left[i])

    if task.threads < 2 or len(relaxed) < 2:
        return {i: one(i) for i in relaxed}
    return dict(zip(relaxed, pool(task.threads).map(one, relaxed), strict=True))


def _branch(relaxed: _Found, instance: Instance, seconds: float) -> _Found:
    program, kept, bound = relaxed.program, relaxed.kept, relaxed.bound
    if seconds <= 0:
        return relaxed._replace(path="stopped")
    highs = solver()
    highs.load(program, kept, relaxed.cost)
    highs.branch(np.flatnonzero(program.whole[kept]), _start_values(instance.start, program, kept))
    status = highs.run(seconds)
    if status == "infeasible":
        return relaxed._replace(path=status)
    info = highs.highs.getInfo()
    y = None
    if status == "optimal" or info.primal_solution_status == 2:
        y = _labels(highs.values(), kept, *instance.unary.shape)
    return relaxed._replace(y=y, path=status, bound=min(bound, info.mip_dual_bound))


def _labels(values: Floats, kept: Ints, n: int, c: int) -> Ints:
    full = np.zeros(n * c)
    base = kept < n * c
    full[kept[base]] = values[: len(kept)][base]
    found: Ints = full.reshape(n, c).argmax(1)
    return found


def _start_values(y: Ints | None, program: Program, kept: Ints) -> Floats | None:
    """Values of the indicators; HiGHS completes the others."""
    if y is None or program.columns != program.parts * program.count:
        return None
    full = np.zeros(program.columns)
    full[np.arange(program.parts) * program.count + y] = 1.0
    values: Floats = full[kept]
    return values if values.sum() == program.parts else None
