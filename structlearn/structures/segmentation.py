"""Labelled segmentations as one int64 tensor (..., B, N).

The first position of a segment of width w+1 and label c holds w*C + c, its other positions -1, padding -100. So
equal labels may stand side by side, and two tensors are equal where the segmentations are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from structlearn.errors import LabelError, ShapeError

PAD = -100
INSIDE = -1

Segment = tuple[int, int, int]


def check(y: Tensor, mask: Tensor, width: int, labels: int) -> None:
    """Segments (..., B, N) must cover the positions in ``mask`` (B, N) one after the other, in range."""
    if torch.compiler.is_compiling() or y.numel() == 0:
        return
    place = torch.arange(y.shape[-1], device=y.device)
    start = (y >= 0) & mask
    end = torch.where(start, place + y.div(labels, rounding_mode="floor") + 1, 0)
    reached = torch.cat([torch.zeros_like(end[..., :1]), end.cummax(-1).values[..., :-1]], -1)
    misplaced = (reached != place) | (y >= width * labels) | (end > mask.sum(-1, keepdim=True))
    wrong = (torch.where(start, misplaced, reached <= place) | (y < INSIDE)) & mask
    if not bool(wrong.any()):
        return
    at = tuple(wrong.nonzero()[0].tolist())
    value, before = int(y[at]), int(reached[at])
    w, c = divmod(value, labels)
    if value < INSIDE:
        told = "neither a segment's start (>= 0) nor its inside (-1)"
    elif value == INSIDE:
        told = f"a gap: the segment before ends at {before - 1}"
    elif before > at[-1]:
        told = f"an overlap: the segment before ends at {before - 1}"
    elif value >= width * labels:
        told = f"width {w + 1}, label {c}"
    else:
        told = f"width {w + 1}, which reaches beyond the length {int(mask[at[-2]].sum())}"
    raise LabelError(
        "y",
        f"segments of width 1..{width} and label 0..{labels - 1} that follow one another from position 0 to the length",
        f"{value} at batch row {at[-2]}, position {at[-1]} ({told})",
        "build outputs with encode(), or shorten lengths if this position is padding",
    )


def encode(segments: Sequence[Sequence[Segment]], lengths: Sequence[int], size: int, width: int, labels: int) -> Tensor:
    """Lists of (start, last position, label) to (B, N); an empty list stands for an instance without output."""
    if len(segments) != len(lengths):
        raise ShapeError(
            "segments",
            f"{len(lengths)} lists, one for every batch row",
            len(segments),
            "pass [] where there is no output",
        )
    y = torch.full((len(lengths), size), PAD, dtype=torch.int64)
    for b, (row, length) in enumerate(zip(segments, lengths, strict=True)):
        reached = 0
        for start, last, label in row:
            fits = start == reached and start <= last < length and last - start < width and 0 <= label < labels
            if not fits:
                raise LabelError(
                    "segments",
                    f"(start, last, label) with start={reached}, start <= last < {length}, at most {width} positions"
                    f" and label in 0..{labels - 1}",
                    f"({start}, {last}, {label}) in batch row {b}, position {reached}",
                    "segments cover 0..length-1 in order, without gap or overlap",
                )
            y[b, start : last + 1] = INSIDE
            y[b, start] = (last - start) * labels + label
            reached = last + 1
        if row and reached != length:
            raise LabelError(
                "segments",
                f"segments up to the length {length}",
                f"an end at {reached - 1} in batch row {b}, position {reached}",
                "segments cover 0..length-1 in order, without gap or overlap",
            )
    return y


def decode(y: Tensor, labels: int) -> list[list[Segment]]:
    """(B, N) to lists of (start, last position, label)."""
    rows: list[list[Segment]] = [[] for _ in range(y.shape[0])]
    at = (y >= 0).nonzero()
    for (b, n), value in zip(at.tolist(), y[at[:, 0], at[:, 1]].tolist(), strict=True):
        rows[b].append((n, n + value // labels, value % labels))
    return rows


def spread(y: Tensor, labels: int) -> Tensor:
    """(..., N) to the label of every position; where y holds padding, padding."""
    if y.shape[-1] == 0:
        return y.clone()
    place = torch.arange(y.shape[-1], device=y.device)
    first = torch.where(y >= 0, place, 0).cummax(-1).values
    return torch.where(y == PAD, PAD, y.gather(-1, first) % labels)


def from_parts(hot: Tensor) -> Tensor:
    """Indicators (..., N, W, C) of the segments of an output to (..., N), without padding."""
    flat = hot.flatten(-2)
    return torch.where(flat.amax(-1) > 0.5, flat.argmax(-1), INSIDE)
