"""The table of structures. An entry says how to make one and how to list its outputs; the rest of this folder follows.

To add a structure: its enumeration below ``tests/oracles/`` and one :class:`Entry` in ``ENTRIES``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from oracles import Row
from oracles import alignment as alignment_oracle
from oracles import categorical as categorical_oracle
from oracles import chain as chain_oracle
from oracles import grammar as grammar_oracle
from oracles import second_order as second_order_oracle
from oracles import semimarkov as semimarkov_oracle
from oracles import span_tree as span_tree_oracle
from oracles.exact import Space
from torch import Tensor

import structlearn as sl
from structlearn.errors import BackendError

PAD = -100
Length = int | tuple[int, int]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Size:
    """``lengths``: one for each row, or None for a batch of ``B`` full rows; M and W where a structure has such."""

    name: str
    N: int
    lengths: tuple[Length, ...] | None
    B: int = 2
    C: int = 2

    @property
    def batch(self) -> int:
        return self.B if self.lengths is None else len(self.lengths)


def _sizes(n: int, c: int) -> tuple[Size, ...]:
    return (
        Size("ragged", n, (n, n - 1, 1, 0, n), C=c),
        Size("full", n, None, C=c),
        Size("one position", 1, (1, 0, 1), C=c),
        Size("no position", 0, None, C=c),
        Size("no row", n, (), C=c),
        Size("all empty", n, (0, 0, 0), C=c),
        Size("mostly empty", n, (0, 0, 0, 0, n - 1, 0, 0, 0), C=c),
        Size("one label", n, (n, 1, n - 1), C=1),
    )


def _pair_sizes(n: int, m: int) -> tuple[Size, ...]:
    return (
        Size("ragged", n, ((n, m), (n - 1, m), (1, 2), (0, m - 1), (n, 0), (0, 0)), C=m),
        Size("full", n, None, C=m),
        Size("one position", 1, ((1, 1), (0, 1), (1, 0)), C=1),
        Size("no position", 0, None, C=m),
        Size("no position of y", n, None, C=0),
        Size("nothing", 0, None, C=0),
        Size("no row", n, (), C=m),
        Size("mostly empty", n, ((0, 0), (0, 0), (2, m), (0, 0)), C=m),
    )


@dataclass(frozen=True)
class Entry:
    """A structure in the table.

    ``shapes(size)`` names the fields, those in ``shared`` without a batch axis, the others with it first;
    ``padding(size, b length)`` is true at the places of a row's fields that are never read; ``build`` takes the
    potentials, lengths in any form that users may give, and a backend; ``oracle(arrays, lengths)`` lists the outputs of
    each row in the order of ties; ``write`` gives an output of the oracle in the form of the structure.
    """

    name: str
    shapes: Callable[[Size], Shapes]
    build: Callable[..., sl.structures.Structure]
    oracle: Callable[..., list[Row]]
    write: Callable[[Any, Size], Any]
    padding: Callable[[Size, Any], dict[str, np.ndarray]]
    sizes: tuple[Size, ...]
    shared: tuple[str, ...] = ()
    order_by_score: bool = False  # the order of ties depends on the potentials
    gold_is_padded: bool = True
    pairs: bool = False  # lengths are pairs, and size.C is the second of both sizes
    labelled: dict[str, tuple[int, ...]] = field(default_factory=dict)  # axes of each field that run over labels

    def __str__(self) -> str:
        return self.name

    @functools.cached_property
    def engines(self) -> tuple[str, ...]:
        """Those of this process that the structure has."""
        size = self.sizes[0]
        potentials = {name: torch.zeros(shape) for name, shape in self.shapes(size).items()}
        found = []
        for engine in sl.ops.backends():
            try:
                self.build(potentials, self.lengths_of(size), engine)
            except BackendError:
                continue
            found.append(engine)
        return tuple(found)

    def full_length(self, size: Size) -> Length:
        return (size.N, size.C) if self.pairs else size.N

    def lengths_of(self, size: Size) -> tuple[Length, ...]:
        return (self.full_length(size),) * size.B if size.lengths is None else size.lengths

    def rows(self, arrays: dict[str, np.ndarray], size: Size, length: Length) -> Row:
        """The oracle's answer for one row of potentials (without batch axis)."""
        batched = {name: x if name in self.shared else x[None] for name, x in arrays.items()}
        return self.oracle(batched, (length,), size)[0]

    def space(self, size: Size, length: Length) -> Space:
        return _space(self, size, length)

    def order(self, arrays: dict[str, np.ndarray], size: Size, length: Length) -> list[int]:
        """The numbers of the outputs of ``space`` in the order of ties."""
        space = self.space(size, length)
        if not self.order_by_score:
            return list(range(len(space.outputs)))
        with np.errstate(invalid="ignore"):
            row = self.rows(arrays, size, length)
        return [space.number[flat(self.write(y, size))] for y in row.outputs]


