"""LaSO as its paper states it, in plain Python on features in dictionaries, against the tasks that offer it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from structlearn import tasks
from structlearn.data import modules
from structlearn.errors import ArgumentError
from structlearn.search import TaggingSpace
from structlearn.search.lightning import SearchLearner

Vector = Counter[Any]  # features and weights by name
Sentence = tuple[list[list[int]], list[int]]  # numbers of the features of each word, gold labels


def features(words: list[list[int]], labels: list[int]) -> Vector:
    """Of a path: (feature, label) of every word, (label, label) of neighbours."""
    vector: Vector = Counter()
    for t, label in enumerate(labels):
        vector.update((feature, label) for feature in words[t])
        if t:
            vector["transition", labels[t - 1], label] += 1
    return vector


def project(vector: Vector) -> Vector:
    """Onto the unit ball."""
    size = max(1.0, math.sqrt(sum(value**2 for value in vector.values())))
    return Counter({name: value / size for name, value in vector.items()})


class Published:
    """The learner of the paper, one sentence after the other.

    An error: no y-good node is in the queue, or the goal that is taken from it is not y-good. Then the weights move
    from the nodes that rank no lower than the y-good one, all of the queue where that is gone, towards the y-good
    sibling, and the search goes on from it alone, under the moved weights.
    """

    def __init__(self, classes: int, beam: int, *, alma: bool, alpha: float = 0.9) -> None:
        self.classes, self.beam, self.alma, self.alpha = classes, beam, alma, alpha
        self.weights: Vector = Counter()
        self.total: Vector = Counter()
        self.errors: list[int] = []  # of each sentence
        self.generation = 1

    def learn(self, words: list[list[int]], gold: list[int]) -> None:
        self.errors.append(0)
        queue: list[list[int]] = [[]]
        for t in range(1, len(gold) + 1):
            good = gold[:t]
            margin = (1 - self.alpha) / self.alpha / math.sqrt(self.generation) if self.alma else 0.0

            def score(path: list[int], good: list[int] = good, margin: float = margin) -> float:
                value = sum(self.weights[name] * count for name, count in features(words, path).items())
                return value - margin * (path == good)

            longer = [[*path, label] for path in queue for label in range(self.classes)]
            queue = sorted(longer, key=lambda path: -score(path))[: self.beam]
            if good not in queue or (t == len(gold) and queue[0] != good):
                self.update(words, good, [y for y in queue if y != good and score(y) >= score(good)])
                queue = [good]
        self.total = Counter({name: self.total[name] + self.weights[name] for name in self.weights})

    def update(self, words: list[list[int]], good: list[int], nodes: list[list[int]]) -> None:
        self.errors[-1] += 1
        delta = features(words, good)
        for node in nodes:
            for name, count in features(words, node).items():
                delta[name] -= count / len(nodes)  # type: ignore[assignment]
        if not self.alma:
            self.weights = Counter({name: self.weights[name] + delta[name] for name in self.weights | delta.keys()})
            return
        step, delta = math.sqrt(2.0 / self.generation), project(delta)
        names = set(self.weights) | set(delta)
        self.weights = project(Counter({name: self.weights[name] + step * delta[name] for name in names}))
        self.generation += 1


class Watch(pl.Callback):
    """The sentences of every step, as they come."""

    def __init__(self) -> None:
        self.seen: list[Sentence] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        (n,) = batch.lengths.tolist()
        numbers = batch.x.features[0, :n].tolist()
        self.seen.append(([[f for f in word if f] for word in numbers], batch.gold[0, :n].tolist()))


@pytest.fixture
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def fit(task: pl.LightningModule, data: Any, watch: Watch, epochs: int) -> None:
    pl.Trainer(
        max_epochs=epochs,
        limit_val_batches=0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[watch],
    ).fit(task, data)


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize(("update", "beam"), [("perceptron", 1), ("perceptron", 2), ("alma", 1), ("alma", 3)])
def test_the_task_learns_as_published(update: Any, beam: int) -> None:
    data = modules.TaggingData(examples=8, sparse=True, batch_size=1)
    task = tasks.SearchTagging(data.codec, beam=beam, update=update, immediate=True)
    watch = Watch()
    fit(task, data, watch, 2)
    classes = task.feature_map.transition.shape[0]  # type: ignore[union-attr]
    rule = Published(classes, beam, alma=update == "alma")
    for words, gold in watch.seen:
        rule.learn(words, gold)
    assert sum(rule.errors) == task.steps.update.updates
    assert max(rule.errors) > 1
    bag, transition = (x.detach() for x in (task.feature_map.bag.weight, task.feature_map.transition))  # type: ignore[union-attr]
    expected, between = torch.zeros_like(bag), torch.zeros_like(transition)
    for name, value in rule.total.items():
        (between if len(name) == 3 else expected)[name[-2:]] = value / len(rule.errors)
    torch.testing.assert_close(bag, expected)
    torch.testing.assert_close(transition, between)


class Tagger(nn.Module):
    """Scores of one-hot words."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(words, classes))
        self.transition = nn.Parameter(torch.zeros(classes, classes))

    def forward(self, batch: Any) -> TaggingSpace:
        return TaggingSpace(self.weight[batch], self.transition)


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("update", ["perceptron", "alma"])
def test_the_steps_of_a_learner_of_one_s_own_are_the_published_ones(update: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    learner = SearchLearner(Tagger(5, 3), beam=2, update=update, immediate=True)
    rule = Published(3, 2, alma=update == "alma")
    for _ in range(30):
        x: Tensor = torch.randint(5, (1, 6), generator=draw)
        gold = (x + torch.cat([x[:, :1] * 0, x[:, :-1]], 1)) % 3
        violations = learner.steps(lambda x=x: learner.scorer(x), gold)  # type: ignore[misc]
        rule.learn([[word] for word in x[0].tolist()], gold[0].tolist())
        assert int(violations.errors) == rule.errors[-1]
    weight, transition = learner.update.averaged()
    for (kind, *place), value in rule.total.items():
        found = transition[tuple(place)] if kind == "transition" else weight[kind, place[0]]
        assert float(found) == pytest.approx(value / len(rule.errors), abs=1e-12)


def test_what_cannot_be_immediate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="immediate: expected False with this strategy, got True with 'early'"):
        SearchLearner(Tagger(2, 2), strategy="early", immediate=True)
    monkeypatch.setattr("structlearn.search.steps.processes", lambda: 2)
    learner = SearchLearner(Tagger(2, 2), immediate=True)
    with pytest.raises(ArgumentError, match="immediate: expected False where several processes train together"):
        learner.steps(lambda: learner.scorer(torch.zeros(1, 2, dtype=torch.int64)), torch.zeros(1, 2))
