"""Beam-search optimisation of a chain, as a loss on its structure."""

from __future__ import annotations

from torch import Tensor, nn

from structlearn.errors import ArgumentError
from structlearn.search.loss import BeamSearchLoss
from structlearn.search.spaces.tagging import TaggingSpace
from structlearn.structures import LinearChain, Structure


class ChainBeamLoss(nn.Module):
    """loss = mean over sentences of the violations of a beam search from left to right, restarted at each.

    Args:
        beam: K.
        margin: by which the gold prefix must beat the last state of the beam.
    """

    def __init__(self, beam: int = 5, margin: float = 1.0) -> None:
        super().__init__()
        self.beam, self.margin = beam, margin
        self._loss = BeamSearchLoss(beam, margin=margin)

    def forward(self, structure: Structure, gold: Tensor) -> Tensor:
        """The loss of a :class:`LinearChain` for labels (B, N)."""
        if not isinstance(structure, LinearChain) or structure.transition.dim() != 2:
            got = type(structure).__name__
            raise ArgumentError("structure", "a LinearChain with one transition table", got, "use Tagging with order=1")
        space = TaggingSpace(structure.unary, structure.transition, start=structure.start, lengths=structure.lengths)
        return self._loss(space, gold)
