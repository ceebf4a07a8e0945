"""Charts: trees over n words as tensors (..., B, N, N) that hold something at every span of the tree, PAD elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from structlearn.errors import LabelError, ShapeError
from structlearn.structures import checks
from structlearn.structures.base import PAD
from structlearn.structures.rules import Grammar
from structlearn.trees import Tree


def span_mask(lengths: Tensor | None, batch: int, size: int, device: torch.device) -> Tensor:
    """(B, N, N), true at the spans i..j, i <= j, of each sentence."""
    last = checks.unpadded(lengths, batch, size, device)
    return last[:, None, :] & torch.ones((size, size), dtype=torch.bool, device=device).triu()


def check_trees(y: Tensor, mask: Tensor, labels: int) -> None:
    """What ``y`` holds inside ``mask`` must be one binary tree a sentence, with labels in 0..labels-1.

    2n-1 spans of n words of which no two cross are a binary tree, since no larger set of spans is without crossing.
    """
    if torch.compiler.is_compiling() or y.shape[-1] == 0:
        return
    used = (y != PAD) & mask
    wrong = used & ((y < 0) | (y >= labels))
    if bool(wrong.any()):
        raise checks.bad_label("y", y, wrong.nonzero()[0].tolist(), labels)
    # [k, j]: some span starts before k and ends at j; some span starts at k and ends after j.
    earlier = used.cumsum(-2) - used.long() > 0
    later = used.flip(-1).cumsum(-1).flip(-1) - used.long() > 0
    crossing = (earlier & later).triu().flatten(-2).any(-1)
    words = mask.diagonal(0, -2, -1).sum(-1)
    bad = crossing | (used.flatten(-2).sum(-1) != (2 * words - 1).clamp(min=0))
    if bool(bad.any()):
        row = bad.nonzero()[0].tolist()[-1]
        remedy = "label n words and the n-1 larger spans of one tree, -100 elsewhere"
        raise LabelError("y", "a binary tree", f"spans that are none in batch row {row}", remedy)


def tree_sizes(lengths: Tensor) -> Tensor:
    """Number of spans of any binary tree over n words, 2n - 1."""
    return (2 * lengths - 1).clamp(min=0)


def cells(y: Tensor, mask: Tensor, absent: int) -> Tensor:
    """Charts (..., B, N, N) as labels of all spans (..., B, N * N), ``absent`` where the tree has none, 0 if padded."""
    return torch.where(y == PAD, absent, y).masked_fill(~mask, 0).flatten(-2)


def left_branching(mask: Tensor) -> Tensor:
    """(B, N, N): the tree of every sentence whose right parts are single words, 0 on every span."""
    place = torch.arange(mask.shape[-1], device=mask.device)
    used = (place[:, None] == 0) | (place[:, None] == place)
    return torch.where(used & mask, 0, PAD)


def holds_tree(y: Tensor, lengths: Tensor) -> Tensor:
    """Whether charts (..., B, N, N) hold something over the whole sentence, (..., B); so do empty sentences."""
    if y.shape[-1] == 0:
        return torch.ones(y.shape[:-2], dtype=torch.bool, device=y.device)
    last = (lengths - 1).clamp(min=0).expand(y.shape[:-2]).unsqueeze(-1)
    return (y[..., 0, :].gather(-1, last).squeeze(-1) != PAD) | (lengths == 0)


def spans_of(chart: list[list[int]], words: int) -> list[tuple[int, int]]:
    """The spans of the tree in ``chart`` over ``words`` words, each after its parts."""
    found, stack = [], [(0, words - 1)] if words else []
    while stack:
        i, j = stack.pop()
        found.append((i, j))
        if i < j:
            cuts = (k for k in range(i, j) if chart[i][k] != PAD and chart[k + 1][j] != PAD)
            if (k := next(cuts, None)) is None:
                remedy = "label n words and the n-1 larger spans of one tree, -100 elsewhere"
                raise LabelError("y", "a binary tree", f"no two labelled parts of span {(i, j)}", remedy)
            stack += [(i, k), (k + 1, j)]
    return found[::-1]


def trees(
    y: Tensor, mask: Tensor, name: Callable[[int, int, int], str], words: Sequence[Sequence[str]] | None
) -> list[Tree | None]:
    """The charts (B, N, N) as trees: every span is a node called name(entry, i, j), with the word below a single one.

    None for a sentence without words or without a tree.
    """
    checks.check_label_tensor("y", y, tuple(mask.shape), y.device)
    if y.dim() != 3:
        raise ShapeError("y", "(B, N, N), one tree a sentence", tuple(y.shape), "pass y[k] of a list of best trees")
    found: list[Tree | None] = []
    for b, (chart, n) in enumerate(zip(y.tolist(), mask.diagonal(0, -2, -1).sum(-1).tolist(), strict=True)):
        if n == 0 or chart[0][n - 1] == PAD:
            found.append(None)
            continue
        if words is not None and len(words[b]) != n:
            raise ShapeError("words", f"{n} words for batch row {b}", len(words[b]), "give the words that were scored")
        nodes: dict[tuple[int, int], Tree] = {}
        for i, j in spans_of(chart, n):
            if i == j:
                below: str | list[Tree] = str(i) if words is None else words[b][i]
            else:
                k = next(k for k in range(i, j) if (i, k) in nodes and (k + 1, j) in nodes)
                below = [nodes.pop((i, k)), nodes.pop((k + 1, j))]
            nodes[i, j] = Tree(name(chart[i][j], i, j), below)
        found.append(nodes[0, n - 1])
    return found


def rules_of(symbols: Tensor, words: Tensor, grammar: Grammar) -> Tensor:
    """The charts of derivations, given as nonterminals (..., N, N) over i < j and preterminals (..., N) over words."""
    n = symbols.shape[-1]
    nt = grammar.num_nonterminals
    diagonal = torch.eye(n, dtype=torch.bool, device=symbols.device)
    over = torch.where(diagonal, torch.where(words == PAD, PAD, words + nt)[..., None], symbols)
    left, right = _children(over)
    found = grammar.find(torch.stack([symbols, left, right], -1))
    return torch.where(diagonal, words[..., None], torch.where((symbols == PAD) | (found < 0), PAD, found))


def _children(over: Tensor) -> tuple[Tensor, Tensor]:
    """What the parts of every i..j hold at its first cut into two that hold something, PAD if there is none."""
    n = over.shape[-1]
    if n == 0:
        return over, over
    beyond = torch.full_like(over[..., :1, :], PAD)
    below = torch.cat([over[..., 1:, :], beyond], -2)  # [k, j]: what k+1..j holds
    place = torch.arange(n, device=over.device)
    inside = (place[:, None, None] <= place) & (place < place[:, None])  # [i, j, k]: i <= k < j
    cut = (over != PAD)[..., :, None, :] & (below.mT != PAD)[..., None, :, :] & inside
    first = cut.to(torch.uint8).argmax(-1, keepdim=True)
    there = cut.any(-1)
    left = over[..., :, None, :].expand(cut.shape).gather(-1, first).squeeze(-1)
    right = below.mT[..., None, :, :].expand(cut.shape).gather(-1, first).squeeze(-1)
    return left.masked_fill(~there, PAD), right.masked_fill(~there, PAD)


def check_derivations(y: Tensor, mask: Tensor, grammar: Grammar) -> None:
    """What ``y`` holds inside ``mask`` must be one derivation of the grammar a sentence."""
    if torch.compiler.is_compiling() or y.shape[-1] == 0:
        return
    diagonal = torch.eye(y.shape[-1], dtype=torch.bool, device=y.device)
    words = torch.where(diagonal, y, PAD)
    check_trees(y.masked_fill(~mask, PAD), mask, max(grammar.num_rules, grammar.num_preterminals))
    for chart, size, where in ((words, grammar.num_preterminals, diagonal), (y, grammar.num_rules, ~diagonal)):
        wrong = (chart != PAD) & (chart >= size) & mask & where
        if bool(wrong.any()):
            raise checks.bad_label("y", y, wrong.nonzero()[0].tolist(), size)
    inner = (y != PAD) & mask & ~diagonal
    if not bool(inner.any()):
        return
    rule = grammar.rules.to(y.device)[y.masked_fill(~inner, 0)]
    symbols = torch.where(inner, rule[..., 0], torch.where(diagonal & mask, y + grammar.num_nonterminals, PAD))
    left, right = _children(symbols)
    wrong = inner & ((left != rule[..., 1]) | (right != rule[..., 2]))
    if bool(wrong.any()):
        raise not_derived(y, wrong.nonzero()[0].tolist())


def not_derived(y: Tensor, place: Sequence[int]) -> LabelError:
    """The error for a rule whose children are not what stands below it."""
    got = f"rule {int(y[tuple(place)])} over other children at {tuple(place)}"
    return LabelError("y", "a derivation of the grammar", got, "each rule's children must be the symbols below it")


def from_trees(given: Sequence[Tree], grammar: Grammar, size: int) -> Tensor:
    """Trees in normal form over at most ``size`` words, whose labels are the grammar's names, as charts (B, N, N)."""

    def symbol(node: Tree, b: int) -> int:
        number = grammar.numbers[node.is_preterminal].get(node.label)
        if number is None:
            got = f"{node.label!r} in tree {b}"
            raise LabelError("trees", "labels of the grammar", got, "extract it from these trees")
        return number

    words: list[tuple[int, ...]] = []
    derived: list[tuple[int, ...]] = []
    for b, tree in enumerate(given):
        spans = tree.spans(preterminals=True)
        if spans[0].end >= size:
            got = f"{spans[0].end + 1} in tree {b}"
            raise ShapeError("trees", f"at most {size} words", got, "make the chart larger")
        for node, (i, j, label) in zip(tree.preorder(), spans, strict=True):
            number, below = symbol(node, b), [symbol(child, b) for child in node.subtrees]
            if not below:
                words.append((b, i, j, number - grammar.num_nonterminals))
            elif len(below) == 1:
                got = f"{label!r} as one of several over words {i}..{j} of tree {b}"
                raise LabelError("trees", "one symbol over every span", got, "join unary chains, as to_cnf does")
            else:
                derived.append((b, i, j, number, *(below if len(below) == 2 else (PAD, PAD))))
    over = torch.tensor(words, dtype=torch.int64).view(-1, 4)
    inner = torch.tensor(derived, dtype=torch.int64).view(-1, 6)
    rule = grammar.find(inner[:, 3:])
    if bool((rule < 0).any()):
        b, i, j, parent, *_ = inner[rule < 0][0].tolist()
        got = f"no rule for {grammar.nonterminals[parent]!r} over words {i}..{j} of tree {b}"
        raise LabelError("trees", "binary trees that the grammar derives", got, "binarise them, or add the rule")
    y = torch.full((len(given), size, size), PAD)
    y[over[:, :3].unbind(1)] = over[:, 3]
    y[inner[:, :3].unbind(1)] = rule
    return y
