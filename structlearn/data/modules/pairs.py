"""Pairs of aligned sequences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from structlearn.data.codecs.pairs import AligningCodec
from structlearn.data.fasta import AlignedPair, read_pairs
from structlearn.data.homologues import HiddenModel
from structlearn.data.modules.base import TaskData
from structlearn.data.substitution import AMINO_ACIDS

_MODEL_SEED = 17  # one hidden model of evolution for all stages


class AligningData(TaskData):
    """FASTA or A3M files of aligned pairs, see :mod:`structlearn.data.fasta`; generated with no ``train``.

    Args:
        train, validation, test, batch_size, examples, seed, workers: see :class:`TaskData`.
        alphabet: the letters; others are unknown, which is the last one.
        length: of generated sequences.
    """

    def __init__(
        self,
        train: Path | str | None = None,
        validation: Path | str | None = None,
        test: Path | str | None = None,
        *,
        alphabet: str = AMINO_ACIDS + "X",
        length: int = 25,
        batch_size: int = 16,
        examples: int | None = None,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        super().__init__(train, validation, test, batch_size=batch_size, examples=examples, seed=seed, workers=workers)
        self.alphabet, self.length = alphabet, length

    def read(self, path: Path) -> list[AlignedPair]:
        return read_pairs(path)

    def generate(self, count: int, seed: int) -> list[AlignedPair]:
        hidden = HiddenModel.random(keep=0.4, generator=torch.Generator().manual_seed(_MODEL_SEED))
        drawn = hidden.draw(count, length=self.length, decoys=0, generator=torch.Generator().manual_seed(seed))
        pairs = []
        for i in range(count):
            x = "".join(AMINO_ACIDS[c] for c in drawn.natives[i].tolist())
            y = "".join(AMINO_ACIDS[c] for c in drawn.candidates[i, 0, : int(drawn.lengths[i, 0])].tolist())
            path = tuple(op for op in drawn.paths[i].tolist() if op >= 0)
            pairs.append(AlignedPair(f"native{i}", f"homologue{i}", x, y, path, (True,) * len(path)))
        return pairs

    def make_codec(self, examples: Sequence[AlignedPair]) -> AligningCodec:
        return AligningCodec(self.alphabet)
