import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from structlearn.baselines import PCFG, Lexicon
from structlearn.data.treebank import TreebankGrammar, extract_grammar, parse_tree, read_treebank
from structlearn.errors import ArgumentError, ShapeError, TreeError
from structlearn.trees import Tree

BANK = [
    "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (JJ red) (NN cat))) (. .))",
    "(S (NP (PRP she)) (VP (VBZ sleeps)) (. .))",
    "(S (NP (DT the) (JJ old) (JJ red) (NN dog)) (VP (VBZ sees) (NP (PRP him))))",
    "(NP (DT a) (NN cat))",
    "(FRAG (NN dog))",
]


def bank() -> list[Tree]:
    return [parse_tree(text) for text in BANK]


def rules_of(grammar: TreebankGrammar) -> dict[tuple[str, ...], int]:
    names = [tuple(grammar.symbols[s] for s in rule) for rule in grammar.rules.tolist()]
    return dict(zip(names, grammar.rule_counts.tolist(), strict=True))


def shares(model: PCFG) -> dict[tuple[str, ...], float]:
    names = [tuple(model.grammar.symbols[s] for s in rule) for rule in model.grammar.rules.tolist()]
    return dict(zip(names, model.rule_scores.exp().tolist(), strict=True))


def test_extraction_by_hand():
    grammar = extract_grammar(bank(), h=1)
    assert grammar.nonterminals == ("@NP~DT", "@NP~JJ", "@S~NP", "NP", "S", "VP")
    assert grammar.preterminals == (".", "DT", "FRAG+NN", "JJ", "NN", "NP+PRP", "VBZ", "VP+VBZ")
    assert rules_of(grammar) == {
        ("@NP~DT", "JJ", "NN"): 1,
        ("@NP~DT", "JJ", "@NP~JJ"): 1,
        ("@NP~JJ", "JJ", "NN"): 1,
        ("@S~NP", "VP", "."): 1,
        ("@S~NP", "VP+VBZ", "."): 1,
        ("NP", "DT", "NN"): 2,
        ("NP", "DT", "@NP~DT"): 2,
        ("S", "NP", "@S~NP"): 1,
        ("S", "NP+PRP", "@S~NP"): 1,
        ("S", "NP", "VP"): 1,
        ("VP", "VBZ", "NP"): 1,
        ("VP", "VBZ", "NP+PRP"): 1,
    }
    roots = {name: n for name, n in zip(grammar.symbols, grammar.root_counts.tolist(), strict=True) if n}
    assert roots == {"S": 3, "NP": 1, "FRAG+NN": 1}
    assert grammar.rules.dtype == grammar.rule_counts.dtype == torch.int64
    assert grammar.rules.tolist() == sorted(grammar.rules.tolist())
    words = {(grammar.preterminals[p], word): n for (p, word), n in grammar.word_counts.items()}
    assert words[("DT", "the")] == 2
    assert words[("NP+PRP", "she")] == 1
    assert sum(words.values()) == sum(len(tree.leaves()) for tree in bank())


def test_a_label_may_be_both_kinds_of_symbol():
    grammar = extract_grammar([parse_tree("(X (X a) (Y (X b) (Y c)))")])
    assert grammar.nonterminals == ("X", "Y")
    assert grammar.preterminals == ("X", "Y")
    assert grammar.rules.tolist() == [[0, 2, 1], [1, 2, 3]]


def test_one_word_sentences_alone():
    grammar = extract_grammar([parse_tree("(FRAG (UH oh))")])
    assert grammar.rules.shape == (0, 3)
    assert grammar.symbols == ("FRAG+UH",)
    assert grammar.root_counts.tolist() == [1]
    assert PCFG.fit([parse_tree("(FRAG (UH oh))")]).log_prob(parse_tree("(FRAG (UH so))")) == 0.0


def test_rule_ids_are_the_derivation():
    grammar = extract_grammar(bank())
    for tree in bank():
        ids = grammar.rule_ids(tree)
        cnf = grammar.to_cnf(tree)
        nodes = [node for node in cnf.preorder() if not node.is_preterminal]
        expected = [(n.label, *[c.label for c in n.subtrees]) for n in nodes]
        assert [tuple(grammar.symbols[s] for s in grammar.rules[r].tolist()) for r in ids] == expected
        assert grammar.from_cnf(cnf) == tree
    assert grammar.rule_ids(parse_tree("(S (DT the) (NN dog))")) is None
    assert grammar.rule_ids(parse_tree("(S (XX the) (NN dog))")) is None
    assert grammar.rule_ids(parse_tree("(FRAG (NN dog))")) == []
    assert grammar.rule_ids(parse_tree("(FRAG (XX dog))")) is None


def test_extraction_refuses():
    with pytest.raises(TreeError, match=r"unnamed top node; pass the trees through treebank\.clean"):
        extract_grammar([parse_tree("((S (NN a) (NN b)))")])
    with pytest.raises(ShapeError, match="trees: expected at least one tree, got none"):
        extract_grammar([])


