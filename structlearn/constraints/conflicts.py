"""What is wrong, said so that it can be mended: constraints that exclude each other, gold outputs that break one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from structlearn.constraints import ilp
from structlearn.constraints.checks import Checks
from structlearn.constraints.compiled import Compiled
from structlearn.constraints.language import And, Bools, Constraint, Floats, Labels, Soft, Spans


def conflict(compiled: Compiled, n: int, spans: Spans | None, forbidden: Bools) -> list[Constraint] | None:
    """Hard conjuncts that no output of n parts keeps together, none of which could be left out.

    ``forbidden`` (N, C) are labels that the potentials exclude. None where the constraints are not to blame.
    """
    scores = np.where(forbidden, -np.inf, 0.0)
    parts = list(compiled.hard.parts)
    if _possible(parts, scores, compiled, spans):
        return None
    if not _possible([], scores, compiled, spans):
        return None
    for part in list(parts):
        rest = [other for other in parts if other is not part]
        if not _possible(rest, scores, compiled, spans):
            parts = rest
    return parts


def _possible(parts: Sequence[Constraint], scores: Floats, compiled: Compiled, spans: Spans | None) -> bool:
    instance = ilp.Instance(scores, None, spans)
    task = ilp.Task(tuple(parts), (), np.empty(0), Checks(parts, compiled.labels), float("inf"))
    return ilp.solve([instance], task)[0].y is not None


@dataclass(frozen=True)
class GoldViolation:
    """Instance ``row`` breaks ``constraint`` at ``place``."""

    row: int
    constraint: Constraint
    place: str

    def __str__(self) -> str:
        return f"row {self.row} breaks {self.constraint}: {self.place}"


def gold_violations(
    constraint: Constraint,
    gold: Tensor,
    labels: Labels | Sequence[str] | int,
    *,
    lengths: Tensor | None = None,
    spans: Tensor | None = None,
) -> list[GoldViolation]:
    """Every conjunct that a gold output (B, N) breaks, and where; soft conjuncts are reported too."""
    names = labels if isinstance(labels, Labels) else Labels(labels)
    parts = constraint.parts if isinstance(constraint, And) else (constraint,)
    found = []
    sizes = [gold.shape[1]] * len(gold) if lengths is None else lengths.tolist()
    y = gold.cpu().numpy().copy()
    for b, n in enumerate(sizes):
        y[b, n:] = names.count
    every = None if spans is None else Spans(spans.cpu().numpy())
    for part in parts:
        hard = part.hard if isinstance(part, Soft) else part
        for b in np.flatnonzero(~hard.satisfied(y, names, every)).tolist():
            own = None if every is None else every.row(b, sizes[b])
            found.append(GoldViolation(b, part, hard.place(y[b, : sizes[b]], names, own)))
    return sorted(found, key=lambda v: v.row)
