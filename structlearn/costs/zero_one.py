"""[y != gold]."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from structlearn.costs.base import Cost
from structlearn.structures import Structure


class ZeroOne(Cost):
    """Delta(gold, y) = 0 if y = gold, else 1: any mistake costs the same."""

    binary: ClassVar[bool] = True

    def __call__(self, structure: Structure, gold: Any, y: Any) -> Tensor:
        dtype = next(iter(structure.potentials.values())).dtype
        return (~structure.same_output(gold, y)).to(dtype)
