"""Search spaces of structures: the same outputs with the same scores, found from left to right."""

from __future__ import annotations

from typing import Any

from structlearn.errors import ArgumentError
from structlearn.search.space import SearchSpace
from structlearn.search.spaces.chunking import ChunkingSpace
from structlearn.search.spaces.shift_reduce import ShiftReduceSpace
from structlearn.search.spaces.tagging import TaggingSpace
from structlearn.structures import LinearChain, SemiMarkov, SpanTree, Structure


def space_of(structure: Structure) -> SearchSpace[Any]:
    """The space of a chain (:class:`TaggingSpace`), of a semi-Markov chain (:class:`ChunkingSpace`) or of trees
    (:class:`ShiftReduceSpace`); outputs and gold are those of the structure.
    """
    if isinstance(structure, LinearChain) and structure.transition.dim() == 2 and structure.end is None:
        return TaggingSpace(structure.unary, structure.transition, start=structure.start, lengths=structure.lengths)
    if isinstance(structure, SemiMarkov) and structure.transition.dim() == 2:
        return ChunkingSpace(structure.segments, structure.transition, lengths=structure.lengths)
    if isinstance(structure, SpanTree):
        return ShiftReduceSpace(structure.spans, lengths=structure.lengths)
    expected = "a chain or semi-Markov chain with one transition table and no end scores, or a SpanTree"
    raise ArgumentError("structure", expected, type(structure).__name__, "derive a SearchSpace for it")
