import gzip
import random
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PYEVALB import parser, scorer

from structlearn.data.treebank import parse_tree
from structlearn.errors import LabelError, ShapeError
from structlearn.metrics import (
    COLLINS,
    BracketCounts,
    BracketRules,
    BracketScore,
    bracket_counts,
    bracket_scores,
    constituents,
)
from structlearn.trees import Span, Tree


def counts(predicted: str, gold: str, rules: BracketRules = COLLINS) -> BracketCounts | None:
    return bracket_counts(parse_tree(predicted), parse_tree(gold), rules)


# (gold, predicted, matched, predicted constituents, gold constituents, crossing, words, right tags), worked by hand.
WORKED = {
    "all right": ("(S (A a) (X (B b) (C c)))", "(S (A a) (X (B b) (C c)))", 2, 2, 2, 0, 3, 3),
    "label": ("(S (A a) (X (B b) (C c)))", "(S (A a) (Y (B b) (C c)))", 1, 2, 2, 0, 3, 3),
    "crossing": ("(S (A a) (X (B b) (C c)))", "(S (X (A a) (B b)) (C c))", 1, 2, 2, 1, 3, 3),
    "a tag is no constituent": ("(S (A a) (B b))", "(S (A a) (C b))", 1, 1, 1, 0, 2, 1),
    "function tags": ("(S (NP-SBJ-1 (A a)) (PP=2 (B b)))", "(S (NP (A a)) (PP (B b)))", 3, 3, 3, 0, 2, 2),
    "top": ("(TOP (S (A a)))", "(S (A a))", 1, 1, 1, 0, 1, 1),
    "unnamed top": ("((S (A a)))", "(ROOT (S (A a)))", 1, 1, 1, 0, 1, 1),
    "inner top too": ("(S (TOP (A a)))", "(S (A a))", 1, 1, 1, 0, 1, 1),
    "traces and what holds only traces": (
        "(S (NP (-NONE- *)) (VP (A a) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))))",
        "(S (VP (A a)))",
        *(2, 2, 2, 0, 1, 1),
    ),
    # Without the comma NP ends at b in both.
    "punctuation": ("(S (NP (A a) (B b) (, ,)) (C c))", "(S (NP (A a) (B b)) (, ,) (C c))", 2, 2, 2, 0, 3, 3),
    "a dollar is a word": ("(S (NP ($ $) (CD 5)))", "(S (NP ($ $)) (CD 5))", 1, 2, 2, 0, 2, 2),
    "particles are adverbs": (
        "(S (PRT (RP up)) (ADVP (RB far)))",
        "(S (ADVP (RP up)) (PRT (RB far)))",
        3,
        3,
        3,
        0,
        2,
        2,
    ),
    # n gold and m predicted copies of one constituent match min(n, m) times.
    "repeated in gold": ("(S (NP (NP (A a) (B b))))", "(S (NP (A a) (B b)))", 2, 2, 3, 0, 2, 2),
    "repeated in the prediction": ("(S (NP (A a) (B b)))", "(S (NP (NP (NP (A a) (B b)))))", 2, 4, 2, 0, 2, 2),
    "chains in another order": ("(X (Y (A a) (B b)))", "(Y (X (A a) (B b)))", 2, 2, 2, 0, 2, 2),
    # Each predicted constituent crosses at most once, however many gold ones it cuts.
    "crossing counts predictions": (
        "(S (X (Y (A a) (B b)) (C c)) (D d))",
        "(S (A a) (Z (B b) (W (C c) (D d))))",
        *(1, 3, 3, 2, 4, 4),
    ),
}


@pytest.mark.parametrize(("gold", "predicted", "m", "p", "g", "crossing", "words", "tags"), WORKED.values(), ids=WORKED)
def test_worked_examples(gold, predicted, m, p, g, crossing, words, tags):
    assert counts(predicted, gold) == BracketCounts(m, p, g, crossing, words, tags)


def test_constituents():
    tree = parse_tree("((S (NP-SBJ (`` ``) (A a)) (VP (-NONE- *) (B b) (PRT (C c))) ('' '') (. .)))")
    assert constituents(tree) == [Span(0, 2, "S"), Span(0, 0, "NP"), Span(1, 2, "VP"), Span(2, 2, "ADVP")]
    assert len(constituents(tree, BracketRules())) == 5


def test_scores_of_a_corpus():
    gold = ["(S (A a) (X (B b) (C c)))", "(S (X (A a) (B b)) (Y (C c) (D d)))", "(S (. .))"]
    predicted = ["(S (A a) (X (B b) (C c)))", "(S (A a) (Z (B b) (W (C c) (E d))))", "(S (. .))"]
    scores = bracket_scores(map(parse_tree, predicted), map(parse_tree, gold))
    # Sentence 1: 2 of 2 and 2. Sentence 2: S alone of 3 and 3, Z crosses X. Sentence 3 has no word left.
    assert scores.recall == scores.precision == scores.f1 == pytest.approx(3 / 5)
    assert (scores.exact, scores.crossing, scores.no_crossing, scores.two_crossing) == (0.5, 0.5, 0.5, 1.0)
    assert scores.tag_accuracy == pytest.approx(6 / 7)
    assert (scores.sentences, scores.skipped) == (2, 1)


