"""Alignments of two sequences: global, semiglobal and local, with linear or affine gaps.

A path leads from node (0, 0) to node (n, m), where node (i, j) has i positions of x and j of y behind it:
operation 0 matches x_i with y_j and moves to (i+1, j+1), 1 consumes x_i and moves to (i+1, j), 2 consumes y_j and
moves to (i, j+1). A gap is a longest run of 1s or of 2s; the first position of a gap scores open, each further one gap:

    s(path) = sum_{matches} match[i, j] + sum_{gaps in y} (open_x[first] + sum_{rest} gap_x[i])
                                        + sum_{gaps in x} (open_y[first] + sum_{rest} gap_y[j]),

so a gap of length k scores gap_open + (k-1) gap, as in parasail and Biopython; with linear gaps open is gap.

=============  =======================================================================================
mode           Y, and what is free
=============  =======================================================================================
global         all paths (the Delannoy number of n, m of them); paths 1 2 and 2 1 are two outputs
semiglobal     the same paths, but a gap at the very start or the very end of a path scores 0
local          the alignments of a part of x with a part of y that begin and end with a match, and the
               empty alignment, which scores 0; operations in front of the first match and behind the
               last score 0, and paths that differ only there are one output
=============  =======================================================================================

Recurrence over any semiring; M, X, Y are the totals of the paths into a node by their last operation:

    M[i, j] = (M (+) X (+) Y)[i-1, j-1] (x) match[i-1, j-1]                    (+) 1 before (x), if local
    X[i, j] = (M (+) Y)[i-1, j] (x) open_x[i-1]  (+)  X[i-1, j] (x) gap_x[i-1]
    Y[i, j] = (M (+) X)[i, j-1] (x) open_y[j-1]  (+)  Y[i, j-1] (x) gap_y[j-1]
    total   = (M (+) X (+) Y)[n, m],   or   1 (+) (+)_{i,j} M[i, j] if local,

with M[0, 0] = 1 unless local. Ties are broken from the end in the order of the summands above, first come first:
among equal paths the last operation is the lowest, and a gap is rather opened than extended. A local alignment
ends as early as possible, in x before y, and the empty one comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from structlearn.errors import ArgumentError
from structlearn.ops import alignment as ops
from structlearn.ops import alignment_sum as sum_ops
from structlearn.ops import choose_backend, value_and_gradient
from structlearn.ops._register import is_eager
from structlearn.semirings import NEG_INF, Count, Entropy, KMax, Log, Max, Sample, Semiring, evaluate, in_units
from structlearn.structures import alignment_count, checks, gaps, paths
from structlearn.structures.base import PAD, Structure, check_count, marginals_by_autograd, recordable, recording
from structlearn.structures.counting import CountedBest, Counter, CountTable
from structlearn.structures.gaps import Gap, Grid

Mode = Literal["global", "local", "semiglobal"]
_NATIVE = ("reference", "cpu", "triton")


class AlignmentPotentials(NamedTuple):
    """One tensor a field of :class:`Alignment`; the open fields are None with linear gaps."""

    match: Tensor
    gap_x: Tensor
    gap_y: Tensor
    open_x: Tensor | None
    open_y: Tensor | None


def _diagonals(x: Tensor) -> tuple[Tensor, ...]:
    """(..., R, C) to its R+C-1 anti-diagonals (..., R): entry i of diagonal d is x[i, d-i], or -inf outside."""
    rows, columns = x.shape[-2:]
    wide = pad(x, (0, rows), value=NEG_INF).flatten(-2)[..., : rows * (rows + columns - 1)]
    return wide.view(*x.shape[:-2], rows, rows + columns - 1).unbind(-1)


def total(semiring: Semiring, grid: Grid, n: Tensor, m: Tensor, local: bool) -> Tensor:
    """The recurrence above, one anti-diagonal after the other, (width, B)."""
    diagonals = [None if step is None else _diagonals(step) for step in grid]
    match, gap_x, gap_y, open_x, open_y = diagonals
    assert match is not None
    assert gap_x is not None
    assert gap_y is not None
    one = semiring.ones_like(match[0])
    zero = semiring.times(one, semiring.lift(torch.full_like(match[0], NEG_INF)))

    def plus(*elements: Tensor) -> Tensor:
        return semiring.sum(torch.stack(elements, -1), -1)

    def down(element: Tensor) -> Tensor:
        return torch.cat([zero[..., :1], element[..., :-1]], -1)

    first = torch.arange(match[0].shape[-1], device=n.device) == 0
    M, X, Y = zero if local else torch.where(first, one, zero), zero, zero
    H, H_before, ends, found = M, zero, [M], zero[..., 0]
    for d in range(len(match)):
        if d > 0:
            before = down(H_before)
            at_match = semiring.times(plus(one, before) if local else before, semiring.lift(match[d]))
            if open_x is None or open_y is None:
                X, Y = (semiring.times(h, semiring.lift(g[d])) for h, g in ((down(H), gap_x), (H, gap_y)))
            else:
                MY, MX = plus(M, Y), plus(M, X)
                X, Y = (
                    plus(semiring.times(other, semiring.lift(o[d])), semiring.times(same, semiring.lift(g[d])))
                    for other, same, o, g in ((down(MY), down(X), open_x, gap_x), (MX, Y, open_y, gap_y))
                )
            M = at_match
            H, H_before = plus(M, X, Y), H
            ends.append(M)
        at_end = H.gather(-1, n.expand(H.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        found = torch.where(n + m == d, at_end, found)
    if not local:
        return found
    nodes = torch.stack(ends, -1).flatten(-2)
    return semiring.sum(torch.cat([one[..., :1], nodes], -1), -1)


def _paths_of_marks(used: Tensor, n: Tensor, m: Tensor, local: bool) -> Tensor:
    """Which operations (K, 3, B, N+1, M+1) a path uses, by the node they lead to, as paths (K, B, N+M)."""
    rows, columns = used.shape[-2:]
    i = torch.arange(rows, device=used.device)[:, None] + torch.arange(columns, device=used.device)
    places = i.expand(used.shape).flatten(-2)
    # A path visits every diagonal at most once, so the order of the diagonals is the order of its operations.
    on = used.new_zeros((*used.shape[:-2], rows + columns - 1), dtype=torch.int64)
    on.scatter_add_(-1, places, used.flatten(-2).long())
    real = on.sum(1) > 0
    order = (~real).long().argsort(stable=True, dim=-1)[..., : rows + columns - 2]
    ops = on.argmax(1).gather(-1, order)
    length = real.sum(-1)
    if not local:
        return ops.masked_fill(torch.arange(ops.shape[-1], device=ops.device) >= length[..., None], PAD)
    nodes = used.any(1)
    first_i, first_j = (nodes.any(dim).long().argmax(-1) for dim in (-1, -2))
    return paths.with_flanks(ops, length, (first_i - 1).clamp(min=0), (first_j - 1).clamp(min=0), n, m)


class Alignment(Structure):
    """s(path) = sum of match over the matched pairs + gap_open + (k-1) gap for every gap of length k.

    Args:
        match: (B, N, M) score of aligning position i of x with position j of y.
        gap: score of a position that is aligned with nothing (a cost is negative): a number, a tensor () or (B,) for
            both sequences, or a pair (gap_x, gap_y), each a number, (), (B,), or one score a position, (B, N) for x
            and (B, M) for y.
        gap_open: like gap, the score of the first position of a gap (instead of gap, not on top of it); gaps are
            linear if not given.
        mode: "global", "local" or "semiglobal"; the table of this module says what each allows and what is free.
        x_lengths, y_lengths: (B,) lengths 0..N and 0..M; N and M if not given. What stands at or beyond a length is
            never read.
        band: with band w only the nodes with min(0, m-n) - w <= j - i <= max(0, m-n) + w are allowed, that is those
            at most w off the diagonals through both corners; local paths are held to it between their first match and
            their last.
        backend: "auto", or one of ``ops.backends()``; "triton" has kernels for max, argmax, log_partition and
            marginals, the other queries run the reference on its device.
        validate: look for NaN and for scores above finfo.max / 4, +inf included, at unpadded places (and, on a GPU,
            at the lengths).

    Outputs are paths (B, N+M) of operations, int64, padded with -100; :meth:`pairs` turns them into aligned positions.
    The fields hold the gap scores by position, gap_x (B, N) and so on, whatever was given.
    """

    named = AlignmentPotentials
    fields = ("match", "gap_x", "gap_y", "open_x", "open_y")

    def __init__(
        self,
        match: Tensor,
        *,
        gap: Gap,
        gap_open: Gap | None = None,
        mode: Mode = "global",
        x_lengths: Tensor | Sequence[int] | None = None,
        y_lengths: Tensor | Sequence[int] | None = None,
        band: int | None = None,
        backend: str = "auto",
        validate: bool = False,
    ) -> None:
        checks.check_tensor("match", match, 3, "(B, N, M)")
        if mode not in get_args(Mode):
            raise ArgumentError("mode", f"one of {get_args(Mode)}", repr(mode), "pass mode='global'")
        if band is not None and (not isinstance(band, int) or band < 0):
            raise ArgumentError("band", "an integer >= 0, or None", repr(band), "pass band=None for all of the matrix")
        b, n, m = match.shape
        sides = [
            *gaps.sides("gap", gap, match),
            *((None, None) if gap_open is None else gaps.sides("gap_open", gap_open, match)),
        ]
        self.match: Tensor
        self.gap_x: Tensor
        self.gap_y: Tensor
        kept = checks.same_kind(
            {"match": match, "gap": sides[0], "gap_y": sides[1], "gap_open": sides[2], "open_y": sides[3]}
        )
        self.match = kept[0]  # type: ignore[assignment]
        by_position = [
            None if s is None else gaps.by_position(s, b, size) for s, size in zip(kept[1:], (n, m, n, m), strict=True)
        ]
        self.gap_x, self.gap_y, self.open_x, self.open_y = by_position  # type: ignore[assignment]
        self.mode: Mode = mode
        self.band = band
        self.x_lengths = checks.check_lengths("x_lengths", x_lengths, b, n, match.device)
        self.y_lengths = checks.check_lengths("y_lengths", y_lengths, b, m, match.device)
        self.backend = choose_backend(backend, match.device.type, _NATIVE)
        if validate:
            self._validate()

    def _validate(self) -> None:
        (b, n, m), device = self.match.shape, self.match.device
        for name, lengths, size in (("x_lengths", self.x_lengths, n), ("y_lengths", self.y_lengths, m)):
            if lengths is not None:
                checks.check_lengths(name, lengths.cpu(), b, size, device)
        in_x, in_y = self.masks
        checks.check_potential("match", self.match, in_x[:, :, None] & in_y[:, None, :])
        for name, value, mask in (
            ("gap", self.gap_x, in_x),
            ("gap", self.gap_y, in_y),
            ("gap_open", self.open_x, in_x),
            ("gap_open", self.open_y, in_y),
        ):
            if value is not None:
                checks.check_potential(name, value, mask)

    @property
    def batch_size(self) -> int:
        return self.match.shape[0]

    @property
    def masks(self) -> tuple[Tensor, Tensor]:
        """(B, N) and (B, M), true at unpadded positions."""
        (b, n, m), device = self.match.shape, self.match.device
        return checks.unpadded(self.x_lengths, b, n, device), checks.unpadded(self.y_lengths, b, m, device)

    @property
    def _lengths(self) -> tuple[Tensor, Tensor]:
        in_x, in_y = self.masks
        return in_x.sum(1), in_y.sum(1)

    def replace(self, **potentials: Tensor | None) -> Self:
        given: dict[str, Any] = self._given(potentials)
        affine = given["open_x"] is not None
        return type(self)(
            given["match"],
            gap=(given["gap_x"], given["gap_y"]),
            gap_open=(given["open_x"], given["open_y"]) if affine else None,
            mode=self.mode,
            x_lengths=self.x_lengths,
            y_lengths=self.y_lengths,
            band=self.band,
            backend=self.backend,
        )

    def _reference(
        self, semiring: Semiring, potentials: AlignmentPotentials | None = None, marks: Tensor | None = None
    ) -> Tensor:
        n, m = self._lengths

        def recurrence(semiring: Semiring, *given: Tensor | None) -> Tensor:
            grid = gaps.grid(*given[:5], n, m, self.mode == "semiglobal", self.band)  # type: ignore[arg-type,call-arg]
            if (on := given[5]) is not None:
                grid = Grid(*(None if g is None else g + on[k] for g, k in zip(grid, (0, 1, 2, 1, 2), strict=True)))  # type: ignore[arg-type]
            return total(semiring, grid, n, m, self.mode == "local")

        return evaluate(semiring, recurrence, (*(potentials or self._args[:5]), marks))

    def _reference_outputs(self, semiring: Semiring) -> tuple[Tensor, Tensor]:
        """Paths (width, B, N+M) and totals (width, B): path i is the gradient of total i by marks on all operations."""
        b, rows, columns = self.match.shape
        detached = AlignmentPotentials(*(None if x is None else recordable(x) for x in self._args[:5]))  # type: ignore[arg-type]
        with recording():
            marks = self.match.new_zeros((3, b, rows + 1, columns + 1), requires_grad=True)
            scores = self._reference(semiring, detached, marks)
            used = torch.stack([torch.autograd.grad(s.sum(), marks, retain_graph=True)[0] for s in scores])
        scores = scores.detach()
        found = _paths_of_marks(used > 0.5, *self._lengths, self.mode == "local")
        return found.masked_fill((scores == NEG_INF)[..., None], PAD), scores

    @property
    def _args(self) -> ops.Args:
        mode, band = ops.MODES.index(self.mode), -1 if self.band is None else self.band
        return self.match, self.gap_x, self.gap_y, self.open_x, self.open_y, self.x_lengths, self.y_lengths, mode, band

    @property
    def _differentiable(self) -> bool:
        return torch.is_grad_enabled() and any(x.requires_grad for x in self.potentials.values())

    def _best(self) -> tuple[Tensor, Tensor]:
        if self.backend == "reference":
            found, scores = self._reference_outputs(Max())
            return found[0], scores[0]
        path, score = ops.best(*self._args, True, self.backend)
        return path, score

    def max(self) -> Tensor:
        """max_y s(y), (B,); the path is only followed where a gradient may be asked for."""
        if self.backend != "reference":
            score: Tensor = ops.best_score(*self._args, self._differentiable, self.backend)[0]
            return score
        best = self._reference(Max())[0]
        return torch.where(best.detach() == NEG_INF, best.detach(), best)

    def score(self, y: Tensor) -> Tensor:
        """s(y), (..., B), for paths (..., B, N+M); what stands behind a path's end is ignored."""
        b, rows, columns = self.match.shape
        y = checks.check_label_tensor("y", y, (b, rows + columns), self.match.device)
        if self.backend == "cpu":
            scores: Tensor = ops.score(*self._args, y.reshape(y.shape[:-2].numel(), *y.shape[-2:]))
            return scores.view(y.shape[:-1])
        n, m = self._lengths
        paths.check(y, n, m)

        def look_up(_: float, *potentials: Tensor | None) -> Tensor:
            return paths.score(*potentials, y, n, m, self.mode, self.band)  # type: ignore[arg-type,call-arg]

        return in_units(look_up, self._args[:5])

    def log_partition(self) -> Tensor:
        if self.backend == "reference":
            return self._reference(Log())[0]
        args, keep = self._args, self._differentiable
        if keep and self.backend == "cpu" and is_eager(self.match):
            return value_and_gradient.alignment_log_partition(*args)
        log_z: Tensor = sum_ops.forward(*args, keep, self.backend)[0]
        return log_z

    def marginals(self) -> AlignmentPotentials:
        """d (sum_b log Z_b) / d potentials.

        match (B, N, M) holds P(x_i and y_j are matched), gap_x (B, N) and open_x the probability that x_i stands in a
        gap (as its first position, where gaps are affine), free ends not counted; gap_y and open_y the same for y.
        """
        if self.backend == "reference":
            found: AlignmentPotentials = marginals_by_autograd(self)
            return found
        log_z, kept = sum_ops.forward(*self._args, True, self.backend)
        grads = sum_ops.backward(*self._args, log_z, kept, torch.ones_like(log_z), self.backend)
        return AlignmentPotentials(
            *grads[:3], *(None if x is None else g for x, g in zip(self._args[3:5], grads[3:], strict=True))
        )

    def log_partition_and_marginals(self) -> tuple[Tensor, AlignmentPotentials]:
        if self.backend != "cpu" or not is_eager(self.match):
            return super().log_partition_and_marginals()
        log_z, gradient = value_and_gradient.alignment(*self._args)
        return log_z, AlignmentPotentials(*gradient[:5])

    def count(self) -> Tensor:
        """Number of outputs that are not forbidden, (B,), float64."""
        return self._reference(Count())[0]

    def entropy(self) -> Tensor:
        if self.backend == "cpu":
            found: Tensor = sum_ops.entropy(*self._args)
            return found
        log_z, entropy = self._reference(Entropy()).unbind(0)
        return entropy.masked_fill(log_z == NEG_INF, 0.0)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """Paths (k, B, N+M) and scores (k, B) of the k best outputs, best first; the scores are differentiable."""
        check_count("k", k)
        found, scores = ops.kbest(*self._args, k) if self.backend == "cpu" else self._reference_outputs(KMax(k))
        if self._differentiable:
            missing = scores == NEG_INF
            some = paths.nothing_aligned(self.match.shape[1] + self.match.shape[2], *self._lengths)
            scores = self.score(torch.where(missing[..., None], some, found)).masked_fill(missing, NEG_INF)
        return found, scores

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """n draws from p(y) = exp(s(y)) / Z, paths (n, B, N+M), all -100 where every output is forbidden."""
        check_count("n", n)
        if self.backend != "cpu":
            return self._reference_outputs(Sample(n, generator))[0]
        b, rows, columns = self.match.shape
        uniform = torch.rand(
            (n, b, rows + columns + 1), generator=generator, dtype=self.match.dtype, device=self.match.device
        )
        path: Tensor = sum_ops.sample(*self._args, uniform)
        return path

    def pairs(self, y: Tensor) -> Tensor:
        """Aligned positions (i, j) of paths (..., B, N+M), (..., B, min(N, M), 2) int64, padded with -100."""
        b, rows, columns = self.match.shape
        y = checks.check_label_tensor("y", y, (b, rows + columns), self.match.device)
        return paths.pairs(y, *self._lengths, min(rows, columns))

    def same_output(self, y: Tensor, z: Tensor) -> Tensor:
        """Whether two paths are one output, (..., B); local paths are compared from first to last match."""
        n, m = self._lengths
        tidy = paths.local if self.mode == "local" else paths.clean
        return (tidy(y, n, m) == tidy(z, n, m)).all(-1)

    def padded(self, y: Tensor) -> Tensor:
        return paths.clean(y, *self._lengths)

    def max_by_count(self, counter: Counter) -> CountTable:
        return alignment_count.max_by_count(self, counter)

    def best_by_count(self, counter: Counter, offset: Tensor, slope: Tensor) -> CountedBest:
        return alignment_count.best_by_count(self, counter, offset, slope)

    def positions(self, y: Tensor) -> tuple[Tensor, Tensor, int, torch.dtype]:
        """For each position of x the position of y it is matched with, M where there is none; masked to matched ones.

        So ``Hamming(normalize=True)`` is 1 - Q, the share of gold's pairs that are missed.
        """
        b, rows, columns = self.match.shape
        y = checks.check_label_tensor("y", y, (b, rows + columns), self.match.device)
        n, m = self._lengths
        paths.check(y, n, m)
        partner = paths.partners(y, n, m, rows, columns)
        return partner, partner < columns, columns + 1, self.match.dtype

    def parts_of_positions(self, table: Tensor) -> dict[str, Tensor]:
        if self.mode != "global":
            raise ArgumentError(
                "structure",
                "a global alignment, where every gap has a score",
                f"mode={self.mode!r}",
                "use AlignedPairs()",
            )
        parts = {"match": table[..., :-1], "gap_x": table[..., -1]}
        return parts if self.open_x is None else parts | {"open_x": table[..., -1]}
