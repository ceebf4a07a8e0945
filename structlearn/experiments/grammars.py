"""Grammars with scores, by counting or by an SVM, that parse sentences with known parts of speech."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.baselines import PCFG
from structlearn.costs import BracketF1
from structlearn.data.binarise import chain_tag
from structlearn.data.treebank import from_cnf
from structlearn.features import RuleMap
from structlearn.solvers import StructuredSVM
from structlearn.structures import Grammar, WeightedCFG
from structlearn.trees import Tree

# What a glue rule costs: more than any derivation can gain.
GLUE = -1e4
EPS = 0.01


class PriorRuleMap(RuleMap):
    """A :class:`RuleMap` with one feature more, log P(tree) by a PCFG: scores w_r + v log P(r)."""

    def __init__(self, grammar: Grammar, rules: Tensor, roots: Tensor, *, tags: Tensor, allowed: Tensor) -> None:
        super().__init__(grammar, tags=tags, roots=allowed)
        self.prior = nn.Parameter(torch.zeros(1))
        self.head = (*self.head, "prior")
        self.register_buffer("rule_prior", rules.clone())
        self.register_buffer("root_prior", roots.masked_fill(~allowed, 0.0))

    def forward(self, x: Any, lengths: Any = None) -> WeightedCFG:
        """The scores of all derivations of x."""
        s = super().forward(x, lengths)
        rules, roots = (self.get_buffer(name).to(self.rule) for name in ("rule_prior", "root_prior"))
        return s.replace(rule_scores=s.rule_scores + self.prior * rules, root_scores=s.root_scores + self.prior * roots)

    def histograms(self, x: Any, y: Tensor, lengths: Any = None) -> list[Tensor]:
        found = super().histograms(x, y, lengths)
        rules, roots = (self.get_buffer(name).to(self.rule) for name in ("rule_prior", "root_prior"))
        return [*found, (found[0] @ rules + found[1] @ roots)[:, None]]


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

    def scored(self, trees: Sequence[Tree]) -> WeightedCFG:
        """log P of all trees over the words; tags are observed."""
        words, tags = [t.leaves() for t in trees], [[tag for _, tag in t.pos()] for t in trees]
        lengths = torch.tensor([len(row) for row in words])
        scores = self.model.rule_scores, self.model.root_scores
        return WeightedCFG(self.grammar, self.model.terms(words, tags), *scores, lengths=lengths)

    def uncovered(self, trees: Sequence[Tree]) -> int:
        """How many sentences have no derivation."""
        return int(self.scored(trees).max().isneginf().sum())

    def pcfg(self, trees: Sequence[Tree]) -> list[Tree]:
        """Most probable trees."""
        return self.parse(self.scored(trees), trees)

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

    def fit(self, train: Sequence[Tree], rescaling: str | None, prior: bool = False, **options: Any) -> StructuredSVM:
        """An SVM with a weight for each rule, and one for the PCFG's log P if ``prior``."""
        rule_map = RuleMap(self.grammar, tags=self.allowed, roots=self.roots)
        if prior:
            scores = self.model.rule_scores, self.model.root_scores
            rule_map = PriorRuleMap(self.grammar, *scores, tags=self.allowed, allowed=self.roots)
        x = self.inputs(train)
        size = max(map(len, x))
        terms = torch.zeros(len(train), size, self.grammar.num_preterminals)
        zero = torch.zeros(self.grammar.num_rules), torch.zeros(self.grammar.num_symbols)
        lengths = torch.tensor([len(row) for row in x])
        space = WeightedCFG(self.grammar, terms, *zero, lengths=lengths)
        gold = space.chart([self.model.grammar.to_cnf(tree) for tree in train])
        padded = torch.nn.utils.rnn.pad_sequence(x, batch_first=True)
        model = StructuredSVM(
            rule_map, BracketF1(), rescaling=rescaling, penalty="quadratic", **{"eps": EPS} | options  # type: ignore[arg-type]
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
