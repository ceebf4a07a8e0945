"""Count-augmented Viterbi: the best labelling of a chain for each value of some statistics.

    A_t[c, q, g] = max over labellings of positions 0..t that end in label c, automaton state q, statistics g
                 = unary[t, c] + max { A_{t-1}[p, q', g - step(q', p, c)] + transition[p, c] : next(q', p, c) = q }

O(N C^2 Q S) time for S values of the statistics; a plain :class:`Counter` has Q = 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from structlearn.ops import chain_count as ops
from structlearn.structures.base import PAD
from structlearn.structures.counting import CountedBest, Counter, CountTable, LabelCounter, pick

if TYPE_CHECKING:
    from structlearn.structures.chain import LinearChain

NEG_INF = float("-inf")


class Tables(NamedTuple):
    """The increments in the form of the kernels; see :class:`LabelCounter` for ``next`` and ``step``."""

    unary: Tensor | None  # (B, N, C) increments of labels
    classes: Tensor | None  # (B, N), None where all positions have class 0
    next: Tensor | None  # (K, Q, C+1, C), None where the automaton has one state and adds nothing
    step: Tensor | None
    last: Tensor | None  # (Q, C)
    size: int


def tables(chain: LinearChain, counter: Counter | LabelCounter) -> Tables:
    """A counter as index increments."""
    if isinstance(counter, LabelCounter):
        return Tables(None, counter.classes, counter.next, counter.step, counter.last, counter.size)
    b, n, c = chain.unary.shape
    unary, transition, start, end = (counter.flat(field) for field in chain.fields)
    if unary is not None:
        unary = unary.expand(b, n, c)
    if transition is None and start is None and end is None:
        return Tables(unary, None, None, None, None, counter.size)
    device = chain.unary.device
    if transition is not None and transition.dim() == 4:
        classes = torch.arange(b * n, device=device).view(b, n)
        step = torch.zeros((b, n, 1, c + 1, c), dtype=torch.int64, device=device)
        step[:, 1:, 0, :c] = transition
        step = step.flatten(0, 1)
    else:
        classes = None
        step = torch.zeros((1, 1, c + 1, c), dtype=torch.int64, device=device)
        if transition is not None:
            step[:, 0, :c] = transition
    if start is not None:
        step[:, 0, c] = start
    last = torch.zeros((1, c), dtype=torch.int64, device=device) if end is None else end.view(1, c)
    return Tables(unary, classes, torch.zeros_like(step), step, last, counter.size)


def best_by_count(chain: LinearChain, counter: Counter | LabelCounter, offset: Tensor, slope: Tensor) -> CountedBest:
    """The labelling of each chain that maximises offset[g] + slope[g] * s(y), tables (B, S1[, S2]), slope >= 0."""
    given = tables(chain, counter)
    if chain.backend in ("cpu", "triton"):
        labels, index, value, _ = ops.best_by_count(
            *chain._args, *given, offset.flatten(1).contiguous(), slope.flatten(1).contiguous(), chain.backend
        )
        return CountedBest(labels, index, value)
    wide, units = chain._widened()
    charts, table = _charts(wide, given)
    index, value = pick(units.narrow(table), offset, slope)
    return CountedBest(_trace(wide, given, charts, index, value > NEG_INF), index, value)


def max_by_count(chain: LinearChain, counter: Counter | LabelCounter) -> CountTable:
    """The best score of each chain for every value of the statistics."""
    given = tables(chain, counter)
    if chain.backend in ("cpu", "triton"):
        zero = chain.unary.new_zeros((chain.batch_size, given.size))
        table = ops.best_by_count(*chain._args, *given, zero, zero, chain.backend)[3]
    else:
        wide, units = chain._widened()
        table = units.narrow(_charts(wide, given)[1])

    def decode(index: Tensor) -> Tensor:
        flat = torch.zeros_like(index[:, 0])
        for j, size in enumerate(counter.sizes):
            flat = flat * size + index[:, j]
        wanted = torch.full_like(table, NEG_INF).scatter_(1, flat[:, None], 0.0)
        labels: Tensor = best_by_count(chain, counter, wanted, torch.zeros_like(table)).y
        return labels

    return CountTable(table.view(-1, *counter.sizes), decode)


def _step(chain: LinearChain, given: Tables, t: int) -> tuple[Tensor, Tensor]:
    """next and index increments (B, Q, C+1, C) for reading position t."""
    b, _, c = chain.unary.shape
    if given.next is None or given.step is None:
        step = torch.zeros((b, 1, c + 1, c), dtype=torch.int64, device=chain.unary.device)
        following = step
    else:
        k = (
            torch.zeros(b, dtype=torch.int64, device=chain.unary.device)
            if given.classes is None
            else given.classes[:, t]
        )
        following, step = given.next[k], given.step[k]
    if given.unary is not None:
        step = step + given.unary[:, t, None, None, :]
    return following, step


def _spread(scores: Tensor, following: Tensor, step: Tensor, size: int) -> Tensor:
    """max over (p, q) of scores (B, P, Q, C, S), moved to (state, statistics) by following and step (B, Q, P, C)."""
    b, _, q, c, s = scores.shape
    place = following.permute(0, 2, 1, 3)[..., None] * size + step.permute(0, 2, 1, 3)[..., None]
    place = place + torch.arange(s, device=scores.device)
    valid = step.permute(0, 2, 1, 3)[..., None] + torch.arange(s, device=scores.device) < size
    scores = scores.masked_fill(~valid, NEG_INF)
    place = torch.where(valid, place, 0)
    out = scores.new_full((b, c, q * size), NEG_INF)
    flat_place = place.permute(0, 3, 1, 2, 4).flatten(2)
    flat_scores = scores.permute(0, 3, 1, 2, 4).flatten(2)
    return out.scatter_reduce(2, flat_place, flat_scores, "amax").view(b, c, q, size)


def _matrix(chain: LinearChain, t: int) -> Tensor:
    m = chain.transition.detach()
    return m if m.dim() == 2 else m[:, t - 1]


def _charts(chain: LinearChain, given: Tables) -> tuple[list[Tensor], Tensor]:
    """A_t for every t, (B, C, Q, S), and the table (B, S)."""
    b, n, c = chain.unary.shape
    mask = chain.mask
    unary = chain.unary.detach().masked_fill(~mask[..., None], 0.0)
    states = 1 if given.last is None else given.last.shape[0]
    lengths = mask.sum(1)
    table = unary.new_full((b, given.size), NEG_INF)
    table[lengths == 0, 0] = 0.0
    charts: list[Tensor] = []
    for t in range(n):
        following, step = _step(chain, given, t)
        if t == 0:
            seed = unary.new_full((b, 1, states, c, given.size), NEG_INF)
            seed[:, 0, 0, :, 0] = unary[:, 0] if chain.start is None else chain.start.detach() + unary[:, 0]
            chart = _spread(seed, following[:, :, c:], step[:, :, c:], given.size)
        else:
            moved = charts[-1][:, :, :, None, :] + _matrix(chain, t).reshape(-1, c, 1, c, 1)
            chart = _spread(moved, following[:, :, :c], step[:, :, :c], given.size) + unary[:, t, :, None, None]
        charts.append(chart)
        table = torch.where((lengths == t + 1)[:, None], _closing(chain, given, chart), table)
    return charts, table


def _closing(chain: LinearChain, given: Tables, chart: Tensor) -> Tensor:
    """The table (B, S) of sequences that end here."""
    if chain.end is not None:
        chart = chart + chain.end.detach()[:, None, None]
    if given.last is None:
        return chart.amax((1, 2))
    b, size = chart.shape[0], chart.shape[3]
    place = torch.arange(size, device=chart.device) + given.last.T[:, :, None]
    flat = chart.masked_fill(place >= size, NEG_INF).flatten(1)
    return chart.new_full((b, size), NEG_INF).scatter_reduce(
        1, place.clamp(max=size - 1).reshape(1, -1).expand(b, -1), flat, "amax"
    )


def _trace(chain: LinearChain, given: Tables, charts: list[Tensor], index: Tensor, feasible: Tensor) -> Tensor:
    """Labels (B, N) that attain table[index]; on ties the lowest (label, state), last position first."""
    b, n, c = chain.unary.shape
    lengths = chain.mask.sum(1).tolist()
    labels = torch.full((b, n), PAD, dtype=torch.int64, device=chain.unary.device)
    steps = [_step(chain, given, t) for t in range(n)]
    for i in range(b):
        if not feasible[i] or lengths[i] == 0:
            continue
        t, g = lengths[i] - 1, int(index[i])
        ending = charts[t][i] if chain.end is None else charts[t][i] + chain.end.detach()[:, None, None]
        last = torch.zeros_like(ending[..., 0], dtype=torch.int64) if given.last is None else given.last.T
        y, q = _first_best(_at(ending, g - last))
        g -= int(last[y, q])
        labels[i, t] = y
        while t > 0:
            following, step = (x[i, :, :c, y].T for x in steps[t])
            matrix = _matrix(chain, t)
            before = charts[t - 1][i] + (matrix if matrix.dim() == 2 else matrix[i])[:, y, None, None]
            scores = _at(before, g - step).masked_fill(following != q, NEG_INF)
            p, q_before = _first_best(scores)
            g -= int(step[p, q_before])
            y, q, t = p, q_before, t - 1
            labels[i, t] = y
    return labels


def _at(chart: Tensor, index: Tensor) -> Tensor:
    """chart[p, q, index[p, q]], -inf where the index is negative; (C, Q)."""
    found = chart.gather(-1, index.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return found.masked_fill(index < 0, NEG_INF)


def _first_best(scores: Tensor) -> tuple[int, int]:
    flat = scores.flatten()
    place = int((flat == flat.max()).nonzero()[0])
    return place // scores.shape[1], place % scores.shape[1]
