"""Joint features of the alignment of two sequences.

    Psi((x, z), y) = histogram of y's operations: substitutions (a, b), gap positions, and openings if affine,
    s(y) = sum_{matches} W[x_i, z_j] + sum_{gaps of length k} (open + (k-1) gap),

or, with encoders in front, match[i, j] = f(x)_i^T W g(z)_j.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.data.substitution import AMINO_ACIDS, substitution_table
from structlearn.errors import DTypeError, LabelError, ShapeError
from structlearn.features.base import FeatureMap, counted, one_output, zero_beyond
from structlearn.ops._register import is_eager
from structlearn.structures import Alignment, paths
from structlearn.structures.alignment import Mode
from structlearn.structures.checks import check_lengths, unpadded

Lengths = tuple[Tensor | Sequence[int] | None, Tensor | Sequence[int] | None] | None


class _PairMap(FeatureMap):
    """What both maps share: two sequences in, gap parameters, an :class:`Alignment` out."""

    gap: nn.Parameter
    gap_open: nn.Parameter | None

    def __init__(
        self, in_features: int, gap: float, gap_open: float | None, mode: Mode, band: int | None, head: str
    ) -> None:
        super().__init__(in_features, None)
        self.mode: Mode = mode
        self.band = band
        self.gap = nn.Parameter(torch.tensor(float(gap)))
        self.gap_open = None if gap_open is None else nn.Parameter(torch.tensor(float(gap_open)))
        self.head = (head, "gap") if gap_open is None else (head, "gap", "gap_open")

    def structure(self, match: Tensor, lengths: Lengths) -> Alignment:
        """The alignments with these match scores (B, N, M)."""
        x_lengths, y_lengths = (None, None) if lengths is None else lengths
        return Alignment(
            match,
            gap=self.gap,
            gap_open=self.gap_open,
            mode=self.mode,
            x_lengths=x_lengths,
            y_lengths=y_lengths,
            band=self.band,
        )


class AlignmentMap(_PairMap):
    """(x (B, N), z (B, M)) letters to an :class:`Alignment` with match[i, j] = W[x_i, z_j].

    Args:
        num_letters: A, size of the alphabet; letters are integers 0..A-1, and anything at padded places.
        gap, gap_open: where the gap parameters start; linear gaps, one parameter, if gap_open is None.
        mode, band: of the alignment.

    Weights: ``substitution`` (A, A), ``gap`` () and, if affine, ``gap_open`` (); ``joint`` is their histogram. Called
    as ``map((x, z), (x_lengths, z_lengths))``.
    """

    def __init__(
        self,
        num_letters: int = 20,
        *,
        gap: float = -1.0,
        gap_open: float | None = None,
        mode: Mode = "global",
        band: int | None = None,
    ) -> None:
        super().__init__(num_letters, gap, gap_open, mode, band, "substitution")
        self.substitution = nn.Parameter(torch.zeros(num_letters, num_letters))

    @classmethod
    def from_table(
        cls,
        table: str | Tensor,
        *,
        alphabet: str = AMINO_ACIDS,
        gap: float = -1.0,
        gap_open: float | None = -11.0,
        mode: Mode = "global",
        band: int | None = None,
    ) -> AlignmentMap:
        """Starts from "BLOSUM62", "PAM250" or any (A, A) tensor; the gap scores are BLOSUM62's usual ones."""
        scores = substitution_table(table, alphabet) if isinstance(table, str) else table
        if scores.dim() != 2 or scores.shape[0] != scores.shape[1]:
            raise ShapeError("table", "(A, A)", tuple(scores.shape), "one score for every pair of letters")
        found = cls(scores.shape[0], gap=gap, gap_open=gap_open, mode=mode, band=band)
        with torch.no_grad():
            found.substitution.copy_(scores)
        return found

    def forward(self, x: tuple[Tensor, Tensor], lengths: Lengths = None) -> Alignment:  # type: ignore[override]
        """The scores of all alignments of each pair."""
        first, second = x
        x_lengths, y_lengths = (None, None) if lengths is None else lengths
        rows = self._letters("x[0]", first, x_lengths)
        columns = self._letters("x[1]", second, y_lengths)
        # W[x] first: a (B, N, A) gather and one along letters cost less than indexing with (B, N, M) pairs.
        by_letter = self.substitution[rows]
        match = by_letter.gather(2, columns[:, None, :].expand(-1, rows.shape[1], -1))
        return self.structure(match, lengths)

    def histograms(self, x: tuple[Tensor, Tensor], y: Tensor, lengths: Lengths = None) -> list[Tensor]:
        if self.mode != "global":
            return super().histograms(x, y, lengths)
        first, second = x
        (b, size), other = first.shape, second.shape[1]
        given = (None, None) if lengths is None else lengths
        n, m = (
            torch.full((b,), full, device=y.device) if found is None else torch.as_tensor(found, device=y.device)
            for found, full in zip(given, (size, other), strict=True)
        )
        y = one_output(y, (b, size + other), first.device)
        steps = paths.read(y, n, m)
        match, gap = (steps.op == paths.MATCH) & steps.real, (steps.op != paths.MATCH) & steps.real
        letters = self._letters("x[0]", first, given[0]).gather(1, steps.i.clamp(max=size - 1))
        others = self._letters("x[1]", second, given[1]).gather(1, steps.j.clamp(max=other - 1))
        shape = self.in_features, self.in_features
        dtype = self.substitution.dtype
        pairs = counted(match, letters * self.in_features + others, shape, dtype)
        if self.gap_open is None:
            return [pairs, gap.sum(1).to(dtype)]
        opened = gap.clone()
        opened[:, 1:] &= steps.op[:, 1:] != steps.op[:, :-1]
        return [pairs, (gap & ~opened).sum(1).to(dtype), opened.sum(1).to(dtype)]

    def _letters(self, name: str, tokens: Tensor, lengths: Tensor | Sequence[int] | None) -> Tensor:
        """Letters with 0 at padded places."""
        if tokens.dim() != 2:
            raise ShapeError(name, "(B, N)", tuple(tokens.shape), "pad the sequences of a batch to one length")
        if tokens.is_floating_point() or tokens.dtype is torch.bool:
            raise DTypeError(name, "integer letters", tokens.dtype, "encode the sequences with an alphabet")
        b, size = tokens.shape
        inside = unpadded(check_lengths("lengths", lengths, b, size, tokens.device), b, size, tokens.device)
        kept = tokens.long().masked_fill(~inside, 0)
        if is_eager(kept):
            bad = (kept < 0) | (kept >= self.in_features)
            if bool(bad.any()):
                place = tuple(bad.nonzero()[0].tolist())
                got = f"{int(kept[place])} at {place}"
                raise LabelError(name, f"letters in 0..{self.in_features - 1} at unpadded places", got, "see lengths")
        return kept


