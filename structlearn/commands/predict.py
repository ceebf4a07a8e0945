"""predict: a saved model on a text, in the format it came or as JSON lines."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import track

from structlearn import saving
from structlearn.data.modules.base import Encoded
from structlearn.data.sampling import BucketSampler
from structlearn.storage.checkpoints import MAX_BYTES
from structlearn.storage.text import read_stream, read_text
from structlearn.tasks.base import Task


def predictions(
    task: Task, examples: Sequence[Any], *, batch_size: int = 64, quiet: bool = True
) -> list[dict[str, Any]]:
    """Outputs with scores, in the order of the examples."""
    data = Encoded(task.codec, examples)
    found: list[dict[str, Any]] = [{} for _ in examples]
    if not examples:
        return found
    sampler = list(BucketSampler(data.lengths, batch_size, replicas=1, rank=0))
    bar = track(sampler, "predicting", console=Console(stderr=True), transient=True, disable=quiet)
    for rows in bar:
        batch = data[rows]
        for i, row in zip(rows.places, task.decoded(batch, task.predict_step(batch)), strict=True):
            found[i] = row
    return found


def rendered(task: Task, examples: Sequence[Any], found: Sequence[dict[str, Any]], form: str) -> Iterator[str]:
    """Each example's output as text; JSON lines have score and confidences too."""
    for example, row in zip(examples, found, strict=True):
        text = task.codec.render(example, row["output"], form)
        if form == "jsonl":
            extra = {name: value for name, value in row.items() if name != "output"}
            text = json.dumps({**json.loads(text), **extra}, ensure_ascii=False)
        yield text


def run(
    model: Path,
    source: str,
    *,
    form: str | None,
    write: str | None,
    output: Path | None,
    confidences: bool,
    batch_size: int,
    trusted: Sequence[str] = (),
    max_bytes: int = MAX_BYTES,
) -> None:
    """Read ``source``, "-" for standard input, and write what the model says."""
    task = saving.load(model, trusted=trusted, max_bytes=max_bytes)
    task.confidences = confidences
    form = form or _guess(source, task)
    task.codec.check_format(form)
    write = write or ("jsonl" if confidences else form)
    task.codec.check_format(write)
    text, name = (read_stream(sys.stdin.buffer, "stdin"), "stdin") if source == "-" else (read_text(source), source)
    examples = task.codec.parse(text, form, name)
    found = predictions(task, examples, batch_size=batch_size, quiet=len(examples) < 500)
    if output is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as the input, whatever the locale
    stream: TextIO = sys.stdout if output is None else output.open("w", encoding="utf-8")
    try:
        for line in rendered(task, examples, found, write):
            stream.write(line + "\n")
    finally:
        if output is not None:
            stream.close()


def _guess(source: str, task: Task) -> str:
    """By the file's ending; the codec's first format where that says nothing."""
    endings = {
        ".jsonl": "jsonl",
        ".txt": "text",
        ".conll": "conll",
        ".fa": "fasta",
        ".fasta": "fasta",
        ".mrg": "brackets",
        ".ptb": "brackets",
    }
    form = endings.get(Path(source.removesuffix(".gz")).suffix)
    return form if form in task.codec.formats else task.codec.formats[0]
