"""fit, validate and test: LightningCLI over tasks and data modules."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser, Namespace
from pytorch_lightning import Trainer
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.plugins.io import CheckpointIO, TorchCheckpointIO

from structlearn import saving
from structlearn.commands.mistakes import Parser
from structlearn.data.modules import TaskData
from structlearn.errors import ArgumentError
from structlearn.storage.checkpoints import read_checkpoint, write_checkpoint
from structlearn.tasks import Task

# Words of Lightning that no reader of a configuration can mend.
_QUIET = (
    ".*LightningCLI's args parameter.*",
    ".*does not have many workers.*",
    ".*isinstance.treespec, LeafSpec.*",
    ".*Checkpoint directory .* exists and is not empty.*",
)


_ANOTHER = "a file below lightning_logs/*/checkpoints, which structlearn fit writes"


class Checkpoints(TorchCheckpointIO):
    """Checkpoints of files on this machine, written whole or not at all and read without running what they hold."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(path, checkpoint)

    def load_checkpoint(self, path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
        return read_checkpoint(path, remedy=f"give {_ANOTHER}")


class TrainingCommand(LightningCLI):
    """Any task on any data: the data module's codec is the task's."""

    def _parse_ckpt_path(self) -> None:
        """A checkpoint brings weights; what is made comes from the configuration alone, not from the checkpoint."""

    def instantiate_trainer(self, **options: Any) -> Trainer:
        plugins = self._get(self.config_init, "trainer.plugins") or []
        plugins = list(plugins) if isinstance(plugins, list) else [plugins]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            options["plugins"] = [*plugins, Checkpoints()]
        return super().instantiate_trainer(**options)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.codec", "model.init_args.codec", apply_on="instantiate")
        parser.add_argument(
            "--save_to", type=str | None, default=None, help="folder for the trained model, for predict"
        )
        parser.add_argument("--threads", type=int | None, default=None, help="of torch; all cores if not given")
        parser.add_argument("--solve", type=dict | None, default=None, help="options of structlearn solve, not for fit")
        parser.add_argument(
            "--compile", type=bool, default=False, help="the training step as one graph of torch.compile"
        )

    def before_instantiate_classes(self) -> None:
        threads = self._get(self.config, "threads")
        if threads:
            torch.set_num_threads(threads)

    def before_validate(self) -> None:
        self._require_checkpoint()

    def before_test(self) -> None:
        self._require_checkpoint()

    def _require_checkpoint(self) -> None:
        """A model fresh from its configuration has not learnt anything that could be scored."""
        if not self._get(self.config, "ckpt_path"):
            raise ArgumentError("--ckpt_path", "a checkpoint to score", None, _ANOTHER)

    def before_fit(self) -> None:
        if self._get(self.config, "solve") is not None:
            raise ArgumentError("--config", "one for fit", "one with solve", "run structlearn solve --config with it")
        if folder := self._get(self.config, "save_to"):
            # Before hours of training, not after them.
            Path(folder).mkdir(parents=True, exist_ok=True)
        if self._get(self.config, "compile"):
            # Lengths change from batch to batch: one graph for all of them.
            self.model.objective = torch.compile(self.model.objective, dynamic=True)

    def after_fit(self) -> None:
        folder = self._get(self.config, "save_to")
        if folder and self.trainer.is_global_zero:
            checkpoints = self.trainer.checkpoint_callback
            best = getattr(checkpoints, "best_model_path", "")
            if best and getattr(checkpoints, "monitor", None):
                self.model.load_state_dict(read_checkpoint(best, remedy=_ANOTHER)["state_dict"])
            print(f"saved to {saving.save(self.model, Path(folder))}")


def run(arguments: Sequence[str], *, start: bool = True) -> TrainingCommand:
    """One of fit, validate, test with its options; without ``start`` the objects are made and nothing is run."""
    command: type[TrainingCommand] = TrainingCommand
    if start:
        # Options of the other commands are not made: each takes half a second.
        asked = {arguments[0]: LightningCLI.subcommands()[arguments[0]]}
        command = type("TrainingCommand", (TrainingCommand,), {"subcommands": staticmethod(lambda: asked)})
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(_no_advertisement)
    with warnings.catch_warnings():
        for message in _QUIET:
            warnings.filterwarnings("ignore", message=message)
        return command(
            Task,
            TaskData,
            parser_class=Parser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            save_config_callback=_SaveConfig,
            parser_kwargs={arguments[0]: _described(arguments[0])} if start else {},
            auto_configure_optimizers=False,
            trainer_defaults={"enable_model_summary": False},
            run=start,
            args=list(arguments),
        )


def _no_advertisement(record: logging.LogRecord) -> bool:
    return "Tip:" not in record.getMessage()


def _described(name: str) -> dict[str, str]:
    """How help begins: the few options that most runs need, not all of them."""
    program = f"structlearn {name}"
    options = "--config FILE [--data.init_args.NAME VALUE] [--model.init_args.NAME VALUE] [--trainer.NAME VALUE]"
    about = {
        "fit": "Train a task on the data that a configuration names. Its keys are options, and options win. Example: "
        f"{program} --config configs/tagging/crf.yaml --data.init_args.train train.txt --save_to tagger.",
        "validate": "Score a checkpoint on validation data.",
        "test": "Score a checkpoint on test data.",
    }[name]
    ends = " [--save_to FOLDER]" if name == "fit" else " --ckpt_path FILE"
    more = (
        "\nOptions of a class: --model.help structlearn.tasks.Tagging, --data.help structlearn.data.modules.TaggingData"
    )
    return {"prog": program, "usage": f"{program} {options}{ends}", "description": about + more}


def instantiated(config: Path, *overrides: str) -> tuple[Task, TaskData, dict[str, Any]]:
    """The task and the data of a configuration, and its options of ``solve``."""
    quiet = ["--trainer.logger=false", "--trainer.enable_checkpointing=false"]
    command = run([f"--config={config}", *quiet, *overrides], start=False)
    return command.model, command.datamodule, dict(command.config.get("solve") or {})  # type: ignore[return-value]


class _SaveConfig(SaveConfigCallback):
    """Writes the configuration beside the checkpoints, unless logging is off."""

    def __init__(self, parser: ArgumentParser, config: Namespace, *args: Any, **kwargs: Any) -> None:
        super().__init__(parser, config, *args, **kwargs)  # type: ignore[arg-type]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if trainer.logger is not None and not trainer.fast_dev_run:
            super().setup(trainer, pl_module, stage)


def main(arguments: Sequence[str]) -> int:
    run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
