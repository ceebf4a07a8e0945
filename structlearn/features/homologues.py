"""Which of several sequences is the native's homologue, each scored by its own best alignment.

    s(t) = max_a <w, Psi(x, z_t, a)>,   or <w, Psi(x, z_t, a_t)> for the one whose alignment a_t is given,

so with the homologue's alignment given, the hinge max(0, 1 + max_{t, a} <w, Psi(x, z_t, a)> - <w, Psi(x, z, a_z)>) is
convex in w, and Psi of a candidate is that of its best alignment.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from structlearn.errors import ShapeError
from structlearn.features.alignment import AlignmentMap, EncoderAlignmentMap
from structlearn.features.base import FeatureMap
from structlearn.structures import Alignment, Candidates
from structlearn.structures.base import PAD


class HomologueMap(nn.Module):
    """Natives (B, N) and candidates (B, K, M) to :class:`Candidates` over each native's own candidates.

    Args:
        alignment: the map that scores the alignments of a native with a candidate.
    """

    def __init__(self, alignment: AlignmentMap | EncoderAlignmentMap) -> None:
        super().__init__()
        self.alignment = alignment

    def alignments(self, native: Tensor, candidates: Tensor, lengths: tuple[Tensor, Tensor] | None = None) -> Alignment:
        """All B K pairs as one batch of alignments; ``lengths`` are those of natives (B,) and candidates (B, K)."""
        if candidates.dim() < 3 or candidates.shape[0] != native.shape[0]:
            raise ShapeError(
                "candidates", f"(B, K, M) with B={native.shape[0]}", tuple(candidates.shape), "K sequences a native"
            )
        k = candidates.shape[1]
        both = None if lengths is None else (lengths[0].repeat_interleave(k), lengths[1].flatten())
        return self.alignment((native.repeat_interleave(k, 0), candidates.flatten(0, 1)), both)

    def forward(
        self,
        native: Tensor,
        candidates: Tensor,
        lengths: tuple[Tensor, Tensor] | None = None,
        *,
        homologue: Tensor | None = None,
        path: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Candidates:
        """The scores of all candidates; ``mask`` (B, K) says which there are.

        With ``homologue`` (B,) and its alignment ``path`` (B, N+M) that candidate scores what its given alignment
        does, as learning wants.
        """
        s = self.alignments(native, candidates, lengths)
        b, k = candidates.shape[:2]
        scores = s.max().view(b, k)
        if homologue is not None and path is not None:
            given = torch.arange(k, device=native.device) == homologue[:, None]
            placed = torch.where(given[..., None], path[:, None], PAD).flatten(0, 1)
            some = s.argmax() if bool((~given).any()) else placed
            fixed = s.score(torch.where(given.flatten()[:, None], placed, some)).view(b, k)
            scores = torch.where(given, fixed, scores)
        return Candidates(scores, mask=mask)


class Family(NamedTuple):
    """Inputs of :class:`HomologueChoiceMap`: letters (B, N), lengths (B,), candidates (B, K, M), their lengths (B, K).

    paths (B, N+M): the alignment of the candidate ``chosen`` (B,), or all -100 where none is known.
    """

    natives: Tensor
    native_lengths: Tensor
    candidates: Tensor
    lengths: Tensor
    paths: Tensor
    chosen: Tensor

    def unaligned(self) -> Family:
        """The same without alignments, as it is when the homologue is not known."""
        return self._replace(paths=torch.full_like(self.paths, PAD))


class HomologueChoiceMap(FeatureMap):
    """A :class:`Family` to :class:`Candidates`, with the head of an :class:`AlignmentMap`, for the exact solvers.

    Args:
        alignment: the map that scores the alignments of a native with a candidate.
    """

    def __init__(self, alignment: AlignmentMap) -> None:
        super().__init__(alignment.in_features, None)
        self.inner = HomologueMap(alignment)
        self.head = tuple(f"inner.alignment.{name}" for name in alignment.head)

    def forward(self, x: Family, lengths: None = None) -> Candidates:
        """The scores of all candidates."""
        known = (x.paths != PAD).any(1)
        chosen = torch.where(known, x.chosen, -1)
        sizes = x.native_lengths, x.lengths
        return self.inner(x.natives, x.candidates, sizes, homologue=chosen, path=x.paths)

    def histograms(self, x: Family, y: Tensor, lengths: None = None) -> list[Tensor]:
        rows = torch.arange(len(y), device=y.device)
        pair, sizes = (x.natives, x.candidates[rows, y]), (x.native_lengths, x.lengths[rows, y])
        best = self.inner.alignment(pair, sizes).argmax()
        given = (x.paths != PAD).any(1) & (y == x.chosen)
        return self.inner.alignment.histograms(pair, torch.where(given[:, None], x.paths, best), sizes)
