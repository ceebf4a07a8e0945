"""Features of argument candidates, and batches of them, for semantic role labelling.

Attributes of a candidate beside its predicate (phrase label, path through the tree, position, voice, head word, edges,
neighbours, after Gildea and Jurafsky 2002 and Xue and Palmer 2004) are hashed once; templates tie them together by
a few vector operations over the whole corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from structlearn.constraints.training import Parts
from structlearn.data.propbank import AnnotatedSentence, Proposition
from structlearn.data.sparse import hash_strings, mix, stem

NONE = "NONE"
_ATTRIBUTES = (
    *("lemma", "roleset", "tag", "voice", "phrase", "parent", "path", "short", "side", "far", "head", "headtag"),
    *("first", "firsttag", "last", "lasttag", "before", "after", "left", "right", "frame", "length", "inner", "stem"),
)
_AT = {name: i for i, name in enumerate(_ATTRIBUTES)}
_TEMPLATES: tuple[tuple[str, ...], ...] = (
    *((name,) for name in _ATTRIBUTES if name not in ("lemma", "roleset", "voice")),
    *((("lemma", name)) for name in ("phrase", "path", "head", "side", "first", "inner", "frame", "left", "right")),
    *((("roleset", name)) for name in ("phrase", "side", "path", "headtag", "first", "stem")),
    ("voice", "side"),
    ("voice", "side", "phrase"),
    ("voice", "side", "lemma"),
    ("voice", "side", "roleset", "phrase"),
    ("voice", "path"),
    ("phrase", "head"),
    ("phrase", "headtag"),
    ("phrase", "first"),
    ("phrase", "inner"),
    ("phrase", "parent", "side"),
    ("side", "far"),
    ("tag", "path"),
    ("tag", "phrase", "side"),
)


def places(start: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Rows start..start+length-1 of a flat array as a padded batch: their numbers (B, N), and which are real."""
    steps = torch.arange(max(int(lengths.max()), 1))
    mask = steps < lengths[:, None]
    return (start[:, None] + steps) * mask, mask


def _voice(s: AnnotatedSentence, t: int) -> str:
    """A participle after a form of "be" or "get", at most four words before, is passive; without one it is bare."""
    if s.pos[t] != "VBN":
        return "active" if s.pos[t].startswith("V") else s.pos[t][:2]
    for i in range(t - 1, max(t - 5, -1), -1):
        word = s.words[i].lower()
        if word in ("be", "is", "are", "was", "were", "been", "being", "'s", "'re", "get", "got", "gets"):
            return "passive"
        if word in ("have", "has", "had", "'ve", "having"):
            return "active"
        if s.pos[i][:1] in "NV":
            break
    return "bare"


def _up(s: AnnotatedSentence, node: int) -> list[int]:
    """The node and those above it."""
    found = [node]
    while (parent := s.nodes[found[-1]].parent) >= 0:
        found.append(parent)
    return found


def attributes(s: AnnotatedSentence, p: Proposition, candidates: Sequence[int]) -> list[list[str]]:
    """A row of strings for each candidate, in the order of ``_ATTRIBUTES``."""
    t = p.predicate
    above = _up(s, s.leaves[t])
    height = {node: i for i, node in enumerate(above)}
    label = [s.nodes[i].label for i in above]
    holder = s.nodes[above[1]] if len(above) > 1 else s.nodes[above[0]]
    frame = f"{holder.label}>" + "-".join(s.nodes[i].label for i in holder.children)
    voice, tag = _voice(s, t), s.pos[t]
    rows = []
    for place, i in enumerate(candidates):
        node = s.nodes[i]
        down = [i]
        while (top := s.nodes[down[-1]].parent) not in height:
            down.append(top)
        up = label[: height[top] + 1]
        path = "^".join(up) + "!" + "!".join(s.nodes[j].label for j in reversed(down))
        side = "<" if node.last < t else ">"
        left, right = (
            s.nodes[candidates[j]].label if 0 <= j < len(candidates) else "-" for j in (place - 1, place + 1)
        )
        between = abs(node.first - t) if side == ">" else abs(t - node.last)
        head = s.words[node.head].lower()
        inner = head
        if node.label in ("PP", "SBAR") and len(node.children) > 1:
            inner = s.words[s.nodes[node.children[-1]].head].lower()
        rows.append(
            [
                *(p.lemma, p.roleset, tag, voice, node.label, s.nodes[node.parent].label, path),
                *(f"{len(up)}.{len(down)}", side, side + str(min(between.bit_length(), 5)), head, s.pos[node.head]),
                *(s.words[node.first].lower(), s.pos[node.first], s.words[node.last].lower(), s.pos[node.last]),
                s.words[node.first - 1].lower() if node.first else "-",
                s.words[node.last + 1].lower() if node.last + 1 < len(s.words) else "-",
                *(left, right, frame, str(min((node.last - node.first + 1).bit_length(), 5)), inner, stem(head)),
            ]
        )
    return rows


