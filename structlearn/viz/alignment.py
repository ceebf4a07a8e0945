"""Pictures of alignments: posteriors or scores as a heat map, dot plots, paths over either."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from structlearn.viz.base import VERMILION


def alignment_matrix(
    ax: Any,
    values: Tensor,
    path: Tensor | None = None,
    *,
    x: str | None = None,
    y: str | None = None,
    label: str = "match posterior",
) -> None:
    """values (N, M), posteriors or scores, as a heat map with the operations of ``path`` (N+M,) drawn over it.

    x runs down and y to the right, with their letters on the axes where there is room for them.
    """
    matrix = values.detach().cpu().numpy()
    n, m = matrix.shape
    shown = ax.imshow(matrix, cmap="Greys", aspect="equal", interpolation="nearest")
    ax.figure.colorbar(shown, ax=ax, shrink=0.85, label=label)
    _sequence_axes(ax, n, m, x, y)
    if path is not None:
        _draw_path(ax, path)


def dot_plot(ax: Any, x: str, y: str, path: Tensor | None = None, *, window: int = 1) -> None:
    """A dot where ``window`` letters of x and y from there on are equal, and over them the alignment ``path``."""
    n, m = len(x), len(y)
    hits = [
        (j, i) for i in range(n - window + 1) for j in range(m - window + 1) if x[i : i + window] == y[j : j + window]
    ]
    across, down = zip(*hits, strict=True) if hits else ((), ())
    ax.scatter(across, down, s=6, marker="s", color="0.45", linewidths=0)
    ax.set_xlim(-0.5, m - 0.5)
    ax.set_ylim(n - 0.5, -0.5)
    ax.set_aspect("equal")
    _sequence_axes(ax, n, m, x, y)
    if path is not None:
        _draw_path(ax, path)


def _sequence_axes(ax: Any, n: int, m: int, x: str | None, y: str | None) -> None:
    if x is not None and n <= 60:
        ax.set_yticks(range(n), x, fontsize=7)
    if y is not None and m <= 60:
        ax.set_xticks(range(m), y, fontsize=7)
    ax.tick_params(length=0)
    ax.set_xlabel("position of y")
    ax.set_ylabel("position of x")


def _draw_path(ax: Any, path: Tensor) -> None:
    """A line through the nodes of a path and a ring on every match."""
    i = j = 0
    nodes, matches = [(-0.5, -0.5)], []
    for op in (int(op) for op in path.tolist() if op >= 0):
        if op == 0:
            matches.append((j, i))
        i, j = i + (op != 2), j + (op != 1)
        nodes.append((j - 0.5, i - 0.5))
    across, down = zip(*nodes, strict=True)
    ax.plot(across, down, color=VERMILION, linewidth=1.2, label="alignment")
    if matches:
        across, down = zip(*matches, strict=True)
        ax.scatter(across, down, s=14, facecolors="none", edgecolors=VERMILION, linewidths=0.8)
