"""Fragments of trees by enumeration, as nested tuples."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from structlearn.trees import Tree

Fragment = tuple[Any, ...]


def rooted(node: Tree) -> list[tuple[Fragment, int]]:
    """Every fragment with its top at ``node``, and its number of productions."""
    if isinstance(node.children[0], str):
        return [((node.label, node.children[0]), 1)]
    choices = [[((child.label,), 0), *rooted(child)] for child in node.children if isinstance(child, Tree)]
    return [
        ((node.label, *[part for part, _ in picked]), 1 + sum(size for _, size in picked))
        for picked in itertools.product(*choices)
    ]


def fragments(tree: Tree) -> Counter[tuple[Fragment, int]]:
    """How often each fragment occurs."""
    found = Counter(rooted(tree))
    for child in tree.children:
        if isinstance(child, Tree):
            found += fragments(child)
    return found


def common(u: Tree, v: Tree, decay: float, most: int | None = None) -> float:
    """sum_f decay^size(f) #f(u) #f(v) over fragments of at most ``most`` productions."""
    a, b = fragments(u), fragments(v)
    return sum(a[f] * b[f] * decay ** f[1] for f in a if f in b and (most is None or f[1] <= most))
