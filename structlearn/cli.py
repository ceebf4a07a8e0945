"""The command ``structlearn``. What only one command needs is imported by that command, so ``--help`` stays quick."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="structlearn", description="Structured prediction for PyTorch.")
    top.add_argument("--version", action="version", version=f"structlearn {importlib.metadata.version('structlearn')}")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")

    about = "train four models of generated words, print their errors and draw one picture"
    demo = commands.add_parser(
        "demo", help=about, description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    demo.add_argument("--train", type=_positive, default=4000, help="words to learn from")
    demo.add_argument("--test", type=_positive, default=1000, help="words to test on")
    demo.add_argument("--epochs", type=_positive, default=6, help="passes over the training words")
    demo.add_argument("--seed", type=int, default=0, help="of the words, their noise and their order")
    demo.add_argument("--picture", type=Path, default=Path("demo.png"), help="where to draw")
    demo.set_defaults(run=_demo)

    about = "run a published experiment and print the paper's figures beside ours"
    again = commands.add_parser("reproduce", help=about, description=about)
    again.add_argument("names", nargs="*", metavar="NAME", help="experiments, see --list; all runs every one")
    again.add_argument("--list", action="store_true", help="say what each experiment needs and how long it takes")
    again.add_argument("--smoke", action="store_true", help="a few seconds each, on generated data if need be")
    again.add_argument("--data", type=Path, help="folder of the corpora (STRUCTLEARN_DATA, else ../shared/data)")
    again.add_argument("--seed", type=int, default=0, help="of folds, draws and orders (default: 0)")
    again.add_argument("--out", type=Path, help="folder for NAME.json and NAME.png")
    again.add_argument(
        "--write", type=Path, metavar="PAGE.md", help="write the page of results from the files in PAGE/"
    )
    again.set_defaults(run=_reproduce)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 2 with a message for what the user can mend."""
    options = parser().parse_args(arguments)
    from structlearn.errors import StructLearnError

    try:
        options.run(options)
    except (StructLearnError, OSError) as error:
        print(f"structlearn {options.command}: {error}", file=sys.stderr)
        return 2
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text}")
    return value


def _demo(options: argparse.Namespace) -> None:
    import torch

    from structlearn import demo

    # The batches are small: a second thread gains little, and on a busy machine the two wait for each other.
    torch.set_num_threads(1)
    demo.run(train=options.train, test=options.test, epochs=options.epochs, seed=options.seed, picture=options.picture)


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


if __name__ == "__main__":
    sys.exit(main())
