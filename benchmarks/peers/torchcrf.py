"""TorchCRF. Its start and end scores are set to 0; its mask is made outside the timed call."""

from collections.abc import Callable
from typing import Any

from benchmarks.cases import ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import differentiate, inputs, mask_of, read_lists, read_partition


def _model(case: ChainCase, transition: Any) -> Any:
    import torch
    from TorchCRF import CRF  # type: ignore[import-untyped]

    model = CRF(case.shape[2], use_gpu=False)
    with torch.no_grad():
        model.start_trans.zero_()
        model.end_trans.zero_()
        model.trans_matrix.copy_(transition)
    return model


def chain_viterbi(case: ChainCase) -> Callable[[], Any]:
    import torch

    unary, transition, _ = inputs(case)
    model, mask = _model(case, transition), mask_of(case)

    def call() -> Any:
        with torch.no_grad():
            return model.viterbi_decode(unary, mask)

    return call


def chain_partition(case: ChainCase) -> Callable[[], Any]:
    """The normaliser alone: its public loss would add the score of a gold path."""
    unary, transition, _ = inputs(case, grad=True)
    model, mask = _model(case, transition), mask_of(case)
    model.start_trans.requires_grad_(False)
    model.end_trans.requires_grad_(False)
    return differentiate(lambda u, _: model._compute_denominator_log_likelihood(u, mask), unary, model.trans_matrix)


CONTESTANTS = {
    "chain_viterbi": (Contestant("TorchCRF", chain_viterbi, read_lists, ("TorchCRF",), family="TorchCRF"),),
    "chain_partition": (Contestant("TorchCRF", chain_partition, read_partition, ("TorchCRF",), family="TorchCRF"),),
}
