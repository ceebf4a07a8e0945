"""What torch itself takes for log Z with its gradient: a floor under everything that goes through its autograd."""

from collections.abc import Callable
from typing import Any

from benchmarks.cases import ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import differentiate, inputs


def gradients(*leaves: Any) -> Callable[[], Any]:
    """Gradients that copy the inputs, and the sum of a leaf in place of log Z (B,) with its backward pass."""
    import torch

    log_z = torch.zeros(leaves[0].shape[0], requires_grad=True)
    rest = differentiate(lambda log_z: log_z, log_z)

    def call() -> Any:
        return [torch.clone(x) for x in leaves], rest()

    return call


def chain_partition(case: ChainCase) -> Callable[[], Any]:
    unary, transition, _ = inputs(case)
    return gradients(unary, transition)


NAME = "torch alone: copies, sum and backward"

CONTESTANTS = {"chain_partition": (Contestant(NAME, chain_partition, role="floor"),)}
