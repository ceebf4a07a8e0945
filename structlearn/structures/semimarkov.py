"""Labelled segmentations with first-order transitions: semi-Markov chains.

Y = all ways to cut positions 0..n-1 into segments of at most W positions and to give each a label in 0..C-1;
equal labels may follow each other. For segments i = 0..m-1 that start at t_i, have width w_i + 1 and label c_i,

    s(y) = sum_i segments[t_i, w_i, c_i] + sum_{i>=1} transition[c_{i-1}, c_i].

Recurrence over any semiring, with a_t for what ends before position t and b_t for what goes on at t:

    b_0[c] = 1,   b_t[c] = (+)_p a_t[p] (x) transition[p, c]
    a_t[c] = (+)_w b_{t-w-1}[c] (x) segments[t-w-1, w, c]
    total  = (+)_c a_n[c].

Taking the labels' sum before the widths' makes a position cost C^2 + W C instead of W C^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from structlearn.errors import LabelError, ShapeError
from structlearn.ops import choose_backend
from structlearn.ops import semimarkov as ops
from structlearn.semirings import Count, Entropy, KMax, Log, Max, Sample, Semiring, evaluate, in_units
from structlearn.structures import checks, segmentation, semimarkov_count
from structlearn.structures.base import PAD, Structure, check_count, marginals_by_autograd, recordable, recording
from structlearn.structures.counting import CountedBest, Counter, CountTable
from structlearn.structures.segmentation import Segment

_NATIVE = ("reference", "cpu", "triton")


class SemiMarkovPotentials(NamedTuple):
    """One tensor a field of :class:`SemiMarkov`."""

    segments: Tensor
    transition: Tensor


def by_end(segments: Tensor) -> Tensor:
    """(B, N, W, C) indexed by start to the same indexed by last position; what would start below 0 is arbitrary."""
    n, w = segments.shape[1:3]
    widths = torch.arange(w, device=segments.device)
    starts = torch.arange(n, device=segments.device)[:, None] - widths
    return segments[:, starts.clamp(min=0), widths]


def total(semiring: Semiring, segments: Tensor, transition: Tensor, lengths: Tensor) -> Tensor:
    """The recurrence above, (width, B). Padded places must hold numbers; they do not change the result."""
    b, n, w, c = segments.shape
    ending = by_end(segments).unbind(1)
    between = (transition,) * n if transition.dim() == 2 else transition.unbind(1)
    whole = semiring.ones_like(segments.new_empty(b))
    if n == 0:
        return whole
    messages = [semiring.ones_like(segments.new_empty((b, c)))]
    for t in range(1, n + 1):
        recent = torch.stack(messages[: -w - 1 : -1], -2)
        a = semiring.sum(semiring.times(recent, semiring.lift(ending[t - 1][:, : recent.shape[-2]])), -2)
        whole = torch.where(lengths == t, semiring.sum(a, -1), whole)
        if t < n:
            matrix = semiring.lift(between[t - 1])
            if transition.dim() == 2:
                matrix = matrix.unsqueeze(1)
            messages.append(semiring.sum(semiring.times(a.unsqueeze(-1), matrix), -2))
    return whole


class SemiMarkov(Structure):
    """s(y) = sum_i segments[t_i, w_i, c_i] + sum_{i>=1} transition[c_{i-1}, c_i] over segments (t_i, w_i, c_i).

    Args:
        segments: (B, N, W, C) score of the segment that starts at n, has width w+1 and label c.
        transition: (C, C) shared, or (B, N-1, C, C) with transition[:, n-1] for a segment that starts at n;
            indexed [previous, current] and added once for every two consecutive segments.
        lengths: (B,) number of positions of each sequence, 0..N; all N if not given. A segment that starts at or
            reaches beyond a length is never read, NaN included. Lengths on the CPU are checked; on a GPU only
            with ``validate``, since reading them back would stall the device.
        backend: "auto", or one of ``ops.backends()``.
        validate: look for NaN and for scores above finfo.max / 4, +inf included, at unpadded places (and, on a GPU,
            at the lengths).

    Outputs are (B, N), int64: the first position of a segment holds w*C + c, its other positions -1, padding -100;
    ``segments_of``, ``labels`` and ``encode`` translate. Of equally good outputs the one is taken whose last label
    is lowest, then whose last width is smallest, and so on towards the front. Half-precision potentials are
    computed in float32.
    """

    fields = ("segments", "transition")
    named = SemiMarkovPotentials

    def __init__(
        self,
        segments: Tensor,
        transition: Tensor,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        backend: str = "auto",
        validate: bool = False,
    ) -> None:
        checks.check_tensor("segments", segments, 4, "(B, N, W, C)")
        b, n, w, c = segments.shape
        if w == 0 or c == 0:
            raise ShapeError(
                "segments",
                "(B, N, W, C) with W >= 1 and C >= 1",
                tuple(segments.shape),
                "an empty output space has no best output",
            )
        if not isinstance(transition, Tensor) or (
            transition.shape != (c, c) and transition.shape != (b, max(n - 1, 0), c, c)
        ):
            raise ShapeError(
                "transition",
                f"(C, C) = {(c, c)} or (B, N-1, C, C) = {(b, max(n - 1, 0), c, c)}"
                f" to match segments {tuple(segments.shape)}",
                tuple(transition.shape) if isinstance(transition, Tensor) else type(transition).__name__,
                "labels come last in segments; transition is indexed [previous, current]",
            )
        self.segments: Tensor
        self.transition: Tensor
        self.segments, self.transition = checks.same_kind({"segments": segments, "transition": transition})
        self.lengths = checks.check_lengths("lengths", lengths, b, n, segments.device)
        self.backend = choose_backend(backend, segments.device.type, _NATIVE)
        if validate:
            if self.lengths is not None:
                checks.check_lengths("lengths", self.lengths.cpu(), b, n, segments.device)
            checks.check_potential("segments", self.segments, self.segment_mask)
            checks.check_potential(
                "transition", self.transition, self.mask[:, 1:] if self.transition.dim() == 4 else None
            )

    @property
    def batch_size(self) -> int:
        return self.segments.shape[0]

    @property
    def mask(self) -> Tensor:
        """(B, N), true at unpadded positions."""
        b, n = self.segments.shape[:2]
        return checks.unpadded(self.lengths, b, n, self.segments.device)

    @property
    def segment_mask(self) -> Tensor:
        """(B, N, W), true for segments that end within the sequence."""
        n, w = self.segments.shape[1:3]
        places = torch.arange(n, device=self.segments.device)
        last = places[:, None] + torch.arange(w, device=self.segments.device)
        return last < self.mask.sum(1)[:, None, None]

    def replace(self, **potentials: Tensor | None) -> Self:
        return type(self)(**self._given(potentials), lengths=self.lengths, backend=self.backend)  # type: ignore[arg-type]

    def same_output(self, y: Tensor, z: Tensor) -> Tensor:
        return ((y == z) | ~self.mask).all(-1)

    def padded(self, y: Tensor) -> Tensor:
        return y.masked_fill(~self.mask, PAD)

    def segments_of(self, y: Tensor) -> list[list[Segment]]:
        """Output (B, N) as a list of (start, last position, label) for each instance, [] where there is none."""
        return segmentation.decode(self.padded(y), self.segments.shape[3])

    def labels(self, y: Tensor) -> Tensor:
        """Output (..., B, N) as the label of every position, padded with -100."""
        return segmentation.spread(self.padded(y), self.segments.shape[3])

    def encode(self, segments: Sequence[Sequence[Segment]]) -> Tensor:
        """Lists of (start, last position, label), one list an instance, as an output (B, N)."""
        n, w, c = self.segments.shape[1:]
        y = segmentation.encode(segments, self.mask.sum(1).tolist(), n, w, c)
        return y.to(self.segments.device)

    @property
    def _args(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.segments, self.transition, self.lengths

    def _reference(self, semiring: Semiring, potentials: SemiMarkovPotentials | None = None) -> Tensor:
        mask, within = self.mask, self.segment_mask

        def recurrence(semiring: Semiring, segments: Tensor, transition: Tensor) -> Tensor:
            segments = segments.masked_fill(~within[..., None], 0.0)
            if transition.dim() == 4:
                transition = transition.masked_fill(~mask[:, 1:, None, None], 0.0)
            return total(semiring, segments, transition, mask.sum(1))

        return evaluate(semiring, recurrence, potentials or self._args[:2])

    def _reference_outputs(self, semiring: Semiring) -> tuple[Tensor, Tensor]:
        """Outputs (width, B, N) and totals (width, B): the segments of output i are the gradient of total i."""
        with recording():
            segments = recordable(self.segments).requires_grad_()
            scores = self._reference(semiring, SemiMarkovPotentials(segments, recordable(self.transition)))
            hot = torch.stack([torch.autograd.grad(s.sum(), segments, retain_graph=True)[0] for s in scores])
        scores = scores.detach()
        keep = self.mask & (scores > float("-inf"))[..., None]
        return segmentation.from_parts(hot).masked_fill(~keep, PAD), scores

    def _best(self) -> tuple[Tensor, Tensor]:
        if self.backend != "reference":
            codes, best = ops.viterbi(*self._args, self.backend)
            return codes, best
        y, scores = self._reference_outputs(Max())
        return y[0], scores[0]

    def max(self) -> Tensor:
        if self.backend == "cpu":
            score: Tensor = ops.best_score(*self._args)[0]
            return score
        if self.backend == "triton":
            y, value = self._best()
            missing = value == float("-inf")
            scores = self.score(y.masked_fill(missing[:, None], 0))  # look-ups, to carry the gradient
            return torch.where(missing, value, value + (scores - scores.detach()))
        value = self._reference(Max())[0]
        return torch.where(value == float("-inf"), value.detach(), value)

    def score(self, y: Tensor) -> Tensor:
        """s(y) for outputs (B, N), or (K, B, N) with scores (K, B); what y holds at padded positions is ignored."""
        y = checks.check_label_tensor("y", y, tuple(self.segments.shape[:2]), self.segments.device)
        mask = self.mask
        if self.backend == "cpu":
            try:
                scores: Tensor = ops.score(*self._args, y.reshape(math.prod(y.shape[:-2]), *y.shape[-2:]))
                return scores.view(y.shape[:-1])
            except LabelError:
                segmentation.check(y, mask, *self.segments.shape[2:])  # says what is wrong
                raise
        segmentation.check(y, mask, *self.segments.shape[2:])
        y = y.masked_fill(~mask, segmentation.INSIDE)
        return in_units(lambda _, *wide: _score_reference(wide[0], wide[1], y), self._args[:2])

    def log_partition(self) -> Tensor:
        if self.backend != "reference":
            keep = torch.is_grad_enabled() and any(x.requires_grad for x in self.potentials.values())
            log_z: Tensor = ops.forward(*self._args, keep, self.backend)[0]
            return log_z
        return self._reference(Log())[0]

    def marginals(self) -> SemiMarkovPotentials:
        """d (sum_b log Z_b) / d potentials.

        segments (B, N, W, C) holds P(a segment starts at n with width w+1 and label c); a per-position transition
        (B, N-1, C, C) holds P(a segment of label p ends at n and one of label c starts at n+1), a shared one (C, C)
        the expected number of uses in the whole batch. Differentiable.
        """
        if self.backend != "reference":
            given = (self.segments.detach(), self.transition.detach(), self.lengths)
            log_z, values, scales = ops.forward(*given, True, self.backend)
            return SemiMarkovPotentials(
                *ops.backward(*self._args, values, scales, torch.ones_like(log_z), self.backend)
            )
        found: SemiMarkovPotentials = marginals_by_autograd(self)
        return found

    def positions(self, y: Tensor) -> tuple[Tensor, Tensor, int, torch.dtype]:
        y = checks.check_label_tensor("y", y, tuple(self.segments.shape[:2]), self.segments.device)
        mask, (w, c) = self.mask, self.segments.shape[2:]
        segmentation.check(y, mask, w, c)
        return self.labels(y).masked_fill(~mask, 0), mask, c, self.segments.dtype

    def parts_of_positions(self, table: Tensor) -> dict[str, Tensor]:
        n, w = self.segments.shape[1:3]
        places = torch.arange(n, device=table.device)[:, None] + torch.arange(w, device=table.device)
        within = self.segment_mask[..., None]
        if n == 0:
            return {"segments": table.new_zeros((*table.shape[:2], w, table.shape[2]))}
        covered = torch.where(within, table[:, places.clamp(max=n - 1)], 0)
        return {"segments": covered.cumsum(2).masked_fill(~within, 0)}

    def forbidden_place(self, y: Tensor, row: int) -> str:
        found = self.segments_of(y)[row]
        for i, (start, last, label) in enumerate(found):
            if self.segments[row, start, last - start, label] == float("-inf"):
                return f", segment {start}..{last} with label {label}"
            if i == 0:
                continue
            matrix = self.transition if self.transition.dim() == 2 else self.transition[row, start - 1]
            if matrix[found[i - 1][2], label] == float("-inf"):
                return f", transition {found[i - 1][2]} -> {label} into position {start}"
        return ""

    def max_by_count(self, counter: Counter) -> CountTable:
        return semimarkov_count.max_by_count(self, counter)

    def best_by_count(self, counter: Counter, offset: Tensor, slope: Tensor) -> CountedBest:
        return semimarkov_count.best_by_count(self, counter, offset, slope)

    def count(self) -> Tensor:
        """Number of outputs that are not forbidden, (B,), float64."""
        return self._reference(Count())[0]

    def entropy(self) -> Tensor:
        if self.backend == "cpu":
            value: Tensor = ops.entropy(*self._args)
            return value
        return self._reference(Entropy())[1]

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """Outputs (k, B, N) and scores (k, B) of the k best, best first; the scores are differentiable."""
        check_count("k", k)
        if self.backend == "reference":
            y, scores = self._reference_outputs(KMax(k))
        else:
            y, scores = ops.kbest(*self._args, k, self.backend)
        if torch.is_grad_enabled() and any(x.requires_grad for x in self.potentials.values()):
            missing = scores == float("-inf")
            # 0 at every position is an output too: segments of width 1 and label 0.
            scores = self.score(y.masked_fill(missing[..., None], 0)).masked_fill(missing, float("-inf"))
        return y, scores

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """n draws from p(y) = exp(s(y)) / Z, outputs (n, B, N), all -100 where every output is forbidden."""
        check_count("n", n)
        b, size = self.segments.shape[:2]
        if self.backend != "reference":
            uniform = torch.rand(
                (n, b, size, 2), generator=generator, dtype=self.segments.dtype, device=self.segments.device
            )
            y: Tensor = ops.sample(*self._args, uniform, self.backend)
            return y
        # One draw from each of n copies of the batch: a single backward pass for all of them.
        lengths = None if self.lengths is None else self.lengths.repeat(n)
        transition = self.transition if self.transition.dim() == 2 else self.transition.repeat(n, 1, 1, 1)
        copies = type(self)(self.segments.repeat(n, 1, 1, 1), transition, lengths=lengths, backend="reference")
        return copies._reference_outputs(Sample(1, generator))[0].view(n, b, size)


def _score_reference(segments: Tensor, transition: Tensor, y: Tensor) -> Tensor:
    """s(y) by look-ups, for outputs (..., B, N) with -1 at padded positions."""
    b, n, _, c = segments.shape
    if n == 0:
        return segments.new_zeros(y.shape[:-1])
    rows = torch.arange(b, device=segments.device)[:, None]
    places = torch.arange(n, device=segments.device)
    zero = segments.new_zeros(())
    at = torch.where(y >= 0, segments.flatten(2)[rows, places, y.clamp(min=0)], zero).sum(-1)
    label = segmentation.spread(y, c)
    previous, current, used = label[..., :-1], label[..., 1:], y[..., 1:] >= 0
    steps = transition[previous, current] if transition.dim() == 2 else transition[rows, places[:-1], previous, current]
    return at + torch.where(used, steps, zero).sum(-1)
