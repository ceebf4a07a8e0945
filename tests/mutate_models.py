"""Damaged and hostile model folders and checkpoints: each one loads or ends in an error of structlearn, quickly.

    python tests/mutate_models.py [mutants] [seed]

Mutants of saved models: bytes, lengths, other kinds of files, the structure of the description and of the codec, the
names, shapes and types of weights; most with checksums that fit. The network, other programs and files outside the
folder are watched.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import yaml
from mutation import Report, changed, damaged
from safetensors.torch import load_file, save_file

import structlearn as sl
from structlearn import encoders, tasks
from structlearn.data import modules
from structlearn.data.codecs import ClassificationCodec
from structlearn.data.vocabulary import Vocabulary
from structlearn.registry import PARTS

FORBIDDEN = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "os.fork", "ctypes.")

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 7, 10**9, 2**31, 2**63, 10**40, 0.5, 1e308, float("nan"), float("-inf")),
    *("", "x", "crf", "../..", "/etc/passwd", "/dev/zero", "a" * 70_000, "\0", "https://localhost/x"),
    *([], {}, [[]], [1, 2], ["O", "B-X"], {"a": 1}, {"tensor": "none"}, {"tensor": 3}, {"files": "../../etc"}),
    *({"files": "/etc"}, {"files": 1}, {"class_path": "os.system", "init_args": {"command": "true"}}),
    {"class_path": "structlearn.commands.training.LightningCLI", "init_args": {}},
    {"class_path": "structlearn.tasks.base.pl.Trainer", "init_args": {}},
    {"class_path": "planted.Module", "init_args": {}},
    {"class_path": "torch.nn.Linear", "init_args": {"in_features": 10**9, "out_features": 10**9}},
    {"class_path": "structlearn.encoders.Dense", "init_args": {"features": 10**9}},
    {"class_path": "structlearn.encoders.MLP", "init_args": {"features": 9, "hidden": [10**5] * 5}},
    {"class_path": "structlearn.encoders.HuggingFace", "init_args": {"folder": "/etc"}},
    {"class_path": "structlearn.encoders.HuggingFace", "init_args": {"config": {"model_type": "bert"}}},
    *({"class_path": 3, "init_args": {}}, {"class_path": "torch.nn.ReLU", "init_args": []}),
    *({"class_path": f"{m}.{n}", "init_args": {}} for m, names in PARTS.items() for n in names),
)
TEXTS = (
    "a: &a [x]\nb: [*a, *a]\n",
    "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10) if i else 'x'}]\n" for i in range(30)),
    "[" * 100_000,
    "{a: " * 1000,
    "!!python/object/apply:os.system ['true']\n",
    "!!binary aGVsbG8=\n",
    "? [a, b]\n: c\n",
    "version: 1\n",
    "version: 0.1.0\ntask: []\n",
    "2001-01-01\n",
    "\t",
    "a: b: c\n",
    "x: 0x" + "f" * 100_000 + "\n",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
)


def models(folder: Path) -> list[Path]:
    """Small models of several kinds, as folders and as a checkpoint."""
    torch.manual_seed(0)
    data = modules.TaggingData(examples=8)
    words = encoders.WordsAndLetters(4, 3, 3)
    sparse = modules.TaggingData(examples=8, sparse=True)
    trees = modules.ParsingData(examples=8, kind="rules")
    taxonomy = sl.Taxonomy([(), 0, 0, 1])
    vocabulary = Vocabulary(["a", "b"])
    texts = ClassificationCodec(["a", "b"], vocabulary, vocabulary, taxonomy)
    made = {
        "tagging": tasks.Tagging(data.codec, encoders.BiLSTM(words, hidden=6), loss=sl.CRFLoss(), valid_only=True),
        "constrained": tasks.Constrained(data.codec, "soft(at_most(1, 'B-NP'), 2.0)", words, mode="ibt"),
        "sparse": tasks.SearchTagging(sparse.codec, beam=2),
        "rules": tasks.Parsing(trees.codec),
        "classes": tasks.Classification(texts, encoders.BagOfWords(4), cost=sl.costs.TreeCost(taxonomy)),
    }
    paths = [sl.save(task, folder / name) for name, task in made.items()]
    checkpoint: dict[str, Any] = {"state_dict": made["tagging"].state_dict()}
    made["tagging"].on_save_checkpoint(checkpoint)
    torch.save(checkpoint, folder / "tagging.ckpt")
    return [*paths, folder / "tagging.ckpt"]


class Plain(yaml.Dumper):
    """Writes what occurs twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class Model:
    """A copy of a saved model, to be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = yaml.safe_load((folder / "model.yaml").read_text())

    def path(self, name: str) -> Path:
        return self.folder / ("model.yaml" if name == "model.yaml" else self.index[name])

    def seal(self) -> None:
        """Sizes and checksums that fit the files, as far as there are such files."""
        for name in ("codec", "weights"):
            path = self.path(name)
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                entry = {"bytes": len(content), "sha256": sha256(content).hexdigest()}
                self.index["files"][self.index[name]] = entry
        self.write()

    def write(self) -> None:
        self.path("model.yaml").write_text(yaml.dump(self.index, Dumper=Plain, sort_keys=False))


def mutate_bytes(draw: random.Random, model: Model) -> None:
    path = model.path(draw.choice(("model.yaml", "codec", "weights")))
    path.write_bytes(damaged(draw, path.read_bytes()))
    if draw.random() < 0.7 and path.name != "model.yaml":
        model.seal()


def mutate_description(draw: random.Random, model: Model) -> None:
    if draw.random() < 0.5:
        model.index["task"] = changed(draw, model.index["task"], VALUES)
    else:
        model.index = changed(draw, model.index, VALUES)
    model.write()


def mutate_text(draw: random.Random, model: Model) -> None:
    text, path = draw.choice(TEXTS), model.path("model.yaml")
    path.write_text(text if draw.random() < 0.5 else path.read_text() + text, encoding="utf-8")


def mutate_codec(draw: random.Random, model: Model) -> None:
    path = model.path("codec")
    codec = changed(draw, json.loads(path.read_text(encoding="utf-8")), VALUES)
    text = json.dumps(codec) if draw.random() < 0.9 else draw.choice(("[" * 10**5, "1" * 5000, "NaN", '"\\ud800"'))
    path.write_text(text)
    model.seal()


def mutate_weights(draw: random.Random, model: Model) -> None:
    path = model.path("weights")
    tensors = {name: x.clone() for name, x in load_file(path).items()}
    name = draw.choice(sorted(tensors))
    x = tensors[name]
    new: list[Callable[[], Any]] = [
        lambda: x.double(),
        lambda: x.half(),
        lambda: x.long(),
        lambda: x.bool(),
        lambda: x.to(torch.complex64),
        lambda: x[..., None].contiguous(),
        lambda: x.flatten()[: x.numel() // 2].clone(),
        lambda: torch.zeros(0),
        lambda: torch.full_like(x, -1),
        lambda: torch.full_like(x, 100),
        lambda: torch.cat([x, x]) if x.dim() else x[None],
    ]
    way = draw.randrange(len(new) + 2)
    if way == len(new):
        del tensors[name]
    elif way > len(new):
        tensors[draw.choice(("weights.more", "codec.9", "x" * 5000))] = tensors.pop(name)
    else:
        tensors[name] = new[way]()
    save_file(tensors, path)
    model.seal()


def mutate_file(draw: random.Random, model: Model) -> None:
    """Something else in place of a file."""
    path = model.path(draw.choice(("model.yaml", "codec", "weights")))
    beside = path.with_name("beside")
    path.rename(beside)
    way = draw.randrange(8)
    if way == 0:
        path.symlink_to(draw.choice(("beside", "/dev/zero", "/etc/passwd", "nowhere", path.name)))
    elif way == 1:
        os.mkfifo(path)
    elif way == 2:
        path.mkdir()
    elif way == 3:
        os.truncate(beside, draw.choice((2**31, 2**37, 2**42)))
        beside.rename(path)
        if draw.random() < 0.5 and path.name != "model.yaml":
            model.index["files"][path.name]["bytes"] = path.stat().st_size
            model.write()
    elif way == 4:
        path.write_bytes(b"")
    elif way == 5:
        torch.save({"a": torch.zeros(3)}, path)
        if path.name != "model.yaml":
            model.seal()


def mutate_checkpoint(draw: random.Random, path: Path) -> None:
    way = draw.randrange(5)
    if way == 0:
        path.write_bytes(damaged(draw, path.read_bytes()))
    elif way == 1:  # members that unpack to more than they are
        with zipfile.ZipFile(path) as old:
            members = {info.filename: old.read(info) for info in old.infolist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content if draw.random() < 0.9 else b"\0" * 10**7)
    elif way == 2:
        held = torch.load(path, weights_only=True)
        held["structlearn"] = changed(draw, held["structlearn"], VALUES)
        torch.save(held, path)
    elif way == 3:
        held = torch.load(path, weights_only=True)
        name = draw.choice(sorted(held["state_dict"]))
        x = held["state_dict"][name]
        new = (3, "x", x.double(), x[..., None], x.to_sparse(), x.to("meta"), torch.zeros(1).expand(2**20, 2**20))
        held["state_dict"][name] = draw.choice(new)
        torch.save(held, path)
    else:
        nested: Any = []
        for _ in range(draw.choice((30, 100))):
            nested = [nested] * 3
        torch.save({"structlearn": {"version": "0.1.0", "task": {"a": nested}}, "state_dict": {}}, path)


KINDS = (mutate_bytes, mutate_description, mutate_description, mutate_text, mutate_codec, mutate_weights, mutate_file)


def watch(folder: Path) -> list[str]:
    """Notes what no model may do."""
    seen: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(FORBIDDEN) and event != "ctypes.dlsym":
            seen.append(f"{event} {args!r}"[:200])
        if event == "open" and isinstance(args[0], str) and args[0].startswith(("/etc/pass", "/dev/zero")):
            seen.append(f"{event} {args!r}")

    sys.addaudithook(hook)
    return seen


def run(mutants: int, seed: int = 0, folder: Path | None = None) -> Report:
    """How the mutants ended, and what should not have been."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp()) if folder is None else folder
    before = Path.cwd()
    (folder / "planted.py").write_text("raise SystemExit('a file of the working folder was imported')\n")
    os.chdir(folder)
    sys.path.insert(0, "")
    report = Report()
    try:
        whole = models(folder / "whole")
        for path in whole:
            sl.load(path)
        seen = watch(folder)
        for number in range(mutants):
            draw = random.Random(seed * 1_000_003 + number)
            original = draw.choice(whole)
            place = folder / "place"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            path = place / original.name
            if original.is_dir():
                shutil.copytree(original, path)
                kind = draw.choice(KINDS)
                kind(draw, Model(path))
            else:
                shutil.copy(original, path)
                kind = mutate_checkpoint
                kind(draw, path)
            seen.clear()
            report.attempt(f"{number} ({original.name})", kind.__name__, lambda path=path: sl.load(path), path)
            if seen:
                report.wrong.append(f"{number} ({kind.__name__}): {seen}")
    finally:
        os.chdir(before)
        sys.path.remove("")
        shutil.rmtree(folder, ignore_errors=True)
    return report


if __name__ == "__main__":
    count, start = [*map(int, sys.argv[1:3]), *(2000, 0)[len(sys.argv) - 1 :]]
    sys.exit(run(count, start).printed())
