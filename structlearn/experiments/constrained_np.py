"""Base noun phrases by two classifiers of each word, one for openings and one for endings of phrases."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from structlearn.constraints import regular
from structlearn.constraints.training import ConstrainedLearner, Mode, Parts
from structlearn.data.chunk_features import Tokens, chunk_features
from structlearn.data.conll import Sentence, read_conll2000
from structlearn.data.role_features import places
from structlearn.data.sparse import FeatureIndex, SparseBag
from structlearn.experiments.base import Experiment, Mean, Report, Settings, Table, progress
from structlearn.experiments.constrained_runs import Counts, fit, intervals, picture
from structlearn.tags import parse_tags

LABELS = ("no", "close", "open", "both")  # 2 [opens] + [closes]
NESTED = regular("(no | both | open no* close)*")
LEAST = (30000, 3000, 300, 2)  # a feature set is those seen so often in training
BATCH = 32
_TAGS = parse_tags(["O", "I-NP", "B-NP"], "IOB1")
_NUMBER = {"O": 0, "I": 1, "B": 2}


class BracketScorer(nn.Module):
    """f_open and f_close are linear in the features; a label earns those it says: scores (B, N, 4)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bag = SparseBag(size, 2)

    def forward(self, ids: Tensor) -> Tensor:
        opens, closes = self.bag(ids).unbind(-1)
        return torch.stack([torch.zeros_like(opens), closes, opens, opens + closes], -1)


class BracketCorpus:
    """Words of all sentences in a row: ``features`` (M, J) hashes, ``gold`` (M,); ``phrases``, those of a sentence."""

    def __init__(self, sentences: list[Sentence]) -> None:
        tokens = Tokens(sentences)
        self.lengths = tokens.lengths
        self.start = self.lengths.cumsum(0) - self.lengths
        self.features = chunk_features(tokens, 1).words
        self.phrases = [
            {(a, b) for a, b, _ in _TAGS.segments([_NUMBER[tag[0]] for tag in s.chunks])} for s in sentences
        ]
        gold = torch.zeros(int(self.lengths.sum()), dtype=torch.int64)
        for begin, phrases in zip(self.start.tolist(), self.phrases, strict=True):
            for first, last in phrases:
                gold[begin + first] += 2
                gold[begin + last] += 1
        self.gold = gold

    def batches(self, ids: Tensor, generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, Parts]]:
        """Numbers of sentences and the sentences themselves, those of like length together."""
        key = self.lengths.double()
        if generator is not None:
            key = key + 5 * torch.rand(len(key), generator=generator)
        groups = key.argsort(stable=True).split(BATCH)
        order = range(len(groups)) if generator is None else torch.randperm(len(groups), generator=generator).tolist()
        for i in order:
            place, mask = places(self.start[groups[i]], self.lengths[groups[i]])
            gold = self.gold[place].masked_fill(~mask, -100)
            yield groups[i], Parts(ids[place], gold, self.lengths[groups[i]])


def phrases(labels: list[int]) -> set[tuple[int, int]]:
    """An opening and the next ending form a phrase unless another opening comes between."""
    found, first = set(), None
    for t, label in enumerate(labels):
        if label >= 2:
            first = t
        if label % 2 and first is not None:
            found.add((first, t))
            first = None
    return found


def generated(size: int, seed: int) -> list[Sentence]:
    """Sentences of determiners, adjectives and nouns in phrases, verbs and prepositions between them."""
    draw = random.Random(seed)
    found = []
    for _ in range(size):
        rows: list[tuple[str, str, str]] = []
        for _ in range(draw.randint(1, 4)):
            inside = ["DT"] * draw.randint(0, 1) + ["JJ"] * draw.randint(0, 2) + ["NN"] * draw.randint(1, 2)
            beside = bool(rows) and rows[-1][2] != "O"
            for i, tag in enumerate(inside):
                rows.append((f"{tag.lower()}{draw.randint(0, 3)}", tag, "B" if beside and not i else "I"))
            if draw.random() < 0.8:
                tag = draw.choice(("VB", "IN", "JJ"))
                rows.append((f"{tag.lower()}{draw.randint(0, 3)}", tag, "O"))
        words, pos, chunks = (list(column) for column in zip(*rows, strict=True))
        found.append(Sentence(words, pos, chunks))
    return found


