"""Damaged and hostile text files: each one is read or ends in an error of structlearn, quickly and in little memory.

    python tests/mutate_texts.py [mutants per format] [seed] [part of a format's name]

Mutants of small files of every format that structlearn reads: bytes, lines, fields, numbers, the structure of JSON,
encodings, gzip and the kind of file. What a reader gives goes on into batches, and what predict reads into outputs.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mutation import Report, changed, damaged
from task_cases import CASES

from structlearn.commands.predict import predictions, rendered
from structlearn.commands.training import main
from structlearn.data import conll, modules, taxonomies, treebank
from structlearn.data.propbank import read_propbank
from structlearn.data.role_features import RoleCorpus
from structlearn.data.synthetic import synthetic_chunks, synthetic_trees
from structlearn.errors import StructLearnError
from structlearn.reranking.lists import row_of
from structlearn.storage.text import read_text
from structlearn.tasks import Task

PROPBANK = """# wsj_0001 0
the\tDT\t(TOP(S(NP*\t-\t-\t(ARG0*\t*
woman\tNN\t*)\t-\t-\t*)\t*
has\tVBZ\t(VP*\t-\t-\t*\t*
seen\tVBN\t(VP*\tsee\tsee.01\t(V*)\t*
left\tVBN\t*\tleave\tleave.01\t*\t(V*)
at\tIN\t(PP*\t-\t-\t*\t(ARGM-LOC*
sea\tNN\t(NP*)))\t-\t-\t*\t*)
.\t.\t*)))\t-\t-\t*\t*
"""
TAXONOMY = "node\tparent\n" + "".join(f"n{i}\t{f'n{(i - 1) // 2}' if i else 'ROOT'}\tx\n" for i in range(9))
CONFIG = """trainer:
  max_epochs: 1
  logger: false
data:
  class_path: structlearn.data.modules.TaggingData
  init_args: {examples: 8, batch_size: 4, scheme: BIO}
model:
  class_path: structlearn.tasks.Tagging
  init_args:
    loss: crf
    encoder: {class_path: structlearn.encoders.WordsAndLetters, init_args: {words: 4, letters: 3, filters: 3}}
