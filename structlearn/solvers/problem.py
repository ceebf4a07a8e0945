"""The oracle side of training: most violated outputs of many examples, and their planes (a, b).

    H_i(y) = b - <w, a>,   (a, b) as in ``solvers/formulation.py``

Every solver talks to a :class:`Problem`; :class:`StructureProblem` serves any feature map and structure of this
package, ``solvers/own.py`` serves a user's three functions, ``solvers/kernels.py`` serves kernels.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structlearn.costs import Cost
from structlearn.errors import ArgumentError, LabelError
from structlearn.features import FeatureMap
from structlearn.losses import most_violated
from structlearn.solvers.examples import Examples, check_finite, join, select
from structlearn.solvers.factors import Factors, factors_of
from structlearn.solvers.formulation import Formulation
from structlearn.solvers.planes import Rows, Terms
from structlearn.structures import Structure


@dataclass(frozen=True)
class Found:
    """The most violated outputs ``y`` of the examples ``index`` (m,), at one w."""

    index: Tensor
    y: Any
    cost: Tensor  # Delta, (m,)
    value: Tensor  # H >= 0, (m,)
    exact: bool

    def take(self, at: Tensor) -> Found:
        """Those at positions ``at``."""
        return Found(self.index[at], select(self.y, at), self.cost[at], self.value[at], self.exact)


class Problem(ABC):
    """n examples and a formulation; w has ``dim`` entries, float64."""

    n: int
    dim: int
    formulation: Formulation
    rows: Rows
    lifts = False  # whether ``lift`` does anything

    @abstractmethod
    def oracle(self, w: Tensor, index: Tensor | None = None) -> Found:
        """The most violated outputs at w, of all examples if ``index`` is not given."""

    @abstractmethod
    def differences(self, found: Found) -> Terms:
        """Psi(x_i, gold_i) - Psi(x_i, y_i), one plane each."""

    @abstractmethod
    def predict(self, w: Tensor, examples: Examples) -> Any:
        """argmax_y <w, Psi(x, y)> for each example."""

    def terms(self, found: Found) -> Terms:
        """The planes a of what was found."""
        return self.differences(found).scaled(self.formulation.scale(found.cost))

    def total(self, found: Found, weight: Tensor) -> Tensor:
        """sum_i weight_i a_i, (d,)."""
        return self.terms(found).combine(weight, self.rows, self.dim)

    def lift(self, v: Tensor) -> Tensor:
        """What <., v> is taken with: v itself, or K v where features are kernelised."""
        return v

    def products(self, some: Terms, others: Terms) -> Tensor:
        """Inner products of planes, (m, M); only asked where ``lifts``."""
        raise NotImplementedError

    def bounds(self, found: Found) -> Tensor:
        """b of each plane."""
        return self.formulation.size(found.cost)


class StructureProblem(Problem):
    """Any feature map of ``structlearn.features``, its structure and a cost.

    The map is copied in float64 and its encoder, if any, is applied once: only the head is trained. Examples are
    asked for ``batch_size`` at a time.
    """

    def __init__(
        self,
        feature_map: FeatureMap,
        cost: Cost,
        examples: Examples,
        formulation: Formulation,
        *,
        inference: str = "exact",
        batch_size: int = 2048,
    ) -> None:
        if not isinstance(cost, Cost):
            raise ArgumentError(
                "cost", "a structlearn.costs.Cost", type(cost).__name__, "e.g. structlearn.costs.Hamming()"
            )
        self.formulation, self.inference, self.batch_size = formulation, inference, batch_size
        self.cost: Cost = formulation.cost(cost)
        self.model = copy.deepcopy(feature_map).double().eval()
        self.encoder, self.model.encoder = self.model.encoder, None
        check_finite(examples)
        self.examples = self.encoded(examples)
        check_finite(self.examples)
        self.n = len(examples)
        self.dim = sum(p.numel() for p in self.model.head_parameters())
        with torch.no_grad():
            self.factors: Factors | None = factors_of(self.model, self.examples.x, self.examples.lengths)
        self.rows = Rows.none() if self.factors is None else self.factors.rows
        self._whole = [
            (index, self.examples if len(index) == self.n else self.examples.take(index))
            for index in torch.arange(self.n).split(batch_size)
        ]
        self._check_gold()

    def encoded(self, examples: Examples) -> Examples:
        """The same examples with the encoder's output as x."""
        if self.encoder is None:
            return examples
        with torch.no_grad():
            parts = [self.encoder(select(examples.x, i)) for i in torch.arange(len(examples)).split(self.batch_size)]
        return Examples(torch.cat(parts).to(torch.float64), examples.gold, examples.lengths)

    def _set(self, w: Tensor) -> None:
        start = 0
        with torch.no_grad():
            for p in self.model.head_parameters():
                p.copy_(w[start : start + p.numel()].view_as(p))
                start += p.numel()

    def structure(self, examples: Examples) -> Structure:
        return self.model(examples.x) if examples.lengths is None else self.model(examples.x, examples.lengths)

    def _check_gold(self) -> None:
        """Every gold output must lie in the space; the message names the example."""
        self._set(torch.zeros(self.dim, dtype=torch.float64))
        with torch.no_grad():
            for index, part in self._whole:
                try:
                    allowed = self.structure(part).score(part.gold).isfinite()
                except LabelError:
                    allowed = torch.zeros(len(index), dtype=torch.bool)
                if not bool(allowed.all()):
                    for i in index[~allowed].tolist():
                        self._check_one(i)

    def _check_one(self, i: int) -> None:
        one = self.examples.take(torch.tensor([i]))
        try:
            fine = bool(self.structure(one).score(one.gold).isfinite().all())
            got = "score -inf"
        except LabelError as error:
            fine, got = False, str(error.got)
        if not fine:
            raise LabelError("y", "outputs inside the space", f"{got} in example {i}", "correct or drop the example")

    def oracle(self, w: Tensor, index: Tensor | None = None) -> Found:
        self._set(w)
        if index is None:
            batches = self._whole
        else:
            batches = [(i, self.examples.take(i)) for i in index.split(self.batch_size)]
        found = []
        with torch.no_grad():
            for i, part in batches:
                v = most_violated(
                    self.structure(part), part.gold, self.cost, squared=self.formulation.squared,
                    rescaling=self.formulation.oracle_rescaling, inference=self.inference,  # type: ignore[arg-type]
                )  # fmt: skip
                found.append((i, v.y, v.cost, v.value.clamp(min=0.0), bool(v.exact.all())))
        asked, y, cost, value, exact = zip(*found, strict=True)
        return Found(torch.cat(asked), join(list(y)), torch.cat(cost).double(), torch.cat(value).double(), all(exact))

    def differences(self, found: Found) -> Terms:
        gold = select(self.examples.gold, found.index)
        if self.factors is not None:
            return self.factors.terms(found.index, gold, found.y)
        rows = []
        for i in torch.arange(len(found.index)).split(256):
            part, y = self.examples.take(found.index[i]), select(found.y, i)
            args = () if part.lengths is None else (part.lengths,)
            rows.append(self.model.joint(part.x, part.gold, *args) - self.model.joint(part.x, y, *args))
        return Terms.dense(torch.cat(rows))

    def total(self, found: Found, weight: Tensor) -> Tensor:
        if self.factors is not None:
            return super().total(found, weight)
        scale = self.formulation.scale(found.cost) * weight
        parameters = self.model.head_parameters()
        out = torch.zeros(self.dim, dtype=torch.float64)
        for i in torch.arange(len(found.index)).split(self.batch_size):
            part, y = self.examples.take(found.index[i]), select(found.y, i)
            with torch.enable_grad():
                s = self.structure(part)
                value = (scale[i] * (s.score(part.gold) - s.score(y))).sum()
                grads = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
            out += torch.cat([g.flatten() for g in grads])
        return out

    def predict(self, w: Tensor, examples: Examples) -> Any:
        self._set(w)
        check_finite(examples)
        examples = self.encoded(examples)
        with torch.no_grad():
            parts = [
                self.structure(examples.take(i)).argmax() for i in torch.arange(len(examples)).split(self.batch_size)
            ]
        return join(parts)

    def fitted(self, feature_map: FeatureMap, w: Tensor) -> None:
        """Writes w into the head of ``feature_map``."""
        start = 0
        with torch.no_grad():
            for p in feature_map.head_parameters():
                p.copy_(w[start : start + p.numel()].view_as(p))
                start += p.numel()
