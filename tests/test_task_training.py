"""Training at scale: processes, resuming, accumulation, bf16, a compiled step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from ddp_program import run
from task_cases import CASES, fast

import structlearn as sl
from structlearn import encoders, tasks
from structlearn.data import modules
from structlearn.data.sampling import BucketSampler
from structlearn.errors import ArgumentError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "num_sanity_val_steps": 0}
    return pl.Trainer(accelerator="cpu", **{**quiet, "enable_checkpointing": False, **options})


def weights(task: tasks.Task) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in task.parameters()])


def test_two_processes_learn_and_score_what_one_does(tmp_path: Path) -> None:
    out = tmp_path / "two.pt"
    here = Path(__file__).resolve().parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{here}:{here.parent}"}
    program = subprocess.Popen([*command, str(here / "ddp_program.py"), str(out)], env=environment, cwd=here.parent)
    alone = run(8)
    assert program.wait(timeout=500) == 0
    together = torch.load(out, weights_only=True)
    assert together.keys() == alone.keys() == CASES.keys()
    for name, one in alone.items():
        two = together[name]
        assert two["steps"] == one["steps"]
        torch.testing.assert_close(
            two["weights"], one["weights"], atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
        assert two["scores"] == pytest.approx(one["scores"], abs=1e-6), name


class KilledError(Exception):
    """What ends a run in the middle of an epoch."""


class KillAt(pl.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise KilledError


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_that_was_killed_ends_with_the_weights_of_one_that_was_not(tmp_path: Path, accumulate: int) -> None:
    def new() -> tuple[tasks.Task, modules.TaskData]:
        torch.manual_seed(3)
        data = modules.TaggingData(examples=40, batch_size=4)
        return tasks.Tagging(data.codec, encoders.WordsAndLetters(8, 4, 4, dropout=0.5)), data

    options = {"max_epochs": 3, "accumulate_grad_batches": accumulate}
    task, data = new()
    trainer(**options).fit(task, data)
    whole = weights(task)

    task, data = new()
    keep = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    step = 13 // accumulate
    with pytest.raises(KilledError):
        trainer(**options, enable_checkpointing=True, callbacks=[keep, KillAt(step + 1)]).fit(task, data)

    task, data = new()
    torch.manual_seed(99)
    trainer(**options).fit(task, data, ckpt_path=tmp_path / f"step={step}.ckpt", weights_only=True)
    torch.testing.assert_close(weights(task), whole, rtol=0, atol=0)


def test_bfloat16_training_learns() -> None:
    torch.manual_seed(0)
    data = modules.TaggingData(examples=40)
    task = tasks.Tagging(data.codec, encoders.CNN(encoders.WordsAndLetters(16, 0), hidden=16), optimizer=fast)
    before = float(task.objective(next(iter(data.train_dataloader()))).detach())
    trainer(max_epochs=5, precision="bf16-mixed").fit(task, data)
    after = float(task.objective(next(iter(data.train_dataloader()))).detach())
    assert after < 0.8 * before
    assert all(p.dtype is torch.float32 for p in task.parameters())


@pytest.mark.parametrize("loss", ["crf", "hinge-margin"])
def test_the_whole_step_compiles(loss: Any) -> None:
    torch.manual_seed(0)
    data = modules.LetterData(examples=8)
    task = tasks.Tagging(data.codec, encoders.MLP(128, [16]), loss=loss)
    torch.nn.init.normal_(task.feature_map.emission)
    batch = next(iter(data.train_dataloader()))
    eager = torch.autograd.grad(task.objective(batch), list(task.parameters()))
    compiled = torch.compile(task.objective, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(batch), list(task.parameters()))
    for a, b in zip(found, eager, strict=True):
        torch.testing.assert_close(a, b)


def test_a_step_compiled_by_inductor_trains_to_the_same_weights() -> None:
    def trained(compiled: bool) -> torch.Tensor:
        torch.manual_seed(0)
        data = modules.LetterData(examples=12, batch_size=4)
        task = tasks.Tagging(data.codec, encoders.Dense(128))
        if compiled:
            task.objective = torch.compile(task.objective, dynamic=True)  # type: ignore[method-assign]
        trainer(max_epochs=2).fit(task, data)
        return weights(task)

    torch.testing.assert_close(trained(True), trained(False), atol=1e-5, rtol=1e-4)


def test_a_search_task_goes_on_from_its_checkpoint_and_predicts_by_its_average(tmp_path: Path) -> None:
    def new() -> tuple[tasks.Task, modules.TaskData]:
        data = modules.TaggingData(examples=24, sparse=True, batch_size=4)
        return tasks.SearchTagging(data.codec, beam=2), data

    task, data = new()
    trainer(max_epochs=3).fit(task, data)
    whole = weights(task)

    task, data = new()
    keep = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    with pytest.raises(KilledError):
        trainer(max_epochs=3, enable_checkpointing=True, callbacks=[keep, KillAt(9)]).fit(task, data)
    short, data = new()
    trainer(max_epochs=3, max_steps=8).fit(short, data)  # training ends with the average in place
    torch.testing.assert_close(weights(sl.load(tmp_path / "step=8.ckpt")), weights(short))

    task, data = new()
    trainer(max_epochs=3).fit(task, data, ckpt_path=tmp_path / "step=8.ckpt", weights_only=True)
    torch.testing.assert_close(weights(task), whole)


def test_search_refuses_networks() -> None:
    data = modules.TaggingData(examples=8)
    with pytest.raises(ArgumentError, match="encoder: expected one without parameters"):
        tasks.SearchTagging(data.codec, encoders.CNN(encoders.WordsAndLetters(4, 0), hidden=4))


def test_sparse_steps_are_adagrad_on_the_whole_table() -> None:
    data = modules.TaggingData(examples=12, sparse=True, batch_size=4)
    torch.manual_seed(0)
    fast, slow = tasks.SparseTagging(data.codec, step=0.3), tasks.Tagging(data.codec)
    optimizer = torch.optim.Adagrad(slow.parameters(), lr=0.3, eps=1e-2)
    slow.loss.reduction = "sum"  # type: ignore[assignment]
    from structlearn.solvers.sparse_steps import plan

    for batch in data.train_dataloader():
        loss = slow.objective(batch._replace(share=torch.ones(())))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found = fast.steps(plan(batch.x.features, batch.lengths), batch.gold)
        torch.testing.assert_close(found, loss.detach())
    torch.testing.assert_close(fast.feature_map.bag.weight, slow.feature_map.bag.weight)
    torch.testing.assert_close(fast.feature_map.transition, slow.feature_map.transition)


@pytest.mark.parametrize(("count", "size", "replicas"), [(37, 4, 1), (37, 4, 2), (9, 4, 2), (41, 3, 3), (5, 8, 4)])
def test_batches_are_of_similar_length_and_shared_out_evenly(count: int, size: int, replicas: int) -> None:
    lengths = torch.randint(1, 30, (count,)).tolist()
    for shuffle in (False, True):
        ranks = [BucketSampler(lengths, size, shuffle=shuffle, replicas=replicas, rank=r) for r in range(replicas)]
        for sampler in ranks:
            sampler.set_epoch(2)
            assert len(list(sampler)) == len(sampler)
        seen = [i for sampler in ranks for rows in sampler for i in rows.places if rows.share > 0]
        assert sorted(seen) == list(range(count))
    steps = zip(*[list(sampler) for sampler in ranks], strict=True)
    for step in steps:
        assert sum(rows.share for rows in step) == pytest.approx(replicas)
    with pytest.raises(ArgumentError, match="data: expected at least 2 examples"):
        BucketSampler([3], 4, replicas=2, rank=0)
