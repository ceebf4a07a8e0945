"""Exact structured SVMs against the whole quadratic program, over spaces small enough to write it out."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from oracles import svm as oracle

import structlearn as sl
from structlearn.errors import ArgumentError, InfeasibleError, LabelError, PotentialError, ShapeError
from structlearn.solvers import ConvergenceWarning, OutputSpace

FORMULATIONS = [
    (None, "linear"),
    (None, "quadratic"),
    ("slack", "linear"),
    ("slack", "quadratic"),
    ("margin", "linear"),
    ("margin", "quadratic"),
]
SOLVERS = [
    ("n_slack", {}),
    ("n_slack", {"variant": "own"}),
    ("n_slack", {"qp": "qpth"}),
    ("n_slack", {"qp": "clarabel"}),
    ("one_slack", {}),
    ("one_slack", {"qp": "qpth"}),
    ("bcfw", {}),
    ("bcfw", {"average": True}),
]
C, LABELS = 3.0, 3


def chain_data(seed: int = 0, n: int = 6) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Short sequences that no w labels without mistakes."""
    g = torch.Generator().manual_seed(seed)
    lengths = [int(torch.randint(1, 4, (), generator=g)) for _ in range(n)]
    X = [torch.randn(length, 2, generator=g, dtype=torch.float64) for length in lengths]
    y = [torch.randint(LABELS, (length,), generator=g) for length in lengths]
    return X, y


def chain_svm(**options: Any) -> sl.StructuredSVM:
    given = {"C": C, "eps": 1e-5, "gap": 1e-7, "max_rounds": 3000, **options}
    return sl.StructuredSVM(sl.features.ChainMap(2, LABELS), sl.costs.Hamming(), **given)


@pytest.fixture(scope="module")
def optima() -> dict[Any, tuple[float, np.ndarray]]:
    X, y = chain_data()
    constraints = oracle.chain_constraints([x.numpy() for x in X], [z.tolist() for z in y], LABELS)
    return {key: oracle.solve(constraints, *key, C) for key in FORMULATIONS}  # type: ignore[misc]


@pytest.mark.parametrize(("solver", "options"), SOLVERS, ids=lambda v: str(v))
@pytest.mark.parametrize(("rescaling", "penalty"), FORMULATIONS)
def test_all_solvers_reach_the_optimum_of_the_whole_program(
    rescaling: str | None, penalty: str, solver: str, options: dict[str, Any], optima: dict[Any, Any]
) -> None:
    model = chain_svm(rescaling=rescaling, penalty=penalty, solver=solver, **options).fit(*chain_data())
    value, w = optima[rescaling, penalty]
    got = model.certificate_
    assert got.converged
    assert got.primal == pytest.approx(value, rel=2e-6)
    assert got.dual == pytest.approx(value, rel=2e-6)
    np.testing.assert_allclose(model.coef_.numpy(), w, atol=3e-3)
    for row in model.history_:
        assert row.dual <= value * (1 + 1e-6)
        assert row.primal >= value * (1 - 1e-6)


def separable() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    centres = 4.0 * torch.eye(3, dtype=torch.float64)
    y = torch.arange(12) % 3
    return centres[y] + 0.3 * torch.randn(12, 3, generator=g, dtype=torch.float64), y


@pytest.mark.parametrize("qp", ["smo", "clarabel"])
def test_hard_margin(qp: str) -> None:
    X, y = separable()
    value, w = oracle.solve(oracle.class_constraints(X.numpy(), y.tolist(), 3), None, "hard", 1.0)
    model = sl.StructuredSVM(
        sl.features.MulticlassMap(3, 3), sl.costs.ZeroOne(), rescaling=None, penalty="hard", eps=1e-6, gap=1e-5, qp=qp
    ).fit(X, y)
    assert model.certificate_.primal == pytest.approx(value, rel=1e-4)
    np.testing.assert_allclose(model.coef_.numpy(), w, atol=1e-3)


