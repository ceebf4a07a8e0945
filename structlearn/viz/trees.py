"""Parse trees, drawn with all words on one line."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from structlearn.trees import Span, Tree
from structlearn.viz.base import VERMILION


class _Placed(NamedTuple):
    x: float
    height: int


def parse_tree(ax: Any, tree: Tree, *, gold: Tree | None = None) -> None:
    """The words on the lowest line, every node above the middle of its children.

    Constituents that ``gold``, a tree over the same words, does not have are boxed; those that only gold has are dashed
    lines below their words.
    """
    right = None if gold is None else Counter(gold.spans())
    spans = iter(tree.spans())
    boxed = {id(node): _wrong(next(spans), right) for node in tree.preorder() if not node.is_preterminal}
    count = 0
    top = 0

    def visit(node: Tree, below: list[_Placed]) -> _Placed:
        nonlocal count, top
        if node.is_preterminal:
            here = _Placed(float(count), 1)
            count += 1
            ax.text(here.x, 0, node.word, ha="center", va="center", fontsize=9, style="italic")
            below = [_Placed(here.x, 0)]
        else:
            here = _Placed((below[0].x + below[-1].x) / 2, 1 + max(child.height for child in below))
        for child in below:
            # Labels stand on white boxes, which keeps the lines off the letters.
            ax.plot([here.x, child.x], [here.height, child.height], color="0.6", linewidth=0.8, zorder=1)
        wrong = boxed.get(id(node), False)
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": VERMILION if wrong else "none"}
        style = {"color": VERMILION, "weight": "bold"} if wrong else {"color": "black"}
        ax.text(here.x, here.height, node.label, ha="center", va="center", fontsize=9, bbox=box, zorder=2, **style)
        top = max(top, here.height)
        return here

    tree.fold(visit)
    missed = [] if right is None else [span for span in gold.spans() if right[span] > 0]  # type: ignore[union-attr]
    for k, (start, end, label) in enumerate(missed):
        y = -0.6 - 0.5 * k
        ax.plot([start - 0.35, end + 0.35], [y, y], color=VERMILION, linestyle="--", linewidth=1.2)
        box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
        ax.text((start + end) / 2, y, label, ha="center", va="center", fontsize=8, color=VERMILION, bbox=box)
    ax.set_xlim(-0.6, count - 0.4)
    ax.set_ylim(-0.5 - 0.5 * len(missed), top + 0.5)
    ax.axis("off")


def _wrong(span: Span, right: Counter[Span] | None) -> bool:
    """Whether gold lacks this constituent; of equal ones (X over X) it must have as many."""
    if right is None:
        return False
    right[span] -= 1
    return right[span] < 0
