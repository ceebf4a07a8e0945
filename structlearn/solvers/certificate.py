"""What a solver knows about its own answer, after every round.

    dual <= optimum <= primal,   gap = primal - dual

``primal`` is the objective of the best w so far, with the slack of every example recomputed by the oracle; ``dual`` is
the best dual value so far. Both are bounds of the optimum, whatever the solver did in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


class ConvergenceWarning(UserWarning):
    """A solver stopped at a limit before it reached the precision that was asked for."""


@dataclass(frozen=True)
class Certificate:
    """One row of the history; the last one is the solver's result.

    Args:
        round: rounds made.
        primal, dual: bounds of the optimum from above and from below.
        violation: by how much the worst constraint outside the working set was violated.
        constraints: planes in the working set, |S|.
        added: planes added since the start.
        bound: how many n-slack adds at most (Thm 6), from the costs and norms seen so far; inf where none is known.
        risk: mean of xi (of xi^2 where the penalty is quadratic) at the best w: bounds the mean training cost.
        oracle_calls: examples for which the most violated output was sought.
        oracle_seconds, qp_seconds, seconds: time in the oracle, in the dual, in all.
        exact: whether every answer of the oracle was proven; if not, ``primal`` may lie below the objective.
        converged: whether the precision that was asked for is reached.
        status: in words, why the solver stopped or that it goes on.
    """

    round: int
    primal: float
    dual: float
    violation: float
    constraints: int
    added: int
    bound: float
    risk: float
    oracle_calls: int
    oracle_seconds: float
    qp_seconds: float
    seconds: float
    exact: bool = True
    converged: bool = False
    status: str = "running"

    @property
    def gap(self) -> float:
        """primal - dual >= 0."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """gap / primal."""
        return self.gap / abs(self.primal) if 0 < abs(self.primal) < math.inf else math.inf if self.gap else 0.0


class History:
    """Certificates of all rounds, oldest first: a table that prints itself and can be drawn."""

    columns = (*(f.name for f in fields(Certificate)), "gap", "relative_gap")

    def __init__(self, rows: list[Certificate] | None = None) -> None:
        self.rows = rows or []

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Certificate]:
        return iter(self.rows)

    def __getitem__(self, key: int | str) -> Any:
        """A row by number, or a column by name."""
        return self.rows[key] if isinstance(key, int) else [getattr(row, key) for row in self.rows]

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns by name, as ``pandas.DataFrame`` takes them."""
        return {name: self[name] for name in self.columns}

    def state(self) -> list[dict[str, Any]]:
        """The rows as plain data, as checkpoints hold them."""
        return [asdict(row) for row in self.rows]

    def __str__(self) -> str:
        shown = ("round", "primal", "dual", "relative_gap", "violation", "constraints", "oracle_seconds", "qp_seconds")
        lines = ["  ".join(f"{name:>14}" for name in shown)]
        for row in self.rows:
            cells = (getattr(row, name) for name in shown)
            lines.append("  ".join(f"{c:>14d}" if isinstance(c, int) else f"{c:>14.6g}" for c in cells))
        return "\n".join(lines)

    def plot(self, path: str | Path | None = None) -> Any:
        """Primal, dual and gap against seconds; the figure, saved to ``path`` if given."""
        from structlearn import viz

        figure = viz.figure(9, 3.4)
        left, right = figure.subplots(1, 2)
        viz.bounds(left, self)
        viz.gap_curves(right, {"gap": self})
        if path is not None:
            figure.savefig(path)
        return figure
