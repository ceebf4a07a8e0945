"""One choice among K: multiclass and taxonomy labels.

Y = {0..K-1} and s(y) = scores[y]. Every query is a reduction over the last axis, which torch already runs at
memory bandwidth on every device, so there is no kernel of its own: the queries are the semiring sums.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from structlearn.errors import ShapeError
from structlearn.ops import choose_backend
from structlearn.semirings import Count, Entropy, KMax, first_argmax, log_sum_exp
from structlearn.structures import checks
from structlearn.structures.base import PAD, Structure, check_count
from structlearn.structures.counting import Counter, CountTable


class CategoricalPotentials(NamedTuple):
    """The one field of :class:`Categorical`."""

    scores: Tensor


class Categorical(Structure):
    """s(y) = scores[y] for y in 0..K-1.

    Args:
        scores: (B, K) score of each class, K >= 1.
        validate: look for NaN and for scores above finfo.max / 4, +inf included.

    Outputs are labels (B,), int64.
    """

    fields = ("scores",)
    named = CategoricalPotentials

    def __init__(self, scores: Tensor, *, backend: str = "auto", validate: bool = False) -> None:
        checks.check_tensor("scores", scores, 2, "(B, K)")
        if scores.shape[1] == 0:
            raise ShapeError("scores", "(B, K) with K >= 1", tuple(scores.shape), "an empty output space has no best")
        self.scores: Tensor = checks.same_kind({"scores": scores})[0]  # type: ignore[assignment]
        self.backend = choose_backend(backend, scores.device.type, ("reference",))
        if validate:
            checks.check_potential("scores", self.scores, None)

    @property
    def batch_size(self) -> int:
        return self.scores.shape[0]

    def replace(self, **potentials: Tensor | None) -> Self:
        return type(self)(**self._given(potentials), backend=self.backend)  # type: ignore[arg-type]

    def _best(self) -> tuple[Tensor, Tensor]:
        scores = self.scores.detach()
        index = first_argmax(scores, -1)
        best = scores.gather(-1, index).squeeze(-1)
        return index.squeeze(-1).masked_fill(best == float("-inf"), PAD), best

    def max(self) -> Tensor:
        best = self.scores.gather(-1, first_argmax(self.scores.detach(), -1)).squeeze(-1)
        dead = best.detach() == float("-inf")
        return torch.where(dead, best.detach(), best)

    def score(self, y: Tensor) -> Tensor:
        """s(y) for labels (B,), or (..., B)."""
        y = checks.check_label_tensor("y", y, (self.batch_size,), self.scores.device)
        checks.check_labels("y", y, torch.ones((), dtype=torch.bool, device=y.device), self.scores.shape[1])
        return self.scores[torch.arange(self.batch_size, device=y.device), y]

    def log_partition(self) -> Tensor:
        return log_sum_exp(self.scores, -1)

    def marginals(self) -> CategoricalPotentials:
        """P(y = k), (B, K); rows with no allowed output are 0. Differentiable."""
        top = self.scores.detach().amax(-1, keepdim=True)
        weight = (self.scores - top.masked_fill(top == float("-inf"), 0.0)).exp()
        total = weight.sum(-1, keepdim=True)
        return CategoricalPotentials(weight / total.masked_fill(total == 0, 1.0))

    def entropy(self) -> Tensor:
        return Entropy().sum(Entropy().lift(self.scores), -1)[1]

    def count(self) -> Tensor:
        """Number of classes that are not forbidden, (B,), float64."""
        return Count().lift(self.scores)[0].sum(-1)

    def same_output(self, y: Tensor, z: Tensor) -> Tensor:
        return y == z

    def enumerate(self) -> Tensor:
        """All classes for every instance, (K, B)."""
        return torch.arange(self.scores.shape[1], device=self.scores.device)[:, None].expand(-1, self.batch_size)

    def positions(self, y: Tensor) -> tuple[Tensor, Tensor, int, torch.dtype]:
        y = checks.check_label_tensor("y", y, (self.batch_size,), self.scores.device)
        mask = torch.ones((self.batch_size, 1), dtype=torch.bool, device=self.scores.device)
        checks.check_labels("y", y.unsqueeze(-1), mask, self.scores.shape[1])
        return y.unsqueeze(-1), mask, self.scores.shape[1], self.scores.dtype

    def parts_of_positions(self, table: Tensor) -> dict[str, Tensor]:
        return {"scores": table[:, 0]}

    def max_by_count(self, counter: Counter) -> CountTable:
        place = counter.flat("scores")
        scores = self.scores.detach()
        place = torch.zeros_like(scores, dtype=torch.int64) if place is None else place.expand_as(scores)
        table = scores.new_full((self.batch_size, counter.size), float("-inf")).scatter_reduce(1, place, scores, "amax")

        def decode(index: Tensor) -> Tensor:
            flat = torch.zeros_like(index[:, 0])
            for j, size in enumerate(counter.sizes):
                flat = flat * size + index[:, j]
            found = scores.masked_fill(place != flat[:, None], float("-inf"))
            best = found.amax(-1)
            return first_argmax(found, -1).squeeze(-1).masked_fill(best == float("-inf"), PAD)

        return CountTable(table.view(-1, *counter.sizes), decode)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """Labels (k, B) and scores (k, B), best first; the scores are differentiable."""
        check_count("k", k)
        order = self.scores.detach().sort(dim=-1, descending=True, stable=True).indices[:, :k].T
        scores = KMax(k).sum(self.scores.unsqueeze(0), -1)
        labels = torch.full_like(scores, PAD, dtype=torch.int64)
        labels[: order.shape[0]] = order
        return labels.masked_fill(scores == float("-inf"), PAD), scores

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """n draws, labels (n, B)."""
        check_count("n", n)
        p = self.marginals().scores.detach()
        dead = p.sum(-1) == 0
        drawn = torch.multinomial(p.masked_fill(dead[:, None], 1.0), n, replacement=True, generator=generator)
        return drawn.masked_fill(dead[:, None], PAD).T
