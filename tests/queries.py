"""One check a query, for every structure: each batch row against the enumeration of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import NEG_INF, Problem, assert_close

from structlearn.errors import InfeasibleError

K = 4


def _argmax(s: Any, problem: Problem) -> None:
    dead = [b for b, row in enumerate(problem.rows) if not row.feasible]
    if dead:
        with pytest.raises(InfeasibleError) as error:
            s.argmax()
        assert f"none for batch rows {dead}" in str(error.value)
        return
    expected = [problem.labels(b, row.topk(1)[0][0]) for b, row in enumerate(problem.rows)]
    assert s.argmax().tolist() == expected


def _max(s: Any, problem: Problem) -> None:
    assert_close(s.max(), [row.max for row in problem.rows], problem.dtype)


def _score(s: Any, problem: Problem) -> None:
    picks = [[(b + 7 * k) % len(row.outputs) for b, row in enumerate(problem.rows)] for k in range(K)]
    rows = list(enumerate(problem.rows))
    y = torch.tensor(
        [[problem.labels(b, row.outputs[pick[b]]) for b, row in rows] for pick in picks], dtype=torch.int64
    )
    expected = [[row.scores[pick[b]] for b, row in rows] for pick in picks]
    y = y.masked_fill(y == -100, 10**6)  # padding may hold any label
    assert_close(s.score(y), expected, problem.dtype)
    assert_close(s.score(y[0]), expected[0], problem.dtype)
    assert_close(s.score(y.view(2, 2, *y.shape[1:]).int()), [expected[:2], expected[2:]], problem.dtype)


def _log_partition(s: Any, problem: Problem) -> None:
    assert_close(s.log_partition(), [row.log_partition for row in problem.rows], problem.dtype)


def _marginals(s: Any, problem: Problem) -> None:
    log_z, values = s.log_partition_and_marginals()
    assert_close(log_z, [row.log_partition for row in problem.rows], problem.dtype)
    expected = problem.expected()
    for found in (s.marginals()._asdict(), values._asdict()):
        assert {name for name, value in found.items() if value is not None} == set(problem.potentials)
        for name in problem.potentials:
            assert found[name].shape == problem.potentials[name].shape
            assert found[name].dtype == problem.dtype
            assert_close(found[name], expected[name], problem.dtype)
    assert not log_z.requires_grad
    assert not any(x.requires_grad for x in values if x is not None)


def _entropy(s: Any, problem: Problem) -> None:
    assert_close(s.entropy(), [row.entropy for row in problem.rows], problem.dtype)


def _topk(s: Any, problem: Problem) -> None:
    for k in (1, K):
        labels, scores = s.topk(k)
        empty = torch.full_like(labels[0, 0], -100).tolist()
        for b, row in enumerate(problem.rows):
            best = row.topk(k)
            missing = k - len(best)
            assert labels[:, b].tolist() == [problem.labels(b, y) for y, _ in best] + [empty] * missing
            assert_close(scores[:, b], [score for _, score in best] + [NEG_INF] * missing, problem.dtype)


def _sample(s: Any, problem: Problem) -> None:
    drawn = s.sample(K)
    assert drawn.dtype is torch.int64
    for b, row in enumerate(problem.rows):
        possible = [problem.labels(b, y) for y, p in zip(row.outputs, row.probabilities, strict=True) if p > 0]
        nothing = torch.full_like(drawn[0, 0], -100).tolist()
        for y in drawn[:, b].tolist():
            assert y in (possible or [nothing])


def _count(s: Any, problem: Problem) -> None:
    assert s.count().tolist() == [row.count for row in problem.rows]


CHECKS: dict[str, Callable[[Any, Problem], None]] = {
    "argmax": _argmax,
    "max": _max,
    "score": _score,
    "log_partition": _log_partition,
    "marginals": _marginals,
    "entropy": _entropy,
    "topk": _topk,
    "sample": _sample,
    "count": _count,
}
