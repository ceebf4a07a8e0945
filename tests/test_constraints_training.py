"""LO, L+I and IBT by one Lightning module: updates by hand, what each mode learns, soft penalties, broken gold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from oracles import constraints as oracle
from torch import Tensor, nn

from structlearn import constraints as sc
from structlearn.constraints.training import ConstrainedLearner, Parts
from structlearn.errors import ArgumentError, LabelError

OUTPUTS = ["000", "011", "101", "110"]  # an even number of ones


class Scorer(nn.Module):
    """One linear function for each of three binary parts, scores (B, 3, 2) = (-f/2, f/2)."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, size, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        f = (x * self.weight).sum(-1)
        return torch.stack([-f, f], -1) / 2


def data(size: int = 40, *, seed: int = 0) -> Parts:
    """Gold is the best even output under random linear functions."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    x = torch.randn(size, 3, 4, generator=generator, dtype=torch.float64)
    f = (x * weight).sum(-1)
    listed = torch.tensor([[int(c) for c in y] for y in OUTPUTS])
    gold = listed[(f @ (2.0 * listed.double() - 1).T).argmax(1)]
    return Parts(x, gold)


def trainer(epochs: int) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )


def loader(batch: Parts, size: int) -> Any:
    parts = [Parts(batch.x[i : i + size], batch.gold[i : i + size]) for i in range(0, len(batch.gold), size)]
    return once(*parts)


def once(*batches: Parts) -> Any:
    """The batches as they are."""
    return torch.utils.data.DataLoader(list(batches), batch_size=None)  # type: ignore[arg-type]


def by_hand(batch: Parts, epochs: int, constrained: bool) -> np.ndarray:
    """The paper's online perceptron: predict, and where a part is wrong move its weights."""
    weight = np.zeros((3, 4))
    tests = [oracle.listed(OUTPUTS)] if constrained else []
    for _ in range(epochs):
        for x, gold in zip(batch.x.numpy(), batch.gold.numpy(), strict=True):
            f = (weight * x).sum(1)
            y, _, _ = oracle.best("01", np.stack([-f, f], 1) / 2, np.zeros((2, 2)), [], tests)
            weight += (gold - np.array([int(c) for c in y]))[:, None] * x
    return weight


@pytest.mark.parametrize("mode", ["lo", "l+i", "ibt"])
def test_single_steps_are_the_perceptron_of_the_mode(mode: Any) -> None:
    batch = data()
    learner = ConstrainedLearner(Scorer(), sc.allowed(OUTPUTS), 2, mode=mode)
    trainer(2).fit(learner, loader(batch, 1))
    expected = by_hand(batch, 2, constrained=mode == "ibt")
    np.testing.assert_allclose(learner.scorer.weight.detach(), expected, atol=1e-12)  # type: ignore[union-attr]
    even = learner(batch).sum(1) % 2 == 0
    assert bool(even.all()) == (mode != "lo")


@pytest.mark.parametrize("loss", ["perceptron", "hinge"])
def test_training_under_the_constraint_separates_what_parts_alone_cannot(loss: Any) -> None:
    batch = data(200)
    right = {}
    for mode in ("lo", "l+i", "ibt"):
        learner = ConstrainedLearner(
            Scorer(), "allowed(['000', '011', '101', '110'])", ["0", "1"], mode=mode, loss=loss, learning_rate=0.3
        )  # type: ignore[arg-type]
        trainer(8).fit(learner, loader(batch, 20))
        right[mode] = float((learner(batch) == batch.gold).all(1).double().mean())
    assert right["ibt"] > right["l+i"] > right["lo"]


def test_averaged_weights_are_the_mean_over_steps() -> None:
    batch = data(12)
    learner = ConstrainedLearner(Scorer(), sc.allowed(OUTPUTS), 2, mode="ibt", average=True)
    seen: list[Tensor] = []

    class Watch(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            seen.append(learner.scorer.weight.detach().clone())  # type: ignore[union-attr,operator]

    fit = trainer(2)
    fit.callbacks.append(Watch())  # type: ignore[attr-defined]
    fit.fit(learner, loader(batch, 1))
    last = learner.scorer.weight.detach().clone()  # type: ignore[union-attr,operator]
    learner.use_average()
    torch.testing.assert_close(learner.scorer.weight.detach(), torch.stack([*seen[1:], last]).mean(0))  # type: ignore[union-attr]
    learner.use_latest()
    torch.testing.assert_close(learner.scorer.weight.detach(), last)  # type: ignore[union-attr]


def test_a_network_on_spans_and_metrics() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 5, 6, generator=generator)
    spans = torch.randint(0, 6, (16, 5, 2), generator=generator).sort(-1).values
    lengths = torch.randint(1, 6, (16,), generator=generator)
    constraint = sc.no_overlap() & sc.at_most(1, 1)
    scores = torch.nn.Linear(6, 3)(x).detach()
    truth = sc.Constrained(sc.independent(scores, lengths), sc.Compiled(constraint, 3), spans=spans)
    batch = Parts(x, truth.argmax(), lengths, spans)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    learner = ConstrainedLearner(
        net, constraint, 3, mode="ibt", loss="hinge", optimizer="adam", learning_rate=0.03, method="ilp"
    )
    runner = trainer(15)
    before = runner.validate(learner, once(batch), verbose=False)[0]
    runner.fit(learner, once(batch))
    after = runner.validate(learner, once(batch), verbose=False)[0]
    assert after["part"] > before["part"]
    assert runner.test(learner, once(batch), verbose=False)[0] == after
    assert torch.equal(runner.predict(learner, once(batch))[0], learner(batch))  # type: ignore[index]
    assert bool(learner.solve(batch).optimal.all())
    learner.check_gold(batch)


