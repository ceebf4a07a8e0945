"""1 - F1 over the labelled constituents of trees."""

from __future__ import annotations

from collections import Counter as Bag
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structlearn.brackets import COLLINS, BracketRules
from structlearn.costs.base import Cost, Counted
from structlearn.costs.f1 import f1_values, one_minus_f1
from structlearn.data.binarise import phrases
from structlearn.errors import ArgumentError, ShapeError
from structlearn.structures import SpanTree, Structure, WeightedCFG
from structlearn.structures.base import PAD
from structlearn.structures.counting import Counter


class _Labels(NamedTuple):
    """What labels stand for: ``size`` (K,) constituents each, of which ``match`` (K, K) [gold, y] are shared."""

    size: Tensor
    match: Tensor

    def sizes(self, y: Tensor) -> Tensor:
        """Constituents at each place of y, 0 at PAD."""
        return self.size.to(y.device)[y.clamp(min=0)].masked_fill(y == PAD, 0)

    def matches(self, gold: Tensor, y: Tensor) -> Tensor:
        """Constituents that gold and y share at each place."""
        return self.match.to(y.device)[gold.clamp(min=0), y.clamp(min=0)].masked_fill((gold == PAD) | (y == PAD), 0)

    def table(self, gold: Tensor) -> Tensor:
        """Constituents that gold shares with each label, (..., K)."""
        return self.match.to(gold.device)[gold.clamp(min=0)].masked_fill((gold == PAD)[..., None], 0)


