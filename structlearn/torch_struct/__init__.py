"""Adapters between structlearn and the torch-struct package, one module a structure.

===============  ===================
structlearn      torch-struct
===============  ===================
``LinearChain``  ``LinearChainCRF``
``SemiMarkov``   ``SemiMarkovCRF``
``SpanTree``     ``TreeCRF``
``WeightedCFG``  ``SentCFG``
===============  ===================
"""

from __future__ import annotations

from typing import Any

from structlearn.errors import ArgumentError
from structlearn.structures import LinearChain, SemiMarkov, SpanTree, Structure, WeightedCFG
from structlearn.torch_struct import chain, grammar, semimarkov, span_tree


def to_torch_struct(structure: Structure) -> Any:
    """The torch-struct distribution that gives outputs the probabilities that ``structure`` gives them."""
    if isinstance(structure, LinearChain):
        return chain.to_torch_struct(structure)
    if isinstance(structure, SemiMarkov):
        return semimarkov.to_torch_struct(structure)
    if isinstance(structure, SpanTree):
        return span_tree.to_torch_struct(structure)
    if isinstance(structure, WeightedCFG):
        return grammar.to_torch_struct(structure)
    raise ArgumentError(
        "structure",
        "a LinearChain, SemiMarkov, SpanTree or WeightedCFG",
        type(structure).__name__,
        "torch-struct has nothing that stands for it",
    )


def from_torch_struct(distribution: Any, *, backend: str = "auto") -> Structure:
    """The structure that gives outputs the probabilities that a torch-struct ``distribution`` gives them."""
    name = type(distribution).__name__
    if name == "LinearChainCRF":
        return chain.from_torch_struct(distribution, backend=backend)
    if name == "SemiMarkovCRF":
        return semimarkov.from_torch_struct(distribution, backend=backend)
    if name == "TreeCRF":
        return span_tree.from_torch_struct(distribution, backend=backend)
    if name == "SentCFG":
        return grammar.from_torch_struct(distribution, backend=backend)
    raise ArgumentError(
        "distribution",
        "a torch_struct.LinearChainCRF, SemiMarkovCRF, TreeCRF or SentCFG",
        name,
        "no structure here stands for it",
    )
