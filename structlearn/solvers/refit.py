"""An exact head for a network that was trained by gradient descent."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from structlearn.costs import Cost
from structlearn.features import FeatureMap
from structlearn.solvers.certificate import Certificate, History
from structlearn.solvers.estimator import StructuredSVM


class Refit(NamedTuple):
    """A copy of the module with the exact head, how good that provably is, and how it got there."""

    module: FeatureMap
    certificate: Certificate
    history: History


def refit_head(
    module: FeatureMap,
    X: Any,
    y: Any = None,
    lengths: Any = None,
    *,
    cost: Cost,
    rescaling: Literal["margin", "slack"] | None = "margin",
    penalty: Literal["linear", "quadratic"] = "linear",
    C: float = 1.0,
    gap: float = 1e-3,
    solver: Literal["n_slack", "one_slack", "bcfw"] = "bcfw",
    max_rounds: int = 1000,
    batch_size: int = 2048,
) -> Refit:
    """argmin over the head w of 1/2 |w|^2 + C/n sum_i max_y H_i(y), with the encoder of ``module`` as it is.

    Data as in :meth:`StructuredSVM.fit`; ``module`` itself is left alone.
    """
    model = StructuredSVM(
        module, cost, rescaling=rescaling, penalty=penalty, C=C, gap=gap, solver=solver, max_rounds=max_rounds,
        batch_size=batch_size,
    ).fit(X, y, lengths)  # fmt: skip
    return Refit(model.feature_map_, model.certificate_, model.history_)
