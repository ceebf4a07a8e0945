"""Pictures of chains: transition scores, label posteriors, and words with their spellings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from structlearn.viz.base import VERMILION


def transition_matrix(ax: Any, scores: Tensor, labels: Sequence[str], *, what: str = "label") -> None:
    """scores (C, C), [previous, current], purple above 0 and orange below, with a colour bar; ``what`` a label is."""
    matrix = scores.detach().cpu().numpy()
    limit = max(float(abs(matrix).max()), 1e-6)
    shown = ax.imshow(matrix, cmap="PuOr", vmin=-limit, vmax=limit)
    rotation = 90 if max(map(len, labels), default=0) > 2 else 0
    ax.set_xticks(range(len(labels)), labels, fontsize=8, rotation=rotation)
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.tick_params(length=0)
    ax.set_xlabel(what)
    ax.set_ylabel(f"{what} before")
    ax.figure.colorbar(shown, ax=ax, shrink=0.85, label="transition score")


def label_posteriors(
    ax: Any,
    marginals: Tensor,
    labels: Sequence[str],
    *,
    tokens: Sequence[str] | None = None,
    path: Tensor | None = None,
) -> None:
    """marginals (N, C), p(label at position), as a heat map; a ring marks the label of ``path`` (N,) at each position.

    Positions run to the right, with their ``tokens`` below.
    """
    shares = marginals.detach().cpu().T.numpy()
    n = shares.shape[1]
    shown = ax.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    if tokens is not None:
        ax.set_xticks(range(n), tokens, fontsize=8, rotation=90 if max(map(len, tokens), default=0) > 2 else 0)
    ax.tick_params(length=0)
    ax.figure.colorbar(shown, ax=ax, shrink=0.85, label="posterior")
    if path is not None:
        chosen = path.tolist()[:n]
        ax.scatter(range(len(chosen)), chosen, s=40, facecolors="none", edgecolors=VERMILION, linewidths=1.2)


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
