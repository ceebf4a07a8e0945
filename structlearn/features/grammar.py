"""Joint features of a derivation: how often it uses each rule.

    Psi(x, y) = sum_{r in y} e(r)  +  e(root of y)  +  sum_t Phi(x^t) (x) e(A_tt)

over the rules r of y and the preterminals A_tt over its words; for observed tags Phi is 1, and a preterminal that the
tag does not allow is forbidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.errors import ArgumentError, DTypeError, LabelError, ShapeError
from structlearn.features.base import FeatureMap, added_up, counted, one_output, zero_beyond
from structlearn.structures import Grammar, WeightedCFG
from structlearn.structures.base import PAD
from structlearn.structures.checks import check_lengths, unpadded


class RuleMap(FeatureMap):
    """x to a :class:`WeightedCFG` with one weight a rule.

    Args:
        grammar: symbols and rules.
        in_features: size of Phi(x^t); if not given, x (B, N) holds the observed tag of every word.
        tags: (T, P) bool, which preterminals a tag may stand under; each preterminal is a tag of its own if not given.
        roots: (S,) bool, the symbols that may cover a sentence; all if not given.
        encoder: any module x -> (B, N, in_features); the identity if not given.

    Weights, zero at the start: ``rule`` (R,), ``root`` (S,), and ``preterminal`` (P,) over observed tags or
    ``emission`` (P, in_features) over features.
    """

    def __init__(
        self,
        grammar: Grammar,
        in_features: int | None = None,
        *,
        tags: Tensor | None = None,
        roots: Tensor | None = None,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__(in_features or 0, encoder)
        p, s = grammar.num_preterminals, grammar.num_symbols
        if in_features is None and encoder is not None:
            raise ArgumentError("in_features", "the encoder's output size", None, "pass in_features with an encoder")
        if in_features is not None and tags is not None:
            raise ArgumentError("tags", "None where x holds features", "a table", "leave out in_features or tags")
        if tags is not None and (tags.dim() != 2 or tags.shape[1] != p):
            raise ShapeError("tags", f"(T, P) with P={p}", tuple(tags.shape), "one row a tag")
        if roots is not None and tuple(roots.shape) != (s,):
            raise ShapeError("roots", f"(S,) with S={s}", tuple(roots.shape), "one entry a symbol")
        self.grammar = grammar
        self.head = ("rule", "root", "preterminal" if in_features is None else "emission")
        self.rule = nn.Parameter(torch.zeros(grammar.num_rules))
        self.root = nn.Parameter(torch.zeros(s))
        if in_features is None:
            self.preterminal = nn.Parameter(torch.zeros(p))
        else:
            self.emission = nn.Parameter(torch.zeros(p, in_features))
        self.register_buffer("tags", torch.eye(p, dtype=torch.bool) if tags is None else tags.bool())
        self.register_buffer("roots", torch.ones(s, dtype=torch.bool) if roots is None else roots.bool())

    def forward(self, x: Any, lengths: Tensor | Sequence[int] | None = None) -> WeightedCFG:
        """The scores of all derivations of x."""
        if self.head[2] == "preterminal":
            terms = self._observed(x, lengths)
        else:
            phi = self.features(x, 3)
            lengths = check_lengths("lengths", lengths, phi.shape[0], phi.shape[1], phi.device)
            terms = zero_beyond(phi, lengths) @ self.emission.T
        roots = self.root.masked_fill(~self.get_buffer("roots"), float("-inf"))
        return WeightedCFG(self.grammar, terms, self.rule, roots, lengths=lengths)

    def histograms(self, x: Any, y: Tensor, lengths: Any = None) -> list[Tensor]:
        b, n, p = len(x), y.shape[-1], self.grammar.num_preterminals
        dtype = self.rule.dtype
        y = one_output(y, (b, n, n), y.device)
        sizes = check_lengths("lengths", lengths, b, n, y.device)
        mask = unpadded(sizes, b, n, y.device)
        words = y.diagonal(0, 1, 2).masked_fill(~mask, PAD)
        apart = ~torch.eye(n, dtype=torch.bool, device=y.device) & mask[:, :, None] & mask[:, None, :]
        used = (apart & (y != PAD)).flatten(1)
        rules = counted(used, y.clamp(min=0).flatten(1), (self.grammar.num_rules,), dtype)
        last = (mask.sum(1) - 1).clamp(min=0)
        # A word more, so that a batch of empty sentences has a place to look at.
        top = nn.functional.pad(y, (0, 1, 0, 1))[torch.arange(b, device=y.device), 0, last].clamp(min=0)
        parent = self.grammar.rules.to(y.device)[:, 0]
        over = torch.where(last > 0, parent[top.clamp(max=len(parent) - 1)], top + self.grammar.num_nonterminals)
        roots = counted(mask.any(1, keepdim=True), over[:, None], (self.grammar.num_symbols,), dtype)
        if self.head[2] == "preterminal":
            return [rules, roots, counted(mask, words.clamp(min=0), (p,), dtype)]
        return [rules, roots, added_up(zero_beyond(self.features(x, 3), sizes), words.clamp(min=0), p)]

    def _observed(self, x: Tensor, lengths: Any) -> Tensor:
        """(B, N, P): the weight of each preterminal, -inf where the tag does not allow it."""
        if not isinstance(x, Tensor) or x.dim() != 2:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeError("x", "(B, N) tags", got, "pass in_features to score words by features")
        if x.is_floating_point():
            raise DTypeError("x", "integer tags", x.dtype, "pass in_features to score words by features")
        tags = self.get_buffer("tags")
        b, n = x.shape
        mask = unpadded(check_lengths("lengths", lengths, b, n, x.device), b, n, x.device)
        wrong = ((x < 0) | (x >= len(tags))) & mask
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            expected = f"tags in 0..{len(tags) - 1} at unpadded positions"
            raise LabelError("x", expected, f"{int(x[place])} at {place}", "shorten lengths if this word is padding")
        return self.preterminal.masked_fill(~tags[x.masked_fill(~mask, 0)], float("-inf"))
