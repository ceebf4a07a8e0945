"""How a cost tells inference what it can exploit.

The most violated output maximises a function of s(y) and Delta(gold, y) together, and how to do that exactly
depends on how Delta decomposes:

===========  ==========================================================================  =====================
method       Delta(gold, y) is                                                           exact inference
===========  ==========================================================================  =====================
additive     constant + a sum over the parts of y, given in the fields of the potentials  one plain DP (margin)
counted      a function of one or two small integer statistics that add up over parts    count-augmented DP
enumerated   given for each output of a small space                                      enumeration
binary       0 at gold and 1 elsewhere                                                   the two best outputs
===========  ==========================================================================  =====================

A cost defines ``__call__`` and overrides those that apply; a cost that overrides none is opaque.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.structures import Structure
from structlearn.structures.counting import Counter, LabelCounter


@dataclass(frozen=True)
class Additive:
    """Delta(gold, y) = constant + sum of parts over the parts of y.

    ``parts`` maps names of potentials to tensors that can be added to them; ``constant`` is (B,) or 0.
    """

    parts: dict[str, Tensor]
    constant: Tensor | float = 0.0


@dataclass(frozen=True)
class Counted:
    """Delta(gold, y) = values[statistics of y].

    ``counter`` says how the statistics add up over the parts of y (a :class:`Counter` in the fields of the
    potentials, or what else the structure's ``best_by_count`` takes); ``values`` is (B, S1) or (B, S1, S2).
    """

    counter: Counter | LabelCounter
    values: Tensor


class Cost(ABC):
    """Delta(gold, y) >= 0, (B,), with Delta(gold, gold) = 0; the page of the module says how a cost decomposes."""

    binary: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, structure: Structure, gold: Any, y: Any) -> Tensor:
        """Delta(gold, y) for each instance, (B,); y may have leading axes, which the result then has too."""

    def additive(self, structure: Structure, gold: Any) -> Additive | None:
        """The cost as a sum over parts, or None."""
        return None

    def counted(self, structure: Structure, gold: Any) -> Counted | None:
        """The cost as a function of counts, or None."""
        return None

    def enumerated(self, structure: Structure, gold: Any) -> Tensor | None:
        """The cost of every output of a small space, (K, B), or None; asked where the structure enumerates."""
        outputs = structure.enumerate()
        return None if outputs is None else self(structure, gold, outputs)

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_") and v is not None)
        return f"{type(self).__name__}({given})"


def check_weight(name: str, weight: Tensor | None) -> None:
    """Weights of a cost must be finite and not negative."""
    if weight is None:
        return
    if bool((weight < 0).any()) or not bool(weight.isfinite().all()):
        bad = weight[(weight < 0) | ~weight.isfinite()][0]
        raise ArgumentError(name, "finite weights >= 0", float(bad), "a cost below 0 would reward mistakes")
