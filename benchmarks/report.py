"""Results as CSV and Markdown, bars with their verdicts, and the machine that they were measured on."""

import csv
import importlib.metadata
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.limits import Memory, Scaling
from benchmarks.roofline import compiler

VERSIONS = ("torch", "numpy", "numba", "jax", "hmmlearn", "pytorch-crf", "TorchCRF", "supar", "torch-struct")


@dataclass(frozen=True)
class Bar:
    """A demand and what was measured: holds if value ≥ limit (or ≤, if `at_most`); without a value it does not hold.

    Where other processes disturbed the measurement (not `sure`), the verdict is "unsure", unless even `least`, the
    value by the rival's fastest sample, holds. `reachable` is what `limited_by` would have, by default torch alone: a
    bar beyond it that is missed is marked "limit", not "FAIL".
    """

    text: str
    limit: float
    value: float | None
    at_most: bool = False
    unit: str = "×"
    note: str = ""
    sure: bool = True
    least: float | None = None
    reachable: float | None = None
    limited_by: str = "torch alone"

    def _meets(self, value: float | None) -> bool:
        if value is None or math.isnan(value):
            return False
        return value <= self.limit if self.at_most else value >= self.limit

    @property
    def holds(self) -> bool:
        """Whether the measured value meets the limit."""
        return self._meets(self.value)

    @property
    def verdict(self) -> str:
        """pass, FAIL, limit or unsure."""
        if self.value is not None and not self.sure and not self._meets(self.least):
            return "unsure"
        if self.holds:
            return "pass"
        return "FAIL" if self.reachable is None or self.reachable >= self.limit else "limit"

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:.3g}{self.unit}"
        sign = "≤" if self.at_most else "≥"
        note = f" ({self.note})" if self.note else ""
        if not self.sure and self.least is not None:
            note += f"; by its fastest sample {self.least:.3g}{self.unit}"
        if self.verdict == "limit":
            note += f"; {self.limited_by} {self.reachable:.3g}{self.unit}"
        return f"{self.verdict} | {self.text} | {sign} {self.limit:g}{self.unit} | {value}{note}"


def untaped_bar(text: str, limit: float, rows: Sequence[Row], case: str, rival: Row | None) -> Bar:
    """Over a rival that returns log Z and its gradient as plain values, like our call without autograd."""
    ours = next((row for row in rows if row.role == "untaped" and row.case == case), None)
    if rival is None or ours is None or not rival.median_ms or not ours.median_ms:
        return Bar(text, limit, None, note="no rival ran")
    sure, least = rival.calm and ours.calm, (rival.least_ms or 0.0) / ours.median_ms
    return Bar(text, limit, rival.median_ms / ours.median_ms, note=rival.contestant, sure=sure, least=least)


def bar_against(text: str, limit: float, rows: Sequence[Row], rival: Row, note: str = "") -> Bar:
    """Ours over a rival on the same case; `rows` are of one operation."""
    ratio, least, most = rival.ratio_to_ours, rival.least_ratio, reachable(rows, rival)
    return Bar(text, limit, ratio, note=note, sure=rival.sure, least=least, reachable=most)


def reachable(rows: Sequence[Row], rival: Row | None, *, computing: bool = False) -> float | None:
    """How many times the median of torch alone `rival` takes on the same case.

    computing: torch alone and then the work of the case at the rate of the roofline.
    """
    if rival is None or not rival.median_ms:
        return None
    of = {row.role: row for row in rows if row.case == rival.case and row.median_ms}
    if "floor" not in of:
        return None
    least = of["floor"].median_ms or 0.0
    if computing:
        if "roofline" not in of or not rival.units_per_second or not of["roofline"].units_per_second:
            return None
        least += rival.median_ms * rival.units_per_second / of["roofline"].units_per_second
    return rival.median_ms / least


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """(Π v)^(1/n); None if a value is missing or there is none."""
    logs = [math.log(value) if value else math.nan for value in values]
    mean = math.exp(sum(logs) / len(logs)) if logs else math.nan
    return None if math.isnan(mean) else mean


def machine() -> list[str]:
    """Processor, memory, compiler and the versions of everyone."""
    lines = []
    try:
        info = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or "unknown processor"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines.append(f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}")
    found = compiler()
    if found:
        told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
        lines.append(f"compiler: {(told.splitlines() or ['unknown'])[0]}")
    versions = [f"Python {platform.python_version()}"]
    for name in ("structlearn", *VERSIONS):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} not installed")
    lines.append(", ".join(versions))
    return lines


