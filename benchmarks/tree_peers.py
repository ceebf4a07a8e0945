"""Who parses: structlearn, numba, torch-struct and a torch loop, each called as its users call it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Contestant
from benchmarks.peers import torch_alone
from benchmarks.peers.ours import UNTAPED
from benchmarks.peers.tensors import differentiate
from benchmarks.tree_cases import Array, DenseCase, SpanCase

Call = Callable[[], Any]


def _read_spans(result: Any) -> dict[str, Array]:
    log_z, gradient = result
    if isinstance(gradient, tuple):  # marginals have fields
        (gradient,) = gradient
    return {"log Z": _numpy(log_z), "spans": _numpy(gradient)}


def _numpy(x: Any) -> Array:
    return np.asarray(x.detach() if hasattr(x, "detach") else x, dtype=np.float64)


# --- labelled spans


def ours_span_argmax(case: SpanCase) -> Call:
    import torch

    import structlearn as sl

    spans = torch.tensor(case.spans)
    return lambda: sl.SpanTree(spans).argmax()


def ours_span_partition(case: SpanCase) -> Call:
    import torch

    import structlearn as sl

    return differentiate(lambda x: sl.SpanTree(x).log_partition(), torch.tensor(case.spans, requires_grad=True))


def ours_span_values(case: SpanCase) -> Call:
    import torch

    import structlearn as sl

    spans = torch.tensor(case.spans)
    return lambda: sl.SpanTree(spans).log_partition_and_marginals()


def alone_span_partition(case: SpanCase) -> Call:
    import torch

    return torch_alone.gradients(torch.tensor(case.spans))


def _numba(kernel: str, *more: int) -> Callable[[SpanCase], Call]:
    def prepare(case: SpanCase) -> Call:
        from benchmarks import tree_numba

        function = getattr(tree_numba, kernel)
        return lambda: function(case.spans, *more)

    return prepare


def struct_span_argmax(case: SpanCase) -> Call:
    import torch
    from torch_struct import TreeCRF

    spans = torch.tensor(case.spans)
    return lambda: TreeCRF(spans).argmax


def _read_hot(parts: Any) -> Array:
    hot = parts.detach().numpy()
    return np.where(hot.max(-1) > 0.5, hot.argmax(-1), -100)


def struct_span_partition(case: SpanCase) -> Call:
    import torch
    from torch_struct import TreeCRF

    return differentiate(lambda x: TreeCRF(x).partition, torch.tensor(case.spans, requires_grad=True))


# --- dense grammars


def _grammar(case: DenseCase) -> Any:
    import torch

    import structlearn as sl

    nt, s, _ = case.rules.shape
    triples = torch.cartesian_prod(torch.arange(nt), torch.arange(s), torch.arange(s))
    return sl.Grammar(triples, nt, s - nt)


def _tensors(case: DenseCase, grad: bool = False) -> list[Any]:
    import torch

    return [torch.tensor(x, requires_grad=grad) for x in (case.terms, case.rules, case.roots)]


def ours_dense_argmax(case: DenseCase) -> Call:
    import structlearn as sl

    grammar = _grammar(case)
    terms, rules, roots = _tensors(case)
    return lambda: (case, sl.WeightedCFG(grammar, terms, rules.flatten(), roots).argmax())


def _read_charts(result: Any) -> dict[str, Array]:
    """Charts to counts of parts; the walk refuses what is no derivation."""
    case, charts = result
    nt, s, _ = case.rules.shape
    b, n, p = case.terms.shape
    counts = {
        "terms": np.zeros((b, n, p)),
        "rules": np.zeros((b, nt, s, s)),
        "roots": np.zeros((b, nt)),
    }
    for row, chart in enumerate(charts.tolist()):

        def symbol(i: int, j: int, chart: Any = chart) -> int:
            return nt + chart[i][j] if i == j else chart[i][j] // (s * s)

        counts["roots"][row, symbol(0, n - 1)] = 1
        stack = [(0, n - 1)]
        while stack:
            i, j = stack.pop()
            if i == j:
                counts["terms"][row, i, chart[i][i]] += 1
                continue
            parent, left, right = chart[i][j] // (s * s), chart[i][j] // s % s, chart[i][j] % s
            counts["rules"][row, parent, left, right] += 1
            cut = next(k for k in range(i, j) if chart[i][k] >= 0 and chart[k + 1][j] >= 0)
            if (symbol(i, cut), symbol(cut + 1, j)) != (left, right):
                raise ValueError(f"no derivation at {i}..{j}")
            stack += [(i, cut), (cut + 1, j)]
    return counts


def ours_dense_partition(case: DenseCase) -> Call:
    import structlearn as sl

    grammar = _grammar(case)
    leaves = _tensors(case, grad=True)
    return differentiate(lambda t, r, o: sl.WeightedCFG(grammar, t, r.flatten(), o).log_partition(), *leaves)


def _struct(terms: Any, rules: Any, roots: Any) -> Any:
    from torch_struct import SentCFG

    b = terms.shape[0]
    return SentCFG((terms, rules.expand(b, *rules.shape), roots.expand(b, -1)))


def struct_dense_argmax(case: DenseCase) -> Call:
    terms, rules, roots = _tensors(case)

    def call() -> Any:
        # Its own batch of rules: torch-struct makes them ask for gradients.
        return _struct(terms, rules.clone(), roots).argmax

    return call


def _read_struct(parts: Any) -> dict[str, Array]:
    terms, rules, roots = parts[:3]
    return {"terms": _numpy(terms), "rules": _numpy(rules), "roots": _numpy(roots)}


def struct_dense_partition(case: DenseCase) -> Call:
    return differentiate(lambda t, r, o: _struct(t, r, o).partition, *_tensors(case, grad=True))


def loop_dense_partition(case: DenseCase) -> Call:
    from benchmarks.tree_torch import dense_loop

    return differentiate(dense_loop, *_tensors(case, grad=True))


def _read_dense(result: Any) -> dict[str, Array]:
    log_z, terms, rules, roots = result
    return {"log Z": _numpy(log_z), "terms": _numpy(terms), "rules": _numpy(rules), "roots": _numpy(roots)}


def _ours(prepare: Any, read: Any) -> Contestant:
    return Contestant("structlearn", prepare, read, ("structlearn",), "ours")


def _peer(name: str, prepare: Any, read: Any, module: str) -> Contestant:
    return Contestant(name, prepare, read, (module,), family=name)


CONTESTANTS: dict[str, tuple[Contestant, ...]] = {
    "span argmax": (
        _ours(ours_span_argmax, lambda y: y.numpy()),
        _peer("numba", _numba("span_argmax", -100), lambda y: y, "numba"),
        Contestant("numba, two layouts", _numba("span_argmax_both", -100), lambda y: y, ("numba",), "level"),
        _peer("torch-struct", struct_span_argmax, _read_hot, "torch_struct"),
    ),
    "span partition": (
        _ours(ours_span_partition, _read_spans),
        Contestant(UNTAPED, ours_span_values, _read_spans, ("structlearn",), "untaped"),
        Contestant(torch_alone.NAME, alone_span_partition, role="floor"),
        _peer("numba", _numba("span_partition"), _read_spans, "numba"),
        Contestant("numba, two layouts", _numba("span_partition_both"), _read_spans, ("numba",), "level"),
        _peer("torch-struct", struct_span_partition, _read_spans, "torch_struct"),
    ),
    "dense argmax": (
        _ours(ours_dense_argmax, _read_charts),
        _peer("torch-struct", struct_dense_argmax, _read_struct, "torch_struct"),
    ),
    "dense partition": (
        _ours(ours_dense_partition, _read_dense),
        _peer("torch loop", loop_dense_partition, _read_dense, "torch"),
        _peer("torch-struct", struct_dense_partition, _read_dense, "torch_struct"),
    ),
}
