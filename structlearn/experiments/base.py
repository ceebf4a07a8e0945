"""What an experiment is: settings in, a report of tables out.

difference = ours - published, cell by cell;   Mean.of(v) = mean(v) +- t_{n-1} sd(v) / sqrt(n), 95 %
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from structlearn.errors import ArgumentError

Item = TypeVar("Item")


class Mean(NamedTuple):
    """A mean and the half width of its interval; ``half`` None where there is none."""

    value: float
    half: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Mean of folds, seeds or draws with its 95 % interval by Student's t."""
        from scipy.stats import t

        n = len(values)
        mean = sum(values) / n
        if n < 2:
            return cls(mean)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
        return cls(mean, float(t.ppf(0.975, n - 1)) * deviation / math.sqrt(n))

    @classmethod
    def share(cls, hits: float, total: int) -> Mean:
        """100 hits / total with the 95 % interval of a proportion (Wilson), made symmetric."""
        p = hits / total
        half = 1.96 * math.sqrt(p * (1 - p) / total + 0.9604 / total**2) / (1 + 3.8416 / total)
        return cls(100 * p, 100 * half)


Cell = str | float | int | Mean | None


@dataclass(frozen=True)
class Settings:
    """How to run: folder of the corpora, smoke (seconds, no corpus needed), seed, folder for JSON and picture."""

    data: Path = field(default_factory=lambda: default_data())
    smoke: bool = False
    seed: int = 0
    out: Path | None = None

    def has(self, corpus: str) -> bool:
        """Whether the corpus is there."""
        return (self.data / corpus).is_dir()

    def corpus(self, name: str) -> Path:
        """The folder of a corpus, which must be there."""
        if not self.has(name):
            remedy = "pass --data or set STRUCTLEARN_DATA; --smoke runs without corpora"
            raise ArgumentError("data", f"a folder with the corpus {name}", str(self.data), remedy)
        return self.data / name


def default_data() -> Path:
    """The folder STRUCTLEARN_DATA, ../shared/data if not set."""
    return Path(os.environ.get("STRUCTLEARN_DATA") or Path("..") / "shared" / "data")


@dataclass(frozen=True)
class Table:
    """Rows of cells under ``columns``; ``published`` has the paper's cells at the same places, None where it has none.

    The first column names the row. ``digits`` are those behind the point.
    """

    title: str
    columns: list[str]
    rows: list[list[Any]]
    published: list[list[Any]] | None = None
    note: str = ""
    digits: int = 2

    def __post_init__(self) -> None:
        for what, rows in (("rows", self.rows), ("published", self.published or [])):
            for row in rows:
                if len(row) != len(self.columns):
                    got = f"{len(row)}: {row}"
                    raise ArgumentError(what, f"{len(self.columns)} cells a row", got, "None leaves a cell empty")
        if self.published is not None and len(self.published) != len(self.rows):
            raise ArgumentError("published", f"{len(self.rows)} rows", len(self.published), "None leaves a cell empty")


@dataclass(frozen=True)
class Report:
    """Tables, what must be said of them (stand-ins, choices, shortfalls and their reasons), and a picture."""

    tables: list[Table]
    notes: list[str]
    draw: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Experiment:
    """One name of ``structlearn reproduce``: what it shows, whose table it is, what it needs, minutes on 2 cores.

    ``threads``: most batches here are small, and threads that wait for each other on a busy machine cost more than
    they gain.
    """

    name: str
    about: str
    paper: str
    corpora: tuple[str, ...]
    minutes: float
    run: Callable[[Settings], Report]
    threads: int = 1


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, what, total=total, console=console, transient=True, disable=not console.is_terminal)
