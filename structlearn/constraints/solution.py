"""What a constrained search returns: outputs, and how far they can be trusted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Solution:
    """Best outputs under constraints.

    Attributes:
        y: (B, N) labels, -100 where padded, and in rows for which nothing was found.
        score: (B,) s(y), penalties of soft constraints included; -inf for such rows.
        path: how each instance was solved: "automaton", "enumeration"; of the 0/1 programs "local" (the best label of
            each part broke no constraint), "lp" (the relaxation was whole), "milp" (it branched), "stopped" (no time).
        optimal: (B,) bool: proven best, or proven that there is none.
        bound: (B,) no allowed output scores more.
    """

    y: Tensor
    score: Tensor
    path: tuple[str, ...]
    optimal: Tensor
    bound: Tensor

    @property
    def gap(self) -> Tensor:
        """(B,) (bound - score) / max(1, |score|): 0 where proven best, inf where nothing was found in time."""
        gap = (self.bound - self.score) / self.score.abs().clamp(min=1.0).nan_to_num(posinf=1.0)
        return gap.clamp(min=0.0).masked_fill(self.optimal, 0.0)

    @property
    def found(self) -> Tensor:
        """(B,) bool."""
        return self.score > float("-inf")

    def __str__(self) -> str:
        ways = ", ".join(f"{count} by {path}" for path, count in Counter(self.path).most_common())
        proven = int(self.optimal.sum())
        worst = f", largest gap {float(self.gap.max()):.3g}" if proven < len(self.path) else ""
        return f"{len(self.path)} solved: {ways}; {proven} proven optimal{worst}"
