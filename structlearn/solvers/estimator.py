"""The structured SVM as an estimator with scikit-learn's conventions."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from structlearn.costs import Cost
from structlearn.errors import ArgumentError
from structlearn.features import FeatureMap
from structlearn.solvers import qp as qps
from structlearn.solvers.bcfw import BlockFrankWolfe
from structlearn.solvers.certificate import Certificate, History
from structlearn.solvers.distributed import DistributedOneSlack
from structlearn.solvers.examples import Examples, gather
from structlearn.solvers.formulation import Formulation
from structlearn.solvers.kernels import KernelProblem
from structlearn.solvers.n_slack import NSlack
from structlearn.solvers.one_slack import OneSlack
from structlearn.solvers.own import OutputSpace, OwnProblem
from structlearn.solvers.problem import Problem, StructureProblem
from structlearn.solvers.solver import Limits, Solver
from structlearn.solvers.training import train


class StructuredSVM:
    """min_w 1/2 |w|^2 + C/n sum_i max_y [ Delta(y_i, y) - <w, Psi(x_i, y_i) - Psi(x_i, y)> ], exactly.

    Args:
        feature_map: a map of ``structlearn.features``, whose head is trained (its encoder is not), or an
            :class:`structlearn.solvers.OutputSpace` of your own.
        cost: Delta; an ``OutputSpace`` brings its own.
        rescaling: "margin" as above, "slack": max_y Delta (1 - <w, dPsi>), or None: every mistake costs 1.
        penalty: "linear" as above, "quadratic": C/2n sum xi^2 with sqrt(Delta), or "hard": no violation.
        C: weight of the violations.
        eps: no constraint is left violated by more than this.
        gap: if given, train until primal - dual <= gap * primal instead.
        solver: "n_slack", "one_slack" or "bcfw".
        qp: "auto", "smo", "qpth", "piqp" or "clarabel", for the duals of the cutting-plane solvers.
        kernel: "poly": (gamma <x, z> + coef0)^degree, "rbf": exp(-gamma |x - z|^2), "linear", or a function
            k(X, Z) -> (M, N) of rows of Phi; needs solver="n_slack" or "one_slack". None takes Phi itself.
        degree, gamma, coef0: of the kernel.
        kernel_megabytes: how much of the Gram matrix over training tokens is kept in memory.
        distributed: every process of the default group has its own examples; needs solver="one_slack".
        variant: n_slack re-optimises over "all" constraints, or each example's "own".
        average: bcfw also tries the mean of its iterates.
        inference: how the most violated output is found, see :func:`structlearn.most_violated`.
        max_rounds, max_seconds: limits; reaching one is a :class:`ConvergenceWarning`.
        checkpoint: a file; training goes on from it if it exists, and writes it every ``checkpoint_every`` rounds.
        verbose: a progress bar with the gap.
        random_state: of bcfw's draws.
        batch_size: examples the oracle takes at once.

    After ``fit``: ``coef_`` (d,) float64, ``feature_map_`` (a copy with the trained head), ``certificate_``,
    ``history_``.
    """

    def __init__(
        self,
        feature_map: FeatureMap | OutputSpace,
        cost: Cost | None = None,
        *,
        rescaling: Literal["margin", "slack"] | None = "margin",
        penalty: Literal["linear", "quadratic", "hard"] = "linear",
        C: float = 1.0,
        eps: float = 1e-2,
        gap: float | None = None,
        solver: Literal["n_slack", "one_slack", "bcfw"] = "n_slack",
        qp: str = "auto",
        kernel: str | Callable[[Tensor, Tensor], Tensor] | None = None,
        degree: int = 2,
        gamma: float = 1.0,
        coef0: float = 1.0,
        kernel_megabytes: float = 512.0,
        distributed: bool = False,
        variant: Literal["all", "own"] = "all",
        average: bool = False,
        inference: Literal["exact", "recursion", "search"] = "exact",
        max_rounds: int = 1000,
        max_seconds: float = math.inf,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 10,
        verbose: bool = False,
        random_state: int = 0,
        batch_size: int = 2048,
    ) -> None:
        self.feature_map = feature_map
        self.cost = cost
        self.rescaling = rescaling
        self.penalty = penalty
        self.C = C
        self.eps = eps
        self.gap = gap
        self.solver = solver
        self.qp = qp
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.kernel_megabytes = kernel_megabytes
        self.distributed = distributed
        self.variant = variant
        self.average = average
        self.inference = inference
        self.max_rounds = max_rounds
        self.max_seconds = max_seconds
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.verbose = verbose
        self.random_state = random_state
        self.batch_size = batch_size

    coef_: Tensor
    history_: History
    certificate_: Certificate

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            name: getattr(self, name) for name in inspect.signature(type(self).__init__).parameters if name != "self"
        }

    def set_params(self, **params: Any) -> StructuredSVM:
        """Changes arguments of the constructor; itself."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ArgumentError(name, f"one of {sorted(known)}", repr(name), "see the class docstring")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        inputs = InputTags(two_d_array=False, three_d_array=True, allow_nan=False)
        return Tags(estimator_type=None, target_tags=TargetTags(required=True), input_tags=inputs)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    def __repr__(self) -> str:
        return f"StructuredSVM({type(self.feature_map).__name__}, {self.cost!r}, C={self.C}, solver={self.solver!r})"

    def _problem(self, X: Any, y: Any, lengths: Any) -> Problem:
        formulation = Formulation(self.rescaling, self.penalty, self.C)
        if isinstance(self.feature_map, OutputSpace):
            if y is None:
                X, y = [pair[0] for pair in X], [pair[1] for pair in X]
            return OwnProblem(self.feature_map, X, y, formulation)
        if not isinstance(self.feature_map, FeatureMap):
            raise ArgumentError(
                "feature_map",
                "a FeatureMap or an OutputSpace",
                type(self.feature_map).__name__,
                "see structlearn.features",
            )
        examples = gather(X, y, lengths)
        if examples.gold is None:
            raise ArgumentError("y", "the true outputs", None, "pass fit(X, y), or fit((x, y, lengths))")
        options: dict[str, Any] = {"inference": self.inference, "batch_size": self.batch_size}
        if self.kernel is not None:
            kernel = {"kernel": self.kernel, "degree": self.degree, "gamma": self.gamma, "coef0": self.coef0}
            options |= {**kernel, "megabytes": self.kernel_megabytes}
            return KernelProblem(self.feature_map, self.cost, examples, formulation, **options)  # type: ignore[arg-type]
        return StructureProblem(self.feature_map, self.cost, examples, formulation, **options)  # type: ignore[arg-type]

    def _solver(self, problem: Problem) -> Solver:
        limits = Limits(self.eps, self.gap, self.max_rounds, self.max_seconds)
        qps.check_method(self.qp)
        if self.kernel is not None and self.solver == "bcfw":
            raise ArgumentError("solver", "'n_slack' or 'one_slack' with kernel", "'bcfw'", "it steps on w itself")
        if self.distributed and self.solver != "one_slack":
            raise ArgumentError(
                "solver", "'one_slack' with distributed", repr(self.solver), "the others step on w itself"
            )
        if self.distributed:
            return DistributedOneSlack(problem, limits, qp=self.qp)
        if self.solver == "n_slack":
            return NSlack(problem, limits, qp=self.qp, variant=self.variant)
        if self.solver == "one_slack":
            return OneSlack(problem, limits, qp=self.qp)
        if self.solver == "bcfw":
            return BlockFrankWolfe(problem, limits, seed=self.random_state, average=self.average)
        raise ArgumentError("solver", "'n_slack', 'one_slack' or 'bcfw'", repr(self.solver), "see the class docstring")

    def fit(
        self, X: Any, y: Any = None, lengths: Any = None, *, callback: Callable[[Certificate], Any] | None = None
    ) -> StructuredSVM:
        """Trains on inputs and true outputs; itself.

        ``X`` and ``y``: tensors (B, ...) with ``lengths`` (B,) for sequences, or lists with one entry an example; or
        ``X`` alone: a tuple (x, y[, lengths]) or a dataset of pairs. ``callback`` gets every round's certificate.
        """
        Limits(self.eps, self.gap, self.max_rounds, self.max_seconds)
        self._fitted = self._problem(X, y, lengths)
        solver = self._solver(self._fitted)
        self.history_ = train(
            solver, checkpoint=self.checkpoint, checkpoint_every=self.checkpoint_every, verbose=self.verbose,
            callback=callback,
        )  # fmt: skip
        self.certificate_ = self.history_.rows[-1]
        self.coef_ = solver.best
        if isinstance(self._fitted, StructureProblem) and not isinstance(self._fitted, KernelProblem):
            assert isinstance(self.feature_map, FeatureMap)
            self.feature_map_ = copy.deepcopy(self.feature_map)
            self._fitted.fitted(self.feature_map_, self.coef_)
        return self

    def _check_fitted(self) -> None:
        if not hasattr(self, "coef_"):
            raise ArgumentError("StructuredSVM", "a fitted model", "one that is not", "call fit first")

    def predict(self, X: Any, lengths: Any = None) -> Any:
        """argmax_y <w, Psi(x, y)>: outputs as the structure gives them; a list for a list of sequences."""
        self._check_fitted()
        if isinstance(self.feature_map, OutputSpace):
            return self._fitted.predict(self.coef_, X)
        ragged = isinstance(X, list)
        examples = gather(X, None, lengths)
        y = self._fitted.predict(self.coef_, examples)
        if not ragged or not isinstance(y, Tensor) or y.dim() < 2 or examples.lengths is None:
            return y
        return [
            row[tuple(slice(n) for _ in range(row.dim()))] for row, n in zip(y, examples.lengths.tolist(), strict=True)
        ]

    def score(self, X: Any, y: Any, lengths: Any = None) -> float:
        """Share of positions (tokens, classes) predicted right; of whole outputs where there are no positions."""
        self._check_fitted()
        if isinstance(self.feature_map, OutputSpace):
            costs = [self.feature_map.cost(g, z) for g, z in zip(y, self.predict(X), strict=True)]
            return sum(c == 0 for c in costs) / max(len(costs), 1)
        examples = gather(X, y, lengths)
        return accuracy(self._fitted.predict(self.coef_, examples), examples)


def accuracy(predicted: Any, examples: Examples) -> float:
    """Share of the places of gold that ``predicted`` has right, padding (-100) aside."""
    gold = examples.gold
    if not isinstance(gold, Tensor):
        raise ArgumentError(
            "y", "outputs that are label tensors", type(gold).__name__, "compare predict's result yourself"
        )
    inside = gold >= 0
    if examples.lengths is not None and gold.dim() == 2:
        inside &= torch.arange(gold.shape[1]) < examples.lengths[:, None]
    return float((predicted == gold)[inside].double().mean())
