"""Training that can be killed and goes on with the same bits.

A checkpoint holds every number that the next round depends on, and a fingerprint of the problem, so that it is not
taken for another one's. A kill leaves the last whole one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from structlearn.errors import FormatError
from structlearn.solvers.certificate import Certificate, History
from structlearn.solvers.problem import Problem
from structlearn.solvers.solver import Solver
from structlearn.storage.checkpoints import read_checkpoint, write_checkpoint


def fingerprint(problem: Problem, solver: Solver) -> str:
    """Of the formulation, the solver, the sizes and the first answer of the oracle, which depends on all data."""
    found = problem.oracle(torch.zeros(problem.dim, dtype=torch.float64))
    text = f"{problem.formulation}{type(solver).__name__}{problem.n}{problem.dim}{problem.rows.value.sum():.17g}"
    digest = hashlib.sha256(text.encode())
    for x in (found.cost, found.value, *(v for v in [found.y] if isinstance(v, Tensor))):
        digest.update(x.contiguous().numpy().tobytes())
    return digest.hexdigest()


def save(path: str | Path, solver: Solver, history: History, mark: str) -> None:
    """Writes ``path``, whole or not at all."""
    write_checkpoint(path, {"fingerprint": mark, "solver": solver.state(), "history": history.state()})


def restore(path: str | Path, solver: Solver, mark: str) -> History:
    """Brings ``solver`` to where ``path`` left it; the history up to there."""
    again = "delete it to start again"
    held = read_checkpoint(path, remedy=again)
    if held.get("fingerprint") != mark:
        got, remedy = "one of another", "name another file, or delete it to start again"
        raise FormatError(str(path), "a checkpoint of this problem", got, remedy)
    try:
        history = History([Certificate(**row) for row in held["history"]])
        solver.load(held["solver"])
    except Exception as error:  # whatever a solver says of a state that is none
        got = f"{type(error).__name__}: {error}"
        raise FormatError(str(path), "the state of a solver and its history", got, again) from error
    return history
