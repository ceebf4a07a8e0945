"""Pairs of gold's alignment that are missed.

    Delta(gold, y) = G - |pairs(gold) & pairs(y)|,   G = |pairs(gold)|,   or that divided by G: 1 - Q.

With h(y) the number of gold's pairs that y has, Delta is a constant minus a sum over y's matches, and a function of
the one count h, so both rescalings are exact in every mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from structlearn.costs.base import Additive, Cost, Counted
from structlearn.errors import ArgumentError
from structlearn.structures import Alignment, Structure
from structlearn.structures.counting import Counter


class AlignedPairs(Cost):
    """Delta(gold, y) = share of gold's aligned pairs that y misses, 1 - Q; their number with ``normalize=False``.

    For alignments in every mode; an empty gold costs 0 whatever y is.
    """

    def __init__(self, *, normalize: bool = True) -> None:
        self.normalize = normalize

    def _found(self, structure: Structure, y: Tensor) -> tuple[Tensor, Tensor]:
        """The partner in y of every position of x, M where there is none, and whether there is one."""
        if not isinstance(structure, Alignment):
            raise ArgumentError("structure", "an Alignment", type(structure).__name__, "choose a cost made for it")
        partner, matched, _, _ = structure.positions(y)
        return partner, matched

    def _weight(self, structure: Structure, matched: Tensor) -> tuple[Tensor, Tensor]:
        """Gold's number of pairs and the cost of missing one, (B,)."""
        dtype = next(iter(structure.potentials.values())).dtype
        pairs = matched.sum(-1).to(dtype)
        return pairs, 1.0 / pairs.clamp(min=1.0) if self.normalize else torch.ones_like(pairs)

    def __call__(self, structure: Structure, gold: Tensor, y: Tensor) -> Tensor:
        partner, matched = self._found(structure, gold)
        missed = matched & (self._found(structure, y)[0] != partner)
        pairs, weight = self._weight(structure, matched)
        # The same rounding as in counted(): a number of pairs times a weight.
        return missed.sum(-1).to(pairs.dtype) * weight

    def _hits(self, structure: Structure, partner: Tensor, matched: Tensor) -> Tensor:
        """(B, N, M) bool: gold's pairs."""
        columns = structure.potentials["match"].shape[2]
        places = torch.arange(columns, device=partner.device)
        return (partner[..., None] == places) & matched[..., None]

    def additive(self, structure: Structure, gold: Tensor) -> Additive:
        partner, matched = self._found(structure, gold)
        pairs, weight = self._weight(structure, matched)
        hits = self._hits(structure, partner, matched)
        return Additive({"match": hits * -weight[:, None, None]}, pairs * weight)

    def counted(self, structure: Structure, gold: Tensor) -> Counted:
        partner, matched = self._found(structure, gold)
        pairs, weight = self._weight(structure, matched)
        size = int(pairs.max()) + 1 if pairs.numel() else 1
        missed = (pairs[:, None] - torch.arange(size, device=pairs.device, dtype=pairs.dtype)).clamp(min=0.0)
        hits = self._hits(structure, partner, matched)
        return Counted(Counter(({"match": hits.long()},), (size,)), missed * weight[:, None])
