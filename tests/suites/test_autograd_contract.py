"""What torch does with a differentiable function works on log Z and max of every structure, or is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from structlearn.errors import InfeasibleError, StructLearnError

from .cases import Case, Problem, Subclass
from .structures import ENTRIES, Entry

pytestmark = pytest.mark.usefixtures("poisoned_memory")
PAIRS = [(entry, engine) for entry in ENTRIES for engine in entry.engines if engine in ("cpu", "reference")]
REASON = "the operators' autograd is written in Python without this rule; derivatives of C++ operators will have it"


def pairs(lost: Callable[[Entry, str], bool], crashes: Callable[[Entry], bool] = lambda entry: False) -> Any:
    """Every structure in every engine; a strict xfail where ``lost``, which is not run where it crashes."""
    return pytest.mark.parametrize(
        ("entry", "engine"),
        [
            pytest.param(
                entry,
                engine,
                marks=[pytest.mark.xfail(strict=True, reason=REASON, run=not crashes(entry))]
                if lost(entry, engine)
                else [],
                id=f"{entry}-{engine}",
            )
            for entry, engine in PAIRS
        ],
    )


def problem_of(entry: Entry) -> Problem:
    """Plain potentials and lengths in float64, no row of which is without output."""
    return Case(entry.name, size=entry.sizes[1 if entry.name == "Candidates" else 0].name, seed=3).problem


def clean(problem: Problem) -> dict[str, Tensor]:
    return {name: x.nan_to_num(0.0) for name, x in problem.values.items()}


def directions(values: dict[str, Tensor]) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {name: torch.randn(x.shape, generator=g, dtype=x.dtype) for name, x in values.items()}


def marginals(problem: Problem, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """From the reference."""
    s = problem.entry.build(values, problem.lengths, "reference")
    return {name: x for name, x in s.marginals()._asdict().items() if x is not None}


def log_z_of(problem: Problem, engine: str, names: tuple[str, ...]) -> Callable[..., Tensor]:
    def function(*potentials: Tensor) -> Tensor:
        given = dict(zip(names, potentials, strict=True))
        return problem.entry.build(given, problem.lengths, engine).log_partition()

    return function


@pairs(lambda entry, engine: engine == "cpu")
def test_forward_mode_keeps_the_tangent(entry: Entry, engine: str) -> None:
    problem = problem_of(entry)
    values = clean(problem)
    tangents = directions(values)
    expected = sum((x * tangents[name]).sum() for name, x in marginals(problem, values).items())
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(x, tangents[name]) for name, x in values.items()}
        log_z = problem.entry.build(duals, problem.lengths, engine).log_partition().sum()
        tangent = forward_ad.unpack_dual(log_z).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, expected)


@pairs(lambda entry, engine: engine == "cpu")
def test_jvp(entry: Entry, engine: str) -> None:
    problem = problem_of(entry)
    values = clean(problem)
    tangents = directions(values)
    expected = sum((x * tangents[name]).sum() for name, x in marginals(problem, values).items())
    function = log_z_of(problem, engine, tuple(values))
    _, tangent = torch.func.jvp(function, tuple(values.values()), tuple(tangents.values()))
    torch.testing.assert_close(tangent.sum(), expected)


@pairs(lambda entry, engine: engine == "cpu")
def test_gradient_with_the_negative_bit(entry: Entry, engine: str) -> None:
    problem = problem_of(entry)
    leaves = {name: x.requires_grad_() for name, x in clean(problem).items()}
    s = problem.make(engine, **leaves)
    y = s.argmax()
    weight = torch.arange(1.0, problem.batch + 1, dtype=torch.float64)
    for query in (lambda: s.log_partition(), lambda: s.max(), lambda: s.score(y), lambda: s.entropy()):
        options: dict[str, Any] = {"allow_unused": True, "retain_graph": True}
        expected = torch.autograd.grad(query(), [*leaves.values()], weight, **options)
        found = torch.autograd.grad(query(), [*leaves.values()], torch._neg_view(-weight), **options)
        torch.testing.assert_close(found, expected)


@pairs(lambda entry, engine: engine == "cpu" and not entry.name.startswith("SemiMarkov"))
def test_complex_loss(entry: Entry, engine: str) -> None:
    problem = problem_of(entry)
    leaves = {name: x.requires_grad_() for name, x in clean(problem).items()}
    expected = marginals(problem, {name: x.detach() for name, x in leaves.items()})
    log_z = problem.make(engine, **leaves).log_partition()
    loss = (1j * torch.complex(torch.zeros_like(log_z), log_z).conj()).real.sum()  # log Z
    found = torch.autograd.grad(loss, [*leaves.values()])
    torch.testing.assert_close(found, tuple(expected[name] for name in leaves))


@pairs(lambda entry, engine: engine == "cpu")
def test_batched_gradients(entry: Entry, engine: str) -> None:
    problem = problem_of(entry)
    leaves = {name: x.requires_grad_() for name, x in clean(problem).items()}
    log_z = problem.make(engine, **leaves).log_partition()
    rows = torch.eye(problem.batch, dtype=log_z.dtype)
    found = torch.autograd.grad(log_z, [*leaves.values()], rows, is_grads_batched=True, retain_graph=True)
    singly = [torch.autograd.grad(log_z, [*leaves.values()], row, retain_graph=True) for row in rows]
    torch.testing.assert_close(found, tuple(torch.stack(x) for x in zip(*singly, strict=True)))


@pairs(lambda entry, engine: engine == "cpu")
def test_hessian(entry: Entry, engine: str) -> None:
    problem = Case(entry.name, size=entry.sizes[1].name, seed=3).problem
    values = clean(problem)
    names = tuple(values)

    def total(first: Tensor, engine: str) -> Tensor:
        return log_z_of(problem, engine, names)(first, *list(values.values())[1:]).sum()

    first = values[names[0]]
    expected = torch.autograd.functional.hessian(lambda x: total(x, "reference"), first)
    torch.testing.assert_close(torch.func.hessian(lambda x: total(x, engine))(first), expected)


@pairs(lambda entry, engine: False)
def test_reverse_over_reverse(entry: Entry, engine: str) -> None:
    problem = Case(entry.name, size=entry.sizes[1].name, seed=3).problem
    values = clean(problem)
    names = tuple(values)

    def total(first: Tensor, engine: str) -> Tensor:
        return log_z_of(problem, engine, names)(first, *list(values.values())[1:]).sum()

    first = values[names[0]]
    expected = torch.autograd.functional.hessian(lambda x: total(x, "reference"), first)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacrev(lambda x: total(x, engine)))(first), expected)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.name not in ("Categorical", "Candidates")], ids=str)
@pytest.mark.xfail(strict=True, reason=REASON)
def test_sparse_lengths(entry: Entry) -> None:
    problem = problem_of(entry)
    with pytest.raises(StructLearnError, match="lengths"):
        problem.entry.build(problem.values, problem.lengths.to_sparse())


def is_grammar(entry: Entry) -> bool:
    return entry.name.startswith("WeightedCFG")


@pairs(lambda entry, engine: engine == "cpu" or entry.name.startswith(("WeightedCFG", "Alignment")), crashes=is_grammar)
def test_trace(entry: Entry, engine: str) -> None:
    """torch.jit.trace records the operators; without such a record it must not return memory that nobody wrote."""
    problem = problem_of(entry)
    values = clean(problem)
    function = log_z_of(problem, engine, tuple(values))
    traced = torch.jit.trace(function, tuple(values.values()), check_trace=False)
    others = [x * 0.5 + 0.25 for x in values.values()]
    torch.testing.assert_close(traced(*others), function(*others))


@pairs(lambda entry, engine: True)
def test_no_output_of_a_subclass(entry: Entry, engine: str) -> None:
    """A tensor of a class of its own is no transform: where nothing is allowed, argmax says so."""
    problem = Case(entry.name, size=entry.sizes[0].name, kind="normal").problem
    forbidden = {name: torch.full_like(x, float("-inf")).as_subclass(Subclass) for name, x in problem.values.items()}
    with pytest.raises(InfeasibleError):
        problem.make(engine, **forbidden).argmax()


@pairs(lambda entry, engine: False)
def test_lengths_made_in_inference_mode(entry: Entry, engine: str) -> None:
    problem = Case(entry.name, size=entry.sizes[0].name, lengths="inference", seed=3).problem
    leaves = {name: x.requires_grad_() for name, x in clean(problem).items()}
    s = problem.make(engine, **leaves)
    torch.autograd.grad(s.log_partition().sum(), [*leaves.values()])
