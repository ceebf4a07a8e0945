"""Choosing rerankers on training lists, and the benchmark's command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rerank_cases import lists

from benchmarks.rerank import main
from structlearn.experiments.rerank_models import Prepared, Shape, folds, out_of_fold, tuned, voting
from structlearn.reranking import CandidateFeatures, NBest, write_jsonl


def named(count: int, each: int = 3) -> list[NBest]:
    return [NBest(x.candidates, x.log_probs, x.gold, f"d{i // each:02}:{i % each}") for i, x in enumerate(lists(count))]


def test_folds_keep_documents_together_and_leave_nothing_out() -> None:
    found = named(31)
    parts = folds(found, 4)
    assert sorted(i for part in parts for i in part) == list(range(31))
    documents = [{found[i].name.partition(":")[0] for i in part} for part in parts]
    assert all(parts)
    assert sum(map(len, documents)) == len(set.union(*documents))


def test_prepared_features_differ_between_candidates_as_those_of_the_list() -> None:
    train, test = named(40)[:30], named(40)[30:]
    plain, kept = CandidateFeatures().fit(train), Prepared([*train, *test]).among(train)
    assert kept.index == plain.index
    for item in test:
        some = item.keep(range(0, len(item), 2))
        # A shorter list shares more, which is left out of all its candidates alike.
        ours, theirs = (features.transform([some]).rows.toarray() for features in (kept, plain))
        np.testing.assert_array_equal(ours - ours[:1], theirs - theirs[:1])


def test_a_document_is_voted_on_by_models_that_have_not_seen_it() -> None:
    train = named(24)
    features, shape = Prepared(train), Shape(2, 1, 0.1)
    [votes] = out_of_fold(lambda: voting(features, shape), train, 3)
    held = folds(train, 3)[1]
    model = voting(features, shape).fit([x for i, x in enumerate(train) if i not in held])
    for i, v in zip(held, model.votes([train[i] for i in held]), strict=True):
        np.testing.assert_allclose(votes[i], v)
    best = tuned(lambda s: voting(features, s), [shape, Shape(1, 2, 0.1)], train, 3)
    assert (best.model.slices, best.model.width) in {(2, 1), (1, 2)}
    assert len(best.predict(train)) == 24


def test_benchmark_prints_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(tmp_path / "lists.jsonl", named(40))
    options = ["--lists", str(tmp_path / "lists.jsonl"), "--train", "16", "--trees", "20", "--slices", "2"]
    main(options)
    told = capsys.readouterr().out
    assert told.count("| linear |") == 6
    assert told.count("| tree kernel |") == 2
    assert "x plain Python" in told
