"""log Z and its gradient by matrix products: sizes around whole vectors, groups of sentences, mixed with exact sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import NEG_INF, assert_close

import structlearn as sl

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def triples(nonterminals: int, preterminals: int) -> torch.Tensor:
    s = nonterminals + preterminals
    return torch.cartesian_prod(torch.arange(nonterminals), torch.arange(s), torch.arange(s))


def potentials(nt: int, p: int, b: int, n: int, own: bool = False, spans: bool = False) -> dict[str, Any]:
    g = torch.Generator().manual_seed(nt * 1000 + p)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=g)

    rules = nt * (nt + p) ** 2
    return {
        "terms": draw(b, n, p),
        "rule_scores": draw(b, rules) if own else draw(rules),
        "root_scores": draw(nt + p),
        "spans": draw(b, n, n, nt) if spans else None,
    }


def gradients(s: sl.WeightedCFG, weight: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    """log Z and d (sum_b weight_b log Z_b) / d potentials, through autograd."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in s.potentials.items()}
    log_z = s.replace(**leaves).log_partition()
    total = log_z.sum() if weight is None else (weight * log_z).sum()
    return log_z.detach(), *torch.autograd.grad(total, list(leaves.values()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize(
    "sizes", [(2, 1, 9, 5), (7, 9, 40, 6), (16, 15, 3, 4), (17, 16, 3, 5), (5, 33, 4, 7), (33, 4, 2, 13)], ids=str
)
def test_value_and_gradient_equal_the_reference(sizes: tuple[int, ...], own: bool, dtype: torch.dtype) -> None:
    nt, p, b, n = sizes
    grammar = sl.Grammar(triples(nt, p), nt, p)
    assert grammar.dense
    assert grammar.complete
    lengths = torch.arange(b) % (n + 1)
    lengths[0] = n
    given = potentials(nt, p, b, n, own, spans=own)
    s = sl.WeightedCFG(grammar, **given, lengths=lengths, backend="reference")
    mine: dict[str, Any] = {name: None if x is None else x.to(dtype) for name, x in given.items()}
    found = gradients(sl.WeightedCFG(grammar, **mine, lengths=lengths, backend="cpu"))
    for x, y in zip(found, gradients(s), strict=True):
        assert_close(x, y, dtype, 20.0 * n)


@pytest.mark.parametrize("share", [1.0, 0.9, 0.1])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_one_call_equals_the_operators(own: bool, share: float) -> None:
    """The second backward pass, and one with unequal weights, take the operators."""
    torch.manual_seed(0)
    rules = triples(6, 7)
    kept = torch.rand(len(rules)) < share
    given = potentials(6, 7, 11, 8, own, spans=True)
    given["rule_scores"] = given["rule_scores"][..., kept]
    leaves = {name: x.requires_grad_() for name, x in given.items()}
    s = sl.WeightedCFG(sl.Grammar(rules[kept], 6, 7), **leaves, lengths=[8, 0, 1, 2, 8, 3, 8, 7, 1, 6, 5])
    log_z = s.log_partition()
    values = list(leaves.values())
    together = torch.autograd.grad(log_z.sum(), values, retain_graph=True)
    apart = torch.autograd.grad(log_z.sum(), values, retain_graph=True)
    for x, y in zip(together, apart, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)
    plain, marginals = s.log_partition_and_marginals()
    assert torch.equal(plain, log_z.detach())
    assert all(torch.equal(x, y) for x, y in zip(marginals, together, strict=True))  # type: ignore[arg-type]
    first, second = torch.rand(2, 11, dtype=torch.float64)
    parts = [torch.autograd.grad(log_z, values, w, retain_graph=True) for w in (first, second, first + second)]
    for x, y, both in zip(*parts, strict=True):
        torch.testing.assert_close(x + y, both, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_the_order_of_rules_does_not_matter(own: bool) -> None:
    """In order they are turned as a whole, otherwise looked up one by one."""
    nt, p = 9, 11
    rules, given = triples(nt, p), potentials(nt, p, 5, 7, own)
    order = torch.randperm(len(rules), generator=torch.Generator().manual_seed(1))
    shuffled = sl.Grammar(rules[order], nt, p)
    assert not shuffled.complete
    log_z, terms, by_rule, roots = gradients(sl.WeightedCFG(sl.Grammar(rules, nt, p), **given))
    given["rule_scores"] = given["rule_scores"][..., order]
    other = gradients(sl.WeightedCFG(shuffled, **given))
    assert torch.equal(log_z, other[0])
    assert torch.equal(terms, other[1])
    torch.testing.assert_close(by_rule[..., order], other[2], rtol=1e-13, atol=0)
    assert torch.equal(roots, other[3])


@pytest.mark.parametrize("shared_scale", [1.0, 40.0])
def test_sentences_that_products_cannot_hold_stand_among_others(shared_scale: float) -> None:
    """A forbidden word, words too far apart for one scale, a forbidden root; the others of a group stay as they are."""
    nt, p, b, n = 4, 5, 9, 6
    grammar, given = sl.Grammar(triples(nt, p), nt, p), potentials(nt, p, b, n, spans=True)
    given["rule_scores"] *= shared_scale
    given["terms"][1, 2] = NEG_INF
    given["terms"][3, :, 1:] = NEG_INF
    given["spans"][4] *= 1e3
    given["spans"][6, 1, 3] = NEG_INF
    narrow: dict[str, Any] = {name: x.float() for name, x in given.items()}
    s = sl.WeightedCFG(grammar, **narrow)
    wide: dict[str, Any] = {name: x.double() for name, x in s.potentials.items()}
    reference = gradients(sl.WeightedCFG(grammar, **wide, backend="reference"))
    found = gradients(s)
    assert reference[0][1] == found[0][1] == NEG_INF
    for x, y in zip(found, reference, strict=True):
        alive = y.isfinite()
        assert torch.equal(x.isfinite(), alive)
        assert_close(x[alive], y[alive], torch.float32, 20.0 * n * shared_scale)


def test_forbidden_rules() -> None:
    nt, p = 5, 6
    given = potentials(nt, p, 4, 6)
    given["rule_scores"][torch.rand(nt * (nt + p) ** 2, generator=torch.Generator().manual_seed(2)) < 0.3] = NEG_INF
    given["rule_scores"].view(nt, nt + p, nt + p)[2, nt:, nt:] = NEG_INF  # over more than two words only
    grammar = sl.Grammar(triples(nt, p), nt, p)
    reference = gradients(sl.WeightedCFG(grammar, **given, backend="reference"))
    for x, y in zip(gradients(sl.WeightedCFG(grammar, **given)), reference, strict=True):
        assert_close(x, y, torch.float64, 100.0)


def test_results_are_the_same_in_every_run_and_those_of_sentences_on_every_number_of_threads() -> None:
    nt, p, b, n = 30, 20, 13, 9
    given: dict[str, Any] = {name: x.float() for name, x in potentials(nt, p, b, n).items() if x is not None}
    s = sl.WeightedCFG(sl.Grammar(triples(nt, p), nt, p), **given, lengths=torch.arange(b) % 8 + 2)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            found.append(gradients(s))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0])
        assert torch.equal(found[0][1], other[1])
        torch.testing.assert_close(found[0][2], other[2])
    assert all(torch.equal(x, y) for x, y in zip(found[2], found[3], strict=True))


def test_empty_batches_have_gradients() -> None:
    grammar = sl.Grammar(triples(3, 2), 3, 2)
    for b, n in ((0, 4), (3, 0), (2, 1)):
        log_z, *found = gradients(sl.WeightedCFG(grammar, **potentials(3, 2, b, n)))
        assert log_z.shape == (b,)
        assert all(x.isfinite().all() for x in found)
        assert float(found[1].abs().sum()) == 0
