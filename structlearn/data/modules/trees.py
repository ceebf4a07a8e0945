"""Treebanks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from structlearn.data.codecs.trees import ParsingCodec
from structlearn.data.modules.base import Encoded, Stage, TaskData
from structlearn.data.synthetic import synthetic_trees
from structlearn.data.treebank import read_treebank
from structlearn.trees import Tree


class ParsingData(TaskData):
    """Bracketed trees, see :func:`read_treebank`; generated ones with no ``train``.

    Args:
        train, validation, test, batch_size, examples, seed, workers: see :class:`TaskData`.
        kind: "spans" for a scorer of spans, "rules" for weights of a grammar's rules over parts of speech.
        longest: sentences with more words are left out of training.
        min_count: words that occur less often are unknown.
        h, v: Markov orders of binarisation.
    """

    def __init__(
        self,
        train: Path | str | None = None,
        validation: Path | str | None = None,
        test: Path | str | None = None,
        *,
        kind: Literal["rules", "spans"] = "spans",
        longest: int = 40,
        min_count: int = 2,
        h: int | None = 2,
        v: int = 1,
        batch_size: int = 16,
        examples: int | None = None,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        super().__init__(train, validation, test, batch_size=batch_size, examples=examples, seed=seed, workers=workers)
        self.kind: Literal["rules", "spans"] = kind
        self.longest, self.min_count, self.h, self.v = longest, min_count, h, v

    def read(self, path: Path) -> list[Tree]:
        return [tree for tree in read_treebank(path) if len(tree.leaves()) > 1]

    def generate(self, count: int, seed: int) -> list[Tree]:
        return synthetic_trees(count, seed=seed)

    def examples(self, stage: Stage) -> list[Tree]:
        found: list[Tree] = super().examples(stage)
        return [tree for tree in found if len(tree.leaves()) <= self.longest] if stage == "train" else found

    def encoded(self, stage: Stage) -> Encoded:
        found = super().encoded(stage)
        codec = found.codec
        assert isinstance(codec, ParsingCodec)
        if stage == "train" and not all(codec.learnable(item) for item in found.items):
            kept = [i for i, item in enumerate(found.items) if codec.learnable(item)]
            found.items, found.lengths = [found.items[i] for i in kept], [found.lengths[i] for i in kept]
            found.examples = [found.examples[i] for i in kept]
        return found

    def make_codec(self, examples: Sequence[Tree]) -> ParsingCodec:
        return ParsingCodec.fit(examples, kind=self.kind, min_count=self.min_count, h=self.h, v=self.v)
