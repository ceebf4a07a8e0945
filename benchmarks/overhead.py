"""What a call costs before it computes anything, at (1,20,9). `python -m benchmarks.overhead`.

The smallest chain measures call overhead alone. This splits it: what torch itself takes for two result tensors, and
for an autograd function that computes nothing, is a floor under every call that takes and returns tensors.
"""

from typing import Any

import torch

import structlearn as sl
from benchmarks import harness
from benchmarks.harness import Effort
from benchmarks.quiet import Quiet


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary: torch.Tensor, transition: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(unary, transition)
        return unary.new_empty(1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def main() -> None:
    """Print median microseconds of each, measured in turns."""
    torch.set_num_threads(1)
    unary, transition = torch.randn(1, 20, 9, requires_grad=True), torch.randn(9, 9, requires_grad=True)
    lengths = torch.tensor([20])

    def clear() -> None:
        unary.grad = transition.grad = None

    def nothing() -> None:
        clear()
        _Nothing.apply(unary, transition).sum().backward()  # type: ignore[no-untyped-call]

    def partition() -> None:
        clear()
        sl.LinearChain(unary, transition, lengths=lengths).log_partition().sum().backward()

    calls = {
        "two result tensors": lambda: (unary.new_empty((1, 20), dtype=torch.int64), unary.new_empty(1)),
        "LinearChain(...)": lambda: sl.LinearChain(unary, transition, lengths=lengths),
        "LinearChain(...).log_partition_and_marginals()": lambda: sl.LinearChain(
            unary, transition, lengths=lengths
        ).log_partition_and_marginals(),
        "LinearChain(...).argmax()": lambda: sl.LinearChain(unary, transition, lengths=lengths).argmax(),
        "autograd function that computes nothing, sum and backward": nothing,
        "LinearChain(...).log_partition(), sum and backward": partition,
    }
    for call in calls.values():
        call()  # loads the kernels
    timings = harness.time_in_turns(list(calls.values()), Effort(), Quiet(10.0))
    for name, timing in zip(calls, timings, strict=True):
        print(f"{timing.median * 1e6:8.1f} us  {name}")


if __name__ == "__main__":
    main()
