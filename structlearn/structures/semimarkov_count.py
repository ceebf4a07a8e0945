"""Count-augmented Viterbi: the best segmentation for each value of some statistics.

With g for the statistics so far, d and e for the increments of a segment and of a transition,

    b_0[c, 0] = 0,   b_t[c, g] = max_p a_t[p, g - e[p, c]] + transition[p, c]
    a_t[c, g] = max_w b_{t-w-1}[c, g - d[t-w-1, w, c]] + segments[t-w-1, w, c]
    table[g]  = max_c a_n[c, g].

O(N C (C + W) S) time for S values of the statistics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from structlearn.ops import semimarkov_count as ops
from structlearn.semirings import Max, in_units
from structlearn.structures import segmentation
from structlearn.structures.base import PAD, recordable, recording
from structlearn.structures.counting import CountedBest, Counter, CountTable, pick

if TYPE_CHECKING:
    from structlearn.structures.semimarkov import SemiMarkov

NEG_INF = float("-inf")


def max_by_count(chain: SemiMarkov, counter: Counter) -> CountTable:
    """The best score of each chain for every value of the statistics."""
    steps = _steps(chain, counter)
    if chain.backend != "reference":
        zero = chain.segments.new_zeros((chain.batch_size, counter.size))
        table = ops.best_by_count(*chain._args, *steps, counter.size, zero, zero, chain.backend)[3]
    else:
        table = _reference(chain, chain.segments.detach(), *steps, counter.size)

    def decode(index: Tensor) -> Tensor:
        flat = torch.zeros_like(index[:, 0])
        for j, size in enumerate(counter.sizes):
            flat = flat * size + index[:, j]
        if chain.backend != "reference":
            wanted = torch.full_like(table, NEG_INF).scatter_(1, flat[:, None], 0.0)
            given = (*chain._args, *steps, counter.size, wanted, torch.zeros_like(table))
            y: Tensor = ops.best_by_count(*given, chain.backend)[0]
            return y
        return _decode(chain, steps, counter.size, flat)

    return CountTable(table.view(-1, *counter.sizes), decode)


def best_by_count(chain: SemiMarkov, counter: Counter, offset: Tensor, slope: Tensor) -> CountedBest:
    """The segmentation that maximises offset[g] + slope[g] * s(y), tables (B, S1[, S2]), slope >= 0."""
    steps = _steps(chain, counter)
    if chain.backend != "reference":
        worth = (offset.flatten(1), slope.flatten(1))
        y, index, value, _ = ops.best_by_count(*chain._args, *steps, counter.size, *worth, chain.backend)
        return CountedBest(y, index, value)
    index, value = pick(_reference(chain, chain.segments.detach(), *steps, counter.size), offset, slope)
    y = _decode(chain, steps, counter.size, index)
    return CountedBest(y.masked_fill((value == NEG_INF)[:, None], PAD), index, value)


def _steps(chain: SemiMarkov, counter: Counter) -> tuple[Tensor | None, Tensor | None]:
    """Increments of the row-major index, in the shapes of segments and transition."""
    segments, transition = counter.flat("segments"), counter.flat("transition")
    return (
        None if segments is None else segments.expand(chain.segments.shape),
        None if transition is None else transition.expand(chain.transition.shape),
    )


def _moved(chart: Tensor, step: Tensor | None) -> Tensor:
    """chart[..., g - step], -inf where that is negative; chart (..., S), step (...)."""
    if step is None:
        return chart
    place = torch.arange(chart.shape[-1], device=chart.device) - step.unsqueeze(-1)
    chart, place = torch.broadcast_tensors(chart, place)  # type: ignore[no-untyped-call]
    return chart.gather(-1, place.clamp(min=0)).masked_fill(place < 0, NEG_INF)


def _reference(
    chain: SemiMarkov, segments: Tensor, step: Tensor | None, matrix_step: Tensor | None, size: int
) -> Tensor:
    """(B, S); differentiable in segments, lowest indices on ties."""
    potentials = (segments, recordable(chain.transition))

    def recurrence(_: float, segments: Tensor, transition: Tensor) -> Tensor:
        return _table(chain, segments, transition, step, matrix_step, size)

    return in_units(recurrence, potentials)


def _table(
    chain: SemiMarkov, segments: Tensor, transition: Tensor, step: Tensor | None, matrix_step: Tensor | None, size: int
) -> Tensor:
    """The recurrence above, for potentials as it holds them."""
    from structlearn.structures.semimarkov import by_end

    b, n, w, c = segments.shape
    best, lengths = Max().sum, chain.mask.sum(1)
    ending = by_end(segments.masked_fill(~chain.segment_mask[..., None], 0.0)).unbind(1)
    steps = (None,) * n if step is None else by_end(step).unbind(1)
    empty = segments.new_full((b, c, size), NEG_INF)
    empty[..., 0] = 0.0
    table, messages = empty[:, 0], [empty]
    if n == 0:
        return table
    for t in range(1, n + 1):
        recent = torch.stack(messages[: -w - 1 : -1], -3)
        used = recent.shape[-3]
        here = steps[t - 1]
        chart = best(_moved(recent, None if here is None else here[:, :used]) + ending[t - 1][:, :used, :, None], -3)
        table = torch.where((lengths == t)[:, None], best(chart, -2), table)
        if t < n:
            matrix, more = transition, matrix_step
            if matrix.dim() == 4:
                matrix = matrix[:, t - 1].masked_fill((lengths <= t)[:, None, None], 0.0)
                more = None if more is None else more[:, t - 1]
            messages.append(best(_moved(chart.unsqueeze(-2), more) + matrix.unsqueeze(-1), -3))
    return table


def _decode(chain: SemiMarkov, steps: tuple[Tensor | None, Tensor | None], size: int, index: Tensor) -> Tensor:
    """Outputs (B, N) that attain table[index]: the gradient of those entries; all PAD where the entry is -inf."""
    with recording():
        segments = recordable(chain.segments).requires_grad_()
        entry = _reference(chain, segments, *steps, size).gather(1, index[:, None]).squeeze(1)
        (hot,) = torch.autograd.grad(entry.sum(), segments)
    keep = chain.mask & (entry.detach() > NEG_INF)[:, None]
    return segmentation.from_parts(hot).masked_fill(~keep, PAD)
