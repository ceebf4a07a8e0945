"""One small case of every task: data, and the task that learns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from structlearn import encoders, tasks
from structlearn.data import modules


class Case(NamedTuple):
    """``data(**options)`` makes a data module, ``task(codec, **options)`` a task; ``metric`` should go ``up``."""

    data: Callable[..., modules.TaskData]
    task: Callable[..., tasks.Task]
    metric: str
    up: bool


def _words(dropout: float = 0.0) -> encoders.Encoder:
    return encoders.WordsAndLetters(16, 8, 8, dropout=dropout)


def _bilstm(dropout: float = 0.0) -> encoders.Encoder:
    return encoders.BiLSTM(_words(dropout), hidden=32, dropout=dropout)


def fast(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.03)


CASES: dict[str, Case] = {
    "tagging": Case(modules.TaggingData, lambda c, **o: tasks.Tagging(c, _bilstm(), **o), "f1", True),
    "sparse tagging": Case(
        lambda **o: modules.TaggingData(sparse=True, **o), lambda c, **o: tasks.Tagging(c, **o), "f1", True
    ),
    "sparse steps": Case(
        lambda **o: modules.TaggingData(sparse=True, **o),
        lambda c, optimizer=None, **o: tasks.SparseTagging(c, step=0.3, **o),  # its steps are its own
        "f1",
        True,
    ),
    "search tagging": Case(
        lambda **o: modules.TaggingData(sparse=True, **o),
        lambda c, optimizer=None, **o: tasks.SearchTagging(c, beam=3, update="perceptron", **o),
        "f1",
        True,
    ),
    "search segmentation": Case(
        lambda **o: modules.SegmentationData(sparse=True, **o),
        lambda c, optimizer=None, **o: tasks.SearchSegmentation(c, beam=3, strategy="early", **o),
        "f1",
        True,
    ),
    "search parsing": Case(
        lambda **o: modules.ParsingData(h=0, **o),
        lambda c, optimizer=None, **o: tasks.SearchParsing(c, beam=2, **o),
        "f1",
        True,
    ),
    "search joint": Case(
        modules.JointData,
        lambda c, optimizer=None, confidences=False, **o: tasks.JointTagging(c, beam=3, **o),
        "f1",
        True,
    ),
    "constrained": Case(
        modules.TaggingData,
        lambda c, **o: tasks.Constrained(c, "implies('B-VP', 'B-NP')", _bilstm(), mode="ibt", **o),
        "f1",
        True,
    ),
    "letters": Case(modules.LetterData, lambda c, **o: tasks.Tagging(c, encoders.Dense(128), **o), "error", False),
    "segmentation": Case(modules.SegmentationData, lambda c, **o: tasks.Segmentation(c, _bilstm(), **o), "f1", True),
    "classification": Case(
        modules.ClassificationData, lambda c, **o: tasks.Classification(c, encoders.BagOfWords(), **o), "error", False
    ),
    "parsing rules": Case(
        lambda **o: modules.ParsingData(kind="rules", **o), lambda c, **o: tasks.Parsing(c, **o), "f1", True
    ),
    "parsing spans": Case(
        lambda **o: modules.ParsingData(h=0, **o),
        lambda c, **o: tasks.Parsing(c, _bilstm(), hidden=16, **o),
        "f1",
        True,
    ),
    "aligning": Case(modules.AligningData, lambda c, **o: tasks.Aligning(c, loss="crf", **o), "q", True),
    "reranking": Case(lambda **o: modules.RerankingData(k=12, **o), lambda c, **o: tasks.Reranking(c, **o), "f1", True),
}
