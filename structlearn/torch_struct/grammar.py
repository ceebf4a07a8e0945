"""Weighted grammars through torch-struct.

torch-struct's ``SentCFG`` takes terms (B, N, P), rules (B, NT, S, S) for all triples of symbols and roots (B, NT). It
knows no scores of spans, no preterminal at the root, hence no sentence of one word: those are a sum over preterminals
here. It cannot break ties by rule number, so outputs come from the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.semirings import NEG_INF, Semiring
from structlearn.structures.grammar import WeightedCFG
from structlearn.structures.rules import Grammar
from structlearn.torch_struct.engine import FORBIDDEN, Theirs, refused, through


def _dense(structure: WeightedCFG, terms: Tensor, rules: Tensor, roots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Terms, rules of all triples and roots for what :meth:`WeightedCFG._filled` gives."""
    if structure.spans is not None:
        raise refused("a structure without spans", "spans")
    if terms.numel() == 0:
        raise refused("at least one word", tuple(terms.shape))
    g, b = structure.grammar, structure.batch_size
    if g.num_nonterminals == 0:
        raise refused("at least one nonterminal", "a grammar without")
    parent, left, right = g.rules.to(terms.device).unbind(1)
    dense = terms.new_full((b, g.num_nonterminals, g.num_symbols, g.num_symbols), NEG_INF)
    dense[:, parent, left, right] = rules.expand(b, -1)
    return terms, dense, roots[:, : g.num_nonterminals].expand(b, -1)


def to_torch_struct(structure: WeightedCFG) -> Any:
    """``torch_struct.SentCFG`` with the same distribution over sentences of two words or more.

    Its zeros are finite: what is forbidden gets ``FORBIDDEN``, and so do scores below that; one of them is -1e5, which
    scores of that size pass for.
    """
    from torch_struct import SentCFG

    filled = structure._filled(structure.terms, structure.rule_scores, structure.root_scores, None)
    # Copies, since torch-struct makes its potentials ask for gradients.
    potentials = tuple(x.clamp(min=FORBIDDEN) for x in _dense(structure, *filled[:3]))
    return SentCFG(potentials, lengths=structure._lengths.clamp(min=1))


def from_torch_struct(distribution: Any, *, backend: str = "auto") -> WeightedCFG:
    """The :class:`WeightedCFG` over all triples of symbols with the distribution of a ``torch_struct.SentCFG``."""
    terms, rules, roots = distribution.log_potentials
    nt, s = rules.shape[1:3]
    triples = torch.cartesian_prod(torch.arange(nt), torch.arange(s), torch.arange(s))
    grammar = Grammar(triples, nt, s - nt)
    return WeightedCFG(grammar, terms, rules.flatten(1), roots, lengths=distribution.lengths, backend=backend)


def total(structure: WeightedCFG, semiring: Semiring) -> Tensor:
    """The total (1, B) over Log or Max, by torch-struct's recurrence."""
    from torch_struct import CKY

    s, lengths = structure, structure._lengths

    def recurrence(semiring: Semiring, terms: Tensor, rules: Tensor, roots: Tensor) -> Tensor:
        terms, rules, roots, _ = s._filled(terms, rules, roots, None)
        dense = tuple(x.clone() for x in _dense(s, terms, rules, roots))
        several = CKY(Theirs(semiring)).logpartition(dense, lengths.clamp(min=1))[0]
        single = semiring.sum(terms[:, 0] + roots[:, s.grammar.num_nonterminals :], -1)
        return torch.where(lengths > 1, several, torch.where(lengths == 1, single, 0.0))

    return through(semiring, recurrence, [s.terms, s.rule_scores, s.root_scores])
