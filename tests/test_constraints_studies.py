"""What the studies of constrained outputs rest on: bounds, the online perceptron, propositions, brackets, benchmark."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles import constraints as oracle

from benchmarks import constraints as benchmark
from structlearn.constraints import bounds, gold_violations
from structlearn.data.propbank import read_propbank
from structlearn.data.role_features import RoleCorpus
from structlearn.errors import ArgumentError, FormatError
from structlearn.experiments import constrained_np, constrained_srl
from structlearn.experiments import constrained_synthetic as synthetic
from structlearn.experiments.constrained_runs import Counts, f1, intervals


def test_bounds_by_hand() -> None:
    # d log(e m / d) = 100 (1 + log 10) at m = 1000
    expected = math.sqrt((100 * (1 + math.log(10)) + math.log(20)) / 1000)
    assert bounds.local_bound(1000, 100) == pytest.approx(expected)
    assert bounds.local_bound(1000, 100, optimum=0.1) == pytest.approx(expected + 0.1)
    m, c, d = 10**6, 5, 100
    growth = c * d * math.log(math.e * m / (c * d)) + c * c * d * math.log(3)
    assert bounds.global_bound(m, c, d) == pytest.approx(math.sqrt((growth + math.log(20)) / m))
    # Never more than all labellings.
    assert bounds.local_log_growth(10, 100) == pytest.approx(10 * math.log(2))
    assert bounds.global_log_growth(10, 5, 100) == pytest.approx(50 * math.log(2))


def test_bounds_cross_where_parts_alone_cannot_be_separated() -> None:
    assert bounds.crossing(5, 100, 0.0) is None
    easy, hard = bounds.crossing(5, 100, 0.1), bounds.crossing(5, 100, 0.2)
    assert easy is not None
    assert hard is not None
    assert hard < easy
    for m, above in ((0.9 * hard, True), (1.1 * hard, False)):
        assert (bounds.global_bound(m, 5, 100) > bounds.local_bound(m, 100, optimum=0.2)) == above
    with pytest.raises(ArgumentError, match="delta: expected a probability"):
        bounds.local_bound(10, 2, delta=0.0)
    with pytest.raises(ArgumentError, match="m: expected at least one"):
        bounds.global_bound(0, 2, 2)


def test_generated_problems_have_the_asked_share_outside_the_constraint() -> None:
    half, train, test = synthetic.draw(np.random.default_rng(0), 0.3, 100, 3, 6)
    assert half.shape == (4, 3)
    assert train.x.shape == (1, 100, 3, 7)
    assert test.y.shape == (1, 2000, 3)
    known = {tuple(y) for y in half.tolist()}
    assert all(tuple(y) in known for y in train.y[0].tolist())


@pytest.mark.parametrize("constrained", [False, True])
def test_the_online_perceptron_of_many_problems_is_that_of_each(constrained: bool) -> None:
    drawn = [synthetic.draw(np.random.default_rng(seed), 0.3, 12, 3, 4) for seed in range(2)]
    data = synthetic.Data(*(np.concatenate([one[1][i] for one in drawn]) for i in range(2)))
    half = np.stack([one[0] for one in drawn])
    found = synthetic.perceptron(data, half if constrained else None)
    for t in range(2):
        names = ["".join(map(str, y)) for y in half[t].tolist()]
        tests = [oracle.listed(names)] if constrained else []
        weight = np.zeros((3, 5))
        for _ in range(synthetic.CYCLES):
            for x, gold in zip(data.x[t], data.y[t], strict=True):
                f = (weight * x).sum(1)
                y, _, _ = oracle.best("01", np.stack([-f, f], 1), np.zeros((2, 2)), [], tests)
                assert y is not None
                weight += (gold - np.array([int(c) for c in y]))[:, None] * x
            if not constrained:
                break
        if constrained:  # a separating hypothesis exists: both stop at one
            assert (synthetic.best((found[t] * data.x[t]).sum(2)[None], half[t : t + 1])[0] == data.y[t]).all()
        else:
            once = synthetic.CYCLES
            synthetic.CYCLES = 1  # type: ignore[misc]
            try:
                np.testing.assert_allclose(synthetic.perceptron(data, None)[t], weight, atol=1e-9)
            finally:
                synthetic.CYCLES = once  # type: ignore[misc]


SENTENCE = """# made-up 0
The\tDT\t(TOP(S(NP(NP*\t-\t-\t(ARG0*\t*
woman\tNN\t*)\t-\t-\t*\t*
who\tWP\t(SBAR(WHNP*)\t-\t-\t(R-ARG0*)\t*
left\tVBD\t(S(VP*\tleave\tleave.01\t(V*)\t*
early\tRB\t(ADVP*)))))\t-\t-\t(ARGM-TMP*)\t*
was\tVBD\t(VP*\t-\t-\t*\t*
seen\tVBN\t(VP*\tsee\tsee.01\t*\t(V*)
at\tIN\t(PP*\t-\t-\t*\t(ARGM-LOC*
sea\tNN\t(NP*))))\t-\t-\t*\t*)
.\t.\t*))\t-\t-\t*\t*
"""


def test_propositions_and_their_candidates(tmp_path: Path) -> None:
    path = tmp_path / "one.conll"
    path.write_text(SENTENCE.replace("(ARG0*\t*\nwoman\tNN\t*)\t-\t-\t*\t*", "(ARG0*\t*\nwoman\tNN\t*)\t-\t-\t*)\t*"))
    (sentence,) = read_propbank(path)
    first, second = sentence.propositions
    assert (first.predicate, first.lemma, first.roleset) == (3, "leave", "leave.01")
    assert first.arguments == {(0, 1): "ARG0", (2, 2): "R-ARG0", (4, 4): "ARGM-TMP"}
    assert second.arguments == {(7, 8): "ARGM-LOC"}
    spans = [sentence.nodes[i][1:3] for i in sentence.candidates(second.predicate)]
    assert spans == [(0, 4), (5, 5), (7, 8), (7, 7), (8, 8)]
    assert sentence.words[sentence.nodes[sentence.candidates(first.predicate)[0]].head] == "woman"
    corpus = RoleCorpus([sentence])
    assert corpus.labels[0] == "NONE"
    batch = corpus.batch(torch.tensor([0, 1]), corpus.features)
    constraint = constrained_srl.role_constraint(corpus.labels)
    assert not gold_violations(constraint, batch.gold, corpus.labels, lengths=batch.lengths, spans=batch.spans)
    path.write_text(SENTENCE.replace("(NP*))))", "(NP*)"))
    with pytest.raises(FormatError, match="balanced brackets"):
        read_propbank(path)
    path.write_text(SENTENCE.replace("\tleave\tleave.01\t", "\t-\t-\t"))
    with pytest.raises(FormatError, match="expected 1 columns of arguments"):
        read_propbank(path)


@pytest.mark.corpus
def test_gold_roles_keep_the_constraints_and_candidates_hold_them(data_dir: Path) -> None:
    corpus = RoleCorpus(read_propbank(data_dir / "propbank" / "wsj20.conll.gz"), limit=1500)
    held = int((corpus.gold > 0).sum()) / sum(len(a) for a in corpus.arguments)
    assert held > 0.97
    batch = corpus.batch(torch.arange(len(corpus)), corpus.features[:, :1])
    constraint = constrained_srl.role_constraint(corpus.labels)
    broken = gold_violations(constraint, batch.gold, corpus.labels, lengths=batch.lengths, spans=batch.spans)
    # Only where an argument is no candidate can its continuation or reference stand alone.
    assert len({v.row for v in broken}) < 0.01 * len(corpus)
    assert all("without" in v.place for v in broken)


def test_brackets_to_phrases() -> None:
    no, close, opened, both = range(4)
    assert constrained_np.phrases([opened, no, close, both, no, opened, opened, close, close]) == {
        (0, 2),
        (3, 3),
        (6, 7),
    }
    corpus = constrained_np.BracketCorpus(constrained_np.generated(20, 0))
    rows, batch = next(iter(corpus.batches(torch.zeros_like(corpus.features))))
    for row, labels, n in zip(rows.tolist(), batch.gold.tolist(), corpus.lengths[rows].tolist(), strict=True):
        assert constrained_np.phrases(labels[:n]) == corpus.phrases[row]
    assert not gold_violations(constrained_np.NESTED, batch.gold, constrained_np.LABELS, lengths=batch.lengths)


def test_f1_and_paired_intervals() -> None:
    gold = np.full(50, 4)
    counts = {"LO": Counts(gold - 2, gold, gold), "L+I": Counts(gold - 1, gold, gold), "IBT": Counts(gold, gold, gold)}
    assert f1(counts["LO"]) == 50.0
    found = intervals(counts, 0)
    assert found["L+I - LO"] == (25.0, 0.0)
    assert found["IBT - L+I"] == (25.0, 0.0)


def test_the_benchmark_compares_before_it_times() -> None:
    calls, wrong, paths = benchmark._calls(quick=True)
    assert not wrong
    assert sum(paths.values()) == 4
    assert "chains, automaton" in calls
