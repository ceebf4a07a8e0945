"""The object every learner takes: scores over a structured output space, for a batch of inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, InfeasibleError, LabelError, StructLearnError
from structlearn.ops._register import is_eager
from structlearn.semirings import Units
from structlearn.structures.counting import CountedBest, CountTable, pick, unravel

PAD = -100


class Structure(ABC):
    """p(y) = exp(s(y)) / Z over a finite set Y, where s(y) adds up the potentials of the parts of y.

    A subclass states Y, its parts and the recurrence in its docstring, names its potentials in ``fields``
    and defines the abstract queries below; ``argmax`` and what only some costs need have defaults. Instances
    are immutable. All per-instance results have shape (B,); a forbidden part has potential -inf.

    Only -inf forbids: masks by finite numbers, down to finfo.min, never make an output infeasible. Where another output
    is left they do what -inf does, up to rounding. Where none is left, argmax is the best of the masked outputs and
    marginals sum to one. All queries are right where s(y) <= finfo.max / 4 for every y. Where a score, a maximum or
    log Z is finite but beyond the dtype's range, the result is finfo.min or finfo.max, and its gradient is as usual.
    """

    fields: ClassVar[tuple[str, ...]]
    named: ClassVar[Any]  # the named tuple with those fields
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

    def _widened(self) -> tuple[Self, Units]:
        """The same with potentials as recurrences hold them, and the units that they are in."""
        potentials = {name: recordable(x) for name, x in self.potentials.items()}
        units = Units.of(potentials[self.fields[0]])
        return self.replace(**{name: units.widen(x) for name, x in potentials.items()}), units

    def _given(self, potentials: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        """All fields, those in ``potentials`` replaced."""
        if unknown := potentials.keys() - set(self.fields):
            name = min(unknown)
            raise ArgumentError(name, f"one of {self.fields}", repr(name), f"{type(self).__name__} has only these")
        return {name: getattr(self, name) for name in self.fields} | potentials

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

    def log_partition_and_marginals(self) -> tuple[Tensor, Any]:
        """log Z (B,) and :meth:`marginals` as plain values, for code that applies gradients itself.

        Autograd has no part in it, which takes most of the time of a small batch; a kernel that has a pass for both
        takes that.
        """
        with torch.no_grad():
            return self.log_partition(), self.marginals()

    @abstractmethod
    def entropy(self) -> Tensor:
        """-sum_y p(y) log p(y), (B,), differentiable; 0 where every output is forbidden."""

    @abstractmethod
    def topk(self, k: int) -> tuple[Any, Tensor]:
        """The k best outputs, leading axis k, and their scores (k, B); fewer than k: PAD and -inf."""

    @abstractmethod
    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Any:
        """n independent draws from p, leading axis n."""

    @abstractmethod
    def same_output(self, y: Any, z: Any) -> Tensor:
        """Whether two outputs are equal, padding aside, (B,); leading axes broadcast."""

    @abstractmethod
    def max_by_count(self, counter: Any) -> CountTable:
        """The best score for each value of the statistics of ``counter``."""

    def best_by_count(self, counter: Any, offset: Tensor, slope: Tensor) -> CountedBest:
        """The output that maximises offset[g(y)] + slope[g(y)] * s(y), for tables (B, S1[, S2]) and slope >= 0."""
        found = self.max_by_count(counter)
        index, value = pick(found.table, offset, slope)
        return CountedBest(found.decode(unravel(index, counter.sizes)), index, value)

    def enumerate(self) -> Any:
        """All outputs, leading axis K, where there are few and the same for every instance; else None."""
        return None

    def take(self, y: Any, i: int) -> Any:
        """Output i of outputs with a leading axis, as from ``topk`` or ``sample``."""
        return y[i]

    def choose(self, condition: Tensor, y: Any, z: Any) -> Any:
        """y where condition (B,) holds, else z."""
        return torch.where(condition.view(-1, *[1] * (y.dim() - 1)), y, z)

    def padded(self, y: Any) -> Any:
        """y with PAD at padded places, whatever it held there."""
        return y

    def difference(self, y: Any, z: Any) -> Tensor:
        """s(y) - s(z), (B,); differentiable."""
        return self.score(y) - self.score(z)

    def require_allowed(self, name: str, y: Any, score: Tensor) -> None:
        """Raises where ``score`` = s(y) is -inf: y uses a forbidden part."""
        if float(score.detach().min()) == float("-inf"):
            row = int((score == float("-inf")).nonzero()[0])
            raise LabelError(
                name,
                "an output that the potentials allow",
                f"score -inf in batch row {row}{self.forbidden_place(y, row)}",
                "correct the label or relax the mask that forbids it",
            )

    def forbidden_place(self, y: Any, row: int) -> str:
        """Where in ``row`` a part of y is forbidden, as words that continue a message."""
        return ""

    def plus(self, parts: dict[str, Tensor]) -> Self:
        """The same output space with ``parts`` added to the potentials, or in place of those that were not given."""
        given = self.potentials
        return self.replace(**{name: given[name] + part if name in given else part for name, part in parts.items()})

    def positions(self, y: Any) -> tuple[Tensor, Tensor, int, torch.dtype]:
        """y as labels (..., B, N) with 0 at padded places, their mask (B, N), the number of labels, and the dtype.

        Costs that count positions work on any structure that defines this and ``parts_of_positions``.
        """
        raise self._unsupported("costs over positions")

    @property
    def absent(self) -> int | None:
        """The label in ``positions`` where y has nothing, which is never a mistake of y; None if there is none."""
        return None

    def position_counts(self, mask: Tensor) -> Tensor:
        """How many positions every y has something at, (B,), given the mask from ``positions``."""
        return mask.sum(-1)

    def parts_of_positions(self, table: Tensor) -> dict[str, Tensor]:
        """Parts in the fields of the potentials whose sum over y is sum_t table[b, t, y_t]; table (B, N, C)."""
        raise self._unsupported("costs over positions")

    def _unsupported(self, what: str) -> StructLearnError:
        return ArgumentError(
            "structure", f"one with {what}", type(self).__name__, "choose a cost made for this structure"
        )

    def argmax(self) -> Any:
        """A best output of each instance; on ties the one with the lowest indices, in every backend.

        InfeasibleError for an instance without one; compiled or under a transform, which cannot look at values, its
        output is all padding and its ``max`` -inf.
        """
        y, score = self._best()
        if is_eager(score):
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
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        got = repr(value) if isinstance(value, int) else f"{value!r} of type {type(value).__name__}"
        raise ArgumentError(argument, "an integer >= 1", got, f"pass {argument}=1 or more")


def recording() -> AbstractContextManager[None]:
    """Autograd records inside, whatever the caller's mode: outputs are read off as gradients."""
    if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        return torch.inference_mode(False)
    return torch.enable_grad()


def recordable(x: Tensor) -> Tensor:
    """``x`` detached; a copy where it was made under ``torch.inference_mode``, which autograd refuses to save."""
    return x.detach().clone() if not torch.compiler.is_compiling() and x.is_inference() else x.detach()


def marginals_by_autograd(structure: Structure) -> Any:
    """d (sum_b log Z_b) / d potentials through autograd, differentiable where the potentials are."""
    given = structure.potentials
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in given.values())
    with recording():
        leaves = {
            name: x if differentiable and x.requires_grad else recordable(x).requires_grad_()
            for name, x in given.items()
        }
        log_z = structure.replace(**leaves).log_partition()
        grads = torch.autograd.grad(
            log_z.sum(), list(leaves.values()), create_graph=differentiable, allow_unused=True, materialize_grads=True
        )
        if differentiable:  # also where the marginals are constants
            unused = sum(x[..., :0].sum() for x in leaves.values())
            grads = [x + unused for x in grads]  # type: ignore[assignment]
    found = dict(zip(leaves, grads, strict=True))
    return structure.named(**{name: found.get(name) for name in structure.fields})
