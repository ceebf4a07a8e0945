"""Labelled ordered trees over words, as bracket strings write them.

A tree is a label over either one word (a *preterminal*: the label is the word's part of speech) or one or more
trees. Every walk here keeps its own stack, so the depth of a tree is bounded by memory and not by the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from structlearn.errors import TreeError

_T = TypeVar("_T")


class Span(NamedTuple):
    """The words ``start..end``, both inclusive, under one label."""

    start: int
    end: int
    label: str


class Tree:
    """An immutable tree: ``label`` over ``children``, which are trees, or exactly one word.

    Args:
        label: may be empty, as the outermost bracket of the Penn Treebank is.
        children: trees, or one word; a bare string is one word.

    Trees are equal when labels, shape and words are equal; they hash, copy and pickle.

    >>> tree = Tree("S", [Tree("NP", [Tree("PRP", "We")]), Tree("VP", [Tree("VBP", "parse")])])
    >>> tree.bracket()
    '(S (NP (PRP We)) (VP (VBP parse)))'
    >>> tree.spans()
    (Span(start=0, end=1, label='S'), Span(start=0, end=0, label='NP'), Span(start=1, end=1, label='VP'))
    """

    __slots__ = ("_hash", "children", "is_preterminal", "label")

    label: str
    children: tuple[Tree | str, ...]
    is_preterminal: bool
    """Whether the only child is a word."""
    _hash: int

    def __init__(self, label: str, children: str | Iterable[Tree | str]) -> None:
        if not isinstance(label, str):
            raise TreeError("label", "a string", type(label).__name__, "name the constituent")
        items: tuple[Tree | str, ...]
        if isinstance(children, str):
            items = (children,)
        else:
            items = tuple(children)
            words = [c for c in items if not isinstance(c, Tree)]
            if not items or (words and (len(items) > 1 or not isinstance(words[0], str))):
                got = [c.label if isinstance(c, Tree) else c for c in items]
                raise TreeError("children", "trees, or one word", got, "put each word under its own part of speech")
        set_slot = object.__setattr__
        set_slot(self, "label", label)
        set_slot(self, "children", items)
        set_slot(self, "is_preterminal", isinstance(items[0], str))
        set_slot(self, "_hash", hash((label, items)))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Tree is immutable; build another one instead of assigning {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Tree is immutable; {name} cannot be deleted")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        stack: list[tuple[Tree, Tree]] = [(self, other)]
        while stack:
            a, b = stack.pop()
            if a is b:
                continue
            if a._hash != b._hash or a.label != b.label or len(a.children) != len(b.children):
                return False
            for c, d in zip(a.children, b.children, strict=True):
                if isinstance(c, Tree) and isinstance(d, Tree):
                    stack.append((c, d))
                elif c != d:
                    return False
        return True

    def __repr__(self) -> str:
        return f"Tree({self.bracket()!r})"

    def __str__(self) -> str:
        return self.bracket()

    def __copy__(self) -> Tree:
        return self

    def __deepcopy__(self, memo: object) -> Tree:
        return self

    def __reduce__(self) -> tuple[Callable[[list[tuple[str, int | str]]], Tree], tuple[list[tuple[str, int | str]]]]:
        # Flat, because pickle recurses into nested objects and a hash differs from process to process.
        return _rebuild, ([(t.label, t.word if t.is_preterminal else len(t.children)) for t in self.postorder()],)

    @property
    def word(self) -> str:
        """The word of a preterminal; an error on any other node."""
        child = self.children[0]
        if not isinstance(child, str):
            raise TreeError("word", "a preterminal", f"{self.label!r} over {len(self.children)} trees", "use leaves()")
        return child

    @property
    def subtrees(self) -> tuple[Tree, ...]:
        """The children that are trees: all of them, or none under a preterminal."""
        return () if self.is_preterminal else self.children  # type: ignore[return-value]

    def preorder(self) -> Iterator[Tree]:
        """Every node, each before its children, left to right."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.subtrees))

    def postorder(self) -> Iterator[Tree]:
        """Every node, each after its children, left to right."""
        stack: list[tuple[Tree, bool]] = [(self, False)]
        while stack:
            node, done = stack.pop()
            if done or node.is_preterminal:
                yield node
            else:
                stack.append((node, True))
                stack.extend((child, False) for child in reversed(node.subtrees))

    def preterminals(self) -> Iterator[Tree]:
        """The nodes over words, left to right."""
        return (node for node in self.preorder() if node.is_preterminal)

    def leaves(self) -> tuple[str, ...]:
        """The words."""
        return tuple(node.word for node in self.preterminals())

    def pos(self) -> tuple[tuple[str, str], ...]:
        """(word, part of speech) of every word."""
        return tuple((node.word, node.label) for node in self.preterminals())

    def spans(self, *, preterminals: bool = False) -> tuple[Span, ...]:
        """The constituents in preorder; those of one word's part of speech only if asked."""
        found: list[Span] = []
        words = 0
        stack: list[Tree | int] = [self]
        while stack:
            node = stack.pop()
            if isinstance(node, int):
                found[node] = Span(found[node].start, words - 1, found[node].label)
            elif node.is_preterminal:
                if preterminals:
                    found.append(Span(words, words, node.label))
                words += 1
            else:
                stack.append(len(found))
                found.append(Span(words, words, node.label))
                stack.extend(reversed(node.subtrees))
        return tuple(found)

    def fold(self, visit: Callable[[Tree, list[_T]], _T]) -> _T:
        """``visit(node, values of its subtrees)`` at every node from the words up; the value at the top."""
        values: list[_T] = []
        for node in self.postorder():
            below = len(values) - (0 if node.is_preterminal else len(node.children))
            values[below:] = [visit(node, values[below:])]
        return values[0]

    def map_labels(self, rename: Callable[[str], str], *, preterminals: bool = False) -> Tree:
        """The tree with every phrase label, and if asked every part of speech, renamed."""

        def visit(node: Tree, children: list[Tree]) -> Tree:
            if node.is_preterminal:
                return Tree(rename(node.label), node.children) if preterminals else node
            return Tree(rename(node.label), children)

        return self.fold(visit)

    def bracket(self) -> str:
        """The Penn bracket string on one line; parentheses inside words and labels become -LRB- and -RRB-."""
        parts: list[str] = []
        stack: list[Tree | None] = [self]
        while stack:
            node = stack.pop()
            if node is None:
                parts.append(")")
            elif node.is_preterminal:
                parts.append(f" {_write_word(node)}")
            else:
                parts.append(f" ({_readable(node.label)}")
                stack.append(None)
                stack.extend(reversed(node.subtrees))
        return "".join(parts)[1:].replace("( (", "((")

    def pretty(self, *, width: int = 80, indent: int = 2) -> str:
        """The bracket string over several lines: what fits in ``width`` columns stays on one line."""
        sizes: dict[int, int] = {}

        def measure(node: Tree, below: list[int]) -> int:
            inside = (
                len(_write_word(node))
                if node.is_preterminal
                else len(_readable(node.label)) + 2 + sum(below) + len(below)
            )
            return sizes.setdefault(id(node), inside)

        self.fold(measure)
        lines: list[str] = []
        stack: list[tuple[Tree, int] | None] = [(self, 0)]
        while stack:
            item = stack.pop()
            if item is None:
                lines[-1] += ")"
                continue
            node, depth = item
            margin = " " * (depth * indent)
            if node.is_preterminal or len(margin) + sizes[id(node)] <= width:
                lines.append(margin + node.bracket())
            else:
                lines.append(f"{margin}({_readable(node.label)}")
                stack.append(None)
                stack.extend((child, depth + 1) for child in reversed(node.subtrees))
        return "\n".join(lines)


def _write_word(node: Tree) -> str:
    label, word = _readable(node.label), _readable(node.word)
    if not label or not word:
        raise TreeError("bracket", "at least one character", f"{(label, word)}", "name the word and its part of speech")
    return f"({label} {word})"


def _readable(text: str) -> str:
    if "(" in text or ")" in text:
        text = text.replace("(", "-LRB-").replace(")", "-RRB-")
    if text and text.split() != [text]:
        raise TreeError("bracket", "labels and words without white space", repr(text), "join the parts, e.g. with '_'")
    return text


def _rebuild(nodes: list[tuple[str, int | str]]) -> Tree:
    built: list[Tree] = []
    for label, content in nodes:
        if isinstance(content, str):
            built.append(Tree(label, content))
        else:
            children = built[len(built) - content :]
            del built[len(built) - content :]
            built.append(Tree(label, children))
    return built[0]
