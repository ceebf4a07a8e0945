"""Learning as search on CoNLL-2000, for the experiments and benchmarks of both tasks: train, choose epochs, decode.

Parameters are those of the paper (α = 0.9, B = 1/α, C = √2, p = 2) unless a plan has others. What is left open, such as
the number of passes, is chosen on training sentences that are held out. Test sentences are decoded when everything is
chosen.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from structlearn.data.conll import Sentence, read_conll2000
from structlearn.experiments.base import Mean, Settings
from structlearn.experiments.kept import Kept
from structlearn.metrics.chunks import chunk_scores
from structlearn.search import ALMA, Perceptron, beam_search, compare, laso
from structlearn.search.chunker import ChunkCorpus, ChunkScorer
from structlearn.search.joint_tagger import JointCorpus, JointScorer
from structlearn.search.updates import Update

Task = Literal["chunking", "joint"]

PASSES = 5  # as many as keep every learner within five minutes of one core


class Plan(NamedTuple):
    """One learner: its name in tables, when and how it updates, the beam K of training and decoding, passes.

    The first ``skip`` passes do not count in the average of the weights; ``runs`` differ in the order of sentences;
    ``B``, ``C`` and what k ``counts`` are those of ALMA.
    """

    name: str
    strategy: Literal["laso", "early", "max_violation", "standard"] = "laso"
    update: Literal["alma", "perceptron"] = "alma"
    beam: int = 10
    epochs: int = PASSES
    batch: int = 16
    skip: int = 1
    runs: int = 1
    B: float | None = None
    C: float = math.sqrt(2)
    counts: Literal["updates", "errors"] = "updates"


class Outcome(NamedTuple):
    """Per cent by conlleval's rules, and seconds of the process: training with features, decoding alone."""

    precision: float
    recall: float
    f1: float
    pos: float | None
    train: float
    decode: float
    tokens: int


def corpora(settings: Settings) -> tuple[list[Sentence], list[Sentence]]:
    """Training and test sentences; generated ones in smoke mode."""
    if settings.smoke:
        return generated(60, settings.seed), generated(30, settings.seed + 1)
    folder = settings.corpus("conll2000")
    return read_conll2000(folder / "train.txt.gz"), read_conll2000(folder / "test.txt.gz")


def generated(count: int, seed: int) -> list[Sentence]:
    """Noun phrases, verbs and prepositions of made-up words that tell their part of speech by their ending."""
    draw = random.Random(seed)
    shapes = {
        "NP": ("DT NN", "DT JJ NN", "NNP", "NNP NNP", "JJ NNS", "PRP"),
        "VP": ("VBZ", "MD VB", "VBD"),
        "PP": ("IN",),
        "O": (".", "CC"),
    }
    sentences = []
    for _ in range(count):
        words, pos, chunks = [], [], []
        for kind in draw.choices(("NP VP NP", "NP VP", "NP VP NP PP NP"), k=draw.randint(1, 2)):
            for name in (*kind.split(), "O"):
                tags = draw.choice(shapes[name]).split()
                pos += tags
                words += [f"{draw.choice('abcde')}{tag.lower()}" for tag in tags]
                chunks += ["O" if name == "O" else f"{'I' if i else 'B'}-{name}" for i in range(len(tags))]
        sentences.append(Sentence(words, pos, chunks))
    return sentences


def prepare(task: Task, sentences: Sequence[Sentence], like: Any = None) -> Any:
    """The corpus of a task, with the features of ``like`` if that is given."""
    return (ChunkCorpus if task == "chunking" else JointCorpus)(sentences, like=like)


def train(
    task: Task, corpus: Any, plan: Plan, seed: int = 0, after: Callable[[int, nn.Module], None] | None = None
) -> tuple[nn.Module, float]:
    """A model with averaged weights, and CPU seconds. ``after`` each pass gets its number and the model so far."""
    model: nn.Module = ChunkScorer(corpus) if task == "chunking" else JointScorer(corpus)
    weights = list(model.parameters())
    alma = plan.update == "alma"
    update: Update = ALMA(weights, B=plan.B, C=plan.C, count=plan.counts) if alma else Perceptron(weights)
    draw, seconds = torch.Generator().manual_seed(seed), 0.0
    for epoch in range(1, plan.epochs + 1):
        began = time.process_time()
        for rows in corpus.batches(plan.batch, generator=draw):
            batch = corpus.batch(rows)
            space, margin = model(batch), update.margin
            if plan.strategy == "laso":
                update(laso(space, batch.gold, plan.beam, margin=margin))
            else:
                update(compare(space, batch.gold, plan.beam, strategy=plan.strategy, margin=margin))
        seconds += time.process_time() - began
        if after is not None:
            kept = [w.detach().clone() for w in weights]
            _put(weights, update.averaged())
            after(epoch, model)
            _put(weights, kept)
        if epoch == plan.skip < plan.epochs:
            update.forget()
    _put(weights, update.averaged())
    return model, seconds


@torch.no_grad()
def _put(weights: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)


