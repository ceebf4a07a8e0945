"""Calls that go from Python to a kernel without ctypes give what the way through ctypes gives, or decline."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases import ChainCase, chain_cases, forbidden_cases, tie_cases
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import structlearn as sl
from structlearn.errors import InfeasibleError
from structlearn.ops import _native, value_and_gradient
from structlearn.ops import chain as chain_ops
from structlearn.ops import span_tree as span_tree_ops

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def chain_args(case: ChainCase) -> tuple[Any, ...]:
    problem = case.problem()
    lengths = None if problem.lengths is None else torch.tensor(problem.lengths, dtype=torch.int64)
    return *[problem.potentials.get(name) for name in ("unary", "transition", "start", "end")], lengths


def span_args(dtype: torch.dtype = torch.float32, size: tuple[int, ...] = (5, 6, 6, 3)) -> tuple[Tensor, Tensor]:
    return torch.randn(size, dtype=dtype), torch.randint(0, size[1] + 1, size[:1])


@pytest.fixture(params=["this torch", "every torch"])
def native(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The functions of either build."""
    module, missing = _native._for_this_torch() if request.param == "this torch" else _native._for_every_torch()
    assert missing is None
    module.poison(True)
    yield module
    module.poison(False)


@pytest.fixture
def through_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the module was not built."""
    absent = _native._Absent()
    for name in ("chain_fits", "chain_best", "chain_log_partition", "chain_value_and_gradient"):
        monkeypatch.setattr(f"structlearn.structures.chain.{name}", getattr(absent, name))
    for name in ("span_tree_fits", "span_tree_best", "span_tree_log_partition", "span_tree_value_and_gradient"):
        monkeypatch.setattr(f"structlearn.structures.span_tree.{name}", getattr(absent, name))
    for name in ("common_value", "chain_value_and_gradient", "span_tree_value_and_gradient"):
        monkeypatch.setattr(_native, name, getattr(absent, name))


@pytest.mark.parametrize("case", chain_cases() + tie_cases(), ids=str)
def test_chain_equals_ctypes(native: Any, case: ChainCase, request: pytest.FixtureRequest) -> None:
    args = chain_args(case)
    assert native.chain_fits(*args)
    both = native.chain_value_and_gradient(*args)
    labels = native.chain_best(*args)
    expected, infeasible = chain_ops.decode(*args)
    assert (labels is None) == bool(infeasible)
    if labels is not None:
        torch.testing.assert_close(labels, expected, rtol=0, atol=0)
    request.getfixturevalue("through_ctypes")
    log_z, gradient = value_and_gradient.chain(*args)
    for found, value in zip(both, (log_z, *gradient[:4]), strict=True):
        assert (found is None) == (value is None)
        if found is not None:
            torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(5, 6, 6, 3), (16, 10, 10, 10), (1, 1, 1, 1), (3, 0, 0, 2), (0, 4, 4, 2)], ids=str)
def test_spans_equal_ctypes(
    native: Any, dtype: torch.dtype, size: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    spans, lengths = span_args(dtype, size)
    assert native.span_tree_fits(spans, lengths)
    assert native.span_tree_fits(spans, None)
    both = native.span_tree_value_and_gradient(spans, lengths)
    labels = native.span_tree_best(spans, lengths)
    expected, without = span_tree_ops.decode(spans, lengths)
    assert without == 0
    torch.testing.assert_close(labels, expected, rtol=0, atol=0)
    request.getfixturevalue("through_ctypes")
    log_z, gradient = value_and_gradient.span_tree(spans, lengths)
    torch.testing.assert_close(both, (log_z, gradient[0]), rtol=0, atol=0)


def test_strides_that_the_kernels_take(native: Any) -> None:
    unary = torch.randn(4, 12, 5)[1:, ::2]
    transition = torch.randn(4, 8, 5, 5)[1:, 1:6]
    assert native.chain_fits(unary, transition, None, None, None)
    labels = native.chain_best(unary, transition, None, None, None)
    expected = sl.LinearChain(unary.contiguous(), transition.contiguous(), backend="reference").argmax()
    torch.testing.assert_close(labels, expected, rtol=0, atol=0)
    spans = torch.randn(6, 7, 4, 4, 3)[::2, 2]
    expected = sl.SpanTree(spans.contiguous(), backend="reference").argmax()
    torch.testing.assert_close(native.span_tree_best(spans, None), expected, rtol=0, atol=0)


def test_says_why_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _native.missing is None
    monkeypatch.setitem(sys.modules, "structlearn._native", None)
    monkeypatch.delattr(sl, "_native", raising=False)
    module, reason = _native._for_every_torch()
    assert module.chain_fits() is False
    assert module.chain_best() is None
    assert "install Python's headers" in reason
    monkeypatch.setattr(_native._library, "_open", lambda: OSError("no such library"))
    assert _native._for_every_torch()[1] == _native._for_this_torch()[1] == "no such library"


class Subclass(Tensor):
    pass


def _chain(**changed: Any) -> tuple[Any, ...]:
    given = {
        "unary": torch.randn(2, 4, 3),
        "transition": torch.randn(3, 3),
        "start": torch.randn(3),
        "end": torch.randn(3),
        "lengths": torch.tensor([4, 2]),
    }
    return tuple((given | changed).values())


NOT_PLAIN: dict[str, Callable[[], tuple[Any, ...]]] = {
    "a list": lambda: _chain(unary=[[[0.0]]]),
    "a subclass": lambda: _chain(unary=torch.randn(2, 4, 3).as_subclass(Subclass)),
    "rank": lambda: _chain(unary=torch.randn(4, 3)),
    "no labels": lambda: _chain(unary=torch.randn(2, 4, 0), transition=torch.randn(0, 0)),
    "half precision": lambda: _chain(unary=torch.randn(2, 4, 3).half()),
    "mixed precision": lambda: _chain(transition=torch.randn(3, 3).double()),
    "another size": lambda: _chain(transition=torch.randn(4, 4)),
    "turned unary": lambda: _chain(unary=torch.randn(2, 3, 4).mT),
    "turned transition": lambda: _chain(transition=torch.randn(3, 3).T),
    "steps of another length": lambda: _chain(transition=torch.randn(2, 4, 3, 3)),
    "rank of transition": lambda: _chain(transition=torch.randn(3, 3, 3)),
    "start of another size": lambda: _chain(start=torch.randn(2)),
    "end with gaps": lambda: _chain(end=torch.randn(6)[::2]),
    "32-bit lengths": lambda: _chain(lengths=torch.tensor([4, 2], dtype=torch.int32)),
    "list of lengths": lambda: _chain(lengths=[4, 2]),
    "too few lengths": lambda: _chain(lengths=torch.tensor([4])),
    "too long": lambda: _chain(lengths=torch.tensor([5, 2])),
    "negative": lambda: _chain(lengths=torch.tensor([4, -1])),
    "another device": lambda: _chain(unary=torch.randn(2, 4, 3, device="meta")),
    "too few arguments": lambda: _chain()[:4],
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_declines_what_is_not_plain(native: Any, name: str) -> None:
    args = NOT_PLAIN[name]()
    assert native.chain_fits(*args) is False
    assert native.chain_best(*args) is None
    assert native.chain_value_and_gradient(*args) is None


@pytest.mark.parametrize(
    "spans",
    [
        torch.randn(2, 3, 4, 2),
        torch.randn(2, 3, 3),
        torch.randn(2, 3, 3, 0),
        torch.randn(2, 3, 3, 2).long(),
        torch.randn(2, 2, 3, 3).permute(0, 2, 3, 1),
    ],
    ids=["not square", "rank", "no labels", "integers", "turned"],
)
def test_declines_spans_that_are_not_plain(native: Any, spans: Tensor) -> None:
    assert native.span_tree_fits(spans, None) is False
    assert native.span_tree_best(spans, None) is None
    assert native.span_tree_value_and_gradient(spans, None) is None


def test_declines_inside_transforms_and_modes(native: Any) -> None:
    transition = torch.randn(3, 3)

    def look(unary: Tensor) -> Tensor:
        assert not native.chain_fits(unary[None], transition, None, None, None)
        assert native.chain_best(unary[None], transition, None, None, None) is None
        return unary.sum()

    torch.vmap(look)(torch.randn(2, 4, 3))
    torch.func.grad(look)(torch.randn(4, 3))

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    with Mode():
        assert native.chain_best(*_chain()) is None
    assert native.chain_best(*_chain()) is not None


@pytest.mark.parametrize("case", [c for c in forbidden_cases() if not c.per_position], ids=str)
def test_rows_without_output_are_left_to_the_error(native: Any, case: ChainCase) -> None:
    assert native.chain_best(*chain_args(case)) is None
    with pytest.raises(InfeasibleError, match="rows \\[1, 2\\]"):
        case.problem().make("cpu").argmax()
    spans = torch.zeros(2, 3, 3, 2)
    spans[1, 0, 2] = float("-inf")
    assert native.span_tree_best(spans, None) is None


@pytest.mark.usefixtures("through_ctypes")
def test_structures_work_without_the_module() -> None:
    chain = chain_cases()[6].problem()
    leaves = chain.leaves()
    chain.make("cpu", **leaves).log_partition().sum().backward()
    torch.testing.assert_close(leaves["unary"].grad, chain.make("reference").marginals().unary)
    torch.testing.assert_close(chain.make("cpu").argmax(), chain.make("reference").argmax())
    spans, lengths = span_args()
    torch.testing.assert_close(
        sl.SpanTree(spans, lengths=lengths).argmax(), sl.SpanTree(spans, lengths=lengths, backend="reference").argmax()
    )


def test_results_are_tensors_of_their_own(native: Any) -> None:
    labels = native.chain_best(*_chain())
    kept = labels.clone()
    labels += 1
    assert torch.equal(pickle.loads(pickle.dumps(labels)), kept + 1)
    assert torch.equal(torch.from_numpy(labels.numpy()), kept + 1)
    assert labels.is_contiguous()
    assert labels.data_ptr() % 64 == 0
    assert torch.equal(labels.share_memory_(), kept + 1)
    log_z, *gradient = native.chain_value_and_gradient(*_chain())
    assert not any(x.requires_grad for x in (log_z, *gradient))
    with torch.inference_mode():
        assert torch.equal(sl.LinearChain(*_chain()[:2]).argmax() * 0, kept * 0)


def test_nothing_is_left_behind(native: Any) -> None:
    """Neither tensors nor references, whether calls succeed or are declined."""
    args, refused = _chain(), _chain(lengths=torch.tensor([9, 9]))
    gc.collect()
    before = sum(type(x) is Tensor for x in gc.get_objects())
    for _ in range(50):
        for given in (args, refused):
            native.chain_fits(*given)
            native.chain_best(*given)
            native.chain_value_and_gradient(*given)
    assert sum(type(x) is Tensor for x in gc.get_objects()) == before


def test_a_large_result_takes_the_place_of_the_last_one(native: Any) -> None:
    """So that a training step need not have its pages mapped and cleared again."""
    unary, transition = torch.randn(1, 2_200_000, 4), torch.randn(4, 4)  # 35 MB
    first = native.chain_value_and_gradient(unary, transition, None, None, None)
    place, value = first[1].data_ptr(), first[1].sum()
    other = native.chain_value_and_gradient(unary, transition, None, None, None)
    assert other[1].data_ptr() != place
    del first
    again = native.chain_value_and_gradient(unary, transition, None, None, None)
    assert again[1].data_ptr() == place
    assert again[1].sum() == other[1].sum() == value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_common_value(native: Any, dtype: torch.dtype) -> None:
    assert native.common_value(torch.full((5,), 0.25, dtype=dtype)) == 0.25
    assert native.common_value(torch.ones((), dtype=dtype).expand(5)) == 1.0
    assert native.common_value(torch.tensor([1.0, 9.0, 1.0, 9.0], dtype=dtype)[::2]) == 1.0
    assert native.common_value(torch.tensor([1.0, 2.0], dtype=dtype)) is None
    assert native.common_value(torch.full((2,), float("nan"), dtype=dtype)) is None
    assert native.common_value(torch.ones((2, 2), dtype=dtype)) is None
    assert native.common_value(torch.ones(0, dtype=dtype)) == 1.0
