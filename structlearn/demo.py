"""Four ways to learn one linear model of words, side by side: ``structlearn demo``.

Every method gets the same scores over label sequences, a :class:`structlearn.LinearChain`; what differs is one line,
the loss. The independent classifier is the chain without transitions, whose likelihood is a softmax for each letter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

import structlearn as sl
from structlearn.data.ocr import ALPHABET, HEIGHT, WIDTH, Words, ocr_words
from structlearn.errors import ArgumentError

METHODS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    # name: loss, weight eta of the transition features
    "independent classifier": (sl.CRFLoss, 0.0),
    "CRF": (sl.CRFLoss, 1.0),
    "structured hinge, margin": (lambda: sl.StructuredHinge(sl.costs.Hamming(), rescaling="margin"), 1.0),
    "structured hinge, slack": (lambda: sl.StructuredHinge(sl.costs.Hamming(), rescaling="slack"), 1.0),
}
BATCH = 40
_SHORT = {
    "independent classifier": "independent",
    "CRF": "CRF",
    "structured hinge, margin": "hinge, margin",
    "structured hinge, slack": "hinge, slack",
}


@dataclass
class Result:
    """One method after training."""

    name: str
    model: sl.features.ChainMap
    train_errors: list[float] = field(default_factory=list)  # after each epoch
    test_errors: list[float] = field(default_factory=list)
    seconds: float = 0.0  # in training steps


@torch.no_grad()
def predict(model: sl.features.ChainMap, words: Words) -> Tensor:
    """The best labels of each word (B, N)."""
    labels: Tensor = model(words.images, words.lengths).argmax()
    return labels


def letter_error(model: sl.features.ChainMap, words: Words) -> float:
    """The share of letters that are wrong."""
    here = words.labels >= 0
    return float((predict(model, words) != words.labels)[here].double().mean())


def fit(name: str, train: Words, test: Words, *, epochs: int, seed: int, step: Callable[[], object]) -> Result:
    """Train one method by Adam with a falling rate; ``step`` is called after every batch."""
    make_loss, eta = METHODS[name]
    loss, result = make_loss(), Result(name, sl.features.ChainMap(HEIGHT * WIDTH, len(ALPHABET), eta=eta))
    optimizer = torch.optim.Adam(result.model.parameters(), lr=0.03)
    starts = range(0, len(train.lengths), BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=epochs * len(starts))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(train.lengths), generator=generator)
        for start in starts:
            began = time.perf_counter()
            words = train.take(order[start : start + BATCH])
            optimizer.zero_grad()
            loss(result.model(words.images, words.lengths), words.labels).backward()
            optimizer.step()
            schedule.step()
            result.seconds += time.perf_counter() - began
            step()
        result.train_errors.append(letter_error(result.model, train))
        result.test_errors.append(letter_error(result.model, test))
    return result


def run(
    *, train: int = 4000, test: int = 1000, epochs: int = 6, seed: int = 0, picture: Path | None = Path("demo.png")
) -> list[Result]:
    """Train every method on generated words, print their errors and, if ``picture`` is a path, draw them there."""
    console = Console()
    # Before training, so that a missing folder or package is told at once.
    canvas = None if picture is None else _canvas(picture)
    train_words, test_words = ocr_words(train + test, seed=seed).split(train)
    columns = (
        SpinnerColumn(finished_text=" "),
        TextColumn("{task.description}", style="bold"),
        BarColumn(),
        TextColumn("{task.fields[error]}"),
        TimeElapsedColumn(),
    )
    results = []
    with Progress(*columns, console=console) as progress:
        for name in METHODS:
            total = epochs * len(range(0, train, BATCH))
            task = progress.add_task(f"{name:<{max(map(len, METHODS))}}", total=total, error="")
            result = fit(name, train_words, test_words, epochs=epochs, seed=seed, step=partial(progress.advance, task))
            progress.update(task, error=f"test error {result.test_errors[-1]:6.1%}")
            results.append(result)
    console.print(table(results, train_words, test_words))
    if canvas is not None and picture is not None:
        draw(canvas, results, test_words)
        canvas.savefig(picture, dpi=110)
        console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    return results


def _canvas(picture: Path) -> Any:
    from structlearn import viz

    if not picture.parent.is_dir():
        raise ArgumentError("picture", "a file in a folder that exists", repr(str(picture)), "make the folder first")
    return viz.figure(14, 11)


def table(results: list[Result], train: Words, test: Words) -> Table:
    """Errors and training time of each method."""
    letters = int(test.lengths.sum())
    made = Table(title=f"{len(train.lengths)} training words, {len(test.lengths)} test words ({letters} letters)")
    made.add_column("letter error of", no_wrap=True)
    for heading in ("test", "train", "training time"):
        made.add_column(heading, justify="right")
    for r in results:
        made.add_row(r.name, f"{r.test_errors[-1]:.1%}", f"{r.train_errors[-1]:.1%}", f"{r.seconds:.1f} s")
    return made


def draw(figure: Any, results: list[Result], test: Words, *, samples: int = 8) -> None:
    """Learning curves, the transition scores of the CRF, and the first test words (of 5 to 9 letters if possible)."""
    from structlearn import viz

    top, bottom = figure.subfigures(2, 1, height_ratios=(1.25, 1))
    left, right = top.subplots(1, 2, width_ratios=(1, 1.05))
    left.set_title("letter error on test words")
    viz.learning_curves(left, {r.name: r.test_errors for r in results}, ylabel="letter error")
    # A constant added to all transitions changes no prediction, so the mean is taken out to show what matters.
    transition = next(r for r in results if r.name == "CRF").model.transition.detach()
    right.set_title("transition scores learnt by the CRF, less their mean")
    viz.transition_matrix(right, transition - transition.mean(), ALPHABET, what="letter")

    fitting = (test.lengths >= 5) & (test.lengths <= 9)
    words = test.take(fitting.logical_not().int().argsort(stable=True)[:samples])
    spellings = {"true": words.spell()} | {_SHORT[r.name]: words.spell(predict(r.model, words)) for r in results}
    bottom.suptitle("test words; wrong letters are boxed")
    axes = bottom.subplots(2, samples // 2).flatten()
    for i, ax in enumerate(axes):
        ax.axis("off")
        if i < len(words.lengths):
            images = words.images[i, : words.lengths[i]].view(-1, HEIGHT, WIDTH)
            rows = {name: spelled[i] for name, spelled in spellings.items()}
            viz.labelled_word(ax, images, rows, truth=rows["true"], letters=int(words.lengths.max()))
