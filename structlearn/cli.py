"""The command ``structlearn``. What only one command needs is imported by that command, so ``--help`` stays quick."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_TRAINING = {
    "fit": "train a task by a configuration",
    "validate": "score a trained task on validation data",
    "test": "score a trained task on test data",
}


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults, where there are any to speak of."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        nothing = action.default is None or action.default is False or action.default == []
        return action.help if nothing else super()._get_help_string(action)


def parser() -> argparse.ArgumentParser:
    """All commands and their options; those of fit, validate and test are made by LightningCLI when they run."""
    top = argparse.ArgumentParser(
        prog="structlearn",
        description="Structured prediction for PyTorch.",
        epilog="Example: structlearn fit --config configs/tagging/crf.yaml --trainer.max_epochs 3",
    )
    top.add_argument("--version", action="version", version=f"structlearn {importlib.metadata.version('structlearn')}")
    _add_completion(top)
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    for name, about in _TRAINING.items():
        # No options of its own: LightningCLI reads what follows, --help included.
        commands.add_parser(name, help=about, add_help=False).set_defaults(run=None)
    for add in (_add_predict, _add_solve, _add_reproduce, _add_demo, _add_doctor):
        add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 2 with a message for what the user can mend."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _TRAINING:
        return _guarded(given[0], lambda: _train(given))
    options = parser().parse_args(given)
    return _guarded(options.command, lambda: options.run(options))


def _guarded(command: str, run: Callable[[], None]) -> int:
    from structlearn.errors import StructLearnError

    try:
        run()
    except (StructLearnError, OSError) as error:
        print(f"structlearn {command}: {error}", file=sys.stderr)
        return 2
    return 0


def _add_completion(top: argparse.ArgumentParser) -> None:
    try:
        import shtab
    except ImportError:
        return
    shtab.add_argument_to(top, ["--print-completion"], help="print a completion script for a shell")


def _command(
    commands: _Commands, name: str, about: str, run: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    found = commands.add_parser(name, help=about, description=about, formatter_class=_Help)
    found.set_defaults(run=run)
    return found


def _add_predict(commands: _Commands) -> None:
    found = _command(commands, "predict", "apply a saved model to a file or to standard input", _predict)
    found.add_argument("model", type=Path, help="folder written by fit --save_to or structlearn.save, or a checkpoint")
    found.add_argument("input", nargs="?", default="-", help="file, gzipped or not; - reads standard input")
    found.add_argument("--format", help="of the input: conll, text, fasta, brackets, jsonl; by its ending")
    found.add_argument("--write", help="format of the output; as the input, or jsonl with confidences")
    found.add_argument("--output", type=Path, help="file to write; standard output")
    found.add_argument("--confidences", action="store_true", help="probabilities of the parts, in JSON lines")
    found.add_argument("--batch-size", type=_positive, default=64, help="examples at a time")
    found.add_argument("--trust", action="append", default=[], metavar="PACKAGE", help="package whose classes may load")
    found.add_argument("--max-bytes", type=_positive, default=4 << 30, help="of the largest file of the model")


def _add_solve(commands: _Commands) -> None:
    found = _command(commands, "solve", "train a structured SVM exactly, with a certificate, or by voting", _solve)
    found.add_argument("--config", type=Path, help="configuration as of fit, with options of this command under solve")
    # Without defaults: what is not given is the configuration's.
    solvers = ("n_slack", "one_slack", "bcfw", "voting")
    found.add_argument("--solver", choices=solvers, help="algorithm (one_slack); voting is for reranking")
    found.add_argument("--rescaling", choices=("margin", "slack"), help="of the loss (margin)")
    found.add_argument("--penalty", choices=("linear", "quadratic", "hard"), help="of violations (linear)")
    found.add_argument("--C", type=float, help="weight of violations (1)")
    found.add_argument("--eps", type=float, help="violation that may be left (0.01)")
    found.add_argument("--max-rounds", type=_positive, help="limit (1000)")
    found.add_argument("--slices", type=_positive, help="votes (10)")
    found.add_argument("--width", type=_positive, help="candidates of a list in one vote (1)")
    found.add_argument("--save-to", "--save_to", type=Path, help="folder for the trained model, for predict")


def _add_reproduce(commands: _Commands) -> None:
    about = "run a published experiment and print the paper's figures beside ours"
    again = _command(commands, "reproduce", about, _reproduce)
    again.add_argument("names", nargs="*", metavar="NAME", help="experiments, see --list; all runs every one")
    again.add_argument("--list", action="store_true", help="say what each experiment needs and how long it takes")
    again.add_argument("--smoke", action="store_true", help="a few seconds each, on generated data if need be")
    again.add_argument("--data", type=Path, help="folder of the corpora (STRUCTLEARN_DATA, else ../shared/data)")
    again.add_argument("--seed", type=int, default=0, help="of folds, draws and orders")
    again.add_argument("--out", type=Path, help="folder for NAME.json and NAME.png")
    page = "write the page of results from the files in PAGE/"
    again.add_argument("--write", type=Path, metavar="PAGE.md", help=page)


def _add_demo(commands: _Commands) -> None:
    about = "train four models of generated words, print their errors and draw one picture"
    demo = _command(commands, "demo", about, _demo)
    demo.add_argument("--train", type=_positive, default=4000, help="words to learn from")
    demo.add_argument("--test", type=_positive, default=1000, help="words to test on")
    demo.add_argument("--epochs", type=_positive, default=6, help="passes over the training words")
    demo.add_argument("--seed", type=int, default=0, help="of the words, their noise and their order")
    demo.add_argument("--picture", type=Path, default=Path("demo.png"), help="where to draw")


def _add_doctor(commands: _Commands) -> None:
    _command(commands, "doctor", "say which backends, devices and packages work here", _doctor)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text}")
    return value


def _train(arguments: Sequence[str]) -> None:
    from structlearn.commands import training

    training.main(arguments)


def _predict(options: argparse.Namespace) -> None:
    from structlearn.commands import predict

    predict.run(
        options.model,
        options.input,
        form=options.format,
        write=options.write,
        output=options.output,
        confidences=options.confidences,
        batch_size=options.batch_size,
        trusted=options.trust,
        max_bytes=options.max_bytes,
    )


def _solve(options: argparse.Namespace) -> None:
    from structlearn.commands import solve

    solve.run(options)


def _reproduce(options: argparse.Namespace) -> None:
    from structlearn.experiments import reproduce

    reproduce.command(
        options.names,
        listed=options.list,
        smoke=options.smoke,
        data=options.data,
        seed=options.seed,
        out=options.out,
        page=options.write,
    )


def _demo(options: argparse.Namespace) -> None:
    import torch

    from structlearn import demo

    # The batches are small: a second thread gains little, and on a busy machine the two wait for each other.
    torch.set_num_threads(1)
    demo.run(train=options.train, test=options.test, epochs=options.epochs, seed=options.seed, picture=options.picture)


def _doctor(options: argparse.Namespace) -> None:
    from structlearn.commands import doctor

    doctor.run()


if __name__ == "__main__":
    sys.exit(main())
