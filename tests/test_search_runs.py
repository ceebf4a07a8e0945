"""Runs of learning as search: the benchmark's command, and the baseline of the experiments."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.laso import main
from structlearn.experiments.base import Settings
from structlearn.experiments.kept import Kept
from structlearn.experiments.search_runs import Outcome, Plan, columns, generated, held_out, prepare, row, train
from structlearn.experiments.semi_crf import structure
from structlearn.search import ChunkingSpace, beam_search


@pytest.mark.parametrize("task", ["chunking", "joint"])
def test_benchmark_runs(task: str, tmp_path: Path) -> None:
    options = [task, "--smoke", "--epochs", "1", "--beam", "3", "--threads", "1", "--results", str(tmp_path)]
    for strategy in ("laso", "early"):
        main([*options, "--strategy", strategy, *(["--held-out"] if strategy == "early" else [])])
    with (tmp_path / "laso.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["strategy"], row["held_out"]) for row in rows] == [("laso", "False"), ("early", "True")]
    assert all(0 <= float(row["f1"]) <= 100 and float(row["decode_tokens_per_s"]) > 0 for row in rows)


def test_held_out_sentences_are_not_learnt_from() -> None:
    sentences = generated(60, 0)
    inner, outer = held_out(sentences)
    assert (len(inner), len(outer)) == (12, 12)
    assert outer == sentences[48:]
    assert all(any(s is other for other in sentences[:48]) for s in inner)
    assert held_out(sentences, every=1) == (sentences[:48], sentences[48:])


def test_skipped_passes_do_not_count_in_the_average() -> None:
    corpus = prepare("chunking", generated(20, 0))
    means: dict[int, list[Tensor]] = {}
    for skip in (0, 1):
        latest: list[list[Tensor]] = []
        plan = Plan("x", update="perceptron", epochs=2, beam=2, batch=4, skip=skip)
        model, _ = train(
            "chunking", corpus, plan, after=lambda _, m, kept=latest: kept.append([w.clone() for w in m.parameters()])
        )
        means[skip] = [w.detach() for w in model.parameters()]
        first = latest[0]
    # Both passes have five batches: the mean of all is half the mean of the first and half that of the second.
    assert any(not torch.equal(a, b) for a, b in zip(means[0], means[1], strict=True))
    for both, one, two in zip(means[0], first, means[1], strict=True):
        torch.testing.assert_close(both, (one + two) / 2)


def test_row_is_the_mean_of_runs() -> None:
    found = [Outcome(90.0, 92.0, 91.0, None, 10.0, 2.0, 1000), Outcome(92.0, 94.0, 93.0, None, 20.0, 3.0, 1000)]
    cells = dict(zip(columns("chunking"), row(Plan("x", runs=2), found), strict=True))
    assert (cells["precision"], cells["recall"], cells["F"].value) == (91.0, 93.0, 92.0)
    assert cells["F"].half > 1
    assert (cells["F of each run"], cells["train, CPU s"], cells["decode, tokens/s"]) == ("91.00, 93.00", 15.0, 400)


def test_semi_crf_has_the_space_s_scores() -> None:
    draw = torch.Generator().manual_seed(0)
    segments, edges = torch.randn(3, 5, 2, 3, generator=draw), torch.randn(3, 5, 4, 3, generator=draw)
    space = ChunkingSpace(segments, torch.randn(4, 3, generator=draw), edges=edges, lengths=torch.tensor([5, 1, 4]))
    found = beam_search(space, None, recombine=True)
    assert torch.equal(structure(space).argmax(), found.output)
    torch.testing.assert_close(structure(space).score(found.output), found.score)


def test_an_interrupted_experiment_goes_on(tmp_path: Path) -> None:
    settings = Settings(out=tmp_path)
    done: list[str] = []

    def part(kept: Kept, name: str, value: float) -> Outcome:
        def work() -> Outcome:
            done.append(name)
            return Outcome(value, value, value, None, 1.0, 1.0, 10)

        return Outcome(*kept.part(name, work))

    begun = Kept(settings, "some")
    first = part(begun, "a", 1 / 3)
    again = Kept(settings, "some")
    assert (part(again, "a", 0.0), part(again, "b", 2.0).f1) == (first, 2.0)
    assert (done, again.taken) == (["a", "b"], 1)
    assert again.close() == [
        "1 of 2 parts were taken over from an interrupted run: the total of seconds leaves theirs out"
    ]
    assert Kept(settings, "some").close() == []
    assert list(tmp_path.iterdir()) == []
    part(Kept(Settings(out=tmp_path, smoke=True), "some"), "a", 1.0)
    assert list(tmp_path.iterdir()) == []