def predict(learner: ConstrainedLearner, corpus: BracketCorpus, ids: Tensor) -> Counts:
    """Matched, predicted and gold phrases of each sentence."""
    counts = np.zeros((3, len(corpus.phrases)), dtype=np.int64)
    for rows, batch in corpus.batches(ids):
        for row, labels, n in zip(rows.tolist(), learner(batch).tolist(), corpus.lengths[rows].tolist(), strict=True):
            said, true = phrases(labels[:n]), corpus.phrases[row]
            counts[:, row] = len(said & true), len(said), len(true)
    return Counts(*counts)


def _learner(size: int, train: BracketCorpus, ids: Tensor, mode: Mode, epochs: int, seed: int) -> ConstrainedLearner:
    learner = ConstrainedLearner(BracketScorer(size), NESTED, LABELS, mode=mode, average=True)
    generator = torch.Generator().manual_seed(seed)
    fit(learner, lambda: (batch for _, batch in train.batches(ids, generator)), epochs)
    return learner


def run(settings: Settings) -> Report:
    """Every feature set in three modes."""
    if settings.smoke:
        train, test = (BracketCorpus(generated(n, settings.seed + n)) for n in (150, 80))
        least: tuple[int, ...] = (100, 2)
        epochs = 2
    else:
        folder = settings.corpus("basenp")
        train, test = (BracketCorpus(read_conll2000(folder / f"{part}.txt.gz")) for part in ("train", "test"))
        least, epochs = LEAST, 2
    sizes: list[int] = []
    results: list[dict[str, Mean]] = []
    for count in progress(least, "feature sets"):
        index = FeatureIndex(train.features, min_count=count)
        ids, test_ids = index(train.features), index(test.features)
        local = _learner(index.size, train, ids, "l+i", epochs, settings.seed)
        joint = _learner(index.size, train, ids, "ibt", epochs, settings.seed)
        found: dict[str, Counts] = {}
        for name, learner, mode in (("LO", local, "lo"), ("L+I", local, "l+i"), ("IBT", joint, "ibt")):
            learner.mode = mode  # type: ignore[assignment]
            found[name] = predict(learner, test, test_ids)
        sizes.append(index.size - 1)
        results.append(intervals(found, settings.seed))
    columns = ["", "LO", "L+I", "IBT", "L+I - LO", "IBT - L+I"]
    rows: list[list[Any]] = [
        [f"{size:,} features", *(one[name] for name in columns[1:])] for size, one in zip(sizes, results, strict=True)
    ]
    notes = [
        f"{len(train.phrases):,} training and {len(test.phrases):,} test sentences; a word opens, ends, does both or "
        "neither; phrases may not overlap: an automaton of two states on the chain; LO pairs an opening with the next "
        "ending unless another opening comes between",
        "averaged perceptron, 2 passes, batches of 32 sentences; nothing was tuned; a feature set is what occurs at "
        "least so often in training; intervals by bootstrap over test sentences, one training run each",
        "the paper prints curves of L+I and IBT, not figures; Ramshaw and Marcus (1995) report 92.0 on this test set",
    ]
    table = Table("F1 of base noun phrases in %", columns, rows)
    return Report([table], notes, lambda: picture(sizes, results, "F1 of noun phrases, 95 % intervals"))


EXPERIMENT = Experiment(
    name="constrained-np",
    about="base noun phrases by opening and ending classifiers: LO, L+I and IBT over growing feature sets",
    paper="Punyakanok, Roth, Yih, Zimak 2005, figure 4",
    corpora=("basenp",),
    minutes=2,
    run=run,
)
