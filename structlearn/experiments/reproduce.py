"""Running experiments: tables beside the published ones on the terminal, a JSON file and a picture."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as Shown

from structlearn.errors import ArgumentError
from structlearn.experiments import MODULES, load
from structlearn.experiments.base import Cell, Experiment, Mean, Report, Settings, Table, default_data
from structlearn.storage.writing import whole_file, write_file

VERSIONS = ("structlearn", "torch", "numpy", "scikit-learn")
Record = dict[str, Any]


def reproduce(names: Sequence[str], settings: Settings, console: Console | None = None) -> list[Record]:
    """Runs the named experiments ("all" for all), prints each report and writes it below ``settings.out``."""
    console = console or Console()
    chosen = list(MODULES) if list(names) == ["all"] else list(names)
    return [run(experiment, settings, console) for experiment in [load(name) for name in chosen]]


def run(experiment: Experiment, settings: Settings, console: Console) -> Record:
    """One experiment: its record, printed and written."""
    mode = "smoke run: the figures mean nothing" if settings.smoke else f"about {experiment.minutes:g} minutes"
    console.print(f"[bold]{experiment.name}[/]: {experiment.about} ({mode})")
    torch.manual_seed(settings.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.threads)
    try:
        began, began_cpu = time.perf_counter(), time.process_time()
        report = experiment.run(settings)
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    finally:
        torch.set_num_threads(threads)
    record = recorded(experiment, settings, report, seconds, cpu)
    show(record, console)
    if settings.out is not None:
        write(record, report, settings.out)
        console.print(f"written: {settings.out / experiment.name}.json and .png")
    return record


def recorded(experiment: Experiment, settings: Settings, report: Report, seconds: float, cpu: float) -> Record:
    """What the JSON file holds."""
    return {
        "name": experiment.name,
        "about": experiment.about,
        "paper": experiment.paper,
        "corpora": list(experiment.corpora),
        "smoke": settings.smoke,
        "seed": settings.seed,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "versions": {"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in VERSIONS},
        "hardware": hardware(),
        "threads": experiment.threads,
        "tables": [asdict(table) for table in report.tables],
        "notes": report.notes,
    }


def hardware() -> str:
    """Processor, cores, memory."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
        memory = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (OSError, StopIteration, ValueError):
        model, memory = platform.processor() or "unknown processor", ""
    return f"{model}, {os.cpu_count()} cores{memory}"


def tables_of(record: Record) -> list[Table]:
    """The tables of a record; JSON has lists for :class:`Mean`."""

    def cells(rows: list[list[Any]] | None) -> list[list[Any]] | None:
        if rows is None:
            return None
        return [[Mean(*cell) if isinstance(cell, list | tuple) else cell for cell in row] for row in rows]

    return [
        Table(**{**table, "rows": cells(table["rows"]), "published": cells(table["published"])})
        for table in record["tables"]
    ]


def number(cell: Cell) -> float | None:
    """The cell's number, if it is one."""
    if isinstance(cell, Mean):
        return cell.value
    return float(cell) if isinstance(cell, int | float) and not isinstance(cell, bool) else None


def text(cell: Cell, digits: int) -> str:
    """The cell as printed."""
    if cell is None:
        return "–"
    if isinstance(cell, Mean):
        digits = 0 if abs(cell.value) >= 1000 else digits
        told = f"{cell.value:,.{digits}f}"
        return told if cell.half is None else f"{told} ± {cell.half:,.{digits}f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.{digits}f}" if isinstance(cell, float) else cell


def beside(table: Table) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text; a column with published numbers is followed by those and by the difference."""
    blank: list[list[Cell]] = [[None] * len(table.columns) for _ in table.rows]
    published = table.published or blank
    header: list[str] = []
    rows: list[list[str]] = [[] for _ in table.rows]
    for j, column in enumerate(table.columns):
        compared = j > 0 and any(row[j] is not None for row in published)
        header += [column, "paper", "diff"] if compared else [column]
        for i, row in enumerate(table.rows):
            rows[i].append(text(row[j], table.digits))
            if not compared:
                continue
            ours, theirs = number(row[j]), number(published[i][j])
            rows[i].append(text(published[i][j], table.digits))
            rows[i].append("–" if ours is None or theirs is None else f"{ours - theirs:+,.{table.digits}f}")
    return header, rows


def show(record: Record, console: Console) -> None:
    """Prints the tables, the notes and the time."""
    for table in tables_of(record):
        header, rows = beside(table)
        shown = Shown(title=table.title, title_justify="left", title_style="bold")
        for j, name in enumerate(header):
            shown.add_column(name, justify="left" if j == 0 else "right")
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
        if table.note:
            console.print(table.note, highlight=False)
    for note in record["notes"]:
        console.print(f"- {note}", highlight=False)
    console.print(
        f"{record['seconds']:.0f} s, {record['cpu_seconds']:.0f} s of processor time, {record['threads']} threads, "
        f"seed {record['seed']}, {record['hardware']}",
        highlight=False,
    )


def write(record: Record, report: Report, folder: Path) -> None:
    """NAME.json and NAME.png."""
    from structlearn.experiments.pictures import bars

    folder.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(record, indent=1, ensure_ascii=False)
    write_file(folder / f"{record['name']}.json", f"{lines}\n".encode())
    figure = report.draw() if report.draw is not None else bars(report.tables)
    with whole_file(folder / f"{record['name']}.png") as picture:
        figure.savefig(picture, dpi=110, format="png")


def listing() -> str:
    """All experiments, what they need and how long they take."""
    lines = []
    for name in MODULES:
        found = load(name)
        needs = ", ".join(found.corpora) or "nothing"
        lines.append(f"{name:24}{found.about}\n{'':24}{found.paper}; needs {needs}; {found.minutes:g} min\n")
    return "".join(lines)


def command(
    names: Sequence[str],
    *,
    listed: bool = False,
    smoke: bool = False,
    data: Path | None = None,
    seed: int = 0,
    out: Path | None = None,
    page: Path | None = None,
) -> None:
    """What ``structlearn reproduce`` does with its options."""
    if listed:
        print(listing(), end="")
        return
    if not names and page is None:
        raise ArgumentError("NAME", "an experiment", "none", "see structlearn reproduce --list")
    reproduce(names, Settings(data=data or default_data(), smoke=smoke, seed=seed, out=out))
    if page is not None:
        from structlearn.experiments.results import write_page

        write_page(page)
