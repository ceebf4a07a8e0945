"""What torch takes for a call that computes nothing: a floor under everything that takes and returns its tensors."""

from collections.abc import Callable
from typing import Any

from benchmarks.cases import ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import differentiate, inputs


class _Kept:
    """A Python object with the arguments of a structure."""

    def __init__(self, *potentials: Any, lengths: Any = None) -> None:
        self.potentials, self.lengths = potentials, lengths

    def empty(self, *shape: int) -> Any:
        import torch

        return torch.empty(shape, dtype=torch.int64)


def labels(*shape: int, potentials: tuple[Any, ...], lengths: Any = None) -> Callable[[], Any]:
    """An object that keeps its arguments, asked for a tensor of labels."""
    return lambda: _Kept(*potentials, lengths=lengths).empty(*shape)


def gradients(*leaves: Any) -> Callable[[], Any]:
    """An autograd function whose value and gradients are whatever memory holds."""
    import torch

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*given)
            return given[0].new_empty(given[0].shape[0])

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(torch.empty_like(x) for x in ctx.saved_tensors)

    return lambda: Nothing.apply(*leaves)  # type: ignore[no-untyped-call]


def chain_viterbi(case: ChainCase) -> Callable[[], Any]:
    unary, transition, lengths = inputs(case)
    return labels(*case.shape[:2], potentials=(unary, transition), lengths=lengths)


def chain_partition(case: ChainCase) -> Callable[[], Any]:
    unary, transition, _ = inputs(case, grad=True)
    return differentiate(gradients(unary, transition), unary, transition)


NAME = "torch alone, nothing computed"

CONTESTANTS = {
    "chain_viterbi": (Contestant(NAME, chain_viterbi, role="floor"),),
    "chain_partition": (Contestant(NAME, chain_partition, role="floor"),),
}
