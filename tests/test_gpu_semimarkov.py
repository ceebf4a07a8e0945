"""The semi-Markov chain's Triton kernels, interpreted: what the table of queries leaves out.

Sizes that take several tiles against the reference, samples against enumeration, counting against the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import NEG_INF
from oracles import Row
from semimarkov_cases import SemiMarkovCase, SemiMarkovProblem
from torch import Tensor

import structlearn as sl
from structlearn.gpu import launch, semimarkov_count
from structlearn.gpu import semimarkov as gpu
from structlearn.structures import semimarkov_count as reference_count
from structlearn.structures.counting import Counter

pytestmark = pytest.mark.usefixtures("poisoned_memory")

# (B, N, W, C), shared, dtype, widths a tile: part of a block, a block and a bit, several tiles of labels, of widths,
# of both. Tiles hold 16 widths, more than the interpreter has time for, unless told.
CASES = [
    ((2, 5, 3, 17), True, torch.float64, None),
    ((2, 5, 3, 17), False, torch.float32, None),
    ((2, 3, 2, 70), True, torch.float64, None),
    ((2, 3, 2, 70), False, torch.float64, None),
    ((2, 3, 2, 144), True, torch.float32, None),
    ((2, 2, 2, 144), False, torch.float32, None),
    ((2, 5, 4, 16), True, torch.float64, 2),
    ((1, 4, 3, 130), True, torch.float32, 2),
    ((1, 4, 3, 130), False, torch.float32, 2),
]


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(shape, dtype=dtype)
    return x.masked_fill(torch.rand(shape) < 0.2, NEG_INF)


@pytest.mark.parametrize(("shape", "shared", "dtype", "widths"), CASES, ids=str)
def test_several_tiles(
    shape: tuple[int, int, int, int],
    shared: bool,
    dtype: torch.dtype,
    widths: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if widths is not None:
        monkeypatch.setattr(gpu.Potentials, "widths", lambda *_: widths)
    b, n, _, c = shape
    segments, transition = draw(*shape, dtype=dtype), draw(*((c, c) if shared else (b, n - 1, c, c)), dtype=dtype)
    lengths = torch.tensor([n, 1, max(n - 2, 0)][:b])
    grad = torch.rand(b, dtype=dtype)
    results = []
    for backend, wide in (("triton", dtype), ("reference", torch.float64)):
        leaves = [x.to(wide, copy=True).requires_grad_() for x in (segments, transition)]
        s = sl.SemiMarkov(*leaves, lengths=lengths, backend=backend)
        log_z = s.log_partition()
        found = torch.autograd.grad(log_z, leaves, grad.to(wide))
        results.append([x.detach().double() for x in (log_z, s.max(), *found)])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-5 if dtype is torch.float32 else 1e-10, atol=1e-5)
    exact = sl.SemiMarkov(segments, transition, lengths=lengths, backend="cpu").topk(2)
    many, scores = gpu.kbest(segments, transition, lengths, 2)
    assert torch.equal(many, exact[0])
    assert torch.equal(scores, exact[1])
    assert torch.equal(gpu.viterbi(segments, transition, lengths)[0], exact[0][0])


def test_kbest_over_tiles_breaks_ties_as_enumeration_does() -> None:
    problem = SemiMarkovCase("ties", 2, 4, 4, 3, (4, 3), integers=True, dtype=torch.float32).problem()
    plan, (codes, scores) = gpu.plan_kbest(*problem.make("triton")._args, 4)
    plan[0].args.update(BLOCK_W=2, BLOCK_P=2)
    launch.run(plan, codes.device)
    for b, row in enumerate(problem.rows):
        best = row.topk(4)
        assert len({score for _, score in best}) < len(best), "the case must hold ties"
        assert codes[:, b].tolist() == [problem.labels(b, y) for y, _ in best]
        assert scores[:, b].tolist() == [score for _, score in best]


def inverse_cdf(row: Row, uniform: np.ndarray, labels: int) -> tuple[int, ...]:
    """Last segment first: its label, then its width, each the lowest whose cumulative probability exceeds a number."""
    y: tuple[int, ...] = ()
    end = len(row.outputs[0])
    while end > 0:
        weight: dict[tuple[int, int], float] = {}
        for output, p in zip(row.outputs, row.probabilities, strict=True):
            if output[end:] == y and (end == len(output) or output[end] != -1):
                start = max(t for t in range(end) if output[t] != -1)
                part = (output[start] % labels, output[start] // labels)
                weight[part] = weight.get(part, 0.0) + p
        by_label = np.array([sum(p for (c, _), p in weight.items() if c == label) for label in range(labels)])
        label = int(np.argmax(np.cumsum(by_label) > uniform[end - 1, 0] * by_label.sum()))
        by_width = np.array([weight.get((label, width), 0.0) for width in range(end)])
        width = int(np.argmax(np.cumsum(by_width) > uniform[end - 1, 1] * by_width.sum()))
        y = (width * labels + label, *[-1] * width, *y)
        end -= width + 1
    return y


@pytest.mark.parametrize(
    "case",
    [
        SemiMarkovCase("shared", B=4, C=3, lengths=(4, 1, 0, 3), dtype=torch.float32),
        SemiMarkovCase("forbidden", B=4, lengths=(4, 4, 2, 3), per_position=True, forbidden=0.4, seed=7),
    ],
    ids=str,
)
def test_samples_equal_the_inverse_cdf_of_enumeration(case: SemiMarkovCase) -> None:
    problem = case.problem()
    uniform = torch.rand(3, case.B, case.N, 2, dtype=case.dtype)
    uniform[0] = 0.0
    codes = gpu.sample(*problem.make("triton")._args, uniform)
    for b, row in enumerate(problem.rows):
        for s in range(3):
            if row.feasible:
                expected = problem.labels(b, inverse_cdf(row, uniform[s, b].double().numpy(), case.C))
            else:
                expected = [-100] * case.N
            assert codes[s, b].tolist() == expected


def test_long_sequences_keep_their_digits() -> None:
    segments, transition = torch.randn(1, 60, 3, 4) * 5 + 100, torch.randn(4, 4)
    s = sl.SemiMarkov(segments, transition, backend="triton")
    exact = sl.SemiMarkov(segments.double(), transition.double(), backend="cpu")
    torch.testing.assert_close(s.log_partition().double(), exact.log_partition(), rtol=1e-6, atol=0)
    torch.testing.assert_close(s.marginals().segments.double(), exact.marginals().segments, rtol=0, atol=5e-5)


def test_strides_do_not_matter() -> None:
    whole = torch.randn(6, 2, 3, 4)  # (W, B, C, N)
    segments, transition = whole[::2].permute(1, 3, 0, 2), torch.randn(3, 3).T
    assert not segments.is_contiguous()
    a = sl.SemiMarkov(segments, transition, backend="triton")
    b = sl.SemiMarkov(segments.contiguous(), transition.contiguous(), backend="triton")
    assert torch.equal(a.argmax(), b.argmax())
    assert torch.equal(a.topk(2)[0], b.topk(2)[0])
    assert torch.equal(a.log_partition(), b.log_partition())
    assert torch.equal(a.marginals().segments, b.marginals().segments)
    steps = torch.randint(0, 2, (2, 4, 1, 3)).expand(2, 4, 3, 3)
    assert torch.equal(*(x.max_by_count(Counter(({"segments": steps},), (5,))).table for x in (a, b)))


def counter(problem: SemiMarkovProblem, fields: tuple[str, ...], sizes: tuple[int, ...], scale: int = 1) -> Counter:
    g = torch.Generator().manual_seed(3)
    shapes = {name: problem.potentials[name].shape for name in fields}
    many = ({name: torch.randint(0, 2, x, generator=g) * scale for name, x in shapes.items()} for _ in sizes)
    return Counter(tuple(many), sizes)


def worth(problem: SemiMarkovProblem, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Offsets and slopes of small integers, some ruled out, some worth the same whatever the score."""
    g = torch.Generator().manual_seed(5)
    shape = (problem.potentials["segments"].shape[0], *sizes)
    offset, slope = (torch.randint(0, 3, shape, generator=g).to(problem.dtype) for _ in range(2))
    return offset.masked_fill(torch.rand(shape, generator=g) < 0.1, NEG_INF), slope