def test_relative_frequencies():
    model = PCFG.fit(bank(), h=1, smoothing=0)
    found = shares(model)
    assert found[("NP", "DT", "NN")] == pytest.approx(1 / 2)
    assert found[("S", "NP", "VP")] == pytest.approx(1 / 3)
    assert found[("@NP~JJ", "JJ", "NN")] == pytest.approx(1.0)
    assert math.exp(model.root_scores.max()) == pytest.approx(3 / 5)
    tree = parse_tree("(NP (DT a) (JJ old) (NN cat))")
    assert model.log_prob(tree) == pytest.approx(math.log(1 / 5 * 1 / 2 * 1 / 2))
    assert model.log_prob(parse_tree("(NP (NN cat) (DT a))")) == -math.inf


def test_smoothing_by_hand():
    trees = [
        *bank(),
        parse_tree("(NP (JJ old) (JJ red) (NN dog) (NN cat))"),
        parse_tree("(NP (NN a) (DT b) (CD c) (NN d))"),
    ]
    found = shares(PCFG.fit(trees, h=2, smoothing=2.0))
    # States with JJ last saw three things: JJ saw (JJ, on); JJ JJ saw (NN, end NN); DT JJ saw (JJ, end NN).
    # For DT JJ, g n = 2: what it saw has (1 + 2/3) / (1 + 2), the others (2/3) / 3; on with JJ leads to state JJ JJ.
    assert found[("@NP~DT~JJ", "JJ", "NN")] == pytest.approx(5 / 9)
    assert found[("@NP~DT~JJ", "NN", "NN")] == pytest.approx(2 / 9)
    assert found[("@NP~DT~JJ", "JJ", "@NP~JJ~JJ")] == pytest.approx(2 / 9)
    # NN DT saw (CD, end NN); DT saw (JJ, end NN) and (JJ, on), which leads to the state DT JJ.
    assert found[("@NP~NN~DT", "CD", "NN")] == pytest.approx(5 / 9)
    assert found[("@NP~NN~DT", "JJ", "NN")] == pytest.approx(2 / 9)
    assert found[("@NP~NN~DT", "JJ", "@NP~DT~JJ")] == pytest.approx(2 / 9)
    # The first two children of a node are not smoothed.
    assert found[("NP", "DT", "NN")] == pytest.approx(2 / 6)


def test_continuations_to_unknown_states_are_left_out():
    trees = [parse_tree("(X (A a) (B b) (C c) (D d))"), parse_tree("(X (E a) (B b) (F c) (D d) (G g) (H h))")]
    # A B saw (C, end D) and takes (F, on) from E B; both go on to the state B F.
    found = shares(PCFG.fit(trees, h=2, smoothing=1.0))
    assert found[("@X~A~B", "C", "D")] == pytest.approx(3 / 4)
    assert found[("@X~A~B", "F", "@X~B~F")] == pytest.approx(1 / 4)
    # With the whole history remembered, A B F is no state, so the 3/4 that is left becomes 1.
    found = shares(PCFG.fit(trees, h=None, smoothing=1.0))
    assert found[("@X~A~B", "C", "D")] == pytest.approx(1.0)


def random_trees():
    labels = st.sampled_from(["S", "NP", "VP"])
    leaf = st.builds(Tree, st.sampled_from(["A", "B", "C"]), st.sampled_from(["a", "Bc", "c-1"]))
    node = st.recursive(
        leaf, lambda below: st.builds(Tree, labels, st.lists(below, min_size=1, max_size=5)), max_leaves=14
    )
    return st.lists(node, min_size=1, max_size=6)


ORDERS = st.sampled_from([(0, 1), (1, 1), (2, 1), (3, 2), (None, 1), (1, 3)])


@given(random_trees(), st.sampled_from(["left", "right"]), ORDERS, st.sampled_from([0.0, 0.3, 2.0]))
def test_probabilities(trees, direction, order, smoothing):
    h, v = order
    model = PCFG.fit(trees, direction=direction, h=h, v=v, smoothing=smoothing)
    totals = Counter()
    for (parent, _, _), score in zip(model.grammar.rules.tolist(), model.rule_scores.tolist(), strict=True):
        totals[parent] += math.exp(score)
    assert set(totals) == set(range(len(model.grammar.nonterminals)))
    assert all(total == pytest.approx(1.0, abs=1e-5) for total in totals.values())
    assert float(model.root_scores.exp().sum()) == pytest.approx(1.0)
    assert all(model.log_prob(tree) > -math.inf for tree in trees)
    plain = rules_of(extract_grammar(trees, direction=direction, h=h, v=v))
    assert {rule: count for rule, count in rules_of(model.grammar).items() if count} == plain


