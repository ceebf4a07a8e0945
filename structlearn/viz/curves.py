"""Curves over training: errors by epoch, and the duality gap of exact solvers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from structlearn.viz.base import BLUE, LINES, ORANGE

if TYPE_CHECKING:
    from structlearn.solvers import Certificate, History


def learning_curves(ax: Any, curves: Mapping[str, Sequence[float]], *, ylabel: str) -> None:
    """One line a name, over epochs 1, 2, ..., with its last value in the legend; values are shares in [0, 1]."""
    for (name, values), (colour, marker, line) in zip(curves.items(), LINES * len(curves), strict=False):
        label = f"{name}: {values[-1]:.1%}"
        ax.plot(
            range(1, len(values) + 1), values, color=colour, marker=marker, linestyle=line, markersize=5, label=label
        )
    ax.set_xlabel("epoch")
    ax.set_ylabel(ylabel)
    ax.set_ylim(bottom=0)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.grid(axis="y", color="0.9")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9)


Over = Literal["seconds", "round", "oracle_calls"]
_NAMES = {"seconds": "seconds", "round": "round", "oracle_calls": "calls of the oracle, one an example"}


def gap_curves(ax: Any, histories: Mapping[str, History], *, over: Over = "seconds") -> None:
    """(primal - dual) / primal after every round, on a logarithmic axis, one line a name with its last value."""
    for (name, history), (colour, marker, line) in zip(histories.items(), LINES * len(histories), strict=False):
        rows = _finite(history)
        gaps = [max(row.relative_gap, 1e-16) for row in rows]
        label = f"{name}: {gaps[-1]:.1e}" if gaps else name
        ax.plot(
            [getattr(row, over) for row in rows], gaps, color=colour, linestyle=line, label=label,
            marker=marker, markersize=4, markevery=max(1, len(rows) // 12),
        )  # fmt: skip
    ax.set_yscale("log")
    _dress(ax, _NAMES[over], "gap / primal")


def bounds(ax: Any, history: History, *, over: Over = "seconds") -> None:
    """The primal from above and the dual from below; the optimum lies in the shaded band between them."""
    rows = _finite(history)
    x = [getattr(row, over) for row in rows]
    primal, dual = [row.primal for row in rows], [row.dual for row in rows]
    ax.fill_between(x, dual, primal, color="0.93", label="here lies the optimum")
    ax.plot(x, primal, color=BLUE, label="primal")
    ax.plot(x, dual, color=ORANGE, linestyle="--", label="dual")
    _dress(ax, _NAMES[over], "objective")


def _finite(history: History) -> list[Certificate]:
    """The first rounds may have no finite primal yet."""
    return [row for row in history if math.isfinite(row.gap)]


def _dress(ax: Any, xlabel: str, ylabel: str) -> None:
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.grid(axis="y", color="0.9")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=9)
