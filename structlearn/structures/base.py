"""The object every learner takes: scores over a structured output space, for a batch of inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, InfeasibleError

PAD = -100


class Structure(ABC):
    """p(y) = exp(s(y)) / Z over a finite set Y, where s(y) adds up the potentials of the parts of y.

    A subclass states Y, its parts and the recurrence in its docstring, names its potentials in ``fields``
    and defines the abstract queries below; ``max`` and ``entropy`` have defaults in terms of them. Instances
    are immutable. All per-instance results have shape (B,); a forbidden part has potential -inf.
    """

    fields: ClassVar[tuple[str, ...]]
    backend: str

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """B."""

    @property
    def potentials(self) -> dict[str, Tensor]:
        """The potentials that were given, by field name."""
        return {name: value for name in self.fields if (value := getattr(self, name)) is not None}

    @abstractmethod
    def replace(self, **potentials: Tensor | None) -> Self:
        """The same output space (lengths, backend) with some potentials replaced."""

    @abstractmethod
    def _best(self) -> tuple[Any, Tensor]:
        """A best output of each instance, PAD where there is none, and its score (B,), without gradient."""

    @abstractmethod
    def score(self, y: Any) -> Tensor:
        """s(y), (B,); differentiable."""

    @abstractmethod
    def max(self) -> Tensor:
        """max_y s(y), (B,), -inf where every output is forbidden; the gradient marks the parts of the best y."""

    @abstractmethod
    def log_partition(self) -> Tensor:
        """log Z = log sum_y exp s(y), (B,), twice differentiable."""

    @abstractmethod
    def marginals(self) -> Any:
        """d (sum_b log Z_b) / d potentials: a named tuple with the fields and shapes of the potentials."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """-sum_y p(y) log p(y), (B,), differentiable; 0 where every output is forbidden."""

    @abstractmethod
    def topk(self, k: int) -> tuple[Any, Tensor]:
        """The k best outputs, leading axis k, and their scores (k, B); fewer than k: PAD and -inf."""

    @abstractmethod
    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Any:
        """n independent draws from p, leading axis n."""

    def argmax(self) -> Any:
        """A best output of each instance; on ties the one with the lowest indices, in every backend."""
        y, score = self._best()
        if not torch.compiler.is_compiling():
            self._require_feasible(score)
        return y

    def _require_feasible(self, score: Tensor) -> None:
        if score.numel() and float(score.detach().min()) == float("-inf"):
            rows = (score == float("-inf")).nonzero().flatten().tolist()
            raise InfeasibleError(
                type(self).__name__,
                "at least one allowed output for every instance",
                f"none for batch rows {rows[:10]}{' ...' if len(rows) > 10 else ''}",
                "their potentials are -inf on every output; max() returns -inf for such rows instead of raising",
            )

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={tuple(value.shape)}" for name, value in self.potentials.items())
        first = next(iter(self.potentials.values()))
        return f"{type(self).__name__}({shapes}, dtype={first.dtype}, device={first.device}, backend={self.backend!r})"


def check_count(argument: str, value: int) -> None:
    """``value`` must be a positive integer."""
    if not isinstance(value, int) or value < 1:
        raise ArgumentError(argument, "an integer >= 1", repr(value), f"pass {argument}=1 or more")

