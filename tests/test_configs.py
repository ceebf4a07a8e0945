"""Every configuration is read, trained for two steps on little generated data, and tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml

from structlearn import cli
from structlearn.commands import solve, training

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
SOLVED = [path for path in FILES if "solve" in yaml.safe_load(path.read_text(encoding="utf-8"))]
FITTED = [path for path in FILES if path not in SOLVED]
QUICK = [
    *("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1"),
    *("--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"),
    *("--data.init_args.examples=12", "--data.init_args.batch_size=4", "--trainer.num_sanity_val_steps=0"),
]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", FITTED, ids=name_of)
def test_config_runs(path: Path) -> None:
    command = training.run(["fit", f"--config={path}", *QUICK])
    assert command.trainer.global_step == 2
    assert float(command.trainer.callback_metrics["train/loss"]) >= 0
    assert [k for k in command.trainer.callback_metrics if k.startswith("val/")]


@pytest.mark.parametrize("path", SOLVED, ids=name_of)
def test_config_is_solved(path: Path) -> None:
    task, data, asked = training.instantiated(path, "--data.init_args.examples=40")
    before = [p.detach().clone() for p in task.feature_map.head_parameters()]
    assert solve.trained(task, data, asked)
    assert any(not torch.equal(a, b) for a, b in zip(before, task.feature_map.head_parameters(), strict=True))
    assert all(0 <= value <= 100 for value in solve.evaluate(task, data).values())


def test_fit_says_what_a_configuration_of_solve_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit", f"--config={CONFIGS / 'reranking' / 'voting.yaml'}", *QUICK]) == 2
    assert "run structlearn solve --config with it" in capsys.readouterr().err


def test_a_typed_key_that_nothing_knows_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    path = CONFIGS / "tagging" / "crf.yaml"
    with pytest.raises(SystemExit) as exit_:
        cli.main(["fit", f"--config={path}", "--model.init_args.los=crf"])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert "structlearn.tasks.Tagging has no option 'los'; did you mean 'loss'? It has encoder, loss, " in said
    assert len(said.splitlines()) == 2


def test_what_is_missing_or_misnamed_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = CONFIGS / "tagging" / "crf.yaml"
    for arguments, words in (
        ([], "no model and data; give a configuration, such as --config configs/tagging/crf.yaml"),
        ([f"--config={path}", "--model=structlearn.tasks.Taging"], "structlearn.tasks has no class 'Taging'; did you"),
        ([f"--config={path}x"], "File does not exist"),
        ([f"--config={path}", "--trainr.max_epochs=3"], "trainr"),
    ):
        with pytest.raises(SystemExit) as exit_:
            cli.main(["fit", *arguments])
        assert exit_.value.code == 2
        said = capsys.readouterr().err
        assert words in said
        assert len(said.splitlines()) <= 3


def test_a_loss_that_does_not_exist_lists_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    path = CONFIGS / "tagging" / "crf.yaml"
    with pytest.raises(SystemExit):
        cli.main(["fit", f"--config={path}", "--model.init_args.loss=hinge"])
    assert "hinge-margin" in capsys.readouterr().err


def test_print_config_shows_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    path = CONFIGS / "tagging" / "crf.yaml"
    with pytest.raises(SystemExit) as exit_:
        cli.main(["fit", f"--config={path}", "--model.init_args.loss=hinge-slack", "--print_config"])
    assert exit_.value.code == 0
    shown = yaml.safe_load(re.sub(r"(?m)^#.*$", "", capsys.readouterr().out))
    assert shown["model"]["init_args"]["loss"] == "hinge-slack"
    assert shown["data"]["init_args"]["batch_size"] == 16
