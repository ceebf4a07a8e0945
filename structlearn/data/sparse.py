"""Sparse binary features at scale: hashed, indexed by what training data hold, summed by an embedding bag.

A feature is a 64-bit hash: of a string, or of other hashes mixed in order, so templates over a whole corpus are a few
vector operations. :class:`FeatureIndex` numbers those that training data hold; row 0 stands for all others and counts
for nothing. With ids (..., J) of the J features that are on,

    SparseBag(ids) = value * sum_j weight[ids_j]   (..., C).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from structlearn.errors import ArgumentError

_BITS = 24
_GOLDEN = -7046029254386353131  # 2^64 / golden ratio, odd: spreads consecutive numbers
_MIX = -4658895280553007687


def hash_strings(strings: Iterable[str]) -> Tensor:
    """(M,) int64, the same in every process."""
    digests = (hashlib.blake2b(s.encode(), digest_size=8).digest() for s in strings)
    return torch.tensor([int.from_bytes(d, "little", signed=True) for d in digests], dtype=torch.int64)


def mix(first: Tensor | int, *others: Tensor | int) -> Tensor:
    """A hash of hashes that minds their order; broadcasts."""
    h = torch.as_tensor(first) * _GOLDEN
    for other in others:
        h = (h ^ (h >> 29)) * _MIX + torch.as_tensor(other)
    h = (h ^ (h >> 32)) * _GOLDEN
    return h ^ (h >> 29)


class FeatureIndex:
    """Numbers 1..F-1 for the features that occur at least ``min_count`` times; 0 for all others.

    Features are told apart by 24 bits of their hash: of a million, a pair in 17 million collides.
    """

    def __init__(self, features: Tensor, *, min_count: int = 1) -> None:
        if min_count < 1:
            raise ArgumentError("min_count", "an integer >= 1", min_count, "1 keeps every feature")
        self._number(torch.bincount(_bucket(features).flatten(), minlength=1 << _BITS) >= min_count)

    def _number(self, known: Tensor) -> None:
        self.rows = torch.where(known, known.cumsum(0), 0).to(torch.int32)
        self.size = int(known.sum()) + 1

    @classmethod
    def of_buckets(cls, buckets: Tensor) -> FeatureIndex:
        """The index that :meth:`buckets` came from."""
        index = cls.__new__(cls)
        known = torch.zeros(1 << _BITS, dtype=torch.bool)
        known[buckets.long()] = True
        index._number(known)
        return index

    def buckets(self) -> Tensor:
        """(F-1,) int32 buckets of the features that have a number, sorted: all that is needed to store the index."""
        return self.rows.nonzero().flatten().to(torch.int32)

    def __call__(self, features: Tensor) -> Tensor:
        """Hashes to row numbers, int32."""
        return self.rows[_bucket(features)]


def _bucket(features: Tensor) -> Tensor:
    return (features >> (63 - _BITS)) & ((1 << _BITS) - 1)


class SparseBag(nn.Module):
    """value * sum_j weight[ids_j]: ids (..., J) in 0..F-1 to (..., C); row 0 is never read.

    Args:
        size: F.
        outputs: C.
        value: what a feature that is on counts. Large margin updates compare a margin with scores, so J features of
            value 1/sqrt(J), vectors of length 1, keep their parameters comparable.
        sparse: gradients as sparse tensors.
    """

    def __init__(self, size: int, outputs: int, *, value: float = 1.0, sparse: bool = True) -> None:
        super().__init__()
        self.sparse = sparse
        self.weight = nn.Parameter(torch.zeros(size, outputs))
        self.value = value

    def forward(self, ids: Tensor) -> Tensor:
        flat = ids.reshape(-1, ids.shape[-1])
        total = embedding_bag(flat, self.weight, mode="sum", sparse=self.sparse, padding_idx=0)
        return (self.value * total).view(*ids.shape[:-1], -1)


def stem(word: str) -> str:
    """An English word, lower-cased, without a common suffix; at least three letters stay."""
    word = word.lower()
    for suffix in ("ations", "ation", "ments", "ingly", "ness", "ment", "ing", "ies", "ied", "ed", "es", "ly", "s"):
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


def case_pattern(word: str) -> str:
    """The kinds of characters, repeats once: "Aa" for "Confidence", "0,0" for "1,000".

    >>> case_pattern("Rockwell-based")
    'Aa-a'
    """
    kinds = ["A" if c.isupper() else "a" if c.islower() else "0" if c.isdigit() else c for c in word]
    return "".join(k for k, before in zip(kinds, ["", *kinds], strict=False) if k != before)
