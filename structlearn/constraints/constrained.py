"""A chain or independent parts under constraints: one structure, whichever way it is solved.

    Y = {y : y satisfies the hard constraints},   s'(y) = s(y) - sum_k penalty_k [y breaks soft constraint k]

Every loss takes it like any other structure, so loss-augmented inference keeps the constraints too. Argmax, max and
score are there on every path; log-partition, marginals, samples, k best and counts on the automaton and enumeration
paths. An instance without parts has one output, the empty one, which is allowed and priced like any other.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from structlearn.constraints import ilp
from structlearn.constraints.automata import AutomatonChain
from structlearn.constraints.compiled import Compiled
from structlearn.constraints.conflicts import conflict
from structlearn.constraints.enumerated import EnumeratedChain
from structlearn.constraints.language import Ints, Spans
from structlearn.constraints.solution import Solution
from structlearn.errors import DependencyError, InfeasibleError, InferenceError, ShapeError
from structlearn.structures.base import PAD, Structure
from structlearn.structures.chain import ChainPotentials, LinearChain
from structlearn.structures.counting import CountedBest, CountTable


def independent(unary: Tensor, lengths: Tensor | None = None) -> LinearChain:
    """s(y) = sum_t unary[t, y_t]: parts (B, N, C) without transitions."""
    return LinearChain(unary, unary.new_zeros(unary.shape[2], unary.shape[2]), lengths=lengths)


class Constrained(Structure):
    """The outputs of a chain that a constraint allows.

    Args:
        chain: the scores; see :func:`independent` for parts without transitions.
        compiled: the constraint.
        spans: (B, N, 2) first and last word of each part, where the constraint speaks of them.
        penalties: (S,) of the soft constraints, as written in them if not given; differentiable.
    """

    fields = ("unary", "transition", "start", "end")
    named = ChainPotentials

    def __init__(
        self, chain: LinearChain, compiled: Compiled, *, spans: Tensor | None = None, penalties: Tensor | None = None
    ) -> None:
        b, n, c = chain.unary.shape
        if c != compiled.labels.count:
            raise ShapeError("chain", f"{compiled.labels.count} labels, as the constraint has", c, "states come last")
        if spans is not None and tuple(spans.shape) != (b, n, 2):
            raise ShapeError(
                "spans", f"(B, N, 2) = {(b, n, 2)}", tuple(spans.shape), "first and last word of each part"
            )
        if penalties is not None and tuple(penalties.shape) != (len(compiled.soft),):
            raise ShapeError("penalties", f"(S,) = ({len(compiled.soft)},)", tuple(penalties.shape), "one a soft part")
        self.chain, self.compiled, self.spans = chain, compiled, spans
        if penalties is None:
            penalties = compiled.penalties.to(chain.unary) if compiled.soft else chain.unary.new_empty(0)
        self.penalties = penalties
        self.unary, self.transition, self.start, self.end = chain.unary, chain.transition, chain.start, chain.end
        self.backend = chain.backend

    @property
    def batch_size(self) -> int:
        return self.chain.batch_size

    @property
    def lengths(self) -> Tensor | None:
        """(B,), as given."""
        return self.chain.lengths

    @property
    def mask(self) -> Tensor:
        """(B, N), true at unpadded positions."""
        return self.chain.mask

    @property
    def path(self) -> str:
        """ "automaton", "enumeration" or "ilp", whatever is in the batch: see :class:`Compiled`."""
        return self.compiled.path

    @cached_property
    def _spans(self) -> Spans | None:
        return None if self.spans is None else Spans(self.spans.cpu().long().numpy())

    @cached_property
    def inner(self) -> AutomatonChain | EnumeratedChain | None:
        """What answers the queries; None for 0/1 programs."""
        if self.path == "automaton":
            automaton = self.compiled.automaton
            assert automaton is not None
            final = -(automaton.broken.to(self.penalties) @ self.penalties) if len(self.penalties) else None
            return automaton.dfa(self.chain, final)
        if self.path == "enumeration":
            return EnumeratedChain(self.chain, self.compiled, self._spans, self.penalties)
        return None

    def solve(self, start: Tensor | None = None) -> Solution:
        """Best outputs, how they were found and whether they are proven; ``start`` (B, N) warms 0/1 programs."""
        if self.inner is not None:
            y, score = self.inner._best()
            return Solution(y, score, (self.path,) * len(score), torch.ones_like(score, dtype=torch.bool), score)
        instances = self._instances(start)
        task = ilp.Task(
            self.compiled.hard.parts,
            self.compiled.soft,
            self.penalties.detach().cpu().double().numpy() if self.compiled.soft else np.empty(0),
            self.compiled.checks,
            self.compiled.time_limit,
            self.compiled.threads,
            self.compiled.programs,
        )
        answers = ilp.solve(instances, task)
        chosen = np.full(self.unary.shape[:2], PAD)
        values = np.full((2, len(answers)), -np.inf)
        for b, answer in enumerate(answers):
            values[1, b] = answer.bound
            if answer.y is not None:
                chosen[b, : len(answer.y)] = answer.y
                values[0, b] = ilp.value(answer.y, instances[b], task)
            if answer.optimal:
                values[1, b] = values[0, b]
        score, bound = torch.from_numpy(values).to(self.unary)
        optimal = torch.tensor([answer.optimal for answer in answers], dtype=torch.bool, device=score.device)
        labels = torch.from_numpy(chosen).to(score.device)
        return Solution(labels, score, tuple(a.path for a in answers), optimal, bound)

    def _instances(self, start: Tensor | None) -> list[ilp.Instance]:
        unary = self.unary.detach().cpu().double().numpy()
        if self.start is not None or self.end is not None:
            unary = unary.copy()
        transition = self.transition.detach().cpu().double().numpy()
        lengths = [unary.shape[1]] * len(unary) if self.lengths is None else self.lengths.tolist()
        if self.start is not None:
            unary[:, :1] += self.start.detach().cpu().double().numpy()
        last = None if self.end is None else self.end.detach().cpu().double().numpy()
        scored = bool(transition.any())
        begin = None if start is None else start.cpu().numpy()
        found = []
        for b, n in enumerate(lengths):
            if last is not None and n:
                unary[b, n - 1] += last
            steps = None
            if scored and n > 1:
                shared = transition.ndim == 2
                steps = np.broadcast_to(transition, (n - 1, *transition.shape)) if shared else transition[b, : n - 1]
            spans = None if self._spans is None else self._spans.row(b, n)
            given = None if begin is None or (begin[b, :n] < 0).any() else begin[b, :n]
            found.append(ilp.Instance(unary[b, :n], steps, spans, given))
        return found

    def _best(self) -> tuple[Tensor, Tensor]:
        solution = self.solve()
        return solution.y, solution.score

    def _require_feasible(self, score: Tensor) -> None:
        rows = (score == float("-inf")).nonzero().flatten().tolist()
        if not rows:
            return
        row, n = rows[0], int(self.mask[rows[0]].sum())
        spans = None if self._spans is None else self._spans.row(row, n)
        forbidden = np.isneginf(self.unary[row, :n].detach().cpu().numpy())
        parts = None
        with contextlib.suppress(DependencyError):  # without a solver nobody can say which constraints are to blame
            parts = conflict(self.compiled, n, spans, forbidden)
        if parts is None:
            remedy = "their potentials are -inf on every allowed output, or time_limit is too short to find one"
            got = f"none for batch rows {rows[:10]}"
        else:
            got = f"none for batch row {row} with {n} parts: {' and '.join(map(str, parts))} exclude each other"
            remedy = "relax one of them, or make it soft(...)"
        raise InfeasibleError("constraint", "at least one allowed output for every instance", got, remedy)

    def padded_labels(self, y: Tensor) -> Ints:
        """(R, N) numpy labels with C at padded places, for checks of constraints; (K, B, N) gives R = K B."""
        labels, mask, count, _ = self.positions(y)
        return labels.masked_fill(~mask, count).flatten(0, -2).cpu().numpy()

    def score(self, y: Tensor) -> Tensor:
        """s'(y) for labels (B, N), or (K, B, N) with scores (K, B); -inf where a hard constraint is broken."""
        base = self.chain.score(y)
        labels = self.padded_labels(y)
        spans = self._spans
        if spans is not None and y.dim() == 3:
            spans = Spans(np.tile(spans.ends, (y.shape[0], 1, 1)))

        def holds(constraint: Any) -> Tensor:
            satisfied = torch.from_numpy(constraint.satisfied(labels, self.compiled.labels, spans))
            return satisfied.to(base.device).view(base.shape)

        for penalty, soft in zip(self.penalties, self.compiled.soft, strict=True):
            base = base - penalty * (~holds(soft.hard)).to(base.dtype)
        return base.masked_fill(~holds(self.compiled.hard), float("-inf"))

    def max(self) -> Tensor:
        if self.inner is not None:
            return self.inner.max()
        solution = self.solve()
        scores = self.score(solution.y.clamp(min=0))
        return torch.where(solution.found, scores, float("-inf"))

    def forbidden_place(self, y: Tensor, row: int) -> str:
        n = int(self.mask[row].sum())
        labels = y[row, :n].cpu().numpy()
        spans = None if self._spans is None else self._spans.row(row, n)
        if not self.compiled.hard.satisfied(labels[None], self.compiled.labels, spans)[0]:
            return f", which breaks {self.compiled.hard.place(labels, self.compiled.labels, spans)}"
        return self.chain.forbidden_place(y, row) if n else ""

    def replace(self, **potentials: Tensor | None) -> Self:
        return type(self)(self.chain.replace(**potentials), self.compiled, spans=self.spans, penalties=self.penalties)

    def _ask(self) -> AutomatonChain | EnumeratedChain:
        if self.inner is None:
            raise InferenceError(
                "constraint",
                "one solved by an automaton or by enumeration",
                f"{self.compiled.constraint}, solved as a 0/1 program",
                "a 0/1 program gives argmax, max and score; perceptron and margin hinge need no more",
            )
        return self.inner

    def log_partition(self) -> Tensor:
        return self._ask().log_partition()

    def marginals(self) -> Any:
        return self._ask().marginals()

    def entropy(self) -> Tensor:
        return self._ask().entropy()

    def count(self) -> Tensor:
        """Number of outputs that are not forbidden, (B,), float64."""
        return self._ask().count()

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        return self._ask().topk(k)

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        return self._ask().sample(n, generator)

    def enumerate(self) -> Tensor | None:
        """The outputs of the enumeration path, (K, B, N); what is not allowed has score -inf."""
        if self.path != "enumeration":
            return None
        assert isinstance(self.inner, EnumeratedChain)
        return self.inner.labels

    def max_by_count(self, counter: Any) -> CountTable:
        if isinstance(self.inner, AutomatonChain):
            return self.inner.max_by_count(counter)
        raise self._unsupported("counting under this constraint, which needs the automaton path")

    def best_by_count(self, counter: Any, offset: Tensor, slope: Tensor) -> CountedBest:
        if isinstance(self.inner, AutomatonChain):
            return self.inner.best_by_count(counter, offset, slope)
        return super().best_by_count(counter, offset, slope)

    def padded(self, y: Tensor) -> Tensor:
        return self.chain.padded(y)

    def same_output(self, y: Tensor, z: Tensor) -> Tensor:
        return self.chain.same_output(y, z)

    def positions(self, y: Tensor) -> tuple[Tensor, Tensor, int, torch.dtype]:
        return self.chain.positions(y)

    def parts_of_positions(self, table: Tensor) -> dict[str, Tensor]:
        return {"unary": table}
