"""Runs notebooks and stores what they print and draw: ``make notebooks``, or ``python notebooks/run.py NAME``."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from rich.progress import track

FOLDER = Path(__file__).resolve().parent
# Enough to read labels by; stored pictures stay below 100 kB each.
PICTURES = "--InlineBackend.print_figure_kwargs={'dpi': 60, 'bbox_inches': 'tight'}"


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook at ``path`` after a run in a kernel of its own; a failing cell raises ``CellExecutionError``."""
    notebook = nbformat.read(path, as_version=4)
    options = {
        "timeout": 300,
        "startup_timeout": 180,
        "kernel_name": "python3",
        "extra_arguments": [PICTURES],
        "record_timing": False,
    }
    client = NotebookClient(notebook, resources={"metadata": {"path": str(FOLDER)}}, **options)
    return client.execute()


def main() -> None:
    named = [FOLDER / f"{name.removesuffix('.ipynb')}.ipynb" for name in sys.argv[1:]]
    for path in track(named or sorted(FOLDER.glob("*.ipynb")), description="notebooks"):
        notebook = executed(path)
        # Versions of the machine that ran it would change with every run.
        notebook.metadata["language_info"] = {"name": "python"}
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
