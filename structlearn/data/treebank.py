"""Treebanks: files of bracketed trees, read and cleaned by the conventions of the Penn Treebank.

Files hold trees one after the other over any number of lines (``.mrg``), or one tree a line after two tab-separated
fields, document and number (``.tsv``); either may be gzipped (``.gz``). A folder stands for its treebank files in the
order of their names. The steps from a tree to a grammar are here by name: parse, clean, to_cnf, extract_grammar.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from structlearn.data.binarise import binarise as binarise
from structlearn.data.binarise import collapse_unaries as collapse_unaries
from structlearn.data.binarise import from_cnf as from_cnf
from structlearn.data.binarise import restore_unaries as restore_unaries
from structlearn.data.binarise import to_cnf as to_cnf
from structlearn.data.binarise import unbinarise as unbinarise
from structlearn.data.brackets import parse_tree as parse_tree
from structlearn.data.brackets import parse_trees as parse_trees
from structlearn.data.extract import TreebankGrammar as TreebankGrammar
from structlearn.data.extract import extract_grammar as extract_grammar
from structlearn.errors import FormatError
from structlearn.storage.text import numbered_lines, read_text, whole_number
from structlearn.trees import Tree

EMPTY = "-NONE-"
TOP_LABELS = frozenset({"", "ROOT", "TOP", "S1"})
_SUFFIXES = (".mrg", ".mrg.gz", ".tsv", ".tsv.gz")


class Entry(NamedTuple):
    """A tree with its place: which document, which tree there, counted from 0."""

    document: str
    number: int
    tree: Tree


def read_treebank(
    path: str | Path, *, empty: bool = False, functions: bool = False, top: str | None = None, encoding: str = "utf-8"
) -> list[Tree]:
    """The trees of a file or folder, cleaned; see :func:`clean` for the options.

    Trees of nothing but empty elements are left out.
    """
    cleaned = (clean(e.tree, empty=empty, functions=functions, top=top) for e in iter_treebank(path, encoding=encoding))
    return [tree for tree in cleaned if tree is not None]


def iter_treebank(path: str | Path, *, encoding: str = "utf-8") -> Iterator[Entry]:
    """The trees of a file or folder as written, each with its document and number."""
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
        if not files:
            raise FormatError(str(path), f"files ending in {', '.join(_SUFFIXES)}", "none", "name the file itself")
        for file in files:
            yield from iter_treebank(file, encoding=encoding)
        return
    text = read_text(path, encoding)
    if ".tsv" in path.suffixes[-2:]:
        yield from _tabbed(text, str(path))
    else:
        for number, tree in enumerate(parse_trees(text, source=str(path))):
            yield Entry(path.name.split(".")[0], number, tree)


def clean(tree: Tree, *, empty: bool = False, functions: bool = False, top: str | None = None) -> Tree | None:
    """The tree over real words, with plain labels.

    Args:
        empty: keep empty elements; otherwise ``-NONE-`` goes, and with it every node left without words.
        functions: keep function tags and indices; otherwise phrase labels end before the first ``-`` or ``=``.
        top: label of the outermost node, put over every tree; by default there is none, and a node with an empty
            label, ROOT, TOP or S1 over one tree is taken off. Over several trees it stays, as TOP if it has no name.

    None if no word is left.
    """

    def visit(node: Tree, children: list[Tree | None]) -> Tree | None:
        if node.is_preterminal:
            return None if node.label == EMPTY and not empty else node
        left = [child for child in children if child is not None]
        if not left:
            return None
        return Tree(node.label if functions else strip_functions(node.label), left)

    cleaned = tree.fold(visit)
    if cleaned is None:
        return None
    while cleaned.label in TOP_LABELS and not cleaned.is_preterminal and len(cleaned.children) == 1:
        cleaned = cleaned.subtrees[0]
    if cleaned.label == "" and not cleaned.is_preterminal:
        cleaned = Tree(top or "TOP", cleaned.children)
    if top is not None and (cleaned.label != top or cleaned.is_preterminal):
        cleaned = Tree(top, [cleaned])
    return cleaned


def strip_functions(label: str) -> str:
    """``NP-SBJ-1`` and ``NP=2`` are ``NP``; labels that open with a dash (``-LRB-``) stay."""
    for place, character in enumerate(label):
        if character in "-=":
            return label[:place] if place else label
    return label


def _tabbed(text: str, source: str) -> Iterator[Entry]:
    for number, line in numbered_lines(text, source):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 3:
            expected = "document, number and tree between tabs"
            raise FormatError(f"{source}:{number}", expected, repr(line[:60]), "read plain bracket files as .mrg")
        place = whole_number(fields[1], f"{source}:{number}", "document, number and tree between tabs")
        yield Entry(fields[0], place, parse_tree(fields[2], source=source, line=number))