BOTH = ("segments", "transition")


# More labels or values than a tile holds; more widths than are looked at together on the way back.
@pytest.mark.parametrize(
    ("case", "fields", "sizes", "scale"),
    [
        (SemiMarkovCase("values", 2, 3, 2, 3, (3, 2)), BOTH, (701,), 140),
        (SemiMarkovCase("two", 2, 3, 3, 5, (3, 1), True, torch.float32), BOTH, (34, 34), 11),
        (SemiMarkovCase("labels", 2, 2, 2, 70, None, dtype=torch.float32), ("segments",), (17,), 3),
        (SemiMarkovCase("ties", 5, 4, 6, 2, (4, 0, 1, 3, 4), True, integers=True), BOTH, (6,), 1),
        (SemiMarkovCase("forbidden", forbidden=0.5, dtype=torch.float32, seed=8), ("segments",), (4, 4), 1),
        (SemiMarkovCase("nothing", integers=True), (), (2,), 1),
    ],
    ids=lambda x: x.name if isinstance(x, SemiMarkovCase) else "",
)
def test_counting_equals_the_reference(
    case: SemiMarkovCase, fields: tuple[str, ...], sizes: tuple[int, ...], scale: int
) -> None:
    problem = case.problem()
    counting = counter(problem, fields, sizes, scale)
    native, reference = problem.make("triton"), problem.make("reference")
    best, expected = (s.best_by_count(counting, *worth(problem, sizes)) for s in (native, reference))
    assert torch.equal(best.y, expected.y)
    assert torch.equal(best.index, expected.index)
    torch.testing.assert_close(best.value, expected.value)  # the reference adds in float64
    found, wanted = (s.max_by_count(counting) for s in (native, reference))
    torch.testing.assert_close(found.table, wanted.table)
    last = (found.table.flatten(1) > NEG_INF).long() * torch.arange(counting.size)
    index = torch.stack(torch.unravel_index(last.argmax(1), sizes), -1)
    assert torch.equal(found.decode(index), wanted.decode(index))


