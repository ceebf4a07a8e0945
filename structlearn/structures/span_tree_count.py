"""Count-augmented CKY: the best tree for each value g of one or two statistics.

    a[i, j, g] = max_l ( max_{k, h} a[i, k, h] + a[k+1, j, g - h - step[i, j, l]] ) + spans[i, j, l]

O(N^3 S^2) time for S values, but a span of few words reaches few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from structlearn.ops import span_tree_count as ops
from structlearn.semirings import Counted, in_units
from structlearn.structures.base import recordable, recording
from structlearn.structures.counting import CountedBest, Counter, CountTable, pick

if TYPE_CHECKING:
    from structlearn.structures.span_tree import SpanTree

NEG_INF = float("-inf")


def _steps(structure: SpanTree, counter: Counter) -> Tensor:
    """By how much each label of each span moves the row-major index of the statistics, (B, N, N, L)."""
    step = counter.flat("spans")
    if step is None:
        return torch.zeros((), dtype=torch.int64, device=structure.spans.device).expand(structure.spans.shape)
    return step.expand(structure.spans.shape)


def _sizes(counter: Counter) -> tuple[int, int]:
    return (*counter.sizes, 1)[0], (*counter.sizes, 1)[1]


def best_by_count(structure: SpanTree, counter: Counter, offset: Tensor, slope: Tensor) -> CountedBest:
    """The tree of each sentence that maximises offset[g] + slope[g] * s(y), tables (B, S1[, S2]), slope >= 0."""
    step = _steps(structure, counter)
    if structure.backend == "cpu":
        flat = offset.flatten(1).contiguous(), slope.flatten(1).contiguous()
        labels, index, value, _ = ops.best_by_count(structure.spans, structure.lengths, step, *_sizes(counter), *flat)
        return CountedBest(labels, index, value)
    with recording():
        table, spans = _reference(structure, counter, step)
        index, value = pick(table.detach(), offset, slope)
        labels = structure._charts(table.gather(1, index[:, None]).T, value[None], spans)[0]
    return CountedBest(labels, index, value)


def max_by_count(structure: SpanTree, counter: Counter) -> CountTable:
    """The best score of each sentence for every value of the statistics."""
    if structure.backend == "cpu":
        zero = structure.spans.new_zeros((structure.batch_size, counter.size))
        step = _steps(structure, counter)
        table = ops.best_by_count(structure.spans, structure.lengths, step, *_sizes(counter), zero, zero)[3]
    else:
        table = _reference(structure, counter, _steps(structure, counter))[0].detach()

    def decode(index: Tensor) -> Tensor:
        flat = torch.zeros_like(index[:, 0])
        for j, size in enumerate(counter.sizes):
            flat = flat * size + index[:, j]
        wanted = torch.full_like(table, NEG_INF).scatter_(1, flat[:, None], 0.0)
        labels: Tensor = best_by_count(structure, counter, wanted, torch.zeros_like(table)).y
        return labels

    return CountTable(table.view(-1, *counter.sizes), decode)


def _reference(structure: SpanTree, counter: Counter, step: Tensor) -> tuple[Tensor, Tensor]:
    """The table (B, S) and the potentials that it can be differentiated by."""
    from structlearn.structures.span_tree import total

    semiring = Counted(counter.size)
    with recording():
        padding = ~structure.mask[..., None]
        spans = recordable(structure.spans).requires_grad_()

        def recurrence(_: float, spans: Tensor) -> Tensor:
            elements = semiring.place(spans.masked_fill(padding, 0.0), step.masked_fill(padding, 0))
            return total(semiring, elements, structure._lengths).T

        return in_units(recurrence, [spans]), spans
