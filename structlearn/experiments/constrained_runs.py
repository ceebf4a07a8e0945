"""What the studies of constrained outputs share: fitting a learner, F1 with bootstrap intervals, their picture."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from structlearn.constraints.training import ConstrainedLearner
from structlearn.experiments.base import Mean
from structlearn.viz.base import BLACK, BLUE, ORANGE, figure

Ints = NDArray[np.int64]
MODES = ("LO", "L+I", "IBT")
STYLES = {"LO": (BLACK, "o", ":"), "L+I": (BLUE, "s", "-"), "IBT": (ORANGE, "^", "--")}
RESAMPLES = 1000


class Batches(torch.utils.data.IterableDataset[Any]):
    """Calls ``make`` anew for every epoch."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()


def fit(learner: ConstrainedLearner, make: Callable[[], Iterator[Any]], epochs: int) -> None:
    """Trains quietly; averaged weights are left in place where the learner keeps them."""
    import pytorch_lightning as pl

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(learner, torch.utils.data.DataLoader(Batches(make), batch_size=None))
    learner.use_average()


class Counts(NamedTuple):
    """Of each sentence or proposition: matched, predicted and gold units, (R,) each."""

    matched: Ints
    predicted: Ints
    gold: Ints


def f1(counts: Counts) -> float:
    """2 matched / (predicted + gold), in percent."""
    total = counts.predicted.sum() + counts.gold.sum()
    return float(200.0 * counts.matched.sum() / max(total, 1))


def _resampled(counts: Counts, picks: Ints) -> NDArray[np.float64]:
    matched, predicted, gold = (part[picks].sum(1) for part in counts)
    values: NDArray[np.float64] = 200.0 * matched / np.maximum(predicted + gold, 1)
    return values


def intervals(found: Mapping[str, Counts], seed: int) -> dict[str, Mean]:
    """F1 of each mode and the paired differences "L+I - LO" and "IBT - L+I", with 95 % bootstrap intervals."""
    size = len(next(iter(found.values())).gold)
    picks = np.random.default_rng(seed).integers(0, size, (RESAMPLES, size))
    drawn = {mode: _resampled(counts, picks) for mode, counts in found.items()}
    means = {mode: _mean(f1(counts), drawn[mode]) for mode, counts in found.items()}
    for a, b in (("L+I", "LO"), ("IBT", "L+I")):
        means[f"{a} - {b}"] = _mean(f1(found[a]) - f1(found[b]), drawn[a] - drawn[b])
    return means


def _mean(value: float, drawn: NDArray[np.float64]) -> Mean:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Mean(value, float(high - low) / 2)


def picture(sizes: Sequence[int], results: Sequence[Mapping[str, Mean]], what: str) -> Any:
    """F1 by number of features on the left, paired differences on the right."""
    drawing = figure(11, 4.2)
    left, right = drawing.subplots(1, 2)
    for mode in MODES:
        colour, marker, line = STYLES[mode]
        means = [result[mode] for result in results]
        halves = [mean.half or 0.0 for mean in means]
        left.errorbar(
            sizes,
            [mean.value for mean in means],
            halves,
            color=colour,
            marker=marker,
            linestyle=line,
            label=mode,
            capsize=3,
        )
    for name, colour, marker in (("L+I - LO", BLUE, "s"), ("IBT - L+I", ORANGE, "^")):
        means = [result[name] for result in results]
        halves = [mean.half or 0.0 for mean in means]
        right.errorbar(
            sizes, [mean.value for mean in means], halves, color=colour, marker=marker, label=name, capsize=3
        )
    right.axhline(0, color="0.6", linewidth=0.8)
    left.set_ylabel(what)
    right.set_ylabel("difference in F1")
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xlabel("features: the more, the easier for each part alone")
        ax.grid(color="0.9")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=9)
    return drawing
