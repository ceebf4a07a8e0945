"""One step of learning by search: find the errors of a batch and move the weights along them, at once or together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch import Tensor

from structlearn.data.processes import processes
from structlearn.errors import ArgumentError
from structlearn.search.comparison import compare
from structlearn.search.space import SearchSpace
from structlearn.search.updates import ALMA, Perceptron, Update
from structlearn.search.violations import Rescore, Violations, laso, lattice

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
        immediate: of "laso" and "lattice": weights move at every error, and the search goes on under the new ones, as
            published; else once for all errors of a batch. The sentences of a batch are searched side by side, and
            those that err at the same word share an update: batches of one sentence are the published algorithm.
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
        immediate: bool = False,
    ) -> None:
        if immediate and strategy not in ("laso", "lattice"):
            remedy = "early, max-violation and standard updates are made when a search is over"
            raise ArgumentError("immediate", "False with this strategy", f"True with {strategy!r}", remedy)
        self.beam, self.strategy, self.recombine, self.immediate = beam, strategy, recombine, immediate
        self.update: Update = ALMA(weights, alpha=alpha) if update == "alma" else Perceptron(weights)

    def __call__(self, make: Callable[[], SearchSpace[Any]], gold: Any, *, weight: float = 1.0) -> Violations:
        """One step on a batch; what was found before it.

        ``make`` gives the space under the weights as they are. ``weight`` 0 keeps step with other processes, no more.
        """
        if self.immediate:
            return self._at_every_error(make, gold, weight)
        violations = self._violations(make(), gold)
        if weight == 0.0:
            violations = violations._replace(value=violations.value * 0.0, errors=violations.errors * 0)
        self.update(violations)
        return violations

    def _violations(self, space: SearchSpace[Any], gold: Any, rescore: Rescore | None = None) -> Violations:
        margin = self.update.margin
        if self.strategy == "lattice":
            return lattice(space, gold, margin=margin, rescore=rescore)
        if self.strategy == "laso":
            return laso(space, gold, self.beam, margin=margin, recombine=self.recombine, rescore=rescore)
        return compare(space, gold, self.beam, strategy=self.strategy, margin=margin, recombine=self.recombine)

    def _at_every_error(self, make: Callable[[], SearchSpace[Any]], gold: Any, weight: float) -> Violations:
        if processes() > 1:
            remedy = "processes meet different errors at different times; train on one, or update once for a batch"
            raise ArgumentError("immediate", "False where several processes train together", True, remedy)

        def rescore(violations: Violations) -> tuple[SearchSpace[Any], float]:
            self.update.move(violations)
            return make(), self.update.margin

        violations = self._violations(make(), gold, None if weight == 0.0 else rescore)
        self.update.count_call()
        return violations
