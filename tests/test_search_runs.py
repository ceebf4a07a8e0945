"""Runs of learning as search: the benchmark's command, and the baseline of the experiments."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from benchmarks.laso import main
from structlearn.experiments.semi_crf import structure
from structlearn.search import ChunkingSpace, beam_search


@pytest.mark.parametrize("task", ["chunking", "joint"])
def test_benchmark_runs(task: str, tmp_path: Path) -> None:
    options = [task, "--smoke", "--epochs", "1", "--beam", "3", "--threads", "1", "--results", str(tmp_path)]
    for strategy in ("laso", "early"):
        main([*options, "--strategy", strategy])
    with (tmp_path / "laso.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["strategy"] for row in rows] == ["laso", "early"]
    assert all(0 <= float(row["f1"]) <= 100 and float(row["decode_tokens_per_s"]) > 0 for row in rows)


def test_semi_crf_has_the_space_s_scores() -> None:
    draw = torch.Generator().manual_seed(0)
    segments, edges = torch.randn(3, 5, 2, 3, generator=draw), torch.randn(3, 5, 4, 3, generator=draw)
    space = ChunkingSpace(segments, torch.randn(4, 3, generator=draw), edges=edges, lengths=torch.tensor([5, 1, 4]))
    found = beam_search(space, None, recombine=True)
    assert torch.equal(structure(space).argmax(), found.output)
    torch.testing.assert_close(structure(space).score(found.output), found.score)
