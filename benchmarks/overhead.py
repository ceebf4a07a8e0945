"""What a call costs before it computes anything, at (1,20,9). `python -m benchmarks.overhead`.

The smallest chain measures call overhead alone. This splits it; what torch itself takes for the sum of a finished log Z
with its backward pass is a floor under every call that goes through its autograd.
"""

from collections.abc import Callable
from typing import Any

import torch

import structlearn as sl
from benchmarks import harness
from benchmarks.harness import Effort
from benchmarks.peers.tensors import differentiate
from benchmarks.quiet import Quiet


def main() -> None:
    """Print median microseconds of each, measured in turns."""
    torch.set_num_threads(1)
    unary, transition = torch.randn(1, 20, 9, requires_grad=True), torch.randn(9, 9, requires_grad=True)
    lengths = torch.tensor([20])

    log_z = torch.zeros(1, requires_grad=True)

    def chain(unary: torch.Tensor = unary, transition: torch.Tensor = transition) -> sl.LinearChain:
        return sl.LinearChain(unary, transition, lengths=lengths)

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*given)
            return given[0].new_empty(given[0].shape[0])

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(torch.empty_like(x) for x in ctx.saved_tensors)

    calls: dict[str, Callable[[], object]] = {
        "an empty tensor of labels": lambda: torch.empty((1, 20), dtype=torch.int64),
        "LinearChain(...)": chain,
        "LinearChain(...).argmax()": lambda: chain().argmax(),
        "LinearChain(...).log_partition_and_marginals()": lambda: chain().log_partition_and_marginals(),
        "sum of a leaf (1,) and backward": differentiate(lambda log_z: log_z, log_z),
        "autograd function in Python that computes nothing, sum and backward": differentiate(
            Nothing.apply, unary, transition
        ),
        "LinearChain(...).log_partition(), sum and backward": differentiate(
            lambda u, t: chain(u, t).log_partition(), unary, transition
        ),
    }
    for call in calls.values():
        call()  # loads the kernels
    timings = harness.time_in_turns(list(calls.values()), Effort(), Quiet(10.0))
    for name, timing in zip(calls, timings, strict=True):
        print(f"{timing.median * 1e6:8.1f} us  {name}")


if __name__ == "__main__":
    main()
