"""Tasks on real corpora: scores, times of training and tagging, share of the loss, start of the command.

    python -m benchmarks.tasks                       # everything, about 40 minutes of one core
    python -m benchmarks.tasks sparse letters start  # some of it

The corpora are looked for in the folder STRUCTLEARN_DATA, by default ../shared/data. Settings were chosen on training
data held out (every tenth sentence or word); test data are scored by what stands here alone. Seconds are of the
process, so that other work on the machine does not count. Results are kept in results/tasks.json, one entry a
measurement, and results/tasks.md is written from it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from benchmarks.crfsuite import chunk_f1, crfsuite
from benchmarks.study import RESULTS
from benchmarks.task_page import page
from structlearn import encoders, tasks
from structlearn.commands.predict import predictions
from structlearn.commands.solve import evaluate
from structlearn.data import modules
from structlearn.data.codecs import TaggingCodec
from structlearn.data.conll import read_conll2000
from structlearn.solvers.sparse_steps import plan

DATA = Path(os.environ.get("STRUCTLEARN_DATA", "../shared/data"))
Entry = dict[str, Any]


def sparse() -> Entry:
    """The linear tagger beside CRFsuite, turn by turn in one run, same sentences."""
    train = read_conll2000(DATA / "conll2000" / "train.txt.gz")
    test = read_conll2000(DATA / "conll2000" / "test.txt.gz")
    entry: Entry = {}
    began = time.process_time()
    codec = TaggingCodec.fit(train, sparse=True)
    data = modules.base.Encoded(codec, train)
    entry["features_seconds"] = time.process_time() - began
    ours, theirs = [], []
    for _ in range(2):
        task, seconds = _train_sparse(codec, data)
        ours.append(seconds)
        theirs.append(crfsuite(train, test, max_iterations=30))
        print(ours[-1], theirs[-1], flush=True)
    entry["train_seconds"] = min(ours)
    entry |= min(theirs, key=lambda run: run["crfsuite_seconds"])
    entry["f1"] = 100 * chunk_f1([row["output"] for row in predictions(task, test)], test)
    return entry | _tagging_speeds(task, codec, test)


def _train_sparse(codec: TaggingCodec, data: modules.base.Encoded) -> tuple[tasks.SparseTagging, float]:
    """A tagger, and the seconds of training it."""
    task = tasks.SparseTagging(codec, step=0.1)
    epochs, size = 3, 16
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor(data.lengths)
    began = time.process_time()
    groups = (lengths + 6 * torch.rand(len(lengths), generator=generator)).argsort().split(size)
    batches = [codec.collate([data.items[i] for i in rows.tolist()]) for rows in groups]
    ready = [(plan(b.x.features, b.lengths), b.gold) for b in batches]
    done, total = 0, epochs * len(ready)
    for _ in range(epochs):
        for i in torch.randperm(len(ready), generator=generator).tolist():
            task.steps(*ready[i], scale=1 - done / total)
            done += 1
    return task.eval(), time.process_time() - began


def _tagging_speeds(task: Any, codec: TaggingCodec, test: Sequence[Any]) -> Entry:
    """Tokens a second of the process, from feature numbers to tags and from the text of columns to tags."""
    text = "\n".join("".join(f"{w} {p}\n" for w, p in zip(s.words, s.pos, strict=True)) for s in test)
    tokens = sum(len(s.words) for s in test)
    speeds: dict[str, list[float]] = {"features_tokens_per_second": [], "text_tokens_per_second": []}
    for _ in range(5):
        began = time.process_time()
        parsed = codec.parse(text, "conll")
        predictions(task, parsed, batch_size=128)
        speeds["text_tokens_per_second"].append(tokens / (time.process_time() - began))
        data = modules.base.Encoded(codec, parsed)
        order = torch.tensor(data.lengths).argsort().split(128)
        batches = [codec.collate([data.items[i] for i in rows.tolist()]) for rows in order]
        began = time.process_time()
        with torch.no_grad():
            found = [task(batch).argmax().tolist() for batch in batches]
            [[codec.tags[c] for c in row if c >= 0] for rows in found for row in rows]
        speeds["features_tokens_per_second"].append(tokens / (time.process_time() - began))
    return {name: sorted(values)[2] for name, values in speeds.items()}


def crfsuite_to_its_end() -> Entry:
    """CRFsuite with no limit of passes but its own."""
    files = (DATA / "conll2000" / f"{name}.txt.gz" for name in ("train", "test"))
    return crfsuite(*(read_conll2000(path) for path in files))


def bilstm(loss: Any, *, held_out: bool = False) -> Entry:
    """BiLSTM over words and letters, no pretrained vectors.

    Trained on all training sentences and scored on test, or, with every tenth sentence held out, scored on those: that
    is how settings are chosen.
    """
    pl.seed_everything(0, verbose=False)
    train, test = (DATA / "conll2000" / f"{name}.txt.gz" for name in ("train", "test"))
    # With a file for validation nothing is held out; training does not look at it.
    data = modules.TaggingData(train, None if held_out else train, None if held_out else test, batch_size=32)
    words = encoders.WordsAndLetters(100, 30, 100, dropout=0.5, unknown=0.02)
    epochs = 20
    task = tasks.Tagging(
        data.codec,
        encoders.BiLSTM(words, hidden=256, dropout=0.5),
        loss=loss,
        optimizer=lambda p: torch.optim.Adam(p, lr=3e-3),
        schedule=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 - epoch / epochs),
    )
    average = pl.callbacks.EMAWeightAveraging(decay=0.998)
    trainer = _trainer(max_epochs=epochs, gradient_clip_val=5.0, callbacks=[average], limit_val_batches=0)
    began, cpu = time.perf_counter(), time.process_time()
    trainer.fit(task, data)
    entry = {"train_seconds": time.process_time() - cpu, "wall_seconds": time.perf_counter() - began, "epochs": epochs}
    return entry | {"f1": 100 * evaluate(task, data)["f1"]}  # without a test file, of what was held out


def letters(kind: str) -> Entry:
    """Letters of fold 0, tested on the other folds."""
    pl.seed_everything(0, verbose=False)
    data = modules.LetterData(DATA / "ocr" / "letter.data.gz", batch_size=16)
    linear = kind == "linear"
    encoder = encoders.Dense(128) if linear else encoders.LetterCNN(channels=32, features=128, dropout=0.5)
    epochs, step, decay = (20, 0.02, 0.2) if linear else (30, 0.002, 0.01)
    task = tasks.Tagging(
        data.codec,
        encoder,
        loss="crf",
        optimizer=lambda p: torch.optim.AdamW(p, lr=step, weight_decay=decay),
        schedule=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1 - epoch / epochs),
    )
    trainer = _trainer(max_epochs=epochs, check_val_every_n_epoch=epochs)
    cpu = time.process_time()
    trainer.fit(task, data)
    entry = {"train_seconds": time.process_time() - cpu, "epochs": epochs}
    entry["held_out_error"] = float(trainer.callback_metrics["val/error"])
    return entry | {"error": evaluate(task, data)["error"]}


def share() -> Entry:
    """Share of the loss in a training step with a BiLSTM of 256, forward and backward of the loss alone."""
    data = modules.TaggingData(DATA / "conll2000" / "train.txt.gz", batch_size=32, examples=1200)
    entry: Entry = {}
    for loss in ("crf", "hinge-margin", "hinge-slack"):
        torch.manual_seed(0)
        task = tasks.Tagging(data.codec, encoders.BiLSTM(encoders.WordsAndLetters(), hidden=256), loss=loss)
        optimizer = torch.optim.Adam(task.parameters())
        alone = whole = 0.0
        for batch in data.train_dataloader():
            with torch.no_grad():
                structure = task(batch)
            leaves = {name: x.detach().requires_grad_() for name, x in structure.potentials.items()}
            began = time.process_time()
            task.loss(structure.replace(**leaves), batch.gold).backward()
            alone += time.process_time() - began
            began = time.process_time()
            optimizer.zero_grad()
            task.objective(batch).backward()
            optimizer.step()
            whole += time.process_time() - began
        entry[loss] = alone / whole
    return entry


def start() -> Entry:
    """Seconds of ``--help`` and ``doctor``, the least of five: CPU, and wall, which other work lengthens."""
    entry: Entry = {}
    for name in ("--help", "doctor"):
        runs = []
        for _ in range(5):
            began, before = time.perf_counter(), os.times()
            subprocess.run([sys.executable, "-m", "structlearn.cli", name], check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            runs.append((cpu, time.perf_counter() - began))
        entry[name] = {"cpu": min(cpu for cpu, _ in runs), "wall": min(wall for _, wall in runs)}
    return entry


def _trainer(**options: Any) -> pl.Trainer:
    quiet = {"enable_model_summary": False, "logger": False, "enable_checkpointing": False}
    return pl.Trainer(accelerator="cpu", num_sanity_val_steps=0, **quiet, **options)


PARTS: dict[str, Callable[[], Entry]] = {
    "start": start,
    "sparse": sparse,
    "crfsuite to its end": crfsuite_to_its_end,
    "share": share,
    "letters linear": lambda: letters("linear"),
    "letters neural": lambda: letters("neural"),
    **{f"bilstm {loss}": (lambda loss=loss: bilstm(loss)) for loss in ("crf", "hinge-margin", "hinge-slack")},
    "held out": lambda: bilstm("crf", held_out=True),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"words that pick some of: {', '.join(PARTS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / "tasks.json"
    for name, measure in PARTS.items():
        if options.parts and not any(part in name for part in options.parts):
            continue
        entry = {**measure(), "threads": options.threads, "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        print(name, entry, flush=True)
        found = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**found, name: entry}, indent=1, sort_keys=True) + "\n")
        (options.results / "tasks.md").write_text(page(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