@torch.no_grad()
def decode(
    model: nn.Module, corpus: Any, beam: int, size: int = 128, limit: int | None = None
) -> tuple[dict[int, Any], float]:
    """Outputs (N or fewer, ...) by number of sentence, of the first ``limit`` ones or of all, and CPU seconds."""
    found: dict[int, Any] = {}
    began = time.process_time()
    for rows in corpus.batches(size):
        if limit is None or int(rows[0]) < limit:
            output = beam_search(model(corpus.batch(rows)), beam).output
            found.update(zip(rows.tolist(), output, strict=True))
    return found, time.process_time() - began


def measure(task: Task, model: nn.Module, corpus: Any, beam: int, train_seconds: float = 0.0) -> Outcome:
    """Decode a corpus and score it."""
    found, seconds = decode(model, corpus, beam)
    count = len(corpus.sentences)
    tags = [corpus.tags(torch.tensor([i]), found[i][None])[0] for i in range(count)]
    s = chunk_scores(tags, [sentence.chunks for sentence in corpus.sentences])
    pos = None
    if task == "joint":
        right = sum(
            corpus.pos[p] == gold
            for i, sentence in enumerate(corpus.sentences)
            for (p, _), gold in zip(found[i].tolist(), sentence.pos, strict=False)
        )
        pos = 100 * right / int(corpus.lengths.sum())
    parts = (100 * s.precision, 100 * s.recall, 100 * s.f1)
    return Outcome(*parts, pos, train_seconds, seconds, int(corpus.lengths.sum()))


def held_out(sentences: Sequence[Sentence], every: int = 4) -> tuple[list[Sentence], list[Sentence]]:
    """Sentences to learn from, one of ``every`` of the first four fifths, and the last fifth to choose by."""
    cut = len(sentences) * 4 // 5
    return list(sentences[:cut:every]), list(sentences[cut:])


def curve(task: Task, inner: Any, outer: Any, plan: Plan, seed: int = 0) -> list[float]:
    """F1 on one corpus after each pass over the other."""
    found: list[float] = []

    def watch(epoch: int, model: nn.Module) -> None:
        found.append(measure(task, model, outer, plan.beam).f1)
        print(f"{task}: {plan.name}, pass {epoch}: F {found[-1]:.2f} on held-out sentences", flush=True)

    train(task, inner, plan, seed, watch)
    return found


def row(plan: Plan, found: Sequence[Outcome]) -> list[Any]:
    """A learner's row under :func:`columns`, means over its runs."""

    def mean(name: str) -> float:
        return Mean.of([getattr(outcome, name) for outcome in found]).value

    pos = [] if found[0].pos is None else [mean("pos")]
    speed = int(round(mean("tokens") / max(mean("decode"), 1e-9), -2))
    each = ", ".join(f"{outcome.f1:.2f}" for outcome in found)
    scores = [mean("precision"), mean("recall"), Mean.of([outcome.f1 for outcome in found]), each]
    seconds = [round(mean("train"), 1), round(mean("decode"), 2)]
    return [plan.name, plan.beam, plan.epochs, *pos, *scores, *seconds, speed]


def columns(task: Task) -> list[str]:
    """The heads of :func:`row`."""
    pos = ["POS accuracy"] if task == "joint" else []
    scores = ["precision", "recall", "F", "F of each run"]
    return ["learner", "beam", "passes", *pos, *scores, "train, CPU s", "decode, CPU s", "decode, tokens/s"]


def outcome(task: Task, corpus: Any, test: Any, plan: Plan, seed: int) -> Outcome:
    """Trained on one corpus and measured on the other, with the beam of training."""
    model, seconds = train(task, corpus, plan, seed)
    found = measure(task, model, test, plan.beam, seconds)
    print(f"{task}: {plan.name}, beam {plan.beam}, seed {seed}: F {found.f1:.2f}, {seconds:.0f} s of CPU", flush=True)
    return found


def learners_and_beams(
    task: Task, corpus: Any, test: Any, plans: Sequence[Plan], seed: int, kept: Kept
) -> tuple[list[list[Any]], list[list[Any]]]:
    """Rows of all learners, and of single runs of the first of them at beams 1, 5, its own and 25."""

    def one(plan: Plan, seed: int) -> Outcome:
        plan = plan._replace(runs=1)
        return Outcome(*kept.part(f"{plan}, seed {seed}", lambda: outcome(task, corpus, test, plan, seed)))

    found: dict[str, list[Outcome]] = {plan.name: [] for plan in plans}
    for run in range(max(plan.runs for plan in plans)):
        for plan in plans:
            if run < plan.runs:
                found[plan.name].append(one(plan, seed + run))
    rows = [row(plan, found[plan.name]) for plan in plans]
    wide = [plans[0]._replace(beam=beam) for beam in (1, 5, 25)]
    beams = [row(plan, [one(plan, seed)]) for plan in wide]
    return rows, sorted([row(plans[0], found[plans[0].name][:1]), *beams], key=lambda cells: cells[1])


def height(cell: Any) -> float:
    """What a picture shows of a cell."""
    return float(cell.value if isinstance(cell, Mean) else cell)
