"""solve: the head of a task's feature map trained by a solver: exactly, with a certificate, or by voting over pairs."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from structlearn import saving
from structlearn.commands.training import instantiated
from structlearn.data.modules import TaskData
from structlearn.errors import ArgumentError
from structlearn.features import CandidateMap, FeatureMap, RuleMap
from structlearn.reranking.training import train_voting
from structlearn.solvers import StructuredSVM
from structlearn.tasks import Task

EXACT = {
    "solver": "one_slack",
    "rescaling": "margin",
    "penalty": "linear",
    "C": 1.0,
    "eps": 1e-2,
    "max_rounds": 1000,
}
VOTING = {"slices": 10, "width": 1, "C": 1.0}


def run(options: argparse.Namespace) -> None:
    """Train on the configuration's training data, print the certificate and the scores on its test data."""
    if options.config is None:
        remedy = "e.g. configs/letters/exact-one-slack.yaml"
        raise ArgumentError("--config", "a configuration with data and task", None, remedy)
    task, data, asked = instantiated(Path(options.config))
    given = {name: getattr(options, name) for name in {**EXACT, **VOTING} if getattr(options, name) is not None}
    print(trained(task, data, {**asked, **given}))
    for name, value in evaluate(task, data).items():
        print(f"test/{name}: {value:.4f}")
    if options.save_to is not None:
        print(f"saved to {saving.save(task, options.save_to)}")


def trained(task: Task, data: TaskData, asked: dict[str, Any]) -> str:
    """Train ``task`` by options of the command over the configuration's; what the solver says of it."""
    known = {"solver": "voting", **VOTING} if asked.get("solver") == "voting" else EXACT
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise ArgumentError("solve", f"options {', '.join(known)}", ", ".join(unknown), "not all solvers have all")
    chosen = {**known, **asked}
    if chosen["solver"] != "voting":
        return str(solve(task, data, **chosen, verbose=True))
    del chosen["solver"]
    found = train_voting(task, data.examples("train"), data.examples("validation"), **chosen)
    return f"{len(found.weights_)} votes, beta {found.beta_:.3g}, gamma {found.gamma_:.3g}"


def solve(task: Task, data: TaskData, **options: Any) -> Any:
    """Puts the exact head for all training data into ``task``; the certificate."""
    _require_one_tensor(task)
    train = data.encoded("train")
    batch = data.codec.collate(train.items)
    x, bare = _phi(task, batch.x), _without_encoder(task.feature_map)
    svm = StructuredSVM(bare, task.cost, **options).fit(x, batch.gold, batch.lengths)
    with torch.no_grad():
        for parameter, exact in zip(
            task.feature_map.head_parameters(), svm.feature_map_.head_parameters(), strict=True
        ):
            parameter.copy_(exact)
    return svm.certificate_


def _require_one_tensor(task: Task) -> None:
    """The exact solvers take weights that score one dense tensor."""
    found, remedy = getattr(task, "feature_map", None), "structlearn fit trains this task"
    if isinstance(found, CandidateMap):
        remedy = "give --solver voting, or train it by structlearn fit"
    elif found is not None and not any(getattr(module, "sparse", False) for module in found.modules()):
        return
    got = type(task).__name__ if found is None else type(found).__name__
    raise ArgumentError("model", "a feature map over one dense tensor", got, remedy)


def _phi(task: Task, x: Any) -> Tensor:
    encoder = task.feature_map.encoder
    with torch.no_grad():
        if encoder is not None:
            found = encoder.eval()(x)
        else:
            found = getattr(x, "tags" if isinstance(task.feature_map, RuleMap) else "features", x)
    if not isinstance(found, Tensor):
        got = type(task.feature_map).__name__
        raise ArgumentError("model", "a feature map over one tensor", got, "fit trains this task by gradients")
    return found


def _without_encoder(feature_map: FeatureMap) -> FeatureMap:
    bare = copy.deepcopy(feature_map)
    bare.encoder = None
    return bare


def evaluate(task: Task, data: TaskData) -> dict[str, float]:
    """The metric of a task on test data, without a trainer."""
    task.eval()
    metric: Any = task.metrics["test_"]
    metric.reset()
    with torch.no_grad():
        for batch in data.test_dataloader():
            structure = task(batch)
            metric.update(*task.scored(structure, task.best(structure), batch))
    found = {name: float(value) for name, value in metric.compute().items() if "/" not in name}
    metric.reset()
    return found