def test_penalties_are_learnt() -> None:
    """A constraint that gold always keeps becomes dear, one that gold breaks half the time cheap."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, 2, generator=generator)
    gold = torch.zeros(64, 4, dtype=torch.int64)
    gold[torch.arange(64), x[..., 0].argmax(1)] = 1  # one 1 each
    noise = torch.randn(64, 4, 1, generator=generator)
    scores = torch.nn.Parameter(torch.ones(()))

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = scores

        def forward(self, inputs: Tensor) -> Tensor:
            first = self.scale.detach() * inputs[..., :1]
            return torch.cat([torch.zeros_like(first), first + 0.0 * self.scale], -1)

    constraint = sc.soft(sc.at_most(1, 1), 0.2) & sc.soft(sc.at_most(0, 1), 0.2)
    learner = ConstrainedLearner(Fixed(), constraint, 2, mode="ibt", learning_rate=0.5)
    trainer(10).fit(learner, loader(Parts(x + 0.1 * noise, gold), 8))
    kept, broken = learner.penalties.tolist()
    assert kept > 1.0
    assert broken < 0.2


def test_broken_gold_is_reported_or_skipped() -> None:
    batch = data(6)
    gold = batch.gold.clone()
    gold[2] = torch.tensor([1, 0, 0])
    wrong = Parts(batch.x, gold)
    learner = ConstrainedLearner(Scorer(), sc.allowed(OUTPUTS), 2, mode="ibt")
    with pytest.raises(LabelError, match=r"batch row 2, which breaks allowed.*\(1, 0, 0\) is not listed"):
        learner.loss(wrong)
    with pytest.raises(LabelError, match="row 2 breaks allowed"):
        learner.check_gold(wrong)
    skipping = ConstrainedLearner(Scorer(), sc.allowed(OUTPUTS), 2, mode="ibt", loss="hinge", broken_gold="skip")
    with pytest.warns(UserWarning, match="1 gold outputs break constraints and are skipped; first: row 2"):
        value = skipping.loss(wrong)
    rest = [i for i in range(6) if i != 2]
    torch.testing.assert_close(value * 6, skipping.loss(Parts(batch.x[rest], gold[rest])) * 5)
    with pytest.warns(UserWarning, match="are skipped"):
        assert float(skipping.loss(Parts(batch.x[2:3], gold[2:3]))) == 0.0
    assert float(ConstrainedLearner(Scorer(), sc.allowed(OUTPUTS), 2, mode="l+i").loss(wrong)) >= 0.0


@pytest.mark.parametrize("method", ["auto", "enumeration", "automaton", "ilp"])
@pytest.mark.parametrize("loss", ["perceptron", "hinge"])
def test_instances_without_parts_do_not_stop_training(method: Any, loss: Any) -> None:
    """The empty output breaks the constraint, or not; skipped or priced, it is the same on every path."""
    batch = data(6)._replace(lengths=torch.tensor([3, 0, 3, 3, 1, 0]))
    gold = batch.gold.clone()
    gold[4] = torch.tensor([1, -100, 10**6])
    batch = batch._replace(gold=gold)

    def learner(constraint: sc.Constraint) -> ConstrainedLearner:
        return ConstrainedLearner(
            Scorer(), constraint, 2, mode="ibt", loss=loss, method=method, broken_gold="skip", learning_rate=0.1
        )

    needed = learner(sc.at_least(1, [0, 1]) & sc.soft(sc.exactly(2, 1), 0.5))
    with pytest.warns(UserWarning, match=r"2 gold outputs break constraints and are skipped; first: row 1 .*: 0"):
        trainer(2).fit(needed, once(batch, batch))
    assert bool(needed.scorer.weight.abs().sum() > 0)  # type: ignore[union-attr,operator]
    with pytest.raises(LabelError, match=r"row 1 breaks at_least\(1, \[0, 1\]\)"):
        needed.check_gold(batch)
    needed.broken_gold = "raise"
    with pytest.raises(LabelError, match=r"batch row 1, which breaks at_least\(1, \[0, 1\]\)"):
        needed.loss(batch)
    free = learner(sc.at_most(2, 1) & sc.soft(sc.at_least(1, [0, 1]), 0.5))
    even = torch.where(batch.gold.sum(1, keepdim=True) > 2, 0, batch.gold)
    whole = free.loss(batch._replace(gold=even))
    rest = [0, 2, 3, 4]
    shorter = Parts(batch.x[rest], even[rest], batch.lengths[rest])  # type: ignore[index]
    torch.testing.assert_close(whole * 6, free.loss(shorter) * 4)


def test_options_are_checked() -> None:
    for name, value in (("mode", "li"), ("loss", "log"), ("optimizer", "lbfgs"), ("broken_gold", "keep")):
        with pytest.raises(ArgumentError, match=f"{name}: expected one of"):
            ConstrainedLearner(Scorer(), sc.everything(), 2, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="average: expected False with adam"):
        ConstrainedLearner(Scorer(), sc.everything(), 2, optimizer="adam", average=True)
