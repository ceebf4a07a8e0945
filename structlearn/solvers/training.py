"""Runs a solver round by round: stops it, shows its gap, saves it, survives an interrupt."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from structlearn.solvers import checkpoint as checkpoints
from structlearn.solvers.certificate import Certificate, ConvergenceWarning, History
from structlearn.solvers.solver import Solver


class _Bar:
    """A line with the round and the gap, on a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
        )
        self.task = self.progress.add_task("StructuredSVM", total=None, state="")

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show(self, row: Certificate) -> None:
        state = f"round {row.round}  gap {row.relative_gap:.2e}  violation {row.violation:.2e}  |S| {row.constraints}"
        self.progress.update(self.task, advance=1, state=state)


def train(
    solver: Solver,
    *,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    verbose: bool = False,
    callback: Callable[[Certificate], Any] | None = None,
) -> History:
    """Rounds until the solver's limits are met; the history, whose last row says how it ended.

    With a ``checkpoint`` that exists, goes on from there. Ctrl-C ends training with the model of the last whole round;
    where there is none, or other processes wait for this one, KeyboardInterrupt goes on.
    """
    limits = solver.limits
    mark = checkpoints.fingerprint(solver.problem, solver) if checkpoint is not None else ""
    history = History()
    if checkpoint is not None and Path(checkpoint).exists():
        history = checkpoints.restore(checkpoint, solver, mark)
    best = solver.best if history.rows else None
    shown: AbstractContextManager[Any] = _Bar() if verbose else nullcontext()
    with shown as bar:
        try:
            while not (history.rows and (history.rows[-1].converged or solver.stopped)):
                if solver.rounds >= limits.max_rounds:
                    _stop(history, f"max_rounds={limits.max_rounds} reached")
                    break
                if solver.seconds >= limits.max_seconds:
                    _stop(history, f"max_seconds={limits.max_seconds:g} reached")
                    break
                row = solver.round()
                best = solver.best
                history.rows.append(row)
                if bar is not None:
                    bar.show(row)
                if checkpoint is not None and (row.converged or solver.stopped or row.round % checkpoint_every == 0):
                    checkpoints.save(checkpoint, solver, history, mark)
                if callback is not None:
                    callback(row)
        except KeyboardInterrupt:
            again = _how_to_resume(checkpoint)
            if best is None or solver.alone is False:
                raise KeyboardInterrupt(f"StructuredSVM was interrupted in round {len(history) + 1}; {again}") from None
            # The round that was cut short may have found a better one, which its certificate does not know.
            solver.best = best
            _stop(history, f"interrupted after round {len(history)}; {again}")
    last = history.rows[-1]
    limited = last.status.endswith("reached")
    if not last.converged:
        warnings.warn(
            f"StructuredSVM stopped with a relative gap of {last.relative_gap:.2e} and a violation of "
            f"{last.violation:.2e}: {last.status}" + ("; raise the limit, or eps or gap" if limited else ""),
            ConvergenceWarning,
            stacklevel=3,
        )
    assert not math.isnan(last.primal)
    return history


def _how_to_resume(checkpoint: str | Path | None) -> str:
    if checkpoint is None:
        return "with checkpoint=FILE, fit would go on from the last round written there"
    if Path(checkpoint).exists():
        return f"fit again with the same arguments to go on from {checkpoint}"
    return f"{checkpoint} was not written yet: fit starts again"


def _stop(history: History, status: str) -> None:
    if history.rows:
        history.rows[-1] = replace(history.rows[-1], status=status)
