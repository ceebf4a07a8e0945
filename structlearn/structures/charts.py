"""Charts: trees over n words as tensors (..., B, N, N) that hold something at every span of the tree, PAD elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from structlearn.errors import LabelError, ShapeError
from structlearn.structures import checks
from structlearn.structures.base import PAD
from structlearn.trees import Tree


def span_mask(lengths: Tensor | None, batch: int, size: int, device: torch.device) -> Tensor:
    """(B, N, N), true at the spans i..j, i <= j, of each sentence."""
    last = checks.unpadded(lengths, batch, size, device)
    return last[:, None, :] & torch.ones((size, size), dtype=torch.bool, device=device).triu()


def check_trees(y: Tensor, mask: Tensor, labels: int) -> None:
    """What ``y`` holds inside ``mask`` must be one binary tree a sentence, with labels in 0..labels-1.

    2n-1 spans of n words of which no two cross are a binary tree, since no larger set of spans is without crossing.
    """
    if torch.compiler.is_compiling() or y.shape[-1] == 0:
        return
    used = (y != PAD) & mask
    wrong = used & ((y < 0) | (y >= labels))
    if bool(wrong.any()):
        raise checks.bad_label("y", y, wrong.nonzero()[0].tolist(), labels)
    # [k, j]: some span starts before k and ends at j; some span starts at k and ends after j.
    earlier = used.cumsum(-2) - used.long() > 0
    later = used.flip(-1).cumsum(-1).flip(-1) - used.long() > 0
    crossing = (earlier & later).triu().flatten(-2).any(-1)
    words = mask.diagonal(0, -2, -1).sum(-1)
    bad = crossing | (used.flatten(-2).sum(-1) != (2 * words - 1).clamp(min=0))
    if bool(bad.any()):
        row = bad.nonzero()[0].tolist()[-1]
        remedy = "label n words and the n-1 larger spans of one tree, -100 elsewhere"
        raise LabelError("y", "a binary tree", f"spans that are none in batch row {row}", remedy)


def left_branching(mask: Tensor) -> Tensor:
    """(B, N, N): the tree of every sentence whose right parts are single words, 0 on every span."""
    place = torch.arange(mask.shape[-1], device=mask.device)
    used = (place[:, None] == 0) | (place[:, None] == place)
    return torch.where(used & mask, 0, PAD)


def spans_of(chart: list[list[int]], words: int) -> list[tuple[int, int]]:
    """The spans of the tree in ``chart`` over ``words`` words, each after its parts."""
    found, stack = [], [(0, words - 1)] if words else []
    while stack:
        i, j = stack.pop()
        found.append((i, j))
        if i < j:
            cuts = (k for k in range(i, j) if chart[i][k] != PAD and chart[k + 1][j] != PAD)
            if (k := next(cuts, None)) is None:
                remedy = "label n words and the n-1 larger spans of one tree, -100 elsewhere"
                raise LabelError("y", "a binary tree", f"no two labelled parts of span {(i, j)}", remedy)
            stack += [(i, k), (k + 1, j)]
    return found[::-1]


def trees(
    y: Tensor, mask: Tensor, name: Callable[[int, int, int], str], words: Sequence[Sequence[str]] | None
) -> list[Tree | None]:
    """The charts (B, N, N) as trees: every span is a node called name(entry, i, j), with the word below a single one.

    None for a sentence without words or without a tree.
    """
    checks.check_label_tensor("y", y, tuple(mask.shape), y.device)
    if y.dim() != 3:
        raise ShapeError("y", "(B, N, N), one tree a sentence", tuple(y.shape), "pass y[k] of a list of best trees")
    found: list[Tree | None] = []
    for b, (chart, n) in enumerate(zip(y.tolist(), mask.diagonal(0, -2, -1).sum(-1).tolist(), strict=True)):
        if n == 0 or chart[0][n - 1] == PAD:
            found.append(None)
            continue
        if words is not None and len(words[b]) != n:
            raise ShapeError("words", f"{n} words for batch row {b}", len(words[b]), "give the words that were scored")
        nodes: dict[tuple[int, int], Tree] = {}
        for i, j in spans_of(chart, n):
            if i == j:
                below: str | list[Tree] = str(i) if words is None else words[b][i]
            else:
                k = next(k for k in range(i, j) if (i, k) in nodes and (k + 1, j) in nodes)
                below = [nodes.pop((i, k)), nodes.pop((k + 1, j))]
            nodes[i, j] = Tree(name(chart[i][j], i, j), below)
        found.append(nodes[0, n - 1])
    return found
