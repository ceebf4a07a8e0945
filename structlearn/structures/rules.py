"""Binary grammars: numbered symbols and the rules between them, in the orders that parsing wants them.

Symbols 0..NT-1 are nonterminals, which rules rewrite; NT..NT+P-1 are preterminals, which stand over one word.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, DTypeError, ShapeError

# Parsing with a dense product costs NT^2 N^3 + NT^3 N^2 whatever the rules are, so it wants most of the NT^3 there.
_DENSE_SHARE = 0.25
_DENSE_SYMBOLS = 128
# Matrix products have a number for each of the NT S^2 triples, rule or not: 4 MB are let pass, more only for rules.
_DENSE_TRIPLES = 1 << 20


class Grammar:
    """Binary rules parent -> left right over numbered symbols.

    Args:
        rules: (R, 3) integers: parent in 0..NT-1, left and right child in 0..NT+P-1, no rule twice.
        nonterminals: their names, or how many there are.
        preterminals: their names, or how many there are; preterminal p has symbol number NT + p.

    Any number of symbols and rules: nothing is stored for triples of symbols that are no rule. ``dense`` tells whether
    so many triples of nonterminals are rules that the kernels parse by matrix products, and ``complete`` whether all
    triples are rules, in order: rule (A S + l) S + r is A -> l r. Kernels need not look rules up then.
    """

    def __init__(
        self,
        rules: Tensor | Sequence[Sequence[int]],
        nonterminals: int | Sequence[str],
        preterminals: int | Sequence[str],
    ) -> None:
        self._names = tuple(_names(what, given) for what, given in (("N", nonterminals), ("P", preterminals)))
        table = torch.as_tensor(rules)
        if table.numel() == 0:
            table = table.reshape(0, 3).long()
        if table.dim() != 2 or table.shape[1] != 3:
            raise ShapeError("rules", "(R, 3)", tuple(table.shape), "one row (parent, left, right) for every rule")
        if table.is_floating_point() or table.is_complex() or table.dtype is torch.bool:
            raise DTypeError("rules", "integer symbol numbers", table.dtype, "convert them with .long()")
        self.rules = table.detach().to("cpu", torch.int64).clone()
        self._check()
        self.tables, self.num_pairs = self._tables()
        keys, order = self._key(self.rules).sort()
        self._sorted_keys = keys, order
        size = self.num_nonterminals * self.num_symbols**2
        self.complete = len(keys) == size and bool((order == torch.arange(size)).all())
        inner = int((self.rules[:, 1:] < self.num_nonterminals).all(1).sum())
        self.dense = (
            1 < self.num_nonterminals <= _DENSE_SYMBOLS
            and inner >= _DENSE_SHARE * self.num_nonterminals**3
            and size <= max(_DENSE_TRIPLES, self.num_rules / _DENSE_SHARE)
        )
        self.any_word: int | None = None  # the symbol that with_glue put over words of any kind

    def _check(self) -> None:
        nonterminals, symbols = self.num_nonterminals, self.num_symbols
        if self.num_preterminals == 0:
            raise ArgumentError("preterminals", "at least one", 0, "words have to stand under some symbol")
        limit = torch.tensor([nonterminals, symbols, symbols])
        bad = ((self.rules < 0) | (self.rules >= limit)).any(1)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise ArgumentError(
                "rules",
                f"parents in 0..{nonterminals - 1} and children in 0..{symbols - 1}",
                f"{self.rules[row].tolist()} in row {row}",
                "preterminals are numbered after the nonterminals and have no rules",
            )
        keys = self._key(self.rules)
        if keys.unique().numel() != keys.numel():
            order = keys.sort(stable=True)
            row = int(order.indices[1:][order.values[1:] == order.values[:-1]].min())
            rule = tuple(self.rules[row].tolist())
            raise ArgumentError(
                "rules", "each rule once", f"{rule} again in row {row}", "add up the scores of equal rules"
            )

    def _key(self, triples: Tensor) -> Tensor:
        s = self.num_symbols
        return (triples[..., 0] * s + triples[..., 1]) * s + triples[..., 2]

    @property
    def num_nonterminals(self) -> int:
        """NT."""
        return len(self._names[0])

    @property
    def num_preterminals(self) -> int:
        """P."""
        return len(self._names[1])

    @property
    def num_symbols(self) -> int:
        """S = NT + P."""
        return self.num_nonterminals + self.num_preterminals

    @property
    def num_rules(self) -> int:
        """R."""
        return self.rules.shape[0]

    @property
    def nonterminals(self) -> tuple[str, ...]:
        """NT names."""
        return self._names[0]

    @property
    def preterminals(self) -> tuple[str, ...]:
        """P names."""
        return self._names[1]

    @property
    def symbols(self) -> tuple[str, ...]:
        """S names by symbol number."""
        return self._names[0] + self._names[1]

    @cached_property
    def numbers(self) -> tuple[dict[str, int], dict[str, int]]:
        """Symbol numbers by name: of nonterminals, and of preterminals."""
        nonterminals = {name: i for i, name in enumerate(self.nonterminals)}
        return nonterminals, {name: i for i, name in enumerate(self.preterminals, self.num_nonterminals)}

    def _tables(self) -> tuple[Tensor, int]:
        """The rules by parent and by children in one int32 tensor, and the number of pairs Q.

        A pair is a left and a right child that some rule has; pairs are sorted, and rules keep their order everywhere:
        rules (R, 3); parent_start (NT + 1) into parent_rules (R); left_start (S + 1) into pairs by left child;
        pair_right (Q), the right child of each pair; pair_start (Q + 1) into pair_rules (R) and into pair_parents (R),
        their parents; rule_pair (R).
        """
        parent, left, right = self.rules.unbind(1)
        s = self.num_symbols
        pairs, rule_pair = torch.unique(left * s + right, return_inverse=True)
        by_pair = rule_pair.argsort(stable=True)

        def starts(keys: Tensor, size: int) -> Tensor:
            return torch.cat([keys.new_zeros(1), torch.bincount(keys, minlength=size).cumsum(0)])

        tables = (
            self.rules.flatten(),
            starts(parent, self.num_nonterminals),
            parent.argsort(stable=True),
            starts(pairs // s, s),
            pairs % s,
            starts(rule_pair, pairs.numel()),
            by_pair,
            parent[by_pair],
            rule_pair,
        )
        return torch.cat(tables).to(torch.int32), pairs.numel()

    def find(self, triples: Tensor) -> Tensor:
        """Rule numbers of (parent, left, right) (..., 3), -1 where there is no such rule."""
        keys, order = (x.to(triples.device) for x in self._sorted_keys)
        if keys.numel() == 0:
            return torch.full(triples.shape[:-1], -1, device=triples.device)
        wanted = self._key(triples)
        place = torch.searchsorted(keys, wanted).clamp(max=keys.numel() - 1)
        inside = ((triples >= 0) & (triples < self.num_symbols)).all(-1)
        return torch.where((keys[place] == wanted) & inside, order[place], -1)

    def with_glue(self) -> Grammar:
        """The grammar with one more nonterminal, GLUE, and one more preterminal, ANY, that together cover any words.

        Added at the end, for every symbol X including ANY: GLUE -> X GLUE, GLUE -> X ANY. A sequence of constituents
        ended by one word of any kind is a GLUE, so every sentence of two words or more has a parse once GLUE may be
        the root and ANY may stand over every word; :meth:`WeightedCFG.with_glue` adds their scores.
        """
        old, added = self.num_nonterminals, self.rules.clone()
        added[added >= old] += 1
        glue, word = old, self.num_symbols + 1
        others = torch.tensor([x for x in range(self.num_symbols + 2) if x != glue])
        glued = [
            torch.stack([torch.full_like(others, glue), others, torch.full_like(others, last)], 1)
            for last in (glue, word)
        ]
        names = (*self.nonterminals, _free("GLUE", self.symbols)), (*self.preterminals, _free("ANY", self.symbols))
        found = Grammar(torch.cat([added, *glued]), *names)
        found.any_word = word
        return found

    def __repr__(self) -> str:
        sizes = f"{self.num_rules} rules, {self.num_nonterminals} nonterminals, {self.num_preterminals} preterminals"
        return f"Grammar({sizes})"


def _names(kind: str, given: int | Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, int):
        return tuple(f"{kind}{i}" for i in range(given))
    return tuple(given)


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "'"
    return name
