"""Grammars read off treebanks: symbols, rules and how often each occurs.

Symbols are numbered 0..NT-1 for nonterminals and NT..NT+P-1 for preterminals; a rule is a row (parent, left, right) of
these numbers. A label may name a nonterminal and a preterminal: they are two symbols.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from structlearn.data.binarise import Direction, from_cnf, to_cnf
from structlearn.errors import ShapeError, TreeError
from structlearn.trees import Tree


@dataclass(frozen=True, eq=False)
class TreebankGrammar:
    """A binary grammar with its counts.

    Attributes:
        nonterminals: NT names, in Chomsky normal form (see :mod:`structlearn.data.binarise`), sorted.
        preterminals: P names, sorted; the last label of each chain is the part of speech.
        rules: (R, 3) parent, left and right symbol, int64, sorted.
        rule_counts: (R,) int64.
        root_counts: (NT + P,) how often a symbol is the root, int64.
        word_counts: how often a preterminal (by its number from 0) has a word.
        direction, h, v: how the trees were binarised.
    """

    nonterminals: tuple[str, ...]
    preterminals: tuple[str, ...]
    rules: Tensor
    rule_counts: Tensor
    root_counts: Tensor
    word_counts: Counter[tuple[int, str]]
    direction: Direction
    h: int | None
    v: int

    @property
    def symbols(self) -> tuple[str, ...]:
        """The NT + P names by number."""
        return self.nonterminals + self.preterminals

    @cached_property
    def _numbers(self) -> tuple[dict[str, int], dict[str, int], dict[tuple[int, int, int], int]]:
        nonterminals = {name: i for i, name in enumerate(self.nonterminals)}
        preterminals = {name: i + len(nonterminals) for i, name in enumerate(self.preterminals)}
        rules = {(a, b, c): r for r, (a, b, c) in enumerate(self.rules.tolist())}
        return nonterminals, preterminals, rules

    def to_cnf(self, tree: Tree) -> Tree:
        """A treebank tree in the normal form of this grammar."""
        return to_cnf(tree, direction=self.direction, h=self.h, v=self.v)

    def from_cnf(self, tree: Tree) -> Tree:
        """The treebank tree of a tree in normal form."""
        return from_cnf(tree)

    def symbol(self, node: Tree) -> int | None:
        """The number of a node of a tree in normal form; None if the grammar does not have it."""
        nonterminals, preterminals, _ = self._numbers
        return (preterminals if node.is_preterminal else nonterminals).get(node.label)

    def rule_ids(self, tree: Tree) -> list[int] | None:
        """The rules of a treebank tree, preorder in its normal form; None if the grammar does not generate it."""
        rules = self._numbers[2]
        found: list[int] = []
        cnf = self.to_cnf(tree)
        if self.symbol(cnf) is None:
            return None
        for node in cnf.preorder():
            if node.is_preterminal:
                continue
            rule = rules.get(tuple(self.symbol(n) for n in (node, *node.subtrees)))  # type: ignore[arg-type]
            if rule is None:
                return None
            found.append(rule)
        return found


def extract_grammar(
    trees: Iterable[Tree], *, direction: Direction = "right", h: int | None = 2, v: int = 1
) -> TreebankGrammar:
    """The grammar of cleaned treebank trees, binarised with Markov orders ``h`` and ``v``."""
    rules: Counter[tuple[tuple[bool, str], ...]] = Counter()
    roots: Counter[tuple[bool, str]] = Counter()
    words: Counter[tuple[str, str]] = Counter()
    for tree in trees:
        if tree.label == "":
            raise TreeError(
                "trees", "named nodes", "an unnamed top node", "pass the trees through treebank.clean first"
            )
        cnf = to_cnf(tree, direction=direction, h=h, v=v)
        roots[_key(cnf)] += 1
        for node in cnf.preorder():
            if node.is_preterminal:
                words[node.label, node.word] += 1
            else:
                rules[tuple(_key(n) for n in (node, *node.subtrees))] += 1
    if not roots:
        raise ShapeError("trees", "at least one tree", "none", "a grammar needs trees to be read off")
    nonterminals = sorted({parent[1] for parent, *_ in rules})
    preterminals = sorted({tag for tag, _ in words})
    number = {(False, name): i for i, name in enumerate(nonterminals)}
    number |= {(True, name): i + len(nonterminals) for i, name in enumerate(preterminals)}
    rows = sorted((*[number[key] for key in keys], count) for keys, count in rules.items())
    table = torch.tensor(rows, dtype=torch.int64).view(len(rows), 4)
    root_counts = torch.zeros(len(number), dtype=torch.int64)
    for key, count in roots.items():
        root_counts[number[key]] = count
    word_counts = Counter(
        {(number[True, tag] - len(nonterminals), word): count for (tag, word), count in words.items()}
    )
    return TreebankGrammar(
        tuple(nonterminals),
        tuple(preterminals),
        table[:, :3].contiguous(),
        table[:, 3].contiguous(),
        root_counts,
        word_counts,
        direction,
        h,
        v,
    )


def _key(node: Tree) -> tuple[bool, str]:
    return node.is_preterminal, node.label
