"""Grammars over the whole range of scores, under masks of every kind, in sparse and in dense kernels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from cases import DTYPES, NEG_INF
from oracles import grammar as oracle
from range_cases import KINDS, MASKS, check, curvature, draw, masked, wide
from torch import Tensor

import structlearn as sl
from structlearn.structures.rules import Grammar

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def grammar(share: float, nonterminals: int = 3, preterminals: int = 2) -> Grammar:
    """All rules (dense), or a share of them (0.15: sparse)."""
    symbols = nonterminals + preterminals
    rules = list(itertools.product(range(nonterminals), range(symbols), range(symbols)))
    kept = np.random.default_rng(5).random(len(rules)) < share
    return Grammar([r for r, keep in zip(rules, kept, strict=True) if keep], nonterminals, preterminals)


def shapes(g: Grammar, b: int, n: int, shared: bool) -> dict[str, tuple[int, ...]]:
    own = () if shared else (b,)
    return {
        "terms": (b, n, g.num_preterminals),
        "rule_scores": (*own, g.num_rules),
        "root_scores": (*own, g.num_symbols),
        "spans": (b, n, n, g.num_nonterminals),
    }


def make(g: Grammar, fields: dict[str, Tensor], **options: Any) -> sl.WeightedCFG:
    potentials = {name: fields[name] for name in ("terms", "rule_scores", "root_scores")}
    return sl.WeightedCFG(g, **potentials, spans=fields.get("spans"), backend="cpu", **options)


def check_all(g: Grammar, fields: dict[str, Tensor], lengths: list[int] | None = None) -> None:
    b, n = fields["terms"].shape[:2]
    per_row = {"terms", "spans"} | {name for name in ("rule_scores", "root_scores") if fields[name].dim() == 2}
    rows = [{name: wide(x)[i] if name in per_row else wide(x) for name, x in fields.items()} for i in range(b)]
    words = lengths or [n] * b
    rules = g.rules.tolist()
    truth = [oracle.graph(rules, g.num_nonterminals, row, words[i]).solve() for i, row in enumerate(rows)]
    sizes = [max(float(abs(v[np.isfinite(v)]).max(initial=0)) for v in row.values()) for row in rows]
    check(make(g, fields, lengths=lengths), truth, sizes, 3 * n + 2, per_row)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [1.0, 0.7, 0.15])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_every_size_under_every_mask(kind: str, share: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(7)
    g = grammar(share)
    for mask, shared in itertools.product(MASKS, (False, True)):
        b, n = 2, int(rng.integers(1, 5))
        fields = {
            name: masked(rng, draw(rng, shape, kind, dtype, 3 * n + 2), mask, 0.25)
            for name, shape in shapes(g, b, n, shared).items()
        }
        if shared:
            del fields["spans"]
        check_all(g, fields)
        check_all(g, fields, rng.integers(0, n + 1, b).tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [1.0, 0.15])
@pytest.mark.parametrize("mask", ["-1e4", "-1e30", "lowest"])
def test_all_outputs_masked_by_finite_scores(mask: str, share: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(8)
    g = grammar(share)
    for name in ("terms", "rule_scores", "root_scores", "spans"):
        fields = {k: draw(rng, shape, "usual", dtype, 20) for k, shape in shapes(g, 2, 4, True).items()}
        fields[name] = masked(rng, fields[name], mask, 2.0)
        check_all(g, fields)
        s = make(g, fields)
        words = s.marginals().terms.sum(-1)[s.max() > NEG_INF]
        torch.testing.assert_close(words, torch.ones_like(words), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_finite_masks_and_forbidden_parts_give_the_same_derivatives(share: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(9)
    g = grammar(share, 3, 4)
    fields = {name: draw(rng, shape, "usual", dtype, 20) for name, shape in shapes(g, 3, 4, True).items()}
    where = {name: torch.tensor(rng.random(x.shape) < 0.1) for name, x in fields.items()}
    results = []
    for value in (NEG_INF, -1e4, -1e30, torch.finfo(dtype).min):
        leaves = {name: x.masked_fill(where[name], value).requires_grad_() for name, x in fields.items()}
        s = make(g, leaves)
        feasible = make(g, {name: x.masked_fill(where[name], NEG_INF) for name, x in fields.items()}).max() > NEG_INF
        assert bool(feasible.all())
        results.append(curvature(s, leaves, 3))
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [1.0, 0.15])
def test_longer_sentences_around_a_large_offset(share: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(10)
    g = grammar(share)
    for kind, shared in itertools.product(("ten", "field offset", "row offset", "position offset"), (False, True)):
        fields = {name: draw(rng, shape, kind, dtype, 99) for name, shape in shapes(g, 1, 10, shared).items()}
        check_all(g, fields)


@pytest.mark.parametrize("share", [1.0, 0.15])
def test_expanded_potentials(share: float) -> None:
    """Stride 0 along any axis reads as a copy does, in an empty batch, too."""
    torch.manual_seed(0)
    g = grammar(share)
    for b, name, axis in itertools.product((0, 3), ("terms", "rule_scores", "root_scores", "spans"), range(4)):
        fields = {k: torch.randn(shape) for k, shape in shapes(g, b, 4, False).items()}
        shape = fields[name].shape
        fields[name] = torch.randn([1 if d == axis else size for d, size in enumerate(shape)]).expand(shape)
        copied = {k: v.clone() for k, v in fields.items()}
        found = [
            (s.argmax(), s.max(), s.log_partition(), s.entropy(), *s.topk(2), s.score(s.argmax()), *s.marginals())
            for s in (make(g, fields), make(g, copied))
        ]
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)
