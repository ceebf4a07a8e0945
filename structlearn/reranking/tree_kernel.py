"""Tree kernel of Collins and Duffy: how many fragments two trees have in common.

A fragment is a connected part of a tree in which every node has either all of its children or none. With one dimension
for every fragment,

    K(u, v) = sum_f λ^size(f) #f(u) #f(v) = sum over nodes a of u and b of v of C(a, b),
    C(a, b) = 0 where the productions of a and b differ, else λ prod_k (1 + C(a_k, b_k)) over their children,

size counting productions and the product being 1 over a word: |u| |v| work. Normalised,
K(u, v) / sqrt(K(u, u) K(v, v)).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.ops import choose_backend
from structlearn.ops import tree_kernel as ops
from structlearn.reranking.forest import Forest
from structlearn.reranking.preference import Array
from structlearn.trees import Tree


class TreeKernel:
    """K between every tree of one set and every tree of another.

    Args:
        decay: λ in (0, 1]; small values favour small fragments.
        normalise: divide by sqrt(K(u, u) K(v, v)), so that big trees are not alike for being big.
        backend: "cpu", threads over blocks of trees, or "reference"; "auto" takes the first that runs.

    >>> from structlearn.data.brackets import parse_tree
    >>> tree = parse_tree("(NP (DT the) (NN dog))")
    >>> float(TreeKernel()([tree], [tree])[0, 0])
    6.0
    """

    def __init__(self, decay: float = 1.0, *, normalise: bool = False, backend: str = "auto") -> None:
        if not 0 < decay <= 1:
            raise ArgumentError("decay", "a number in (0, 1]", decay, "use 1 to count every fragment alike")
        self.decay = decay
        self.normalise = normalise
        self.backend = backend

    def __call__(self, a: Sequence[Tree], b: Sequence[Tree]) -> Array:
        """(A, B) float64; the same object passed twice is computed once above the diagonal."""
        if choose_backend(self.backend, "cpu", ("reference", "cpu")) == "reference":
            gram = np.asarray([[tree_kernel(u, v, self.decay) for v in b] for u in a]).reshape(len(a), len(b))
            sizes = [np.asarray([tree_kernel(u, u, self.decay) for u in trees]) for trees in (a, b)]
        else:
            first, second = _pack(a, b)
            gram = ops.gram(*first, *second, self.decay).numpy()
            sizes = [ops.diagonal(*trees, self.decay).numpy() for trees in (first, second)] if self.normalise else []
        return gram / np.sqrt(np.outer(*sizes)) if self.normalise else gram


def tree_kernel(u: Tree, v: Tree, decay: float = 1.0) -> float:
    """K(u, v), by the recurrence as it stands."""
    common: dict[tuple[int, int], float] = {}
    total = 0.0
    for a in u.postorder():
        for b in v.postorder():
            if production(a) == production(b):
                value = decay
                for child, its in zip(a.subtrees, b.subtrees, strict=True):
                    value *= 1.0 + common.get((id(child), id(its)), 0.0)
                common[id(a), id(b)] = value
                total += value
    return total


def production(node: Tree) -> tuple[str | bool, ...]:
    """The label of a node, and its word or the labels of its children."""
    if node.is_preterminal:
        return node.label, True, node.word
    return node.label, False, *[child.label for child in node.subtrees]


def _pack(a: Sequence[Tree], b: Sequence[Tree]) -> tuple[list[Tensor], list[Tensor]]:
    """Both sets over one forest, as the operators want them."""
    forest = Forest()
    roots = [[forest.add(tree) for tree in trees] for trees in ((a,) if a is b else (a, b))]
    numbers: dict[tuple[str | bool, ...], int] = {}
    productions = [numbers.setdefault(production(tree), len(numbers)) for tree in forest.trees]
    shared = [
        torch.tensor(productions, dtype=torch.int64),
        torch.tensor([0, *np.cumsum([len(c) for c in forest.children])], dtype=torch.int64),
        torch.tensor([c for children in forest.children for c in children], dtype=torch.int64),
    ]
    sets = []
    for numbered in roots:
        nodes = [_nodes(forest, root) for root in numbered]
        first = torch.tensor([0, *np.cumsum([len(n) for n in nodes])], dtype=torch.int64)
        flat = np.concatenate([*nodes, np.zeros(0, dtype=np.int64)])
        sets.append([*shared, first, torch.from_numpy(flat)])
    return sets[0], sets[-1]


def _nodes(forest: Forest, root: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The numbers of a tree's nodes, rising."""
    found, stack = [], [root]
    while stack:
        number = stack.pop()
        found.append(number)
        stack.extend(forest.children[number])
    return np.sort(np.asarray(found, dtype=np.int64))
