"""supar's LinearChainCRF: transition (C+1,C+1), whose last row and column are start and end, here 0."""

from collections.abc import Callable
from typing import Any

from benchmarks.cases import ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import inputs, read_labels, read_partition


def _bordered(transition: Any) -> Any:
    import torch

    return torch.nn.functional.pad(transition.detach(), (0, 1, 0, 1))


def chain_viterbi(case: ChainCase) -> Callable[[], Any]:
    from supar import LinearChainCRF  # type: ignore[import-untyped]

    unary, transition, lengths = inputs(case)
    bordered = _bordered(transition)
    return lambda: LinearChainCRF(unary, bordered, lengths).argmax


def chain_partition(case: ChainCase) -> Callable[[], Any]:
    from supar import LinearChainCRF  # type: ignore[import-untyped]

    unary, transition, lengths = inputs(case, grad=True)
    bordered = _bordered(transition).requires_grad_()

    def call() -> Any:
        unary.grad = bordered.grad = None
        log_z = LinearChainCRF(unary, bordered, lengths).log_partition
        log_z.sum().backward()
        return log_z, unary.grad, bordered.grad[:-1, :-1]

    return call


CONTESTANTS = {
    "chain_viterbi": (Contestant("supar", chain_viterbi, read_labels, ("supar",), family="supar"),),
    "chain_partition": (Contestant("supar", chain_partition, read_partition, ("supar",), family="supar"),),
}
