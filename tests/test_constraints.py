"""Every constraint and its combinations, on every path that can solve them, against enumeration in plain Python."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from oracles import constraints as oracle

import structlearn as sl
from structlearn import constraints as sc
from structlearn.errors import ArgumentError, InfeasibleError, InferenceError, LabelError, ShapeError

NAMES = "OABD"
LENGTHS = (4, 4, 3, 2, 1)

# name: the constraint, the same in plain Python, whether an automaton can hold it.
ATOMS: dict[str, tuple[sc.Constraint, oracle.Test, bool]] = {
    "at_most": (sc.at_most(1, "A"), oracle.count("A", 0, 1), True),
    "at_least": (sc.at_least(1, ["A", "B"]), oracle.count("AB", 1, 9), True),
    "exactly": (sc.exactly(1, "B"), oracle.count("B", 1, 1), True),
    "exactly none": (sc.exactly(0, "D"), oracle.count("D", 0, 0), True),
    "implies": (sc.implies("B", "A"), oracle.implies("B", "A"), True),
    "implies before": (sc.implies("B", ["A", "D"], before=True), oracle.implies("B", "AD", before=True), True),
    "implies itself": (sc.implies(["A", "B"], ["B", "D"]), oracle.implies("AB", "BD"), True),
    "forbid": (sc.forbid("A", ["B", "A"]), oracle.forbid("A", "AB"), True),
    "require": (sc.require("A", ["B", "D"]), oracle.require("A", "BD"), True),
    "regular": (sc.regular("(O|A)* B? .{1,2}"), oracle.regular("[OA]*B?.{1,2}"), True),
    "linear": (
        sc.linear({"A": 2, (1, "B"): 1, "D": -1.5}, "<=", 1),
        oracle.linear(lambda t, c: {"A": 2, "D": -1.5}.get(c, 0) + (t == 1 and c == "B"), lambda s: s <= 1),
        False,
    ),
    "linear whole": (
        sc.linear({"A": 1, "B": 2}, "==", 2),
        oracle.linear(lambda t, c: {"A": 1, "B": 2}.get(c, 0), lambda s: s == 2),
        True,
    ),
    "linear above": (
        sc.linear({"A": 1, "O": 2}, ">=", 1.5),
        oracle.linear(lambda t, c: {"A": 1, "O": 2}.get(c, 0), lambda s: s >= 1.5),
        True,
    ),
    "allowed": (
        sc.allowed(["OABO", "AADB", "BBAA", "OBO", "DOD", "AB", "A"]),
        oracle.listed(["OABO", "AADB", "BBAA", "OBO", "DOD", "AB", "A"]),
        True,
    ),
    "no_overlap": (sc.no_overlap("O"), oracle.apart("O"), False),
}


def problem(*, transitions: bool = False, seed: int = 0) -> tuple[sl.LinearChain, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(len(LENGTHS), 4, 4, generator=generator, dtype=torch.float64)
    for b, n in enumerate(LENGTHS):
        unary[b, n:] = torch.nan
    transition = torch.randn(4, 4, generator=generator, dtype=torch.float64) * transitions
    spans = torch.randint(0, 5, (len(LENGTHS), 4, 2), generator=generator).sort(-1).values
    return sl.LinearChain(unary, transition, lengths=torch.tensor(LENGTHS)), spans


def expected(chain: sl.LinearChain, spans: torch.Tensor, hard: Any, soft: Any = ()) -> list[Any]:
    unary, transition = chain.unary.detach().numpy(), chain.transition.detach().numpy()
    return [
        oracle.best(NAMES, unary[b, :n], transition, spans[b, :n].tolist(), hard, soft) for b, n in enumerate(LENGTHS)
    ]


def check(constraint: sc.Constraint, method: str, chain: sl.LinearChain, spans: torch.Tensor, rows: list[Any]) -> None:
    made = sc.Constrained(chain, sc.Compiled(constraint, list(NAMES), method=method), spans=spans)  # type: ignore[arg-type]
    found = made.solve()
    assert bool(found.optimal.all())
    np.testing.assert_allclose(found.score, [score for _, score, _ in rows])
    np.testing.assert_allclose(made.max(), [score for _, score, _ in rows])
    for b, (y, _, _) in enumerate(rows):
        if y is not None:
            assert "".join(NAMES[c] for c in found.y[b, : LENGTHS[b]]) == "".join(y)
        assert (found.y[b, LENGTHS[b] if y else 0 :] == -100).all()
    if method != "ilp":
        np.testing.assert_allclose(made.log_partition(), [log_z for _, _, log_z in rows])


def methods(*kinds: str) -> list[str]:
    regular = all(ATOMS[kind][2] for kind in kinds)
    return ["enumeration", "ilp", *(["automaton"] if regular else [])]


@pytest.mark.parametrize("transitions", [False, True])
@pytest.mark.parametrize("kind", ATOMS)
def test_every_constraint_on_every_path(kind: str, transitions: bool) -> None:
    constraint, test, _ = ATOMS[kind]
    chain, spans = problem(transitions=transitions)
    rows = expected(chain, spans, [test])
    for method in methods(kind):
        check(constraint, method, chain, spans, rows)


PAIRS = list(itertools.combinations(ATOMS, 2))


@pytest.mark.parametrize("shift", range(5))
def test_pairs_joined_by_and_and_or(shift: int) -> None:
    chain, spans = problem(seed=shift)
    for a, b in PAIRS[shift::5]:
        (first, one, _), (second, two, _) = ATOMS[a], ATOMS[b]
        both = expected(chain, spans, [one, two])
        either = expected(chain, spans, [lambda y, s, one=one, two=two: one(y, s) or two(y, s)])
        for method in methods(a, b):
            check(first & second, method, chain, spans, both)
            if method != "ilp" or len(a) % 2:  # branching on | takes most of the time
                check(first | second, method, chain, spans, either)


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ("at_most", "implies before", "no_overlap"),
        ("forbid", "exactly", "linear"),
        ("allowed", "regular", "at_least"),
        ("require", "linear whole", "implies"),
    ],
)
def test_nesting_and_soft_parts(a: str, b: str, c: str) -> None:
    chain, spans = problem(seed=7)
    (x, one, _), (y, two, _), (z, three, _) = (ATOMS[k] for k in (a, b, c))
    nested = expected(chain, spans, [lambda o, s: (one(o, s) or two(o, s)) and three(o, s)])
    inside = expected(chain, spans, [lambda o, s: (one(o, s) and two(o, s)) or three(o, s)])
    softened = expected(chain, spans, [one], [(two, 0.7), (three, 0.4)])
    for method in methods(a, b, c):
        check((x | y) & z, method, chain, spans, nested)
        check((x & y) | z, method, chain, spans, inside)
        check(x & sc.soft(y, 0.7) & sc.soft(z, 0.4), method, chain, spans, softened)


def test_marginals_samples_and_k_best_follow_the_constraint() -> None:
    chain, _ = problem(transitions=True)
    for method in ("automaton", "enumeration"):
        made = sc.Constrained(chain, sc.Compiled(sc.exactly(1, "B"), list(NAMES), method=method))
        marginals = made.marginals().unary
        for b, n in enumerate(LENGTHS):
            np.testing.assert_allclose(marginals[b, :n, 2].sum(), 1.0)
        draws = made.sample(20, torch.Generator().manual_seed(0))
        assert ((draws == 2).sum(-1) == 1).all()
        top, scores = made.topk(3)
        assert ((top == 2).sum(-1) == (scores > -torch.inf)).all()
        assert (scores[0] >= scores[1]).all()
        assert torch.isfinite(made.entropy()).all()


@pytest.mark.parametrize("method", ["automaton", "enumeration", "ilp"])
def test_gradients_reach_scores_and_penalties(method: Any) -> None:
    unary = torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    penalty = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    compiled = sc.Compiled(sc.soft(sc.at_most(1, 1)), 2, method=method)
    made = sc.Constrained(sc.independent(unary), compiled, penalties=penalty)
    value = made.max()
    assert value.tolist() == [5.5]
    value.sum().backward()
    assert unary.grad is not None
    assert penalty.grad is not None
    assert unary.grad[0].tolist() == [[0, 1], [0, 1], [0, 1]]
    assert penalty.grad.tolist() == [-1]
    # A hard price brings one part back at a time.
    dear = sc.Constrained(sc.independent(unary.detach()), compiled, penalties=torch.tensor([10.0], dtype=torch.float64))
    assert dear.argmax().tolist() == [[1, 0, 0]]


def test_loss_augmented_inference_keeps_the_constraint() -> None:
    chain, spans = problem()
    constraint = sc.no_overlap("O") & sc.at_most(1, "A")
    gold = torch.zeros(len(LENGTHS), 4, dtype=torch.int64)
    made = sc.Constrained(chain, sc.Compiled(constraint, list(NAMES), method="ilp"), spans=spans)
    found = sl.most_violated(made, gold, sl.costs.Hamming())
    for b, n in enumerate(LENGTHS):
        unary = chain.unary[b, :n].numpy() + (np.arange(4) != 0)
        rows = oracle.best(
            NAMES, unary, np.zeros((4, 4)), spans[b, :n].tolist(), [oracle.apart("O"), oracle.count("A", 0, 1)]
        )
        assert "".join(NAMES[c] for c in found.y[b, :n]) == "".join(rows[0])
    assert float(sl.StructuredHinge(sl.costs.Hamming())(made, gold)) >= 0


@pytest.mark.parametrize("n", [0, 1, 3, 4, 30])
def test_the_path_depends_on_the_constraint_and_the_labels_alone(n: int) -> None:
    def path(constraint: sc.Constraint) -> str:
        spans = torch.zeros(1, n, 2, dtype=torch.int64)
        chain = sc.independent(torch.zeros(1, n, 4))
        return sc.Constrained(chain, sc.Compiled(constraint, list(NAMES)), spans=spans).path

    assert path(sc.at_most(1, "A")) == "automaton"
    assert path(sc.allowed(["OABO"])) == "enumeration"
    assert path(sc.allowed(["OABO", ""]) & sc.no_overlap("O")) == "enumeration"
    assert path(sc.allowed(["OABO"]) | sc.at_most(1, "A")) == "automaton"
    assert path(sc.soft(sc.allowed(["OABO"]))) == "automaton"
    assert path(sc.no_overlap("O")) == "ilp"
    assert path(sc.linear({(0, "A"): 1.5}, "<=", 1)) == "ilp"


def test_says_which_of_local_relaxation_and_branching_ran() -> None:
    spans = torch.arange(3).view(1, 3, 1).expand(3, 3, 2)
    unary = torch.zeros(3, 3, 4)
    unary[0, :, 0] = 1.0  # nothing to constrain
    unary[1, :, 1] = torch.tensor([4.0, 1.0, 1.0])
    unary[2, :, 1] = 1.0  # an odd cycle: the relaxation takes a half of each
    cycle = [sc.linear({(i, "A"): 1, (j, "A"): 1}, "<=", 1) for i, j in ((0, 1), (1, 2), (0, 2))]
    whole = cycle[0] & cycle[1] & cycle[2]
    found = sc.Constrained(sc.independent(unary), sc.Compiled(whole, list(NAMES), method="ilp"), spans=spans).solve()
    assert found.path == ("local", "lp", "milp")
    assert found.score.tolist() == [3.0, 4.0, 1.0]
    assert bool(found.optimal.all())
    assert found.gap.tolist() == [0.0, 0.0, 0.0]
    assert "1 by milp" in str(found)


def test_time_limited_solves_return_the_best_found_and_say_so() -> None:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, 12, 4, generator=generator)
    spans = torch.randint(0, 9, (3, 12, 2), generator=generator).sort(-1).values
    constraint = sc.no_overlap("O") & sc.at_most(2, "A")
    full = sc.Constrained(sc.independent(unary), sc.Compiled(constraint, list(NAMES)), spans=spans).solve()
    brief = sc.Constrained(sc.independent(unary), sc.Compiled(constraint, list(NAMES), time_limit=0.0), spans=spans)
    found = brief.solve()
    assert set(found.path) == {"stopped"}
    assert not found.optimal.any()
    assert found.found.all()
    assert (found.score <= full.score + 1e-5).all()
    assert (found.bound >= full.score - 1e-5).all()
    assert (found.gap > 0).all()
    assert "0 proven optimal, largest gap" in str(found)
    warm = brief.solve(start=full.y)
    torch.testing.assert_close(warm.score, full.score)
    assert not warm.optimal.any()
    torch.testing.assert_close(brief.score(found.y), found.score)


def test_time_limit_without_any_output_is_said_too() -> None:
    constraint = sc.exactly(3, "A") & sc.exactly(2, "B") & sc.linear({(0, "O"): 1.0}, "<=", 1)
    compiled = sc.Compiled(constraint, list(NAMES), time_limit=0.0, method="ilp")
    found = sc.Constrained(sc.independent(torch.zeros(1, 12, 4)), compiled).solve()
    assert found.path == ("stopped",)
    assert not found.found.any()
    assert not found.optimal.any()
    with pytest.raises(InfeasibleError, match="time_limit"):
        sc.Constrained(sc.independent(torch.zeros(1, 12, 4)), compiled).argmax()


@pytest.mark.parametrize("method", ["automaton", "enumeration", "ilp"])
def test_infeasible_sets_name_the_constraints_in_conflict(method: Any) -> None:
    constraint = sc.at_least(3, "A") & sc.at_most(1, "D") & sc.exactly(2, "B") & sc.forbid("O", "D")
    made = sc.Constrained(sc.independent(torch.zeros(2, 4, 4)), sc.Compiled(constraint, list(NAMES), method=method))
    assert made.max().tolist() == [-np.inf, -np.inf]
    with pytest.raises(InfeasibleError, match=r"at_least\(3, 'A'\) and exactly\(2, 'B'\) exclude each other") as error:
        made.argmax()
    assert "at_most" not in str(error.value)
    assert "batch row 0 with 4 parts" in str(error.value)


def test_infeasible_by_potentials_is_told_apart() -> None:
    unary = torch.full((1, 3, 4), -torch.inf)
    with pytest.raises(InfeasibleError, match="potentials are -inf"):
        sc.Constrained(sc.independent(unary), sc.Compiled(sc.at_most(1, "A"), list(NAMES), method="ilp")).argmax()


@pytest.mark.parametrize(
    ("constraint", "gold", "place"),
    [
        (sc.at_most(1, "A"), "AOA", "A at 0, A at 2: 2"),
        (sc.implies("B", "A", before=True), "OBA", "B at 1 without 'A' before it"),
        (sc.forbid("O", "B"), "OBA", "O at 0 is followed by B"),
        (sc.require("A", "B"), "OBA", "A at 2 is followed by the end"),
        (sc.regular("O* A*"), "OAO", "O at 2 cannot stand there"),
        (sc.regular("O* A A"), "OOA", "it may not end there"),
        (sc.allowed(["OOO"]), "OOA", r"\(O, O, A\) is not listed"),
        (sc.no_overlap("O"), "AOB", r"parts 0 \(A\) and 2 \(B\) overlap"),
        (sc.at_most(0, "A") | sc.exactly(3, "O"), "AOO", "A at 0: 1, and exactly"),
    ],
)
def test_gold_that_breaks_a_constraint_is_reported_with_its_place(
    constraint: sc.Constraint, gold: str, place: str
) -> None:
    good = torch.zeros(1, 3, dtype=torch.int64)
    y = torch.cat([good, torch.tensor([[NAMES.index(c) for c in gold]])])
    spans = torch.tensor([[[0, 1], [2, 2], [1, 1]]]).repeat(2, 1, 1)
    joined = constraint & sc.at_most(3, "O")
    violations = [v for v in sc.gold_violations(joined, y, list(NAMES), spans=spans) if v.row == 1]
    assert len(violations) == 1
    assert violations[0].constraint == constraint
    made = sc.Constrained(sc.independent(torch.zeros(2, 3, 4)), sc.Compiled(joined, list(NAMES)), spans=spans)
    assert float(made.score(y)[1]) == -np.inf
    if not sc.gold_violations(constraint, good, list(NAMES), spans=spans[:1]):
        with pytest.raises(LabelError, match=f"batch row 1, which breaks .*{place}"):
            sl.PerceptronLoss()(made, y)


def test_text_is_read_back() -> None:
    text = "at_most(1, 'A') & (implies('B', ['A', 'D'], before=True) | forbid('O', 'A')) & soft(regular('O* A?'), 2)"
    constraint = sc.parse(text)
    assert repr(constraint) == text
    assert repr(sc.parse("no_overlap(none='O') & linear({'A': 1, (2, 'B'): -2}, '>=', 0)")).startswith("no_overlap")
    for wrong in ("at_most(1", "print(1)", "at_most(1, 'A') + at_most(2, 'A')", "open('x') & at_most(1, 'A')"):
        with pytest.raises(ArgumentError, match="constraint: expected calls of everything, no_overlap"):
            sc.parse(wrong)


def test_mistakes_are_named() -> None:
    unary = torch.zeros(1, 3, 4)
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: sc.at_most(-1, "A"), ArgumentError, "k: expected an integer >= 0"),
        (lambda: sc.soft(sc.at_most(1, "A"), -1.0), ArgumentError, "penalty: expected a finite number >= 0"),
        (lambda: sc.soft(sc.at_most(1, "A"), float("inf")), ArgumentError, "penalty: expected a finite number >= 0"),
        (lambda: sc.linear({"A": 1}, "<=", float("nan")), ArgumentError, "linear: expected finite weights"),
        (lambda: sc.Compiled(sc.soft(sc.at_most(1, 0)) | sc.at_most(1, 1), 3), ArgumentError, "take it out of"),
        (lambda: sc.linear({"A": 1}, "<", 1), ArgumentError, "sense: expected"),  # type: ignore[arg-type]
        (lambda: sc.allowed([]), ArgumentError, "outputs: expected at least one"),
        (lambda: sc.Compiled(sc.no_overlap(), 4, method="automaton"), InferenceError, "it speaks of spans"),
        (lambda: sc.Compiled(sc.at_most(1, 1), 4, threads=0), ArgumentError, "threads: expected"),
        (
            lambda: sc.Constrained(sc.independent(unary), sc.Compiled(sc.at_most(1, "X"), list(NAMES))).argmax(),
            LabelError,
            "label: expected one of O, A, B, D, got 'X'",
        ),
        (
            lambda: sc.Constrained(sc.independent(unary), sc.Compiled(sc.no_overlap(), 4)).argmax(),
            ArgumentError,
            r"spans: expected \(B, N, 2\)",
        ),
        (lambda: sc.Constrained(sc.independent(unary), sc.Compiled(sc.no_overlap(), 3)), ShapeError, "chain: expected"),
        (
            lambda: sc.Constrained(
                sc.independent(unary), sc.Compiled(sc.at_most(1, 1), 4, method="ilp")
            ).log_partition(),
            InferenceError,
            "solved as a 0/1 program",
        ),
        (lambda: sc.Compiled(sc.regular("O ) A"), list(NAMES)).automaton, ArgumentError, "regular: expected labels"),
        (lambda: sc.Compiled(sc.regular("* A"), list(NAMES)).automaton, ArgumentError, "without a label before it"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()


def test_threads_and_rows_do_not_matter() -> None:
    generator = torch.Generator().manual_seed(3)
    unary = torch.randn(16, 10, 4, generator=generator)
    spans = torch.randint(0, 9, (16, 10, 2), generator=generator).sort(-1).values
    constraint = sc.no_overlap("O") & sc.at_most(1, "A") & sc.implies("B", "A")

    def solve(rows: slice, threads: int) -> torch.Tensor:
        compiled = sc.Compiled(constraint, list(NAMES), threads=threads)
        return sc.Constrained(sc.independent(unary[rows]), compiled, spans=spans[rows]).solve().y

    together = solve(slice(None), 2)
    assert torch.equal(together, torch.cat([solve(slice(b, b + 1), 1) for b in range(16)]))
