"""Trees into Chomsky normal form and back, exactly.

    collapse    (S (VP (VB go)))        ->  (S+VP+VB go)
    binarise    (NP (DT a) (JJ b) (NN c))  ->  (NP (DT a) (@NP~DT (JJ b) (NN c)))

A chain of single children becomes one node whose label joins the chain's labels with ``+``; when the chain ends over
a word, so does the joined node, and what is left has only binary nodes and preterminals. Intermediate nodes open
with ``@`` and carry the h siblings made just before (Markov order h); phrase labels carry their v-1 nearest ancestors
after ``^`` (order v). These marks, where a label has them already, are written with a backslash, so that every tree
comes back whatever its labels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from structlearn.errors import ArgumentError, TreeError
from structlearn.trees import Tree

Direction = Literal["left", "right"]

_JOIN, _UP, _PART, _SIBLING = "+", "^", "@", "~"
_MARKS = _UP + _PART + _SIBLING


def to_cnf(tree: Tree, *, direction: Direction = "right", h: int | None = 2, v: int = 1) -> Tree:
    """Collapse, then binarise: every node has two children or is a preterminal."""
    return binarise(collapse_unaries(tree), direction=direction, h=h, v=v)


def from_cnf(tree: Tree) -> Tree:
    """The tree that :func:`to_cnf` was given, whatever its options were."""
    return restore_unaries(unbinarise(tree))


def collapse_unaries(tree: Tree) -> Tree:
    """Join every chain of single children into one node, ``S+VP+VB`` over a word included."""

    def visit(node: Tree, children: list[Tree]) -> Tree:
        label = _escape(node.label, _JOIN)
        if node.is_preterminal:
            return node if label == node.label else Tree(label, node.children)
        if len(children) == 1:
            return Tree(f"{label}{_JOIN}{children[0].label}", children[0].children)
        return Tree(label, children)

    return tree.fold(visit)


def restore_unaries(tree: Tree) -> Tree:
    """Undo :func:`collapse_unaries`."""

    def visit(node: Tree, children: list[Tree]) -> Tree:
        labels = [_unescape(label) for label in chain_labels(node.label)]
        if node.is_preterminal and labels == [node.label]:
            return node
        restored = Tree(labels[-1], node.children if node.is_preterminal else children)
        for label in reversed(labels[:-1]):
            restored = Tree(label, [restored])
        return restored

    return tree.fold(visit)


def chain_labels(label: str) -> list[str]:
    """The labels joined in a collapsed one, outermost first, still with their backslashes."""
    return _split(label, _JOIN)


def binarise(tree: Tree, *, direction: Direction = "right", h: int | None = 2, v: int = 1) -> Tree:
    """Give every node at most two children.

    Args:
        direction: "right" makes X1 (X2 (X3 X4)), "left" makes ((X1 X2) X3) X4.
        h: how many of the siblings made just before an intermediate node remembers; None for all.
        v: labels on the path to the top that a phrase remembers, its own included; parts of speech stay as they are.
    """
    if direction not in ("left", "right"):
        raise ArgumentError("direction", "'left' or 'right'", repr(direction), "name the side on which nodes nest")
    if h is not None and h < 0:
        raise ArgumentError("h", "an integer >= 0, or None for the whole history", h, "use 0 to forget all siblings")
    if v < 1:
        raise ArgumentError("v", "an integer >= 1", v, "use 1 for the label alone, 2 for the parent too")

    def visit(node: Tree, children: list[Tree]) -> Tree:
        return node if node.is_preterminal else _nest(node.label, children, h, direction)

    return _with_ancestors(tree, v).fold(visit)


def unbinarise(tree: Tree) -> Tree:
    """Undo :func:`binarise`, whatever its options were."""

    def visit(node: Tree, children: list[list[Tree]]) -> list[Tree]:
        if node.is_preterminal:
            return [node]
        inside = [child for group in children for child in group]
        if node.label.startswith(_PART):
            return inside
        return [Tree(_unescape(_base(node.label)), inside)]

    top = tree.fold(visit)
    if tree.label.startswith(_PART) and not tree.is_preterminal:
        raise TreeError("tree", "a phrase at the top", f"the intermediate node {tree.label!r}", "give whole trees")
    return top[0]


def _nest(label: str, children: list[Tree], h: int | None, direction: Direction) -> Tree:
    """``label`` over two children at most; ``made`` lists the children in the order in which rules make them."""
    if len(children) <= 2:
        return Tree(label, children)
    made = children if direction == "right" else children[::-1]
    names = [sibling_name(child.label, preterminal=child.is_preterminal) for child in made[:-2]]
    rest = made[-1]
    for i in range(len(made) - 2, -1, -1):
        pair = [made[i], rest]
        rest = Tree(part_label(label, names[:i], h) if i else label, pair if direction == "right" else pair[::-1])
    return rest


def part_label(label: str, made: Sequence[str], h: int | None) -> str:
    """Name of the intermediate node under ``label`` that remembers the last ``h`` siblings of ``made``."""
    recent = made if h is None else made[max(len(made) - h, 0) :]
    return _SIBLING.join([_PART + label, *recent])


def part_history(name: str) -> tuple[str, tuple[str, ...]] | None:
    """The label above an intermediate node and the siblings that it remembers; None for any other name."""
    if not name.startswith(_PART):
        return None
    label, *made = _split(name[len(_PART) :], _SIBLING)
    return label, tuple(made)


def sibling_name(label: str, *, preterminal: bool) -> str:
    """What intermediate nodes remember of a binarised node: its category, in a collapsed chain the outermost label."""
    return _escape(chain_labels(label if preterminal else _unescape(_base(label)))[0], _MARKS)


def chain_tag(label: str) -> str:
    """The part of speech at the end of a collapsed preterminal."""
    return _unescape(chain_labels(label)[-1])


def phrases(label: str, *, preterminal: bool) -> list[str]:
    """The labels of the phrases that a node in normal form stands for, outermost first; none for intermediate nodes.

    >>> phrases("S+VP^ROOT", preterminal=False), phrases("NP+NN", preterminal=True)
    (['S', 'VP'], ['NP'])
    """
    if preterminal:
        return [_unescape(part) for part in chain_labels(label)[:-1]]
    if label.startswith(_PART):
        return []
    return [_unescape(part) for part in chain_labels(_unescape(_base(label)))]


def _with_ancestors(tree: Tree, v: int) -> Tree:
    """Escaped phrase labels with their v-1 nearest ancestors, nearest first; a collapsed chain counts each label."""
    if v == 1:
        return tree.map_labels(lambda label: _escape(label, _MARKS))
    built: list[Tree] = []
    stack: list[tuple[Tree, tuple[str, ...], bool]] = [(tree, (), False)]
    while stack:
        node, above, done = stack.pop()
        if node.is_preterminal:
            built.append(node)
        elif done:
            below = len(built) - len(node.children)
            children = built[below:]
            del built[below:]
            built.append(Tree(_UP.join([_escape(node.label, _MARKS), *above]), children))
        else:
            stack.append((node, above, True))
            chain = [_escape(label, _MARKS) for label in reversed(chain_labels(node.label))]
            path = (*chain, *above)[: v - 1]
            stack.extend((child, path, False) for child in reversed(node.subtrees))
    return built[0]


def _base(label: str) -> str:
    return _split(label, _UP)[0]


def _split(label: str, mark: str) -> list[str]:
    """``label`` cut at every ``mark`` that no backslash precedes."""
    if "\\" not in label:
        return label.split(mark)
    pieces = re.findall(rf"(?:\\.|[^\\{re.escape(mark)}])+|{re.escape(mark)}", label, re.DOTALL)
    parts = [""]
    for piece in pieces:
        if piece == mark:
            parts.append("")
        else:
            parts[-1] = piece
    return parts


@lru_cache(maxsize=4096)
def _escape(label: str, marks: str) -> str:
    if "\\" not in label and not any(mark in label for mark in marks):
        return label
    return "".join("\\" + c if c == "\\" or c in marks else c for c in label)


def _unescape(label: str) -> str:
    return re.sub(r"\\(.)", r"\1", label, flags=re.DOTALL) if "\\" in label else label
