"""Weighted context-free grammars: PCFG by counting, and SVMs with the 0/1 and the F1 cost."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from structlearn.baselines import PCFG
from structlearn.costs import BracketF1
from structlearn.data.binarise import chain_tag
from structlearn.data.brackets import parse_tree
from structlearn.data.treebank import from_cnf, read_treebank
from structlearn.experiments.base import Experiment, Mean, Report, Settings, Table, progress
from structlearn.features import RuleMap
from structlearn.metrics.brackets import bracket_counts
from structlearn.solvers import StructuredSVM
from structlearn.structures import Grammar, WeightedCFG
from structlearn.trees import Tree

FORMULATIONS: dict[str, str | None] = {"SVM2": None, "SVM2Δs": "slack", "SVM2Δm": "margin"}
PUBLISHED = {
    "PCFG": (55.2, 86.0, None),
    "SVM2": (58.9, 86.2, 7494),
    "SVM2Δs": (58.9, 88.5, 8043),
    "SVM2Δm": (58.3, 88.4, 7117),
}
C, EPS, FOLDS, LONGEST = 1.0, 0.01, 5, 10
# What a glue rule costs: more than any derivation can gain.
GLUE = -1e4


def generated(seed: int, count: int) -> list[Tree]:
    """Sentences in which the preposition tells where its phrase is attached."""
    draw = random.Random(seed)

    def noun(depth: int) -> str:
        plain = f"(NP (DT the) (NN {draw.choice(['dog', 'cat'])}))"
        if depth and draw.random() < 0.4:
            return f"(NP {plain} (PP (OF of) {noun(depth - 1)}))"
        return plain

    found = []
    for _ in range(count):
        inside = f"(VBZ sees) {noun(1)}"
        where = f"(PP (IN with) {noun(0)})"
        found.append(f"(S {noun(0)} (VP {inside}{' ' + where if draw.random() < 0.5 else ''}))")
    return [tree for tree in map(parse_tree, found) if len(tree.leaves()) <= LONGEST]


class Parser:
    """A grammar with its numbers: sentences in, trees out, in the treebank's form."""

    def __init__(self, train: Sequence[Tree], h: int | None, smoothing: float) -> None:
        self.model = PCFG.fit(train, h=h, smoothing=smoothing)
        found = self.model.grammar
        self.grammar = Grammar(found.rules, found.nonterminals, found.preterminals)
        tags = [chain_tag(name) for name in found.preterminals]
        self.names = sorted(set(tags))
        self.allowed = torch.tensor([[tag == name for tag in tags] for name in self.names])
        self.roots = found.root_counts > 0

    def pcfg(self, trees: Sequence[Tree]) -> list[Tree]:
        """Most probable trees; tags are observed."""
        words, tags = [t.leaves() for t in trees], [[tag for _, tag in t.pos()] for t in trees]
        lengths = torch.tensor([len(row) for row in words])
        roots, scores = self.model.root_scores, self.model.rule_scores
        return self.parse(
            WeightedCFG(self.grammar, self.model.terms(words, tags), scores, roots, lengths=lengths), trees
        )

    def parse(self, structure: WeightedCFG, trees: Sequence[Tree]) -> list[Tree]:
        """Best trees, by glue where the grammar has none."""
        glued = structure.with_glue(GLUE)
        found = glued.trees(glued.argmax(), [t.leaves() for t in trees])
        return [
            from_cnf(_unglued(tree, [tag for _, tag in t.pos()])) for tree, t in zip(found, trees, strict=True) if tree
        ]

    def inputs(self, trees: Sequence[Tree]) -> list[Tensor]:
        """Tags by number; one that training did not have counts as the commonest."""
        number = {name: i for i, name in enumerate(self.names)}
        return [torch.tensor([number.get(tag, number.get("NN", 0)) for _, tag in t.pos()]) for t in trees]

    def fit(self, train: Sequence[Tree], rescaling: str | None, **options: Any) -> StructuredSVM:
        """An SVM with a weight for each rule."""
        rule_map = RuleMap(self.grammar, tags=self.allowed, roots=self.roots)
        x = self.inputs(train)
        size = max(map(len, x))
        terms = torch.zeros(len(train), size, self.grammar.num_preterminals)
        zero = torch.zeros(self.grammar.num_rules), torch.zeros(self.grammar.num_symbols)
        lengths = torch.tensor([len(row) for row in x])
        space = WeightedCFG(self.grammar, terms, *zero, lengths=lengths)
        gold = space.chart([self.model.grammar.to_cnf(tree) for tree in train])
        padded = torch.nn.utils.rnn.pad_sequence(x, batch_first=True)
        model = StructuredSVM(
            rule_map, BracketF1(), rescaling=rescaling, penalty="quadratic", **{"C": C, "eps": EPS} | options  # type: ignore[arg-type]
        )  # fmt: skip
        return model.fit(padded, gold, lengths)

    def svm(self, model: StructuredSVM, trees: Sequence[Tree]) -> list[Tree]:
        """Trees of the highest score."""
        x = self.inputs(trees)
        lengths = torch.tensor([len(row) for row in x])
        with torch.no_grad():
            structure: Any = model.feature_map_(torch.nn.utils.rnn.pad_sequence(x, batch_first=True), lengths)
            return self.parse(structure, trees)


