"""One step of learning by search: find the errors of a batch, then move the weights along them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor

from structlearn.search.comparison import compare
from structlearn.search.space import SearchSpace
from structlearn.search.updates import ALMA, Perceptron, Update
from structlearn.search.violations import Violations, laso, lattice

When = Literal["laso", "early", "max_violation", "standard", "lattice"]
How = Literal["alma", "perceptron"]


class SearchSteps:
    """w <- w + update(Δ), Δ the violations of a beam search for gold.

    Args:
        weights: tensors that the scores of spaces are linear in.
        beam: K.
        strategy: when to update; "lattice" trains with exact search, whatever the beam.
        update: how to update.
        alpha: of ALMA.
        recombine: of hypotheses with equal futures keep the best alone.
    """

    def __init__(
        self,
        weights: Iterable[Tensor],
        *,
        beam: int = 10,
        strategy: When = "laso",
        update: How = "alma",
        alpha: float = 0.9,
        recombine: bool = False,
    ) -> None:
        self.beam, self.strategy, self.recombine = beam, strategy, recombine
        self.update: Update = ALMA(weights, alpha=alpha) if update == "alma" else Perceptron(weights)

    def __call__(self, space: SearchSpace[Any], gold: Any, *, weight: float = 1.0) -> Violations:
        """One step on a batch; what was found before it. ``weight`` 0 keeps step with other processes, no more."""
        options: dict[str, Any] = {"margin": self.update.margin, "recombine": self.recombine}
        if self.strategy == "laso":
            found = laso(space, gold, self.beam, **options)
        elif self.strategy == "lattice":
            found = lattice(space, gold, margin=self.update.margin)
        else:
            found = compare(space, gold, self.beam, strategy=self.strategy, **options)
        if weight == 0.0:
            found = found._replace(value=found.value * 0.0, errors=found.errors * 0)
        self.update(found)
        return found
