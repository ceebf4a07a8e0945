"""Every configuration is read, trained for two steps on little generated data, and tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from structlearn import cli
from structlearn.commands import training

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
QUICK = [
    *("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1"),
    *("--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"),
    *("--data.init_args.examples=12", "--data.init_args.batch_size=4", "--trainer.num_sanity_val_steps=0"),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_config_runs(path: Path) -> None:
    command = training.run(["fit", f"--config={path}", *QUICK])
    assert command.trainer.global_step == 2
    assert float(command.trainer.callback_metrics["train/loss"]) >= 0
    assert [k for k in command.trainer.callback_metrics if k.startswith("val/")]


def test_a_typed_key_that_nothing_knows_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    path = CONFIGS / "tagging" / "crf.yaml"
    with pytest.raises(SystemExit) as exit_:
        cli.main(["fit", f"--config={path}", "--model.init_args.los=crf"])
    assert exit_.value.code == 2
    assert "los" in capsys.readouterr().err


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
