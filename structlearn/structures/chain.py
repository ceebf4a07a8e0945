"""Label sequences with first-order transitions.

Y = {0..C-1}^n for an input of n positions, and

    s(y) = start[y_0] + sum_t unary[t, y_t] + sum_{t>=1} transition[y_{t-1}, y_t] + end[y_{n-1}].

Recurrence over any semiring:

    a_0[c] = start[c] (x) unary[0, c]
    a_t[c] = ( (+)_p a_{t-1}[p] (x) transition[p, c] ) (x) unary[t, c]
    total  = (+)_c a_{n-1}[c] (x) end[c].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from structlearn.errors import LabelError, ShapeError
from structlearn.ops import chain as ops
from structlearn.ops import choose_backend, value_and_gradient
from structlearn.ops._native import chain_best, chain_fits, chain_log_partition, chain_value_and_gradient
from structlearn.ops._register import is_eager
from structlearn.ops.value_and_gradient import chain_again
from structlearn.semirings import Count, Entropy, KMax, Log, Max, Sample, Semiring, evaluate, in_units
from structlearn.structures import chain_count, checks
from structlearn.structures.base import PAD, Structure, check_count, marginals_by_autograd, recordable, recording
from structlearn.structures.counting import CountedBest, Counter, CountTable, LabelCounter

BACKENDS = ("reference", "cpu", "triton", "torch-struct")
_BY_AUTOGRAD = ("reference", "torch-struct")  # recurrences in torch
_CPU = ("auto", "cpu")


class ChainPotentials(NamedTuple):
    """One tensor a field of :class:`LinearChain`; start and end are None where the chain has none."""

    unary: Tensor
    transition: Tensor
    start: Tensor | None
    end: Tensor | None


def total(
    semiring: Semiring, unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor
) -> Tensor:
    """The recurrence above, (width, B). Padded positions must hold numbers; they do not change the result."""
    steps = unary.unbind(1)
    empty = semiring.ones_like(unary.new_empty(unary.shape[0]))
    if not steps:
        return empty
    between = (transition,) * (len(steps) - 1) if transition.dim() == 2 else transition.unbind(1)
    a = semiring.times(semiring.ones_like(steps[0]), semiring.lift(steps[0]))
    if start is not None:
        a = semiring.times(semiring.lift(start).unsqueeze(1), a)
    for t in range(1, len(steps)):
        matrix = semiring.lift(between[t - 1])
        if transition.dim() == 2:
            matrix = matrix.unsqueeze(1)
        moved = semiring.sum(semiring.times(a.unsqueeze(-1), matrix), -2)
        a = torch.where((lengths > t)[:, None], semiring.times(moved, semiring.lift(steps[t])), a)
    if end is not None:
        a = semiring.times(a, semiring.lift(end).unsqueeze(1))
    whole = semiring.sum(a, -1)
    return torch.where(lengths > 0, whole, empty)


class LinearChain(Structure):
    """s(y) = start[y_0] + sum_t unary[t, y_t] + sum_t transition[y_{t-1}, y_t] + end[y_last].

    Args:
        unary: (B, N, C) score of label c at position n.
        transition: (C, C) shared, or (B, N-1, C, C) for the step from n to n+1; indexed [previous, current].
        start, end: (C,) scores of the first and the last label.
        lengths: (B,) number of positions of each sequence, 0..N; all N if not given. What stands at or beyond
            a length is never read, NaN included. Lengths on the CPU are checked; on a GPU only with
            ``validate``, since reading them back would stall the device.
        backend: "auto", or one of ``ops.backends()``.
        validate: look for NaN and for scores above finfo.max / 4, +inf included, at unpadded places (and, on a GPU,
            at the lengths). Without it, what a NaN there does to the results is not said: a kernel may pass over it.

    Outputs are labels (B, N), int64, padded with -100. Half-precision potentials are computed in float32.
    """

    fields = ("unary", "transition", "start", "end")
    named = ChainPotentials

    def __init__(
        self,
        unary: Tensor,
        transition: Tensor,
        *,
        start: Tensor | None = None,
        end: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        backend: str = "auto",
        validate: bool = False,
    ) -> None:
        self.unary: Tensor
        self.transition: Tensor
        if (
            backend in _CPU
            and not validate
            and not is_dynamo_compiling()
            and chain_fits(unary, transition, start, end, lengths)
            and checks.savable(lengths)
        ):
            self.unary, self.transition, self.start, self.end = unary, transition, start, end
            self.lengths: Tensor | None = lengths  # type: ignore[assignment]
            self.backend = "cpu"
            return
        self._check(unary, transition, start, end, lengths, backend)
        if validate:
            self._validate()

    def _check(
        self,
        unary: Tensor,
        transition: Tensor,
        start: Tensor | None,
        end: Tensor | None,
        lengths: Tensor | Sequence[int] | None,
        backend: str,
    ) -> None:
        """Keeps the arguments, converted where need be, or raises for the one that does not fit."""
        checks.check_tensor("unary", unary, 3, "(B, N, C)")
        b, n, c = unary.shape
        if c == 0:
            raise ShapeError("unary", "(B, N, C) with C >= 1", tuple(unary.shape), "an empty label set has no outputs")
        if not isinstance(transition, Tensor) or (
            transition.shape != (c, c) and transition.shape != (b, max(n - 1, 0), c, c)
        ):
            raise ShapeError(
                "transition",
                f"(C, C) = {(c, c)} or (B, N-1, C, C) = {(b, max(n - 1, 0), c, c)} to match unary {tuple(unary.shape)}",
                tuple(transition.shape) if isinstance(transition, Tensor) else type(transition).__name__,
                "states come last in unary; transition is indexed [previous, current]",
            )
        for name, edge in () if start is None and end is None else (("start", start), ("end", end)):
            if edge is not None and (not isinstance(edge, Tensor) or edge.shape != (c,)):
                got = tuple(edge.shape) if isinstance(edge, Tensor) else type(edge).__name__
                raise ShapeError(name, f"a tensor (C,) = ({c},) to match unary", got, "one score for every label")
        kept = checks.same_kind({"unary": unary, "transition": transition, "start": start, "end": end})
        self.unary, self.transition, self.start, self.end = kept  # type: ignore[assignment]
        self.lengths = checks.check_lengths("lengths", lengths, b, n, unary.device)
        self.backend = choose_backend(backend, unary.device.type, BACKENDS)

    def _validate(self) -> None:
        if self.lengths is not None:
            checks.check_lengths("lengths", self.lengths.cpu(), self.batch_size, self.unary.shape[1], self.unary.device)
        mask = self.mask
        checks.check_potential("unary", self.unary, mask)
        checks.check_potential("transition", self.transition, mask[:, 1:] if self.transition.dim() == 4 else None)
        for name, edge in (("start", self.start), ("end", self.end)):
            if edge is not None:
                checks.check_potential(name, edge, None)

    @property
    def batch_size(self) -> int:
        return self.unary.shape[0]

    @property
    def mask(self) -> Tensor:
        """(B, N), true at unpadded positions."""
        return checks.unpadded(self.lengths, self.batch_size, self.unary.shape[1], self.unary.device)

    def replace(self, **potentials: Tensor | None) -> Self:
        return type(self)(**self._given(potentials), lengths=self.lengths, backend=self.backend)  # type: ignore[arg-type]

    @property
    def _args(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        return self.unary, self.transition, self.start, self.end, self.lengths

    @property
    def _needs_gradient(self) -> bool:
        return torch.is_grad_enabled() and (
            self.unary.requires_grad
            or self.transition.requires_grad
            or (self.start is not None and self.start.requires_grad)
            or (self.end is not None and self.end.requires_grad)
        )

    def _reference(self, semiring: Semiring, potentials: ChainPotentials | None = None) -> Tensor:
        mask = self.mask

        def recurrence(
            semiring: Semiring, unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None
        ) -> Tensor:
            unary = unary.masked_fill(~mask[:, :, None], 0.0)
            if transition.dim() == 4:
                transition = transition.masked_fill(~mask[:, 1:, None, None], 0.0)
            return total(semiring, unary, transition, start, end, mask.sum(1))

        return evaluate(semiring, recurrence, potentials or self._args[:4])

    def _total(self, semiring: Semiring, potentials: ChainPotentials | None = None) -> Tensor:
        """:meth:`_reference`, by torch-struct where that is the backend and has an answer."""
        if self.backend == "torch-struct" and isinstance(semiring, (Log, Max, KMax)):
            from structlearn.torch_struct.chain import total

            return total(self, semiring, potentials or self._args[:4])
        return self._reference(semiring, potentials)

    def _reference_outputs(self, semiring: Semiring) -> tuple[Tensor, Tensor]:
        """Labels (width, B, N) and totals (width, B): the parts of output i are the gradient of total i."""
        with recording():
            unary = recordable(self.unary).requires_grad_()
            rest = [None if x is None else recordable(x) for x in (self.transition, self.start, self.end)]
            scores = self._total(semiring, ChainPotentials(unary, *rest))  # type: ignore[arg-type]
            hot = torch.stack([torch.autograd.grad(s.sum(), unary, retain_graph=True)[0] for s in scores])
        scores = scores.detach()
        labels = hot.argmax(-1) if hot.shape[-1] else hot.new_zeros(hot.shape[:-1], dtype=torch.int64)
        keep = self.mask & (scores > float("-inf"))[..., None]
        return labels.masked_fill(~keep, PAD), scores

    def _best(self) -> tuple[Tensor, Tensor]:
        if self.backend in _BY_AUTOGRAD:
            labels, scores = self._reference_outputs(Max())
            return labels[0], scores[0]
        labels, score = ops.viterbi(*self._args, self.backend)
        return labels, score

    def argmax(self) -> Tensor:
        if self.backend == "cpu" and not is_dynamo_compiling():
            found: Tensor | None = chain_best(self.unary, self.transition, self.start, self.end, self.lengths)
            if found is not None:
                return found
        if self.backend != "cpu" or not is_eager(self.unary):
            return super().argmax()  # type: ignore[no-any-return]
        labels, infeasible = ops.decode(*self._args)
        if infeasible:
            self._require_feasible(self.max())
        return labels

    def max(self) -> Tensor:
        if self.backend in _BY_AUTOGRAD:
            value = self._total(Max())[0]
            return torch.where(value == float("-inf"), value.detach(), value)
        if self.backend == "triton":
            labels, value = self._best()
            scores = self.score(labels.clamp(min=0))  # look-ups, to carry the gradient
            return torch.where(value == float("-inf"), value, value + (scores - scores.detach()))
        best: Tensor = ops.best_score(*self._args)[0]
        return best

    def score(self, y: Tensor) -> Tensor:
        """s(y) for labels (B, N), or (K, B, N) with scores (K, B); labels at padded positions are ignored."""
        y = checks.check_label_tensor("y", y, tuple(self.unary.shape[:2]), self.unary.device)
        if self.backend == "cpu":
            scores: Tensor = ops.score(*self._args, y.reshape(math.prod(y.shape[:-2]), *y.shape[-2:]))
            return scores.view(y.shape[:-1])
        mask = self.mask
        checks.check_labels("y", y, mask, self.unary.shape[2])
        y = y.masked_fill(~mask, 0)

        def look_up(_: float, unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None) -> Tensor:
            return _score_reference(unary, transition, start, end, y, mask)

        return in_units(look_up, self._args[:4])

    def log_partition(self) -> Tensor:
        if self.backend == "cpu" and not is_dynamo_compiling():
            found: Tensor | None = chain_log_partition(
                self.unary, self.transition, self.start, self.end, self.lengths, chain_again
            )
            if found is not None:
                return found
        if self.backend in _BY_AUTOGRAD:
            return self._total(Log())[0]
        args = self._args
        keep = self._needs_gradient
        if keep and self.backend == "cpu" and is_eager(args[0]):
            return value_and_gradient.chain_log_partition(*args)
        log_z: Tensor = ops.forward(*args, keep, self.backend)[0]
        return log_z

    def marginals(self) -> ChainPotentials:
        """d (sum_b log Z_b) / d potentials.

        unary (B, N, C) holds P(y_t = c); a per-position transition (B, N-1, C, C) holds P(y_t = p, y_{t+1} = c),
        a shared one (C, C) the expected number of uses in the whole batch. Differentiable.
        """
        if self.backend in _BY_AUTOGRAD:
            return marginals_by_autograd(self)
        if self.backend == "cpu" and is_eager(self.unary) and not self._needs_gradient:
            return self.log_partition_and_marginals()[1]
        log_z, alpha = ops.forward(*(None if x is None else x.detach() for x in self._args), True, self.backend)
        results = ops.backward(*self._args, alpha, log_z, torch.ones_like(log_z), self.backend)
        unary, transition, start, end = results
        return ChainPotentials(
            unary, transition, None if self.start is None else start, None if self.end is None else end
        )

    def log_partition_and_marginals(self) -> tuple[Tensor, ChainPotentials]:
        if self.backend == "cpu" and not is_dynamo_compiling():
            found = chain_value_and_gradient(self.unary, self.transition, self.start, self.end, self.lengths)
            if found is not None:
                log_z, *gradient = found
                return log_z, ChainPotentials(*gradient)
        if self.backend != "cpu" or not is_eager(self.unary):
            return super().log_partition_and_marginals()
        log_z, parts = value_and_gradient.chain(*self._args)
        return log_z, ChainPotentials(*parts[:4])

    def count(self) -> Tensor:
        """Number of outputs that are not forbidden, (B,), float64."""
        return self._reference(Count())[0]

    def difference(self, y: Tensor, z: Tensor) -> Tensor:
        first, second = self.score(torch.stack([y, z])).unbind(0)
        return first - second

    def margin_violation(self, gold: Tensor, discount: Tensor | None) -> Tensor:
        """max_y [ sum_t discount_t [y_t != gold_t] + s(y) ] - s(gold), (B,); discount (B, N), 1 if None."""
        gold = checks.check_label_tensor("gold", gold, tuple(self.unary.shape[:2]), self.unary.device)
        try:
            value: Tensor = ops.margin(*self._args, gold, discount)[0]
        except LabelError:
            self.require_allowed("gold", gold, self.score(gold))
            raise
        return value

    def padded(self, y: Tensor) -> Tensor:
        return y.masked_fill(~self.mask, PAD)

    def forbidden_place(self, y: Tensor, row: int) -> str:
        n = int(self.mask[row].sum())
        labels = y[row, :n].tolist()
        for t, c in enumerate(labels):
            if self.unary[row, t, c] == float("-inf"):
                return f", label {c} at position {t}"
            if t == 0:
                continue
            matrix = self.transition if self.transition.dim() == 2 else self.transition[row, t - 1]
            if matrix[labels[t - 1], c] == float("-inf"):
                return f", transition {labels[t - 1]} -> {c} into position {t}"
        edges = (("start", self.start, labels[:1]), ("end", self.end, labels[-1:]))
        return "".join(
            f", {name} with label {c}"
            for name, edge, at in edges
            for c in at
            if edge is not None and edge[c] == float("-inf")
        )

    def same_output(self, y: Tensor, z: Tensor) -> Tensor:
        return ((y == z) | ~self.mask).all(-1)

    def positions(self, y: Tensor) -> tuple[Tensor, Tensor, int, torch.dtype]:
        y = checks.check_label_tensor("y", y, tuple(self.unary.shape[:2]), self.unary.device)
        mask = self.mask
        checks.check_labels("y", y, mask, self.unary.shape[2])
        return y.masked_fill(~mask, 0), mask, self.unary.shape[2], self.unary.dtype

    def parts_of_positions(self, table: Tensor) -> dict[str, Tensor]:
        return {"unary": table}

    def max_by_count(self, counter: Counter | LabelCounter) -> CountTable:
        return chain_count.max_by_count(self, counter)

    def best_by_count(self, counter: Counter | LabelCounter, offset: Tensor, slope: Tensor) -> CountedBest:
        return chain_count.best_by_count(self, counter, offset, slope)

    def entropy(self) -> Tensor:
        if self.backend == "cpu":
            value: Tensor = ops.entropy(*self._args)
            return value
        return self._reference(Entropy())[1]

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """Labels (k, B, N) and scores (k, B) of the k best outputs, best first; the scores are differentiable."""
        check_count("k", k)
        if self.backend in _BY_AUTOGRAD:
            labels, scores = self._reference_outputs(KMax(k))
        else:
            labels, scores = ops.kbest(*self._args, k, self.backend)
        if torch.is_grad_enabled() and any(x.requires_grad for x in self.potentials.values()):
            missing = scores == float("-inf")
            scores = self.score(labels.clamp(min=0)).masked_fill(missing, float("-inf"))
        return labels, scores

    def _repeat(self, n: int) -> LinearChain:
        """The batch n times over, (n * B) rows."""
        transition = self.transition if self.transition.dim() == 2 else self.transition.repeat(n, 1, 1, 1)
        lengths = None if self.lengths is None else self.lengths.repeat(n)
        return LinearChain(
            self.unary.repeat(n, 1, 1),
            transition,
            start=self.start,
            end=self.end,
            lengths=lengths,
            backend=self.backend,
        )

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """n draws from p(y) = exp(s(y)) / Z, labels (n, B, N), all -100 where every output is forbidden."""
        check_count("n", n)
        if self.backend in _BY_AUTOGRAD:
            # A draw is a batch row: one backward pass makes them all, where n totals would take one each.
            rows = self._repeat(n)._reference_outputs(Sample(1, generator))[0]
            return rows.view(n, *self.unary.shape[:2])
        shape = (n, *self.unary.shape[:2])
        uniform = torch.rand(shape, generator=generator, dtype=self.unary.dtype, device=self.unary.device)
        labels: Tensor = ops.sample(*self._args, uniform, self.backend)
        return labels


def _score_reference(
    unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None, y: Tensor, mask: Tensor
) -> Tensor:
    """s(y) by look-ups, for labels (..., B, N) that are in range everywhere."""
    b, n, _ = unary.shape
    if n == 0:
        return unary.new_zeros(y.shape[:-1])
    rows = torch.arange(b, device=unary.device)[:, None]
    places = torch.arange(n, device=unary.device)
    zero = unary.new_zeros(())
    at = torch.where(mask, unary[rows, places, y], zero).sum(-1)
    previous, current, used = y[..., :-1], y[..., 1:], mask[:, 1:]
    steps = transition[previous, current] if transition.dim() == 2 else transition[rows, places[:-1], previous, current]
    at = at + torch.where(used, steps, zero).sum(-1)
    lengths = mask.sum(1)
    if start is not None:
        at = at + torch.where(lengths > 0, start[y[..., 0]], zero)
    if end is not None:
        last = (lengths - 1).clamp(min=0).expand(y.shape[:-1]).unsqueeze(-1)
        at = at + torch.where(lengths > 0, end[y.gather(-1, last).squeeze(-1)], zero)
    return at
