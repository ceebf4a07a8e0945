"""The tree kernel and explicit fragments against enumeration."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from oracles.tree_kernel import common
from rerank_cases import lists, random_tree

from structlearn.data.brackets import parse_tree
from structlearn.errors import ArgumentError, BackendError
from structlearn.ops import tree_kernel as ops
from structlearn.reranking import FragmentFeatures, LinearKernel, NBest, TreeKernel, VotingReranker, preference_kernel
from structlearn.reranking.tree_kernel import _pack
from structlearn.trees import Tree


def some_trees(count: int, seed: int = 0, words: int = 6) -> list[Tree]:
    rng = random.Random(seed)
    return [random_tree(rng, rng.randint(1, words)) for _ in range(count)]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("decay", [1.0, 0.3])
def test_kernel_counts_common_fragments(backend: str, decay: float, poisoned_memory: None) -> None:
    a, b = some_trees(12), some_trees(7, seed=1)
    expected = np.asarray([[common(u, v, decay) for v in b] for u in a])
    assert expected.any()
    np.testing.assert_allclose(TreeKernel(decay, backend=backend)(a, b), expected, rtol=1e-12)
    own = np.asarray([[common(u, v, decay) for v in a] for u in a])
    np.testing.assert_allclose(TreeKernel(decay, backend=backend)(a, a), own, rtol=1e-12)
    scale = np.sqrt(np.outer(own.diagonal(), [common(v, v, decay) for v in b]))
    np.testing.assert_allclose(TreeKernel(decay, normalise=True, backend=backend)(a, b), expected / scale, rtol=1e-12)


def test_kernel_over_several_blocks_of_wide_and_deep_trees() -> None:
    wide = Tree("A", [Tree("x", "ab"[i % 2]) for i in range(100)])
    deep = Tree("x", "a")
    for i in range(60):
        deep = Tree("AB"[i % 2], [deep, Tree("y", "b")])
    trees = [*some_trees(120, words=40), wide, deep, *some_trees(3)]
    kernel = TreeKernel(0.2)
    found = kernel(trees, trees)
    np.testing.assert_allclose(found, found.T)
    np.testing.assert_allclose(found, kernel(trees, list(trees)), rtol=1e-12)
    rows = [0, 120, 121, 124]
    reference = TreeKernel(0.2, backend="reference")([trees[i] for i in rows], trees[100:])
    np.testing.assert_allclose(found[rows, 100:], reference, rtol=1e-12)
    assert np.linalg.eigvalsh(TreeKernel(0.2, normalise=True)(trees, trees)).min() > -1e-9


def test_kernel_does_not_depend_on_threads() -> None:
    trees = some_trees(200, words=30)
    several = TreeKernel(0.4)(trees, trees)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        np.testing.assert_array_equal(TreeKernel(0.4)(trees, trees), several)
    finally:
        torch.set_num_threads(threads)


def test_kernel_of_no_trees_and_of_one_word() -> None:
    word = [parse_tree("(NN dog)")]
    kernel = TreeKernel(0.5)
    assert kernel([], word).shape == (0, 1)
    assert kernel(word, []).shape == (1, 0)
    assert kernel(word, word).tolist() == [[0.5]]
    # A part of speech is no phrase, and a word is no label.
    assert kernel(word, [parse_tree("(NN (dog x))")]).tolist() == [[0.0]]


def test_operators_pass_opcheck() -> None:
    first, second = _pack(some_trees(4), some_trees(3, seed=1))
    torch.library.opcheck(torch.ops.structlearn.tree_kernel_gram.default, (*first, *second, 0.5))
    torch.library.opcheck(torch.ops.structlearn.tree_kernel_diagonal.default, (*first, 0.5))
    assert ops.gram(*first, *second, 0.5).shape == (4, 3)


def test_preferences_over_the_tree_kernel_are_positive_semidefinite() -> None:
    trees = some_trees(40)
    pairs = list(zip(trees[:20], trees[20:], strict=True))
    gram = preference_kernel(TreeKernel(0.5, normalise=True), pairs, pairs)
    np.testing.assert_allclose(gram, gram.T, atol=1e-12)
    assert np.linalg.eigvalsh(gram).min() > -1e-9


def test_voting_with_the_tree_kernel_learns() -> None:
    train, test = lists(60), lists(30, seed=2)
    model = VotingReranker(kernel=TreeKernel(0.5), slices=3, C=0.1).fit(train)
    first = np.mean([item.quality[item.first] for item in test])
    chosen = np.mean([item.quality[i] for item, i in zip(test, model.predict(test), strict=True)])
    assert chosen > first + 0.2
    assert np.abs(model.intercepts_).max() < 1e-2


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_explicit_fragments_are_the_truncated_kernel(size: int) -> None:
    trees = some_trees(8, words=4)
    features = FragmentFeatures(size, decay=0.3, min_lists=1)
    features.fit([NBest([tree], [0.0]) for tree in trees])
    expected = [[common(u, v, 0.3, size) for v in trees] for u in trees]
    np.testing.assert_allclose(LinearKernel(features)(trees, trees), expected, rtol=1e-12)


def test_explicit_fragments_vote() -> None:
    train, test = lists(60), lists(30, seed=2)
    model = VotingReranker(FragmentFeatures(2, decay=0.5), slices=3, C=0.1).fit(train)
    first = np.mean([item.quality[item.first] for item in test])
    assert np.mean([item.quality[i] for item, i in zip(test, model.predict(test), strict=True)]) > first + 0.2


def test_options_are_checked() -> None:
    for decay in (0.0, 1.5):
        with pytest.raises(ArgumentError, match="decay"):
            TreeKernel(decay)
        with pytest.raises(ArgumentError, match="decay"):
            FragmentFeatures(decay=decay)
    with pytest.raises(ArgumentError, match="size"):
        FragmentFeatures(0)
    with pytest.raises(BackendError):
        TreeKernel(backend="triton")(some_trees(1), some_trees(1))
