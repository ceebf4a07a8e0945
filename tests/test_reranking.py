"""N-best lists, their features, preference kernels and voting."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest
from rerank_cases import lists, random_tree

from structlearn import tasks
from structlearn.baselines import PCFG
from structlearn.brackets import COLLINS
from structlearn.commands.predict import predictions
from structlearn.data import modules
from structlearn.data.brackets import parse_tree
from structlearn.errors import ArgumentError, FormatError, LabelError, ShapeError
from structlearn.metrics.brackets import bracket_counts
from structlearn.reranking import (
    CandidateFeatures,
    LinearKernel,
    NBest,
    SingleCandidateSVM,
    VotedPerceptron,
    VotingReranker,
    kbest_lists,
    paired_bootstrap,
    preference_kernel,
    read_blocks,
    read_jsonl,
    write_jsonl,
)
from structlearn.reranking.combine import choose, tune
from structlearn.reranking.forest import Forest
from structlearn.reranking.matches import Matches, corpus_scores
from structlearn.reranking.preference import train_preferences
from structlearn.reranking.training import train_voting
from structlearn.trees import Tree

GOLD = "(S (NP (DT the) (NN dog)) (VP (VBZ runs)) (. .))"
FLAT = "(S (DT the) (NN dog) (VP (VBZ runs)) (. .))"
WRONG = "(S (NP (DT the)) (VP (NN dog) (VP (VBZ runs))) (NN .))"


def example(gold: str | None = GOLD) -> NBest:
    trees = [parse_tree(text) for text in (FLAT, GOLD, WRONG, GOLD)]
    return NBest(trees, [-1.0, -3.0, -2.0, -3.0], None if gold is None else parse_tree(gold), "one")


def test_best_first_and_others() -> None:
    item = example()
    assert item.quality == pytest.approx([0.8, 1.0, 2 * 2 / 7, 1.0])
    assert (item.best, item.first, item.others) == (1, 0, [0, 2])
    assert item.brackets == [2, 3, 4, 3]


def test_gold_outside_the_list() -> None:
    item = example().keep([2, 0])
    assert item.best == 1
    assert item.others == [0]
    assert corpus_scores([item.counts[item.best]]).f1 == pytest.approx(0.8)


def test_counts_are_those_of_the_metric() -> None:
    rng = random.Random(3)
    for item in lists(20):
        gold = item.gold
        assert gold is not None
        assert [tuple(c) for c in item.counts] == [tuple(_metric(tree, gold))[:4] for tree in item.candidates]
    for _ in range(50):
        trees = [random_tree(rng, 5) for _ in range(4)]
        trees = [_with_leaves(tree, trees[0].leaves()) for tree in trees]
        found = NBest(trees, [0.0] * 4, trees[0]).counts
        assert [tuple(c) for c in found] == [tuple(_metric(tree, trees[0]))[:4] for tree in trees]


def _with_leaves(tree: Tree, leaves: tuple[str, ...]) -> Tree:
    rest = iter(leaves)
    return tree.fold(lambda node, below: Tree(node.label, next(rest) if node.is_preterminal else below))


def _metric(tree: Tree, gold: Tree) -> tuple[int, ...]:
    counts = bracket_counts(tree, gold, COLLINS)
    assert counts is not None
    return counts


def test_a_wrong_tag_of_punctuation_does_not_drop_the_sentence() -> None:
    item = example()
    assert bracket_counts(item.candidates[2], parse_tree(GOLD)) is None
    assert item.counts[2].predicted == 4


def test_lists_check_their_arguments() -> None:
    tree = parse_tree(GOLD)
    with pytest.raises(ShapeError, match="candidates: expected at least one tree"):
        NBest([], [])
    with pytest.raises(ShapeError, match="log_probs: expected 1 numbers"):
        NBest([tree], [0.0, 1.0])
    with pytest.raises(LabelError, match="finite"):
        NBest([tree], [float("nan")])
    with pytest.raises(LabelError, match="gold: expected a tree, got None in 'one'"):
        _ = example(None).best
    with pytest.raises(LabelError, match="candidate 0 of '' over 'other'"):
        _ = NBest([parse_tree("(S (NN other))")], [0.0], tree).best


def test_jsonl_round_trip(tmp_path: Path) -> None:
    for name in ("lists.jsonl", "lists.jsonl.gz"):
        given = [example(), example(None), example().keep([0])]
        write_jsonl(tmp_path / name, given)
        for a, b in zip(read_jsonl(tmp_path / name), given, strict=True):
            assert (list(a.candidates), list(a.log_probs)) == (list(b.candidates), list(b.log_probs))
            assert (a.gold, a.name) == (b.gold, b.name)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "expected JSON, got Expecting property name"),
        ("[]", "one JSON object per line"),
        ('{"candidates": []}', "'candidates', a list of at least one"),
        ('{"candidates": [{"log_prob": 1}]}', "candidates with 'tree' and 'log_prob'"),
        ('{"candidates": [{"tree": "(A (B c))"}]}', "a finite log-probability"),
        ('{"candidates": [{"tree": "(A (B c))", "log_prob": "x"}]}', "a finite log-probability"),
        ('{"candidates": [{"tree": "(A (B c)", "log_prob": 0}]}', "every '\\('"),
        ('{"candidates": [{"tree": "(A (B c))", "log_prob": 0}], "gold": 3}', "'gold' as a bracket string"),
        ('{"candidates": [{"tree": "(A (B c))", "log_prob": 0}], "gold": "(A (B d))"}', "words of the sentence"),
    ],
)
def test_jsonl_errors_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text('{"candidates": [{"tree": "(A (B c))", "log_prob": 0}]}\n\n' + line + "\n")
    with pytest.raises(FormatError, match=rf"lists.jsonl:3: .*{message}"):
        read_jsonl(path)


def test_blocks(tmp_path: Path) -> None:
    path = tmp_path / "lists.gz"
    text = f"#\td\t0\t4\t2\nG\t{GOLD}\n-1.5\t{FLAT}\n-2.5\t{GOLD}\n\n#\td\t1\t1\t1\nG\t(A (B c))\n-1\t(A (B c))\n"
    path.write_bytes(gzip.compress(text.encode()))
    first, second = read_blocks(path)
    assert (first.name, first.best, first.log_probs) == ("d:0", 1, [-1.5, -2.5])
    assert (second.name, len(second)) == ("d:1", 1)
    path.write_bytes(gzip.compress(text.replace("-2.5\t", "-2.5 ").encode()))
    with pytest.raises(FormatError, match=r"lists.gz:4: "):
        read_blocks(path)


def test_forest_shares_equal_nodes_and_parses_as_the_reader() -> None:
    forest = Forest()
    trees = [parse_tree(text) for text in (GOLD, FLAT, GOLD)]
    roots = [forest.add(tree) for tree in trees]
    assert roots[0] == roots[2] != roots[1]
    assert [forest.trees[root] for root in roots] == trees
    assert len(set(forest.trees)) == len(forest)
    assert forest.parse(GOLD) is forest.trees[roots[0]]
    assert forest.parse(" ( (S (NN a)) )") == parse_tree(" ( (S (NN a)) )")
    with pytest.raises(FormatError, match="here:7"):
        forest.parse("(S (NN a)", source="here", line=7)


def test_features_count_what_the_tree_holds() -> None:
    item = NBest([parse_tree(GOLD)], [0.0])
    features = CandidateFeatures(min_lists=1)
    table = features.fit_transform([item])
    counts = {f: table.rows[0, i] for f, i in features.index.items()}
    assert counts["rule", "S", ("NP", "VP", ".")] == 1
    assert counts["grandparent", "S", "NP", ("DT", "NN")] == 1
    assert counts["headword", "S", "runs"] == 1
    assert counts["words", "L", "NP", "runs", "dog"] == 1
    assert counts["ngram", "NP", ("<", "DT")] == 1
    assert counts["length", "NP", 2] == 1
    assert counts["right",] == 2
    assert counts["off",] == 1


def test_features_leave_out_what_all_candidates_share() -> None:
    item = example().keep([0, 1])
    whole = CandidateFeatures(min_lists=1)
    whole.fit([NBest([tree], [0.0]) for tree in item.candidates])
    single = whole.transform([NBest([tree], [0.0]) for tree in item.candidates]).rows.toarray()
    shared = whole.transform([item]).rows.toarray()
    np.testing.assert_array_equal(shared - shared[0], single - single[0])
    assert shared.sum() < single.sum()


def test_features_are_chosen() -> None:
    features = CandidateFeatures(families=["rules"], min_lists=2).fit(lists(10))
    assert features.index
    assert {f[0] for f in features.index} == {"rule"}
    assert CandidateFeatures(min_lists=100).fit_transform(lists(10)).rows.shape == (60, 0)
    with pytest.raises(ArgumentError, match="families"):
        CandidateFeatures(families=["colour"])


def test_preference_kernel_is_an_inner_product_of_differences() -> None:
    trees = [tree for item in lists(6) for tree in item.candidates]
    features = CandidateFeatures(min_lists=1)
    phi = features.fit_transform([NBest([tree], [0.0]) for tree in trees]).rows.toarray()
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, len(trees), (2, 12, 2))
    first, second = ([(trees[i], trees[j]) for i, j in side] for side in pairs)
    differences = [phi[side[:, 0]] - phi[side[:, 1]] for side in pairs]
    found = preference_kernel(LinearKernel(features), first, second)
    np.testing.assert_allclose(found, differences[0] @ differences[1].T)
    gram = preference_kernel(LinearKernel(features), first, first)
    assert np.linalg.eigvalsh(gram).min() > -1e-9
    np.testing.assert_allclose(preference_kernel(LinearKernel(features), [p[::-1] for p in first], second), -found)


def test_the_intercept_is_zero_by_symmetry() -> None:
    rng = np.random.default_rng(1)
    differences = rng.standard_normal((40, 8)) + 0.3
    coefficients, intercept = train_preferences(differences @ differences.T, 0.5, tol=1e-8)
    assert abs(intercept) < 1e-6
    assert (coefficients >= -1e-9).all()
    assert (coefficients <= 1.0 + 1e-9).all()


@pytest.mark.parametrize(("slices", "width"), [(3, 1), (2, 2)])
def test_linear_mode_equals_kernel_mode(slices: int, width: int) -> None:
    train, test = lists(30), lists(10, seed=1)
    shape = {"slices": slices, "width": width}
    linear = VotingReranker(CandidateFeatures(min_lists=1), **shape, C=0.05, tol=1e-8).fit(train)
    kernel = VotingReranker(kernel=LinearKernel(linear.features), **shape, C=0.05, tol=1e-8, n_jobs=2).fit(train)
    assert linear.weights_.shape[0] == slices
    assert np.abs(kernel.intercepts_).max() < 1e-6
    for most in (1, None):
        pairs = zip(linear.votes(test, slices=most), kernel.votes(test, slices=most), strict=True)
        for a, b in pairs:
            np.testing.assert_allclose(a - a[0], b - b[0], atol=1e-5)
    assert linear.predict(test) == kernel.predict(test)


def test_voting_learns_what_the_parser_does_not_know() -> None:
    train, development, test = lists(120), lists(40, seed=1), lists(60, seed=2)
    model = VotingReranker(slices=4, C=0.1, n_jobs=2).fit(train, development)
    first = corpus_scores([item.counts[item.first] for item in test]).f1
    oracle = corpus_scores([item.counts[item.best] for item in test]).f1
    assert model.score(test) > first + 0.8 * (oracle - first)
    assert model.weights_.shape == (4, len(model.features.index))
    assert model.coef_.shape == (len(model.features.index),)
    again = VotingReranker(slices=4, C=0.1).fit(train, development)
    np.testing.assert_array_equal(again.weights_, model.weights_)


def test_lists_of_any_length_and_ties() -> None:
    train = [item.keep(range(1 + i % 6)) for i, item in enumerate(lists(60))]
    model = VotingReranker(slices=8, C=0.1).fit(train, train)
    assert 1 <= len(model.weights_) <= 5
    assert model.predict([train[0]]) == [0]
    tied = train[1].keep([0, 0, 0])
    assert model.predict([tied]) == [0]
    assert choose([tied], [np.zeros(3)]) == [0]
    assert choose([NBest(tied.candidates, [0.0, 1.0, 1.0])], [np.zeros(3)]) == [1]
    with pytest.raises(ShapeError, match="candidates of different quality"):
        VotingReranker().fit([tied])


def test_tuning_finds_the_weight_of_the_parser() -> None:
    rng = np.random.default_rng(0)
    given = [NBest(item.candidates, item.quality, item.gold) for item in lists(30)]
    weights = tune(given, [rng.standard_normal(len(item)) for item in given])
    assert weights.beta > 0
    assert choose(given, weights.combine(given, [np.zeros(len(item)) for item in given])) is not None


@pytest.mark.parametrize(
    ("options", "argument"),
    [({"slices": 0}, "slices"), ({"C": 0.0}, "C")],
)
def test_options_are_checked(options: dict[str, object], argument: str) -> None:
    with pytest.raises(ArgumentError, match=argument):
        VotingReranker(**options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="kernel"):
        VotingReranker(CandidateFeatures(), kernel=LinearKernel(CandidateFeatures()))


@pytest.mark.parametrize("model", [VotedPerceptron(slices=4, epochs=3), SingleCandidateSVM(slices=4, C=0.1)])
def test_baselines_learn(model: VotingReranker) -> None:
    train, development, test = lists(120), lists(40, seed=1), lists(60, seed=2)
    model.fit(train, development)
    first = corpus_scores([item.counts[item.first] for item in test]).f1
    assert model.score(test) > first + 0.1
    assert model.votes(test, slices=1)[0] == pytest.approx(model.votes(test)[0])


def test_bootstrap_tells_luck_from_gain() -> None:
    rng = random.Random(0)
    worse = [Matches(rng.randint(5, 8), 10, 10, 0) for _ in range(100)]
    better = [m._replace(matched=m.matched + rng.randint(0, 2)) for m in worse]
    gain = paired_bootstrap(better, worse, draws=500)
    assert gain.difference == pytest.approx(corpus_scores(better).f1 - corpus_scores(worse).f1)
    assert gain.low <= gain.difference <= gain.high
    assert gain.p == pytest.approx(1 / 501)
    assert paired_bootstrap(worse, better, draws=500).p == 1.0
    assert paired_bootstrap(worse, worse, draws=50).p == 1.0
    with pytest.raises(ShapeError, match="the same sentences"):
        paired_bootstrap(worse, worse[:3])


@pytest.mark.corpus
def test_lists_of_an_outside_parser(data_dir: Path, tmp_path: Path) -> None:
    """The first sentences of the corpus: the parser's choice, the best one, and the way through JSONL."""
    with gzip.open(data_dir / "nbest" / "wsj00.nbest.gz", "rt") as file:
        head = "".join(line for _, line in zip(range(53 * 20), file, strict=False))
    path = tmp_path / "head"
    path.write_text(head[: head.rindex("\n\n") + 1])
    found = read_blocks(path)
    assert found[0].name == "wsj_0001:0"
    first, best = ([item.counts[getattr(item, which)] for item in found] for which in ("first", "best"))
    assert 0.7 < corpus_scores(first).f1 < corpus_scores(best).f1 < 1
    write_jsonl(tmp_path / "lists.jsonl", found)
    assert [item.counts for item in read_jsonl(tmp_path / "lists.jsonl")] == [item.counts for item in found]


