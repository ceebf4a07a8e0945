"""The most violated output.

With d(y) = s(y) - s(gold) and f(Delta) = Delta, or sqrt(Delta) for the squared penalty,

    margin rescaling:  H(y) = f(Delta(gold, y)) + d(y)
    slack rescaling:   H(y) = f(Delta(gold, y)) * (1 + d(y))

and the most violated output maximises H over all outputs, gold included (H(gold) = 0). Gold's own Delta is 0, so
max H >= 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from structlearn.costs import Cost
from structlearn.errors import ArgumentError, InferenceError
from structlearn.losses import recursion, search
from structlearn.semirings import first_argmax
from structlearn.structures import Structure
from structlearn.structures.counting import Counter

Rescaling = Literal["margin", "slack"]
Inference = Literal["exact", "recursion", "search"]


@dataclass(frozen=True)
class Violation:
    """The most violated output ``y``, ``value`` = H(y) (B,) and ``cost`` = Delta(gold, y) (B,).

    Unpacks into those three. ``exact`` (B,) says for which instances y is proven to maximise H.
    """

    y: Any
    value: Tensor
    cost: Tensor
    exact: Tensor

    def __iter__(self) -> Iterator[Any]:
        return iter((self.y, self.value, self.cost))


def check_options(rescaling: str, inference: str) -> None:
    """Options shared by the loss and the search for violations."""
    if rescaling not in ("margin", "slack"):
        raise ArgumentError(
            "rescaling", "'margin' or 'slack'", repr(rescaling), "margin adds the cost, slack multiplies by it"
        )
    if inference not in ("exact", "recursion", "search"):
        raise ArgumentError("inference", "'exact', 'recursion' or 'search'", repr(inference), "use 'exact'")


def most_violated(
    structure: Structure,
    gold: Any,
    cost: Cost,
    *,
    rescaling: Rescaling = "margin",
    squared: bool = False,
    inference: Inference = "exact",
) -> Violation:
    """argmax_y H(y) for each instance.

    Args:
        structure: the scores.
        gold: the true output, in the structure's own form.
        cost: Delta.
        rescaling: "margin" or "slack".
        squared: use sqrt(Delta), which the squared penalty needs to bound the cost.
        inference: "exact"; "search" by lambda-search, which says where its bound proves the result and counts
            for the rest; "recursion" is the one-best-partial heuristic, kept for comparison.

    The result carries no gradient; :class:`StructuredHinge` differentiates through it.
    """
    check_options(rescaling, inference)
    with torch.no_grad():
        gold_score = gold_scores(structure, gold)
        y, exact = find(structure, gold, cost, gold_score, rescaling, squared, inference)
        delta = cost(structure, gold, y)
        value = objective(delta, structure.score(y) - gold_score, rescaling, squared)
    return Violation(y, value, delta, exact)


def objective(delta: Tensor, difference: Tensor, rescaling: str, squared: bool) -> Tensor:
    """H from Delta and d = s(y) - s(gold)."""
    size = delta.sqrt() if squared else delta
    return size + difference if rescaling == "margin" else size * (1.0 + difference)


def gold_scores(structure: Structure, gold: Any) -> Tensor:
    """s(gold), which must be finite."""
    if not isinstance(structure, Structure):
        remedy = "make one of the scores, e.g. LinearChain(unary, transition)"
        raise ArgumentError("structure", "a structlearn.Structure", type(structure).__name__, remedy)
    score = structure.score(gold)
    if score.device.type == "cpu" and not torch.compiler.is_compiling() and score.numel():
        structure.require_allowed("gold", gold, score)
    return score


def find(
    structure: Structure, gold: Any, cost: Cost, gold_score: Tensor, rescaling: str, squared: bool, inference: str
) -> tuple[Any, Tensor]:
    """The most violated output and where it is proven so, (B,)."""
    proven = torch.ones_like(gold_score, dtype=torch.bool)
    if gold_score.shape[0] == 0:
        return structure.padded(gold), proven
    if inference == "recursion":
        return recursion.heuristic(structure, gold, cost, gold_score, rescaling, squared), ~proven
    if (listed := cost.enumerated(structure, gold)) is not None:
        return _by_enumeration(structure, listed, gold_score, rescaling, squared), proven
    if cost.binary:
        return _by_two_best(structure, gold, gold_score), proven
    plain = rescaling == "margin" and not squared
    if inference == "search" and not plain:
        return search.find(structure, gold, cost, gold_score, rescaling, squared)
    if plain and (additive := cost.additive(structure, gold)) is not None:
        return structure.plus(additive.parts).argmax(), proven
    native = search.on_chain(structure, gold, cost, gold_score, rescaling, squared, rounds=0)
    if native is not None:
        return native
    if (counted := cost.counted(structure, gold)) is not None:
        if inference == "search" and isinstance(counted.counter, Counter):
            return search.find(structure, gold, cost, gold_score, rescaling, squared)
        size = counted.values.sqrt() if squared else counted.values
        shift = gold_score.view(-1, *[1] * (size.dim() - 1))
        if rescaling == "margin":
            offset, slope = size - shift, torch.ones_like(size)
        else:
            # The maximiser in units in which the product with a masked gold's score stays in range.
            slope = torch.ldexp(size, -4 - torch.frexp(size.amax()).exponent)
            offset = slope * (1.0 - shift)
        return structure.best_by_count(counted.counter, offset, slope).y, proven
    raise InferenceError(
        "cost",
        "one that decomposes for inference='exact'",
        f"{cost!r}, which does not for {type(structure).__name__} with rescaling={rescaling!r}, squared={squared}",
        "define additive() (margin rescaling, lambda-search) or counted() on it; give Hamming weights that are small "
        "multiples of one unit, such as 1, 2 or 0.3, 1.5; or pass inference='search' where it is additive: it takes "
        "any weights and says for each instance whether its bound proves the answer",
    )


def _by_enumeration(structure: Structure, listed: Tensor, gold_score: Tensor, rescaling: str, squared: bool) -> Any:
    outputs = structure.enumerate()
    scores = structure.score(outputs)
    value = objective(listed, scores - gold_score, rescaling, squared)
    # 0 * -inf for a forbidden output of cost 0 is NaN; forbidden outputs never win.
    value = value.masked_fill(scores == float("-inf"), float("-inf"))
    best = first_argmax(value, 0)
    best = best.view(*best.shape, *[1] * (outputs.dim() - best.dim()))
    return outputs.gather(0, best.expand(1, *outputs.shape[1:])).squeeze(0)


def _by_two_best(structure: Structure, gold: Any, gold_score: Tensor) -> Any:
    """All formulations agree for a 0/1 cost: the best output other than gold, if it is within 1 of gold's score."""
    y, scores = structure.topk(2)
    first_is_gold = structure.same_output(gold, structure.take(y, 0))
    other = structure.choose(first_is_gold, structure.take(y, 1), structure.take(y, 0))
    score = torch.where(first_is_gold, scores[1], scores[0])
    return structure.choose(1.0 + score - gold_score > 0, other, structure.padded(gold))
