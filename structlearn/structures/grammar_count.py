"""Count-augmented CKY with a grammar: the best derivation for each value g of one or two statistics.

    x[i, j, r, g] = max_{k, h} a[i, k, left of r, h] + a[k+1, j, right of r, g - h]
    a[i, j, A, g] = max_r x[i, j, r, g - step(r) - step(i, j, A)] + rule_scores[r] + spans[i, j, A]

Every field of the potentials can move the statistics, spans too where the structure itself has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from structlearn.ops import grammar_count as ops
from structlearn.semirings import Counted, in_units
from structlearn.structures import cky
from structlearn.structures.base import recordable, recording
from structlearn.structures.counting import CountedBest, Counter, CountTable, pick

if TYPE_CHECKING:
    from structlearn.structures.grammar import WeightedCFG

NEG_INF = float("-inf")


def _shapes(structure: WeightedCFG) -> dict[str, tuple[int, ...]]:
    shapes = {name: tuple(x.shape) for name, x in structure.potentials.items()}
    return {"spans": (*structure.mask.shape, structure.grammar.num_nonterminals)} | shapes


def _steps(structure: WeightedCFG, counter: Counter) -> list[Tensor | None]:
    """By how much each part moves the row-major index of the statistics, in the shapes of the potentials."""
    shapes = _shapes(structure)
    return [None if (x := counter.flat(name)) is None else x.expand(shapes[name]) for name in structure.fields]


def _sizes(counter: Counter) -> tuple[int, int]:
    return (*counter.sizes, 1)[0], (*counter.sizes, 1)[1]


def best_by_count(structure: WeightedCFG, counter: Counter, offset: Tensor, slope: Tensor) -> CountedBest:
    """The derivation of each sentence that maximises offset[g] + slope[g] * s(y), tables (B, S1[, S2]), slope >= 0."""
    steps = _steps(structure, counter)
    if structure.backend == "cpu":
        flat = offset.flatten(1).contiguous(), slope.flatten(1).contiguous()
        y, index, value, _ = ops.best_by_count(*structure._args, *steps, *_sizes(counter), *flat)
        return CountedBest(y, index, value)
    with recording():
        table, terms, spans = _reference(structure, counter, steps)
        index, value = pick(table.detach(), offset, slope)
        y = structure._charts(table.gather(1, index[:, None]).T, value[None], terms, spans)[0]
    return CountedBest(y, index, value)


def max_by_count(structure: WeightedCFG, counter: Counter) -> CountTable:
    """The best score of each sentence for every value of the statistics."""
    steps = _steps(structure, counter)
    if structure.backend == "cpu":
        zero = structure.terms.new_zeros((structure.batch_size, counter.size))
        table = ops.best_by_count(*structure._args, *steps, *_sizes(counter), zero, zero)[3]
    else:
        table = _reference(structure, counter, steps)[0].detach()

    def decode(index: Tensor) -> Tensor:
        flat = torch.zeros_like(index[:, 0])
        for j, size in enumerate(counter.sizes):
            flat = flat * size + index[:, j]
        wanted = torch.full_like(table, NEG_INF).scatter_(1, flat[:, None], 0.0)
        y: Tensor = best_by_count(structure, counter, wanted, torch.zeros_like(table)).y
        return y

    return CountTable(table.view(-1, *counter.sizes), decode)


def _reference(structure: WeightedCFG, counter: Counter, steps: list[Tensor | None]) -> tuple[Tensor, Tensor, Tensor]:
    """The table (B, S), and the terms and spans that it can be differentiated by."""
    semiring = Counted(counter.size)
    with recording():
        terms, spans = structure.marked()

        def recurrence(_: float, *potentials: Tensor) -> Tensor:
            elements = []
            for potential, step in zip(structure._filled(*potentials), steps, strict=True):
                moved = torch.zeros_like(potential, dtype=torch.int64)
                if step is not None:
                    rows = step.reshape(potential.shape[0], *potential.shape[1:-1], step.shape[-1])
                    moved[..., : step.shape[-1]] = rows
                elements.append(semiring.place(potential, moved))
            terms, rules, roots, spans = elements
            return cky.total(semiring, structure.grammar, terms, rules, roots, spans, structure._lengths).T

        rules, roots = recordable(structure.rule_scores), recordable(structure.root_scores)
        table = in_units(recurrence, (terms, rules, roots, spans))
    return table, terms, spans
