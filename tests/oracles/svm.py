"""The structured SVM's whole quadratic program, every constraint written out, given to a general solver."""

from __future__ import annotations

import itertools
from typing import Any

import cvxpy as cp
import numpy as np


def chain_psi(x: np.ndarray, y: tuple[int, ...], labels: int) -> np.ndarray:
    """Psi of a chain: emissions (C, F), then transitions (C, C)."""
    emission, transition = np.zeros((labels, x.shape[1])), np.zeros((labels, labels))
    for t, label in enumerate(y):
        emission[label] += x[t]
        if t:
            transition[y[t - 1], label] += 1
    return np.concatenate([emission.ravel(), transition.ravel()])


def class_psi(x: np.ndarray, y: int, labels: int) -> np.ndarray:
    out = np.zeros((labels, len(x)))
    out[y] = x
    return out.ravel()


def chain_constraints(xs: list[Any], ys: list[Any], labels: int) -> list[list[tuple[np.ndarray, float]]]:
    """For every example, (Psi(gold) - Psi(y), number of wrong labels) of every y other than gold."""
    out = []
    for x, gold in zip(xs, ys, strict=True):
        best = chain_psi(x, tuple(gold), labels)
        others = [y for y in itertools.product(range(labels), repeat=len(gold)) if y != tuple(gold)]
        out.append(
            [(best - chain_psi(x, y, labels), float(sum(a != b for a, b in zip(y, gold, strict=True)))) for y in others]
        )
    return out


def class_constraints(xs: Any, ys: Any, labels: int, cost: Any = None) -> list[list[tuple[np.ndarray, float]]]:
    out = []
    for x, gold in zip(xs, ys, strict=True):
        best = class_psi(x, gold, labels)
        others = [y for y in range(labels) if y != gold]
        out.append([(best - class_psi(x, y, labels), 1.0 if cost is None else float(cost[gold, y])) for y in others])
    return out


def solve(
    constraints: list[list[tuple[np.ndarray, float]]], rescaling: str | None, penalty: str, C: float
) -> tuple[float, np.ndarray | None]:
    """(optimum, w); (inf, None) where the constraints contradict each other."""
    n, d = len(constraints), len(constraints[0][0][0])
    w, xi = cp.Variable(d), cp.Variable(n)
    rules = [xi >= 0] if penalty != "hard" else [xi == 0]
    for i, of_example in enumerate(constraints):
        for difference, delta in of_example:
            size = np.sqrt(delta) if penalty == "quadratic" else delta
            if rescaling is None or penalty == "hard":
                rules.append(difference @ w >= 1 - xi[i])
            elif rescaling == "margin":
                rules.append(difference @ w >= size - xi[i])
            else:
                rules.append(difference @ w >= 1 - xi[i] / size)
    loss = {"hard": 0, "linear": C / n * cp.sum(xi), "quadratic": C / (2 * n) * cp.sum_squares(xi)}[penalty]
    program = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(w) + loss), rules)
    program.solve(solver=cp.CLARABEL)
    if w.value is None:
        return float("inf"), None
    return float(program.value), w.value
