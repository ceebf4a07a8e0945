"""Generated data for every task, so that everything runs with no download; equal seeds give equal data."""

from __future__ import annotations

import random
from collections.abc import Sequence

from structlearn.data.conll import Sentence
from structlearn.trees import Tree

_WORDS = {
    "DT": ["the", "a", "this", "every", "some"],
    "JJ": ["small", "old", "green", "quick", "quiet", "open", "large", "bright", "early", "local"],
    "NN": ["dog", "house", "river", "market", "letter", "company", "price", "plan", "watch", "run", "mind", "order"],
    "NNP": ["Mary", "London", "Smith", "Vienna", "Anna", "Jones", "Oslo", "Brown"],
    "VBD": ["saw", "bought", "wrote", "watched", "moved", "reported", "planned", "ordered", "sold", "read"],
    "VB": ["run", "play", "watch", "report", "plan", "order", "mind", "read", "see", "sell"],
    "MD": ["will", "may", "could", "must"],
    "IN": ["in", "on", "with", "from", "near", "of", "under"],
    "RB": ["slowly", "often", "here", "today", "again"],
    "CD": ["two", "12", "300", "1987", "seven"],
    "CC": ["and", "or"],
    "PRP": ["he", "she", "they", "it", "we"],
    ".": [".", "?"],
}
# Weighted rules; some words stand under several parts of speech, so that labels depend on their neighbours.
_RULES: dict[str, list[tuple[float, tuple[str, ...]]]] = {
    "S": [(1.0, ("NP", "VP", "."))],
    "NP": [
        (3.0, ("DT", "NN")),
        (2.0, ("DT", "JJ", "NN")),
        (1.5, ("NNP",)),
        (0.7, ("NNP", "NNP")),
        (1.5, ("PRP",)),
        (1.0, ("CD", "NN")),
        (1.2, ("NP", "PP")),
        (0.6, ("NP", "CC", "NP")),
    ],
    "VP": [
        (3.0, ("VBD", "NP")),
        (2.0, ("VBD", "NP", "PP")),
        (1.5, ("MD", "VB", "NP")),
        (1.0, ("VBD", "RB")),
        (0.7, ("MD", "VB")),
    ],
    "PP": [(1.0, ("IN", "NP"))],
}


def synthetic_trees(count: int, *, seed: int = 0, deepest: int = 6) -> list[Tree]:
    """Trees of a small grammar of English with words that belong to several parts of speech."""
    draw = random.Random(seed)

    def grow(label: str, depth: int) -> Tree:
        if label in _WORDS:
            return Tree(label, draw.choice(_WORDS[label]))
        rules = [rule for rule in _RULES[label] if depth < deepest or label not in rule[1]]
        (_, children) = draw.choices(rules, [weight for weight, _ in rules])[0]
        return Tree(label, [grow(child, depth + 1) for child in children])

    return [grow("S", 0) for _ in range(count)]


def synthetic_chunks(count: int, *, seed: int = 0) -> list[Sentence]:
    """Sentences with parts of speech and chunk tags: base phrases of :func:`synthetic_trees`, BIO."""
    return [_chunked(tree) for tree in synthetic_trees(count, seed=seed)]


def _chunked(tree: Tree) -> Sentence:
    words: list[str] = []
    pos: list[str] = []
    chunks: list[str] = []

    def visit(node: Tree, phrase: str) -> None:
        begun = False
        for child in node.subtrees:
            if not child.is_preterminal:
                visit(child, child.label)
                begun = False
                continue
            words.append(child.word)
            pos.append(child.label)
            outside = child.label in (".", "RB", "CC")
            chunks.append("O" if outside else f"{'I' if begun else 'B'}-{phrase}")
            begun = not outside

    visit(tree, tree.label)
    return Sentence(words, pos, chunks)


def split(items: Sequence, share: float) -> tuple[list, list]:  # type: ignore[type-arg]
    """The items without, and with, every 1/share-th one: the same for every run."""
    every = max(2, round(1 / share))
    held = {i for i in range(len(items)) if i % every == every - 1}
    return [x for i, x in enumerate(items) if i not in held], [items[i] for i in sorted(held)]
