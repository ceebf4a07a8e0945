"""Span trees through torch-struct.

torch-struct's ``TreeCRF`` has the parts of :class:`SpanTree`: potentials (B, N, N, L), every span of a binary tree
counted, single words included. It has no empty sentence, so those stand as one word.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.semirings import Semiring
from structlearn.structures.span_tree import SpanTree
from structlearn.torch_struct.engine import FORBIDDEN, Theirs, refused, through


def _filled(structure: SpanTree, spans: Tensor) -> Tensor:
    """A copy, since torch-struct makes its potentials ask for gradients."""
    if spans.numel() == 0:
        raise refused("at least one word", tuple(spans.shape))
    return spans.masked_fill(~structure.mask[..., None], 0.0)


def to_torch_struct(structure: SpanTree) -> Any:
    """``torch_struct.TreeCRF`` with the same distribution as ``structure``.

    Its zero is finite: forbidden spans get ``FORBIDDEN``, and so do scores below that.
    """
    from torch_struct import TreeCRF

    spans = _filled(structure, structure.spans).clamp(min=FORBIDDEN)
    return TreeCRF(spans, lengths=structure._lengths.clamp(min=1))


def from_torch_struct(distribution: Any, *, backend: str = "auto") -> SpanTree:
    """The :class:`SpanTree` with the distribution of a ``torch_struct.TreeCRF``."""
    return SpanTree(distribution.log_potentials, lengths=distribution.lengths, backend=backend)


def total(structure: SpanTree, semiring: Semiring, spans: Tensor) -> Tensor:
    """The total (1, B) over Log or Max, by torch-struct's recurrence."""
    from torch_struct import CKY_CRF

    lengths = structure._lengths

    def recurrence(semiring: Semiring, spans: Tensor) -> Tensor:
        found: Tensor = CKY_CRF(Theirs(semiring)).logpartition(_filled(structure, spans), lengths.clamp(min=1))[0]
        return torch.where(lengths > 0, found, 0.0)

    return through(semiring, recurrence, [spans])
