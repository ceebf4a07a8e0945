"""Label sequences scored by triples of labels, by enumeration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import Part, Row, chain


def rows(second: np.ndarray, lengths: Sequence[int] | None = None, **first_order: np.ndarray) -> list[Row]:
    """One :class:`Row` for each sequence: those of the chain, with a part for every three labels.

    Ties: the lowest pair (label before, label) at the end, where no label before comes last, then the pair before it.
    """
    labels = len(second)

    def pairs(y: Sequence[int]) -> list[tuple[int, int]]:
        return [(y[t - 1] if t else labels, y[t]) for t in reversed(range(len(y)))]

    found = []
    for row in chain.rows(**first_order, lengths=lengths):
        order = sorted(range(len(row.outputs)), key=lambda i: pairs(row.outputs[i]))
        row = Row([row.outputs[i] for i in order], [row.parts[i] for i in order], row.fields)
        parts: list[list[Part]] = [
            [*used, *(("second", y[t - 2 : t + 1]) for t in range(2, len(y)))]
            for y, used in zip(row.outputs, row.parts, strict=True)
        ]
        found.append(Row(row.outputs, parts, {**row.fields, "second": second}))
    return found