def disturbance(rows: Sequence[Row]) -> str:
    """How quiet the machine was."""
    samples, disturbed = sum(row.samples for row in rows), sum(row.disturbed for row in rows)
    return f"samples that waited for a core because of other processes: {disturbed} of {samples}"


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Every row with every column."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [column.name for column in fields(Row)])
        writer.writeheader()
        for row in rows:
            record = asdict(row)
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in record.items()})


def _cell(row: Row, notes: list[str]) -> str:
    if row.status != "ok" or row.median_ms is None:
        if row.status not in notes:
            notes.append(row.status)
        return f"– [{notes.index(row.status) + 1}]"
    digits = f"{row.median_ms:.3g}" if row.median_ms < 1000 else f"{row.median_ms:,.0f}"
    if row.role == "ours" or row.ratio_to_ours is None:
        return digits
    ratio = f"{row.ratio_to_ours:.3g}" if row.ratio_to_ours < 1000 else f"{row.ratio_to_ours:,.0f}"
    return f"{digits} ({ratio}×)" if row.sure else f"{digits} ({ratio}×?)"


def table(rows: Sequence[Row]) -> list[str]:
    """Contestants down, cases across: median ms (ratio to ours); what has no speed points to its reason below.

    A question mark follows a ratio that other processes disturbed.
    """
    cases = list(dict.fromkeys(row.case for row in rows))
    names = list(dict.fromkeys(row.contestant for row in rows if row.role != "roofline"))
    cells = {(row.contestant, row.case): row for row in rows}
    notes: list[str] = []
    lines = ["| | " + " | ".join(cases) + " |", "|---" * (len(cases) + 1) + "|"]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(_cell(cells[name, case], notes) for case in cases) + " |")
    shares = [next((r for r in rows if r.case == case and r.role == "ours"), None) for case in cases]
    if any(row is not None and row.roofline_fraction for row in shares):
        told = [f"{row.roofline_fraction:.0%}" if row and row.roofline_fraction else "–" for row in shares]
        lines.append("| structlearn's share of the roofline | " + " | ".join(told) + " |")
    lines.append("")
    lines.extend(f"[{index}] {note}  " for index, note in enumerate(notes, 1))
    return lines


def bar_table(bars: Sequence[Bar]) -> list[str]:
    """One line for each bar, failures first to be seen."""
    ordered = sorted(bars, key=lambda bar: ("FAIL", "limit", "unsure", "pass").index(bar.verdict))
    return ["| | bar | asked | measured |", "|---|---|---|---|", *(f"| {bar} |" for bar in ordered)]


def memory_lines(rows: Sequence[Memory]) -> list[str]:
    """Everyone's peak memory, one table."""
    if not rows:
        return []
    lines = [
        f"## Memory at {rows[0].case}",
        "",
        f"What one call adds at its peak, inputs of {rows[0].inputs / 1e6:.2f} MB.",
        "",
    ]
    lines += ["| operation | contestant | MB | times the inputs |", "|---|---|---|---|"]
    for row in rows:
        told = f"– ({row.status}) | –" if row.extra is None else f"{row.extra / 1e6:.1f} | {row.extra / row.inputs:.2f}"
        lines.append(f"| {row.operation} | {row.contestant} | {told} |")
    return [*lines, ""]


def scaling_lines(results: Sequence[Scaling]) -> list[str]:
    """Time over size along each axis."""
    lines = ["## Scaling", ""]
    for result in results:
        if result.extra is None or result.status != "ok":
            lines.append(f"- {result.operation} {result.case}: {result.status}")
            continue
        size = f"adds {result.extra / 1e6:.0f} MB to inputs of {result.inputs / 1e6:.0f} MB"
        lines.append(f"- {result.operation} {result.case}: {size}")
        for axis, line in result.lines.items():
            told = ", ".join(f"{s:,}: {1e3 * t:.3g}" for s, t in zip(line.sizes, line.seconds, strict=True))
            lines.append(f"  - along {axis}, ms at B·N: {told}; upper slope over lower {line.slope_ratio:.3f}")
    return [*lines, ""]
