"""Sentences as numbered tokens with binary features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from structlearn.data.conll import Sentence

BLOCK = 2048


class Tokens:
    """All tokens of some sentences in one row, with labels and a sparse matrix (T, F) of features."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self.names = sorted({tag for s in sentences for tag in s.chunks})
        self.words = [s.words for s in sentences]
        label = {name: i for i, name in enumerate(self.names)}
        self.labels = [torch.tensor([label[tag] for tag in s.chunks]) for s in sentences]
        ends = torch.tensor([len(s.words) for s in sentences]).cumsum(0).tolist()
        self.starts = [0, *ends[:-1]]
        self.total: int = ends[-1]
        self.features = _matrix([described(s.words, t) for s in sentences for t in range(len(s.words))])

    def __len__(self) -> int:
        return len(self.words)

    def numbers(self, i: int) -> Tensor:
        """The tokens of sentence i."""
        return torch.arange(self.starts[i], self.starts[i] + len(self.words[i]))


def spelling(word: str) -> str:
    """Capital, digits, other signs, as a class."""
    shape = "".join("A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else "." for c in word)
    squeezed = [c for i, c in enumerate(shape) if i == 0 or c != shape[i - 1]]
    return "".join(squeezed[:5])


def described(words: Sequence[str], t: int) -> list[str]:
    """Names of the features of token t: word, spelling, beginning and ending, and both neighbours."""
    word = words[t].lower()
    found = [
        f"w={word}",
        f"s={spelling(words[t])}",
        f"e={word[-3:]}",
        f"e={word[-2:]}",
        f"b={word[:3]}",
        f"b={word[:2]}",
    ]
    for step in (-1, 1):
        inside = 0 <= t + step < len(words)
        other = words[t + step] if inside else ""
        found += [f"{step}w={other.lower()}", f"{step}s={spelling(other)}"]
    return found


def _matrix(rows: Sequence[Sequence[str]]) -> Any:
    from scipy import sparse

    column: dict[str, int] = {}
    places = [
        (i, column.setdefault(name, len(column))) for i, names in enumerate(rows) for name in dict.fromkeys(names)
    ]
    first, second = zip(*places, strict=True)
    return sparse.csr_matrix(([1.0] * len(places), (first, second)), shape=(len(rows), len(column)), dtype="float32")


def polynomial_gram(features: Any, degree: int, known: int | None = None) -> Tensor:
    """(1 + <x, z>)^degree between all T tokens and the first ``known`` of them, (T, known) float32."""
    others = features[:known].T.tocsc()
    # Most tokens share a feature: a sparse product of all of them would be larger than the dense result.
    blocks = [(features[i : i + BLOCK] @ others).toarray() for i in range(0, features.shape[0], BLOCK)]
    return (torch.cat([torch.from_numpy(block) for block in blocks]) + 1.0).pow_(degree)
