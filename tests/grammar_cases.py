"""Random grammars and batches with their enumeration, in the form that ``queries.CHECKS`` takes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cases import NEG_INF, numbers
from oracles import Fields, Row, stack_rows
from oracles import grammar as oracle
from oracles.span_tree import chart
from torch import Tensor

import structlearn as sl


@dataclass(frozen=True)
class GrammarCase:
    """Sizes and kinds of a random :class:`WeightedCFG` batch."""

    name: str
    nonterminals: int = 2
    preterminals: int = 2
    share: float = 1.0  # of all triples that are rules
    N: int = 4
    lengths: tuple[int, ...] | None = (4, 3, 1, 0, 2)
    own_rules: bool = False  # (B, R)
    own_roots: bool = False
    single_roots: bool = True  # preterminals may be roots
    spans: bool = False
    dtype: torch.dtype = torch.float64
    spread: float = 2.0
    integers: bool = False
    forbidden: float = 0.0
    dead: tuple[int, ...] = ()
    seed: int = 0

    def __str__(self) -> str:
        return self.name

    def problem(self) -> GrammarProblem:
        return _problem(self)


@dataclass(frozen=True, eq=False)
class GrammarProblem:
    """Potentials of one batch with everything that is true about it."""

    grammar: sl.Grammar
    potentials: dict[str, Tensor]
    lengths: tuple[int, ...] | None

    @property
    def dtype(self) -> torch.dtype:
        return self.potentials["terms"].dtype

    @property
    def shared(self) -> tuple[str, ...]:
        return tuple(name for name in ("rule_scores", "root_scores") if self.potentials[name].dim() == 1)

    def make(self, backend: str = "auto", **changed: Tensor) -> sl.WeightedCFG:
        lengths = None if self.lengths is None else torch.tensor(self.lengths, dtype=torch.int64)
        given: dict[str, Any] = {**self.potentials, **changed}
        return sl.WeightedCFG(self.grammar, **given, lengths=lengths, backend=backend)

    @functools.cached_property
    def rows(self) -> list[Row]:
        arrays: dict[str, Any] = {name: numbers(x) for name, x in self.potentials.items()}
        rules = self.grammar.rules.tolist()
        return oracle.rows(rules, self.grammar.num_nonterminals, **arrays, lengths=self.lengths)

    def expected(self, of: Any = Row.expected_parts, grad: Sequence[float] | None = None) -> Fields:
        """Per-row results of ``of`` in the shapes of the potentials, weighted by ``grad``."""
        return stack_rows(self.rows, self.shared, of, grad)

    def labels(self, b: int, y: Any) -> list[list[int]]:
        """Output ``y`` of row ``b`` as the structure writes it."""
        return chart(y, self.potentials["terms"].shape[1])


@functools.lru_cache(maxsize=64)
def _problem(case: GrammarCase) -> GrammarProblem:
    g = torch.Generator().manual_seed(case.seed)
    nt, p, batch = case.nonterminals, case.preterminals, 5
    triples = torch.tensor(list(itertools.product(range(nt), range(nt + p), range(nt + p))))
    keep = torch.rand(len(triples), generator=g) < case.share
    order = torch.randperm(int(keep.sum()), generator=g)
    rules = triples[keep][order]

    def draw(*shape: int) -> Tensor:
        if case.integers:
            x = torch.randint(0, 2, shape, generator=g).to(case.dtype)
        else:
            x = (torch.randn(shape, generator=g, dtype=torch.float64) * case.spread).to(case.dtype)
        return x.masked_fill(torch.rand(shape, generator=g) < case.forbidden, NEG_INF)

    terms = draw(batch, case.N, p)
    roots = nt + p if case.single_roots else nt
    potentials = {
        "terms": terms,
        "rule_scores": draw(batch, len(rules)) if case.own_rules else draw(len(rules)),
        "root_scores": draw(batch, roots) if case.own_roots else draw(roots),
    }
    if case.spans:
        potentials["spans"] = spans = draw(batch, case.N, case.N, nt)
        spans[:, torch.ones(case.N, case.N, dtype=torch.bool).tril()] = float("nan")
    for b, n in enumerate(case.lengths or (case.N,) * batch):
        if b in case.dead:
            terms[b, n - 1] = NEG_INF
        terms[b, n:] = float("nan")
        if case.spans:
            spans[b, :, n:] = float("nan")
    return GrammarProblem(sl.Grammar(rules, nt, p), potentials, case.lengths)


def grammar_cases() -> list[GrammarCase]:
    """Dense and sparse rules, shared and own scores, with and without spans, in both dtypes."""
    f32 = torch.float32
    return [
        GrammarCase("dense-f64"),
        GrammarCase("dense-f32", own_roots=True, dtype=f32, seed=1),
        GrammarCase("dense-own-spans-f64", own_rules=True, spans=True, seed=2),
        GrammarCase("dense-spans-f32", spans=True, N=3, lengths=(3, 3, 2, 1, 0), dtype=f32, seed=3),
        GrammarCase("sparse-f64", nonterminals=4, preterminals=3, share=0.12, N=5, lengths=(5, 4, 1, 3, 5), seed=30),
        GrammarCase("sparse-own-f32", nonterminals=4, preterminals=3, share=0.12, own_rules=True, dtype=f32, seed=5),
        GrammarCase("sparse-spans-f64", 4, 3, 0.12, spans=True, own_roots=True, seed=6),
        GrammarCase("no-single-roots-f64", single_roots=False, lengths=(4, 3, 2, 4, 2), seed=7),
        GrammarCase("one-nonterminal-f64", 1, 1, N=5, lengths=(5, 4, 3, 2, 0), spans=True, seed=8),
    ]


def tie_cases() -> list[GrammarCase]:
    """Integer potentials, where sums are exact and many derivations share a score."""
    return [
        GrammarCase("ties-dense-f32", integers=True, dtype=torch.float32, seed=101),
        GrammarCase("ties-dense-spans-f64", integers=True, spans=True, seed=102),
        GrammarCase("ties-sparse-f32", 4, 3, 0.3, integers=True, dtype=torch.float32, seed=103),
    ]


def forbidden_cases() -> list[GrammarCase]:
    """Many -inf, with whole rows forbidden among feasible ones."""
    return [
        GrammarCase("forbidden-dense-f32", forbidden=0.15, dead=(1, 2), dtype=torch.float32, seed=207),
        GrammarCase("forbidden-dense-spans-f64", forbidden=0.1, dead=(1, 2), spans=True, own_rules=True, seed=209),
        GrammarCase("forbidden-sparse-f64", 4, 3, 0.4, forbidden=0.2, dead=(1, 2), seed=205),
    ]
