"""Semantic roles: no overlap, no core role twice, continuations and references, with feature sets of growing size."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from functools import reduce
from operator import and_
from pathlib import Path

import numpy as np
import torch

from structlearn.constraints import Constraint, at_most, gold_violations, implies, no_overlap
from structlearn.constraints.training import ConstrainedLearner, Mode
from structlearn.data.propbank import AnnotatedSentence, read_propbank
from structlearn.data.role_features import NONE, RoleCorpus
from structlearn.data.sparse import FeatureIndex, SparseBag
from structlearn.experiments.base import Experiment, Mean, Report, Settings, Table, progress
from structlearn.experiments.constrained_runs import Counts, fit, intervals, picture

CORE = ("ARG0", "ARG1", "ARG2", "ARG3", "ARG4", "ARG5", "ARGA")
LEAST = (30000, 10000, 2000, 500, 100, 20, 2)  # a feature set is those seen so often in training
BATCH = 64


def role_constraint(labels: list[str]) -> Constraint:
    """No overlap, each core role at most once, R-X only with X, C-X only after X."""
    known = set(labels)
    parts = [no_overlap(NONE), *(at_most(1, role) for role in CORE if role in known)]
    parts += [implies(label, label[2:]) for label in labels if label.startswith("R-") and label[2:] in known]
    parts += [
        implies(label, label[2:], before=True) for label in labels if label.startswith("C-") and label[2:] in known
    ]
    return reduce(and_, parts)


def generated(size: int, seed: int) -> list[AnnotatedSentence]:
    """Sentences "NP (TMP) V NP (PP)" whose words tell roles with some noise, as a file would hold them."""
    draw = random.Random(seed)
    lines = []
    for i in range(size):
        verb = draw.choice(("gives", "sees", "runs", "sells"))
        swap = draw.random() < 0.2
        subject, thing = draw.choice("abcd"), draw.choice("efgh")
        roles = ("ARG1", "ARG0") if swap else ("ARG0", "ARG1")
        lines += [
            f"# generated {i}",
            f"{subject}\tNN\t(TOP(S(NP*)\t-\t-\t({roles[0]}*)",
            f"{verb}\tVBZ\t(VP*\t{verb[:-1]}\t{verb[:-1]}.01\t(V*)",
            f"{'of' if swap else thing}\tNN\t(NP*)\t-\t-\t({roles[1]}*)",
            f"{draw.choice(('in', 'at', 'for'))}\tIN\t(PP*\t-\t-\t({draw.choice(('ARG2', 'ARGM-LOC'))}*",
            f"{draw.choice('klmn')}\tNN\t(NP*)))\t-\t-\t*)",
            ".\t.\t*))\t-\t-\t*",
            "",
        ]
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generated.conll"
        path.write_text("\n".join(lines), encoding="utf-8")
        return read_propbank(path)


def predict(learner: ConstrainedLearner, corpus: RoleCorpus, ids: torch.Tensor) -> tuple[Counts, Counter[str]]:
    """Matched, predicted and gold arguments of each proposition, and how the programs were solved."""
    matched, predicted = (np.zeros(len(corpus), dtype=np.int64) for _ in range(2))
    gold = np.array([len(arguments) for arguments in corpus.arguments])
    paths: Counter[str] = Counter()
    for rows in corpus.rows(256):
        batch = corpus.batch(rows, ids)
        if learner.mode == "lo":
            y = learner(batch)
        else:
            solution = learner.solve(batch)
            y = solution.y
            paths.update(solution.path)
        said = (y > 0) & (batch.gold >= 0)
        predicted[rows] = said.sum(1).numpy()
        matched[rows] = (said & (y == batch.gold)).sum(1).numpy()
    return Counts(matched, predicted, gold), paths


def run(settings: Settings) -> Report:
    """Every feature set in three modes."""
    if settings.smoke:
        train = RoleCorpus(generated(120, settings.seed))
        test = RoleCorpus(generated(60, settings.seed + 1), train.labels)
        least: tuple[int, ...] = (40, 2)
        epochs = 2
    else:
        folder = settings.corpus("propbank")
        train = RoleCorpus(read_propbank(folder / "wsj15-18.conll.gz"))
        test = RoleCorpus(read_propbank(folder / "wsj20.conll.gz"), train.labels)
        least, epochs = LEAST, 5
    constraint = role_constraint(train.labels)
    sizes, results, paths = [], [], []
    for count in progress(least, "feature sets"):
        index = FeatureIndex(train.features, min_count=count)
        ids, test_ids = index(train.features), index(test.features)
        sizes.append(index.size - 1)
        found: dict[str, Counts] = {}
        local = _learner(index.size, train, constraint, "l+i", ids, epochs, settings.seed)
        joint = _learner(index.size, train, constraint, "ibt", ids, epochs, settings.seed)
        ways: Counter[str] = Counter()
        for name, learner, mode in (("LO", local, "lo"), ("L+I", local, "l+i"), ("IBT", joint, "ibt")):
            learner.mode = mode  # type: ignore[assignment]
            found[name], ways = predict(learner, test, test_ids)
        results.append(intervals(found, settings.seed))
        paths.append(ways)
    return Report([_table(sizes, results)], _notes(train, test, constraint, paths), lambda: _drawn(sizes, results))


def _drawn(sizes: list[int], results: list[dict[str, Mean]]) -> object:
    return picture(sizes, results, "F1 of arguments, 95 % intervals")


def _learner(
    size: int, train: RoleCorpus, constraint: Constraint, mode: Mode, ids: torch.Tensor, epochs: int, seed: int
) -> ConstrainedLearner:
    learner = ConstrainedLearner(
        SparseBag(size, len(train.labels)),
        constraint,
        train.labels,
        mode=mode,
        average=True,
        broken_gold="skip",
        threads=1,
    )
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(learner, lambda: train.batches(BATCH, ids, generator), epochs)
    return learner


def _table(sizes: list[int], results: list[dict[str, Mean]]) -> Table:
    columns = ["", "LO", "L+I", "IBT", "L+I - LO", "IBT - L+I"]
    rows = [
        [f"{size:,} features", *(one[name] for name in columns[1:])] for size, one in zip(sizes, results, strict=True)
    ]
    return Table("F1 of arguments in %", columns, rows)


def _notes(train: RoleCorpus, test: RoleCorpus, constraint: Constraint, paths: list[Counter[str]]) -> list[str]:
    whole = train.batch(torch.arange(len(train)), train.features[:, :1])
    broken = gold_violations(constraint, whole.gold, train.labels, lengths=whole.lengths, spans=whole.spans)
    total = sum(len(arguments) for arguments in test.arguments)
    within = int((test.gold > 0).sum())
    ways = sum(paths, Counter())
    solved = ", ".join(f"{100 * n / ways.total():.1f} % {way}" for way, n in ways.most_common())
    first = f", first: {broken[0]}" if broken else ""
    return [
        f"trained on {len(train):,} predicates, tested on {len(test):,}; candidates are pruned constituents of gold "
        f"trees, {len(test.gold) / len(test):.1f} a predicate, which hold {100 * within / max(total, 1):.1f} % of the "
        "arguments; F1 counts the others as missed",
        "averaged perceptron, 5 passes, batches of 64; nothing was tuned; a feature set is what occurs at least so "
        "often in training; intervals by bootstrap over test predicates, one training run each",
        f"gold outputs of {len({v.row for v in broken})} training predicates break a constraint, for a part of an "
        f"argument is no candidate, and are left out of IBT{first}",
        f"IBT's test programs: {solved}",
        "the paper takes CoNLL-2004 sentences with more than five arguments whose boundaries are given; this is the "
        "unified PropBank, all predicates, boundaries found too, so only the shape of the curves compares",
    ]


EXPERIMENT = Experiment(
    name="constrained-srl",
    about="semantic roles with structural constraints: LO, L+I and IBT over growing feature sets",
    paper="Punyakanok, Roth, Yih, Zimak 2005, figure 3",
    corpora=("propbank",),
    minutes=13,
    run=run,
)
