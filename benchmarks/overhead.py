"""What a call costs before it computes anything, at (1,20,9). `python -m benchmarks.overhead`.

The smallest chain measures call overhead alone. This splits it: what torch itself takes for a result tensor, and for
an autograd function that computes nothing, is a floor under every call that takes and returns tensors.
"""

from collections.abc import Callable

import torch

import structlearn as sl
from benchmarks import harness
from benchmarks.harness import Effort
from benchmarks.peers import torch_alone
from benchmarks.peers.tensors import differentiate
from benchmarks.quiet import Quiet


def main() -> None:
    """Print median microseconds of each, measured in turns."""
    torch.set_num_threads(1)
    unary, transition = torch.randn(1, 20, 9, requires_grad=True), torch.randn(9, 9, requires_grad=True)
    lengths = torch.tensor([20])

    empty = torch_alone.gradients(unary, transition)

    def differentiated(log_partition: Callable[[], torch.Tensor]) -> Callable[[], object]:
        return differentiate(log_partition, unary, transition)

    def chain() -> sl.LinearChain:
        return sl.LinearChain(unary, transition, lengths=lengths)

    calls: dict[str, Callable[[], object]] = {
        "an empty tensor of labels": lambda: torch.empty((1, 20), dtype=torch.int64),
        "an object that keeps its arguments, and that tensor": torch_alone.labels(
            1, 20, potentials=(unary, transition), lengths=lengths
        ),
        "LinearChain(...)": chain,
        "LinearChain(...).argmax()": lambda: chain().argmax(),
        "LinearChain(...).log_partition_and_marginals()": lambda: chain().log_partition_and_marginals(),
        "autograd function that computes nothing, sum and backward": differentiated(empty),
        "LinearChain(...).log_partition(), sum and backward": differentiated(lambda: chain().log_partition()),
    }
    for call in calls.values():
        call()  # loads the kernels
    timings = harness.time_in_turns(list(calls.values()), Effort(), Quiet(10.0))
    for name, timing in zip(calls, timings, strict=True):
        print(f"{timing.median * 1e6:8.1f} us  {name}")


if __name__ == "__main__":
    main()
