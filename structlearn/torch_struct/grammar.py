"""Weighted grammars through torch-struct.

torch-struct's ``SentCFG`` takes terms (B, N, P), rules (B, NT, S, S) for all triples of symbols and roots (B, NT);
rules that a grammar does not have get ``FORBIDDEN``, since its zeros are finite; one of them is -1e5, so totals of that
size are told apart as in ``chain.py``, or refused. It knows no scores of spans, no preterminal at the root, hence no
sentence of one word: those are a sum over preterminals here. It cannot break ties by rule number, so outputs come from
the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.errors import BackendError
from structlearn.semirings import Log, Max, Semiring
from structlearn.structures.grammar import WeightedCFG
from structlearn.structures.rules import Grammar
from structlearn.torch_struct.chain import FORBIDDEN, score_bounds, without_forbidden

ZERO = -1e5


def to_torch_struct(structure: WeightedCFG) -> Any:
    """``torch_struct.SentCFG`` with the same distribution over sentences of two words or more."""
    from torch_struct import SentCFG

    if structure.spans is not None:
        raise BackendError("backend", "a structure without spans for torch-struct", "spans", "pass backend='auto'")
    terms, rules, roots, _ = structure._filled(structure.terms, structure.rule_scores, structure.root_scores, None)
    g, b = structure.grammar, structure.batch_size
    if terms.numel() == 0:
        raise BackendError("backend", "at least one word for torch-struct", tuple(terms.shape), "pass backend='auto'")
    parent, left, right = g.rules.to(terms.device).unbind(1)
    dense = terms.new_full((b, g.num_nonterminals, g.num_symbols, g.num_symbols), FORBIDDEN)
    dense[:, parent, left, right] = rules.clamp(min=FORBIDDEN).expand(b, -1)
    # Copies, since torch-struct makes its potentials ask for gradients.
    top = roots[:, : g.num_nonterminals].clamp(min=FORBIDDEN).expand(b, -1).clone()
    lengths = structure._lengths.clamp(min=1)
    return SentCFG((terms.clamp(min=FORBIDDEN), dense, top), lengths=lengths)


def from_torch_struct(distribution: Any, *, backend: str = "auto") -> WeightedCFG:
    """The :class:`WeightedCFG` over all triples of symbols with the distribution of a ``torch_struct.SentCFG``."""
    terms, rules, roots = distribution.log_potentials
    nt, s = rules.shape[1:3]
    triples = torch.cartesian_prod(torch.arange(nt), torch.arange(s), torch.arange(s))
    grammar = Grammar(triples, nt, s - nt)
    return WeightedCFG(grammar, terms, rules.flatten(1), roots, lengths=distribution.lengths, backend=backend)


class GrammarQueries:
    """The totals of a :class:`WeightedCFG` computed by torch-struct."""

    def __init__(self, structure: WeightedCFG) -> None:
        self._structure = structure
        self._differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in structure.potentials.values())

    def log_partition(self) -> Tensor:
        return self._clean(to_torch_struct(self._structure).partition, Log())

    def max(self) -> Tensor:
        return self._clean(to_torch_struct(self._structure).max, Max())

    def _clean(self, scores: Tensor, semiring: Semiring) -> Tensor:
        """-inf below any real score, sums over preterminals for single words, 0 for empty sentences."""
        s = self._structure
        nt = s.grammar.num_nonterminals
        terms, rules, roots, _ = s._filled(s.terms, s.rule_scores, s.root_scores, None)
        n = terms.shape[1]
        bounds = score_bounds((terms, n), (rules, n), (roots, 1))
        single = semiring.sum(semiring.lift(terms[:, 0] + roots[:, nt:]), -1)[0]
        scores = torch.where(s._lengths > 1, scores, 0.0)  # what follows knows better
        scores = without_forbidden(scores, bounds, ZERO)
        single = torch.where(single == float("-inf"), single.detach(), single)
        scores = torch.where(s._lengths == 1, single, scores).masked_fill(s._lengths == 0, 0.0)
        return scores if self._differentiable else scores.detach()
