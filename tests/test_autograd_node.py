"""The node of log Z in torch's graph: in C++ and in Python it gives the same gradients and refuses the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import structlearn as sl
from structlearn.ops import _native, value_and_gradient

LENGTHS = torch.tensor([5, 0, 3])
GRAMMAR = sl.Grammar(torch.tensor([(0, 0, 0), (0, 1, 2), (0, 0, 1)]), nonterminals=1, preterminals=2)

# Leaves and the log Z of them.
STRUCTURES: dict[str, tuple[Callable[[], list[Tensor]], Callable[..., Tensor]]] = {
    "chain": (
        lambda: [torch.randn(3, 5, 4), torch.randn(4, 4)],
        lambda unary, transition: sl.LinearChain(unary, transition, lengths=LENGTHS).log_partition(),
    ),
    "chain with edges": (
        lambda: [torch.randn(3, 5, 4), torch.randn(4, 4), torch.randn(4), torch.randn(4)],
        lambda unary, transition, start, end: sl.LinearChain(unary, transition, start=start, end=end).log_partition(),
    ),
    "spans": (
        lambda: [torch.randn(3, 5, 5, 2)],
        lambda spans: sl.SpanTree(spans, lengths=LENGTHS).log_partition(),
    ),
    "alignment": (
        lambda: [torch.randn(3, 4, 5), torch.randn(3)],
        lambda match, gap: sl.Alignment(match, gap=gap, mode="local").log_partition(),
    ),
    "grammar": (
        lambda: [torch.randn(3, 4, 2), torch.randn(3), torch.randn(1)],
        lambda terms, rules, roots: sl.WeightedCFG(GRAMMAR, terms, rules, roots).log_partition(),
    ),
}


@pytest.fixture(params=["C++ in one call", "C++", "Python"])
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """In turn kernel and node in C++, the node alone, and, as where it was not built, the one in Python."""
    if request.param != "C++ in one call":
        for name in ("chain", "span_tree"):
            monkeypatch.setattr(f"structlearn.structures.{name}.{name}_log_partition", lambda *args: None)
    if request.param == "Python":
        monkeypatch.setattr(_native, "attach", None)
    kind: str = request.param
    return kind


@pytest.fixture(params=STRUCTURES)
def problem(request: pytest.FixtureRequest) -> tuple[list[Tensor], Callable[..., Tensor]]:
    make, log_z = STRUCTURES[request.param]
    torch.manual_seed(0)
    return [x.double().requires_grad_() for x in make()], log_z


def test_the_node_is_built() -> None:
    assert _native.missing_node is None


def test_gradients(node: str, problem: tuple[list[Tensor], Callable[..., Tensor]]) -> None:
    leaves, log_z = problem
    grad_fn = log_z(*leaves).grad_fn
    assert grad_fn is not None
    assert grad_fn.name() == ("_LogPartitionBackward" if node == "Python" else "LogPartitionBackward")
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(log_z, leaves)
    assert torch.autograd.gradgradcheck(log_z, leaves)
    rows = [torch.autograd.grad(log_z(*leaves)[b], leaves) for b in range(3)]
    for weight in (torch.ones_like(weights), torch.full_like(weights, 3.0), weights):
        found = torch.autograd.grad(log_z(*leaves) @ weight, leaves)
        for i, gradient in enumerate(found):
            expected = sum(w * row[i] for w, row in zip(weight, rows, strict=True))
            torch.testing.assert_close(gradient, expected)


def test_a_graph_that_is_kept_serves_twice(node: str, problem: tuple[list[Tensor], Callable[..., Tensor]]) -> None:
    leaves, log_z = problem
    value = log_z(*leaves).sum()
    first = torch.autograd.grad(value, leaves, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(value, leaves), first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(value, leaves)


def test_an_input_written_over_is_an_error(node: str) -> None:
    unary, transition = torch.randn(2, 4, 3, requires_grad=True), torch.randn(3, 3)
    log_z = sl.LinearChain(unary, transition).log_partition()
    with torch.no_grad():
        unary.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (log_z * torch.tensor([1.0, 2.0])).sum().backward()  # unequal rows are computed again from the inputs


def test_only_what_wants_a_gradient_gets_one(node: str) -> None:
    unary, transition = torch.randn(2, 4, 3), torch.randn(3, 3, requires_grad=True)
    sl.LinearChain(unary, transition).log_partition().sum().backward()
    assert unary.grad is None
    assert transition.grad is not None


def test_hooks_on_saved_tensors_see_the_inputs(node: str) -> None:
    unary, transition = torch.randn(2, 4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    seen: list[tuple[int, ...]] = []

    def pack(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        sl.LinearChain(unary, transition).log_partition()
    assert seen == [(2, 4, 3), (3, 3)]


def test_tangents_are_refused(node: str) -> None:
    with forward_ad.dual_level():
        unary = forward_ad.make_dual(torch.randn(2, 4, 3), torch.ones(2, 4, 3))
        chain = sl.LinearChain(unary, torch.randn(3, 3, requires_grad=True))
        with pytest.raises(NotImplementedError, match="forward mode"):
            chain.log_partition()


def test_one_call_records_only_where_torch_does() -> None:
    unary, transition = torch.randn(2, 4, 3), torch.randn(3, 3)
    again = value_and_gradient.chain_again

    def called(*args: Any) -> Tensor | None:
        found: Tensor | None = _native.chain_log_partition(*args, None, None, LENGTHS[::2].clamp(max=4), again)
        return found

    assert called(unary, transition) is None
    leaf = unary.clone().requires_grad_()
    with torch.no_grad():
        assert called(leaf, transition) is None
    with torch.inference_mode():
        assert called(leaf, transition) is None
    found = called(leaf, transition)
    assert found is not None
    assert found.requires_grad
    assert called(leaf, transition.T) is None
    assert _native.chain_log_partition(leaf, transition, None, None, None) is None

    def inside(x: Tensor) -> Tensor:
        assert called(leaf, transition) is None
        return x.sum()

    torch.func.grad(inside)(torch.randn(2))
    torch.vmap(inside)(torch.randn(2, 2))


def _attach(again: Callable[..., Any], **changed: Any) -> Tensor:
    unary, transition = torch.randn(2, 4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    log_z, *gradient = _native.chain_value_and_gradient(unary, transition, None, None, None)
    given = {"gradient": (*gradient, None), "tensors": (unary, transition, None, None, None), "options": ()} | changed
    assert _native.attach is not None
    found = _native.attach(log_z, given["gradient"], again, given["tensors"], given["options"])
    assert found is not None
    return found


def test_the_gradient_is_handed_on_without_a_copy() -> None:
    unary, transition = torch.randn(2, 4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    log_z, gradient = value_and_gradient.chain(unary, transition, None, None, None)
    place = gradient[0].data_ptr()
    assert _native.attach is not None
    found = _native.attach(log_z, gradient, None, (unary, transition, None, None, None), ())
    del gradient
    assert found is log_z
    log_z.sum().backward()  # type: ignore[no-untyped-call]
    assert unary.grad is not None
    assert unary.grad.data_ptr() == place


def test_what_python_raises_during_backward_arrives() -> None:
    def again(*args: Any) -> Any:
        assert [type(x) for x in args] == [Tensor, Tensor, Tensor, type(None), type(None), type(None), int]
        raise ValueError("not again")

    with pytest.raises(ValueError, match="not again"):
        _attach(again, options=(7,)).backward(torch.tensor([1.0, 2.0]))  # type: ignore[no-untyped-call]
    with pytest.raises(IndexError):
        _attach(lambda *args: ()).backward(torch.tensor([1.0, 2.0]))  # type: ignore[no-untyped-call]


def test_arguments_of_attach() -> None:
    with pytest.raises(ValueError, match="0 gradients for 5 tensors"):
        _attach(print, gradient=())
    with pytest.raises(TypeError, match="takes 5 arguments"):
        _native.attach()  # type: ignore[misc]


def test_says_why_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, reason in (
        (None, "where torch is installed"),
        (SimpleNamespace(TORCH_VERSION="2.1.0"), "built for torch 2.1.0, this is"),
    ):
        monkeypatch.setitem(sys.modules, "structlearn._native_torch", module)
        monkeypatch.delattr(sl, "_native_torch", raising=False)
        if module is not None:
            monkeypatch.setattr(sl, "_native_torch", module, raising=False)
        absent, missing = _native._for_this_torch()
        assert absent.attach is None
        assert missing is not None
        assert reason in missing