# Entries hold functions: they compare by name alone.
Entry.__hash__ = lambda self: hash(self.name)  # type: ignore[method-assign]
Entry.__eq__ = lambda self, other: self is other  # type: ignore[method-assign]


def flat(y: Any) -> tuple[int, ...]:
    """A nested list of numbers as one tuple."""
    return tuple(np.asarray(y, dtype=np.int64).ravel().tolist())


@functools.lru_cache(maxsize=512)
def _space(entry: Entry, size: Size, length: Length) -> Space:
    shapes = {name: s if name in entry.shared else s[1:] for name, s in entry.shapes(size).items()}
    row = entry.rows({name: np.zeros(s) for name, s in shapes.items()}, size, length)
    return Space([flat(entry.write(y, size)) for y in row.outputs], row.parts, shapes)


def _line(y: Sequence[int], size: Size) -> list[int]:
    return [*y, *[PAD] * (size.N - len(y))]


def _behind(shape: tuple[int, ...], *limits: int | None) -> np.ndarray:
    """True at or beyond the limit of any axis."""
    found = np.zeros(shape, dtype=bool)
    for axis, limit in enumerate(limits):
        if limit is not None:
            found |= (np.arange(shape[axis]) >= limit).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return found


def _chain(name: str, steps: bool, edges: tuple[str, ...], c: int = 2) -> Entry:
    def shapes(size: Size) -> Shapes:
        b, n, c = size.batch, size.N, size.C
        transition = (b, max(n - 1, 0), c, c) if steps else (c, c)
        return {"unary": (b, n, c), "transition": transition} | dict.fromkeys(edges, (c,))

    def padding(size: Size, n: int) -> dict[str, np.ndarray]:
        row = {"unary": _behind((size.N, size.C), n)}
        if steps:
            row["transition"] = _behind((max(size.N - 1, 0), size.C, size.C), max(n - 1, 0))
        return row

    def build(potentials: dict[str, Tensor], lengths: Any, backend: str = "auto") -> sl.LinearChain:
        return sl.LinearChain(**potentials, lengths=lengths, backend=backend)

    return Entry(
        name,
        shapes,
        build,
        lambda arrays, lengths, size: chain_oracle.rows(**arrays, lengths=lengths),
        _line,
        padding,
        _sizes(4, c),
        shared=edges if steps else ("transition", *edges),
        labelled={"unary": (-1,), "transition": (-2, -1), "start": (-1,), "end": (-1,)},
    )


def _second_order() -> Entry:
    def build(potentials: dict[str, Tensor], lengths: Any, backend: str = "auto") -> sl.structures.Structure:
        return sl.SecondOrderChain(**potentials, lengths=lengths, backend=backend)

    def shapes(size: Size) -> Shapes:
        c = size.C
        return {"unary": (size.batch, size.N, c), "transition": (c, c), "second": (c, c, c), "start": (c,), "end": (c,)}

    return Entry(
        "SecondOrderChain",
        shapes,
        build,
        lambda arrays, lengths, size: second_order_oracle.rows(**arrays, lengths=lengths),
        _line,
        lambda size, n: {"unary": _behind((size.N, size.C), n)},
        _sizes(4, 2),
        shared=("transition", "second", "start", "end"),
        labelled={"unary": (-1,), "transition": (-2, -1), "second": (-3, -2, -1), "start": (-1,), "end": (-1,)},
    )


