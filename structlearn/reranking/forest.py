"""Trees that share their equal parts, as numbered nodes.

The candidates of a sentence differ in a few places and agree in the rest: of 50 trees of 50 nodes some 300 nodes are
different. What depends on a subtree alone is computed once a number.
"""

from __future__ import annotations

import re

from structlearn.data.brackets import parse_tree
from structlearn.trees import Tree

_TOKEN = re.compile(r"\([^\s()]+ [^\s()]+\)|\([^\s()]*|\)|[^\s()]+")


class Forest:
    """Different subtrees, numbered so that children come before parents.

    Attributes:
        trees: the subtree of each number; its nodes are shared with the other trees here.
        labels: its label.
        children: the numbers of its children, none over a word.
        widths: how many words it has.
    """

    def __init__(self) -> None:
        self.trees: list[Tree] = []
        self.labels: list[str] = []
        self.children: list[tuple[int, ...]] = []
        self.widths: list[int] = []
        self._numbers: dict[tuple[str | int, ...], int] = {}
        self._tokens: dict[str, int] = {}
        # Numbers by identity hold as long as the nodes live, so they are kept.
        self._ids: dict[int, int] = {}
        self._alive: list[Tree] = []

    def __len__(self) -> int:
        return len(self.trees)

    def leaf(self, label: str, word: str, tree: Tree | None = None) -> int:
        """The number of a word under its part of speech."""
        key = (label, word)
        found = self._numbers.get(key)
        return self._append(key, tree or Tree(label, word), (), 1) if found is None else found

    def node(self, label: str, children: tuple[int, ...]) -> int:
        """The number of a phrase over numbered children."""
        key: tuple[str | int, ...] = (label, *children)
        found = self._numbers.get(key)
        if found is not None:
            return found
        tree = Tree(label, [self.trees[c] for c in children])
        return self._append(key, tree, children, sum(self.widths[c] for c in children))

    def _append(self, key: tuple[str | int, ...], tree: Tree, children: tuple[int, ...], width: int) -> int:
        number = self._numbers[key] = self._ids[id(tree)] = len(self.trees)
        self.trees.append(tree)
        self.labels.append(tree.label)
        self.children.append(children)
        self.widths.append(width)
        return number

    def add(self, tree: Tree) -> int:
        """The number of a tree; only nodes that are not here already cost time."""
        ids = self._ids
        self._alive.append(tree)
        stack = [tree]
        while stack:
            node = stack[-1]
            if id(node) in ids:
                stack.pop()
            elif node.is_preterminal:
                ids[id(node)] = self.leaf(node.label, node.word, node)
            else:
                unknown = [child for child in node.subtrees if id(child) not in ids]
                if unknown:
                    stack.extend(unknown)
                else:
                    ids[id(node)] = self.node(node.label, tuple(ids[id(child)] for child in node.subtrees))
        return ids[id(tree)]

    def parse(self, text: str, *, source: str = "text", line: int = 1) -> Tree:
        """:func:`structlearn.data.brackets.parse_tree`, with the nodes that are here already."""
        opened: list[tuple[str, list[int]]] = []
        top: list[int] = []
        children, tokens = top, self._tokens
        for token in _TOKEN.findall(text):
            if token == ")":
                if not opened or not children:
                    return parse_tree(text, source=source, line=line)
                label, outer = opened.pop()
                outer.append(self.node(label, tuple(children)))
                children = outer
            elif token in tokens:
                children.append(tokens[token])
            elif token[-1] == ")":
                label, word = token[1:-1].split(" ")
                children.append(tokens.setdefault(token, self.leaf(label, word)))
            elif token[0] == "(":
                opened.append((token[1:], children))
                children = []
            else:
                return parse_tree(text, source=source, line=line)
        if opened or len(top) != 1:
            return parse_tree(text, source=source, line=line)
        return self.trees[top[0]]
