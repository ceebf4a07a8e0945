"""Probabilistic context-free grammar by relative frequency, smoothed.

    P(tree) = P(root) * prod over binary nodes of P(left, right | parent) * prod over words of P(word | preterminal)

Each factor is a share of counts in the binarised treebank. The intermediate nodes of a long rule remember h siblings;
their counts thin out with h, so they are interpolated with those of one sibling less (Witten and Bell):

    P(d | s) = ( c(s, d) + g n(s) P(d | s') ) / ( c(s) + g n(s) )

where d is the next sibling and whether the rule goes on, s the label and the h last siblings, s' the label and the h-1
last ones, n(s) how many different d followed s, and g the strength of smoothing. So the grammar gains the rules that
were seen after a shorter history. What a symbol cannot follow with a known symbol is left out and the rest scaled up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from structlearn.baselines.lexicon import Lexicon
from structlearn.data.binarise import Direction, chain_tag, part_history, part_label, sibling_name
from structlearn.data.extract import TreebankGrammar, extract_grammar
from structlearn.errors import ArgumentError, ShapeError
from structlearn.trees import Tree


class PCFG:
    """The model; :meth:`fit` estimates it.

    Attributes:
        grammar: symbols and rules (R, 3) with their counts, 0 where smoothing added a rule.
        rule_scores: (R,) log P(left, right | parent).
        root_scores: (NT + P,) log P(root).
        lexicon: scores of words, for sentences without parts of speech.
    """

    def __init__(self, grammar: TreebankGrammar, rule_scores: Tensor, root_scores: Tensor, lexicon: Lexicon) -> None:
        self.grammar = grammar
        self.rule_scores = rule_scores
        self.root_scores = root_scores
        self.lexicon = lexicon
        self._tags = [chain_tag(name) for name in grammar.preterminals]
        place = {tag: i for i, tag in enumerate(lexicon.tags)}
        missing = sorted(set(self._tags) - set(place))
        if missing:
            raise ArgumentError(
                "lexicon", "every part of speech of the grammar", f"none of {missing}", "fit both on one corpus"
            )
        self._tag_index = torch.tensor([place[tag] for tag in self._tags])

    @classmethod
    def fit(
        cls,
        trees: Iterable[Tree],
        *,
        direction: Direction = "right",
        h: int | None = 2,
        v: int = 1,
        smoothing: float = 1.0,
        lexicon: Lexicon | None = None,
    ) -> PCFG:
        """Estimate from cleaned treebank trees.

        Args:
            direction, h, v: how rules are binarised, see :func:`structlearn.data.binarise.binarise`.
            smoothing: g above; 0 gives relative frequencies.
            lexicon: by default one of the trees' own words and tags.
        """
        if smoothing < 0:
            raise ArgumentError("smoothing", "a number >= 0", smoothing, "use 0 for relative frequencies")
        trees = list(trees)
        grammar = extract_grammar(trees, direction=direction, h=h, v=v)
        shares = _interpolated(grammar, smoothing) if smoothing else _relative(grammar)
        rows = sorted(shares)
        counts = {
            (a, b, c): n for (a, b, c), n in zip(grammar.rules.tolist(), grammar.rule_counts.tolist(), strict=True)
        }
        smoothed = replace(
            grammar,
            rules=torch.tensor(rows, dtype=torch.int64).view(len(rows), 3),
            rule_counts=torch.tensor([counts.get(row, 0) for row in rows], dtype=torch.int64),
        )
        rule_scores = torch.tensor([shares[row] for row in rows], dtype=torch.float64).log().float()
        root_scores = (grammar.root_counts.double() / grammar.root_counts.sum()).log().float()
        return cls(smoothed, rule_scores, root_scores, lexicon or Lexicon(tree.pos() for tree in trees))

    def terms(self, words: Sequence[Sequence[str]], tags: Sequence[Sequence[str]] | None = None) -> Tensor:
        """Scores (B, N, P) of the preterminals at every word, padded with 0.

        With ``tags``, a preterminal scores 0 over its own part of speech and is forbidden elsewhere; a tag that was
        never seen allows all of them. Without, the lexicon scores the words.
        """
        if tags is not None and [len(row) for row in tags] != [len(row) for row in words]:
            raise ShapeError("tags", "one for every word", [len(row) for row in tags], "pass both from Tree.pos()")
        width = max(map(len, words), default=0)
        terms = torch.zeros((len(words), width, len(self._tags)))
        if tags is None:
            for b, row in enumerate(words):
                terms[b, : len(row)] = self.lexicon.scores(row)[:, self._tag_index]
            return terms
        known = set(self._tags)
        rows = {
            tag: torch.tensor([0.0 if t == tag or tag not in known else -torch.inf for t in self._tags])
            for tag in {tag for row in tags for tag in row}
        }
        for b, row in enumerate(tags):
            for n, tag in enumerate(row):
                terms[b, n] = rows[tag]
        return terms

    def log_prob(self, tree: Tree) -> float:
        """log P(root) + sum of log P(left, right | parent) of a tree, its words left out; -inf without a derivation."""
        rules = self.grammar.rule_ids(tree)
        root = self.grammar.symbol(self.grammar.to_cnf(tree))
        if rules is None or root is None:
            return -torch.inf
        return float(self.root_scores[root].double() + self.rule_scores[rules].double().sum())


_Rule = tuple[int, int, int]


def _counted(grammar: TreebankGrammar) -> list[tuple[_Rule, int]]:
    return [((a, b, c), n) for (a, b, c), n in zip(grammar.rules.tolist(), grammar.rule_counts.tolist(), strict=True)]


def _relative(grammar: TreebankGrammar) -> dict[_Rule, float]:
    totals: Counter[int] = Counter()
    for (parent, _, _), count in _counted(grammar):
        totals[parent] += count
    return {rule: count / totals[rule[0]] for rule, count in _counted(grammar)}


def _interpolated(grammar: TreebankGrammar, strength: float) -> dict[_Rule, float]:
    """P(left, right | parent) of every rule that has one, by the interpolation above."""
    size = len(grammar.nonterminals)
    number = {name: i for i, name in enumerate(grammar.nonterminals)}
    histories = [part_history(name) for name in grammar.nonterminals]
    made_left = grammar.direction == "right"

    def shorter(made: tuple[str, ...]) -> tuple[str, ...]:
        if grammar.h is None:
            return made[1:]
        return made[max(len(made) - grammar.h + 1, 0) :] if grammar.h > 1 else ()

    # A decision is the next sibling, and the last one if the rule ends with it.
    after: defaultdict[int, Counter[tuple[int, int | None]]] = defaultdict(Counter)
    after_shorter: defaultdict[tuple[str, tuple[str, ...]], Counter[tuple[int, int | None]]] = defaultdict(Counter)
    shares = {rule: share for rule, share in _relative(grammar).items() if histories[rule[0]] is None}
    for (parent, left, right), count in _counted(grammar):
        history = histories[parent]
        if history is None:
            continue
        made, rest = (left, right) if made_left else (right, left)
        decision = made, None if rest < size and histories[rest] is not None else rest
        after[parent][decision] += count
        after_shorter[history[0], shorter(history[1])][decision] += count
    for parent, seen in after.items():
        label, siblings = histories[parent]  # type: ignore[misc]
        backed = after_shorter[label, shorter(siblings)]
        weight = strength * len(seen)
        total = backed.total()
        found: dict[_Rule, float] = {}
        for (made, last), count in backed.items():
            end = last
            if end is None:
                name = sibling_name(grammar.symbols[made], preterminal=made >= size)
                end = number.get(part_label(label, (*siblings, name), grammar.h))
            if end is None:
                continue
            pair = (made, end) if made_left else (end, made)
            found[parent, *pair] = (seen[made, last] + weight * count / total) / (seen.total() + weight)
        scale = sum(found.values())
        shares |= {rule: share / scale for rule, share in found.items()}
    return shares
