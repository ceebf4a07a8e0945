"""1 - F1 over segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from structlearn.costs.base import Cost, Counted
from structlearn.costs.f1 import f1_values, one_minus_f1
from structlearn.errors import ArgumentError, ShapeError
from structlearn.structures import SemiMarkov, Structure
from structlearn.structures.counting import Counter, LabelCounter
from structlearn.tags import Scheme, Tags, parse_tags


class SegmentF1(Cost):
    """Delta(gold, y) = 1 - 2 |right| / (|segments of y| + |segments of gold|); right: same first, last and type.

    Args:
        tags: for chains, the tag names in the order of the labels: "O", "B-PER", "I-PER", ...
        scheme: "BIO", "BIOES" or "IOB1"; decoded as conlleval does.
        outside: for :class:`SemiMarkov`, label(s) whose segments do not count.

    On a chain, an automaton with two states (is the open segment of y, so far, a segment of gold?) counts (right,
    predicted) while it reads the tags; on a semi-Markov chain segments are parts and count themselves. Either way
    both rescalings are exact.
    """

    def __init__(self, tags: Sequence[str] = (), scheme: Scheme = "BIO", *, outside: int | tuple[int, ...] = 0) -> None:
        self._tags: Tags = parse_tags(tags, scheme)
        self.tags = tuple(tags)
        self.scheme = scheme
        self.outside = (outside,) if isinstance(outside, int) else tuple(outside)

    def _events(self, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Type of the segment that begins at each position (0: none), and whether one ends there; (..., N)."""
        none = len(self.tags)
        tags = self._tags
        inside = labels.masked_fill(~mask, none)
        edge = torch.full_like(inside[..., :1], none)
        before = torch.cat([edge, inside[..., :-1]], -1)
        after = torch.cat([inside[..., 1:], edge], -1)
        types = torch.cat([tags.types, tags.types.new_zeros(1)]).to(labels.device)
        begin = torch.where(tags.begins.to(labels.device)[before, inside], types[inside], 0)
        return begin, tags.ends.to(labels.device)[inside, after]

    def _checked(self, structure: Structure, y: Any) -> tuple[Tensor, Tensor, torch.dtype]:
        if "unary" not in structure.fields:
            raise ArgumentError(
                "structure", "a chain of tags, or a SemiMarkov", type(structure).__name__, "use a cost made for it"
            )
        labels, mask, classes, dtype = structure.positions(y)
        if classes != len(self.tags):
            raise ShapeError(
                "tags", f"{classes} names, one for each label", len(self.tags), "list every tag in label order"
            )
        return labels, mask, dtype

    def _starts(self, structure: SemiMarkov, y: Tensor) -> Tensor:
        """Which positions of an encoded segmentation open a segment that counts, (..., B, N)."""
        structure.positions(y)  # checks y
        labels, y = structure.segments.shape[3], structure.padded(y)
        return (y >= 0) & ~torch.isin(y % labels, torch.tensor(self.outside, device=y.device))

    def _on_segments(self, structure: SemiMarkov, gold: Tensor, y: Tensor) -> Tensor:
        true, predicted = self._starts(structure, gold), self._starts(structure, y)
        counts = (x.sum(-1).to(structure.segments.dtype) for x in (true & (gold == y), predicted, true))
        return one_minus_f1(*counts)

    def _count_segments(self, structure: SemiMarkov, gold: Tensor) -> Counted:
        b, n, w, c = structure.segments.shape
        true = self._starts(structure, gold)
        codes = torch.arange(w * c, device=gold.device).view(w, c)
        counts = ~torch.isin(codes % c, torch.tensor(self.outside, device=gold.device))
        right = (gold[..., None, None] == codes) & counts
        sizes = (int(true.sum(-1).max()) + 1 if true.numel() else 1, n + 1)
        increments = ({"segments": right.long()}, {"segments": counts.long().expand(b, n, w, c)})
        return Counted(Counter(increments, sizes), f1_values(*sizes, true.sum(-1), structure.segments.dtype))

    def __call__(self, structure: Structure, gold: Any, y: Any) -> Tensor:
        if isinstance(structure, SemiMarkov):
            return self._on_segments(structure, gold, y)
        labels, mask, dtype = self._checked(structure, gold)
        given, _, _ = self._checked(structure, y)
        begin, end = self._events(labels, mask)
        given_begin, given_end = self._events(given, mask)
        # A segment is right if both begin together with one type and no begin or end of either stands before the
        # end of both: the number of events since the begin is then the same, so compare (position, type) of ends
        # together with the position of their begins.
        place = torch.arange(labels.shape[-1], device=labels.device)
        start = torch.where(begin > 0, place, -1).cummax(-1).values
        given_start = torch.where(given_begin > 0, place, -1).cummax(-1).values
        kind = begin.gather(-1, start.clamp(min=0))
        given_kind = given_begin.gather(-1, given_start.clamp(min=0))
        right = end & given_end & (start == given_start) & (kind == given_kind)
        counts = (x.sum(-1).to(dtype) for x in (right, given_begin > 0, begin > 0))
        return one_minus_f1(*counts)

    def counted(self, structure: Structure, gold: Any) -> Counted | None:
        if isinstance(structure, SemiMarkov):
            return self._count_segments(structure, gold)
        labels, mask, dtype = self._checked(structure, gold)
        begin, end = self._events(labels, mask)
        true = (begin > 0).sum(-1)
        sizes = (int(true.max()) + 1, int(mask.sum(-1).max()) + 1) if labels.numel() else (1, 1)
        classes = begin * 2
        classes[:, 1:] += end[:, :-1].long()
        counter = LabelCounter(classes, *self._automaton(sizes[1], labels.device), sizes)
        return Counted(counter, f1_values(*sizes, true, dtype))

    def _automaton(self, stride: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """next, step and last of the counter; class 2 * type + e: gold begins ``type`` here, and e: ended one before.

        State 1: the open segment of y began with one of gold's, of the same type, and gold's has not ended without it.
        """
        tags = self._tags
        count, types = len(tags.names), len(tags.type_names) + 1
        begins, ends = tags.begins[:, :count], tags.ends[:, :count]
        following = torch.zeros((types, 2, 2, count + 1, count), dtype=torch.int64)
        step = torch.zeros_like(following)
        same = torch.arange(types)[:, None] == tags.types  # (types, C): gold begins the type of tag c
        for gold_ended in (0, 1):
            for live in (0, 1):
                goes_on = torch.full_like(begins, bool(live and not gold_ended)) & (tags.types > 0)
                opened = (same & (tags.types > 0))[:, None, :]
                following[:, gold_ended, live] = torch.where(begins, opened, goes_on & ~ends).long()
                step[:, gold_ended, live] = begins.long() + (stride if live and gold_ended else 0) * ends.long()
        last = torch.stack([torch.zeros(count, dtype=torch.int64), torch.full((count,), stride)])
        return tuple(x.to(device) for x in (following.flatten(0, 1), step.flatten(0, 1), last))  # type: ignore[return-value]
