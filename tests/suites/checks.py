"""One check a query: every batch row against the list of its outputs, within the errors that the queries promise.

Sums may be off by the rounding of their terms. Marginals keep 1e-5 in float32 for scores of ordinary size around any
offset, ten times that for scores of up to 1e4; for larger ones they are finite and sum to one, and where one output is
ahead by more than the rounding of its score, they are its parts. A score beyond the range of the dtype is cut to it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from oracles.exact import Exact
from torch import Tensor

from structlearn.errors import InfeasibleError

from .cases import KINDS, Problem
from .structures import PAD, flat

K = 4
NEG_INF = float("-inf")


def near(found: Any, low: Any, high: Any, what: str) -> None:
    """low <= found <= high everywhere; infinities must be equal and NaN fails."""
    x, low, high = (np.asarray(v, dtype=np.float64) for v in (found, low, high))
    assert x.shape == low.shape, f"{what}: shape {x.shape}, expected {low.shape}"
    wrong = ~((x >= low) & (x <= high))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(f"{what}{list(at)}: got {x[at]!r}, expected {low[at]!r} to {high[at]!r}")


def close(found: Any, expected: Any, error: Any, what: str) -> None:
    expected = np.asarray(expected, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        near(found, expected - error, expected + error, what)


def numbers(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def totals(found: Tensor, low: Any, engine: str) -> np.ndarray:
    """Values as numbers.

    Triton's kernels read masks of finfo.min as -2^112 (float64: -2^1000), so that a total below the range need only be
    as low as half of that.
    """
    value = numbers(found)
    if engine != "triton":
        return value
    limits = torch.finfo(found.dtype)
    bound = -(2.0**111) if limits.bits == 32 else -(2.0**999)
    return np.where((np.asarray(low) <= limits.min) & (value < bound) & (value > NEG_INF), limits.min, value)


def listed(y: Tensor, b: int) -> tuple[int, ...]:
    """Row b of outputs (B, ...), flat."""
    return flat(y[b].tolist())


def error_of_marginals(problem: Problem, row: Exact, engine: str) -> float | None:
    """The bound on the error of a probability; None where rounding alone may decide it."""
    single = problem.dtype is torch.float32
    kind = KINDS[problem.case.kind]
    if kind.marginal is not None or row.live_size <= 40:
        bound = 1e-5
    elif row.live_size <= 4e4:
        bound = 1e-4
    else:
        return bound_of_decided(row)
    bound = bound if single else bound * 1e-6
    if engine == "triton":  # log space in the dtype of the potentials
        bound = max(bound, 8 * row.eps * row.live_size * row.space.index.shape[1])
    return bound


def bound_of_decided(row: Exact) -> float | None:
    return 1e-5 if row.decided else None


def check_dtype(x: Tensor, problem: Problem) -> None:
    assert x.dtype is problem.dtype, f"dtype {x.dtype}"


def argmax(s: Any, problem: Problem, engine: str) -> None:
    dead = [b for b, row in enumerate(problem.rows) if not row.feasible]
    if dead and problem.case.layout != "subclass":  # test_autograd_contract.py asks for that
        with pytest.raises(InfeasibleError, match=re.escape(f"none for batch rows {dead}")):
            s.argmax()
    y = s._best()[0] if dead else s.argmax()
    assert y.dtype is torch.int64
    for b, row in enumerate(problem.rows):
        if not row.feasible:
            assert set(listed(y, b)) <= {PAD}, f"row {b}: {listed(y, b)} where nothing is allowed"
            continue
        check_best(problem, b, listed(y, b), 0, f"row {b}")


def check_best(problem: Problem, b: int, y: tuple[int, ...], rank: int, what: str) -> int:
    """y is the output of that rank, up to rounding, by the rule for ties where sums are exact; its number."""
    row = problem.rows[b]
    assert y in row.space.number, f"{what}: {y} is not an output"
    i = row.space.number[y]
    assert row.scores[i] > NEG_INF, f"{what}: {y} is forbidden"
    order = sorted(problem.order(b), key=lambda j: -row.scores[j]) if problem.exact else None
    if order is not None:
        assert i == order[rank], f"{what}: {y}, expected {row.space.outputs[order[rank]]}"
    reached = row.cut(row.scores[i] + row.errors[i])
    needed = row.cut(np.sort(row.scores - row.errors)[-1 - rank])
    assert reached >= needed, f"{what}: {y} scores {float(row.scores[i])!r}, rank {rank} is {needed!r} or more"
    return i


def max_(s: Any, problem: Problem, engine: str) -> None:
    found = s.max()
    check_dtype(found, problem)
    bounds = [row.bounds(lambda x: x.max(initial=-np.inf)) for row in problem.rows]
    low, high = zip(*bounds, strict=True) if bounds else ((), ())
    near(totals(found, low, engine), low, high, "max")


def max_gradient(s: Any, problem: Problem, engine: str) -> None:
    """The gradient of max marks the parts of the output that argmax gives."""
    leaves = problem.leaves()
    s = problem.make(engine, **leaves)
    value = s.max()
    found = gradients(value, leaves, grad_outputs=torch.arange(1, problem.batch + 1, dtype=value.dtype))
    y = s._best()[0]

    def parts(b_row: tuple[int, Exact]) -> np.ndarray:
        b, row = b_row
        chosen = np.zeros(len(row.space.outputs))
        if row.feasible:
            assert listed(y, b) in row.space.number, f"row {b}: {listed(y, b)} is not an output"
            chosen[row.space.number[listed(y, b)]] = b + 1
        return chosen

    numbered = {id(row): b for b, row in enumerate(problem.rows)}
    expected = problem.stack(lambda row: row.expected(parts((numbered[id(row)], row))))
    compare_fields(problem, found, expected, lambda row: 1e-5, "gradient of max")


def gradients(value: Tensor, leaves: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    if not value.requires_grad:
        raise AssertionError("no graph")
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True, **options)
    return dict(zip(leaves, found, strict=True))


def compare_fields(
    problem: Problem,
    found: Mapping[str, Tensor],
    expected: Mapping[str, np.ndarray],
    error: Callable[[Exact], float | None],
    what: str,
) -> None:
    """Every place of every field; rows without a bound must be finite, and make what rows share finite only."""
    errors = [error(row) for row in problem.rows]
    for name, x in found.items():
        value, rounding = numbers(x), torch.finfo(x.dtype).eps * np.abs(expected[name])
        assert value.shape == expected[name].shape, f"{what} {name}: shape {value.shape}"
        assert np.isfinite(value).all(), f"{what} {name}: not finite"
        if name in problem.entry.shared:
            if None not in errors:
                total = sum(e for e in errors if e is not None)
                close(value, expected[name], total + 1e-9 + rounding, f"{what} {name}")
            continue
        for b, bound in enumerate(errors):
            if bound is not None:
                close(value[b], expected[name][b], bound + rounding[b], f"{what} {name} row {b} ")


def score(s: Any, problem: Problem, engine: str) -> None:
    """Several outputs of each row, allowed or not; repeated, in any shape; what stands in the padding is ignored."""
    if any(not row.space.outputs for row in problem.rows) or not problem.batch:
        return
    picks = [[(b + 7 * k) % len(row.space.outputs) for b, row in enumerate(problem.rows)] for k in range(K)]
    shape = s._best()[0].shape
    rows = [[problem.written(b, i) for b, i in enumerate(pick)] for pick in picks]
    y = torch.tensor(rows, dtype=torch.int64).view(K, *shape)
    low, high = (
        [
            [row.cut(row.scores[i] + side * row.errors[i]) for row, i in zip(problem.rows, pick, strict=True)]
            for pick in picks
        ]
        for side in (-1, 1)
    )
    near(numbers(s.score(y[0])), low[0], high[0], "score")
    near(numbers(s.score(y)), low, high, "score (K, B)")
    near(numbers(s.score(y[[0, 0, 1]])), [low[0], low[0], low[1]], [high[0], high[0], high[1]], "repeated score")
    if problem.entry.gold_is_padded:
        for junk in (10**6, -1):
            near(numbers(s.score(with_junk(problem, y, junk))), low, high, f"score with {junk} in the padding")
    strided = torch.stack([y, y + 1], -1)[..., 0]
    near(numbers(s.score(strided)), low, high, "score of a view")
    near(numbers(s.score(y.int())), low, high, "score of int32")


def with_junk(problem: Problem, y: Tensor, junk: int) -> Tensor:
    """Outputs (..., B, *) with ``junk`` at the places that no output of that row uses."""
    junked = y.clone()
    for b, row in enumerate(problem.rows):
        used = np.array([*row.space.outputs]) != PAD
        never = torch.from_numpy(~used.any(0)).view(y.shape[y.dim() - s_dim(problem, y) :])
        index = (..., b, *[slice(None)] * s_dim(problem, y))
        junked[index] = junked[index].masked_fill(never, junk)
    return junked


def s_dim(problem: Problem, y: Tensor) -> int:
    """Axes of y behind the batch."""
    size = len(problem.rows[0].space.outputs[0])
    dim = 0
    while int(np.prod(y.shape[y.dim() - dim :])) != size or y.shape[y.dim() - dim - 1] != problem.batch:
        dim += 1
    return dim


def score_gradient(s: Any, problem: Problem, engine: str) -> None:
    if not problem.batch or not all(row.feasible for row in problem.rows):
        return
    leaves = problem.leaves()
    s = problem.make(engine, **leaves)
    picks = [int(np.argmax(row.scores)) for row in problem.rows]
    rows = [problem.written(b, i) for b, i in enumerate(picks)]
    y = torch.tensor(rows, dtype=torch.int64).view(s._best()[0].shape)
    found = gradients(s.score(y).sum(), leaves)
    numbered = {id(row): i for row, i in zip(problem.rows, picks, strict=True)}
    expected = problem.stack(lambda row: row.expected(np.eye(len(row.space.outputs))[numbered[id(row)]]))
    compare_fields(problem, found, expected, lambda row: 1e-6, "gradient of score")


def error_of_log_z(row: Exact) -> float:
    if not row.feasible:
        return 0.0
    best = int(np.argmax(row.scores))
    return float(8 * row.eps * (1 + abs(row.log_partition)) + row.errors[best])


def log_partition(s: Any, problem: Problem, engine: str) -> None:
    check_log_z(s.log_partition(), problem, engine)


def check_log_z(found: Tensor, problem: Problem, engine: str) -> None:
    check_dtype(found, problem)
    low, high = ([row.cut(row.log_partition + side * error_of_log_z(row)) for row in problem.rows] for side in (-1, 1))
    near(totals(found, low, engine), low, high, "log Z")


def check_marginals(found: Mapping[str, Tensor], problem: Problem, engine: str, what: str) -> None:
    assert set(found) == set(problem.potentials), f"{what}: fields {sorted(found)}"
    for name, x in found.items():
        assert tuple(x.shape) == tuple(problem.values[name].shape), f"{what} {name}: shape {tuple(x.shape)}"
    expected = problem.stack(lambda row: row.marginals)
    compare_fields(problem, found, expected, lambda row: error_of_marginals(problem, row, engine), what)
    if problem.entry.shared:
        return
    values = {name: numbers(x) for name, x in found.items()}
    for b, row in enumerate(problem.rows):
        if row.feasible:
            off = row.space.distance(problem.row_of(values, b))
            rounding = 8 * max(torch.finfo(x.dtype).eps for x in found.values())
            if engine == "triton":
                rounding *= 1 + row.live_size * row.space.index.shape[1]
            assert off <= 1e-5 + rounding or rounding > 0.1, f"{what} row {b}: {off} from every average of outputs"


def marginals(s: Any, problem: Problem, engine: str) -> None:
    found = {name: x for name, x in s.marginals()._asdict().items() if x is not None}
    for x in found.values():
        check_dtype(x, problem)
    check_marginals(found, problem, engine, "marginals")


def both_at_once(s: Any, problem: Problem, engine: str) -> None:
    log_z, values = s.log_partition_and_marginals()
    check_log_z(log_z, problem, engine)
    found = {name: x for name, x in values._asdict().items() if x is not None}
    check_marginals(found, problem, engine, "marginals with log Z")
    assert not any(x.requires_grad for x in (log_z, *found.values()))


def gradient(s: Any, problem: Problem, engine: str) -> None:
    """The gradient of log Z is the marginals."""
    leaves = problem.leaves()
    value = problem.make(engine, **leaves).log_partition()
    check_log_z(value, problem, engine)
    found = gradients(value.sum() if problem.batch else value.sum() * 1.0, leaves)
    check_marginals(found, problem, engine, "gradient of log Z")


def live_log(row: Exact) -> float:
    """The largest |log p| that matters, by which errors of entropies and covariances grow."""
    p = row.probabilities
    return float(np.abs(np.log(p[p > 1e-14]).astype(np.float64)).max(initial=1.0))


def error_of_entropy(problem: Problem, row: Exact, engine: str) -> float | None:
    bound = error_of_marginals(problem, row, engine)
    return None if bound is None else 10 * bound


def entropy(s: Any, problem: Problem, engine: str) -> None:
    found = s.entropy()
    check_dtype(found, problem)
    value = numbers(found)
    assert value.shape == (problem.batch,), f"shape {value.shape}"
    for b, row in enumerate(problem.rows):
        bound = error_of_entropy(problem, row, engine)
        if bound is not None:
            close(value[b], row.entropy, bound, f"entropy row {b} ")
        else:
            near(value[b], -1e-3, np.log(row.count) + 1e-3, f"entropy row {b} ")


def entropy_gradient(s: Any, problem: Problem, engine: str) -> None:
    leaves = problem.leaves()
    found = gradients(problem.make(engine, **leaves).entropy().sum(), leaves)
    expected = problem.stack(lambda row: row.entropy_gradient())

    def error(row: Exact) -> float | None:
        bound = error_of_entropy(problem, row, engine)
        return None if bound is None or row.live_size > 1e3 else bound * live_log(row)

    compare_fields(problem, found, expected, error, "gradient of entropy")


def second(s: Any, problem: Problem, engine: str) -> None:
    """The gradient of the marginals along a direction."""
    leaves = problem.leaves()
    g = torch.Generator().manual_seed(problem.case.seed + 1)
    direction = {name: torch.randint(-2, 3, x.shape, generator=g).to(x.dtype) for name, x in leaves.items()}
    log_z = problem.make(engine, **leaves).log_partition()
    first = gradients(log_z.sum(), leaves, create_graph=True)
    along = sum((first[name] * direction[name].to(first[name].dtype)).sum() for name in leaves)
    assert isinstance(along, Tensor)
    found = gradients(along, leaves)
    numbered = {id(row): b for b, row in enumerate(problem.rows)}
    arrays = {name: numbers(x) for name, x in direction.items()}
    expected = problem.stack(lambda row: row.second(problem.row_of(arrays, numbered[id(row)])))

    def error(row: Exact) -> float | None:
        bound = error_of_marginals(problem, row, engine)
        return None if bound is None else 40 * bound

    compare_fields(problem, found, expected, error, "second derivative")


def topk(s: Any, problem: Problem, engine: str) -> None:
    for k in (1, K, 7):
        y, values = s.topk(k)
        check_dtype(values, problem)
        assert y.dtype is torch.int64
        assert tuple(values.shape) == (k, problem.batch), f"topk({k}): scores {tuple(values.shape)}"
        for b, row in enumerate(problem.rows):
            seen = []
            for rank in range(k):
                what, found = f"topk({k}) row {b} rank {rank}", listed(y[rank], b)
                if rank >= row.count:
                    assert set(found) <= {PAD}, f"{what}: {found} beyond the last output"
                    assert values[rank, b] == NEG_INF, f"{what}: score {values[rank, b]}"
                    continue
                i = check_best(problem, b, found, rank, what)
                low, high = (row.cut(row.scores[i] + side * row.errors[i]) for side in (-1, 1))
                near(totals(values[rank, b], low, engine), low, high, f"{what} score")
                seen.append(i)
            assert len(set(seen)) == len(seen), f"topk({k}) row {b}: an output twice"


def sample(s: Any, problem: Problem, engine: str) -> None:
    """Samples are outputs that are not ruled out."""
    draws = 16 if engine == "cpu" else 4
    y = s.sample(draws, torch.Generator().manual_seed(1))
    assert y.dtype is torch.int64
    for draw, b in itertools.product(range(draws), range(problem.batch)):
        row, found = problem.rows[b], listed(y[draw], b)
        if not row.feasible:
            assert set(found) <= {PAD}, f"row {b}: {found} where nothing is allowed"
            continue
        assert found in row.space.number, f"row {b}: {found} is not an output"
        i = row.space.number[found]
        assert row.scores[i] > NEG_INF, f"row {b}: {found} is forbidden"
        if error_of_marginals(problem, row, engine) is not None:
            p = float(row.probabilities[i])
            assert p > 1e-9, f"row {b}: {found} has probability {p}"


def count(s: Any, problem: Problem, engine: str) -> None:
    found = s.count()
    assert found.dtype is torch.float64
    assert found.tolist() == [row.count for row in problem.rows]


CHECKS: dict[str, Callable[[Any, Problem, str], None]] = {
    "argmax": argmax,
    "max": max_,
    "max_gradient": max_gradient,
    "score": score,
    "score_gradient": score_gradient,
    "log_partition": log_partition,
    "gradient": gradient,
    "marginals": marginals,
    "both_at_once": both_at_once,
    "entropy": entropy,
    "entropy_gradient": entropy_gradient,
    "second": second,
    "topk": topk,
    "sample": sample,
    "count": count,
}
