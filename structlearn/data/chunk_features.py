"""Features of chunks: of single words, and of whole chunks made from them.

Of a word: itself, lower-cased, its stem and what the stem leaves, its case pattern, its first and last 1 to 3 letters,
its part of speech and the first letter of that; and of its neighbours up to two words away, alone and as n-grams.
Of a chunk: its length, its sequences of words and of parts of speech, its ends, and what stands before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from structlearn.data.conll import Sentence
from structlearn.data.sparse import case_pattern, hash_strings, mix, stem

_EDGE = 2  # words of context on either side


class Tokens:
    """Words of many sentences in a row, with two blanks before and after each sentence.

    ``place`` (sum of lengths,) are the positions of words, ``start`` (sentences,) the positions of first words.
    """

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self.lengths = torch.tensor([len(s.words) for s in sentences], dtype=torch.int64)
        gaps = self.lengths + _EDGE
        self.start = gaps.cumsum(0) - gaps + _EDGE
        row = torch.repeat_interleave(torch.arange(len(sentences)), self.lengths)
        before = self.lengths.cumsum(0) - self.lengths
        self.place = torch.arange(int(self.lengths.sum())) - before[row] + self.start[row]
        self.room = self.start[row] + self.lengths[row] - self.place  # words from here to the end of the sentence
        size = int(gaps.sum()) + _EDGE + 1
        self._size = size
        self.word = self._attributes([w for s in sentences for w in s.words])
        self.pos = self._attributes([p for s in sentences for p in s.pos], pos=True)

    def _attributes(self, strings: list[str], *, pos: bool = False) -> dict[str, Tensor]:
        """Hashes (size,) of every attribute, 0 at the blanks."""
        kinds = dict.fromkeys(strings)
        number = {s: i for i, s in enumerate(kinds)}
        at = torch.tensor([number[s] for s in strings], dtype=torch.int64)
        found = {}
        for name, value in (_POS if pos else _WORD).items():
            table = hash_strings(f"{name}={value(s)}" for s in kinds)
            found[name] = torch.zeros(self._size, dtype=torch.int64).index_put((self.place,), table[at])
        return found


_WORD: dict[str, Callable[[str], str]] = {
    "w": str,
    "l": str.lower,
    "s": stem,
    "r": lambda w: w[len(stem(w)) :],
    "c": case_pattern,
    **{f"p{n}": itemgetter(slice(n)) for n in (1, 2, 3)},
    **{f"e{n}": itemgetter(slice(-n, None)) for n in (1, 2, 3)},
}
_POS: dict[str, Callable[[str], str]] = {"t": str, "t1": lambda t: t[:1]}

# Templates over one word's neighbourhood: attributes at offsets, tied into one feature.
_TEMPLATES: tuple[tuple[tuple[str, int], ...], ...] = (
    *(((name, 0),) for name in (*_WORD, "t", "t1")),
    *((("l", n),) for n in (-2, -1, 1, 2)),
    *((("t", n),) for n in (-2, -1, 1, 2)),
    (("l", -1), ("l", 0)),
    (("l", 0), ("l", 1)),
    (("t", -2), ("t", -1)),
    (("t", -1), ("t", 0)),
    (("t", 0), ("t", 1)),
    (("t", 1), ("t", 2)),
    (("t", -2), ("t", -1), ("t", 0)),
    (("t", -1), ("t", 0), ("t", 1)),
    (("t", 0), ("t", 1), ("t", 2)),
    (("l", 0), ("t", 0)),
    (("l", 0), ("t", -1)),
    (("l", 0), ("t", 1)),
    (("l", -1), ("t", 0)),
    (("l", 1), ("t", 0)),
    (("c", 0), ("t", 0)),
    (("e3", -1), ("e3", 0)),
)
_EDGES: tuple[tuple[tuple[str, int], ...], ...] = (
    (("t", 0),),
    (("t", -1), ("t", 0)),
    (("t", 0), ("t", 1)),
    (("l", 0),),
    (("l", -1),),
)


class ChunkFeatures(NamedTuple):
    """Hashes of all features: of words (M, J), of chunks that start there (M, W, J'), of joints before (M, J'')."""

    words: Tensor
    spans: Tensor
    edges: Tensor


def word_features(tokens: Tokens) -> Tensor:
    """Hashes (M, J) of the features of words and their neighbours in which no part of speech takes part."""
    templates = [(i, t) for i, t in enumerate(_TEMPLATES) if all(name in _WORD for name, _ in t)]
    return torch.stack([_at(tokens.word, tokens.place, template, i) for i, template in templates], 1)


def token_features(tokens: Tokens) -> Tensor:
    """Hashes (M, J) of the features of words and their neighbours, parts of speech included."""
    every = {**tokens.word, **tokens.pos}
    return torch.stack([_at(every, tokens.place, template, i) for i, template in enumerate(_TEMPLATES)], 1)


def _at(every: dict[str, Tensor], place: Tensor, template: tuple[tuple[str, int], ...], number: int) -> Tensor:
    return mix(number, *(every[name][place + offset] for name, offset in template))


def chunk_features(tokens: Tokens, width: int) -> ChunkFeatures:
    """Features of every word, and of every chunk of up to ``width`` words; 0 where it would cross a sentence's end."""
    every = {**tokens.word, **tokens.pos}
    words = token_features(tokens)
    edges = torch.stack([_at(every, tokens.place, template, i) for i, template in enumerate(_EDGES, 1000)], 1)
    return ChunkFeatures(words, _span_features(tokens, every, width), edges)


def _span_features(tokens: Tokens, every: dict[str, Tensor], width: int) -> Tensor:
    low, tag, place = every["l"], every["t"], tokens.place
    last = place + torch.minimum(torch.arange(width)[:, None], tokens.room - 1)  # (W, M)
    tags = torch.zeros(len(place), dtype=torch.int64)
    lows, sequences = tags, []
    for w in range(width):
        tags, lows = mix(tags, tag[last[w]]), mix(lows, low[last[w]])
        sequences.append((tags, lows))
    found = []
    for w, (tags, lows) in enumerate(sequences):
        end = last[w]
        before, after, first, final = tag[place - 1], tag[end + 1], tag[place], tag[end]
        parts = [
            mix(2000, w),
            mix(2001, tags),
            mix(2002, lows),
            mix(2003, tags, before, after),
            mix(2004, w, first, final),
            mix(2005, low[place], final),
            mix(2006, first, low[end]),
            mix(2007, before, first, final, after),
            mix(2008, low[place - 1], tags),
            mix(2009, tags, low[end + 1]),
        ]
        inside = (tokens.room > w)[:, None]
        found.append(torch.where(inside, torch.stack(torch.broadcast_tensors(*parts), 1), 0))
    return torch.stack(found, 1)
