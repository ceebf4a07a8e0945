"""Forbidden transitions of a chain.

    s'(y) = s(y) if every step of y is allowed, else -inf

The masked chain is an ordinary :class:`LinearChain`, so the same mask holds in training, in loss-augmented inference
and in decoding; a gold labelling that breaks it is reported with its place by every loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from structlearn.errors import ShapeError
from structlearn.structures import LinearChain
from structlearn.tags import Scheme, allowed_transitions, parse_tags


class ChainMask:
    """Allowed transitions (C, C) [previous, current], first labels (C,) and last labels (C,), all bool.

    ``mask(chain)`` is the chain with -inf at what is not allowed.
    """

    def __init__(self, transition: Tensor, start: Tensor | None = None, end: Tensor | None = None) -> None:
        if transition.dim() != 2 or transition.shape[0] != transition.shape[1]:
            raise ShapeError(
                "transition", "(C, C), true where allowed", tuple(transition.shape), "index it [previous, current]"
            )
        count = transition.shape[0]
        for name, edge in (("start", start), ("end", end)):
            if edge is not None and edge.shape != (count,):
                raise ShapeError(name, f"(C,) = ({count},), true where allowed", tuple(edge.shape), "one entry a label")
        self.transition = transition.bool()
        self.start = torch.ones(count, dtype=torch.bool) if start is None else start.bool()
        self.end = torch.ones(count, dtype=torch.bool) if end is None else end.bool()

    @classmethod
    def from_tags(cls, tags: Sequence[str], scheme: Scheme = "BIO") -> ChainMask:
        """Only valid tag sequences of a scheme: BIO, BIOES or IOB1."""
        return cls(*allowed_transitions(parse_tags(tags, scheme)))

    def __and__(self, other: ChainMask) -> ChainMask:
        return ChainMask(self.transition & other.transition, self.start & other.start, self.end & other.end)

    def __call__(self, chain: LinearChain) -> LinearChain:
        """The chain restricted to what the mask allows."""
        count = chain.unary.shape[2]
        if self.transition.shape[0] != count:
            raise ShapeError(
                "mask", f"{count} labels, as the chain has", self.transition.shape[0], "build it from the same labels"
            )

        def edge(allowed: Tensor, scores: Tensor | None) -> Tensor | None:
            if bool(allowed.all()):
                return scores
            scores = chain.unary.new_zeros(count) if scores is None else scores
            return scores.masked_fill(~allowed.to(scores.device), float("-inf"))

        return chain.replace(
            transition=chain.transition.masked_fill(~self.transition.to(chain.transition.device), float("-inf")),
            start=edge(self.start, chain.start),
            end=edge(self.end, chain.end),
        )
