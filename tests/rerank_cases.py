"""Small n-best lists that follow a hidden rule, and trees that are small enough to enumerate fragments."""

from __future__ import annotations

import random

from structlearn.reranking import NBest
from structlearn.trees import Tree


def random_tree(rng: random.Random, words: int, labels: str = "AB") -> Tree:
    """A binary-to-ternary tree over ``words`` words, with unary chains now and then."""
    if words == 1:
        leaf = Tree(rng.choice("xy"), rng.choice(["a", "b"]))
        return leaf if rng.random() < 0.7 else Tree(rng.choice(labels), [leaf])
    parts = rng.randint(2, min(3, words))
    cuts = sorted(rng.sample(range(1, words), parts - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, words], strict=True)]
    return Tree(rng.choice(labels), [random_tree(rng, size, labels) for size in sizes])


def _bracketing(rng: random.Random, words: list[str]) -> Tree:
    """A binary tree; phrases that begin with "a" are of kind P, others mostly of kind Q."""
    if len(words) == 1:
        return Tree("T", words[0])
    cut = rng.randint(1, len(words) - 1)
    label = rng.choice("PQ")
    return Tree(label, [_bracketing(rng, words[:cut]), _bracketing(rng, words[cut:])])


def _relabel(tree: Tree) -> Tree:
    """The same brackets with the labels that the hidden rule gives."""

    def visit(node: Tree, children: list[Tree]) -> Tree:
        if node.is_preterminal:
            return node
        first = children[0].leaves()[0]
        return Tree("P" if first == "a" else "Q", children)

    return tree.fold(visit)


def lists(count: int, *, size: int = 6, seed: int = 0) -> list[NBest]:
    """Lists in which the label of a phrase should follow from its first word; log-probabilities say nothing."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        words = [rng.choice("abc") for _ in range(rng.randint(3, 6))]
        shape = _bracketing(rng, words)
        candidates = [Tree("ROOT", [_flip(rng, shape)]) for _ in range(size)]
        gold = Tree("ROOT", [_relabel(shape)])
        made.append(NBest(candidates, [-rng.random() for _ in candidates], gold, f"s{i}"))
    return made


def _flip(rng: random.Random, shape: Tree) -> Tree:
    return _relabel(shape).map_labels(lambda label: label if rng.random() < 0.6 else "Q" if label == "P" else "P")
