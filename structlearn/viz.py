"""Pictures of learning curves, transition scores, labelled words and alignments, on matplotlib axes (extra ``viz``).

Colours are those of Okabe and Ito, told apart with every common colour vision; nothing is said by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import DependencyError

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00"
_LINES = ((BLACK, "o", "-"), (BLUE, "s", "-"), (ORANGE, "^", "--"), (GREEN, "D", ":"), (VERMILION, "v", "-."))


def figure(width: float, height: float) -> Any:
    """An empty matplotlib Figure of that many inches; it saves itself without a display."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        remedy = "pip install 'structlearn[viz]'"
        raise DependencyError("matplotlib", "an installed package for drawing", "none", remedy) from error
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))


def learning_curves(ax: Any, curves: Mapping[str, Sequence[float]], *, ylabel: str) -> None:
    """One line a name, over epochs 1, 2, ..., with its last value in the legend; values are shares in [0, 1]."""
    for (name, values), (colour, marker, line) in zip(curves.items(), _LINES * len(curves), strict=False):
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


def transition_matrix(ax: Any, scores: Tensor, labels: Sequence[str]) -> None:
    """scores (C, C), [previous, current], purple above 0 and orange below, with a colour bar."""
    matrix = scores.detach().cpu().numpy()
    limit = max(float(abs(matrix).max()), 1e-6)
    shown = ax.imshow(matrix, cmap="PuOr", vmin=-limit, vmax=limit)
    ax.set_xticks(range(len(labels)), labels, fontsize=8)
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.tick_params(length=0)
    ax.set_xlabel("letter")
    ax.set_ylabel("letter before")
    ax.figure.colorbar(shown, ax=ax, shrink=0.85, label="transition score")


def labelled_word(ax: Any, images: Tensor, rows: Mapping[str, str], *, truth: str, letters: int) -> None:
    """The letters of one word (N, height, width) in a strip, and below it one spelling a row.

    A letter that differs from ``truth`` is boxed. ``letters`` is the room to leave, so that words of different
    lengths are drawn at one scale.
    """
    n, height, width = images.shape
    strip = torch.cat([torch.nn.functional.pad(image, [0, 1]) for image in images], 1)[:, :-1]
    ax.imshow(strip.cpu().numpy(), cmap="Greys", vmin=0, vmax=1, extent=(0, n * (width + 1) - 1, height, 0))
    for i, (name, spelling) in enumerate(rows.items()):
        y = height + 6 + 9 * i
        ax.text(-2, y, name, ha="right", va="center", fontsize=8, color="0.35")
        for t, letter in enumerate(spelling):
            wrong = letter != truth[t]
            box = {"boxstyle": "square,pad=0.12", "edgecolor": VERMILION, "facecolor": "white"} if wrong else None
            style = {"color": VERMILION, "weight": "bold"} if wrong else {"color": "black"}
            ax.text(t * (width + 1) + width / 2, y, letter, ha="center", va="center", fontsize=10, bbox=box, **style)
    ax.set_xlim(-1, letters * (width + 1))
    ax.set_ylim(height + 4 + 9 * len(rows), -1)
    ax.axis("off")


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
