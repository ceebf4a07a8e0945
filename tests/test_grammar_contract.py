"""WeightedCFG beyond enumeration: odd sizes, extreme scores, counts, trees, glue, errors, operators."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from cases import NEG_INF, assert_close
from grammar_cases import GrammarCase, forbidden_cases, tie_cases

import structlearn as sl
from structlearn.data.brackets import parse_tree
from structlearn.errors import ArgumentError, DTypeError, InfeasibleError, LabelError, ShapeError
from structlearn.structures.counting import Counter

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def random_grammar(nonterminals: int, preterminals: int, share: float, seed: int = 0) -> sl.Grammar:
    s = nonterminals + preterminals
    grid = torch.cartesian_prod(torch.arange(nonterminals), torch.arange(s), torch.arange(s))
    g = torch.Generator().manual_seed(seed)
    return sl.Grammar(grid[torch.rand(len(grid), generator=g) < share], nonterminals, preterminals)


def random_structure(
    grammar: sl.Grammar, b: int, n: int, dtype: torch.dtype, spread: float = 2.0, **changed: Any
) -> sl.WeightedCFG:
    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, dtype=torch.float64) * spread).to(dtype)

    terms, rules = draw(b, n, grammar.num_preterminals), draw(grammar.num_rules)
    given: dict[str, Any] = {"lengths": None, "spans": None, **changed}
    return sl.WeightedCFG(grammar, terms, rules, draw(grammar.num_symbols), **given)


def as_reference(s: sl.WeightedCFG) -> sl.WeightedCFG:
    wide = {name: x.double() for name, x in s.potentials.items()}
    return sl.WeightedCFG(s.grammar, **wide, lengths=s.lengths, backend="reference")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1.0, 2, 9),
        (2, 1, 1.0, 3, 17),
        (3, 5, 1.0, 2, 11),
        (9, 4, 0.6, 3, 12),
        (17, 3, 0.9, 1, 9),
        (12, 9, 0.02, 4, 14),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_spans", [False, True])
def test_odd_sizes(sizes: tuple[int, int, float, int, int], with_spans: bool, dtype: torch.dtype) -> None:
    nt, p, share, b, n = sizes
    grammar = random_grammar(nt, p, share, seed=3)
    lengths = torch.randint(0, n + 1, (b,))
    lengths[0] = n
    spans = torch.randn(b, n, n, nt).to(dtype) if with_spans else None
    s = random_structure(grammar, b, n, dtype, lengths=lengths, spans=spans)
    wide = as_reference(s)
    scale = 20.0 * n
    assert_close(s.log_partition(), wide.log_partition(), dtype, scale)
    assert_close(s.max(), wide.max(), dtype, scale)
    assert_close(s.entropy(), wide.entropy(), dtype, scale)
    for found, expected in zip(s.marginals(), wide.marginals(), strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            assert_close(found, expected, dtype, scale)
    y, score = s._best()
    alive = score > NEG_INF
    if bool(alive.all()):
        assert_close(s.score(y), wide.max(), dtype, scale)


@pytest.mark.parametrize("share", [1.0, 0.1])
@pytest.mark.parametrize("spread", [1e2, 1e4, 1e6])
def test_extreme_scores_keep_their_precision(spread: float, share: float) -> None:
    s = random_structure(random_grammar(4, 5, share, seed=1), 3, 8, torch.float32, spread)
    exact = as_reference(s)
    torch.testing.assert_close(s.log_partition().double(), exact.log_partition(), rtol=3e-7, atol=1e-5)
    found = s.marginals()
    assert all(x.isfinite().all() for x in found if x is not None)
    alive = (exact.max() > NEG_INF).double()
    torch.testing.assert_close(found.terms.double().sum((1, 2)), 8.0 * alive, rtol=1e-4, atol=0)


def test_sampling_frequencies_equal_probabilities() -> None:
    for share, draws, backend in ((1.0, 4000, "cpu"), (0.3, 4000, "cpu"), (1.0, 100, "reference")):
        s = random_structure(random_grammar(2, 2, share, 5), 2, 4, torch.float64, 1.0, lengths=[4, 3], backend=backend)
        y = s.sample(draws, generator=torch.Generator().manual_seed(3))
        words = y.diagonal(0, -2, -1)
        used = torch.nn.functional.one_hot(words.clamp(min=0), 2) * (words >= 0)[..., None]
        error = (used.double().mean(0) - s.marginals().terms).abs().max()
        assert error < 5 * 0.5 / math.sqrt(draws)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("sizes", [(9,), (4, 8)], ids=str)
def test_best_derivation_for_every_count_equals_enumeration(sizes: tuple[int, ...], backend: str) -> None:
    cases = (
        GrammarCase("counts"),
        GrammarCase("counts-own-spans", own_rules=True, own_roots=True, spans=True, seed=2),
        GrammarCase("counts-sparse", 4, 3, 0.12, N=5, lengths=(5, 4, 1, 3, 5), seed=30),
        tie_cases()[0],
        forbidden_cases()[1],
    )
    for case in cases:
        problem = case.problem()
        b, n, nt = 5, case.N, case.nonterminals
        g = torch.Generator().manual_seed(11)
        shapes = {name: x.shape for name, x in problem.potentials.items()} | {"spans": (b, n, n, nt)}
        # Bounds on what a derivation adds up to: terms and spans count for one or both statistics, rules sometimes.
        fields = ("spans",) if len(sizes) == 2 else ("terms", "spans")
        steps = [{name: (torch.rand(shapes[name], generator=g) < 0.4).long() for name in fields} for _ in sizes]
        if len(sizes) == 1:
            del steps[0]["spans"]
            steps[0]["rule_scores"] = (torch.rand(shapes["rule_scores"], generator=g) < 0.4).long()
        counter = Counter(tuple(steps), sizes if len(sizes) == 1 else (n + 1, n + 1))
        s = problem.make(backend)
        found = s.max_by_count(counter)
        size = counter.sizes
        offset, slope = torch.rand((b, *size), dtype=problem.dtype), torch.rand((b, *size), dtype=problem.dtype)
        best = s.best_by_count(counter, offset, slope)
        for row_number, row in enumerate(problem.rows):
            own_steps = [{name: x if x.dim() == 1 else x[row_number] for name, x in step.items()} for step in steps]
            at = functools.partial(_statistics, problem.grammar, own_steps)
            expected = torch.full(size, NEG_INF, dtype=torch.float64)
            for y, score in zip(row.outputs, row.scores, strict=True):
                place = at(y)
                expected[place] = max(float(expected[place]), float(score))
            assert_close(found.table[row_number], expected, problem.dtype)
            objective = offset[row_number].double() + slope[row_number].double() * expected
            objective = objective.masked_fill(expected == NEG_INF, NEG_INF)
            assert_close(best.value[row_number], objective.max(), problem.dtype)
            if not row.feasible:
                continue
            place = (expected > NEG_INF).nonzero()[row_number % int((expected > NEG_INF).sum())]
            decoded = found.decode(place.expand(b, -1))[row_number]
            entries = [(i, j, int(decoded[i, j])) for i in range(n) for j in range(i, n) if int(decoded[i, j]) != -100]
            assert at(entries) == tuple(place.tolist())
            own = {name: x if x.dim() == 1 else x[row_number] for name, x in problem.potentials.items()}
            total = float(own["root_scores"][_root(problem.grammar, entries)]) if entries else 0.0
            for i, j, entry in entries:
                total += float(own["terms"][i, entry] if i == j else own["rule_scores"][entry])
                if i < j and "spans" in own:
                    total += float(own["spans"][i, j, int(problem.grammar.rules[entry, 0])])
            assert_close(torch.tensor(total, dtype=torch.float64), expected[tuple(place)], problem.dtype, 5.0)


def _statistics(grammar: sl.Grammar, steps: list[dict[str, torch.Tensor]], y: Any) -> tuple[int, ...]:
    """What each of the steps adds up to over a derivation."""
    totals = []
    for step in steps:
        value = 0
        for i, j, entry in y:
            if i == j:
                value += int(step["terms"][i, entry]) if "terms" in step else 0
                continue
            value += int(step["rule_scores"][entry]) if "rule_scores" in step else 0
            value += int(step["spans"][i, j, int(grammar.rules[entry, 0])]) if "spans" in step else 0
        totals.append(value)
    return tuple(totals)


def _root(grammar: sl.Grammar, entries: list[tuple[int, int, int]]) -> int:
    i, j, entry = max(entries, key=lambda x: x[1] - x[0])
    return grammar.num_nonterminals + entry if i == j else int(grammar.rules[entry, 0])


def toy() -> sl.Grammar:
    names = ("S", "NP", "VP"), ("D", "N", "V")
    return sl.Grammar([[0, 1, 2], [1, 3, 4], [2, 5, 1], [2, 5, 4]], *names)


def tagged(*tags: str) -> torch.Tensor:
    """(1, N, P) terms of observed parts of speech."""
    terms = torch.full((1, len(tags), 3), NEG_INF)
    for n, tag in enumerate(tags):
        terms[0, n, "DNV".index(tag)] = 0.0
    return terms


ROOT = torch.tensor([0.0, NEG_INF, NEG_INF])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_outputs_are_rules_constituents_and_trees(backend: str) -> None:
    s = sl.WeightedCFG(
        toy(), tagged("D", "N", "V", "D", "N"), torch.tensor([1.0, 2.0, 3.0, 4.0]), ROOT, backend=backend
    )
    y = s.argmax()
    assert [int(y[0, i, j]) for i, j in ((0, 4), (0, 1), (2, 4), (3, 4))] == [0, 1, 2, 1]
    assert s.max().tolist() == [8.0]
    (tree,) = s.trees(y, [["the", "man", "saw", "a", "dog"]])
    assert tree is not None
    assert tree.bracket() == "(S (NP (D the) (N man)) (VP (V saw) (NP (D a) (N dog))))"
    assert tree.pretty(width=30).startswith("(S\n")
    assert torch.equal(s.chart([tree]), y)
    parts = s.constituents(y)[0]
    assert (parts[-1].start, parts[-1].end, parts[-1].symbol, parts[-1].rule) == (0, 4, 0, 0)
    assert len(parts) == 9
    assert sum(c.rule is None for c in parts) == 5
    assert s.symbols(y)[0, 0].tolist() == [3, 1, -100, -100, 0]


@pytest.mark.parametrize("backend", ["reference", "cpu", "torch-struct"])
def test_a_sentence_without_a_parse_is_named_and_glue_parses_it(backend: str) -> None:
    terms = torch.cat([tagged("D", "N", "V", "N"), tagged("V", "D", "N", "N"), tagged("D", "N", "N", "N")])
    s = sl.WeightedCFG(toy(), terms, torch.zeros(4), ROOT, backend=backend)
    assert s.max().tolist() == [0.0, NEG_INF, NEG_INF]
    assert s.log_partition().tolist() == [0.0, NEG_INF, NEG_INF]
    with pytest.raises(InfeasibleError, match=r"none for batch rows \[1, 2\]; with_glue\(\)"):
        s.argmax()
    glued = s.with_glue(-10.0)
    assert glued.grammar.preterminals[-1] == "ANY"
    trees = [tree.bracket() if tree else "" for tree in glued.trees(glued.argmax(), [list("abcd")] * 3)]
    assert trees[0] == "(S (NP (D a) (N b)) (VP (V c) (N d)))"
    assert trees[1].startswith("(GLUE (VP (V a) (NP (D b) (N c)))")
    assert trees[2].startswith("(GLUE (NP (D a) (N b))")
    assert [tree.count("ANY") for tree in trees] == [0, 0, 0]  # every word has a tag, and keeps it
    assert float(glued.max()[0]) == 0.0
    assert bool((glued.max() > NEG_INF).all())


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_glue_takes_the_place_of_no_derivation_however_bad(backend: str) -> None:
    s = sl.WeightedCFG(toy(), tagged("D", "N", "V", "N"), torch.full((4,), -1000.0), ROOT, backend=backend)
    glued = s.with_glue()
    assert torch.equal(glued.max(), s.max())
    assert torch.equal(glued.log_partition(), s.log_partition())
    (tree,) = glued.trees(glued.argmax())
    assert tree is not None
    assert tree.label == "S"


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_no_words_and_no_rules(backend: str) -> None:
    s = sl.WeightedCFG(toy(), torch.zeros(2, 0, 3), torch.zeros(4), ROOT, backend=backend)
    assert s.argmax().shape == (2, 0, 0)
    assert s.max().tolist() == [0.0, 0.0]
    words = sl.Grammar([], 0, 2)
    s = sl.WeightedCFG(words, torch.zeros(2, 2, 2), torch.zeros(0), torch.zeros(2), lengths=[1, 0], backend=backend)
    assert s.max().tolist() == [0.0, 0.0]
    torch.testing.assert_close(s.log_partition(), torch.tensor([math.log(2), 0.0]))
    assert s.argmax().tolist() == [[[0, -100], [-100, -100]], [[-100, -100], [-100, -100]]]


def test_many_preterminals_do_not_make_a_grammar_dense() -> None:
    """Two of eight triples of nonterminals are rules, and 6,000 kinds of words would fill gigabytes of products."""
    rules = [(0, 0, 0), (1, 1, 0)] + [(0, 2 + p, 3 + p) for p in range(5999)]
    grammar = sl.Grammar(rules, 2, 6000)
    assert not grammar.dense
    assert sl.Grammar(rules[:2], 2, 2).dense
    assert bool(sl.WeightedCFG(grammar, torch.zeros(1, 2, 6000), torch.zeros(6001), torch.zeros(2)).max() == 0)


def test_trees_with_several_symbols_over_a_span_are_no_charts() -> None:
    s = sl.WeightedCFG(toy(), torch.zeros(1, 2, 3), torch.zeros(4), ROOT)
    for text in ("(S (NP (D a) (N b)))", "(NP (NP (D a)) (N b))"):
        with pytest.raises(LabelError, match="one symbol over every span"):
            s.chart([parse_tree(text)])


def test_a_single_word_is_glued_too() -> None:
    s = sl.WeightedCFG(toy(), torch.full((1, 1, 3), NEG_INF), torch.zeros(4), ROOT)
    glued = s.with_glue(-1.0)
    assert glued.max().tolist() == [-2.0]
    assert str(glued.trees(glued.argmax())[0]) == "(ANY 0)"


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_what_is_not_a_derivation_is_refused(backend: str) -> None:
    s = sl.WeightedCFG(toy(), torch.zeros(2, 4, 3), torch.zeros(4), ROOT, backend=backend)
    y = s.argmax()
    for change in (
        lambda z: z[1, 0, 3].fill_(9),
        lambda z: z[1, 0, 0].fill_(5),
        lambda z: z[1, 0, 3].fill_(1),
        lambda z: z[1, 2, 3].fill_(-100),
        lambda z: z[1, 0, 2].fill_(0),
    ):
        wrong = y.clone()
        change(wrong)
        with pytest.raises(LabelError, match="y: expected"):
            s.score(wrong)


def test_arguments_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"rules: expected \(R, 3\)"):
        sl.Grammar(torch.zeros(3, 2, dtype=torch.int64), 2, 2)
    with pytest.raises(DTypeError, match="integer symbol numbers"):
        sl.Grammar(torch.zeros(3, 3), 2, 2)
    with pytest.raises(ArgumentError, match=r"parents in 0..1 .*\[2, 0, 0\] in row 1"):
        sl.Grammar([[0, 1, 1], [2, 0, 0]], 2, 2)
    with pytest.raises(ArgumentError, match=r"each rule once, got \(0, 1, 1\) again in row 2"):
        sl.Grammar([[0, 1, 1], [0, 1, 2], [0, 1, 1]], 2, 2)
    with pytest.raises(ArgumentError, match="preterminals: expected at least one"):
        sl.Grammar([[0, 0, 0]], 1, 0)
    g = toy()
    with pytest.raises(ShapeError, match=r"terms: expected .*P=3"):
        sl.WeightedCFG(g, torch.zeros(1, 2, 4), torch.zeros(4), ROOT)
    with pytest.raises(ShapeError, match=r"rule_scores: expected .*R=4"):
        sl.WeightedCFG(g, torch.zeros(1, 2, 3), torch.zeros(5), ROOT)
    with pytest.raises(ShapeError, match="root_scores: expected"):
        sl.WeightedCFG(g, torch.zeros(1, 2, 3), torch.zeros(4), torch.zeros(2))
    with pytest.raises(ShapeError, match="spans: expected"):
        sl.WeightedCFG(g, torch.zeros(1, 2, 3), torch.zeros(4), ROOT, spans=torch.zeros(1, 2, 2, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    grammar = random_grammar(3, 2, 1.0)
    terms, rules, roots = (torch.randn(shape).to(dtype) for shape in ((2, 5, 2), (grammar.num_rules,), (3,)))
    half = sl.WeightedCFG(grammar, terms, rules, roots)
    whole = sl.WeightedCFG(grammar, terms.float(), rules.float(), roots.float())
    assert torch.equal(half.log_partition(), whole.log_partition())
    assert torch.equal(half.argmax(), whole.argmax())


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_strided_potentials_and_empty_batches(share: float) -> None:
    grammar = random_grammar(4, 3, share, seed=2)
    terms, rules = torch.randn(2, 3, 6).mT, torch.randn(2 * grammar.num_rules)[::2]
    spans = torch.randn(2, 4, 6, 6).permute(0, 2, 3, 1)
    a = sl.WeightedCFG(grammar, terms, rules, torch.randn(4).expand(2, 4), spans=spans)
    contiguous = {name: x.contiguous() for name, x in a.potentials.items()}
    b = sl.WeightedCFG(grammar, **contiguous)
    assert torch.equal(a.log_partition(), b.log_partition())
    assert torch.equal(a.max(), b.max())
    for x, y in zip(a.marginals(), b.marginals(), strict=True):
        assert x is not None
        assert torch.equal(x, y)
    for shape in ((0, 4, 3), (3, 0, 3)):
        empty = sl.WeightedCFG(grammar, torch.zeros(shape), rules, torch.zeros(4))
        assert empty.log_partition().tolist() == [0.0] * shape[0]
        assert empty.max().tolist() == [0.0] * shape[0]
        assert empty.argmax().shape == (shape[0], shape[1], shape[1])


@pytest.mark.parametrize("b", [0, 1, 2])
@pytest.mark.parametrize("rules", [[(0, 1, 1), (0, 0, 1)], []], ids=["rules", "no rules"])
def test_scores_expanded_over_a_batch_of_any_size(rules: list[tuple[int, int, int]], b: int) -> None:
    """torch calls an expanded tensor of one row or none contiguous: its stride of 0 does not mean that it is shared."""
    grammar = sl.Grammar(rules, 1, 1)
    terms, scores, roots = torch.randn(1, 1, 1), torch.randn(len(rules)), torch.randn(2)
    for n in (0, 1, 3):
        potentials = terms.expand(b, n, 1), scores.expand(b, len(rules)), roots.expand(b, 2)
        s = sl.WeightedCFG(grammar, *potentials, backend="cpu")
        exact = sl.WeightedCFG(grammar, *potentials, backend="reference")
        for query in ("max", "log_partition", "entropy", "count"):
            torch.testing.assert_close(getattr(s, query)(), getattr(exact, query)())
        for one, other in zip(s.marginals()[:3], exact.marginals()[:3], strict=True):
            torch.testing.assert_close(one, other)
        assert torch.equal(s.topk(2)[0], exact.topk(2)[0])
        assert s.sample(2).shape == (2, b, n, n)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_no_nonterminals(backend: str) -> None:
    """Only sentences of one word have derivations."""
    s = sl.WeightedCFG(
        sl.Grammar([], 0, 2),
        torch.tensor([[[1.0, 2.0]] * 3] * 3),
        torch.zeros(0),
        torch.tensor([5.0, 0.0]),
        lengths=torch.tensor([1, 3, 0]),
        backend=backend,
    )
    y, scores = s.topk(3)
    assert scores.tolist() == [[6.0, NEG_INF, 0.0], [2.0, NEG_INF, NEG_INF], [NEG_INF] * 3]
    assert y[:2, 0, 0, 0].tolist() == [0, 1]
    assert bool((y[:, 1:] == -100).all())
    assert s.max().tolist() == [6.0, NEG_INF, 0.0]
    assert s.sample(4).shape == (4, 3, 3, 3)
    torch.testing.assert_close(s.marginals().terms.sum((1, 2)), torch.tensor([1.0, 0.0, 0.0]))


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_operators_pass_opcheck_and_compile(share: float) -> None:
    grammar = random_grammar(3, 2, share, seed=8)
    lengths = torch.tensor([5, 3, 0])
    s = random_structure(grammar, 3, 5, torch.float64, lengths=lengths)
    leaves = {name: x.clone().requires_grad_() for name, x in s.potentials.items()}
    s = s.replace(**leaves)
    args, y = s._args, s.argmax()
    bare = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args)
    ops = torch.ops.structlearn
    log_z, chart = ops.grammar_forward(*bare, False)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for op, given in (
        (ops.grammar_max, args),
        (ops.grammar_score, (*args, y[None], False)),
        (ops.grammar_forward, (*args, False)),
        (ops.grammar_backward, (*args, chart, torch.ones_like(log_z))),
        (ops.grammar_entropy, args),
        (ops.grammar_entropy_backward, (*bare, torch.ones_like(log_z))),
        (ops.grammar_kbest, (*bare, 3)),
    ):
        torch.library.opcheck(op, given, test_utils=tests)

    def loss(terms: torch.Tensor, rules: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
        x = sl.WeightedCFG(grammar, terms, rules, roots, lengths=lengths)
        return (x.log_partition() - x.score(y) + x.entropy() + x.max()).sum()

    values = list(leaves.values())
    expected = torch.autograd.grad(loss(*values), values)
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*values), values)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_results_do_not_depend_on_the_number_of_threads(share: float) -> None:
    s = random_structure(random_grammar(10, 12, share), 9, 20, torch.float32)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = s.marginals()
            results.append((s.log_partition(), found.terms, s.max(), s.argmax()))
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_scores_of_the_best_derivations_are_differentiable(backend: str) -> None:
    s = random_structure(random_grammar(2, 2, 1.0), 2, 4, torch.float64, lengths=[4, 1], backend=backend)
    leaves = {name: x.clone().requires_grad_() for name, x in s.potentials.items()}
    s = s.replace(**leaves)
    _, scores = s.topk(3)
    assert scores[2, 1] == NEG_INF
    best = torch.autograd.grad(scores[0].sum(), list(leaves.values()), retain_graph=True)
    for a, b in zip(best, torch.autograd.grad(s.max().sum(), list(leaves.values())), strict=True):
        torch.testing.assert_close(a, b)
    second = torch.autograd.grad(scores[1].sum(), leaves["terms"])[0]
    assert float(second.sum()) == 5.0
