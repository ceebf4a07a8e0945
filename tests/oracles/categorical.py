"""One class among K."""

from __future__ import annotations

import numpy as np

from . import Row


def rows(scores: np.ndarray) -> list[Row]:
    """One :class:`Row` for each line of scores (B, K); ties go to the lowest class."""
    classes = range(scores.shape[1])
    return [Row([(k,) for k in classes], [[("scores", (k,))] for k in classes], {"scores": line}) for line in scores]
