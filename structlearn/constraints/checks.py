"""Which of several conjuncts outputs keep, those that count labels all at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from structlearn.constraints.atoms import SLACK, Linear
from structlearn.constraints.language import Bools, Constraint, Ints, Labels, Spans


class Checks:
    """Conjuncts ready to be asked about many outputs; keep it, for it stores a table of what labels weigh."""

    def __init__(self, conjuncts: Sequence[Constraint], labels: Labels) -> None:
        self.conjuncts, self.labels = tuple(conjuncts), labels
        sums = {i: part for i, part in enumerate(self.conjuncts) if isinstance(part, Linear) and not part.placed}
        self._counted = np.array(list(sums), dtype=np.int64)
        self._others = [i for i in range(len(self.conjuncts)) if i not in sums]
        if sums:
            self._weights = np.stack([part.by_label(labels) for part in sums.values()], 1)
            self._low, self._high = np.array([part.limits for part in sums.values()]).T

    def kept(self, y: Ints, spans: Spans | None) -> Bools:
        """(R, conjuncts): whether outputs y (R, N), padded with C, keep each; spans of R rows or of one."""
        found = np.empty((len(y), len(self.conjuncts)), dtype=bool)
        if len(self._counted):
            sums = self._weights[y].sum(1)
            found[:, self._counted] = (sums >= self._low - SLACK) & (sums <= self._high + SLACK)
        for i in self._others:
            found[:, i] = self.conjuncts[i].satisfied(y, self.labels, spans)
        return found
