"""Beam-search optimisation as a loss on structures, for tasks."""

from __future__ import annotations

from torch import Tensor, nn

from structlearn.search.loss import BeamSearchLoss
from structlearn.search.spaces.structures import space_of
from structlearn.structures import Structure


class StructureBeamLoss(nn.Module):
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
        """The loss of a structure that :func:`space_of` knows, (); gold as the structure takes it."""
        return self._loss(space_of(structure), gold)
