import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structlearn.data.brackets import parse_tree
from structlearn.errors import StructLearnError, TreeError
from structlearn.trees import Span, Tree

NAMES = st.text("ABab-=+^@~|\\$.,:0 ()", max_size=4)
WORDS = st.text("abc'-.,\\/+@", min_size=1, max_size=4)


def trees(labels=NAMES, words=WORDS):
    leaf = st.builds(Tree, labels, words)
    return st.recursive(
        leaf, lambda below: st.builds(Tree, labels, st.lists(below, min_size=1, max_size=4)), max_leaves=12
    )


def dog() -> Tree:
    phrase = Tree("NP", [Tree("DT", "the"), Tree("NN", "dog")])
    return Tree("S", [phrase, Tree("VP", [Tree("VBZ", "sees"), Tree("NP", [Tree("NN", "snow")])]), Tree(".", ".")])


def test_walks():
    tree = dog()
    assert tree.leaves() == ("the", "dog", "sees", "snow", ".")
    assert tree.pos() == (("the", "DT"), ("dog", "NN"), ("sees", "VBZ"), ("snow", "NN"), (".", "."))
    assert [t.label for t in tree.preorder()] == ["S", "NP", "DT", "NN", "VP", "VBZ", "NP", "NN", "."]
    assert [t.label for t in tree.postorder()] == ["DT", "NN", "NP", "VBZ", "NN", "NP", "VP", ".", "S"]
    assert tree.spans() == (Span(0, 4, "S"), Span(0, 1, "NP"), Span(2, 3, "VP"), Span(3, 3, "NP"))
    assert tree.spans(preterminals=True)[1:4] == (Span(0, 1, "NP"), Span(0, 0, "DT"), Span(1, 1, "NN"))
    assert tree.fold(lambda node, below: 1 + max(below, default=0)) == 4
    assert tree.map_labels(str.lower).bracket() == "(s (np (DT the) (NN dog)) (vp (VBZ sees) (np (NN snow))) (. .))"
    assert tree.map_labels(str.lower, preterminals=True).pos()[0] == ("the", "dt")


def test_a_word_stands_alone_under_its_part_of_speech():
    tag = Tree("NN", "dog")
    assert tag.is_preterminal
    assert tag.word == "dog"
    assert tag.subtrees == ()
    assert tag.spans() == ()
    assert Tree("NN", ("dog",)) == tag
    for children in ((), ("two", "words"), (tag, "word"), (3,)):
        with pytest.raises(TreeError, match=r"children: expected trees, or one word, got .*; put each word under"):
            Tree("X", children)
    with pytest.raises(TreeError, match="word: expected a preterminal, got 'X' over 1 trees"):
        _ = Tree("X", [tag]).word
    assert issubclass(TreeError, StructLearnError)


def test_trees_are_values():
    a, b = dog(), dog()
    assert a == b
    assert hash(a) == hash(b)
    assert len({a, b}) == 1
    assert a != dog().map_labels(str.lower)
    assert a != Tree("S", a.children[:2])
    assert a != "S"
    assert copy.deepcopy(a) is a
    assert copy.copy(a) is a
    with pytest.raises(AttributeError, match="immutable"):
        a.label = "T"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable"):
        del a.children


def test_equal_only_with_the_same_shape():
    flat = parse_tree("(A (B (C x)) (D y))")
    assert flat != parse_tree("(A (B (C x) (D y)))")
    assert flat != parse_tree("(A (B x) (D y))")
    assert flat != parse_tree("(A (B (C x)) (D z))")


def test_bracket_and_pretty():
    tree = dog()
    line = "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (NN snow))) (. .))"
    assert tree.bracket() == str(tree) == line
    assert repr(tree) == f"Tree({line!r})"
    assert tree.pretty() == line
    assert tree.pretty(width=30) == "\n".join(
        ["(S", "  (NP (DT the) (NN dog))", "  (VP", "    (VBZ sees)", "    (NP (NN snow)))", "  (. .))"]
    )
    assert tree.pretty(width=40, indent=1).splitlines()[2] == " (VP (VBZ sees) (NP (NN snow)))"
    assert Tree("", [tree]).bracket() == f"({line})"


def test_what_cannot_be_written_is_escaped_or_refused():
    assert Tree("-LRB-", "(").bracket() == "(-LRB- -LRB-)"
    assert Tree("(", "a)b").bracket() == "(-LRB- a-RRB-b)"
    with pytest.raises(TreeError, match="white space"):
        Tree("NN", "New York").bracket()
    for tag, word in (("NN", ""), ("", "dog")):
        with pytest.raises(TreeError, match="at least one character"):
            Tree(tag, word).bracket()


@given(trees(labels=st.text("ABab-=+^@~|\\$.,:0", max_size=4).filter(bool) | st.just("X")))
def test_text_round_trip(tree):
    assert parse_tree(tree.bracket()) == tree
    for width in (0, 20, 80):
        pretty = tree.pretty(width=width)
        assert parse_tree(pretty) == tree
        assert " ".join(pretty.split()) == tree.bracket()
    assert all(len(line.rstrip(")")) <= 20 for line in tree.pretty(width=20).splitlines() if line.count("(") > 1)


@given(trees())
def test_pickle_and_spans(tree):
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree
    assert hash(again) == hash(tree)
    words = tree.leaves()
    assert len(words) == len(tree.pos())

    def expected(node: Tree, start: int) -> tuple[int, list[Span]]:
        if isinstance(node.children[0], str):
            return start + 1, [Span(start, start, node.label)]
        inside: list[Span] = []
        end = start
        for child in node.children:
            end, below = expected(child, end)
            inside += below
        return end, [Span(start, end - 1, node.label), *inside]

    length, spans = expected(tree, 0)
    assert length == len(words)
    assert list(tree.spans(preterminals=True)) == spans


def test_deep_trees_need_no_recursion():
    tree = other = Tree("X", "w")
    for _ in range(5000):
        tree, other = Tree("Y", [tree, Tree("Z", "v")]), Tree("Y", [other, Tree("Z", "v")])
    assert tree == other
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert parse_tree(tree.pretty(indent=0)) == tree
    assert tree.spans()[0] == Span(0, 5000, "Y")
    assert tree.map_labels(str.lower) != tree
