"""Random fits of every exact solver, each checked from scratch: ``python tests/svm_cases.py FIRST LAST`` runs many.

Spaces are small enough to write out all outputs, so that the objective of any w is known whatever the solver says. A
certificate is false if its primal is not that of ``coef_``, if its dual lies above the objective of some w, if it says
that it converged with a larger gap than was asked for, or if data are called contradictory that some w separates.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

import clarabel
import numpy as np
import torch
from oracles import svm as oracle
from scipy import sparse
from scipy.optimize import linprog

import structlearn as sl
from structlearn.errors import InfeasibleError
from structlearn.solvers import OutputSpace
from structlearn.solvers import qp as qps

Planes = list[tuple[np.ndarray, float]]
DATA = ("random", "duplicated", "contradictory", "separable", "zero", "huge", "tiny")
METHODS = [name for name in ("auto", "smo", "qpth", "piqp", "clarabel") if qps.installed(name)]


class Classes(OutputSpace):
    """Multiclass, as a user would write it."""

    def __init__(self, labels: int, cost: np.ndarray, binary: bool) -> None:
        self.labels, self.costs, self.binary = labels, cost, binary

    def joint(self, x: torch.Tensor, y: int) -> torch.Tensor:
        return torch.from_numpy(oracle.class_psi(x.numpy(), y, self.labels))

    def cost(self, gold: int, y: int) -> float:
        return float(self.costs[gold, y])

    def argmax(self, w: torch.Tensor, x: torch.Tensor, gold: int | None = None) -> int:
        scores = w.view(self.labels, -1) @ x
        return int((scores if gold is None else scores + torch.from_numpy(self.costs[gold])).argmax())


class Searched(Classes):
    """Every formulation, by looking at all outputs."""

    def most_violated(self, w: torch.Tensor, x: torch.Tensor, gold: int, rescaling: Any, squared: bool) -> int:
        scores = w.view(self.labels, -1) @ x
        delta = torch.from_numpy(self.costs[gold])
        delta = (delta > 0).double() if rescaling is None else delta
        size, change = delta.sqrt() if squared else delta, scores - scores[gold]
        return int((size + change if rescaling == "margin" else size * (1 + change)).argmax())


@dataclass
class Case:
    """What is fitted, and all planes (dPsi, Delta) of every example."""

    model: sl.StructuredSVM
    data: tuple[Any, ...]
    planes: list[Planes]
    name: str


def make(seed: int) -> Case:
    """The case of that number."""
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {
        "rescaling": [None, "margin", "slack"][rng.integers(3)],
        "penalty": ["linear", "linear", "quadratic", "hard"][rng.integers(4)],
        "C": float(10.0 ** rng.integers(-3, 7)),
        "eps": float(10.0 ** rng.integers(-4, 0)),
        "gap": [None, None, 1e-1, 1e-3, 1e-5, 1e-6][rng.integers(6)],
        "solver": ["n_slack", "n_slack", "one_slack", "bcfw"][rng.integers(4)],
        "max_rounds": 300,
        "max_seconds": 10.0,
    }
    if options["penalty"] == "hard":
        options["solver"] = "n_slack"
        options["rescaling"] = None if options["rescaling"] == "margin" else options["rescaling"]
    if options["solver"] == "n_slack":
        options["variant"] = ["all", "own"][rng.integers(2)]
    if options["solver"] == "bcfw":
        options["average"] = bool(rng.integers(2))
    else:
        options["qp"] = METHODS[rng.integers(len(METHODS))]
    n, kind = int([1, 2, 3, rng.integers(1, 21)][rng.integers(4)]), DATA[rng.integers(len(DATA))]
    space = ["chain", "classes", "own"][rng.integers(3)]
    labels, width = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    lengths = rng.integers(1, 4, n) if space == "chain" else np.ones(n, dtype=np.int64)
    X = [rng.standard_normal((size, width)) for size in lengths]
    Y = [rng.integers(labels, size=size) for size in lengths]
    _shape(kind, rng, X, Y, labels)
    name = f"{seed}: {space} n={n} {kind} {options}"
    if space == "chain":
        cost, confusion = _chain_cost(rng, labels, options)
        planes = _chain_planes(X, Y, labels, confusion)
        data = ([torch.from_numpy(x) for x in X], [torch.from_numpy(y) for y in Y])
        return Case(sl.StructuredSVM(sl.features.ChainMap(width, labels), cost, **options), data, planes, name)
    table = 1.0 - np.eye(labels)
    binary = bool(rng.integers(2))
    if not binary:
        table *= rng.choice([0.0, 0.3, 1.0, 2.0, 10.0], (labels, labels))
    points, gold = np.concatenate(X), np.concatenate(Y)
    planes = oracle.class_constraints(points, gold.tolist(), labels, table)
    if space == "own":
        plain = options["rescaling"] == "margin" and options["penalty"] == "linear"
        kind_of_space = Classes if binary or plain else Searched
        own = kind_of_space(labels, table, binary)
        if options["rescaling"] is None or options["penalty"] == "hard":
            # What costs nothing is no mistake in a space that only knows its cost.
            planes = [[(a if delta > 0 else 0 * a, delta) for a, delta in of] for of in planes]
        return Case(sl.StructuredSVM(own, **options), (list(torch.from_numpy(points)), gold.tolist()), planes, name)
    cost = sl.costs.ZeroOne() if binary else sl.costs.Hamming(torch.from_numpy(table))
    features = sl.features.MulticlassMap(width, labels)
    return Case(sl.StructuredSVM(features, cost, **options), (points, gold), planes, name)


def _shape(kind: str, rng: np.random.Generator, X: list[Any], Y: list[Any], labels: int) -> None:
    n = len(X)
    if kind in ("duplicated", "contradictory"):
        for i in range(n // 2, n):
            j = int(rng.integers(n // 2 + 1))
            X[i], Y[i] = X[j].copy(), Y[j].copy()
            if kind == "contradictory":
                Y[i] = (Y[i] + rng.integers(labels, size=len(Y[i]))) % labels
    if kind == "separable":
        w = rng.standard_normal((labels, X[0].shape[1]))
        for i, x in enumerate(X):
            Y[i] = (x @ w.T).argmax(1)
    for i in range(n):
        X[i] = X[i] * {"zero": float(rng.random() < 0.5), "huge": 1e3, "tiny": 1e-3}.get(kind, 1.0)


def _chain_cost(rng: np.random.Generator, labels: int, options: dict[str, Any]) -> tuple[sl.costs.Cost, np.ndarray]:
    plain = 1.0 - np.eye(labels)
    which = rng.integers(4)
    if which == 0:
        return sl.costs.Hamming(), plain
    if which == 1:
        return sl.costs.Hamming(0.3 * torch.ones(labels, dtype=torch.float64)), 0.3 * plain
    weight = rng.choice([0.0, 0.5, 1.0, 3.0], labels)
    if which == 2:
        return sl.costs.Hamming(torch.from_numpy(weight)), weight[:, None] * plain
    table = rng.choice([0.0, 1.0, 2.0, 7.5], (labels, labels)) * plain
    return sl.costs.Hamming(torch.from_numpy(table)), table


def _chain_planes(X: list[Any], Y: list[Any], labels: int, confusion: np.ndarray) -> list[Planes]:
    planes = []
    for x, gold in zip(X, Y, strict=True):
        best = oracle.chain_psi(x, tuple(gold), labels)
        others = [y for y in itertools.product(range(labels), repeat=len(gold)) if y != tuple(gold)]
        planes.append([(best - oracle.chain_psi(x, y, labels), float(confusion[gold, list(y)].sum())) for y in others])
    return planes


class Whole:
    """Every constraint of a case in the form xi >= b - <w, a>."""

    def __init__(self, case: Case) -> None:
        model = case.model
        self.C, self.penalty, self.n = model.C, model.penalty, len(case.planes)
        self.block = np.array([i for i, of in enumerate(case.planes) for _ in of], dtype=int)
        rows = [plane for of in case.planes for plane in of]
        difference = np.array([a for a, _ in rows])
        delta = np.array([delta for _, delta in rows])
        if model.rescaling is None or model.penalty == "hard":
            delta = (delta > 0).astype(float) if isinstance(model.feature_map, OutputSpace) else np.ones_like(delta)
        self.b = np.sqrt(delta) if model.penalty == "quadratic" else delta
        slack = model.rescaling == "slack" and model.penalty != "hard"
        self.a = self.b[:, None] * difference if slack else difference

    def slacks(self, w: np.ndarray) -> np.ndarray:
        xi = np.zeros(self.n)
        np.maximum.at(xi, self.block, self.b - self.a @ w)
        return xi

    def objective(self, w: np.ndarray) -> float:
        """Of w itself; for "hard" of the nearest multiple that violates nothing."""
        xi, half = self.slacks(w), 0.5 * float(w @ w)
        if self.penalty == "hard":
            worst = float(xi.max(initial=0.0))
            return half / (1 - worst) ** 2 if worst < 1 else math.inf
        if self.penalty == "linear":
            return half + self.C / self.n * float(xi.sum())
        return half + self.C / (2 * self.n) * float((xi**2).sum())

    def separable(self) -> bool:
        """Whether some w violates nothing, by linear programming."""
        mistakes = self.b > 0
        if not mistakes.any():
            return True
        self.a, self.b, self.block = self.a[mistakes], self.b[mistakes], self.block[mistakes]
        scale = np.abs(self.a).max(1)
        if bool((scale == 0).any()):
            return False
        # The largest margin of a w of size at most 1 in every coordinate.
        rows = np.hstack([-self.a / scale.max(), np.ones((len(self.b), 1))])
        d = self.a.shape[1]
        bounds = [(-1, 1)] * d + [(None, None)]
        made = linprog([0.0] * d + [-1.0], A_ub=rows, b_ub=np.zeros(len(self.b)), bounds=bounds, method="highs")
        return -made.fun > 1e-7

    def reference(self) -> np.ndarray | None:
        """w by an interior-point method on the whole program, None where it finds none."""
        m, d = self.a.shape
        n = self.n if self.penalty != "hard" else 0
        scale = self.C / self.n
        P = sparse.diags(np.concatenate([np.ones(d), np.full(n, scale if self.penalty == "quadratic" else 0.0)]))
        q = np.concatenate([np.zeros(d), np.full(n, scale if self.penalty == "linear" else 0.0)])
        pick = np.zeros((m, n))
        if n:
            pick[np.arange(m), self.block] = 1.0
        rows = np.vstack([np.hstack([-self.a, -pick]), np.hstack([np.zeros((n, d)), -np.eye(n)])])
        right = np.concatenate([-self.b, np.zeros(n)])
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        cones = [clarabel.NonnegativeConeT(len(right))]
        solver = clarabel.DefaultSolver(
            sparse.csc_matrix(P), q, sparse.csc_matrix(rows), right, cones, settings
        )  # fmt: skip
        w = np.array(solver.solve().x)[:d]
        return w if np.isfinite(w).all() else None


@dataclass
class Outcome:
    """What is wrong with a fit (None: nothing), and whether it converged."""

    wrong: str | None
    converged: bool
    seconds: float
    rounds: int = 0
    status: str = ""


def run(case: Case) -> Outcome:
    """Fits and checks."""
    whole, began = Whole(case), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            got = case.model.fit(*case.data).certificate_
        except InfeasibleError as error:
            wrong = None
            if case.model.penalty != "hard" or whole.separable():
                wrong = f"called contradictory: {error}"
            return Outcome(wrong, True, time.perf_counter() - began, status="infeasible")
    seconds = time.perf_counter() - began
    wrong = check(case, whole, got)
    return Outcome(wrong, got.converged, seconds, got.round, got.status)


def check(case: Case, whole: Whole, got: Any) -> str | None:
    """What is false in the certificate ``got``, from all planes."""
    w, model = case.model.coef_.numpy(), case.model
    primal = whole.objective(w)
    # Scores and costs are sums of a few products in float64.
    room = 1e-9 * (abs(primal) + 1e-6)
    if not math.isfinite(primal):
        return f"converged with objective {primal}" if got.converged else None
    if not abs(primal - got.primal) <= 1e-7 * abs(primal) + 1e-9 * whole.C:
        return f"primal {got.primal} of a w with {primal}"
    best = primal
    reference = whole.reference()
    if reference is not None:
        best = min(best, whole.objective(reference))
    if got.dual > best + 1e-7 * abs(best) + room:
        return f"dual {got.dual} above {best}"
    if not got.converged:
        return None
    gap = primal - got.dual
    if model.gap is not None:
        allowed = model.gap * abs(primal)
    else:
        xi = whole.slacks(w)
        allowed = {
            "linear": model.C * model.eps,
            "quadratic": model.C
            * model.eps
            * (max(float(xi.mean()), 1.0 if model.solver == "one_slack" else 0.0) + 0.5 * model.eps),
            "hard": primal * (1 - (1 - model.eps) ** 2),
        }[model.penalty]
    if not gap <= allowed + room:
        return f"converged with gap {gap} of {allowed}, primal {primal}, dual {got.dual}, best {best}"
    if primal - best > allowed + room:
        return f"converged at {primal}, best {best}"
    return None


def main(first: int, last: int) -> None:
    torch.set_num_threads(1)
    counts = {"wrong": 0, "open": 0, "slow": 0, "all": 0}
    for seed in range(first, last):
        case = make(seed)
        try:
            outcome = run(case)
        except Exception as error:
            outcome = Outcome(f"{type(error).__name__}: {error}", False, 0.0)
        counts["all"] += 1
        counts["wrong"] += outcome.wrong is not None
        counts["open"] += not outcome.converged
        counts["slow"] += outcome.seconds > 3
        if outcome.wrong or not outcome.converged or outcome.seconds > 3:
            word = outcome.wrong or "open"
            print(
                f"{word} | {outcome.status} | {outcome.rounds} rounds {outcome.seconds:.1f} s | {case.name}", flush=True
            )
    print(counts, flush=True)


if __name__ == "__main__":
    main(*(int(x) for x in sys.argv[1:3]))