"""
FIELDS = (
    *(
        "",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "-1",
        "9" * 5000,
        "0x10",
        "\u0663",
        "\uff11",
        "1_0",
        "3.5",
        "\0",
        "(",
        ")",
        "*",
    ),
    *("()", "(*)", ")" * 50, "(" * 50, "\u00e9", "\u2028", "\x85", "\x1c", "\ufeff", "x" * 70_000, ">", "-", "O", "B-"),
    *("I-X", "#", "G", "{}", "/", "TOP", "NONE", "@", "a+b", "^", "~", "\\", "\ud800", "\U0001f600", ">a", "ROOT", "_"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**9, 2**63, 10**40, 0.5, 1e308, float("nan"), float("inf"), "", " ", "x", "a b", "\0", "(S"),
    *("(S (NN a))", "\ud800", "\u2028", "x" * 70_000, "-" * 9, [], {}, [[]], [1, 2], ["a"], [None], [[0.5] * 128], ""),
    *({"a": 1}, ["a", "b", "c"], ["", ""], [["a"]], ["\udfff"], [10**400], {"tree": "(S (NN a))", "log_prob": 1}),
)
# Rows of JSON that no writer makes.
ROWS = ("[" * 100_000, '{"a":' * 2000, '"\\ud800"', "NaN", "1" * 5000, "null", "{}", "[]", '{"words": ["\\ud800"]}')
SEPARATORS = ("\t", " ", ",")


class Format(NamedTuple):
    """A whole file, the ending of its name, and what reads a path."""

    content: bytes
    ending: str
    read: Callable[[Path], object]


def formats(part: str = "") -> dict[str, Format]:
    """Every format whose name holds ``part``, with models for those that predict reads."""
    torch.manual_seed(0)
    columns = "".join("".join(" ".join(row) + "\n" for row in zip(*s, strict=True)) + "\n" for s in synthetic_chunks(6))
    trees = [tree.bracket() for tree in synthetic_trees(6)]
    lists = modules.RerankingData(k=3).generate(4, 0)
    jsonl = "".join(json.dumps(row_of(item)) + "\n" for item in lists)
    blocks = "".join(
        f"#\td\t{i}\nG\t{item.gold}\n"
        + "".join(f"{p}\t{tree}\n" for p, tree in zip(item.log_probs, item.candidates, strict=True))
        + "\n"
        for i, item in enumerate(lists)
    )
    pairs = modules.AligningData(examples=4, length=12).generate(3, 0)
    aligning = CASES["aligning"].data(examples=4, length=12)
    fasta = "\n".join(aligning.codec.render(pair, pair.path, "fasta") for pair in pairs) + "\n"
    words = modules.LetterData(examples=8).generate(3, 0)
    letters = "".join(
        "\t".join(
            [
                *(str(i), "abc"[i % 3], "-1" if i == len(word.labels) - 1 else str(i + 1), "1", str(i), "0"),
                *(str(round(p)) for p in image),
            ]
        )
        + "\n"
        for word in words
        for i, image in enumerate(word.images.tolist())
    )
    images = "".join(json.dumps({"images": word.images.round().tolist()}) + "\n" for word in words)
    texts = "".join(f'{{"text": "topic word{i} a", "label": "a/b{i % 2}"}}\n' for i in range(6))
    sentences = "".join(json.dumps({"words": s.words, "pos": s.pos}) + "\n" for s in synthetic_chunks(4))
    plain = "".join(" ".join(s.words) + "\n" for s in synthetic_chunks(4))
    tsv = "".join(f"doc\t{i}\t{tree}\n" for i, tree in enumerate(trees))
    a3m = ">a\nACDEF\n>b\nAC-EF\n>c\nA--EaaF\n"
    sequences = "".join(json.dumps({"x": pair.x, "y": pair.y}) + "\n" for pair in pairs)
    made = {
        "columns": (columns, ".txt", lambda path: list(conll.read_columns(path, 3))),
        "chunks": (columns, ".txt", conll.read_conll2000),
        "tagging data": (columns, ".txt", _data(modules.TaggingData)),
        "sparse tagging data": (columns, ".txt", _data(modules.TaggingData, sparse=True)),
        "joint data": (columns, ".txt", _data(modules.JointData)),
        "segmentation data": (columns, ".txt", _data(modules.SegmentationData)),
        "letter data": (letters, ".data", _data(modules.LetterData)),
        "list data": (jsonl, ".jsonl", _data(modules.RerankingData)),
        "blocks data": (blocks, ".nbest", _data(modules.RerankingData)),
        "aligning data": (fasta, ".fa", _data(modules.AligningData)),
        "a3m data": (a3m, ".a3m", _data(modules.AligningData)),
        "text data": (texts, ".jsonl", _data(modules.ClassificationData)),
        "taxonomy": (TAXONOMY, ".tsv", taxonomies.read_taxonomy),
        "propbank": (PROPBANK * 2, ".conll", lambda path: RoleCorpus(read_propbank(path))),
        "treebank": ("\n".join(trees), ".mrg", lambda path: treebank.extract_grammar(treebank.read_treebank(path))),
        "treebank table": (tsv, ".tsv", treebank.read_treebank),
        "parsing data": ("\n".join(trees), ".mrg", _data(modules.ParsingData)),
        "rules data": (tsv, ".tsv", _data(modules.ParsingData, kind="rules")),
        "configuration": (CONFIG, ".yaml", _configured),
    }
    inputs = {
        "tagging": {"conll": columns, "text": plain, "jsonl": sentences},
        "sparse tagging": {"conll": columns, "jsonl": sentences},
        "search segmentation": {"conll": columns, "text": plain, "jsonl": sentences},
        "search joint": {"conll": columns, "text": plain, "jsonl": sentences},
        "search parsing": {"jsonl": sentences},
        "constrained": {"jsonl": sentences},
        "segmentation": {"jsonl": sentences},
        "letters": {"jsonl": images},
        "classification": {"jsonl": texts, "text": plain},
        "parsing rules": {"brackets": "\n".join(trees), "text": plain, "jsonl": sentences},
        "parsing spans": {"brackets": "\n".join(trees), "text": plain, "jsonl": sentences},
        "aligning": {"fasta": fasta, "jsonl": sequences},
        "reranking": {"jsonl": jsonl},
    }
    for name, files in inputs.items():
        if wanted := [form for form in files if part in f"predict {name} {form}"]:
            case = CASES[name]
            task = case.task(case.data(examples=8).codec).eval()
            task.confidences = name != "search joint"
            for form in wanted:
                made[f"predict {name} {form}"] = (files[form], f".{form}", _predicts(task, form))
    return {name: Format(text.encode(), ending, read) for name, (text, ending, read) in made.items() if part in name}


def _data(module: type[modules.TaskData], **options: Any) -> Callable[[Path], object]:
    """Reads training data into batches."""

    def read(path: Path) -> object:
        data = module(path, **options)
        return [data.loader(stage).dataset[rows] for stage in ("train",) for rows in data.loader(stage).sampler]  # type: ignore[union-attr]

    return read


def _predicts(task: Task, form: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        examples = task.codec.parse(read_text(path), form, str(path))
        found = predictions(task, examples)
        return ["\n".join(rendered(task, examples, found, to)).encode() for to in task.codec.formats]

    return read


def _configured(path: Path) -> object:
    """The configuration as printed, or the message with which the command ends."""
    try:
        with redirect_stdout(StringIO()) as printed:
            main(["fit", f"--config={path}", "--print_config"])
    except SystemExit as end:
        if path.stem == "whole" and end.code:
            raise
        return printed.getvalue() or end.code
    return printed.getvalue()


def mutate_bytes(draw: random.Random, content: bytes) -> bytes:
    return damaged(draw, content)


def mutate_lines(draw: random.Random, content: bytes) -> bytes:
    lines = content.split(b"\n")
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    way = draw.randrange(5)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines.insert(other, lines[at])
    elif way == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif way == 3:
        lines[at : at + 2] = [b"".join(lines[at : at + 2])]
    else:
        lines.insert(at, draw.choice((b"", b" \t ", *(row.encode() for row in ROWS))))
    return b"\n".join(lines)


def mutate_fields(draw: random.Random, content: bytes) -> bytes:
    lines = content.decode().split("\n")
    at, separator = draw.randrange(len(lines)), draw.choice(SEPARATORS)
    fields = lines[at].split(separator)
    one, other, way = draw.randrange(len(fields)), draw.randrange(len(fields)), draw.randrange(4)
    if way == 0:
        del fields[one]
    elif way == 1:
        fields[one], fields[other] = fields[other], fields[one]
    elif way == 2:
        fields.insert(other, fields[one])
    else:
        fields[one] = draw.choice(FIELDS)
    lines[at] = separator.join(fields)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def mutate_json(draw: random.Random, content: bytes) -> bytes:
    """A row of JSON with another structure; other formats get another field."""
    lines = content.decode().split("\n")
    at = draw.randrange(len(lines))
    if not lines[at].startswith("{"):
        return mutate_fields(draw, content)
    lines[at] = json.dumps(changed(draw, json.loads(lines[at]), VALUES))
    return "\n".join(lines).encode()


def mutate_whole(draw: random.Random, content: bytes) -> bytes:
    text = content.decode()
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: b"\n" * draw.choice((1, 100_000)),
        lambda: b"\xef\xbb\xbf" + content,
        lambda: text.replace("\n", "\r\n").encode(),
        lambda: text.replace("\n", "\r").encode(),
        lambda: text.encode("utf-16"),
        lambda: text.replace("a", "\u00e9").encode("latin-1"),
        lambda: content.replace(b"a", b"\0"),
        lambda: content.replace(b"\n", b""),
        lambda: content.replace(b"\n", b" "),
        lambda: content.replace(b" ", b"\t"),
        lambda: content.replace(b"\t", b" "),
        lambda: content + b"x" * (17 << 20),
        lambda: b"(" * 100_000,
        lambda: b"(a " * 20_000 + b"b" + b")" * 20_000,
        lambda: b"a" * 100_000,
        lambda: b"\x1f\x8b" + content,
    )
    return draw.choice(ways)()


def mutate_gzip(draw: random.Random, content: bytes) -> bytes:
    """Bytes for a name that ends in .gz."""
    way = draw.randrange(6)
    if way == 0:
        return _bomb(draw.choice((b"\0", content)))
    if way == 1:
        return gzip.compress(content) + gzip.compress(content)
    if way == 2:
        return gzip.compress(content)[: -draw.randrange(1, 20)]
    if way == 3:
        return content
    return damaged(draw, gzip.compress(content))


@lru_cache
def _bomb(content: bytes) -> bytes:
    """A small file that unpacks to much."""
    return gzip.compress(content * ((32 << 20) // len(content)), 6)


def mutate_kind(draw: random.Random, path: Path, content: bytes) -> None:
    """Something else than a file."""
    way = draw.randrange(7)
    if way == 0:
        path.symlink_to(draw.choice(("/dev/zero", "nowhere", path.name)))
    elif way == 1:
        os.mkfifo(path)
    elif way == 2:
        path.mkdir()
    elif way == 3:
        path.write_bytes(b"")
        os.truncate(path, draw.choice((2**29, 2**37, 2**42)))
    elif way == 4:
        beside = path.with_name("beside")
        beside.write_bytes(content)
        path.symlink_to(beside)


WAYS = (mutate_bytes, mutate_lines, mutate_fields, mutate_json, mutate_json, mutate_whole)


def run(mutants: int, seed: int = 0, part: str = "", folder: Path | None = None) -> Report:
    """Reads that many mutants of every format whose name holds ``part``."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp()) if folder is None else folder
    folder.mkdir(exist_ok=True)
    known = formats(part)
    report = Report()
    for name, (content, ending, read) in known.items():
        whole = folder / f"whole{ending}"
        whole.write_bytes(content)
        assert read(whole), name
        for number in range(mutants):
            draw = random.Random(f"{name} {seed} {number}")
            place = folder / "place"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            packed, kind = draw.random() < 0.1, draw.random() < 0.05
            path = place / f"mutant{ending}{'.gz' * packed}"
            if kind:
                mutate_kind(draw, path, content)
            else:
                path.write_bytes(mutate_gzip(draw, content) if packed else draw.choice(WAYS)(draw, content))
            report.attempt(str(number), name, lambda: read(path), path, (StructLearnError,))  # noqa: B023
    shutil.rmtree(folder, ignore_errors=True)
    return report


if __name__ == "__main__":
    given = [*sys.argv[1:], *("2000", "0", "")[len(sys.argv) - 1 :]]
    sys.exit(run(int(given[0]), int(given[1]), given[2]).printed())
