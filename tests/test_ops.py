"""The torch.library operators: opcheck, compile, fake tensors, autocast, functorch, and the choice of backend."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import BACKENDS, ChainCase
from torch import Tensor

import structlearn as sl
from structlearn.errors import BackendError
from structlearn.ops import _backends
from structlearn.ops import chain as ops

B, N, C = 3, 4, 3


def arguments(
    per_position: bool = False, edges: bool = True, dtype: torch.dtype = torch.float64, grad: bool = True
) -> list[Any]:
    """unary, transition, start, end, lengths."""
    case = ChainCase(
        "op", B=B, N=N, C=C, lengths=(4, 1, 3), per_position=per_position, start=edges, end=edges, dtype=dtype
    )
    s = case.problem().make("cpu")
    given = (s.unary.nan_to_num(0.0), s.transition.nan_to_num(0.0), s.start, s.end)
    return [*(None if x is None else x.clone().requires_grad_(grad) for x in given), s.lengths]


def samples(args: list[Any]) -> dict[str, tuple[Any, ...]]:
    """Arguments for every operator of the chain."""
    unary = args[0]
    dtype = unary.dtype
    y = torch.tensor([[0, 1, 2, 0], [2, 0, 0, 0], [1, 1, 0, 0]])
    quiet = [None if x is None else x.detach() for x in args]
    log_z, alpha = ops.forward(*quiet, True, "cpu")
    grad = torch.randn(B, dtype=dtype, requires_grad=unary.requires_grad)
    directions = [None if x is None else torch.randn_like(x) for x in quiet[:4]]
    return {
        "chain_viterbi": (*quiet, "cpu"),
        "chain_max": tuple(args),
        "chain_score": (*args, torch.stack([y, y.flip(0)])),
        "chain_score_backward": (*quiet, y[None], grad[None]),
        "chain_forward": (*args, True, "cpu"),
        "chain_backward": (*args, alpha, log_z, grad, "cpu"),
        "chain_second": (*quiet, grad.detach(), *directions),
        "chain_entropy": tuple(args),
        "chain_entropy_backward": (*quiet, grad.detach()),
        "chain_margin": (*args, y, None),
        "chain_difference_backward": (*quiet, y, y.flip(0).contiguous(), grad.detach()),
        "chain_kbest": (*quiet, 3, "cpu"),
        "chain_sample": (*quiet, torch.rand((2, B, N), dtype=dtype), "cpu"),
    }


def operators_of(module: Any) -> set[str]:
    schemas = torch._C._jit_get_all_schemas()
    names = {s.name.removeprefix("structlearn::") for s in schemas if s.name.startswith("structlearn::chain_")}
    return {
        n for n in names if hasattr(module, n.removeprefix("chain_")) or n in ("chain_max", "chain_difference_backward")
    }


def test_every_operator_is_checked() -> None:
    assert operators_of(ops) == set(samples(arguments()))


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("name", sorted(samples(arguments())))
def test_opcheck(name: str, per_position: bool, edges: bool) -> None:
    torch.library.opcheck(getattr(torch.ops.structlearn, name).default, samples(arguments(per_position, edges))[name])


def queries(s: sl.LinearChain, y: Tensor) -> tuple[Tensor, ...]:
    values = (s.max(), s.score(y), s.log_partition(), s.entropy())
    if s.backend == "reference":  # reads outputs off autograd.grad, which dynamo does not trace
        return values
    labels, scores = s.topk(2)
    m = s.marginals()
    return (*values, s.argmax(), labels, scores, m.unary, m.transition)


@pytest.mark.parametrize(("backend", "per_position"), [("cpu", False), ("cpu", True), ("reference", True)])
def test_compiles_whole(backend: str, per_position: bool) -> None:
    y = torch.zeros((B, N), dtype=torch.int64)

    def function(unary: Tensor, transition: Tensor, start: Tensor, end: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        return queries(sl.LinearChain(unary, transition, start=start, end=end, lengths=lengths, backend=backend), y)

    results = []
    for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        args = arguments(per_position)
        found = run(*args)
        loss = sum(x.square().sum() for x in found if x.requires_grad)
        results.append((*found, *torch.autograd.grad(loss, args[:4])))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


def test_compiles_to_native_code_with_changing_sizes() -> None:
    @torch.compile(fullgraph=True, dynamic=True)
    def loss(unary: Tensor, transition: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        s = sl.LinearChain(unary.relu() + 1, transition, lengths=lengths)
        return (s.log_partition() - s.score(y)).sum() * 2

    for b, n in ((2, 3), (4, 5), (3, 7)):
        unary = torch.randn(b, n, C, requires_grad=True)
        transition = torch.randn(C, C, requires_grad=True)
        y, lengths = torch.zeros((b, n), dtype=torch.int64), torch.arange(b) % n + 1
        s = sl.LinearChain(unary.relu() + 1, transition, lengths=lengths, backend="reference")
        expected = torch.autograd.grad((s.log_partition() - s.score(y)).sum() * 2, (unary, transition))
        found = torch.autograd.grad(loss(unary, transition, y, lengths), (unary, transition))
        torch.testing.assert_close(found, expected)


def test_fake_tensors_have_the_shapes_of_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    args = arguments()
    y = torch.zeros((B, N), dtype=torch.int64)
    real = queries(sl.LinearChain(args[0], args[1], start=args[2], end=args[3], lengths=args[4], backend="cpu"), y)
    with FakeTensorMode() as mode:
        unary, transition, start, end, lengths, labels = (mode.from_tensor(x) for x in (*args, y))
        s = sl.LinearChain(unary, transition, start=start, end=end, lengths=lengths, backend="cpu")
        fakes = queries(s, labels)
    for fake, expected in zip(fakes, real, strict=True):
        assert fake.shape == expected.shape
        assert fake.dtype == expected.dtype
        assert fake.stride() == expected.stride()


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast(backend: str) -> None:
    torch.manual_seed(0)
    encoder = torch.nn.Linear(5, C)
    transition = torch.nn.Parameter(torch.randn(C, C))
    x, y = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [2, 1, 0]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        unary = encoder(x)
        assert unary.dtype is torch.bfloat16
        s = sl.LinearChain(unary, transition, backend=backend)
        loss = (s.log_partition() - s.score(y)).mean()
        assert loss.dtype is torch.float32
    loss.backward()
    outside = sl.LinearChain(unary.detach().float(), transition.detach(), backend=backend)
    torch.testing.assert_close(loss, (outside.log_partition() - outside.score(y)).mean())
    for p in (*encoder.parameters(), transition):
        assert p.grad is not None
        assert p.grad.dtype is torch.float32
        assert p.grad.isfinite().all()
    assert transition.grad.abs().sum() > 0


def test_functorch_gradients() -> None:
    unary, transition, *_ = arguments(grad=False)
    expected = sl.LinearChain(unary, transition, backend="reference")

    def values(unary: Tensor, transition: Tensor) -> Tensor:
        s = sl.LinearChain(unary, transition, backend="cpu")
        return s.log_partition().sum() + s.max().sum()

    found = torch.func.grad(values, argnums=(0, 1))(unary, transition)
    leaves = [unary.clone().requires_grad_(), transition.clone().requires_grad_()]
    s = sl.LinearChain(*leaves, backend="reference")
    torch.testing.assert_close(found, torch.autograd.grad((s.log_partition() + s.max()).sum(), leaves))

    def first(unary: Tensor) -> Tensor:
        return sl.LinearChain(unary, transition, backend="cpu").log_partition()[0]

    hessian = torch.func.jacrev(torch.func.jacrev(first))(unary)
    second = torch.autograd.functional.hessian(lambda u: expected.replace(unary=u).log_partition()[0], unary)
    torch.testing.assert_close(hessian, second)
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(first, (unary,), (unary,))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_vmap(backend: str) -> None:
    unary, transition = torch.randn(2, B, N, C), torch.randn(C, C)
    y = torch.randint(0, C, (B, N))

    def log_likelihood(unary: Tensor, transition: Tensor) -> Tensor:
        s = sl.LinearChain(unary, transition, backend=backend)
        return s.score(y) - s.log_partition() + s.entropy() + s.max()

    labels = torch.func.vmap(lambda u: sl.LinearChain(u, transition).argmax())(unary)
    assert torch.equal(labels, torch.stack([sl.LinearChain(u, transition).argmax() for u in unary]))
    expected = torch.stack([log_likelihood(u, transition) for u in unary])
    torch.testing.assert_close(torch.func.vmap(log_likelihood, in_dims=(0, None))(unary, transition), expected)

    def loss(transition: Tensor, unary: Tensor) -> Tensor:
        return log_likelihood(unary, transition).sum()

    per_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(transition, unary)
    for found, u in zip(per_example, unary, strict=True):
        t = transition.clone().requires_grad_()
        torch.testing.assert_close(found, torch.autograd.grad(loss(t, u), t)[0])


def test_gradient_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    args = arguments()

    def log_z(*args: Any) -> Tensor:
        return sl.LinearChain(args[0], args[1], start=args[2], end=args[3], lengths=args[4]).log_partition().sum()

    found = torch.autograd.grad(checkpoint(log_z, *args, use_reentrant=False), args[:4])
    torch.testing.assert_close(found, torch.autograd.grad(log_z(*args), args[:4]))


def test_subclasses_and_parameters() -> None:
    class Marked(Tensor):
        pass

    unary, transition = torch.randn(B, N, C), torch.randn(C, C)
    expected = sl.LinearChain(unary, transition).log_partition()
    marked = sl.LinearChain(unary.as_subclass(Marked), torch.nn.Parameter(transition)).log_partition()
    torch.testing.assert_close(marked.detach().as_subclass(Tensor), expected)


def test_backends_are_chosen_by_device() -> None:
    assert sl.ops.backends() == BACKENDS
    assert sl.ops.BACKENDS == BACKENDS
    assert sl.LinearChain(torch.zeros(1, 1, 1), torch.zeros(1, 1)).backend == "cpu"
    assert sl.ops.choose_backend("auto", "cuda", ("reference", "cpu")) == "reference"
    assert sl.ops.choose_backend("auto", "cuda", BACKENDS) == "triton"
    assert sl.ops.choose_backend("auto", "mps", BACKENDS) == "reference"
    with pytest.raises(BackendError, match="one for cuda tensors, got 'cpu'; it runs on cpu"):
        sl.ops.choose_backend("cpu", "cuda", BACKENDS)


def in_a_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_backend_that_cannot_run_raises_and_auto_goes_on() -> None:
    code = """