@pytest.mark.parametrize("qp", ["smo", "clarabel"])
def test_hard_margin_on_inseparable_data_is_infeasible(qp: str) -> None:
    X = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    assert oracle.solve(oracle.class_constraints(X.numpy(), y.tolist(), 2), None, "hard", 1.0)[1] is None
    model = sl.StructuredSVM(
        sl.features.MulticlassMap(2, 2), sl.costs.ZeroOne(), rescaling=None, penalty="hard", eps=1e-3, qp=qp
    )
    with pytest.raises(InfeasibleError, match="allow violations"):
        model.fit(X, y)


@pytest.mark.parametrize(("rescaling", "penalty"), FORMULATIONS)
def test_slacks_bound_the_training_cost(rescaling: str | None, penalty: str) -> None:
    X, y = chain_data(3, 8)
    model = chain_svm(rescaling=rescaling, penalty=penalty, gap=1e-4).fit(X, y)
    wrong = [int((a != b).sum()) for a, b in zip(model.predict(X), y, strict=True)]
    costs = [min(1, k) for k in wrong] if rescaling is None else wrong
    assert sum(costs) / len(costs) <= model.certificate_.risk + 1e-9
    # The certificate is recomputed from w alone.
    problem = model._fitted
    found = problem.oracle(model.coef_)
    xi = found.value.square() if penalty == "quadratic" else found.value
    assert float(xi.mean()) == pytest.approx(model.certificate_.risk)
    primal = 0.5 * float(model.coef_ @ model.coef_) + C * float(xi.mean()) / (2 if penalty == "quadratic" else 1)
    assert primal == pytest.approx(model.certificate_.primal)


@pytest.mark.parametrize("rescaling", ["slack", "margin"])
def test_slack_rescaling_alone_ignores_the_unit_of_the_cost(rescaling: str) -> None:
    """Delta -> 4 Delta with C -> C / 4 gives the same w under slack rescaling (Prop. 7), another one under margin."""
    X, y = chain_data(5)
    plain = chain_svm(rescaling=rescaling).fit(X, y)
    scaled = (
        chain_svm(rescaling=rescaling, C=C / 4).set_params(cost=sl.costs.Hamming(4.0 * torch.ones(LABELS))).fit(X, y)
    )
    same = torch.allclose(plain.coef_, scaled.coef_, atol=2e-3)
    assert same == (rescaling == "slack")


