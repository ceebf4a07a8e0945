"""Bad input: every mistake raises its own error, whose message names argument, expected, got and remedy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import BACKENDS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import structlearn as sl
from structlearn import errors
from structlearn.errors import (
    ArgumentError,
    BackendError,
    DeviceError,
    DTypeError,
    InfeasibleError,
    LabelError,
    LengthsError,
    PotentialError,
    ShapeError,
    StructLearnError,
)

B, N, C = 2, 4, 3
U, T, S = torch.zeros(B, N, C), torch.zeros(C, C), torch.zeros(C)
NAN = float("nan")


def chain(unary: Any = U, transition: Any = T, **options: Any) -> sl.LinearChain:
    return sl.LinearChain(unary, transition, **options)


def nan_at(x: torch.Tensor, *place: int) -> torch.Tensor:
    x = x.clone()
    x[place] = NAN
    return x


Case = tuple[Callable[[], Any], type[StructLearnError], str, str, str, str]

# What is done, the error, and in its message: argument, expected, got, remedy.
CASES: dict[str, Case] = {
    "unary rank": (lambda: chain(U[0]), ShapeError, "unary", "(B, N, C)", "(4, 3)", "give it 3 axes"),
    "unary no tensor": (lambda: chain([[[0.0]]]), ShapeError, "unary", "a tensor (B, N, C)", "list", "torch.as_tensor"),
    "no labels": (lambda: chain(U[..., :0], T[:0, :0]), ShapeError, "unary", "C >= 1", "(2, 4, 0)", "empty label set"),
    "transition C": (
        lambda: chain(U, torch.zeros(4, 4)),
        ShapeError,
        "transition",
        "(C, C) = (3, 3) or (B, N-1, C, C) = (2, 3, 3, 3) to match unary (2, 4, 3)",
        "(4, 4)",
        "states come last in unary; transition is indexed [previous, current]",
    ),
    "transition rank": (
        lambda: chain(U, torch.zeros(2, 3, 3)),
        ShapeError,
        "transition",
        "(3, 3)",
        "(2, 3, 3)",
        "states",
    ),
    "transition steps": (
        lambda: chain(U, torch.zeros(2, 4, 3, 3)),
        ShapeError,
        "transition",
        "(2, 3, 3, 3)",
        "(2, 4, 3, 3)",
        "states",
    ),
    "transition None": (lambda: chain(U, None), ShapeError, "transition", "(3, 3)", "NoneType", "states"),
    "start size": (
        lambda: chain(start=S[:2]),
        ShapeError,
        "start",
        "(C,) = (3,) to match unary",
        "(2,)",
        "every label",
    ),
    "end rank": (lambda: chain(end=T), ShapeError, "end", "(C,) = (3,) to match unary", "(3, 3)", "every label"),
    "start no tensor": (
        lambda: chain(start=[0.0] * 3),
        ShapeError,
        "start",
        "a tensor (C,) = (3,)",
        "list",
        "every label",
    ),
    "lengths above N": (
        lambda: chain(lengths=[4, 5]),
        LengthsError,
        "lengths",
        "values in 0..4",
        "5 in batch row 1",
        "clip or re-pad",
    ),
    "lengths negative": (
        lambda: chain(lengths=torch.tensor([-1, 4])),
        LengthsError,
        "lengths",
        "values in 0..4",
        "-1 in batch row 0",
        "re-pad",
    ),
    "lengths of a large batch": (
        lambda: chain(torch.zeros(100, N, C), lengths=torch.tensor([4] * 99 + [7])),
        LengthsError,
        "lengths",
        "values in 0..4",
        "7 in batch row 99",
        "clip",
    ),
    "lengths on meta": (
        lambda: chain(lengths=torch.ones(2, device="meta").long()),
        DeviceError,
        "lengths",
        "device cpu",
        "meta",
        "has no values",
    ),
    "backend list": (
        lambda: chain(backend=["cpu"]),
        BackendError,
        "backend",
        "one of",
        "['cpu']",
        "pass backend='auto'",
    ),
    "lengths rank": (
        lambda: chain(lengths=torch.ones(2, 1).long()),
        ShapeError,
        "lengths",
        "(B,) with B=2",
        "(2, 1)",
        "every batch row",
    ),
    "lengths count": (
        lambda: chain(lengths=[1, 2, 3]),
        ShapeError,
        "lengths",
        "(B,) with B=2",
        "(3,)",
        "every batch row",
    ),
    "lengths float": (
        lambda: chain(lengths=torch.ones(2)),
        DTypeError,
        "lengths",
        "integers",
        "torch.float32",
        ".long()",
    ),
    "lengths bool": (
        lambda: chain(lengths=torch.ones(2).bool()),
        DTypeError,
        "lengths",
        "integers",
        "torch.bool",
        ".long()",
    ),
    "lengths mask": (
        lambda: chain(lengths=torch.ones(2, 4).bool()),
        ShapeError,
        "lengths",
        "(B,) with B=2",
        "(2, 4)",
        "one length",
    ),
    "lengths words": (
        lambda: chain(lengths=["4", "2"]),
        DTypeError,
        "lengths",
        "integers",
        "['4', '2']",
        "list of int",
    ),
    "integer potentials": (lambda: chain(U.long()), DTypeError, "unary", "float32, float64", "torch.int64", ".float()"),
    "complex potentials": (
        lambda: chain(U, T + 0j),
        DTypeError,
        "transition",
        "float32",
        "torch.complex64",
        ".float()",
    ),
    "mixed dtypes": (
        lambda: chain(U, T.double()),
        DTypeError,
        "transition",
        "torch.float32, as unary",
        "torch.float64",
        ".to(torch.float32)",
    ),
    "half beside two": (
        lambda: chain(U.half(), T, start=S.double()),
        DTypeError,
        "start",
        "torch.float32, as transition",
        "torch.float64",
        ".to(torch.float32)",
    ),
    "mixed devices": (
        lambda: chain(U, T.to("meta")),
        DeviceError,
        "transition",
        "device cpu, as unary",
        "meta",
        ".to('cpu')",
    ),
    "labels elsewhere": (
        lambda: chain().score(torch.zeros((B, N), dtype=torch.int64, device="meta")),
        DeviceError,
        "y",
        "device cpu, as the potentials",
        "meta",
        ".to('cpu')",
    ),
    "labels float": (
        lambda: chain().score(torch.zeros(B, N)),
        DTypeError,
        "y",
        "integer labels",
        "torch.float32",
        "one-hot",
    ),
    "labels bool": (
        lambda: chain().score(torch.zeros(B, N).bool()),
        DTypeError,
        "y",
        "integer labels",
        "torch.bool",
        ".long()",
    ),
    "labels list": (
        lambda: chain().score([[0] * N] * B),
        ShapeError,
        "y",
        "a tensor (..., 2, 4)",
        "list",
        "torch.as_tensor",
    ),
    "labels shape": (
        lambda: chain().score(torch.zeros((B, 3)).long()),
        ShapeError,
        "y",
        "(..., 2, 4)",
        "(2, 3)",
        "every position",
    ),
    "labels rank": (
        lambda: chain().score(torch.zeros(N).long()),
        ShapeError,
        "y",
        "(..., 2, 4)",
        "(4,)",
        "every position",
    ),
    "unknown backend": (
        lambda: chain(backend="cuda"),
        BackendError,
        "backend",
        "('auto', 'reference'",
        "'cuda'",
        "pass backend='auto'",
    ),
    "topk zero": (lambda: chain().topk(0), ArgumentError, "k", "an integer >= 1", "0", "pass k=1 or more"),
    "topk float": (lambda: chain().topk(2.0), ArgumentError, "k", "an integer >= 1", "2.0", "pass k=1"),  # type: ignore[arg-type]
    "topk bool": (lambda: chain().topk(True), ArgumentError, "k", "an integer >= 1", "True", "pass k=1"),
    "sample negative": (lambda: chain().sample(-1), ArgumentError, "n", "an integer >= 1", "-1", "pass n=1 or more"),
    "unknown field": (
        lambda: chain().replace(emission=U),
        ArgumentError,
        "emission",
        "'unary', 'transition'",
        "'emission'",
        "LinearChain",
    ),
    "NaN in unary": (
        lambda: chain(nan_at(U, 1, 2, 0), validate=True),
        PotentialError,
        "unary",
        "no NaN at unpadded places",
        "NaN at (1, 2, 0)",
        "0/0 or inf-inf",
    ),
    "NaN in transition": (
        lambda: chain(U, nan_at(T, 0, 1), validate=True),
        PotentialError,
        "transition",
        "no NaN",
        "(0, 1)",
        "encoder",
    ),
    "NaN in steps": (
        lambda: chain(U, nan_at(torch.zeros(B, N - 1, C, C), 0, 1, 0, 2), validate=True, lengths=[3, 1]),
        PotentialError,
        "transition",
        "no NaN",
        "(0, 1, 0, 2)",
        "encoder",
    ),
    "NaN in end": (
        lambda: chain(end=nan_at(S, 1), validate=True),
        PotentialError,
        "end",
        "no NaN",
        "NaN at (1,)",
        "encoder",
    ),
    "categorical rank": (lambda: sl.Categorical(S), ShapeError, "scores", "(B, K)", "(3,)", "give it 2 axes"),
    "categorical empty": (
        lambda: sl.Categorical(T[:, :0]),
        ShapeError,
        "scores",
        "K >= 1",
        "(3, 0)",
        "empty output space",
    ),
    "categorical dtype": (lambda: sl.Categorical(T.int()), DTypeError, "scores", "float32", "torch.int32", ".float()"),
    "categorical label": (
        lambda: sl.Categorical(T).score(torch.tensor([0, 3, 1])),
        LabelError,
        "y",
        "labels in 0..2",
        "3 at (1,)",
        "vocabulary",
    ),
    "categorical NaN": (
        lambda: sl.Categorical(nan_at(T, 2, 1), validate=True),
        PotentialError,
        "scores",
        "no NaN",
        "(2, 1)",
        "encoder",
    ),
    "categorical field": (
        lambda: sl.Categorical(T).replace(unary=T),
        ArgumentError,
        "unary",
        "('scores',)",
        "'unary'",
        "Categorical",
    ),
    "categorical dead": (
        lambda: sl.Categorical(torch.tensor([[0.0, 1.0], [-torch.inf, -torch.inf]])).argmax(),
        InfeasibleError,
        "Categorical",
        "at least one allowed output",
        "none for batch rows [1]",
        "max() returns -inf for such rows instead of raising",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message_names_argument_expected_got_and_remedy(name: str) -> None:
    act, kind, argument, expected, got, remedy = CASES[name]
    with pytest.raises(StructLearnError) as caught:
        act()
    error = caught.value
    assert isinstance(error, kind)
    assert error.argument == argument
    assert expected in error.expected
    assert got in str(error.got)
    assert remedy in error.remedy
    assert str(error) == f"{error.argument}: expected {error.expected}, got {error.got}; {error.remedy}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [C, -1, -100, 2**40])
def test_labels_out_of_range(bad: int, backend: str) -> None:
    y = torch.zeros((2, B, N), dtype=torch.int64)
    y[1, 1, 2] = bad
    s = chain(lengths=[4, 3], backend=backend)
    with pytest.raises(LabelError) as caught:
        s.score(y)
    assert caught.value.argument == "y"
    assert caught.value.expected == "labels in 0..2 at unpadded positions"
    assert f"{bad} at" in str(caught.value.got)
    assert "1" in str(caught.value.got)
    assert "2" in str(caught.value.got)
    assert "shorten lengths" in caught.value.remedy
    assert chain(lengths=[4, 2], backend=backend).score(y).shape == (2, B), "padding may hold any label"


@pytest.mark.parametrize("backend", BACKENDS)
def test_infeasible_rows_are_named(backend: str) -> None:
    unary = torch.zeros(3, 2, 2)
    unary[1, 0] = unary[2, 1] = -torch.inf
    s = chain(unary, torch.zeros(2, 2), lengths=[2, 2, 1], backend=backend)
    with pytest.raises(InfeasibleError) as caught:
        s.argmax()
    assert str(caught.value.got) == "none for batch rows [1]"
    assert s.max().tolist() == [0, -torch.inf, 0]


def test_many_infeasible_rows_are_cut_short() -> None:
    with pytest.raises(InfeasibleError, match=r"\[0, 1, 2, 3, 4, 5, 6, 7, 8, 9\] \.\.\.; their potentials are -inf"):
        sl.Categorical(torch.full((20, 2), -torch.inf)).argmax()


def test_nan_in_padding_passes_validation() -> None:
    steps = torch.zeros(B, N - 1, C, C)
    chain(nan_at(U, 0, 3, 1), nan_at(steps, 0, 2, 0, 0), lengths=[3, 4], validate=True)


@pytest.mark.parametrize(
    "kind", [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, StructLearnError)]
)
def test_errors_are_value_errors_that_pickle(kind: type[StructLearnError]) -> None:
    error = pickle.loads(pickle.dumps(kind("x", "this", "that", "do so")))
    assert isinstance(error, kind)
    assert isinstance(error, ValueError)
    assert str(error) == "x: expected this, got that; do so"


def test_a_failed_call_leaves_no_trace() -> None:
    s = chain()
    with pytest.raises(LabelError):
        s.score(torch.full((B, N), 9))
    assert s.score(torch.zeros((B, N), dtype=torch.int64)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("loss", [sl.CRFLoss(), sl.PerceptronLoss(), sl.StructuredHinge(sl.costs.Hamming())])
def test_a_loss_wants_a_structure(loss: torch.nn.Module) -> None:
    with pytest.raises(ArgumentError, match=r"structure: expected a structlearn\.Structure, got Tensor; make one"):
        loss(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def test_planes_of_the_layer_are_sorted_by_example() -> None:
    with pytest.raises(ArgumentError, match="group: expected examples in rising order"):
        sl.solvers.SVMLayer()(torch.randn(3, 2), torch.ones(3), torch.tensor([0, 1, 0]), 1.0)


GRAMMAR = sl.Grammar(torch.tensor([(0, 0, 0), (0, 1, 1)]), 1, 1)


def _log_z_with(kind: str, lengths: Tensor) -> Tensor:
    b = lengths.shape[0]
    if kind == "chain":
        return sl.LinearChain(torch.zeros(b, 5, 4), torch.zeros(4, 4), lengths=lengths).log_partition()
    if kind == "segments":
        return sl.SemiMarkov(torch.zeros(b, 5, 2, 3), torch.zeros(3, 3), lengths=lengths).log_partition()
    if kind == "spans":
        return sl.SpanTree(torch.zeros(b, 5, 5, 2), lengths=lengths).log_partition()
    if kind == "grammar":
        return sl.WeightedCFG(
            GRAMMAR, torch.zeros(b, 5, 1), torch.zeros(2), torch.zeros(1), lengths=lengths
        ).log_partition()
    return sl.Alignment(
        torch.zeros(b, 5, 5), gap=torch.tensor(0.0), x_lengths=lengths, y_lengths=lengths
    ).log_partition()


class _Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("bad", [7, -2, 3_000_000])
@pytest.mark.parametrize("kind", ["chain", "segments", "spans", "grammar", "alignment"])
def test_lengths_that_no_constructor_saw_do_not_reach_a_kernel(kind: str, bad: int) -> None:
    """Compiled and under a mode the values are unknown when a structure is made; a kernel would leave its memory."""
    fine, wrong = torch.tensor([5, 3]), torch.tensor([5, bad])
    with _Watching(), pytest.raises(LengthsError, match=f"{bad} in batch row 1"):
        _log_z_with(kind, wrong)
    compiled = torch.compile(lambda x: _log_z_with(kind, x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(fine), _log_z_with(kind, fine))
    with pytest.raises(LengthsError, match=f"{bad} in batch row 1"):
        compiled(wrong)


def test_lengths_written_over_after_the_check() -> None:
    lengths = torch.tensor([5, 3])
    s = sl.LinearChain(torch.zeros(2, 5, 4), torch.zeros(4, 4), lengths=lengths)
    lengths[1] = 9
    for query in (s.argmax, s.max, s.log_partition, s.log_partition_and_marginals, s.entropy):
        with pytest.raises(LengthsError, match="9 in batch row 1"):
            query()


def test_views_that_are_negated_when_read() -> None:
    z = torch.randn(2, 5, 3, dtype=torch.complex64)
    for unary in (torch._neg_view(z.real.contiguous()), z.conj().imag, z[..., :1].conj().imag):
        assert unary.is_neg()
        c = unary.shape[-1]
        found, expected = (sl.LinearChain(x, torch.zeros(c, c)).max() for x in (unary, unary.resolve_neg().clone()))
        assert torch.equal(found, expected)