import torch, structlearn as sl
x = torch.zeros(1, 2, 2), torch.zeros(2, 2)
print(sl.ops.backends(), sl.LinearChain(*x).backend)
for name in ("cpu", "triton"):
    try:
        sl.LinearChain(*x, backend=name)
    except sl.StructLearnError as error:
        print(error)
"""
    lines = in_a_process(code, STRUCTLEARN_ISA="none", TRITON_INTERPRET="0").splitlines()
    assert lines[0] == "('reference', 'torch-struct') reference"
    assert lines[1].startswith(
        "backend: expected one that can run here, got 'cpu': _kernels_none.so is not beside the package"
    )
    assert "reinstall with `pip install .`; these can: ('reference', 'torch-struct')" in lines[1]
    assert "got 'triton': no CUDA device, and TRITON_INTERPRET=1 is not set; these can" in lines[2]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backends.importlib.util, "find_spec", lambda name: None)
    _backends._missing.cache_clear()
    _backends._choose.cache_clear()
    try:
        assert sl.ops.backends() == ("reference", "cpu")
        for name, package in (("triton", "triton"), ("torch-struct", "torch-struct")):
            with pytest.raises(BackendError, match=f"got '{name}': the package {package} is not installed; these can"):
                sl.LinearChain(torch.zeros(1, 1, 1), torch.zeros(1, 1), backend=name)
    finally:
        monkeypatch.undo()
        _backends._missing.cache_clear()
        _backends._choose.cache_clear()


def test_unknown_backend() -> None:
    make: Callable[[], Any] = lambda: sl.LinearChain(torch.zeros(1, 1, 1), torch.zeros(1, 1), backend="gpu")  # noqa: E731
    with pytest.raises(
        BackendError, match=r"backend: expected one of \('auto', 'reference', .*\), got 'gpu'; pass backend='auto'"
    ):
        make()
