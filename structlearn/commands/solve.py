"""solve: the head of a task's feature map trained exactly, with a certificate."""

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
from structlearn.features import FeatureMap
from structlearn.solvers import StructuredSVM
from structlearn.tasks import Task


def run(options: argparse.Namespace) -> None:
    """Train on the configuration's training data, print the certificate and the scores on its test data."""
    if options.config is None:
        raise ArgumentError("--config", "a configuration with data and task", None, "e.g. configs/tagging/linear.yaml")
    task, data = instantiated(Path(options.config))
    certificate = solve(
        task,
        data,
        solver=options.solver,
        rescaling=options.rescaling,
        penalty=options.penalty,
        C=options.C,
        eps=options.eps,
        max_rounds=options.max_rounds,
        verbose=True,
    )
    print(certificate)
    for name, value in evaluate(task, data).items():
        print(f"test/{name}: {value:.4f}")
    if options.save_to is not None:
        print(f"saved to {saving.save(task, options.save_to)}")


def solve(task: Task, data: TaskData, **options: Any) -> Any:
    """Puts the exact head for all training data into ``task``; the certificate."""
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


def _phi(task: Task, x: Any) -> Tensor:
    encoder = task.feature_map.encoder
    with torch.no_grad():
        found = getattr(x, "features", x) if encoder is None else encoder.eval()(x)
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
            metric.update(*task.scored(structure, structure.argmax(), batch))
    found = {name: float(value) for name, value in metric.compute().items() if "/" not in name}
    metric.reset()
    return found
