"""Spaces beyond tagging, and the Lightning modules on them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

import structlearn as sl
from structlearn.data.conll import Sentence
from structlearn.errors import ShapeError
from structlearn.search import JointScores, JointSpace, ShiftReduceSpace, TaggingSpace, beam_search, compare, laso
from structlearn.search.joint_tagger import JointCorpus, JointScorer
from structlearn.search.lightning import BeamSearchLearner, SearchLearner
from structlearn.search.updates import Perceptron


def joint_scores(b: int, n: int, p: int, c: int) -> JointScores:
    sizes = ((b, n, p), (b, n, c), (p + 1, p), (c + 1, p), (c + 1, c), (p + 1, p + 1, c), (p + 1, p + 1, c))
    return JointScores(*(torch.randn(size, dtype=torch.float64) for size in sizes))


def test_joint_search_without_limit_is_enumeration() -> None:
    s, lengths = joint_scores(3, 3, 3, 2), torch.tensor([3, 1, 2])
    s.pos[1, 1:] = torch.nan
    found = beam_search(JointSpace(s, lengths=lengths), None)

    def score(b: int, p: tuple[int, ...], c: tuple[int, ...]) -> float:
        total, parts, tags = 0.0, [3, *p, 3], [2, 2, *c]
        for n in range(len(p)):
            total += float(s.pos[b, n, p[n]] + s.pos_pair[parts[n], p[n]] + s.pos_chunk[tags[n], p[n]])
            total += float(s.chunk[b, n, c[n]] + s.chunk_pair[tags[n + 1], c[n]])
            total += float(s.left[parts[n], p[n], c[n]] + s.right[p[n], parts[n + 2], c[n]])
        return total

    for b, n in enumerate(lengths.tolist()):
        pairs = itertools.product(itertools.product(range(3), repeat=n), itertools.product(range(2), repeat=n))
        p, c = max(pairs, key=lambda y: score(b, *y))
        assert found.output[b, :n].tolist() == [list(y) for y in zip(p, c, strict=True)]
        assert float(found.score[b]) == pytest.approx(score(b, p, c))
    assert (found.output[1, 1:] == -100).all()


def test_joint_gold_is_good_and_others_are_not() -> None:
    space = JointSpace(joint_scores(4, 5, 4, 3), lengths=torch.tensor([5, 4, 1, 2]))
    best = beam_search(space, 500)
    assert laso(space, best.output, 500).errors.tolist() == [0] * 4
    other = best.output.clone()
    other[:, 0, 1] = (other[:, 0, 1] + 1) % 3
    assert laso(space, other, 2).errors.min() > 0
    scores = joint_scores(1, 2, 3, 2)
    with pytest.raises(ShapeError, match=r"left: expected \(4, 4, 2\), got \(3, 4, 2\)"):
        JointSpace(scores._replace(left=scores.left[:3]))


def test_joint_tagger_learns_what_it_sees() -> None:
    sentences = [
        Sentence(["He", "reads", "books"], ["PRP", "VBZ", "NNS"], ["B-NP", "B-VP", "B-NP"]),
        Sentence(["Old", "books"], ["JJ", "NNS"], ["B-NP", "I-NP"]),
    ]
    corpus = JointCorpus(sentences)
    model, rows = JointScorer(corpus), torch.arange(2)
    update, batch = Perceptron(model.parameters()), corpus.batch(rows)
    for _ in range(8):
        update(laso(model(batch), batch.gold, 2))
    found = beam_search(model(batch), 2).output
    assert torch.equal(found, batch.gold)
    assert corpus.tags(rows, found) == [s.chunks for s in sentences]
    assert sorted(torch.cat(list(corpus.batches(1, generator=torch.Generator()))).tolist()) == [0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_shift_reduce_without_limit_is_the_best_tree(seed: int) -> None:
    torch.manual_seed(seed)
    spans, lengths = torch.randn(4, 4, 4, 2, dtype=torch.float64), torch.tensor([4, 1, 3, 2])
    spans[1, 1:] = torch.nan
    trees = sl.SpanTree(spans, lengths=lengths)
    space = ShiftReduceSpace(spans, lengths=lengths)
    found = beam_search(space, None)
    assert torch.equal(found.output, trees.argmax())
    torch.testing.assert_close(found.score, trees.max())
    narrow = beam_search(space, 3)
    torch.testing.assert_close(trees.score(narrow.output), narrow.score)
    assert bool((narrow.score <= found.score + 1e-12).all())
    # Every tree is reachable and has one good path: its score against the best one.
    gold = trees.sample(1, generator=torch.Generator().manual_seed(seed))[0]
    value = compare(space, gold, None, strategy="standard").value
    torch.testing.assert_close(value, (trees.score(gold) - trees.max()).sum())
    assert laso(space, trees.argmax(), 10**5).errors.tolist() == [0] * 4


def test_shift_reduce_takes_square_charts() -> None:
    with pytest.raises(ShapeError, match="spans: expected"):
        ShiftReduceSpace(torch.zeros(1, 2, 3, 1))


class Batch(NamedTuple):
    x: Tensor
    gold: Tensor


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 3, bias=False)
        torch.nn.init.zeros_(self.head.weight)
        self.transition = torch.nn.Parameter(torch.zeros(3, 3))

    def forward(self, batch: Batch) -> TaggingSpace:
        return TaggingSpace(self.head(batch.x), self.transition)


def batches() -> list[Batch]:
    x = torch.randn(24, 5, 4)
    gold = (x @ torch.randn(4, 3)).argmax(-1)
    return [Batch(x[i : i + 8], gold[i : i + 8]) for i in range(0, 24, 8)]


def trainer(folder: Path, epochs: int) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=folder,
    )  # fmt: skip


def loader(data: list[Batch]) -> torch.utils.data.DataLoader[Batch]:
    return torch.utils.data.DataLoader(data, batch_size=None)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("strategy", "update"), [("laso", "alma"), ("early", "perceptron")])
def test_learner_logs_and_goes_on_from_a_checkpoint(tmp_path: Path, strategy: str, update: str) -> None:
    data = loader(batches())

    def fresh() -> SearchLearner:
        return SearchLearner(Tagger(), beam=2, strategy=strategy, update=update)  # type: ignore[arg-type]

    whole = fresh()
    trainer(tmp_path, 4).fit(whole, data, data)
    half = fresh()
    first = trainer(tmp_path, 2)
    first.fit(half, data, data)
    assert {"errors", "lost", "first", "updates", "wrong"} <= set(first.callback_metrics)
    first.save_checkpoint(tmp_path / "half.ckpt")
    rest = fresh()
    trainer(tmp_path, 4).fit(rest, data, data, ckpt_path=tmp_path / "half.ckpt", weights_only=False)
    assert rest.update.updates == whole.update.updates
    for ours, theirs in zip(rest.update.averaged(), whole.update.averaged(), strict=True):
        torch.testing.assert_close(ours, theirs)
    whole.use_average()
    right = [bool((whole(batch) == batch.gold).double().mean() > 0.85) for batch in data]
    assert all(right)


@pytest.mark.filterwarnings("ignore")
def test_neural_learner(tmp_path: Path) -> None:
    data = loader(batches())
    learner = BeamSearchLearner(Tagger(), beam=2, learning_rate=0.1)
    run = trainer(tmp_path, 8)
    run.fit(learner, data, data)
    assert float(run.callback_metrics["wrong"]) < 0.6
    assert {"errors", "lost"} <= set(run.callback_metrics)
