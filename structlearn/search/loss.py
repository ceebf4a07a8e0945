"""Beam-search optimisation: violations of a margin along the beam, as a loss for any encoder.

    L = (1/B) sum over errors of   m - g(best y-good) + g(lowest of the queue),

an error wherever the y-good hypotheses, lowered by the margin m, fall off the beam, and at the end where one is not
first by m (there against the first). The search goes on from the y-good siblings, as in LaSO. It is the sum of hinges
that the search meets, and its subgradient reaches the encoder through the scores of the space.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from structlearn.errors import ArgumentError
from structlearn.search.space import SearchSpace
from structlearn.search.violations import Violations, laso


class BeamSearchLoss(nn.Module):
    """L = (1/B) sum over errors of m - g(best y-good) + g(lowest of the queue), () for a batch of search problems.

    Called as ``loss(space, gold)``; the module's page says what an error is.

    Args:
        beam: K.
        margin: m.
        recombine: of hypotheses of one layer with equal futures keep the best alone.
    """

    def __init__(self, beam: int, *, margin: float = 1.0, recombine: bool = False) -> None:
        super().__init__()
        if beam < 1:
            raise ArgumentError("beam", "an integer >= 1", beam, "beam 1 is greedy search")
        if margin <= 0:
            raise ArgumentError("margin", "a number above 0", margin, "1 is usual: the scores set the scale")
        self.beam, self.margin, self.recombine = beam, margin, recombine

    def violations(self, space: SearchSpace[Any], gold: Any) -> Violations:
        """The errors that make up the loss."""
        return laso(space, gold, self.beam, margin=self.margin, recombine=self.recombine, against="last")

    def value(self, found: Violations, batch_size: int) -> Tensor:
        """L of the errors found."""
        return (self.margin * found.errors.sum() - found.value) / batch_size

    def forward(self, space: SearchSpace[Any], gold: Any) -> Tensor:
        """L, (); ``gold`` in the form that the space takes, (B, ...)."""
        return self.value(self.violations(space, gold), space.batch_size)