def _semimarkov(name: str, steps: bool, width: int) -> Entry:
    def shapes(size: Size) -> Shapes:
        b, n, c = size.batch, size.N, size.C
        return {"segments": (b, n, width, c), "transition": (b, max(n - 1, 0), c, c) if steps else (c, c)}

    def padding(size: Size, n: int) -> dict[str, np.ndarray]:
        last = np.arange(size.N)[:, None, None] + np.arange(width)[:, None]
        row = {"segments": np.broadcast_to(last >= n, (size.N, width, size.C))}
        if steps:
            row["transition"] = _behind((max(size.N - 1, 0), size.C, size.C), max(n - 1, 0))
        return row

    def build(potentials: dict[str, Tensor], lengths: Any, backend: str = "auto") -> sl.SemiMarkov:
        return sl.SemiMarkov(**potentials, lengths=lengths, backend=backend)

    return Entry(
        name,
        shapes,
        build,
        lambda arrays, lengths, size: semimarkov_oracle.rows(**arrays, lengths=lengths),
        _line,
        padding,
        _sizes(4, 2),
        shared=() if steps else ("transition",),
    )


def _span_tree() -> Entry:
    def padding(size: Size, n: int) -> dict[str, np.ndarray]:
        shape = (size.N, size.N, size.C)
        below = np.arange(size.N)[:, None] > np.arange(size.N)
        return {"spans": _behind(shape, n, n) | below[..., None]}

    def build(potentials: dict[str, Tensor], lengths: Any, backend: str = "auto") -> sl.SpanTree:
        return sl.SpanTree(**potentials, lengths=lengths, backend=backend)

    return Entry(
        "SpanTree",
        lambda size: {"spans": (size.batch, size.N, size.N, size.C)},
        build,
        lambda arrays, lengths, size: span_tree_oracle.rows(**arrays, lengths=lengths),
        lambda y, size: span_tree_oracle.chart(y, size.N),
        padding,
        _sizes(4, 2),
        order_by_score=True,
        labelled={"spans": (-1,)},
    )


def _grammar(name: str, nt: int, p: int, share: float, own: bool, spans: bool) -> Entry:
    g = torch.Generator().manual_seed(5)
    triples = torch.tensor(list(itertools.product(range(nt), range(nt + p), range(nt + p))))
    rules = triples[torch.rand(len(triples), generator=g) < share]
    grammar = sl.Grammar(rules, nt, p)
    count = len(rules)

    def shapes(size: Size) -> Shapes:
        b, n = size.batch, size.N
        first = (b,) if own else ()
        found = {"terms": (b, n, p), "rule_scores": (*first, count), "root_scores": (*first, nt + p)}
        return found | ({"spans": (b, n, n, nt)} if spans else {})

    def padding(size: Size, n: int) -> dict[str, np.ndarray]:
        row = {"terms": _behind((size.N, p), n)}
        if spans:
            upper = np.arange(size.N)[:, None] < np.arange(size.N)
            row["spans"] = _behind((size.N, size.N, nt), n, n) | ~upper[..., None]
        return row

    def build(potentials: dict[str, Tensor], lengths: Any, backend: str = "auto") -> sl.WeightedCFG:
        return sl.WeightedCFG(grammar, **potentials, lengths=lengths, backend=backend)  # type: ignore[arg-type]

    return Entry(
        name,
        shapes,
        build,
        lambda arrays, lengths, size: grammar_oracle.rows(rules.tolist(), nt, **arrays, lengths=lengths),
        lambda y, size: span_tree_oracle.chart(y, size.N),
        padding,
        tuple(s for s in _sizes(3, 2) if s.name != "one label"),
        shared=() if own else ("rule_scores", "root_scores"),
        order_by_score=True,
    )


