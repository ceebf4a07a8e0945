"""The alignment benchmark agrees with ours and refuses a speed to whoever answers wrongly. No speed is asserted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import alignment, alignment_cases, alignment_peers
from benchmarks.harness import Contestant, Effort, measure
from benchmarks.quiet import Quiet

SHAPE = (3, 9, 7)
BRIEF = Effort(rounds=2, fewest=1, seconds=0.001)


@pytest.mark.parametrize("name", alignment.OPERATIONS)
def test_ours_agrees_and_a_wrong_answer_is_refused(name: str) -> None:
    operation, (ours, *_), make = alignment.OPERATIONS[name]
    case = make(SHAPE)

    def shifted(answer: object) -> object:
        read = ours.read(answer)
        if name == "path":
            return np.roll(read, 1, axis=0)
        return tuple(x + 1.0 for x in read) if isinstance(read, tuple) else read + 1.0

    wrong = Contestant("wrong", ours.prepare, shifted)
    rows = measure(operation, case, [ours, wrong], threads=1, effort=BRIEF, quiet=Quiet(0.0))
    assert rows[0].status == "ok"
    assert rows[0].units_per_second
    assert rows[1].status.startswith("refused")
    assert rows[1].median_ms is None


def test_parasail_and_the_torch_loop_agree_too() -> None:
    case = alignment_cases.protein_case(SHAPE)
    if (peer := alignment_peers.TRACE[1]) and not alignment.harness.missing(peer.requires):
        found = peer.read(peer.prepare(case)())
        assert alignment.check_path(case, alignment_cases.best_scores(case), found) is None
    random = alignment_cases.random_case(SHAPE)
    loop = alignment_peers.PARTITION[-1]
    assert (
        alignment.check_partition(random, alignment_cases.partition(random), loop.read(loop.prepare(random)())) is None
    )


def test_a_path_that_misses_a_position_is_no_path() -> None:
    case = alignment_cases.random_case((1, 2, 2))
    assert np.isnan(alignment_cases.path_scores(case, np.array([[0, 1, -100, -100]]))).all()
