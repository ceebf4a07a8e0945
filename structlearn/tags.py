"""Tags that encode segments: BIO, BIOES and IOB1.

A tag is ``O`` or ``{prefix}-{type}`` with prefix B (begin), I (inside), E (end), S (single). Decoding follows the
conlleval script, which gives every tag sequence a meaning: a segment begins at B or S, or at I or E after O, after
the end of a segment, or after another type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from structlearn.errors import ArgumentError

Scheme = Literal["BIO", "BIOES", "IOB1"]
_PREFIXES = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES"}


@dataclass(frozen=True)
class Tags:
    """The C tags of a tagging task, as segments see them.

    ``begins[p, c]``: a segment begins at tag c after tag p (p = C: nothing before); ``ends[p, c]``: the segment of
    tag p ends before tag c (c = C: nothing after). Both (C+1, C+1) bool. ``types`` (C,) numbers the segment types
    from 1, with 0 for O.
    """

    names: tuple[str, ...]
    scheme: Scheme
    types: Tensor
    begins: Tensor
    ends: Tensor

    @property
    def type_names(self) -> tuple[str, ...]:
        """Names of the types 1, 2, ..., without the 0 of O."""
        return tuple(dict.fromkeys(name[2:] for name in self.names if name != "O"))

    def segments(self, labels: Sequence[int]) -> list[tuple[int, int, str]]:
        """(first, last, type) of every segment of one tag sequence."""
        none = len(self.names)
        found: list[tuple[int, int, str]] = []
        start = -1
        for t, c in enumerate(labels):
            before = labels[t - 1] if t else none
            if self.begins[before, c]:
                start = t
            if self.ends[c, labels[t + 1] if t + 1 < len(labels) else none]:
                found.append((start, t, self.names[c][2:]))
        return found


def parse_tags(names: Sequence[str], scheme: Scheme = "BIO") -> Tags:
    """Checks tag names against a scheme and works out where segments begin and end."""
    if scheme not in _PREFIXES:
        raise ArgumentError("scheme", f"one of {tuple(_PREFIXES)}", repr(scheme), "BIO also covers IOB2")
    for name in names:
        if name != "O" and (len(name) < 3 or name[0] not in _PREFIXES[scheme] or name[1] != "-"):
            raise ArgumentError(
                "tags",
                f"'O' or a prefix of {_PREFIXES[scheme]}, '-' and a type",
                repr(name),
                f"is the scheme {scheme}?",
            )
    count = len(names)
    prefix = [name[0] for name in names] + ["O"]
    type_of = [name[2:] if name != "O" else "" for name in names] + [""]
    begins = torch.zeros((count + 1, count + 1), dtype=torch.bool)
    ends = torch.zeros_like(begins)
    for p in range(count + 1):
        for c in range(count + 1):
            broken = type_of[p] != type_of[c] or prefix[p] in "OES"
            if prefix[c] != "O":
                begins[p, c] = prefix[c] in "BS" or broken
            if prefix[p] != "O":
                ends[p, c] = prefix[p] in "ES" or prefix[c] in "OBS" or type_of[p] != type_of[c]
    numbers = {name: i + 1 for i, name in enumerate(dict.fromkeys(t for t in type_of if t))}
    types = torch.tensor([numbers.get(t, 0) for t in type_of[:-1]])
    return Tags(tuple(names), scheme, types, begins, ends)


def whole_scheme(names: Iterable[str], scheme: Scheme) -> set[str]:
    """``names``, O, and every tag that the scheme has for their types.

    >>> sorted(whole_scheme(["B-NP"], "BIO"))
    ['B-NP', 'I-NP', 'O']
    """
    types = parse_tags(sorted({*names, "O"}), scheme).type_names
    return {"O", *(f"{prefix}-{kind}" for prefix in _PREFIXES[scheme] for kind in types)}


def allowed_transitions(tags: Tags) -> tuple[Tensor, Tensor, Tensor]:
    """(C, C) allowed transitions [previous, current], (C,) allowed first tags and (C,) allowed last tags, bool.

    BIO: I-X only after B-X or I-X. IOB1: B-X only after a tag of type X. BIOES: B and I must be continued by I or E
    of their type, I and E must continue.
    """
    prefix = [name[0] for name in tags.names] + ["O"]
    kind = [name[2:] if name != "O" else "" for name in tags.names] + [""]

    def allowed(p: int, c: int) -> bool:
        same = kind[p] == kind[c]
        if tags.scheme == "BIO":
            return prefix[c] != "I" or same
        if tags.scheme == "IOB1":
            return prefix[c] != "B" or same
        inside = prefix[p] in "BI"
        return (prefix[c] in "IE" and same) if inside else prefix[c] not in "IE"

    count = len(tags.names)
    table = torch.tensor([[allowed(p, c) for c in range(count + 1)] for p in range(count + 1)])
    return table[:count, :count], table[count, :count], table[:count, count]