@given(random_trees(), st.sampled_from(["left", "right"]))
def test_whole_histories_are_the_unbinarised_grammar(trees, direction):
    """By the chain rule: with every sibling remembered, intermediate shares multiply to those of whole rules."""

    def wide(node: Tree, children: list[Tree]) -> Tree:
        # Chains are remembered by their outermost label only, so there are none here.
        if node.is_preterminal:
            return node
        return Tree(node.label, children) if len(children) > 1 else children[0]

    trees = [tree.fold(wide) for tree in trees]
    model = PCFG.fit(trees, direction=direction, h=None, smoothing=0)
    nodes = [n for tree in trees for n in tree.preorder() if not n.is_preterminal]
    rules = Counter((n.label, *[(c.label, c.is_preterminal) for c in n.subtrees]) for n in nodes)
    parents = Counter(n.label for n in nodes)
    roots = Counter((tree.label, tree.is_preterminal) for tree in trees)
    for tree in trees:
        expected = math.log(roots[tree.label, tree.is_preterminal] / len(trees))
        for n in tree.preorder():
            if not n.is_preterminal:
                expected += math.log(
                    rules[(n.label, *[(c.label, c.is_preterminal) for c in n.subtrees])] / parents[n.label]
                )
        assert model.log_prob(tree) == pytest.approx(expected, abs=1e-4)


def test_terms():
    model = PCFG.fit(bank(), h=1)
    names = list(model.grammar.preterminals)
    terms = model.terms([["a", "b"], ["c"]], [["NN", "PRP"], ["new"]])
    assert terms.shape == (2, 2, len(names))
    allowed = [[names[p] for p in (row > -math.inf).nonzero().flatten().tolist()] for row in terms.flatten(0, 1)]
    assert allowed == [["FRAG+NN", "NN"], ["NP+PRP"], names, names]
    scored = model.terms([["the", "cat"], ["cat"]])
    assert scored.shape == (2, 2, len(names))
    assert scored[0, 0].argmax() == names.index("DT")
    assert scored[0, 1, names.index("NN")] == scored[0, 1, names.index("FRAG+NN")]
    assert scored[1, 1].tolist() == [0.0] * len(names)
    assert model.terms([]).shape == (0, 0, len(names))
    with pytest.raises(ShapeError, match="tags: expected one for every word"):
        model.terms([["a", "b"]], [["NN"]])


def test_lexicon_by_hand():
    lexicon = Lexicon(
        [[("The", "DT"), ("dog", "NN")], [("Dogs", "NNS"), ("dog", "VB"), ("dog", "NN")]], rare=1, weight=1.0
    )
    assert lexicon.tags == ("DT", "NN", "NNS", "VB")
    # Rare words: The DT, Dogs NNS, both capitalised at the start. Nothing known of "cat" but that it is lower case,
    # which no rare word was: uniform 1/4, then (c + 2 / 4) / (2 + 2) over the two rare words.
    p = lexicon.probabilities("cat")
    assert p == pytest.approx({"DT": 3 / 8, "NN": 1 / 8, "NNS": 3 / 8, "VB": 1 / 8})
    # "Cats" at the start: the same two words have its shape, then "s" is only Dogs, and "ts" is nobody's.
    shape = {tag: (n + 2 * q) / 4 for (tag, q), n in zip(p.items(), (1, 0, 1, 0), strict=True)}
    ending = {tag: (n + q) / 2 for (tag, q), n in zip(shape.items(), (0, 0, 1, 0), strict=True)}
    assert lexicon.probabilities("Cats", first=True) == pytest.approx(ending)
    assert lexicon.probabilities("dog")["NN"] == pytest.approx((2 + 1 / 8) / 4)
    scores = lexicon.scores(["dog"])
    assert scores[0, 1].item() == pytest.approx(math.log((2 + 1 / 8) / 4 / (2 / 5)))


@given(random_trees(), st.text("aBc1-", max_size=5), st.booleans())
def test_lexicon_probabilities(trees, word, first):
    lexicon = Lexicon([tree.pos() for tree in trees], cutoff=0.0)
    assert sum(lexicon.probabilities(word, first=first).values()) == pytest.approx(1.0)
    assert torch.isfinite(lexicon.scores([word, "a"])).all()
    assert Lexicon([tree.pos() for tree in trees], cutoff=0.9).scores([word]).isfinite().any()


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match="smoothing: expected a number >= 0, got -1"):
        PCFG.fit(bank(), smoothing=-1)
    with pytest.raises(ArgumentError, match="rare >= 1, weight > 0"):
        Lexicon([[("a", "A")]], weight=0)
    with pytest.raises(ShapeError, match="sentences: expected at least one tagged word"):
        Lexicon([])
    with pytest.raises(
        ArgumentError, match=r"lexicon: expected every part of speech of the grammar, got none of \['\.', 'DT'"
    ):
        PCFG.fit(bank(), lexicon=Lexicon([[("a", "NN")]]))


@pytest.mark.corpus
def test_grammar_of_the_treebank(data_dir: Path):
    trees = [tree for tree in read_treebank(data_dir / "treebank") if len(tree.leaves()) <= 40]
    grammar = extract_grammar(trees)
    assert (len(grammar.nonterminals), len(grammar.preterminals), len(grammar.rules)) == (1122, 143, 5740)
    assert int(grammar.root_counts.sum()) == len(trees) == 3629
    assert int(grammar.rule_counts.sum()) == sum(len(tree.leaves()) - 1 for tree in trees)
    assert all(grammar.rule_ids(tree) is not None for tree in trees[::20])
