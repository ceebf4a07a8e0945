"""torch-struct's LinearChainCRF. It takes (B,N-1,C,C) [current, previous], so making that belongs to the call."""

import math
import os
from collections.abc import Callable
from typing import Any

from benchmarks.cases import ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import differentiate, inputs, read_labels, read_partition


def _too_large(case: ChainCase) -> str | None:
    """Its products of (C,C) by (C,C) matrices are broadcast: the first level makes (B, N'/2, C, C, C) float32."""
    batch, positions, labels = case.shape
    padded = 2 ** math.ceil(math.log2(max(2, positions - 1)))
    asked = batch * padded // 2 * labels**3 * 4
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Autograd keeps several of that size, hence a quarter.
    return f"out of memory ({asked / 1e9:.0f} GB asked)" if asked > memory / 4 else None


def _edges(unary: Any, transition: Any) -> Any:
    import torch

    edges = transition.t() + unary[:, 1:, :, None]
    first = edges[:, :1] + unary[:, :1, None, :]
    return torch.cat([first, edges[:, 1:]], 1)


def chain_viterbi(case: ChainCase) -> Callable[[], Any]:
    import torch
    from torch_struct import LinearChainCRF

    unary, transition, lengths = inputs(case)

    def call() -> Any:
        parts = LinearChainCRF(_edges(unary, transition), lengths=lengths).argmax
        # Its own from_parts walks over every edge in Python; this is the quickest way to labels.
        return torch.cat([parts[:, :1].sum(2).argmax(2), parts.sum(3).argmax(2)], 1)

    return call


def chain_partition(case: ChainCase) -> Callable[[], Any]:
    from torch_struct import LinearChainCRF

    unary, transition, lengths = inputs(case, grad=True)
    return differentiate(lambda u, t: LinearChainCRF(_edges(u, t), lengths=lengths).partition, unary, transition)


def _contestant(prepare: Any, read: Any) -> Contestant:
    return Contestant("torch-struct", prepare, read, ("torch_struct",), family="torch-struct", cannot=_too_large)


CONTESTANTS = {
    "chain_viterbi": (_contestant(chain_viterbi, read_labels),),
    "chain_partition": (_contestant(chain_partition, read_partition),),
}