@pytest.mark.parametrize("penalty", ["linear", "quadratic"])
def test_formulations_coincide_for_costs_of_0_and_1(penalty: str) -> None:
    X, y = separable()
    y = y.roll(1)[torch.randperm(12)]
    objectives = [
        sl.StructuredSVM(
            sl.features.MulticlassMap(3, 3), sl.costs.ZeroOne(), rescaling=rescaling, penalty=penalty, gap=1e-7  # type: ignore[arg-type]
        ).fit(X, y).certificate_.primal
        for rescaling in (None, "slack", "margin")
    ]  # fmt: skip
    assert objectives == pytest.approx([objectives[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("penalty", ["linear", "quadratic"])
@pytest.mark.parametrize("eps", [0.1, 0.01])
def test_constraints_stay_below_the_bound_and_eps_holds(penalty: str, eps: float) -> None:
    X, y = chain_data(7, 10)
    model = chain_svm(penalty=penalty, eps=eps, gap=None).fit(X, y)
    got = model.certificate_
    assert got.converged
    assert got.added <= got.bound
    assert got.violation <= eps


def test_taxonomy_costs_match_the_whole_program() -> None:
    tree = sl.Taxonomy.flat(4)
    X = torch.randn(12, 3, dtype=torch.float64)
    y = torch.randint(4, (12,))
    model = sl.StructuredSVM(
        sl.features.TaxonomyMap(3, tree), sl.costs.TreeCost(tree), rescaling="slack", C=2.0, gap=1e-7
    ).fit(X, y)
    value, _ = oracle.solve(
        oracle.class_constraints(X.numpy(), y.tolist(), 4, tree.distance().numpy()), "slack", "linear", 2.0
    )
    assert model.certificate_.primal == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("solver", ["n_slack", "one_slack", "bcfw"])
def test_maps_without_a_known_form_train_through_gradients(solver: str) -> None:
    X, y = chain_data(2)
    known = chain_svm(solver=solver, gap=1e-5).fit(X, y).certificate_
    asked = sl.StructuredSVM(
        sl.features.ChainMap(2, LABELS, input_transitions=True), sl.costs.Hamming(), C=C, gap=1e-4, solver=solver  # type: ignore[arg-type]
    ).fit(X, y)  # fmt: skip
    assert asked.certificate_.converged
    assert asked.certificate_.primal < known.primal + 1e-3  # a larger space holds the smaller one's optimum
    segments = sl.StructuredSVM(
        sl.features.SegmentMap(2, 2, 2), sl.costs.ZeroOne(), gap=1e-3, solver=solver, max_rounds=200  # type: ignore[arg-type]
    )  # fmt: skip
    x = torch.randn(5, 4, 2, dtype=torch.float64)
    gold = segments.feature_map(x.float()).sample(1)[0]  # type: ignore[operator]
    assert segments.fit(x, gold, torch.full((5,), 4)).certificate_.converged


class Sign(OutputSpace):
    """y in {-1, +1} with Psi = y x / 2: the binary SVM."""

    def joint(self, x: torch.Tensor, y: int) -> torch.Tensor:
        return 0.5 * y * x

    def cost(self, gold: int, y: int) -> float:
        return float(gold != y)

    def argmax(self, w: torch.Tensor, x: torch.Tensor, gold: int | None = None) -> int:
        return max((-1, 1), key=lambda y: 0.5 * y * float(w @ x) + (gold is not None and y != gold))


@pytest.mark.parametrize("solver", ["n_slack", "one_slack", "bcfw"])
def test_an_output_space_of_ones_own(solver: str) -> None:
    X = list(torch.randn(20, 3, dtype=torch.float64))
    y = [1 if float(x[0] + 0.5 * x[1]) > 0 else -1 for x in X]
    y[0] = -y[0]
    model = sl.StructuredSVM(Sign(), C=10.0, gap=1e-6, solver=solver).fit(X, y)  # type: ignore[arg-type]
    differences = [[(0.5 * (g + g) * x.numpy(), 1.0)] for x, g in zip(X, y, strict=True)]
    value, _ = oracle.solve(differences, "margin", "linear", 10.0)
    assert model.certificate_.primal == pytest.approx(value, rel=1e-5)
    assert model.score(X, y) >= 0.9
    with pytest.raises(ArgumentError, match=r"define Sign\.most_violated"):
        sl.StructuredSVM(Sign(), rescaling="slack").fit(X, y)


def test_scikit_learn_conventions() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    X, y = chain_data(1, 12)
    model = chain_svm(gap=1e-2)
    copied = clone(model)
    assert copied.get_params()["C"] == C
    assert copied.feature_map is not model.feature_map
    search = GridSearchCV(model, {"C": [0.1, 10.0]}, cv=2).fit(X, y)
    assert search.best_params_["C"] in (0.1, 10.0)
    assert 0 <= search.best_score_ <= 1
    scaled = make_pipeline(FunctionTransformer(lambda xs: [2.0 * x for x in xs]), clone(model)).fit(X, y)
    assert len(scaled.predict(X)) == len(X)
    points, classes = separable()
    flat = sl.StructuredSVM(sl.features.MulticlassMap(3, 3), sl.costs.ZeroOne(), gap=1e-3)
    pipe = make_pipeline(StandardScaler(), flat).fit(points.numpy(), classes.numpy())
    assert pipe.score(points.numpy(), classes.numpy()) == 1.0


def test_digits_match_crammer_and_singer() -> None:
    """scikit-learn minimises 1/2 |w|^2 + C' sum xi, so C = C' n."""
    from sklearn.datasets import load_digits
    from sklearn.svm import LinearSVC

    data, target = load_digits(return_X_y=True)
    data, target = data[:600] / 16.0, target[:600]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = LinearSVC(multi_class="crammer_singer", C=0.1, fit_intercept=False, tol=1e-7, max_iter=20000).fit(
            data, target
        )
    scores = data @ peer.coef_.T
    gold = scores[np.arange(600), target][:, None]
    xi = (scores - gold + (np.arange(10) != target[:, None])).max(1)
    theirs = 0.5 * (peer.coef_**2).sum() + 0.1 * xi.sum()
    model = sl.StructuredSVM(sl.features.MulticlassMap(64, 10), sl.costs.ZeroOne(), C=60.0, gap=2e-5, solver="bcfw")
    ours = model.fit(data, target).certificate_
    assert ours.primal == pytest.approx(theirs, rel=1e-4)
    assert ours.dual <= theirs


def test_data_in_every_form_gives_the_same_model() -> None:
    X, y = chain_data()
    batch = torch.nn.utils.rnn.pad_sequence(X, batch_first=True)
    batch[0, len(X[0]) :] = float("nan")  # padding is never read
    gold = torch.nn.utils.rnn.pad_sequence(y, batch_first=True, padding_value=-100)
    lengths = torch.tensor([len(x) for x in X])
    first = chain_svm(gap=1e-4).fit(X, y)
    for data in ((batch, gold, lengths), ((batch, gold, lengths),), ([(a, b) for a, b in zip(X, y, strict=True)],)):
        if isinstance(data[0], list):
            from torch.utils.data import Dataset

            class Pairs(Dataset[Any]):
                def __len__(self) -> int:
                    return len(X)

                def __getitem__(self, i: int) -> Any:
                    return X[i], y[i]

            data = (Pairs(),)
        torch.testing.assert_close(chain_svm(gap=1e-4).fit(*data).coef_, first.coef_)
    assert first.score(X, y) == pytest.approx(first.score(batch, gold, lengths))
    torch.testing.assert_close(first.feature_map_.weights().double(), first.coef_, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"C": 0.0}, ArgumentError, "C: expected a finite number > 0"),
        ({"C": float("nan")}, ArgumentError, "C: expected"),
        ({"eps": -1.0}, ArgumentError, "eps: expected a finite number > 0"),
        ({"gap": 0.0}, ArgumentError, "gap: expected"),
        ({"max_rounds": 0}, ArgumentError, "max_rounds"),
        ({"max_seconds": 0.0}, ArgumentError, "max_seconds"),
        ({"solver": "sgd"}, ArgumentError, "solver"),
        ({"qp": "mosek"}, ArgumentError, "qp: expected one of"),
        ({"rescaling": "both"}, ArgumentError, "rescaling"),
        ({"penalty": "cubic"}, ArgumentError, "penalty"),
        ({"penalty": "hard", "rescaling": None, "solver": "bcfw"}, ArgumentError, "'n_slack' with penalty='hard'"),
        ({"penalty": "hard", "rescaling": None, "solver": "one_slack"}, ArgumentError, "'n_slack' with penalty='hard'"),
        ({"variant": "some"}, ArgumentError, "variant"),
        ({"cost": "hamming"}, ArgumentError, "cost: expected a structlearn.costs.Cost"),
        ({"feature_map": torch.nn.Linear(2, 2)}, ArgumentError, "feature_map"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        chain_svm().set_params(**options).fit(*chain_data())


def test_bad_data() -> None:
    X, y = chain_data()
    with pytest.raises(ArgumentError, match="at least one example"):
        chain_svm().fit([], [])
    spoiled = [x.clone() for x in X]
    spoiled[3][0, 0] = float("nan")
    with pytest.raises(PotentialError, match="example 3"):
        chain_svm().fit(spoiled, y)
    outside = [z.clone() for z in y]
    outside[4][0] = LABELS
    with pytest.raises(LabelError, match="example 4"):
        chain_svm().fit(X, outside)
    with pytest.raises(ShapeError, match="one output for each"):
        chain_svm().fit(X, y[:-1])
    with pytest.raises(ArgumentError, match="the true outputs"):
        chain_svm().fit(X)
    with pytest.raises(ArgumentError, match="call fit first"):
        chain_svm().predict(X)
    with pytest.raises(ArgumentError, match="one of"):
        chain_svm().set_params(c=1.0)


def test_limits_warn_and_say_so() -> None:
    with pytest.warns(ConvergenceWarning, match="max_rounds=2"):
        model = chain_svm(max_rounds=2).fit(*chain_data())
    assert not model.certificate_.converged
    assert model.certificate_.status == "max_rounds=2 reached"
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        chain_svm(max_seconds=1e-9).fit(*chain_data())
