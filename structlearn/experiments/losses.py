"""One encoder, seven losses, three tasks."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from structlearn.costs import Hamming
from structlearn.data.conll import Sentence, read_columns
from structlearn.data.ocr import ocr_words
from structlearn.experiments.base import Experiment, Mean, Report, Settings, Table, progress
from structlearn.experiments.gradient import Batch, error, read_letters, train
from structlearn.experiments.ner import generated
from structlearn.experiments.tokens import described
from structlearn.features import ChainMap
from structlearn.losses import CRFLoss, PerceptronLoss, SoftmaxMargin, StructuredHinge
from structlearn.structures.base import PAD

HIDDEN, BUCKETS = 64, 4096
RATES = (0.003, 0.01, 0.03)
TRAIN, TEST, EPOCHS, SEEDS = 200, 400, 8, 5
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "CRF": CRFLoss,
    "softmax-margin": lambda: SoftmaxMargin(Hamming()),
    "hinge, margin": lambda: StructuredHinge(Hamming()),
    "hinge, slack": lambda: StructuredHinge(Hamming(), rescaling="slack"),
    "hinge, slack, squared": lambda: StructuredHinge(Hamming(), rescaling="slack", squared=True),
    "hinge, slack, recursion": lambda: StructuredHinge(Hamming(), rescaling="slack", inference="recursion"),
    "perceptron": PerceptronLoss,
}


class BagEncoder(nn.Module):
    """tanh of the sum of the embeddings of a token's features, (B, N, J) to (B, N, HIDDEN)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, HIDDEN)
        nn.init.normal_(self.table.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        """The encoded tokens."""
        return self.table(x).sum(-2).tanh()


def model_of(data: Batch, labels: int) -> ChainMap:
    """The same head and width for images and for words."""
    encoder: nn.Module = (
        nn.Sequential(nn.Linear(128, HIDDEN), nn.Tanh()) if data.x.is_floating_point() else BagEncoder()
    )
    return ChainMap(HIDDEN, labels, encoder=encoder)


def text(sentences: Sequence[Sentence]) -> tuple[Batch, int]:
    """Hashed features of every token."""
    names = sorted({tag for s in sentences for tag in s.chunks})
    number = {name: i for i, name in enumerate(names)}
    rows = [
        torch.tensor([[zlib.crc32(f.encode()) % BUCKETS for f in described(s.words, t)] for t in range(len(s.words))])
        for s in sentences
    ]
    labels = pad_sequence([torch.tensor([number[t] for t in s.chunks]) for s in sentences], True, PAD)
    lengths = torch.tensor([len(s.words) for s in sentences])
    return Batch(pad_sequence(rows, True), labels, lengths), len(names)


def tasks(settings: Settings, count: int) -> dict[str, tuple[Batch, int]]:
    """Each task's first examples are for training, the others for testing."""
    draw = random.Random(settings.seed)
    if settings.smoke:
        words = ocr_words(count, seed=settings.seed)
        return {
            "letters": (Batch(*words), 26),
            "names": text(generated(settings.seed, count)),
            "other names": text(generated(settings.seed + 1, count)),
        }
    letters, _ = read_letters(settings.corpus("ocr"))
    chosen = torch.tensor(draw.sample(range(len(letters.lengths)), count))
    found = {"letters": (letters.take(chosen), 26)}
    for name, path in (("chunks", "conll2000/train.txt.gz"), ("names", "conll2002/esp.train.gz")):
        folder, file = path.split("/")
        everything = [Sentence(*columns) for columns in read_columns(settings.corpus(folder) / file, 3)]
        found[name] = text(draw.sample([s for s in everything if 2 <= len(s.words) <= 40], count))
    return found


def run(settings: Settings) -> Report:
    """Every task and loss: the rate by held-out training examples, then every seed."""
    first, rest, epochs, seeds = (20, 20, 1, 2) if settings.smoke else (TRAIN, TEST, EPOCHS, SEEDS)
    rates = RATES[1:2] if settings.smoke else RATES
    found: dict[str, list[Any]] = {name: [name] for name in LOSSES}
    spent = dict.fromkeys(LOSSES, 0.0)
    data = tasks(settings, first + rest)
    for everything, labels in progress(data.values(), "tasks", len(data)):
        teach, test = everything.split(first)

        def fitted(name: str, rate: float, seed: int, part: Batch, labels: int = labels) -> ChainMap:
            torch.manual_seed(seed)
            model = model_of(part, labels)
            train(model, LOSSES[name](), part, epochs=epochs, rate=rate, size=10, seed=seed)
            return model

        inner, held = teach.split(3 * first // 4)
        for name in LOSSES:
            tried = {rate: error(fitted(name, rate, 99, inner), held) for rate in rates} if len(rates) > 1 else {}
            rate = min(tried, key=lambda r: tried[r]) if tried else rates[0]
            began = time.process_time()
            errors = [error(fitted(name, rate, settings.seed + s, teach), test) for s in range(seeds)]
            spent[name] += (time.process_time() - began) / (seeds * len(data))
            found[name] += [Mean.of(errors), f"{rate:g}"]
    columns = ["loss", *[column for task in data for column in (f"{task}, error %", "rate")], "CPU s a run"]
    rows = [[*found[name], spent[name]] for name in LOSSES]
    note = f"{first} training and {rest} test examples a task, {seeds} seeds of start and order."
    return Report([Table("Losses on one encoder", columns, rows, None, note)], notes(settings))


def notes(settings: Settings) -> list[str]:
    """What the figures are of."""
    if settings.smoke:
        return ["generated words and sentences stand in for everything"]
    return [
        "letters: OCR words; chunks: CoNLL-2000; names: Spanish CoNLL-2002; an encoder of one layer of 64 under a "
        f"first-order chain, Adam over {EPOCHS} passes, rates of {', '.join(f'{r:g}' for r in RATES)} by a quarter of "
        "the training examples held out; ± over seeds only, the examples being the same",
        "no paper has this table",
    ]


EXPERIMENT = Experiment(
    name="losses",
    about="likelihood, softmax-margin, hinges and perceptron on one encoder and three tasks",
    paper="beyond the papers",
    corpora=("ocr", "conll2000", "conll2002"),
    minutes=4,
    run=run,
)
