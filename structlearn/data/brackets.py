"""Bracket strings into trees, with the place of every mistake.

    tree = "(" label word ")" | "(" label tree tree* ")"

White space separates and has no other meaning; the label at the top may be empty, as it is in Penn trees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from sys import intern

from structlearn.errors import FormatError
from structlearn.trees import Tree

# A whole preterminal is one token: half of all brackets are, and each then costs one step instead of three.
_TOKEN = re.compile(
    r"\(\s*(?P<tag>[^\s()]+)\s+(?P<word>[^\s()]+)\s*\)|\(\s*(?P<label>[^\s()]*)|(?P<close>\))|(?P<loose>[^\s()]+)"
)


def parse_trees(text: str, *, source: str = "text", line: int = 1) -> Iterator[Tree]:
    """The trees of ``text``, one after the other.

    Args:
        source: name of the file, for the errors.
        line: number of the first line of ``text`` there.
    """

    def wrong(position: int, expected: str, got: str, remedy: str) -> FormatError:
        return FormatError(f"{source}:{line + text.count(chr(10), 0, position)}", expected, got, remedy)

    opened: list[tuple[int, str, list[Tree]]] = []
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "word":
            tree = Tree(intern(token["tag"]), intern(token["word"]))
        elif kind == "label":
            opened.append((token.start(), intern(token["label"]), []))
            continue
        elif kind == "loose":
            place = f"and more in '({opened[-1][1]}'" if opened else "outside brackets"
            remedy = "give every word a bracket with its part of speech, and write ( and ) as -LRB- and -RRB-"
            raise wrong(token.start(), "one word or brackets in a bracket", f"{token['loose']!r} {place}", remedy)
        elif not opened:
            raise wrong(
                token.start(), "a bracket", "')' with no open bracket", "remove it, or add the '(' that it closes"
            )
        else:
            position, label, children = opened.pop()
            if not children:
                got = f"'({label})'"
                raise wrong(
                    position, "a word or brackets inside", got, "remove the bracket, or write the word and its tag"
                )
            if opened and not label:
                remedy = "write its label, or the ')' that is missing before it"
                raise wrong(position, "a label after every '('", f"none inside '({opened[-1][1]}'", remedy)
            tree = Tree(label, children)
        if opened:
            opened[-1][2].append(tree)
        else:
            yield tree
    if opened:
        position, label, _ = opened[0]
        got = f"the end of the text inside '({label}', {len(opened)} bracket{'s' * (len(opened) > 1)} open"
        raise wrong(position, "a ')' for every '('", got, "close the bracket that opens on this line")


def parse_tree(text: str, *, source: str = "text", line: int = 1) -> Tree:
    """The one tree of ``text``.

    >>> parse_tree("(NP (DT the) (NN board))").leaves()
    ('the', 'board')
    """
    trees = list(parse_trees(text, source=source, line=line))
    if len(trees) != 1:
        raise FormatError(f"{source}:{line}", "one tree", f"{len(trees)} trees", "use parse_trees for several")
    return trees[0]
