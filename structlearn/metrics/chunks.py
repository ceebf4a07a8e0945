"""Segment (chunk, entity) F1 by the rules of the conlleval script.

With g, p and m the numbers of gold, predicted and matched segments over all sequences,

    precision = m / p,   recall = m / g,   F1 = 2 m / (p + g),

a segment being its first word, its last word and its type. Every tag sequence has a meaning, whether or not it keeps
to its scheme (:mod:`structlearn.tags`); accuracy counts equal tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from structlearn.errors import LabelError, ShapeError
from structlearn.structures.base import PAD
from structlearn.tags import Scheme, Tags, parse_tags


class ChunkScores(NamedTuple):
    """Shares in 0..1, and (precision, recall, F1, number of gold segments) of every type."""

    precision: float
    recall: float
    f1: float
    accuracy: float
    by_type: dict[str, tuple[float, float, float, int]]


def chunk_scores(
    predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]], scheme: Scheme = "BIO"
) -> ChunkScores:
    """The scores of a corpus of tag sequences.

    >>> chunk_scores([["B-NP", "I-NP", "O"]], [["B-NP", "I-NP", "B-VP"]]).f1
    0.6666666666666666
    """
    if len(predicted) != len(gold):
        raise ShapeError("predicted", f"{len(gold)} sequences, as gold", len(predicted), "give one for every sequence")
    for row, (p, g) in enumerate(zip(predicted, gold, strict=True)):
        if len(p) != len(g):
            raise ShapeError("predicted", f"{len(g)} tags in sequence {row}, as gold", len(p), "tag every word once")
    names = sorted({tag for side in (predicted, gold) for tags in side for tag in tags})
    tags = parse_tags(names, scheme)
    number = {name: i for i, name in enumerate(names)}
    width = max(map(len, gold), default=0)

    def numbers(side: Sequence[Sequence[str]]) -> Tensor:
        rows = [[number[tag] for tag in row] + [PAD] * (width - len(row)) for row in side]
        return torch.tensor(rows, dtype=torch.int64).view(len(rows), width)

    counts, correct, words = _count(numbers(predicted), numbers(gold), tags)
    return _scores(counts.tolist(), int(correct), int(words), tags)


class ChunkF1(Metric):
    """:func:`chunk_scores` over batches and processes.

    Args:
        tags: the C tag names, in the order of the labels.
        scheme: "BIO", "BIOES" or "IOB1".

    ``update(predicted, gold)`` takes labels (B, N), padded with -100 in ``gold``; ``compute`` gives a dict of scalars:
    f1, precision, recall, accuracy, and f1/{type} for every type.
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False
    counts: Tensor
    correct: Tensor
    words: Tensor

    def __init__(self, tags: Sequence[str], scheme: Scheme = "BIO") -> None:
        super().__init__()
        self.tags = parse_tags(tags, scheme)
        types = len(self.tags.type_names)
        self.add_state("counts", torch.zeros((3, types), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("correct", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("words", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, gold: Tensor) -> None:
        counts, correct, words = _count(predicted, gold, self.tags)
        self.counts, self.correct, self.words = self.counts + counts, self.correct + correct, self.words + words

    def compute(self) -> dict[str, Tensor]:
        scores = _scores(self.counts.tolist(), int(self.correct), int(self.words), self.tags)
        named = {"f1": scores.f1, "precision": scores.precision, "recall": scores.recall, "accuracy": scores.accuracy}
        named |= {f"f1/{name}": values[2] for name, values in scores.by_type.items()}
        return {name: torch.tensor(value, device=self.counts.device) for name, value in named.items()}


def _count(predicted: Tensor, gold: Tensor, tags: Tags) -> tuple[Tensor, Tensor, Tensor]:
    """Matched, predicted and gold segments of each type (3, T); equal tags and words."""
    if predicted.shape != gold.shape or gold.dim() != 2:
        raise ShapeError("predicted", f"(B, N) = {tuple(gold.shape)}, as gold", tuple(predicted.shape), "pad with -100")
    none = len(tags.names)
    real = gold != PAD
    sides = [side.masked_fill(~real, none) for side in (predicted, gold)]
    for name, side in zip(("predicted", "gold"), sides, strict=True):
        wrong = (side < 0) | (side > none) | ((side == none) & real)
        if bool(wrong.any()):
            row, place = wrong.nonzero()[0].tolist()
            got = f"{int(side[row, place])} at {(row, place)}"
            raise LabelError(name, f"labels in 0..{none - 1} where gold is not {PAD}", got, "check the tag vocabulary")
    types = torch.cat([tags.types.long(), torch.zeros(1, dtype=torch.int64)]).to(gold.device)
    (p_first, p_ends), (g_first, g_ends) = (_segments(side, tags) for side in sides)
    p_type, g_type = types[sides[0]], types[sides[1]]
    # A segment is matched at its last word: both end there, and both began at the same word.
    matched = p_ends & g_ends & (p_first == g_first) & (p_type == g_type)
    size = len(tags.type_names) + 1
    parts = ((g_type, matched), (p_type, p_ends), (g_type, g_ends))
    counts = torch.stack([torch.bincount(kind[mask], minlength=size)[1:] for kind, mask in parts])
    return counts, ((sides[0] == sides[1]) & real).sum(), real.sum()


def _segments(labels: Tensor, tags: Tags) -> tuple[Tensor, Tensor]:
    """Where the running segment began and whether it ends here, both (B, N)."""
    outside = labels.new_full((labels.shape[0], 1), len(tags.names))
    before = torch.cat([outside, labels[:, :-1]], 1)[:, : labels.shape[1]]
    after = torch.cat([labels[:, 1:], outside], 1)[:, : labels.shape[1]]
    begins = tags.begins.to(labels.device)[before, labels]
    places = torch.arange(labels.shape[1], device=labels.device).expand(labels.shape)
    first = places.masked_fill(~begins, 0).cummax(1).values if labels.numel() else places
    return first, tags.ends.to(labels.device)[labels, after]


def _scores(counts: Sequence[Sequence[int]], correct: int, words: int, tags: Tags) -> ChunkScores:
    matched, predicted, gold = (sum(row) for row in counts)
    by_type = {
        name: (_share(m, p), _share(m, g), _share(2 * m, p + g), g)
        for name, m, p, g in zip(tags.type_names, *counts, strict=True)
    }
    precision, recall = _share(matched, predicted), _share(matched, gold)
    return ChunkScores(precision, recall, _share(2 * matched, predicted + gold), _share(correct, words), by_type)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
