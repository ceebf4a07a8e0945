"""Span trees through torch-struct.

torch-struct's ``TreeCRF`` has the parts of :class:`SpanTree`: potentials (B, N, N, L), every span of a binary tree
counted, single words included. Its zero is finite, so forbidden parts get ``FORBIDDEN`` and totals are told apart as in
``chain.py``, or refused; it has no empty sentence, so those stand as one word. Its recurrence is generic over
semirings, and takes ours, so that ties fall as in every other backend.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.errors import BackendError
from structlearn.semirings import Max
from structlearn.structures.base import recordable, recording
from structlearn.structures.span_tree import SpanTree
from structlearn.torch_struct.chain import FORBIDDEN, score_bounds, without_forbidden


def to_torch_struct(structure: SpanTree) -> Any:
    """``torch_struct.TreeCRF`` with the same distribution as ``structure``."""
    from torch_struct import TreeCRF

    return TreeCRF(_spans(structure), lengths=structure._lengths.clamp(min=1))


def from_torch_struct(distribution: Any, *, backend: str = "auto") -> SpanTree:
    """The :class:`SpanTree` with the distribution of a ``torch_struct.TreeCRF``."""
    return SpanTree(distribution.log_potentials, lengths=distribution.lengths, backend=backend)


def _spans(structure: SpanTree) -> Tensor:
    if structure.spans.numel() == 0:
        raise BackendError("backend", "at least one word for torch-struct", tuple(structure.spans.shape), "pass 'auto'")
    # A copy, since torch-struct makes its potentials ask for gradients.
    return structure.spans.masked_fill(~structure.mask[..., None], 0.0).clamp(min=FORBIDDEN)


class _FirstMax:
    """Our max semiring in the words of torch-struct: the lowest index among equals."""

    def size(self) -> int:
        return 1

    def convert(self, potentials: Tensor) -> Tensor:
        return potentials.unsqueeze(0)

    def zero_(self, xs: Tensor) -> Tensor:
        return xs.fill_(FORBIDDEN)

    def sum(self, xs: Tensor) -> Tensor:
        return Max().sum(xs, -1)

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return self.sum(a + b)


class SpanTreeQueries:
    """The queries of a :class:`SpanTree` answered by torch-struct."""

    def __init__(self, structure: SpanTree) -> None:
        self._structure = structure
        self._differentiable = torch.is_grad_enabled() and structure.spans.requires_grad

    def _clean(self, scores: Tensor) -> Tensor:
        """-inf below any real score, 0 for empty sentences."""
        spans = self._structure.spans.masked_fill(~self._structure.mask[..., None], 0.0)
        empty = self._structure._lengths == 0
        scores = without_forbidden(scores.masked_fill(empty, 0.0), score_bounds((spans, 2 * spans.shape[1])))
        scores = scores.masked_fill(empty, 0.0)
        return scores if self._differentiable else scores.detach()

    def log_partition(self) -> Tensor:
        return self._clean(to_torch_struct(self._structure).partition)

    def max(self) -> Tensor:
        return self._clean(self._totals(_spans(self._structure))[0])

    def best(self) -> tuple[Tensor, Tensor]:
        with recording():
            spans = recordable(_spans(self._structure)).requires_grad_()
            totals = self._totals(spans)
            scores = self._clean(totals.detach()).detach()
            return self._structure._charts(totals, scores, spans)[0], scores[0]

    def _totals(self, spans: Tensor) -> Tensor:
        from torch_struct import CKY_CRF

        totals: Tensor = CKY_CRF(_FirstMax()).logpartition(spans, self._structure._lengths.clamp(min=1))[0]
        return totals
