"""Few outputs: every allowed one is scored, and queries are those of a choice among them.

s'(y_k) for the K outputs, -inf where one is not allowed; Candidates over k answers, read back as labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from structlearn.constraints.compiled import Compiled
from structlearn.constraints.language import Bools, Constraint, Ints, Spans
from structlearn.structures.base import PAD
from structlearn.structures.candidates import Candidates
from structlearn.structures.chain import ChainPotentials, LinearChain


class EnumeratedChain:
    """The queries of :class:`~structlearn.constraints.constrained.Constrained` over a list of outputs (K, B, N).

    Args:
        chain: the scores.
        compiled: the constraint.
        spans: of the parts.
        penalties: (S,) of its soft conjuncts.
    """

    def __init__(self, chain: LinearChain, compiled: Compiled, spans: Spans | None, penalties: Tensor) -> None:
        self.chain, self.compiled, self.spans, self.penalties = chain, compiled, spans, penalties
        lengths = chain.mask.sum(1).cpu().numpy()
        count = compiled.labels.count
        tables = {n: compiled.outputs(n) for n in np.unique(lengths).tolist()}
        size = max((len(table) for table in tables.values()), default=0)
        outputs = np.full((max(size, 1), len(lengths), chain.unary.shape[1]), count)
        real = np.zeros((max(size, 1), len(lengths)), dtype=bool)
        for b, n in enumerate(lengths.tolist()):
            outputs[: len(tables[n]), b, :n], real[: len(tables[n]), b] = tables[n], True
        self._outputs, self._lengths = outputs, lengths
        allowed = torch.from_numpy(self._holds(compiled.hard, tables) & real)
        labels = torch.from_numpy(np.where(outputs == count, 0, outputs)).to(chain.unary.device)
        self.labels = labels.masked_fill(~chain.mask, PAD)  # (K, B, N)
        scores = chain.score(labels)
        for penalty, soft in zip(penalties, compiled.soft, strict=True):
            scores = scores - penalty * torch.from_numpy(~self._holds(soft.hard, tables) & real).to(scores)
        self.choice = Candidates(scores.T.contiguous(), mask=allowed.T.contiguous().to(scores.device))

    def _holds(self, constraint: Constraint, tables: dict[int, Ints]) -> Bools:
        """(K, B)."""
        if not constraint.needs_spans:
            good = np.zeros(self._outputs.shape[:2], dtype=bool)
            for n, table in tables.items():
                kept = self.compiled.kept(constraint, n)
                good[: len(table), self._lengths == n] = kept[:, None]
            return good
        rows = [self._outputs[:, b] for b in range(self._outputs.shape[1])]
        one = [None if self.spans is None else Spans(self.spans.ends[b : b + 1]) for b in range(len(rows))]
        return np.stack([constraint.satisfied(y, self.compiled.labels, s) for y, s in zip(rows, one, strict=True)], 1)

    def _read(self, index: Tensor) -> Tensor:
        """Outputs (..., B, N) of choices (..., B); -100 where there is none."""
        rows = torch.arange(self.labels.shape[1], device=index.device).expand(index.shape)
        return self.labels[index.clamp(min=0), rows].masked_fill((index < 0).unsqueeze(-1), PAD)

    def _best(self) -> tuple[Tensor, Tensor]:
        index, score = self.choice._best()
        return self._read(index), score

    def max(self) -> Tensor:
        return self.choice.max()

    def log_partition(self) -> Tensor:
        return self.choice.log_partition()

    def entropy(self) -> Tensor:
        return self.choice.entropy()

    def marginals(self) -> Any:
        """Expected uses of each potential under p(y_k) = softmax of the scores."""
        given = self.chain.potentials
        with torch.enable_grad():
            leaves = {name: x.detach().requires_grad_() for name, x in given.items()}
            again = EnumeratedChain(self.chain.replace(**leaves), self.compiled, self.spans, self.penalties.detach())
            total = again.log_partition().sum()
            grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        found = dict(zip(leaves, grads, strict=True))
        return ChainPotentials(*(found.get(name) for name in ChainPotentials._fields))  # type: ignore[arg-type]

    def count(self) -> Tensor:
        return self.choice.count()

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        index, scores = self.choice.topk(k)
        return self._read(index), scores

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        return self._read(self.choice.sample(n, generator))