def _unglued(tree: Tree, tags: Sequence[str]) -> Tree:
    """Glue becomes one flat top node, and words that it covers get their tag."""
    place = iter(tags)

    def visit(node: Tree, below: list[Tree]) -> Tree:
        if node.is_preterminal:
            tag = next(place)
            return Tree(tag, node.word) if node.label.startswith("ANY") else node
        return Tree("@TOP" if node.label == "GLUE" else node.label, below)

    found = tree.fold(visit)
    return Tree("TOP", found.children) if found.label == "@TOP" else found


def evaluate(predicted: Sequence[Tree], gold: Sequence[Tree]) -> tuple[int, int, int, int, int]:
    """Exact trees, matched, predicted and gold constituents, sentences."""
    counts = [bracket_counts(p, g) for p, g in zip(predicted, gold, strict=True)]
    kept = [c for c in counts if c is not None]
    exact = sum(c.matched == c.predicted == c.gold for c in kept)
    matched, made, true = (sum(c[i] for c in kept) for i in range(3))
    return exact, matched, made, true, len(kept)


def run(settings: Settings) -> Report:
    """Every fold, every method."""
    if settings.smoke:
        trees = generated(settings.seed, 40)
    else:
        everything = read_treebank(settings.corpus("treebank") / "wsj_sample.mrg.tsv.gz")
        trees = [tree for tree in everything if 2 <= len(tree.leaves()) <= LONGEST]
    random.Random(settings.seed).shuffle(trees)
    folds = 2 if settings.smoke else FOLDS
    names = ("PCFG", *FORMULATIONS)
    found: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}
    spent: dict[str, list[tuple[float, ...]]] = {name: [] for name in FORMULATIONS}
    for held in progress(range(folds), "folds"):
        test = trees[held::folds]
        train = [tree for i, tree in enumerate(trees) if i % folds != held]
        parser = Parser(train, H, SMOOTHING)
        found["PCFG"].append(evaluate(parser.pcfg(test), test))
        for name, rescaling in FORMULATIONS.items():
            began = time.process_time()
            model = parser.fit(train, rescaling)
            c = model.certificate_
            share = 100 * c.qp_seconds / max(c.qp_seconds + c.oracle_seconds, 1e-9)
            spent[name].append((c.added, c.constraints, time.process_time() - began, share))
            found[name].append(evaluate(parser.svm(model, test), test))
    return Report([table(found, spent)], notes(settings, trees))


H: int | None = 2
SMOOTHING = 1.0


def f1(counts: tuple[int, ...]) -> float:
    """In percent."""
    return 200 * counts[1] / (counts[2] + counts[3])


def table(found: dict[str, list[tuple[int, ...]]], spent: dict[str, list[tuple[float, ...]]]) -> Table:
    """Table 1.4."""
    rows: list[list[Any]] = []
    for name, counts in found.items():
        total = tuple(map(sum, zip(*counts, strict=True)))
        accuracy = Mean.share(total[0], total[4])
        pooled = Mean(f1(total), Mean.of([f1(c) for c in counts]).half)
        rest = [Mean.of(column).value for column in zip(*spent[name], strict=True)] if name in spent else [None] * 4
        rows.append([name, accuracy, pooled, *rest])
    columns = ["method", "accuracy %", "F1 %", "constraints added", "|S| at the end", "CPU s a fold", "% in QP"]
    return Table(
        "Grammars (table 1.4)", columns, rows, [[name, *PUBLISHED[name], None, None, None] for name in found], digits=1
    )


def notes(settings: Settings, trees: Sequence[Tree]) -> list[str]:
    """What the figures are of."""
    if settings.smoke:
        return ["generated trees stand in for everything"]
    return [
        f"sections 02-22 are not public: {len(trees)} sentences of 2 to {LONGEST} words from WSJ 00 and 01 stand in, "
        f"{FOLDS}-fold, so {len(trees) * (FOLDS - 1) // FOLDS} sentences train against 4,098 in the paper",
    ]


EXPERIMENT = Experiment(
    name="parsing",
    about="weighted grammars on short sentences: PCFG and SVMs with the 0/1 and the F1 cost",
    paper="Altun, Hofmann, Tsochantaridis 2006, table 1.4",
    corpora=("treebank",),
    minutes=5,
    run=run,
)
