"""SpanTree: every query of every backend against enumeration, and what the contract says of odd inputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cases import NEG_INF, QUERIES, assert_close
from oracles import Row
from oracles.span_tree import best as best_tree
from oracles.span_tree import totals
from queries import CHECKS, K
from tree_cases import TreeCase, TreeProblem, forbidden_cases, tie_cases, tree_cases

import structlearn as sl
from structlearn.errors import InfeasibleError, LabelError, ShapeError
from structlearn.structures import charts
from structlearn.structures.counting import Counter

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BACKENDS = ("reference", "cpu", "triton", "torch-struct")


def _score(s: sl.SpanTree, problem: TreeProblem) -> None:
    rows = problem.rows
    picks = [[(b + 7 * k) % len(row.outputs) for b, row in enumerate(rows)] for k in range(K)]
    y = torch.tensor([[problem.labels(b, row.outputs[p[b]]) for b, row in enumerate(rows)] for p in picks])
    expected = [[row.scores[p[b]] for b, row in enumerate(rows)] for p in picks]
    y = torch.where(s.mask, y, 10**6)  # padding may hold any label
    assert_close(s.score(y), expected, problem.dtype)
    assert_close(s.score(y[0]), expected[0], problem.dtype)
    assert_close(s.score(y.view(2, 2, *y.shape[1:]).int()), [expected[:2], expected[2:]], problem.dtype)


TREE_CHECKS: dict[str, Any] = {**CHECKS, "score": _score}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", tree_cases(), ids=str)
def test_query_equals_enumeration(case: TreeCase, backend: str, query: str) -> None:
    TREE_CHECKS[query](case.problem().make(backend), case.problem())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", forbidden_cases(), ids=str)
def test_forbidden_parts_and_rows(case: TreeCase, backend: str) -> None:
    problem = case.problem()
    assert 0 < sum(not row.feasible for row in problem.rows) < case.batch, "the case must mix both kinds of rows"
    for query in QUERIES:
        TREE_CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", tie_cases(), ids=str)
def test_ties_go_to_the_lowest_index_in_every_backend(case: TreeCase, backend: str) -> None:
    problem = case.problem()
    best = [row.topk(2) for row in problem.rows]
    assert any(len(b) == 2 and b[0][1] == b[1][1] for b in best), "the case must hold ties"
    for query in ("argmax", "topk"):
        TREE_CHECKS[query](problem.make(backend), problem)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [*tree_cases(), *forbidden_cases()], ids=str)
def test_gradients_equal_enumeration(case: TreeCase, backend: str) -> None:
    problem = case.problem()
    grad = [0.5 + b for b in range(case.batch)]
    for query, of in (("log_partition", Row.expected_parts), ("max", Row.best_parts)):
        spans = problem.potentials["spans"].clone().requires_grad_()
        value = getattr(problem.make(backend, spans=spans), query)()
        (found,) = torch.autograd.grad(value, spans, torch.tensor(grad, dtype=problem.dtype))
        assert_close(found, problem.expected(of, grad)["spans"], problem.dtype)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_second_derivatives(backend: str) -> None:
    mask = sl.SpanTree(torch.zeros(4, 4, 4, 2), lengths=[4, 3, 1, 0]).mask
    spans = torch.randn(4, 4, 4, 2, dtype=torch.float64).masked_fill(~mask[..., None], 0.0).requires_grad_()

    def make(x: torch.Tensor) -> sl.SpanTree:
        return sl.SpanTree(x, lengths=[4, 3, 1, 0], backend=backend)

    for f in (
        lambda x: make(x).log_partition(),
        lambda x: make(x).marginals().spans,
        lambda x: make(x).entropy(),
        lambda x: make(x).max(),
        lambda x: make(x).topk(3)[1][:, :2],
    ):
        assert torch.autograd.gradcheck(f, spans)
    assert torch.autograd.gradgradcheck(lambda x: make(x).log_partition(), spans)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_counts_are_catalan_numbers_times_labels(n: int) -> None:
    catalan = math.comb(2 * n - 2, n - 1) // n
    for labels in (1, 3):
        s = sl.SpanTree(torch.zeros(2, n, n, labels))
        assert s.count().tolist() == [catalan * labels ** (2 * n - 1)] * 2
        zero = sl.SpanTree(torch.zeros(2, n, n, labels, dtype=torch.float64))
        assert_close(zero.log_partition().exp() / s.count(), [1.0, 1.0], torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 13, 5), (9, 21, 17), (5, 34, 1), (2, 40, 33), (1, 130, 2), (2, 260, 1)], ids=str
)
def test_odd_sizes(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    b, n, labels = shape
    lengths = torch.randint(0, n + 1, (b,))
    lengths[0] = n
    spans = (torch.randn(b, n, n, labels, dtype=torch.float64) * 3).to(dtype)
    spans = spans.masked_fill(torch.rand_like(spans) < 0.1 / labels, NEG_INF)
    expected = [totals(x.double().numpy(), size) for x, size in zip(spans, lengths.tolist(), strict=True)]
    s = sl.SpanTree(spans, lengths=lengths)
    scale = 10.0 * n
    assert_close(s.log_partition(), [x for x, _ in expected], dtype, scale)
    assert_close(s.max(), [x for _, x in expected], dtype, scale)
    feasible = [x > NEG_INF for _, x in expected]
    y, _ = s._best()
    y = torch.where(torch.tensor(feasible)[:, None, None], y, charts.left_branching(s.mask))
    assert_close(s.score(y)[feasible], [x for _, x in expected if x > NEG_INF], dtype, scale)
    if n > 50:
        return
    wide = sl.SpanTree(spans.double(), lengths=lengths, backend="reference")
    assert_close(s.marginals().spans, wide.marginals().spans, dtype, scale)
    assert_close(s.entropy(), wide.entropy(), dtype, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [1, 2, 8, 10, 16, 17, 33])
def test_best_trees_of_whole_and_broken_groups(labels: int, dtype: torch.dtype) -> None:
    """Groups of one sentence a lane, with idle lanes, and of few sentences, at their limits in words."""
    g = torch.Generator().manual_seed(labels)
    sizes = [(1, 9), (2, 4), (3, 12), (5, 41), (8, 2), (12, 41), (13, 7), (16, 10), (19, 5), (33, 3)]
    for b, n in [*sizes, (1, 129), (5, 128)] if labels == 2 else sizes:
        spans = torch.randint(-2, 3, (b, n, n, labels), generator=g).to(dtype)  # sums are exact, many are equal
        spans = spans.masked_fill(torch.rand(spans.shape, generator=g) < 0.2 / labels, NEG_INF)
        ragged = torch.randint(0, n + 1, (b,), generator=g)
        ragged[b // 2] = n
        for lengths in (torch.full((b,), n), ragged):
            s = sl.SpanTree(spans, lengths=lengths)
            s = sl.SpanTree(spans.masked_fill(~s.mask[..., None], math.nan), lengths=lengths)
            y, scores = s._best()
            for row, length, found, score in zip(spans, lengths.tolist(), y, scores.tolist(), strict=True):
                best, tree = best_tree(row.numpy(), length)
                assert score == best
                expected = torch.full_like(found, -100)
                for span, label in tree.items() if best > NEG_INF else ():
                    expected[span] = label
                assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [1, 3, 8, 10, 17, 33])
def test_log_partition_and_marginals_of_whole_and_broken_groups(labels: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(labels)
    for b, n in ((2, 6), (9, 7), (16, 10), (17, 12), (9, 65)):
        if n > 50 and labels != 3:
            continue
        spans = torch.randn(b, n, n, labels, generator=g, dtype=torch.float64).to(dtype)
        spans[:, 1:3] *= 30  # spans whose sum is too small for the power of two of their row
        spans = spans.masked_fill(torch.rand(spans.shape, generator=g) < 0.1 / labels, NEG_INF)
        spans[-1, 0, 0] = NEG_INF  # no tree, and a row that is forbidden throughout
        spans[-1, -1] = NEG_INF
        ragged = torch.randint(0, n + 1, (b,), generator=g)
        ragged[0] = n
        for lengths in (torch.full((b,), n), ragged):
            wide = sl.SpanTree(spans.double(), lengths=lengths, backend="reference")
            s = sl.SpanTree(spans.masked_fill(~wide.mask[..., None], math.nan), lengths=lengths)
            log_z, found = s.log_partition_and_marginals()
            assert_close(log_z, wide.log_partition(), dtype, 10.0 * n)
            assert_close(found.spans, wide.marginals().spans, dtype, 10.0 * n)


@pytest.mark.parametrize("scale", [1e2, 1e4, 1e6, 1e9])
def test_extreme_scores_keep_their_precision(scale: float) -> None:
    spans = (torch.randn(3, 9, 9, 3) * scale).float()
    exact = sl.SpanTree(spans.double(), backend="reference")
    s = sl.SpanTree(spans)
    torch.testing.assert_close(s.log_partition().double(), exact.log_partition(), rtol=3e-7, atol=1e-5)
    found, expected = s.marginals().spans.double(), exact.marginals().spans
    assert found.isfinite().all()
    sums = found.sum((1, 2, 3))
    torch.testing.assert_close(sums, torch.full_like(sums, 17.0), rtol=1e-5, atol=0)
    if scale <= 1e4:
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=scale * 1e-6)


def test_sampling_frequencies_equal_probabilities() -> None:
    spans = torch.randn(2, 4, 4, 2, dtype=torch.float64)
    lengths = [4, 3]
    for backend, draws in (("reference", 1000), ("cpu", 20000)):
        s = sl.SpanTree(spans, lengths=lengths, backend=backend)
        y = s.sample(draws, generator=torch.Generator().manual_seed(3))
        used = torch.nn.functional.one_hot(y.clamp(min=0), 2) * (y >= 0)[..., None]
        error = (used.double().mean(0) - s.marginals().spans).abs().max()
        assert error < 5 * 0.5 / math.sqrt(draws)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(8,), (4, 8)], ids=str)
def test_best_tree_for_every_count_equals_enumeration(sizes: tuple[int, ...], backend: str) -> None:
    for case in (TreeCase("counts"), *tie_cases()[:1], *forbidden_cases()[1:]):
        problem = case.problem()
        shape = problem.potentials["spans"].shape
        g = torch.Generator().manual_seed(11)
        steps = [(torch.rand(shape, generator=g) < 0.4).long() for _ in sizes]
        if len(sizes) == 2:  # at most 3 spans count for the first statistic, as for matches with a small gold tree
            place = torch.arange(shape[1])
            steps[0] = steps[0] * ((place[:, None] < 1) & (place < 3))[..., None]
        counter = Counter(tuple({"spans": step} for step in steps), sizes)
        s = problem.make(backend)
        found = s.max_by_count(counter)
        offset, slope = torch.rand((5, *sizes), dtype=problem.dtype), torch.rand((5, *sizes), dtype=problem.dtype)
        best = s.best_by_count(counter, offset, slope)
        for b, row in enumerate(problem.rows):
            table = {}
            for y, score in zip(row.outputs, row.scores, strict=True):
                at = tuple(sum(int(step[b][span]) for span in y) for step in steps)
                if score > table.get(at, (NEG_INF, ()))[0]:
                    table[at] = (float(score), y)
            expected = torch.full(sizes, NEG_INF, dtype=torch.float64)
            for at, (score, _) in table.items():
                expected[at] = score
            assert_close(found.table[b], expected, problem.dtype)
            objective = (offset[b].double() + slope[b].double() * expected).masked_fill(expected == NEG_INF, NEG_INF)
            assert_close(best.value[b], objective.max(), problem.dtype)
            if table:
                at = list(table)[b % len(table)]
                decoded = found.decode(torch.tensor([at] * 5))
                y = decoded[b].tolist()
                used = [(i, j, y[i][j]) for i in range(case.N) for j in range(case.N) if y[i][j] != -100]
                assert sorted(used) in [sorted(tree) for tree in row.outputs]
                assert tuple(sum(int(step[b][span]) for span in used) for step in steps) == at
                scores = [float(problem.potentials["spans"][b][span]) for span in used]
                assert_close(torch.tensor(sum(scores), dtype=torch.float64), table[at][0], problem.dtype)
                reference = problem.make("reference").max_by_count(counter)
                assert torch.equal(decoded, reference.decode(torch.tensor([at] * 5)))


def test_trees_have_words_and_names() -> None:
    spans = torch.zeros(2, 3, 3, 2)
    spans[0, 1, 2, 1] = 1.0
    s = sl.SpanTree(spans, lengths=[3, 0])
    tree, none = s.trees(s.argmax(), [["the", "old", "man"], []], ["X", "NP"])
    assert tree is not None
    assert none is None
    assert tree.bracket() == "(X (X the) (NP (X old) (X man)))"
    assert str(s.trees(s.argmax())[0]) == "(0 (0 0) (1 (0 1) (0 2)))"
    with pytest.raises(ShapeError, match="3 words for batch row 0"):
        s.trees(s.argmax(), [["the"], []])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_what_is_not_a_tree_is_refused(backend: str) -> None:
    s = sl.SpanTree(torch.zeros(2, 3, 3, 2), backend=backend)
    y = s.argmax()
    for change, message in (
        (lambda z: z[1, 0, 2].fill_(5), "labels in 0..1"),
        (lambda z: z[1, 0, 2].fill_(-1), "labels in 0..1"),
        (lambda z: z[1, 0, 1].fill_(0), "a binary tree"),
        (lambda z: z[1, 1, 2].fill_(-100), "a binary tree"),
    ):
        wrong = y.clone()
        change(wrong)
        with pytest.raises(LabelError, match=message):
            s.score(wrong)


def test_arguments_are_checked() -> None:
    for shape in ((2, 3, 4, 2), (2, 3, 3, 0)):
        with pytest.raises(ShapeError, match="spans: expected"):
            sl.SpanTree(torch.zeros(shape))
    with pytest.raises(InfeasibleError, match=r"batch rows \[1\]"):
        sl.SpanTree(torch.stack([torch.zeros(2, 2, 1), torch.full((2, 2, 1), NEG_INF)])).argmax()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    spans = torch.randn(2, 5, 5, 3).to(dtype)
    half, whole = sl.SpanTree(spans), sl.SpanTree(spans.float())
    assert torch.equal(half.log_partition(), whole.log_partition())
    assert torch.equal(half.argmax(), whole.argmax())


def test_strided_potentials_and_empty_batches() -> None:
    spans = torch.randn(2, 3, 5, 5).permute(0, 2, 3, 1)
    assert torch.equal(sl.SpanTree(spans).log_partition(), sl.SpanTree(spans.contiguous()).log_partition())
    sliced = torch.randn(2, 7, 7, 3)[:, 1:6, 1:6]
    assert torch.equal(sl.SpanTree(sliced).argmax(), sl.SpanTree(sliced.contiguous()).argmax())
    for shape in ((0, 4, 4, 2), (3, 0, 0, 2)):
        empty = sl.SpanTree(torch.zeros(shape))
        assert empty.log_partition().tolist() == [0.0] * shape[0]
        assert empty.max().tolist() == [0.0] * shape[0]
        assert empty.argmax().shape == shape[:3]


def test_operators_pass_opcheck_and_compile() -> None:
    spans = torch.randn(3, 5, 5, 2, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([5, 3, 0])
    y = sl.SpanTree(spans, lengths=lengths).argmax()
    ops = torch.ops.structlearn
    log_z, chart = ops.span_tree_forward(spans.detach(), lengths, True, "cpu")
    # The chart's padding is scratch: its bits are not a result.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for op, args in (
        (ops.span_tree_max, (spans, lengths, "cpu")),
        (ops.span_tree_score, (spans, lengths, y[None])),
        (ops.span_tree_forward, (spans, lengths, True, "cpu")),
        (ops.span_tree_backward, (spans, lengths, chart, log_z, torch.ones_like(log_z), "cpu")),
        (ops.span_tree_entropy, (spans, lengths)),
        (ops.span_tree_kbest, (spans.detach(), lengths, 3)),
    ):
        torch.library.opcheck(op, args, test_utils=tests)

    def loss(x: torch.Tensor) -> torch.Tensor:
        s = sl.SpanTree(x, lengths=lengths)
        return (s.log_partition() - s.score(y) + s.entropy() + s.max()).sum()

    (expected,) = torch.autograd.grad(loss(spans), spans)
    (found,) = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(spans), spans)
    torch.testing.assert_close(found, expected)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    spans = torch.randn(17, 30, 30, 5)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            s = sl.SpanTree(spans)
            log_z, both = s.log_partition_and_marginals()
            results.append((s.log_partition(), s.marginals().spans, s.max(), s.argmax(), log_z, both.spans))
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
