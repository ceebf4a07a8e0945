"""A parser to rerank: the k best trees of a PCFG, by the structure's own ``topk``."""

from __future__ import annotations

from collections.abc import Sequence

from structlearn.baselines.pcfg import PCFG
from structlearn.data.binarise import from_cnf
from structlearn.errors import ArgumentError
from structlearn.reranking.lists import NBest
from structlearn.structures import Grammar, WeightedCFG
from structlearn.trees import Tree


def kbest_lists(
    model: PCFG, gold: Sequence[Tree], k: int, *, tags: bool = True, batch: int = 8, names: Sequence[str] | None = None
) -> list[NBest]:
    """At most k different trees over the words of each gold tree, by falling log-probability.

    Derivations that differ in binarisation marks alone give one tree, with the score of the best of them, so lists may
    be shorter than k. Sentences without a derivation have no list.

    Args:
        tags: parse the gold parts of speech; otherwise the lexicon scores the words.
        batch: sentences parsed at a time.
        names: of the lists; by default the sentences' numbers.
    """
    if k < 1:
        raise ArgumentError("k", "an integer >= 1", k, "a list has a candidate")
    grammar = Grammar(model.grammar.rules, model.grammar.nonterminals, model.grammar.preterminals)
    lists = []
    # Sentences of about one length share a batch: its charts are as wide as the longest.
    order = sorted(range(len(gold)), key=lambda i: len(gold[i].leaves()))
    for start in range(0, len(gold), batch):
        rows = order[start : start + batch]
        words = [gold[i].leaves() for i in rows]
        terms = model.terms(words, [[tag for _, tag in gold[i].pos()] for i in rows] if tags else None)
        lengths = terms.new_tensor([len(row) for row in words]).long()
        structure = WeightedCFG(grammar, terms, model.rule_scores, model.root_scores, lengths=lengths)
        charts, scores = structure.topk(k)
        found: list[dict[Tree, float]] = [{} for _ in rows]
        for chart, row_scores in zip(charts, scores.tolist(), strict=True):
            for candidates, tree, score in zip(found, structure.trees(chart, words), row_scores, strict=True):
                if tree is not None and score > -float("inf"):
                    candidates.setdefault(from_cnf(tree), score)
        for i, candidates in zip(rows, found, strict=True):
            if candidates:
                name = names[i] if names is not None else str(i)
                lists.append((i, NBest(list(candidates), list(candidates.values()), gold[i], name)))
    return [item for _, item in sorted(lists, key=lambda pair: pair[0])]
