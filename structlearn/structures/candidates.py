"""One choice among an instance's own candidates: n-best lists, homologues and decoys.

Y = the candidates that the mask allows, s(y) = scores[y]: :class:`Categorical` with a number of outputs that differs
between instances.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from structlearn.errors import DTypeError, ShapeError
from structlearn.structures import checks
from structlearn.structures.categorical import Categorical


class Candidates(Categorical):
    """s(y) = scores[y] for candidates y in 0..M-1 with mask[y].

    Args:
        scores: (B, M) score of each candidate, M >= 1; whatever stands where the mask is false is never read.
        mask: (B, M) bool, true where there is a candidate; everywhere if not given.
        validate: look for NaN and for scores above finfo.max / 4, +inf included.

    Outputs are indices (B,), int64. An instance without candidates is infeasible.
    """

    def __init__(
        self, scores: Tensor, *, mask: Tensor | None = None, backend: str = "auto", validate: bool = False
    ) -> None:
        checks.check_tensor("scores", scores, 2, "(B, M)")
        if mask is not None:
            if mask.dtype is not torch.bool:
                raise DTypeError("mask", "bool", mask.dtype, "compare with something, or convert with .bool()")
            if mask.shape != scores.shape:
                raise ShapeError(
                    "mask", f"(B, M) = {tuple(scores.shape)}, as scores", tuple(mask.shape), "one flag a candidate"
                )
        scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        super().__init__(scores, backend=backend, validate=validate)
        self.mask = mask

    def replace(self, **potentials: Tensor | None) -> Self:
        return type(self)(**self._given(potentials), mask=self.mask, backend=self.backend)  # type: ignore[arg-type]
