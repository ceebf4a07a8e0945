"""All answers of one structure as arrays, to be compared with those of the same scores in another form.

As a program it writes the answers of the kernels to a file: instruction sets are chosen when a process starts.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from .cases import Case, Problem
from .structures import ENTRIES

KINDS = ("normal", "forbidden", "mask-1e4", "ties")


def answers(s: Any) -> dict[str, np.ndarray]:
    """By query; entries of dictionaries of fields as ``marginals.unary``."""
    y, best = s._best()
    labels, scores = s.topk(3)
    found = {"argmax": y, "max": best, "topk": labels, "topk scores": scores, "log_partition": s.log_partition()}
    found |= {"entropy": s.entropy(), "count": s.count()}
    found |= {f"marginals.{name}": x for name, x in s.marginals()._asdict().items() if x is not None}
    return {name: x.detach().numpy() for name, x in found.items()}


BATCH_AXIS = {"topk": 1, "topk scores": 1}
DISCRETE = ("argmax", "topk", "count")


def row(found: dict[str, np.ndarray], problem: Problem, b: int) -> dict[str, np.ndarray]:
    """The answers for row b, without what rows share."""
    return {
        name: np.take(x, b, axis=BATCH_AXIS.get(name, 0))
        for name, x in found.items()
        if name.removeprefix("marginals.") not in problem.entry.shared
    }


def compare(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], error: float, what: str) -> None:
    """Every answer; 0 asks for the same bits. Labels are compared where an output is there."""
    for name, value in expected.items():
        x = found[name]
        if name in DISCRETE or error == 0:
            np.testing.assert_array_equal(x, value, err_msg=f"{what}: {name}")
        else:
            np.testing.assert_allclose(x, value, rtol=error, atol=error, err_msg=f"{what}: {name}")


def kernel_cases() -> list[Case]:
    """A compact run over all kernels."""
    return [
        Case(entry.name, size=entry.sizes[0].name, kind=kind, dtype=dtype, seed=i)
        for i, kind in enumerate(KINDS)
        for entry in ENTRIES
        if "cpu" in entry.engines
        for dtype in ("f32", "f64")
    ]


def all_answers() -> dict[str, np.ndarray]:
    return {
        f"{case.entry} {case.kind} {case.dtype} {name}": x
        for case in kernel_cases()
        for name, x in answers(case.problem.make("cpu")).items()
    }


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    np.savez(sys.argv[1], **all_answers())
