"""Sentences as words, letters and sparse features; tags as labels, or as segments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from structlearn.data.batch import Batch, Kept, TokenInputs, one, padded
from structlearn.data.chunk_features import Tokens, token_features
from structlearn.data.codecs.base import Codec
from structlearn.data.conll import Sentence, parse_columns
from structlearn.data.sparse import FeatureIndex
from structlearn.data.vocabulary import Vocabulary, normal_form
from structlearn.errors import FormatError, LabelError
from structlearn.storage.text import json_lines, numbered_lines, texts_field
from structlearn.structures import segmentation
from structlearn.structures.base import PAD
from structlearn.tags import Scheme, parse_tags, whole_scheme

_LETTERS = 20  # of a word that are read, the first and the last ones


class EncodedSentence(NamedTuple):
    """(N,), (N, K), (N, J) and gold (N,) of one sentence, None where the codec does not make them; its N words."""

    words: Tensor
    chars: Tensor
    features: Tensor | None
    gold: Tensor
    text: Sequence[str]


class TaggingCodec(Codec):
    """Sentences to words, letters, sparse features and tags.

    Args:
        tags: the C tags, in the order of the labels.
        words, chars: vocabularies; words in :func:`normal_form`.
        known: sorted buckets of the sparse features of training data; None makes no sparse features.
        scheme: of tags that mark segments; None for plain labels, such as parts of speech.
    """

    formats = ("conll", "text", "jsonl")

    def __init__(
        self,
        tags: Sequence[str],
        words: Vocabulary,
        chars: Vocabulary,
        known: Tensor | None = None,
        scheme: Scheme | None = "BIO",
    ) -> None:
        self.tags, self.scheme = tuple(tags), scheme
        self.words, self.chars = words, chars
        self.index = None if known is None else FeatureIndex.of_buckets(known)
        self._label = {tag: i for i, tag in enumerate(self.tags)}
        self.num_features = 0 if self.index is None else self.index.size

    @classmethod
    def fit(
        cls,
        sentences: Sequence[Sentence],
        *,
        min_count: int = 2,
        sparse: bool = False,
        scheme: Scheme | None = "BIO",
        **options: Any,
    ) -> Self:
        """From training sentences; words below ``min_count`` are unknown, sparse features count from one."""
        words = Vocabulary.of((normal_form(w) for s in sentences for w in s.words), min_count=min_count)
        chars = Vocabulary.of(c for s in sentences for w in s.words for c in w)
        known = FeatureIndex(token_features(Tokens(sentences))).buckets() if sparse else None
        seen = {tag for s in sentences for tag in s.chunks}
        # Test data may hold the I of a type of which training data have the B alone.
        tags = whole_scheme(seen, scheme) if scheme else seen
        return cls(sorted(tags, key=lambda tag: (tag != "O", tag)), words, chars, known, scheme, **options)

    @property
    def num_labels(self) -> int:
        """C."""
        return len(self.tags)

    def encode(self, examples: Sequence[Sentence]) -> list[EncodedSentence]:
        sizes = [len(s.words) for s in examples]
        kinds = {word: i for i, word in enumerate(dict.fromkeys(w for s in examples for w in s.words))}
        at = torch.tensor([kinds[w] for s in examples for w in s.words], dtype=torch.int64)
        words = torch.tensor(self.words(map(normal_form, kinds)), dtype=torch.int64)[at]
        chars = padded([self._letters(word) for word in kinds])[at] if kinds else torch.zeros((0, 1))
        found: list[Any] = [None] * len(examples)
        if self.index is not None and len(at):
            found = list(self.index(token_features(Tokens(examples))).split(sizes))
        rows = zip(examples, words.split(sizes), chars.split(sizes), found, strict=True)
        return [EncodedSentence(w, c, f, self._gold(s), s.words) for s, w, c, f in rows]

    def _letters(self, word: str) -> Tensor:
        if len(word) > _LETTERS:
            word = word[: _LETTERS // 2] + word[-_LETTERS // 2 :]
        return torch.tensor(self.chars(word), dtype=torch.int64)

    def _gold(self, sentence: Sentence) -> Tensor:
        """(N,) labels; all PAD where there is no gold."""
        if not sentence.chunks:
            return torch.full((len(sentence.words),), PAD)
        try:
            return torch.tensor([self._label[tag] for tag in sentence.chunks])
        except KeyError as error:
            expected = "tags that training data hold"
            raise LabelError("tags", expected, error.args[0], "train on data with this tag, or drop it") from None

    def collate(self, encoded: Sequence[EncodedSentence]) -> Batch:
        lengths = torch.tensor([len(e.words) for e in encoded])
        chars = padded([e.chars for e in encoded])
        x = TokenInputs(
            lengths,
            padded([e.words for e in encoded]),
            chars[..., : max(1, int((chars > 0).sum(-1).max()))] if chars.numel() else chars,
            None if self.index is None else padded([e.features for e in encoded if e.features is not None]),
            text=Kept([e.text for e in encoded]),
        )
        return Batch(x, padded([e.gold for e in encoded], PAD), lengths, torch.arange(len(encoded)), one())

    def length(self, encoded: EncodedSentence) -> int:
        return len(encoded.words)

    def decode(self, output: Tensor, length: int) -> list[str]:
        """Labels (N,) as tags."""
        return [self.tags[c] for c in output[:length].tolist()]

    def parse(self, text: str, form: str, source: str = "text") -> list[Sentence]:
        self.check_format(form)
        if form == "conll":
            return [self._unlabelled(columns, source) for columns in parse_columns(text, source=source)]
        return parse_sentences(text, form, source)

    def _unlabelled(self, columns: list[list[str]], source: str) -> Sentence:
        """A sentence without gold; the last of several columns is dropped if it holds tags."""
        if len(columns) > 4 and len(columns[0]) == 1:
            line = " ".join(column[0] for column in columns)
            raise FormatError(source, "one word a line", f"a line of {len(columns)}: {line[:60]!r}", "--format text")
        if len(columns) > 1 and not set(columns[-1]) - set(self.tags):
            columns = columns[:-1]
        return Sentence(columns[0], columns[1] if len(columns) > 1 else [""] * len(columns[0]), [])

    def render(self, example: Sentence, output: list[str], form: str) -> str:
        if form == "jsonl":
            return json.dumps({"words": example.words, "tags": output}, ensure_ascii=False)
        if form == "text":
            return " ".join(f"{word}/{tag}" for word, tag in zip(example.words, output, strict=True))
        columns = [example.words, *([example.pos] if any(example.pos) else []), output]
        return "".join(" ".join(row) + "\n" for row in zip(*columns, strict=True))


class SegmentationCodec(TaggingCodec):
    """As :class:`TaggingCodec`, with gold as segments of at most ``max_width`` words; labels are O and the types.

    Longer segments of gold are cut, so that they can be learned at all.
    """

    def __init__(
        self,
        tags: Sequence[str],
        words: Vocabulary,
        chars: Vocabulary,
        known: Tensor | None = None,
        scheme: Scheme | None = "BIO",
        max_width: int = 8,
    ) -> None:
        super().__init__(tags, words, chars, known, scheme)
        self.max_width = max_width
        self._parsed = parse_tags(self.tags, scheme or "BIO")
        self.types = ("O", *self._parsed.type_names)

    @property
    def num_labels(self) -> int:
        return len(self.types)

    def _gold(self, sentence: Sentence) -> Tensor:
        labels = super()._gold(sentence)
        if not sentence.chunks:
            return labels
        kinds = {name: i for i, name in enumerate(self.types)}
        found: list[segmentation.Segment] = []
        for first, last, kind in self._parsed.segments(labels.tolist()):
            found += [(t, t, 0) for t in range(found[-1][1] + 1 if found else 0, first)]
            for start in range(first, last + 1, self.max_width):
                found.append((start, min(start + self.max_width - 1, last), kinds[kind]))
        size = len(sentence.words)
        found += [(t, t, 0) for t in range(found[-1][1] + 1 if found else 0, size)]
        return segmentation.encode([found], [size], size, self.max_width, len(self.types))[0]

    def decode(self, output: Tensor, length: int) -> list[str]:
        """Segments (N,) as BIO tags."""
        tags: list[str] = []
        for first, last, label in segmentation.decode(output[None, :length], len(self.types))[0]:
            name = self.types[label]
            tags += ["O"] * (last + 1 - first) if label == 0 else [f"B-{name}", *[f"I-{name}"] * (last - first)]
        return tags


def sentence_of(columns: Sequence[list[str]]) -> Sentence:
    """Columns (word), (word, tag) or (word, ..., part of speech, ..., tag): the second and the last are read."""
    if len(columns) == 1:
        return Sentence(columns[0], [""] * len(columns[0]), [])
    return Sentence(columns[0], columns[1] if len(columns) > 2 else [""] * len(columns[0]), columns[-1])


def parse_sentences(text: str, form: str, source: str) -> list[Sentence]:
    """Sentences without gold, of "text", one per line, or of JSON lines with words and perhaps parts of speech."""
    if form == "text":
        split = (line.split() for _, line in numbered_lines(text, source))
        return [Sentence(words, [""] * len(words), []) for words in split if words]
    rows = json_lines(text, source, '{"words": ["a", "b"], "pos": ["DT", "NN"]}')
    return [_sentence_of_json(row, place) for place, row in rows]


def _sentence_of_json(row: Mapping[str, Any], place: str) -> Sentence:
    words, pos = texts_field(row, "words", place), texts_field(row, "pos", place)
    if not words:
        raise FormatError(place, "'words', a list of at least one text", "none", 'write {"words": ["a", "b"]}')
    if len(pos) not in (0, len(words)):
        raise FormatError(place, f"{len(words)} pos, one per word", len(pos), "give every word its part of speech")
    return Sentence(words, pos or [""] * len(words), [])
