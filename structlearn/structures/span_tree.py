"""Labelled binary trees over the words of a sentence, scored span by span.

A tree over n words has 2n-1 spans: the n single words and n-1 larger ones, each cut in two. With a label on
every span, Y has Catalan(n-1) * L**(2n-1) members, and

    s(y) = sum over the spans i..j of y of spans[i, j, label of i..j].

Recurrence over any semiring, by width:

    a[i, i] = (+)_l spans[i, i, l]
    a[i, j] = (+)_l ( (+)_{i <= k < j} a[i, k] (x) a[k+1, j] ) (x) spans[i, j, l]
    total   = a[0, n-1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from structlearn.errors import ShapeError
from structlearn.ops import choose_backend, value_and_gradient
from structlearn.ops import span_tree as ops
from structlearn.ops._native import (
    span_tree_best,
    span_tree_fits,
    span_tree_log_partition,
    span_tree_value_and_gradient,
)
from structlearn.ops._register import is_eager
from structlearn.ops.value_and_gradient import span_tree_again
from structlearn.semirings import Count, Entropy, KMax, Log, Max, Sample, Semiring, evaluate, in_units
from structlearn.structures import charts, checks, span_tree_count
from structlearn.structures.base import PAD, Structure, check_count, marginals_by_autograd, recordable, recording
from structlearn.structures.counting import CountedBest, Counter, CountTable
from structlearn.trees import Tree

_NATIVE = ("reference", "cpu", "triton", "torch-struct")
_CPU = ("auto", "cpu")


class SpanTreePotentials(NamedTuple):
    """The one field of :class:`SpanTree`."""

    spans: Tensor


def total(semiring: Semiring, spans: Tensor, lengths: Tensor) -> Tensor:
    """The recurrence above, (width, B), for elements (width, B, N, N, L) of the semiring and lengths (B,).

    Padded spans must hold numbers; they do not change the result.
    """
    b, n = spans.shape[1:3]
    one = semiring.ones_like(spans.new_empty(b))
    if n == 0:
        return one
    # by_width[w-1]: (width, B, N-w+1), the spans of w words by their first one.
    labels = [spans.diagonal(w, 2, 3).movedim(-1, 2) for w in range(n)]
    by_width = [semiring.sum(labels[0], -1)]
    for w in range(1, n):
        starts = n - w
        left = torch.stack([by_width[u][..., :starts] for u in range(w)], -1)
        right = torch.stack([by_width[w - 1 - u][..., u + 1 : u + 1 + starts] for u in range(w)], -1)
        splits = semiring.sum(semiring.times(left, right), -1)
        by_width.append(semiring.sum(semiring.times(splits.unsqueeze(-1), labels[w]), -1))
    roots = torch.stack([a[..., 0] for a in by_width], -1)
    last = (lengths - 1).clamp(min=0).expand(roots.shape[:-1]).unsqueeze(-1)
    return torch.where(lengths > 0, roots.gather(-1, last).squeeze(-1), one)


class SpanTree(Structure):
    """s(y) = sum over the spans i..j of a labelled binary tree of spans[i, j, label].

    Args:
        spans: (B, N, N, L) score of label l on the words i..j, both inclusive, i <= j; the rest is never read.
            Single words are spans too. To leave a span unlabelled in the end (a binarised treebank), give it
            a label that means "none".
        lengths: (B,) number of words of each sentence, 0..N; all N if not given. Spans that end at or beyond a
            length are never read, NaN included. Lengths on the CPU are checked; on a GPU only with ``validate``.
        backend: "auto", or one of ``ops.backends()``.
        validate: look for NaN and for scores above finfo.max / 4, +inf included, at unpadded spans (and, on a GPU, at
            the lengths).

    Outputs are charts (B, N, N), int64: the label of every span of the tree, -100 everywhere else;
    :meth:`trees` turns them into :class:`structlearn.trees.Tree`. Ties: the lowest label, then the first cut,
    then the same in the left part and in the right part. Half-precision potentials are computed in float32.
    """

    fields = ("spans",)
    named = SpanTreePotentials

    def __init__(
        self,
        spans: Tensor,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        backend: str = "auto",
        validate: bool = False,
    ) -> None:
        self.spans: Tensor
        fast = backend in _CPU and not validate and not is_dynamo_compiling()
        if fast and span_tree_fits(spans, lengths) and checks.savable(lengths):
            self.spans = spans
            self.lengths: Tensor | None = lengths  # type: ignore[assignment]
            self.backend = "cpu"
            return
        checks.check_tensor("spans", spans, 4, "(B, N, N, L)")
        b, n, m, labels = spans.shape
        if n != m or labels == 0:
            expected = "(B, N, N, L) with L >= 1"
            raise ShapeError("spans", expected, tuple(spans.shape), "index it [sentence, first word, last word, label]")
        (self.spans,) = checks.same_kind({"spans": spans})  # type: ignore[assignment]
        self.lengths = checks.check_lengths("lengths", lengths, b, n, spans.device)
        self.backend = choose_backend(backend, spans.device.type, _NATIVE)
        if validate:
            if self.lengths is not None:
                checks.check_lengths("lengths", self.lengths.cpu(), b, n, spans.device)
            checks.check_potential("spans", self.spans, self.mask)

    @property
    def batch_size(self) -> int:
        return self.spans.shape[0]

    @property
    def mask(self) -> Tensor:
        """(B, N, N), true at the spans of each sentence."""
        return charts.span_mask(self.lengths, self.batch_size, self.spans.shape[1], self.spans.device)

    def replace(self, **potentials: Tensor | None) -> Self:
        return type(self)(**self._given(potentials), lengths=self.lengths, backend=self.backend)  # type: ignore[arg-type]

    def same_output(self, y: Tensor, z: Tensor) -> Tensor:
        """Whether trees (..., B, N, N) are equal, (..., B)."""
        return ((y == z) | ~self.mask).flatten(-2).all(-1)

    def padded(self, y: Tensor) -> Tensor:
        return y.masked_fill(~self.mask, PAD)

    @property
    def absent(self) -> int:
        return self.spans.shape[3]

    def position_counts(self, mask: Tensor) -> Tensor:
        return charts.tree_sizes(self._lengths)

    def positions(self, y: Tensor) -> tuple[Tensor, Tensor, int, torch.dtype]:
        y = checks.check_label_tensor("y", y, tuple(self.spans.shape[:3]), self.spans.device)
        mask = self.mask
        charts.check_trees(y, mask, self.spans.shape[3])
        return charts.cells(y, mask, self.absent), mask.flatten(1), self.absent + 1, self.spans.dtype

    def parts_of_positions(self, table: Tensor) -> dict[str, Tensor]:
        return {"spans": table[..., :-1].reshape(self.spans.shape)}

    def max_by_count(self, counter: Counter) -> CountTable:
        return span_tree_count.max_by_count(self, counter)

    def best_by_count(self, counter: Counter, offset: Tensor, slope: Tensor) -> CountedBest:
        return span_tree_count.best_by_count(self, counter, offset, slope)

    def trees(
        self, y: Tensor, words: Sequence[Sequence[str]] | None = None, labels: Sequence[str] | None = None
    ) -> list[Tree | None]:
        """The charts (B, N, N) as trees, None for an empty sentence.

        Args:
            y: labels of the spans, as from :meth:`argmax`.
            words: the words of each sentence; their positions if not given.
            labels: L names; label numbers if not given.
        """
        names = labels or [str(label) for label in range(self.spans.shape[3])]
        return charts.trees(y, self.mask, lambda label, start, end: names[label], words)

    def _reference(self, semiring: Semiring, spans: Tensor | None = None) -> Tensor:
        padding, lengths = ~self.mask[..., None], self._lengths

        def recurrence(semiring: Semiring, spans: Tensor) -> Tensor:
            return total(semiring, semiring.lift(spans.masked_fill(padding, 0.0)), lengths)

        return evaluate(semiring, recurrence, [self.spans if spans is None else spans])

    def _total(self, semiring: Semiring, spans: Tensor | None = None) -> Tensor:
        """:meth:`_reference`, by torch-struct where that is the backend and has an answer."""
        if self.backend == "torch-struct" and isinstance(semiring, (Log, Max)):
            from structlearn.torch_struct.span_tree import total

            return total(self, semiring, self.spans if spans is None else spans)
        return self._reference(semiring, spans)

    @property
    def _lengths(self) -> Tensor:
        if self.lengths is not None:
            return self.lengths
        return torch.full((self.batch_size,), self.spans.shape[1], device=self.spans.device)

    def _reference_outputs(self, semiring: Semiring) -> tuple[Tensor, Tensor]:
        """Charts (width, B, N, N) and totals (width, B): the parts of output i are the gradient of total i."""
        with recording():
            spans = recordable(self.spans).requires_grad_()
            scores = self._total(semiring, spans)
            return self._charts(scores, scores, spans), scores.detach()

    def _charts(self, totals: Tensor, scores: Tensor, spans: Tensor) -> Tensor:
        """Charts (..., B, N, N) of the outputs that the gradients of ``totals`` (..., B) mark, PAD if forbidden."""
        hot = torch.stack([torch.autograd.grad(s.sum(), spans, retain_graph=True)[0] for s in totals])
        keep = (hot.amax(-1) > 0.5) & self.mask & (scores > float("-inf"))[..., None, None]
        return hot.argmax(-1).masked_fill(~keep, PAD)

    def _best(self) -> tuple[Tensor, Tensor]:
        if self.backend in ("reference", "torch-struct"):
            labels, scores = self._reference_outputs(Max())
            return labels[0], scores[0]
        labels, score = ops.best(self.spans, self.lengths, self.backend)
        return labels, score

    def argmax(self) -> Tensor:
        if self.backend == "cpu" and not is_dynamo_compiling():
            found: Tensor | None = span_tree_best(self.spans, self.lengths)
            if found is not None:
                return found
        if self.backend != "cpu" or not is_eager(self.spans):
            return super().argmax()  # type: ignore[no-any-return]
        labels, without = ops.decode(self.spans, self.lengths)
        if without:
            self._require_feasible(self.max())
        return labels

    def max(self) -> Tensor:
        if self.backend in ("reference", "torch-struct"):
            best = self._total(Max())[0]
            return torch.where(best == float("-inf"), best.detach(), best)  # no output, no gradient
        if self.backend == "triton":
            labels, best = ops.best(self.spans, self.lengths, self.backend)
            return self._scores(labels, best) if torch.is_grad_enabled() and self.spans.requires_grad else best
        score: Tensor = ops.best_score(self.spans, self.lengths, self.backend)[1]
        return score

    def _scores(self, labels: Tensor, scores: Tensor) -> Tensor:
        """``scores`` of trees (..., B, N, N), differentiable; -inf, and no gradient, where there is no tree."""
        found = scores > float("-inf")
        trees = torch.where(found[..., None, None], labels, charts.left_branching(self.mask))
        return self.score(trees).masked_fill(~found, float("-inf"))

    def score(self, y: Tensor) -> Tensor:
        """s(y) for trees (B, N, N), or (..., B, N, N) with scores (..., B); padded spans are ignored."""
        y = checks.check_label_tensor("y", y, tuple(self.spans.shape[:3]), self.spans.device)
        if self.backend == "cpu":
            scores: Tensor = ops.score(self.spans, self.lengths, y.reshape(math.prod(y.shape[:-3]), *y.shape[-3:]))
            return scores.view(y.shape[:-2])
        used = (y != PAD) & self.mask
        charts.check_trees(y, self.mask, self.spans.shape[3])
        at = y.masked_fill(~used, 0).unsqueeze(-1)

        def look_up(_: float, spans: Tensor) -> Tensor:
            picked = spans.expand(*y.shape, -1).gather(-1, at).squeeze(-1)
            return torch.where(used, picked, 0.0).sum((-2, -1))

        return in_units(look_up, [self.spans])

    def log_partition(self) -> Tensor:
        if self.backend == "cpu" and not is_dynamo_compiling():
            found: Tensor | None = span_tree_log_partition(self.spans, self.lengths, span_tree_again)
            if found is not None:
                return found
        if self.backend in ("reference", "torch-struct"):
            return self._total(Log())[0]
        keep = torch.is_grad_enabled() and self.spans.requires_grad
        if keep and self.backend == "cpu" and is_eager(self.spans):
            return value_and_gradient.span_tree_log_partition(self.spans, self.lengths)
        log_z: Tensor = ops.forward(self.spans, self.lengths, keep, self.backend)[0]
        return log_z

    def marginals(self) -> SpanTreePotentials:
        """P(i..j is a span of the tree, with label l), (B, N, N, L), 0 at padded spans. Differentiable."""
        if self.backend not in ("cpu", "triton"):
            found: SpanTreePotentials = marginals_by_autograd(self)
            return found
        log_z, chart = ops.forward(self.spans.detach(), self.lengths, True, self.backend)
        ones = torch.ones_like(log_z)
        return SpanTreePotentials(ops.backward(self.spans, self.lengths, chart, log_z, ones, self.backend))

    def log_partition_and_marginals(self) -> tuple[Tensor, SpanTreePotentials]:
        if self.backend == "cpu" and not is_dynamo_compiling():
            found = span_tree_value_and_gradient(self.spans, self.lengths)
            if found is not None:
                return found[0], SpanTreePotentials(found[1])
        if self.backend != "cpu" or not is_eager(self.spans):
            return super().log_partition_and_marginals()
        log_z, gradient = value_and_gradient.span_tree(self.spans, self.lengths)
        return log_z, SpanTreePotentials(gradient[0])

    def count(self) -> Tensor:
        """Number of trees that are not forbidden, (B,), float64."""
        return self._reference(Count())[0]

    def entropy(self) -> Tensor:
        if self.backend == "cpu":
            value: Tensor = ops.entropy(self.spans, self.lengths)
            return value
        return self._reference(Entropy())[1]

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """Trees (k, B, N, N) and scores (k, B), best first; the scores are differentiable.

        Equal scores: the lowest label, then the first cut, then the better left part, then the same inside the parts.
        """
        check_count("k", k)
        if self.backend == "cpu":
            labels, scores = ops.kbest(self.spans, self.lengths, k)
        else:
            labels, scores = self._reference_outputs(KMax(k))
        if torch.is_grad_enabled() and self.spans.requires_grad:
            scores = self._scores(labels, scores)
        return labels, scores

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """n draws from p(y) = exp(s(y)) / Z, trees (n, B, N, N), all -100 where every tree is forbidden."""
        check_count("n", n)
        if self.backend != "cpu":
            return self._reference_outputs(Sample(n, generator))[0]
        shape = (n, self.batch_size, max(2 * self.spans.shape[1] - 1, 0), 2)
        uniform = torch.rand(shape, generator=generator, dtype=self.spans.dtype, device=self.spans.device)
        labels: Tensor = ops.sample(self.spans, self.lengths, uniform, self.backend)
        return labels