def test_f1_is_the_harmonic_mean():
    scores = bracket_scores([parse_tree("(S (X (Y (A a) (B b)) (C c)))")], [parse_tree("(S (A a) (B b) (C c))")])
    assert (scores.recall, scores.precision, scores.f1) == (1.0, 1 / 3, 0.5)
    empty = bracket_scores([], [])
    assert (empty.recall, empty.precision, empty.f1, empty.sentences) == (0.0, 0.0, 0.0, 0)


def test_disagreement_on_punctuation_skips_and_other_words_raise():
    assert counts("(S (A a) (NN ,))", "(S (A a) (, ,))") is None
    assert bracket_scores([parse_tree("(S (A a) (NN ,))")], [parse_tree("(S (A a) (, ,))")]).skipped == 1
    with pytest.raises(
        LabelError, match="predicted: expected a tree over the words of the gold tree, got 'a b', gold 'a c'"
    ):
        counts("(S (A a) (B b))", "(S (A a) (B c))")
    with pytest.raises(
        ShapeError, match="predicted: expected 1 trees, as gold, got 0; give one tree for every sentence"
    ):
        bracket_scores([], [parse_tree("(S (A a))")])


def random_tree(draw: random.Random, tags: list[str], first: int = 0, last: int | None = None) -> Tree:
    """Any tree over words w0, w1, ...: 1 to 4 children a node, chains included."""
    last = len(tags) - 1 if last is None else last
    label = draw.choice(["S", "NP", "VP-X", "PRT", "ADVP"])
    if first == last and draw.random() < 0.7:
        inside = Tree(tags[first], f"w{first}")
        return Tree(label, [inside]) if draw.random() < 0.5 else inside
    cuts = sorted(draw.sample(range(first, last), min(draw.randint(0, 3), last - first)))
    starts, ends = [first, *[c + 1 for c in cuts]], [*cuts, last]
    return Tree(label, [random_tree(draw, tags, s, e) for s, e in zip(starts, ends, strict=True)])


def by_hand(tree: Tree) -> Tree | None:
    """Deletion and renaming written again, so that the other program, which has neither, sees plain trees."""
    if tree.is_preterminal:
        return None if tree.label in {",", ".", "-NONE-"} else tree
    children = [child for child in map(by_hand, tree.subtrees) if child is not None]
    label = tree.label.split("-")[0]
    return Tree("ADVP" if label == "PRT" else label, children) if children else None


def pairs():
    def make(seed: int, size: int) -> tuple[Tree, Tree]:
        draw = random.Random(seed)
        gold_tags = [draw.choice(["A", "B", "C", ",", "-NONE-"]) for _ in range(size)]
        tags = [draw.choice("ABC") if tag in "ABC" else tag for tag in gold_tags]
        return Tree("TOP", [random_tree(draw, tags)]), Tree("TOP", [random_tree(draw, gold_tags)])

    return st.builds(make, st.integers(0, 2**32), st.integers(1, 9))


@given(pairs())
def test_agrees_with_pyevalb(pair):
    predicted, gold = pair
    ours = bracket_counts(predicted, gold)
    plain_predicted, plain_gold = by_hand(predicted), by_hand(gold)
    if plain_gold is None or plain_predicted is None:
        assert ours is None
        return
    spans = [plain_predicted.spans(), plain_gold.spans()]
    # That program counts repeated constituents once; the worked examples cover them.
    assume(all(len(set(s)) == len(s) for s in spans))
    theirs = scorer.Scorer().score_trees(
        *[parser.create_from_bracket_string(t.bracket()) for t in (plain_gold, plain_predicted)]
    )
    assert ours is not None
    # It counts the top node, which is always matched.
    assert (ours.matched + 1, ours.predicted + 1, ours.gold + 1) == (
        theirs.matched_brackets,
        theirs.test_brackets,
        theirs.gold_brackets,
    )
    assert (ours.crossing, ours.words, ours.tags) == (theirs.cross_brackets, theirs.words, theirs.correct_tags)


@given(st.lists(pairs(), min_size=1, max_size=6))
def test_metric_over_batches_is_the_function(corpus):
    predicted, gold = [p for p, _ in corpus], [g for _, g in corpus]
    metric = BracketScore()
    metric.update(predicted[:2], gold[:2])
    metric.update(predicted[2:], gold[2:])
    result = metric.compute()
    expected = bracket_scores(predicted, gold)._asdict()
    assert {name: value.item() for name, value in result.items()} == pytest.approx(expected)
    assert all(value.dtype == torch.float32 for value in result.values())
    metric.reset()
    assert metric.totals.sum() == 0


@pytest.mark.corpus
def test_scores_published_for_a_parser(data_dir: Path):
    blocks = gzip.decompress((data_dir / "nbest" / "wsj01.nbest.gz").read_bytes()).decode("ascii").strip().split("\n\n")
    lines = [block.split("\n") for block in blocks]
    gold = [parse_tree(line[1].split("\t")[1]) for line in lines]
    first = [parse_tree(line[2].split("\t")[1]) for line in lines]
    scores = bracket_scores(first, gold)
    assert [f"{100 * x:.2f}" for x in (scores.precision, scores.recall, scores.f1)] == ["89.37", "88.20", "88.78"]
    assert round(scores.exact * scores.sentences) == 676
    assert bracket_scores(gold, gold)[:4] == (1.0, 1.0, 1.0, 1.0)
