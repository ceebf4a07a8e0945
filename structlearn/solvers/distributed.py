"""1-slack training over several processes.

Every process has its own examples and runs their oracle; one all-reduce a round carries (sum a, sum b, sum xi). The
small dual is solved by every process from equal numbers, so that all have the same w and the same certificate.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor

from structlearn.errors import ArgumentError, ProcessError
from structlearn.solvers.certificate import Certificate
from structlearn.solvers.one_slack import OneSlack
from structlearn.solvers.problem import Problem
from structlearn.solvers.solver import Limits


class DistributedOneSlack(OneSlack):
    """:class:`OneSlack` whose sums run over all processes of the default group."""

    alone = False

    def __init__(self, problem: Problem, limits: Limits, *, qp: str = "auto", cache: int = 5) -> None:
        if not dist.is_initialized():
            raise ArgumentError(
                "distributed", "an initialised process group", "none", "call torch.distributed.init_process_group"
            )
        super().__init__(problem, limits, qp=qp, cache=cache)
        sizes = self._reduce(torch.tensor([problem.n, problem.dim], dtype=torch.float64))
        self._examples = int(sizes[0])
        if int(sizes[1]) != dist.get_world_size() * problem.dim:
            raise ArgumentError("feature_map", "as many weights in every process", problem.dim, "build equal maps")

    @property
    def examples(self) -> int:
        return self._examples

    def _reduce(self, x: Tensor) -> Tensor:
        try:
            work = dist.all_reduce(x, async_op=True)
            _await(work)
        except RuntimeError as error:
            raise ProcessError(
                "distributed", "an answer from every process", str(error).splitlines()[0], "a process died; start again"
            ) from error
        return x

    def reduce(self, a: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        both = self._reduce(torch.cat([a, sums]))
        return both[: len(a)], both[len(a) :]

    def round(self) -> Certificate:
        row = super().round()
        # Limits of time must end all processes in the same round.
        self.seconds = float(self._reduce(torch.tensor([self.seconds], dtype=torch.float64))[0]) / dist.get_world_size()
        return row


def _await(work: dist.Work) -> None:
    """Waits where Ctrl-C is noticed, which it is not inside the library: another process may never answer."""
    pause = 0.0
    while not work.is_completed():
        time.sleep(pause)
        pause = min(pause + 1e-5, 1e-2)
    work.wait()
