"""pytorch-crf. Its start and end scores are set to 0; its mask is made outside the timed call."""

from collections.abc import Callable
from typing import Any

from benchmarks.cases import ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import differentiate, inputs, mask_of, read_lists, read_partition


def _model(case: ChainCase, transition: Any) -> Any:
    import torch
    from torchcrf import CRF

    model = CRF(case.shape[2], batch_first=True)
    with torch.no_grad():
        model.start_transitions.zero_()
        model.end_transitions.zero_()
        model.transitions.copy_(transition)
    return model


def chain_viterbi(case: ChainCase) -> Callable[[], Any]:
    import torch

    unary, transition, _ = inputs(case)
    model, mask = _model(case, transition), mask_of(case)

    def call() -> Any:
        with torch.no_grad():
            return model.decode(unary, mask)

    return call


def chain_partition(case: ChainCase) -> Callable[[], Any]:
    """The normaliser alone: its public loss would add the score of a gold path."""
    unary, transition, _ = inputs(case, grad=True)
    model, mask = _model(case, transition), mask_of(case)
    # The model computes in place on start + emissions, so its own start scores must stay leaves without gradients.
    model.start_transitions.requires_grad_(False)
    model.end_transitions.requires_grad_(False)

    def log_partition(unary: Any, _: Any) -> Any:
        return model._compute_normalizer(unary.transpose(0, 1), mask.transpose(0, 1))

    return differentiate(log_partition, unary, model.transitions)


CONTESTANTS = {
    "chain_viterbi": (Contestant("pytorch-crf", chain_viterbi, read_lists, ("torchcrf",), family="pytorch-crf"),),
    "chain_partition": (
        Contestant("pytorch-crf", chain_partition, read_partition, ("torchcrf",), family="pytorch-crf"),
    ),
}
