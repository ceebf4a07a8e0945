"""Training that can be killed and goes on with the same bits.

A checkpoint holds every number that the next round depends on, and a fingerprint of the problem, so that it is not
taken for another one's. It is written beside its place and moved there: a kill leaves the last whole one.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import FormatError
from structlearn.solvers.certificate import Certificate, History
from structlearn.solvers.problem import Problem
from structlearn.solvers.solver import Solver


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
    path = Path(path)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    torch.save({"fingerprint": mark, "solver": solver.state(), "history": history.state()}, beside)
    os.replace(beside, path)


def restore(path: str | Path, solver: Solver, mark: str) -> History:
    """Brings ``solver`` to where ``path`` left it; the history up to there."""
    try:
        held: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:
        raise FormatError(
            str(path), "a checkpoint of structlearn", type(error).__name__, "delete it to start again"
        ) from error
    if held.get("fingerprint") != mark:
        raise FormatError(
            str(path),
            "a checkpoint of this problem",
            "one of another",
            "name another file, or delete it to start again",
        )
    solver.load(held["solver"])
    return History([Certificate(**row) for row in held["history"]])
