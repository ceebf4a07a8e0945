"""Kernels on Phi, through the substructure representation.

    <Psi, Psi'> = sum_{t,s} [y_t = y'_s] k(x_t, x'_s) + transitions,   w = sum_{s,c} beta[s, c] e(s, c)

so a kernelised chain is an ordinary chain with unary scores K beta, and vectors of size (tokens x labels) stand for w.
``lift`` multiplies by K, in blocks of rows; blocks are kept up to a bound of memory and computed again beyond it.
Prediction needs the tokens with beta != 0 only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structlearn.costs import Cost
from structlearn.errors import ArgumentError
from structlearn.features import ChainMap, FeatureMap
from structlearn.features.multiclass import TaxonomyMap
from structlearn.solvers.examples import Examples
from structlearn.solvers.factors import ChainFactors
from structlearn.solvers.formulation import Formulation
from structlearn.solvers.planes import Rows, Terms
from structlearn.solvers.problem import Found, StructureProblem
from structlearn.structures import Categorical, LinearChain, Structure

Kernel = Callable[[Tensor, Tensor], Tensor]
BLOCK = 512
# Below this many rows they are read one by one: K is symmetric.
FEW = 64
# Eigenvalues of a sample this large show a kernel that is far from positive semi-definite.
SAMPLE = 256


def kernel_function(kernel: str | Kernel, degree: int, gamma: float, coef0: float) -> Kernel:
    """k(X, Z): (M, F), (N, F) -> (M, N)."""
    if callable(kernel):
        return kernel
    if kernel == "linear":
        return lambda x, z: x @ z.T
    if kernel == "poly":
        return lambda x, z: (gamma * (x @ z.T) + coef0) ** degree
    if kernel == "rbf":
        return lambda x, z: torch.exp(-gamma * torch.cdist(x, z, compute_mode="donot_use_mm_for_euclid_dist").square())
    raise ArgumentError(
        "kernel", "'linear', 'poly', 'rbf' or a function k(X, Z)", repr(kernel), "None trains without one"
    )


class GramBlocks:
    """K over ``points`` (T, F): float32 blocks of rows, of which at most ``megabytes`` are kept."""

    def __init__(self, kernel: Kernel, points: Tensor, megabytes: float) -> None:
        self.kernel, self.points = kernel, points
        self.kept: dict[int, Tensor] = {}
        self.room = int(megabytes * 2**20 // max(1, 4 * BLOCK * len(points)))

    def block(self, start: int) -> Tensor:
        if start in self.kept:
            return self.kept[start]
        rows = self.kernel(self.points[start : start + BLOCK], self.points).float()
        if len(self.kept) < self.room:
            self.kept[start] = rows
        return rows

    def rows(self, used: Tensor) -> Tensor:
        """K[used], (U, T), from the blocks that are kept or afresh."""
        starts = set((used // BLOCK * BLOCK).tolist())
        if not starts <= self.kept.keys():
            return self.kernel(self.points[used], self.points).float()
        return torch.stack([self.kept[i // BLOCK * BLOCK][i % BLOCK] for i in used.tolist()])

    def times(self, beta: Tensor) -> Tensor:
        """K beta, (T, C), for rows of beta that are mostly 0."""
        used = (beta != 0).any(1).nonzero().flatten()
        out = torch.zeros_like(beta)
        if len(used) == 0:
            return out
        few = beta[used]
        if len(used) <= FEW:
            return self.rows(used).T.double() @ few
        for start in range(0, len(beta), BLOCK):
            rows = self.block(start)
            out[start : start + BLOCK] = (rows if len(used) == len(beta) else rows[:, used]).double() @ few
        return out


def check_kernel(kernel: Kernel, points: Tensor) -> None:
    """Symmetric, finite and positive semi-definite on a sample of the points."""
    sample = points[:: max(1, len(points) // SAMPLE)][:SAMPLE]
    K = kernel(sample, sample)
    if tuple(K.shape) != (len(sample), len(sample)):
        raise ArgumentError("kernel", "k(X, Z) of shape (M, N)", f"shape {tuple(K.shape)}", "one value a pair of rows")
    K = K.double()
    size = float(K.abs().max())
    if not bool(K.isfinite().all()) or float((K - K.T).abs().max()) > 1e-6 * size:
        raise ArgumentError("kernel", "finite, symmetric values", "others", "k(x, z) must equal k(z, x)")
    least = float(torch.linalg.eigvalsh(K)[0])
    if least < -1e-6 * size * len(sample):
        remedy = "the dual of an indefinite kernel has no optimum; use 'rbf' or 'poly', or add to its diagonal"
        raise ArgumentError("kernel", "a positive semi-definite kernel", f"an eigenvalue of {least:.3g}", remedy)


class KernelProblem(StructureProblem):
    """Chains and classes with k in place of the inner product of Phi; vectors are beta (T, C) and transitions."""

    ready = False
    lifts = True

    def __init__(
        self,
        feature_map: FeatureMap,
        cost: Cost,
        examples: Examples,
        formulation: Formulation,
        *,
        kernel: str | Kernel,
        degree: int = 2,
        gamma: float = 1.0,
        coef0: float = 1.0,
        megabytes: float = 512.0,
        inference: str = "exact",
        batch_size: int = 2048,
    ) -> None:
        super().__init__(feature_map, cost, examples, formulation, inference=inference, batch_size=batch_size)
        if self.factors is None:
            name = type(feature_map).__name__
            raise ArgumentError(
                "kernel", "a ChainMap of order 1, a MulticlassMap or a TaxonomyMap", name, "use kernel=None"
            )
        self.kernel = kernel_function(kernel, degree, gamma, coef0)
        phi = self._points(self.examples)
        self.points, self.token = torch.unique(phi, dim=0, return_inverse=True)
        check_kernel(self.kernel, self.points)
        self.gram = GramBlocks(self.kernel, self.points, megabytes)
        self.labels: int = self.model.head_parameters()[0].shape[0]
        self.corner = len(self.points) * self.labels
        self.dim = self.corner + (self.labels**2 if self.is_chain else 0)
        self.rows = Rows.none().and_unit()
        # From here on, training examples carry the numbers of their points in place of x.
        number = self.token
        if self.is_chain:
            mask = self._mask(self.examples)
            number = torch.full(mask.shape, -1)
            number[mask] = self.token
        self.examples = Examples(number, self.examples.gold, self.examples.lengths)
        self._whole = [(i, self.examples.take(i)) for i, _ in self._whole]
        self.ready = True

    @property
    def is_chain(self) -> bool:
        return isinstance(self.factors, ChainFactors)

    def _points(self, examples: Examples) -> Tensor:
        """Phi of every unpadded token, or of every example."""
        with torch.no_grad():
            if not self.is_chain:
                return self.model.features(examples.x, 2)
            assert isinstance(self.model, ChainMap)
            mask = self._mask(examples)
            return self.model._windows(examples.x, examples.lengths)[mask]

    def _mask(self, examples: Examples) -> Tensor:
        n = examples.x.shape[1]
        if examples.lengths is None:
            return torch.ones(len(examples), n, dtype=torch.bool)
        return torch.arange(n) < examples.lengths[:, None]

    def lift(self, v: Tensor) -> Tensor:
        beta = v[: self.corner].view(-1, self.labels)
        return torch.cat([self.gram.times(beta).flatten(), v[self.corner :]])

    def _set(self, w: Tensor) -> None:
        if self.ready:
            self.scores = w

    def structure(self, examples: Examples) -> Structure:
        if not self.ready:
            return super().structure(examples)
        table = self.scores[: self.corner].view(-1, self.labels)
        if self.is_chain:
            return self._chain(table[examples.x.clamp(min=0)], self.scores[self.corner :], examples.lengths)
        return self._classes(table[examples.x])

    def _chain(self, unary: Tensor, transition: Tensor, lengths: Tensor | None) -> LinearChain:
        assert isinstance(self.model, ChainMap)
        return LinearChain(unary, self.model.eta * transition.view(self.labels, -1), lengths=lengths)

    def _classes(self, nodes: Tensor) -> Categorical:
        assert isinstance(self.model, TaxonomyMap)
        return Categorical(nodes @ self.model.incidence.to(nodes).T)

    def differences(self, found: Found) -> Terms:
        """The terms of the linear map, each with a unit vector e(token, label) in place of Phi(token)."""
        assert self.factors is not None
        terms = super().differences(found)
        width = self.factors.width  # type: ignore[attr-defined]
        inside = terms.offset < self.labels * width
        number = self.token[terms.row.clamp(max=len(self.token) - 1)]
        offset = torch.where(
            inside, number * self.labels + terms.offset // width, self.corner + terms.offset - self.labels * width
        )
        return Terms(terms.start, torch.zeros_like(terms.row), offset, terms.coefficient)

    def products(self, some: Terms, others: Terms) -> Tensor:
        """sum_{t,s} [c = c'] k(x_t, x_s) over the terms of two planes, + equal transitions; (m, M)."""
        out = torch.zeros(len(others), len(some), dtype=torch.float64)

        def split(terms: Terms) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            plane = torch.arange(len(terms)).repeat_interleave(terms.start.diff())
            slot = torch.where(terms.offset < self.corner, terms.offset % self.labels, self.labels)
            return plane, slot, terms.offset, terms.coefficient

        (p, slot, at, coefficient), (q, other_slot, other_at, other_coefficient) = split(some), split(others)
        for label in range(self.labels + 1):
            mine, theirs = slot == label, other_slot == label
            keys, index = torch.unique(at[mine], return_inverse=True)
            other_keys, other_index = torch.unique(other_at[theirs], return_inverse=True)
            if len(keys) == 0 or len(other_keys) == 0:
                continue
            if label < self.labels:
                points = self.points[keys // self.labels], self.points[other_keys // self.labels]
                K = self.kernel(*points).double()
            else:
                K = (keys[:, None] == other_keys).double()
            left = torch.zeros(len(some), len(keys), dtype=torch.float64)
            left.index_put_((p[mine], index), coefficient[mine], accumulate=True)
            # Planes have few terms each: rows of (others, some) are added up term by term.
            rows = (left @ K).T[other_index] * other_coefficient[theirs, None]
            out.index_add_(0, q[theirs], rows)
        return out.T

    def total(self, found: Found, weight: Tensor) -> Tensor:
        return self.terms(found).combine(weight, self.rows, self.dim)

    def support(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The points that prediction needs and their beta."""
        beta = w[: self.corner].view(-1, self.labels)
        used = (beta != 0).any(1)
        return self.points[used], beta[used]

    def predict(self, w: Tensor, examples: Examples) -> Any:
        examples = self.encoded(examples)
        points, beta = self.support(w)
        phi = self._points(examples)
        parts = [self.kernel(rows, points).double() @ beta for rows in phi.split(4 * BLOCK)]
        scores = torch.cat(parts) if parts else phi.new_zeros((0, self.labels))
        if not self.is_chain:
            return self._classes(scores).argmax()
        mask = self._mask(examples)
        unary = scores.new_zeros(*mask.shape, self.labels)
        unary[mask] = scores
        return self._chain(unary, w[self.corner :], examples.lengths).argmax()
