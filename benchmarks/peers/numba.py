"""Numba on numpy arrays, and the same kernels behind tensors and autograd, the service that a torch user needs."""

from collections.abc import Callable
from typing import Any

from benchmarks.cases import PAD, ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import differentiate, inputs, read_labels, read_partition


def _viterbi(kernel: str, case: ChainCase) -> Callable[[], Any]:
    from benchmarks.peers import numba_kernels

    function = getattr(numba_kernels, kernel)
    return lambda: function(case.unary, case.transition, case.lengths, PAD)


def chain_viterbi(case: ChainCase) -> Callable[[], Any]:
    return _viterbi("viterbi", case)


def chain_viterbi_lazy(case: ChainCase) -> Callable[[], Any]:
    return _viterbi("viterbi_lazy", case)


def chain_viterbi_wrapped(case: ChainCase) -> Callable[[], Any]:
    import torch

    from benchmarks.peers import numba_kernels

    unary, transition, lengths = inputs(case)
    return lambda: torch.from_numpy(numba_kernels.viterbi(unary.numpy(), transition.numpy(), lengths.numpy(), PAD))


def chain_partition(case: ChainCase) -> Callable[[], Any]:
    import numba

    from benchmarks.peers import numba_kernels

    workers = numba.get_num_threads()
    return lambda: numba_kernels.partition(case.unary, case.transition, case.lengths, workers)


def chain_partition_wrapped(case: ChainCase) -> Callable[[], Any]:
    import numba
    import torch

    from benchmarks.peers import numba_kernels

    workers = numba.get_num_threads()

    class LogPartition(torch.autograd.Function):
        """log Z (B,); forward already makes the gradients, as they come out of one pass."""

        @staticmethod
        def forward(ctx: Any, unary: torch.Tensor, transition: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            arrays = unary.detach().numpy(), transition.detach().numpy(), lengths.numpy()
            log_z, gradient, moves = map(torch.from_numpy, numba_kernels.partition(*arrays, workers))
            ctx.save_for_backward(gradient, moves)
            return log_z

        @staticmethod
        def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            # Summed over the batch, the transition gradient only serves equal weights; enough for what is timed here.
            gradient, moves = ctx.saved_tensors
            return gradient * upstream[:, None, None], moves * upstream[0], None

    unary, transition, lengths = inputs(case, grad=True)
    apply: Any = LogPartition.apply
    return differentiate(lambda u, t: apply(u, t, lengths), unary, transition)


_REQUIRES = ("numba",)
CONTESTANTS = {
    "chain_viterbi": (
        Contestant("numba prange, plain loops", chain_viterbi, read_labels, _REQUIRES, family="numba"),
        Contestant("numba prange, lazy argmax", chain_viterbi_lazy, read_labels, _REQUIRES, "level", "numba"),
        Contestant(
            "numba plain loops, tensors in and out", chain_viterbi_wrapped, read_labels, _REQUIRES, "wrapped", "numba"
        ),
    ),
    "chain_partition": (
        Contestant("numba forward-backward", chain_partition, read_partition, _REQUIRES, family="numba"),
        Contestant(
            "numba forward-backward, autograd.Function",
            chain_partition_wrapped,
            read_partition,
            _REQUIRES,
            "wrapped",
            "numba",
        ),
    ),
}
