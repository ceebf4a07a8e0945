"""Segmentations in one tensor: translation both ways, and errors that name row and position."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from oracles import semimarkov as oracle

import structlearn as sl
from structlearn.errors import DTypeError, LabelError, ShapeError

W, C = 2, 3


def _structure(lengths: list[int], size: int, **options: Any) -> sl.SemiMarkov:
    return sl.SemiMarkov(torch.randn(len(lengths), size, W, C), torch.randn(C, C), lengths=lengths, **options)


@pytest.mark.parametrize("n", range(5))
def test_every_segmentation_there_and_back(n: int) -> None:
    space = oracle.segmentations(n, W, C)
    s = _structure([n] * len(space), 4)
    y = s.encode(space)
    assert y.tolist() == [[*oracle.code(z, C), *[-100] * (4 - n)] for z in space]
    assert s.segments_of(y) == [list(z) for z in space]
    plain = [[label for start, last, label in z for _ in range(start, last + 1)] for z in space]
    assert s.labels(y).tolist() == [[*labels, *[-100] * (4 - n)] for labels in plain]
    # What stands at padded positions does not matter.
    noise = y.masked_fill(y == -100, 10**6)
    assert s.segments_of(noise) == s.segments_of(y)
    assert torch.equal(s.labels(noise), s.labels(y))
    assert s.same_output(noise, y).all()
    assert torch.equal(s.score(noise), s.score(y))


def test_the_example_of_the_documentation() -> None:
    s = _structure([5, 2], 5)
    y = s.encode([[(0, 1, 2), (2, 2, 2), (3, 4, 0)], [(0, 1, 1)]])
    assert y.tolist() == [[5, -1, 2, 3, -1], [4, -1, -100, -100, -100]]
    assert s.labels(y).tolist() == [[2, 2, 2, 0, 0], [1, 1, -100, -100, -100]]
    assert s.labels(torch.stack([y, y])).shape == (2, 2, 5)


def test_rows_without_output() -> None:
    s = _structure([3, 0], 3)
    y = s.encode([[], []])
    assert y.tolist() == [[-100] * 3] * 2
    assert s.segments_of(y) == [[], []]
    assert s.labels(y).tolist() == [[-100] * 3] * 2


def test_same_output_compares_cuts_not_only_labels() -> None:
    s = _structure([2, 2], 3)
    y = s.encode([[(0, 1, 1)], [(0, 0, 1), (1, 1, 2)]])
    z = s.encode([[(0, 0, 1), (1, 1, 1)], [(0, 0, 1), (1, 1, 2)]])
    assert torch.equal(s.labels(y), s.labels(z))
    assert s.same_output(y, z).tolist() == [False, True]


WRONG = {
    "gap at the front": ([-1, 0, 0], 0, "gap"),
    "gap": ([0, -1, 0], 1, "gap: the segment before ends at 0"),
    "overlap": ([3, 0, 0], 1, "overlap: the segment before ends at 1"),
    "width": ([2 * C + 1, -1, -1], 0, "width 3, label 1"),
    "beyond the length": ([0, 0, C], 2, "reaches beyond the length 3"),
    "padding inside": ([0, -100, 0], 1, "neither"),
}


@pytest.mark.parametrize(("code", "position", "told"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_score_says_what_is_wrong_and_where(code: list[int], position: int, told: str, backend: str) -> None:
    s = _structure([4, 3], 4, backend=backend)
    y = torch.tensor([[0, 0, 0, 0], [*code, -100]])
    for outputs in (y, torch.stack([torch.zeros_like(y), y])):
        with pytest.raises(LabelError, match=f"{code[position]} at batch row 1, position {position} .*{told}"):
            s.score(outputs)


def test_score_wants_integers_of_the_right_shape() -> None:
    s = _structure([2], 2)
    with pytest.raises(DTypeError, match="y: expected integer labels"):
        s.score(torch.zeros(1, 2))
    with pytest.raises(ShapeError, match=re.escape("y: expected (..., 1, 2), got (1, 3)")):
        s.score(torch.zeros(1, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("segments", "told"),
    [
        ([(0, 0, 0), (2, 2, 0)], "got (2, 2, 0) in batch row 0, position 1"),
        ([(0, 1, 0), (1, 2, 0)], "got (1, 2, 0) in batch row 0, position 2"),
        ([(0, 2, 0)], "at most 2 positions and label in 0..2, got (0, 2, 0) in batch row 0, position 0"),
        ([(0, 0, 3)], "got (0, 0, 3) in batch row 0, position 0"),
        ([(0, 1, 0), (2, 3, 0)], "got (2, 3, 0) in batch row 0, position 2"),
        ([(0, 1, 0)], "segments up to the length 3, got an end at 1 in batch row 0, position 2"),
    ],
)
def test_encode_says_what_is_wrong_and_where(segments: list[tuple[int, int, int]], told: str) -> None:
    with pytest.raises(LabelError, match=re.escape(told)):
        _structure([3], 3).encode([segments])


def test_encode_wants_a_list_for_every_row() -> None:
    with pytest.raises(ShapeError, match="2 lists, one for every batch row, got 1"):
        _structure([1, 1], 1).encode([[(0, 0, 0)]])


def test_potentials_are_checked() -> None:
    with pytest.raises(ShapeError, match=re.escape("segments: expected (B, N, W, C), got (2, 3, 4)")):
        sl.SemiMarkov(torch.zeros(2, 3, 4), torch.zeros(4, 4))
    with pytest.raises(ShapeError, match="W >= 1 and C >= 1"):
        sl.SemiMarkov(torch.zeros(2, 3, 0, 4), torch.zeros(4, 4))
    with pytest.raises(ShapeError, match=re.escape("(B, N-1, C, C) = (2, 2, 4, 4) to match segments (2, 3, 5, 4)")):
        sl.SemiMarkov(torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 4, 4))
    with pytest.raises(DTypeError, match=re.escape("transition: expected torch.float32")):
        sl.SemiMarkov(torch.zeros(2, 3, 5, 4), torch.zeros(4, 4, dtype=torch.float64))
    segments = torch.zeros(1, 2, 2, 3)
    segments[0, 1, 1] = float("nan")  # reaches beyond the end
    sl.SemiMarkov(segments, torch.zeros(3, 3), validate=True)
    segments[0, 1, 0, 2] = float("nan")
    with pytest.raises(sl.StructLearnError, match=re.escape("NaN at (0, 1, 0, 2)")):
        sl.SemiMarkov(segments, torch.zeros(3, 3), validate=True)
    with pytest.raises(sl.StructLearnError, match=r"backend: expected one of .* for this structure"):
        sl.SemiMarkov(torch.zeros(1, 2, 2, 3), torch.zeros(3, 3), backend="torch-struct")
