"""Calls that together reach the C++ kernels of every structure, on random instances: for faults and sanitizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import structlearn as sl
from structlearn.errors import StructLearnError
from structlearn.ops import chain_count
from structlearn.reranking import TreeKernel
from structlearn.structures.counting import Counter
from structlearn.trees import Tree

Call = Callable[[], list[Tensor]]


class Instances:
    """Random structures of one seed. ``size`` scales their sizes; the odd values are ties, -inf and huge numbers."""

    def __init__(self, seed: int, size: int = 1, odd: bool = False) -> None:
        self._draw = torch.Generator().manual_seed(seed)
        self._seed, self._size, self._odd = seed, size, odd
        self.dtype = (torch.float32, torch.float64)[self.integer(0, 1)]

    def integer(self, least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=self._draw))

    def length(self, least: int, most: int) -> int:
        return self.integer(least, most) * self._size

    def scores(self, *shape: int) -> Tensor:
        x = torch.randn(shape, dtype=self.dtype, generator=self._draw)
        if self._odd:
            kind = self.integer(0, 5)
            if kind == 0:
                x = x.round()
            elif kind == 1:
                x = x * 1e4
            elif kind in (2, 3):
                mask = torch.rand(shape, generator=self._draw) < 0.2
                x = x.masked_fill(mask, float("-inf") if kind == 2 else torch.finfo(self.dtype).min)
            if self.integer(0, 2) == 0 and x.dim() > 1:  # with gaps between rows
                x = torch.stack([x, x.new_full(x.shape, float("nan"))], 1)[:, 0]
        return x

    def lengths(self, b: int, n: int) -> Tensor | None:
        return None if self.integer(0, 2) == 0 else torch.randint(0, n + 1, (b,), generator=self._draw)

    def chain(self) -> tuple[dict[str, Tensor], Callable[..., Any]]:
        b, n, c = self.length(1, 9), self.length(1, 9), self.integer(1, 20)
        given = {"unary": self.scores(b, n, c), "transition": self.scores(c, c)}
        if self.integer(0, 3) == 0:
            given["transition"] = self.scores(b, n - 1, c, c)
        if self.integer(0, 1):
            given |= {"start": self.scores(c), "end": self.scores(c)}
        lengths = self.lengths(b, n)
        return given, lambda **x: sl.LinearChain(**x, lengths=lengths, backend="cpu")

    def semimarkov(self) -> tuple[dict[str, Tensor], Callable[..., Any]]:
        b, n, w, c = self.length(1, 6), self.length(1, 7), self.integer(1, 5), self.integer(1, 9)
        lengths = self.lengths(b, n)
        given = {"segments": self.scores(b, n, min(w, n), c), "transition": self.scores(c, c)}
        return given, lambda **x: sl.SemiMarkov(**x, lengths=lengths, backend="cpu")

    def trees(self) -> tuple[dict[str, Tensor], Callable[..., Any]]:
        b, n = self.length(1, 9), self.length(1, 6)
        lengths = self.lengths(b, n)
        return {"spans": self.scores(b, n, n, self.integer(1, 6))}, lambda **x: sl.SpanTree(
            **x, lengths=lengths, backend="cpu"
        )

    def grammar(self) -> tuple[dict[str, Tensor], Callable[..., Any]]:
        b, n, nt, p = self.integer(1, 6), self.length(1, 6), self.integer(1, 5), self.integer(1, 4)
        share = (0.1, 0.6, 1.0)[self.integer(0, 2)]
        every = torch.cartesian_prod(torch.arange(nt), torch.arange(nt + p), torch.arange(nt + p))
        rules = every[torch.rand(len(every), generator=self._draw) <= share]
        grammar = sl.Grammar(rules if len(rules) else every[:1], nonterminals=nt, preterminals=p)
        given = {"terms": self.scores(b, n, p), "root_scores": self.scores(nt)}
        given["rule_scores"] = self.scores(*([b] if self.integer(0, 2) == 0 else []), grammar.num_rules)
        if self.integer(0, 1):
            given["spans"] = self.scores(b, n, n, nt)
        lengths = self.lengths(b, n)
        return given, lambda **x: sl.WeightedCFG(grammar, **x, lengths=lengths, backend="cpu")

    def alignment(self) -> tuple[dict[str, Tensor], Callable[..., Any]]:
        b, n, m = self.length(1, 5), self.length(1, 12), self.length(1, 12)
        given = {"match": self.scores(b, n, m), "gap": self.scores(b)}
        if self.integer(0, 1):
            given["gap_open"] = self.scores(b)
        options: dict[str, Any] = {
            "mode": ("global", "local")[self.integer(0, 1)],
            "x_lengths": self.lengths(b, n),
            "y_lengths": self.lengths(b, m),
        }
        return given, lambda **x: sl.Alignment(**x, **options, backend="cpu")

    def calls(self) -> dict[str, Call]:
        """Every query of every structure, each from the scores on."""
        found: dict[str, Call] = {}
        for kind in (self.chain, self.semimarkov, self.trees, self.grammar, self.alignment):
            given, make = kind()
            for name, call in queries(given, make, self._seed).items():
                found[f"{kind.__name__} {name}"] = call
        found["chain search"] = self._search()
        found["tree kernel"] = self._tree_kernel()
        return found

    def _search(self) -> Call:
        b, n, c = self.length(1, 5), self.length(1, 9), self.integer(1, 6)
        args = self.scores(b, n, c), self.scores(c, c), None, None, None
        gold = torch.randint(0, c, (b, n), generator=self._draw)
        levels = torch.linspace(0, 1, n + 1, dtype=self.dtype).expand(b, n + 1)
        score = sl.LinearChain(*args[:2]).score(gold)
        return lambda: list(chain_count.search(*args, gold, None, None, levels, score, True, False, 8))

    def _tree_kernel(self) -> Call:
        def tree(depth: int) -> Tree:
            if depth == 0 or self.integer(0, 3) == 0:
                return Tree("w", ["ab"[self.integer(0, 1)]])
            return Tree("ST"[self.integer(0, 1)], [tree(depth - 1) for _ in range(self.integer(1, 3))])

        trees = [tree(5) for _ in range(self.length(2, 5))]
        return lambda: [
            torch.as_tensor(TreeKernel(0.5)(trees, trees)),
            torch.as_tensor(TreeKernel(0.5)(trees, trees[:2])),
        ]


def queries(given: dict[str, Tensor], make: Callable[..., Any], seed: int) -> dict[str, Call]:
    """What can be asked of one instance. Scores need not allow any output."""

    def tensors(x: Any) -> list[Tensor]:
        return [x] if isinstance(x, Tensor) else [t for part in x if part is not None for t in tensors(part)]

    def gradient(query: Callable[[Any], Tensor]) -> Call:
        def call() -> list[Tensor]:
            leaves = {name: x.detach().requires_grad_() for name, x in given.items()}
            value = query(make(**leaves))
            weight = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).view(value.shape)
            found = torch.autograd.grad((value * weight).sum(), list(leaves.values()), allow_unused=True)
            return [value.detach(), *(x for x in found if x is not None)]

        return call

    def plain(query: Callable[[Any], Any]) -> Call:
        def call() -> list[Tensor]:
            with torch.no_grad():
                return tensors(query(make(**given)))

        return call

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def counted(s: Any) -> Any:
        field, x = next(iter(s.potentials.items()))
        steps = (torch.rand(x.shape, generator=generator()) < 0.3).long()
        size = sum(x.shape[1:3]) + 1
        table = torch.ones(x.shape[0], size, dtype=x.dtype)
        return s.best_by_count(Counter(({field: steps},), (size,)), table, table).value

    ones = {name: torch.zeros_like(x) for name, x in given.items()}

    def output() -> Any:
        with torch.no_grad():
            return make(**ones).sample(1, generator())[0]

    calls = {
        "best": plain(lambda s: s._best()),
        "best of one": lambda: [make(**ones).argmax()],
        "max": gradient(lambda s: s.max()),
        "log z": gradient(lambda s: s.log_partition()),
        "log z and marginals": plain(lambda s: s.log_partition_and_marginals()),
        "entropy": gradient(lambda s: s.entropy()),
        "k best": plain(lambda s: s.topk(3)),
        "samples": plain(lambda s: s.sample(2, generator())),
        "counts": plain(counted),
    }
    y = output()
    return calls | {"score": gradient(lambda s: s.score(y)), "difference": gradient(lambda s: s.difference(y, y))}


def outcome(call: Call) -> list[Tensor] | str:
    """What a call gives: tensors, or the words in which it refuses, as where a grammar has no derivation."""
    try:
        return call()
    except MemoryError:
        raise
    except StructLearnError as error:
        return str(error)


def equal(a: list[Tensor] | str, b: list[Tensor] | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return len(a) == len(b) and all(
        torch.allclose(x, y, rtol=1e-4, atol=1e-4, equal_nan=True) for x, y in zip(a, b, strict=True)
    )
