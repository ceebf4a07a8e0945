"""structlearn as a user calls it."""

from collections.abc import Callable
from typing import Any

from benchmarks.cases import ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import differentiate, inputs, read_labels, read_partition


def chain_viterbi(case: ChainCase) -> Callable[[], Any]:
    import structlearn as sl

    unary, transition, lengths = inputs(case)
    return lambda: sl.LinearChain(unary, transition, lengths=lengths).argmax()


def chain_partition(case: ChainCase) -> Callable[[], Any]:
    import structlearn as sl

    unary, transition, lengths = inputs(case, grad=True)
    return differentiate(lambda u, t: sl.LinearChain(u, t, lengths=lengths).log_partition(), unary, transition)


def chain_values(case: ChainCase) -> Callable[[], Any]:
    import structlearn as sl

    unary, transition, lengths = inputs(case)

    def call() -> Any:
        log_z, marginals = sl.LinearChain(unary, transition, lengths=lengths).log_partition_and_marginals()
        return log_z, marginals.unary, marginals.transition

    return call


UNTAPED = "structlearn, values without autograd"

CONTESTANTS = {
    "chain_viterbi": (Contestant("structlearn", chain_viterbi, read_labels, ("structlearn",), "ours"),),
    "chain_partition": (
        Contestant("structlearn", chain_partition, read_partition, ("structlearn",), "ours"),
        Contestant(UNTAPED, chain_values, read_partition, ("structlearn",), "untaped"),
    ),
}