class RoleCorpus:
    """Candidates of all propositions in a row: ``features`` (M, J) hashes, ``gold`` (M,), ``spans`` (M, 2).

    Args:
        sentences: with their trees.
        labels: names of roles, NONE first; found in the sentences if not given. Roles that are not named count as NONE.
        limit: take so many propositions.
    """

    def __init__(
        self,
        sentences: Sequence[AnnotatedSentence],
        labels: Sequence[str] | None = None,
        *,
        limit: int | None = None,
    ) -> None:
        pairs = [(s, p) for s in sentences for p in s.propositions][:limit]
        if labels is None:
            labels = [NONE, *sorted({label for _, p in pairs for label in p.arguments.values()})]
        self.labels = list(labels)
        number = {label: i for i, label in enumerate(self.labels)}
        self.arguments = [p.arguments for _, p in pairs]
        known: list[dict[str, int]] = [{} for _ in _ATTRIBUTES]
        codes: list[list[int]] = []
        gold, spans, lengths = [], [], []
        for s, p in pairs:
            candidates = s.candidates(p.predicate)
            lengths.append(len(candidates))
            codes += [
                [table.setdefault(value, len(table)) for table, value in zip(known, row, strict=True)]
                for row in attributes(s, p, candidates)
            ]
            for i in candidates:
                span = (s.nodes[i].first, s.nodes[i].last)
                spans.append(span)
                gold.append(number.get(p.arguments.get(span, NONE), 0))
        self.lengths = torch.tensor(lengths, dtype=torch.int64)
        self.start = self.lengths.cumsum(0) - self.lengths
        self.gold = torch.tensor(gold, dtype=torch.int64)
        self.spans = torch.tensor(spans, dtype=torch.int64).view(-1, 2)
        raw = torch.tensor(codes, dtype=torch.int64).view(-1, len(_ATTRIBUTES))
        hashed = [
            hash_strings(f"{name}={value}" for value in table)[raw[:, i]]
            for i, (name, table) in enumerate(zip(_ATTRIBUTES, known, strict=True))
        ]
        self.features = torch.stack(
            [mix(i, *(hashed[_AT[name]] for name in template)) for i, template in enumerate(_TEMPLATES)], 1
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Tensor, ids: Tensor) -> Parts:
        """Propositions as one padded batch; ``ids`` (M, J) are the row numbers of the features."""
        place, mask = places(self.start[rows], self.lengths[rows])
        return Parts(ids[place], self.gold[place].masked_fill(~mask, -100), self.lengths[rows], self.spans[place])

    def batches(self, size: int, ids: Tensor, generator: torch.Generator | None = None) -> Iterator[Parts]:
        """All propositions, those of like size together, in random order if there is a generator."""
        for rows in self.rows(size, generator):
            yield self.batch(rows, ids)

    def rows(self, size: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """Numbers of the propositions of each batch."""
        key = self.lengths.double()
        if generator is not None:
            key = key + 3 * torch.rand(len(self), generator=generator)
        groups = list(key.argsort(stable=True).split(size))
        if generator is not None:
            order = torch.randperm(len(groups), generator=generator).tolist()
            groups = [groups[i] for i in order]
        return groups
