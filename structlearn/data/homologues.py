"""Synthetic homologues and decoys, after Joachims (2003): a hidden model of evolution.

A native is a random sequence. Its homologue is what the hidden model makes of it: at every position it inserts a
random letter with probability ``insert``, then deletes the position with probability ``delete``, or else writes the
letter that ``substitution`` [native letter, written letter] draws. Decoys are homologues of other, hidden natives, so
that their letters are as common as the homologue's. The true alignment is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.structures.base import PAD


@dataclass(frozen=True)
class Homologues:
    """A batch of natives x, each with K candidates, the homologue first.

    natives (B, N) and candidates (B, K, M) are letters padded with -100, native_lengths (B,), lengths (B, K) and
    paths (B, N+M) the true alignment of native and homologue; homologue (B,) its index.
    """

    natives: Tensor
    native_lengths: Tensor
    candidates: Tensor
    lengths: Tensor
    paths: Tensor
    homologue: Tensor


@dataclass(frozen=True)
class HiddenModel:
    """How homologues come about: letter frequencies (A,), substitution probabilities (A, A), and the gap rates."""

    frequency: Tensor
    substitution: Tensor
    insert: float
    delete: float

    @classmethod
    def random(
        cls,
        letters: int = 20,
        *,
        keep: float = 0.1,
        relatives: int = 6,
        insert: float = 0.15,
        delete: float = 0.15,
        generator: torch.Generator | None = None,
    ) -> HiddenModel:
        """A letter is kept with probability ``keep``, and else mostly becomes one of a few random relatives."""
        for name, value in (("keep", keep), ("insert", insert), ("delete", delete)):
            if not 0.0 <= value < 1.0:
                raise ArgumentError(name, "a probability in [0, 1)", value, "probabilities are shares")
        weight = torch.full((letters, letters), 0.02)
        for letter in range(letters):
            others = torch.randperm(letters, generator=generator)[:relatives]
            weight[letter, others] += torch.rand(relatives, generator=generator) + 0.5
        weight = weight / weight.sum(1, keepdim=True) * (1.0 - keep)
        frequency = torch.rand(letters, generator=generator) + 0.5
        return cls(frequency / frequency.sum(), weight + keep * torch.eye(letters), insert, delete)

    def draw(
        self, size: int, *, length: int = 50, decoys: int = 10, generator: torch.Generator | None = None
    ) -> Homologues:
        """``size`` natives of ``length`` letters, each with its homologue and ``decoys`` decoys."""
        if size < 1 or length < 1 or decoys < 0:
            raise ArgumentError("size", "at least one native, letter and candidate", size, "ask for more")
        natives, found, true = [], [], []
        for _ in range(size):
            native = self._letters(length, generator)
            homologue, path = self._evolve(native, generator)
            others = [self._evolve(self._letters(length, generator), generator)[0] for _ in range(decoys)]
            natives.append(native)
            found.append([homologue, *others])
            true.append(path)
        lengths = torch.tensor([[len(s) for s in row] for row in found])
        width = int(lengths.max())
        candidates = torch.full((size, 1 + decoys, width), PAD)
        paths = torch.full((size, length + width), PAD)
        for b, row in enumerate(found):
            for k, sequence in enumerate(row):
                candidates[b, k, : len(sequence)] = torch.tensor(sequence, dtype=torch.int64)
            paths[b, : len(true[b])] = torch.tensor(true[b], dtype=torch.int64)
        whole = torch.full((size,), length)
        return Homologues(torch.stack(natives), whole, candidates, lengths, paths, torch.zeros(size, dtype=torch.int64))

    def _letters(self, length: int, generator: torch.Generator | None) -> Tensor:
        return torch.multinomial(self.frequency, length, replacement=True, generator=generator)

    def _evolve(self, native: Tensor, generator: torch.Generator | None) -> tuple[list[int], list[int]]:
        """A homologue's letters and the operations that lead to it."""
        size = len(native)
        chance = torch.rand((size, 2), generator=generator).tolist()
        written = torch.multinomial(self.substitution[native], 1, generator=generator).flatten().tolist()
        fresh = self._letters(size, generator).tolist()
        letters, path = [], []
        for t in range(size):
            if chance[t][0] < self.insert:
                letters.append(fresh[t])
                path.append(2)
            if chance[t][1] < self.delete:
                path.append(1)
            else:
                letters.append(written[t])
                path.append(0)
        return letters, path
