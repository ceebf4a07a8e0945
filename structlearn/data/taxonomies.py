"""Texts with classes, and the taxonomies that the classes stand in.

A taxonomy table has a header and tab-separated lines node, parent (and more fields, ignored); a parent that is no node,
such as ROOT, is above the roots. Texts are JSON lines with ``text`` and ``path`` or ``label``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from structlearn.errors import ArgumentError, FormatError
from structlearn.storage.text import json_lines, numbered_lines, read_text, text_field
from structlearn.taxonomy import Taxonomy


class Text(NamedTuple):
    """Words of a text and its class, "" where it is not known."""

    words: list[str]
    label: str


def read_taxonomy(path: str | Path, classes: Sequence[str] | None = None) -> Taxonomy:
    """The taxonomy of a table; ``classes`` names the nodes that are classes, by default those without children."""
    rows: list[tuple[str, str]] = []
    place: dict[str, int] = {}
    for number, line in numbered_lines(read_text(path), str(path)):
        fields = line.split("\t")
        if number == 1 or not line.strip():
            continue
        if len(fields) < 2 or not fields[0]:
            expected = "node and parent between tabs"
            raise FormatError(f"{path}:{number}", expected, repr(line[:60]), "see the header in line 1")
        if fields[0] in place:
            got = f"{fields[0]!r}, which line {place[fields[0]]} has"
            raise FormatError(f"{path}:{number}", "a node that no line above has", got, "one line a node")
        place[fields[0]] = number
        rows.append((fields[0], fields[1]))
    names = [node for node, _ in rows]
    index = {name: i for i, name in enumerate(names)}
    parents = [(index[parent],) if parent in index else () for _, parent in rows]
    chosen = None
    if classes is not None:
        missing = [name for name in classes if name not in index]
        if missing:
            raise FormatError(str(path), "every class as a node", f"no {missing[0]!r}", "add it to the table")
        chosen = [index[name] for name in classes]
    try:
        return Taxonomy(parents, classes=chosen, names=names)
    except ArgumentError as error:
        raise FormatError(str(path), error.expected, error.got, error.remedy) from None


def parse_texts(text: str, *, source: str = "text") -> list[Text]:
    """Texts of JSON lines."""
    found = []
    for place, row in json_lines(text, source, '{"text": "...", "label": "..."}'):
        label = text_field(row, "path", place, "") or text_field(row, "label", place, "")
        found.append(Text(text_field(row, "text", place).split(), label))
    return found
