"""One 0/1 program before it is solved, its answer, and what is known of it without a solver."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from structlearn.constraints.checks import Checks
from structlearn.constraints.language import And, Constraint, Floats, Ints, Soft, Spans
from structlearn.constraints.program import Program


class Instance(NamedTuple):
    """One instance without padding: unary (N, C), transitions (N-1, C, C) if any, spans of its own, and a start."""

    unary: Floats
    transition: Floats | None
    spans: Spans | None
    start: Ints | None = None


class Task(NamedTuple):
    """What all instances share: hard and soft conjuncts, penalties (S,), checks of both kinds of conjuncts, hard first,
    seconds for an instance, threads.
    """

    hard: tuple[Constraint, ...]
    soft: tuple[Soft, ...]
    penalties: Floats
    checks: Checks
    time_limit: float
    threads: int = 1
    programs: dict[tuple[bytes, int, bytes, bool], Program] | None = None  # built before, to be used again


class Answer(NamedTuple):
    """The best output found, None if there is none or none was found in time; a bound on the best score."""

    y: Ints | None
    path: str
    optimal: bool
    bound: float


def loose_bound(instance: Instance) -> float:
    """Every part and every pair at its best."""
    bound = instance.unary.max(1).sum()
    if instance.transition is not None and instance.transition.size:
        bound += instance.transition.max((1, 2)).sum()
    return float(bound)


def value(y: Ints, instance: Instance, task: Task) -> float:
    """s(y), penalties included."""
    t = np.arange(len(y))
    total = instance.unary[t, y].sum()
    if instance.transition is not None:
        total += instance.transition[t[:-1], y[:-1], y[1:]].sum()
    for penalty, soft in zip(task.penalties, task.soft, strict=True):
        if not soft.hard.satisfied(y[None], task.checks.labels, instance.spans)[0]:
            total -= penalty
    return float(total)


def in_time(found: Ints | None, instance: Instance, task: Task, bound: float) -> Answer:
    """The best allowed one of what the solver found, the start and constant outputs, improved part by part."""
    hard, (n, c) = And(task.hard), instance.unary.shape
    tries = [np.full(n, label) for label in range(c)]
    tries += [y for y in (found, instance.start, instance.unary.argmax(1)) if y is not None]
    good = hard.satisfied(np.stack(tries), task.checks.labels, instance.spans)
    known = [y for y, ok in zip(tries, good, strict=True) if ok and np.isfinite(value(y, instance, task))]
    if not known:
        return Answer(None, "stopped", False, bound)
    best = max(known, key=lambda y: value(y, instance, task))
    for t in np.argsort(instance.unary[np.arange(n), best] - instance.unary.max(1)):
        changed = np.repeat(best[None], c, 0)
        changed[:, t] = np.arange(c)
        allowed = changed[hard.satisfied(changed, task.checks.labels, instance.spans)]
        best = max([best, *allowed], key=lambda y: value(y, instance, task))
    return Answer(best, "stopped", False, bound)
