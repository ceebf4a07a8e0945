"""The recurrence of weighted context-free grammars; ``structures/grammar.py`` states it."""

from __future__ import annotations

import torch
from torch import Tensor

from structlearn.semirings import NEG_INF, Semiring
from structlearn.structures.base import PAD
from structlearn.structures.rules import Grammar


def total(
    semiring: Semiring,
    grammar: Grammar,
    terms: Tensor,
    rules: Tensor,
    roots: Tensor,
    spans: Tensor,
    lengths: Tensor,
) -> Tensor:
    """The sum over all derivations, (width, B), for elements of the semiring and lengths (B,).

    Elements: terms (width, B, N, P), rules (width, 1 or B, R), roots (width, 1 or B, S) and spans (width, B, N, N, NT).
    Padded places must hold numbers; they do not change the result.
    """
    b, n = terms.shape[1:3]
    one = semiring.ones_like(terms.new_empty(b))
    if n == 0:
        return one
    device = terms.device
    parent, left, right = grammar.rules.to(device).unbind(1)
    nt = grammar.num_nonterminals
    zero = semiring.lift(terms.new_full((1,), NEG_INF))
    # by_width[w-1]: (width, B, N-w+1, P or NT), the constituents of w words by their first one.
    by_width = [terms]
    for w in range(2, n + 1):
        starts = n - w + 1
        found, used = [], []
        for one_left, one_right, cuts in (
            (True, True, [1] if w == 2 else []),
            (True, False, [1] if w > 2 else []),
            (False, True, [w - 1] if w > 2 else []),
            (False, False, list(range(2, w - 1))),
        ):
            ids = (((left >= nt) == one_left) & ((right >= nt) == one_right)).nonzero().flatten()
            if not cuts or not ids.numel():
                continue
            at_left, at_right = (
                x[ids] - (nt if one_word else 0) for x, one_word in ((left, one_left), (right, one_right))
            )
            a = torch.stack([by_width[u - 1][..., :starts, :][..., at_left] for u in cuts], -1)
            c = torch.stack([by_width[w - u - 1][..., u : u + starts, :][..., at_right] for u in cuts], -1)
            found.append(semiring.sum(semiring.times(a, c), -1))
            used.append(ids)
        made = _by_parent(semiring, found, used, rules, parent, nt, zero, (b, starts))
        by_width.append(semiring.times(made, spans.diagonal(w - 1, 2, 3).movedim(-1, 2)))
    roots = roots.expand(-1, b, -1)
    tops = [
        semiring.times(a[..., 0, :], roots[..., nt:] if w == 0 else roots[..., :nt]) for w, a in enumerate(by_width)
    ]
    none = zero.expand(semiring.width, b)
    whole = torch.stack([semiring.sum(top, -1) if top.shape[-1] else none for top in tops], -1)
    last = (lengths - 1).clamp(min=0).expand(whole.shape[:-1]).unsqueeze(-1)
    return torch.where(lengths > 0, whole.gather(-1, last).squeeze(-1), one)


def _by_parent(
    semiring: Semiring,
    found: list[Tensor],
    used: list[Tensor],
    rules: Tensor,
    parent: Tensor,
    nonterminals: int,
    zero: Tensor,
    shape: tuple[int, int],
) -> Tensor:
    """(+) over the rules of each nonterminal of x (x) rule, (width, B, starts, NT), rules in their own order."""
    if not found:
        return zero.view(-1, 1, 1, 1).expand(semiring.width, *shape, nonterminals)
    ids, order = torch.cat(used).sort()
    weighted = semiring.times(torch.cat(found, -1)[..., order], rules[..., ids].unsqueeze(2))
    counts = torch.bincount(parent[ids], minlength=nonterminals)
    by_parent = parent[ids].argsort(stable=True)
    rank = torch.arange(len(ids), device=ids.device) - (counts.cumsum(0) - counts)[parent[ids][by_parent]]
    place = torch.full((nonterminals, int(counts.max())), len(ids), device=ids.device)
    place[parent[ids][by_parent], rank] = by_parent
    padding = zero.view(-1, 1, 1, 1).expand(semiring.width, *shape, 1)
    return semiring.sum(torch.cat([weighted, padding], -1)[..., place], -1)


def score(
    grammar: Grammar,
    terms: Tensor,
    rules: Tensor,
    roots: Tensor,
    spans: Tensor,
    y: Tensor,
    mask: Tensor,
    lengths: Tensor,
) -> Tensor:
    """s(y) by look-ups for charts (..., B, N, N) that are derivations; rules (1 or B, R), roots (1 or B, S)."""
    b, n = terms.shape[:2]
    if n == 0:
        return terms.new_zeros(y.shape[:-2])
    zero = terms.new_zeros(())
    used = (y != PAD) & mask
    words = used.diagonal(0, -2, -1)
    inner = used & ~torch.eye(n, dtype=torch.bool, device=y.device)
    below = y.diagonal(0, -2, -1).masked_fill(~words, 0)
    picked = terms.expand(*below.shape, -1).gather(-1, below.unsqueeze(-1)).squeeze(-1)
    value = torch.where(words, picked, zero).sum(-1)
    if grammar.num_rules:
        rule = y.masked_fill(~inner, 0)
        row = (
            torch.arange(b, device=y.device)[:, None, None].expand_as(rule)
            if rules.shape[0] > 1
            else torch.zeros_like(rule)
        )
        parent = grammar.rules[:, 0].to(y.device)[rule]
        at_span = spans.expand(*parent.shape, -1).gather(-1, parent.unsqueeze(-1)).squeeze(-1)
        value = value + torch.where(inner, rules[row, rule] + at_span, zero).sum((-2, -1))
    last = (lengths - 1).clamp(min=0).expand(y.shape[:-2])[..., None]
    top = y[..., 0, :].gather(-1, last).squeeze(-1)
    single = lengths == 1
    parents = grammar.rules[:, 0].to(y.device)
    symbol = torch.where(single, top + grammar.num_nonterminals, 0)
    if grammar.num_rules:
        symbol = torch.where(single, symbol, parents[top.clamp(0, grammar.num_rules - 1)])
    symbol = symbol.clamp(0, grammar.num_symbols - 1)
    root = roots.expand(b, -1).expand(*symbol.shape, -1).gather(-1, symbol.unsqueeze(-1)).squeeze(-1)
    return value + torch.where(lengths > 0, root, zero)