def _alignment(mode: str, affine: bool) -> Entry:
    def shapes(size: Size) -> Shapes:
        b, n, m = size.batch, size.N, size.C
        found = {"match": (b, n, m), "gap_x": (b, n), "gap_y": (b, m)}
        return found | ({"open_x": (b, n), "open_y": (b, m)} if affine else {})

    def padding(size: Size, pair: tuple[int, int]) -> dict[str, np.ndarray]:
        n, m = pair
        row = {"match": _behind((size.N, size.C), n, m), "gap_x": _behind((size.N,), n), "gap_y": _behind((size.C,), m)}
        return row | ({"open_x": row["gap_x"], "open_y": row["gap_y"]} if affine else {})

    def build(potentials: dict[str, Tensor], lengths: Any, backend: str = "auto") -> sl.Alignment:
        x, y = (None, None) if lengths is None else _both(lengths)
        return sl.Alignment(
            potentials["match"],
            gap=(potentials["gap_x"], potentials["gap_y"]),
            gap_open=(potentials["open_x"], potentials["open_y"]) if affine else None,
            mode=mode,  # type: ignore[arg-type]
            x_lengths=x,
            y_lengths=y,
            backend=backend,
        )

    def oracle(arrays: dict[str, np.ndarray], lengths: Any, size: Size) -> list[Row]:
        both = [pair[0] for pair in lengths], [pair[1] for pair in lengths]
        return alignment_oracle.rows(**arrays, mode=mode, lengths=both)

    return Entry(
        f"Alignment-{mode}-{'affine' if affine else 'linear'}",
        shapes,
        build,
        oracle,
        lambda y, size: [*y, *[PAD] * (size.N + size.C - len(y))],
        padding,
        _pair_sizes(3, 3),
        pairs=True,
    )


def _both(lengths: Any) -> tuple[Any, Any]:
    """Lengths of pairs in any form, (B, 2), as those of x and those of y in the same form."""
    if isinstance(lengths, Tensor):
        return lengths[:, 0], lengths[:, 1]
    kind = type(lengths)
    return kind(pair[0] for pair in lengths), kind(pair[1] for pair in lengths)


def _categorical() -> Entry:
    def build(potentials: dict[str, Tensor], lengths: Any, backend: str = "auto") -> sl.Categorical:
        return sl.Categorical(**potentials, backend=backend)

    return Entry(
        "Categorical",
        lambda size: {"scores": (size.batch, size.N)},
        build,
        lambda arrays, lengths, size: categorical_oracle.rows(**arrays),
        lambda y, size: y[0],
        lambda size, n: {"scores": np.zeros((size.N,), dtype=bool)},
        (Size("full", 5, None, B=4), Size("one class", 1, None), Size("no row", 3, None, B=0)),
        labelled={"scores": (-1,)},
        gold_is_padded=False,
    )


def _candidates() -> Entry:
    def build(potentials: dict[str, Tensor], lengths: Any, backend: str = "auto") -> sl.Candidates:
        scores = potentials["scores"]
        n = [scores.shape[1]] * scores.shape[0] if lengths is None else lengths
        mask = torch.arange(scores.shape[1]) < torch.as_tensor(n, dtype=torch.int64)[:, None]
        return sl.Candidates(scores, mask=mask, backend=backend)

    def oracle(arrays: dict[str, np.ndarray], lengths: Any, size: Size) -> list[Row]:
        rows = categorical_oracle.rows(**arrays)
        return [Row(r.outputs[:n], r.parts[:n], r.fields) for r, n in zip(rows, lengths, strict=True)]

    return Entry(
        "Candidates",
        lambda size: {"scores": (size.batch, size.N)},
        build,
        oracle,
        lambda y, size: y[0],
        lambda size, n: {"scores": _behind((size.N,), n)},
        (Size("ragged", 5, (5, 4, 1, 3)), Size("one class", 1, None), Size("no row", 3, ()), Size("none", 3, (0, 2))),
        gold_is_padded=False,
    )


ENTRIES: tuple[Entry, ...] = (
    _chain("LinearChain", False, (), 3),
    _chain("LinearChain-edges", False, ("start", "end")),
    _chain("LinearChain-steps", True, ("start",)),
    _second_order(),
    _semimarkov("SemiMarkov", False, 3),
    _semimarkov("SemiMarkov-steps", True, 2),
    _span_tree(),
    _grammar("WeightedCFG", 2, 2, 1.0, False, False),
    _grammar("WeightedCFG-own", 2, 2, 0.6, True, False),
    _grammar("WeightedCFG-spans", 3, 2, 0.4, False, True),
    *(_alignment(mode, affine) for mode in ("global", "local", "semiglobal") for affine in (False, True)),
    _categorical(),
    _candidates(),
)
