"""One HiGHS object for each thread, loaded with one program after the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from structlearn.constraints.language import Floats, Ints
from structlearn.constraints.program import Program
from structlearn.errors import DependencyError

_local = threading.local()


def _highs() -> Any:
    try:
        import highspy
    except ImportError as error:
        remedy = "pip install 'structlearn[ilp]'"
        raise DependencyError("highspy", "an installed package for 0/1 programs", "none", remedy) from error
    return highspy


class Solver:
    """One HiGHS object, loaded with one program after the other."""

    def __init__(self) -> None:
        self.highspy = _highs()
        self.highs = self.highspy.Highs()
        for option, value in (("output_flag", False), ("threads", 1), ("solver", "simplex")):
            self.highs.setOptionValue(option, value)
        for option, gap in (("mip_rel_gap", 0.0), ("mip_abs_gap", 1e-9)):
            self.highs.setOptionValue(option, gap)
        self._rowwise = int(self.highspy.MatrixFormat.kRowwise)
        self._maximize = int(self.highspy.ObjSense.kMaximize)
        self._limit, self._presolves = float("nan"), ""

    def _presolve(self, value: str) -> None:
        if self._presolves != value:
            self._presolves = value
            self.highs.setOptionValue("presolve", value)

    def load(self, program: Program, kept: Ints, cost: Floats) -> None:
        """Maximise cost . x over the kept columns, relaxed; rows that cannot bind are left out."""
        place = np.full(program.columns, -1)
        size = len(kept)
        place[kept] = np.arange(size)
        column = place[program.column]
        used = column >= 0
        row, column, value = program.row[used], column[used], program.value[used]
        low, high = program.low, program.high
        binds = (low > -np.inf) | (np.bincount(row, np.maximum(value, 0), len(low)) > high)
        if not binds.all():
            stay = binds[row]
            row, column, value = (np.cumsum(binds) - 1)[row[stay]], column[stay], value[stay]
            low, high = low[binds], high[binds]
        starts = np.zeros(len(low) + 1, dtype=np.int32)
        np.cumsum(np.bincount(row, minlength=len(low)), out=starts[1:])
        # On relaxations of this size presolve costs more than it saves: 2.1 ms against 0.36 on 15 x 20 roles.
        self._presolve("off")
        self.highs.passModel(
            size,
            len(low),
            len(value),
            self._rowwise,
            self._maximize,
            0.0,
            cost[kept],
            np.zeros(size),
            np.ones(size),
            low,
            high,
            starts[:-1],
            column.astype(np.int32),
            value,
            np.zeros(size, dtype=np.int32),  # every column continuous
        )

    def branch(self, whole: Ints, start: Floats | None) -> None:
        """The same model with whole variables, begun at ``start`` and at the relaxation's basis."""
        self._presolve("on")
        kinds = np.full(len(whole), self.highspy.HighsVarType.kInteger)
        self.highs.changeColsIntegrality(len(whole), whole.astype(np.int32), kinds)
        if start is not None:
            solution = self.highspy.HighsSolution()
            solution.col_value = start.tolist()
            self.highs.setSolution(solution)

    def run(self, seconds: float) -> str:
        """ "optimal", "infeasible" or "stopped"."""
        # HiGHS counts the time of all runs of one object; setting an option costs a tenth of a relaxation.
        past = self.highs.getRunTime()
        if not seconds <= self._limit - past <= 1.01 * seconds:
            self._limit = past + seconds
            self.highs.setOptionValue("time_limit", self._limit)
        self.highs.run()
        status, names = self.highs.getModelStatus(), self.highspy.HighsModelStatus
        if status == names.kOptimal:
            return "optimal"
        return "infeasible" if status in (names.kInfeasible, names.kUnboundedOrInfeasible) else "stopped"

    def values(self) -> Floats:
        """Of the kept columns."""
        return np.array(self.highs.getSolution().col_value)


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay, each with its HiGHS object."""
    return ThreadPoolExecutor(threads, thread_name_prefix="structlearn-ilp")


def solver() -> Solver:
    """This thread's."""
    if not hasattr(_local, "solver"):
        _local.solver = Solver()
    found: Solver = _local.solver
    return found
