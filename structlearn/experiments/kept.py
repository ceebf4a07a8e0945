"""Finished parts of a long experiment, kept in a file, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structlearn.errors import FormatError
from structlearn.experiments.base import Settings
from structlearn.storage.writing import write_file


class Kept:
    """JSON values by name, in ``<out>/<experiment>.partial.json``; in no file if there is no folder, or in smoke mode.

    Args:
        settings: of the experiment.
        experiment: its name.

    Names must say all that a part depends on. What the program itself was is not among it: delete the file after a
    change to a learner. ``taken`` counts the parts that came from the file.
    """

    def __init__(self, settings: Settings, experiment: str) -> None:
        keep = settings.out is not None and not settings.smoke
        self.path: Path | None = settings.out / f"{experiment}.partial.json" if keep and settings.out else None
        self.taken = 0
        self._parts: dict[str, Any] = {}
        if self.path is not None and self.path.exists():
            self._parts = _read(self.path)

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        """The part of this name, worked out if the file does not have it."""
        if name in self._parts:
            self.taken += 1
            return self._parts[name]
        self._parts[name] = work()
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self.path, json.dumps(self._parts, indent=1).encode())
        return self._parts[name]

    def close(self) -> list[str]:
        """Removes the file when all parts are there; a note on the total of seconds if parts were taken from it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        if not self.taken:
            return []
        parts = f"{self.taken} of {len(self._parts)} parts"
        return [f"{parts} were taken over from an interrupted run: the total of seconds leaves theirs out"]


def _read(path: Path) -> dict[str, Any]:
    remedy = "delete it to start again"
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(str(path), "JSON", str(error), remedy) from None
    if not isinstance(parts, dict):
        raise FormatError(str(path), "parts by name", type(parts).__name__, remedy)
    return parts
