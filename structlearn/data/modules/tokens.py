"""Sentences: chunking, entities, parts of speech."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from structlearn.data.codecs.joint import JointCodec
from structlearn.data.codecs.tokens import SegmentationCodec, TaggingCodec, sentence_of
from structlearn.data.conll import Sentence, parse_columns
from structlearn.data.modules.base import TaskData
from structlearn.data.synthetic import synthetic_chunks
from structlearn.storage.text import read_text
from structlearn.tags import Scheme


class TaggingData(TaskData):
    """CoNLL column files: word, optional part of speech, ..., tag; generated chunks with no ``train``.

    Args:
        train, validation, test, batch_size, examples, seed, workers: see :class:`TaskData`.
        scheme: of tags that mark segments; None for plain labels.
        sparse: make sparse features, for a linear tagger.
        min_count: words that occur less often are unknown.
        encoding: of the files.
    """

    def __init__(
        self,
        train: Path | str | None = None,
        validation: Path | str | None = None,
        test: Path | str | None = None,
        *,
        batch_size: int = 32,
        examples: int | None = None,
        seed: int = 0,
        workers: int = 0,
        scheme: Scheme | None = "BIO",
        sparse: bool = False,
        min_count: int = 2,
        encoding: str = "utf-8",
    ) -> None:
        super().__init__(train, validation, test, batch_size=batch_size, examples=examples, seed=seed, workers=workers)
        self.scheme: Scheme | None = scheme
        self.sparse, self.min_count, self.encoding = sparse, min_count, encoding

    def read(self, path: Path) -> list[Sentence]:
        text = read_text(path, self.encoding)
        return [sentence_of(columns) for columns in parse_columns(text, source=str(path))]

    def generate(self, count: int, seed: int) -> list[Sentence]:
        return synthetic_chunks(count, seed=seed)

    def _options(self) -> dict[str, Any]:
        return {"min_count": self.min_count, "sparse": self.sparse, "scheme": self.scheme}

    def make_codec(self, examples: Sequence[Sentence]) -> TaggingCodec:
        return TaggingCodec.fit(examples, **self._options())


class JointData(TaskData):
    """CoNLL column files: word, part of speech, ..., chunk tag; both kinds of tags are to be found.

    With no ``train`` sentences are generated.

    Args:
        train, validation, test, batch_size, examples, seed, workers: see :class:`TaskData`.
    """

    def read(self, path: Path) -> list[Sentence]:
        return [sentence_of(columns) for columns in parse_columns(read_text(path), source=str(path))]

    def generate(self, count: int, seed: int) -> list[Sentence]:
        return synthetic_chunks(count, seed=seed)

    def make_codec(self, examples: Sequence[Sentence]) -> JointCodec:
        return JointCodec.fit(examples)


class SegmentationData(TaggingData):
    """As :class:`TaggingData`, with gold as segments.

    Args:
        train, validation, test, batch_size, examples, seed, workers: see :class:`TaskData`.
        scheme, sparse, min_count, encoding: see :class:`TaggingData`.
        max_width: of a segment.
    """

    def __init__(
        self,
        train: Path | str | None = None,
        validation: Path | str | None = None,
        test: Path | str | None = None,
        *,
        batch_size: int = 32,
        examples: int | None = None,
        seed: int = 0,
        workers: int = 0,
        scheme: Scheme = "BIO",
        sparse: bool = False,
        min_count: int = 2,
        encoding: str = "utf-8",
        max_width: int = 8,
    ) -> None:
        super().__init__(
            train,
            validation,
            test,
            batch_size=batch_size,
            examples=examples,
            seed=seed,
            workers=workers,
            scheme=scheme,
            sparse=sparse,
            min_count=min_count,
            encoding=encoding,
        )
        self.max_width = max_width

    def make_codec(self, examples: Sequence[Sentence]) -> SegmentationCodec:
        return SegmentationCodec.fit(examples, **self._options(), max_width=self.max_width)
