"""Bars of a table, ours beside the published figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from structlearn.experiments.base import Mean, Table
from structlearn.viz.base import BLUE, figure


def bars(tables: Sequence[Table], *, most: int = 6) -> Any:
    """A figure with one panel for each column of numbers, at most ``most``; rows down, intervals as whiskers."""
    panels = [(table, j) for table in tables for j in range(1, len(table.columns)) if _numbers(table, j)][:most]
    across = 2 if len(panels) == 4 else min(3, max(1, len(panels)))
    down = max(1, math.ceil(len(panels) / across))
    tallest = max((len(table.rows) for table, _ in panels), default=1)
    drawn = figure(4.2 * across, down * (1.2 + 0.36 * tallest))
    axes = drawn.subplots(down, across, squeeze=False).flatten()
    for ax in axes[len(panels) :]:
        ax.axis("off")
    for ax, (table, j) in zip(axes, panels, strict=False):
        _panel(ax, table, j)
    compared = [ax for ax in axes if len(ax.get_legend_handles_labels()[1]) > 1]
    if compared:
        drawn.legend(*compared[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return drawn


def _numbers(table: Table, j: int) -> bool:
    return any(isinstance(row[j], int | float | Mean) for row in table.rows)


def _split(cell: Any) -> tuple[float, float]:
    if isinstance(cell, Mean):
        return cell.value, cell.half or 0.0
    return (float(cell), 0.0) if isinstance(cell, int | float) else (math.nan, 0.0)


def _panel(ax: Any, table: Table, j: int) -> None:
    places = range(len(table.rows))
    paper = None if table.published is None else [_split(row[j]) for row in table.published]
    compared = paper is not None and any(not math.isnan(value) for value, _ in paper)
    height = 0.38 if compared else 0.7
    ours = [_split(row[j]) for row in table.rows]
    shift = height / 2 if compared else 0.0
    _bars(ax, [p - shift for p in places], ours, height, BLUE, "ours")
    if compared and paper is not None:
        _bars(ax, [p + shift for p in places], paper, height, "0.75", "paper")
    ax.set_yticks(list(places), [str(row[0]) for row in table.rows], fontsize=8)
    ax.invert_yaxis()
    ax.set_title("\n".join([*textwrap.wrap(table.title, 48), table.columns[j]]), fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x", color="0.9")
    ax.set_axisbelow(True)


def _bars(
    ax: Any, places: list[float], cells: list[tuple[float, float]], height: float, colour: str, name: str
) -> None:
    values = [0.0 if math.isnan(value) else value for value, _ in cells]
    whiskers = [half for _, half in cells]
    ax.barh(places, values, height=height, color=colour, label=name, xerr=whiskers, error_kw={"lw": 0.8})