class BracketF1(Cost):
    """Delta(gold, y) = 1 - 2 |matched| / (|constituents of y| + |constituents of gold|), matched: same words and label.

    Args:
        labels: L names of the labels of a :class:`SpanTree`; without them every label of a larger span is a
            constituent of its own. A :class:`WeightedCFG` brings the names of its grammar.
        rules: labels that do not count (the top node) and labels that are equal; function tags never count.
        outside: label(s) of a :class:`SpanTree` that are no constituents, such as "none" in a binarised treebank.
        preterminals: whether single words carry a part of speech, which does not count; if False, their labels are
            constituents like others.

    Names are read as :mod:`structlearn.data.binarise` writes them: a node ``S+VP`` is two constituents, ``@NP~DT`` is
    none, ``NP+NN`` over a word is one. Every word counts: evalb's deletion of punctuation can make one constituent of
    two spans of y, which no sum over spans can tell; take such words out of the sentences to have its scores exactly.
    Does not add up over spans, but is a function of (matched, constituents of y), so that both rescalings are exact.
    """

    def __init__(
        self,
        labels: Sequence[str] | None = None,
        *,
        rules: BracketRules = COLLINS,
        outside: int | tuple[int, ...] = (),
        preterminals: bool = True,
    ) -> None:
        self.labels = None if labels is None else tuple(labels)
        self.rules = rules
        self.outside = (outside,) if isinstance(outside, int) else tuple(outside)
        self.preterminals = preterminals
        self._read: dict[tuple[Any, ...], tuple[_Labels, _Labels]] = {}

    def _bags(self, names: Sequence[str], single: bool) -> list[Bag[Any]]:
        found = [phrases(name, preterminal=single) for name in names]
        return [Bag(x for label in labels if (x := self.rules.phrase(label)) is not None) for labels in found]

    def _tables(self, structure: Structure) -> tuple[_Labels, _Labels]:
        """The labels of larger spans and those of single words."""
        if isinstance(structure, WeightedCFG):
            names = structure.grammar.nonterminals, structure.grammar.preterminals
        elif isinstance(structure, SpanTree):
            count = structure.spans.shape[3]
            if self.labels is not None and len(self.labels) != count:
                raise ShapeError(
                    "labels", f"L={count} names", len(self.labels), "one name for every label of the spans"
                )
            if any(not 0 <= label < count for label in self.outside):
                got = str(self.outside)
                raise ArgumentError("outside", f"labels in 0..{count - 1}", got, "name labels of this structure")
            names = self.labels or (), (str(count),)
        else:
            raise ArgumentError(
                "structure", "a SpanTree or WeightedCFG", type(structure).__name__, "use F1 or SegmentF1"
            )
        if names not in self._read:
            self._read[names] = self._make(structure, names)
        return self._read[names]

    def _make(self, structure: Structure, names: tuple[tuple[str, ...], ...]) -> tuple[_Labels, _Labels]:
        if isinstance(structure, WeightedCFG):
            bags = [self._bags(group, single) for group, single in zip(names, (False, True), strict=True)]
        else:
            count = int(names[1][0])
            if self.labels is None:
                inner: list[Bag[Any]] = [Bag([label]) for label in range(count)]
                single = [Bag[Any]()] * count
            else:
                inner, single = self._bags(self.labels, False), self._bags(self.labels, True)
            bags = [inner, single if self.preterminals else inner]
            for group in bags:
                for label in self.outside:
                    group[label] = Bag()
        return _labels(bags[0]), _labels(bags[1])

    def _counts(self, structure: Structure, gold: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(constituents of y, those that gold has too), (...) each, without leading axes of gold."""
        inner, single = self._tables(structure)
        above, words = _split(structure, y)
        gold_above, gold_words = _split(structure, gold)
        predicted = inner.sizes(above).sum((-2, -1)) + single.sizes(words).sum(-1)
        matched = inner.matches(gold_above, above).sum((-2, -1)) + single.matches(gold_words, words).sum(-1)
        return predicted, matched

    def __call__(self, structure: Structure, gold: Any, y: Any) -> Tensor:
        dtype = structure.positions(y)[3]  # checks y
        predicted, matched = self._counts(structure, gold, y)
        true = self._counts(structure, gold, gold)[0]
        return one_minus_f1(matched.to(dtype), predicted.to(dtype), true.to(dtype))

    def counted(self, structure: Structure, gold: Any) -> Counted | None:
        dtype = structure.positions(gold)[3]
        inner, single = self._tables(structure)
        above, words = _split(structure, gold)
        true = self._counts(structure, gold, gold)[0]
        matched: dict[str, Tensor]
        predicted: dict[str, Tensor]
        if isinstance(structure, WeightedCFG):
            parents = structure.grammar.rules[:, 0].to(gold.device)
            predicted = {"rule_scores": inner.size.to(gold.device)[parents], "terms": single.size.to(gold.device)}
            matched = {"spans": inner.table(above), "terms": single.table(words)}
        else:
            n = gold.shape[-1]
            diagonal = torch.eye(n, dtype=torch.bool, device=gold.device)[..., None]
            predicted = {"spans": torch.where(diagonal, single.size.to(gold.device), inner.size.to(gold.device))}
            matched = {"spans": torch.where(diagonal, single.table(words)[:, :, None, :], inner.table(above))}
        shapes = {name: x.shape for name, x in structure.potentials.items()}
        predicted = {name: x.expand(shapes[name]) for name, x in predicted.items()}
        most = _largest(structure, predicted)
        sizes = (int(true.max()) + 1, int(most.max()) + 1) if true.numel() else (1, 1)
        return Counted(Counter((matched, predicted), sizes), f1_values(*sizes, true, dtype))


def _labels(bags: list[Bag[Any]]) -> _Labels:
    """Bags of constituents as tables; equal bags share their work."""
    kinds = {frozenset(bag.items()): bag for bag in bags}
    number = {kind: i for i, kind in enumerate(kinds)}
    place = torch.tensor([number[frozenset(bag.items())] for bag in bags], dtype=torch.int64)
    shared = [[sum((a & b).values()) for b in kinds.values()] for a in kinds.values()]
    match = torch.tensor(shared, dtype=torch.int64).view(len(kinds), len(kinds))
    return _Labels(match.diagonal()[place], match[place][:, place])


def _split(structure: Structure, y: Tensor) -> tuple[Tensor, Tensor]:
    """Labels of the larger spans (..., N, N) and of the words (..., N), each as its own numbers, PAD elsewhere."""
    assert isinstance(structure, SpanTree | WeightedCFG)
    y = y.masked_fill(~structure.mask, PAD)
    above = y if isinstance(structure, SpanTree) else structure.symbols(y)
    diagonal = torch.eye(y.shape[-1], dtype=torch.bool, device=y.device)
    return above.masked_fill(diagonal, PAD), y.diagonal(0, -2, -1)


def _largest(structure: Structure, parts: dict[str, Tensor]) -> Tensor:
    """The most that ``parts`` add up to over an allowed tree, (B,)."""
    allowed = {name: torch.where(x == float("-inf"), x, 0.0) for name, x in structure.potentials.items()}
    return structure.replace(**allowed).plus(parts).max().clamp(min=0.0)