def test_lists_of_the_own_parser() -> None:
    gold = [item.gold for item in lists(40) if item.gold is not None]
    found = kbest_lists(PCFG.fit(gold), gold, 10, batch=7)
    assert [item.gold for item in found] == gold
    for item in found:
        assert list(item.log_probs) == sorted(item.log_probs, reverse=True)
        assert len(set(item.candidates)) == len(item) <= 10
        assert all(tree.leaves() == item.candidates[0].leaves() for tree in item.candidates)
    first, best = ([item.counts[getattr(item, which)] for item in found] for which in ("first", "best"))
    assert corpus_scores(first).f1 < corpus_scores(best).f1
    unseen = Tree("ROOT", [Tree("Z", "z")])
    assert kbest_lists(PCFG.fit(gold), [unseen, gold[0]], 2)[-1].gold == gold[0]
    with pytest.raises(ArgumentError, match="k: "):
        kbest_lists(PCFG.fit(gold), gold, 0)


def test_a_task_holds_the_votes_of_a_reranker() -> None:
    data = modules.RerankingData(examples=40, k=6)
    task = tasks.Reranking(data.codec)
    reranker = train_voting(task, data.examples("train"), data.examples("validation"), slices=3)
    test = data.examples("test")
    # The task's weights are float32: scores may differ in the sixth digit, choices where two are that close.
    for row, scores in zip(predictions(task, test), reranker.decision_function(test), strict=True):
        assert scores[row["output"]] == pytest.approx(max(scores), abs=1e-4)
    tagging = tasks.Tagging(modules.TaggingData(examples=8, sparse=True).codec)
    with pytest.raises(ArgumentError, match=r"model: expected structlearn\.tasks\.Reranking with its own map"):
        train_voting(tagging, [], [])