def test_the_way_back_over_several_tiles_breaks_ties_to_the_smallest_width() -> None:
    problem = SemiMarkovCase("back", 3, 5, 5, 3, (5, 4, 5), integers=True).problem()
    s, counting = problem.make("reference"), counter(problem, BOTH, (4,))
    given = worth(problem, (4,))
    args: tuple[Any, ...] = (*s._args, *reference_count._steps(s, counting), 4, *given)
    plan, (codes, *_) = semimarkov_count.plan_best_by_count(*args)
    plan[0].args["BLOCK_BACK"] = 2  # labels and widths at a time
    launch.run(plan, s.segments.device)
    assert torch.equal(codes, s.best_by_count(counting, *given).y)


def test_a_batch_beyond_the_scratch_takes_several_launches() -> None:
    problem = SemiMarkovCase("scratch", N=3, lengths=(3, 2, 1, 0, 3), per_position=True).problem()
    s, counting = problem.make("triton"), counter(problem, BOTH, (5,))
    args: tuple[Any, ...] = (*s._args, *reference_count._steps(s, counting), 5, *worth(problem, (5,)))
    whole = semimarkov_count.best_by_count(*args)
    one = 3 * 2 * 2 * 5 * 8  # N, both kinds of row, C and S of this problem, in float64
    for scratch, launches in ((2 * one, 3), (1, 5)):
        plan, outputs = semimarkov_count.plan_best_by_count(*args, scratch_bytes=scratch)
        assert len(plan) == launches
        plan[0].args["charts"].fill_(1e9)  # all of them share it, and NaN would lose every comparison as -inf does
        launch.run(plan, s.segments.device)
        assert all(torch.equal(a, b) for a, b in zip(whole, outputs, strict=True))


@pytest.mark.parametrize(("b", "n"), [(0, 3), (2, 0)])
@pytest.mark.parametrize("shared", [True, False])
def test_empty_batches_and_sequences(b: int, n: int, shared: bool) -> None:
    transition = torch.zeros((3, 3) if shared else (b, max(n - 1, 0), 3, 3), requires_grad=True)
    s = sl.SemiMarkov(torch.zeros(b, n, 2, 3), transition, backend="triton")
    s.log_partition().sum().backward()
    assert transition.grad is not None
    assert transition.grad.shape == transition.shape
    steps = {name: torch.ones_like(x, dtype=torch.int64) for name, x in s.potentials.items()}
    best = s.best_by_count(Counter((steps,), (4,)), torch.full((b, 4), 2.0), torch.ones(b, 4))
    assert best.y.shape == (b, n)
    assert best.value.tolist() == [2.0] * b
    assert s.max_by_count(Counter((steps,), (4,))).table.tolist() == [[0.0, NEG_INF, NEG_INF, NEG_INF]] * b
