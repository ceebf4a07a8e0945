"""``torch.library.opcheck`` of every operator that the table's queries call, and of each way they call it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import structlearn as sl
import structlearn.ops.tree_kernel

from .cases import CASES, Case
from .structures import ENTRIES

# Operators of ops/tree_kernel.py, imported above to be known.
NO_STRUCTURE = {"tree_kernel_gram", "tree_kernel_diagonal"}  # tests/test_tree_kernel.py
COMPILED = "test_aot_dispatch_dynamic"
NOT_COMPILED = {
    "span_tree_forward": "padding of the chart is scratch memory, whose bits are no result",
    "grammar_forward": "padding of the chart is scratch memory, whose bits are no result",
    "span_tree_max": "opcheck adds labels to scores",
    "grammar_max": "opcheck adds labels to scores",
}


class Recorder(TorchDispatchMode):
    """Keeps the first call of each operator by its name and by which arguments are there."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[tuple[str, ...], tuple[Any, tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "structlearn":
            name = func._schema.name.removeprefix("structlearn::")
            given = ("" if a is None else str(a.dim()) if isinstance(a, Tensor) else "value" for a in args)
            self.calls.setdefault((name, *given), (func, tuple(own(a) for a in args)))
        return func(*args, **(kwargs or {}))


def own(a: Any) -> Any:
    return a.detach().clone() if isinstance(a, Tensor) else a


@functools.cache
def calls() -> dict[tuple[str, ...], tuple[Any, tuple[Any, ...]]]:
    recorder = Recorder()
    for entry, engine in [(entry, engine) for engine in ("cpu", "triton") for entry in ENTRIES]:
        # Other structures' Triton kernels stand behind the operators of the CPU.
        if engine not in entry.engines or (engine == "triton" and entry.name != "WeightedCFG"):
            continue
        problem = Case(entry.name, size=entry.sizes[0 if engine == "cpu" else 2].name, dtype="f64").problem
        leaves = {name: x.nan_to_num(0.0).requires_grad_() for name, x in problem.leaves().items()}
        leaves = {name: x.detach().requires_grad_() for name, x in leaves.items()}
        with recorder:
            s = problem.make(engine, **leaves)
            y = s.argmax()
            if engine == "triton":
                s.log_partition().sum().backward()
                continue
            s.topk(2), s.sample(2), s.count()
            first = torch.autograd.grad(s.log_partition().sum(), [*leaves.values()], create_graph=True)
            value = sum((x * x).sum() for x in first) + s.max().sum() + s.entropy().sum() + s.score(y).sum()
            value = value + s.difference(y, y).sum()
            s.marginals()
            for loss in losses(entry.name):
                value = value + loss(s, y).sum()
            torch.autograd.grad(value, [*leaves.values()], allow_unused=True)  # type: ignore[arg-type]
    return recorder.calls


def losses(name: str) -> list[Any]:
    """Those whose inference has an operator of its own."""
    cost = sl.costs.AlignedPairs() if name.startswith("Alignment") else sl.costs.Hamming()
    counted = {"SpanTree": sl.costs.BracketF1(), "WeightedCFG": sl.costs.BracketF1()}.get(name.partition("-")[0], cost)
    return [sl.StructuredHinge(cost), sl.StructuredHinge(counted, rescaling="slack")]


def registered() -> set[str]:
    schemas = torch._C._jit_get_all_schemas()
    return {s.name.removeprefix("structlearn::") for s in schemas if s.name.startswith("structlearn::")}


def test_every_operator_is_called() -> None:
    called = {name for name, *_ in calls()}
    interpreted = set() if "triton" in sl.ops.backends() else {name for name in registered() if "_gpu_" in name}
    assert sorted(registered() - called - NO_STRUCTURE - interpreted) == []


@pytest.mark.parametrize("key", list(calls()), ids=lambda key: "-".join(key))
def test_opcheck(key: tuple[str, ...]) -> None:
    func, args = calls()[key]
    has_gradient = torch._C._dispatch_has_kernel_for_dispatch_key(func._schema.name, "Autograd")
    # A further derivative of these is refused.
    twice = key[0].endswith(("_second", "_entropy_backward")) or key[0] == "grammar_gpu_backward"
    floating = [isinstance(a, Tensor) and a.is_floating_point() and has_gradient and not twice for a in args]
    args = tuple(own(a).requires_grad_() if f else own(a) for a, f in zip(args, floating, strict=True))
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    first = next(other for other in calls() if other[0] == key[0])
    if key[0] not in NOT_COMPILED and (key == first or CASES):
        tests.append(COMPILED)
    torch.library.opcheck(func, args, test_utils=tests)