class EncoderAlignmentMap(_PairMap):
    """(x, z) to an :class:`Alignment` with match[i, j] = f(x)_i^T W g(z)_j, the similarity of two encoders.

    Args:
        in_features: F, size of both encoders' outputs (B, N, F) and (B, M, F).
        encoder: f, and g too unless ``other`` is given.
        gap, gap_open, mode, band: as in :class:`AlignmentMap`.

    Weights: ``similarity`` (F, F), the identity over sqrt(F) at the start, ``gap`` and, if affine, ``gap_open``.
    """

    def __init__(
        self,
        in_features: int,
        encoder: nn.Module,
        *,
        other: nn.Module | None = None,
        gap: float = -1.0,
        gap_open: float | None = None,
        mode: Mode = "global",
        band: int | None = None,
    ) -> None:
        super().__init__(in_features, gap, gap_open, mode, band, "similarity")
        self.encoder = encoder
        self.other = other
        self.similarity = nn.Parameter(torch.eye(in_features) / in_features**0.5)

    def forward(self, x: tuple[Any, Any], lengths: Lengths = None) -> Alignment:  # type: ignore[override]
        """The scores of all alignments of each pair."""
        first = self.features(x[0], 3)
        second = self.features(x[1], 3) if self.other is None else self.other(x[1])
        if second.dim() != 3 or second.shape[-1] != self.in_features:
            raise ShapeError(
                "x[1]", f"(B, M, {self.in_features}) after the encoder", tuple(second.shape), "check in_features"
            )
        if lengths is not None:
            first, second = (
                zero_beyond(phi, check_lengths(name, given, phi.shape[0], phi.shape[1], phi.device))
                for name, phi, given in zip(("x_lengths", "y_lengths"), (first, second), lengths, strict=True)
            )
        return self.structure(first @ self.similarity @ second.mT, lengths)
