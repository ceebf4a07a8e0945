"""What an entry of the table is tried on: kinds of scores, padding, tensors and lengths, drawn to cover every pair."""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from oracles.exact import Exact
from torch import Tensor

from .structures import ENTRIES, Entry, Size

NEG_INF = float("-inf")
CASES = int(os.environ.get("STRUCTLEARN_CASES", "0"))  # random cases beyond those that cover every pair


# Scores. Each kind takes (generator, entry, size, dtype) and gives potentials without padding in float64; what is
# drawn lies on a grid of 1/64, so that sums are exact in float32 and equal scores are equal in every engine.


def _draw(g: torch.Generator, entry: Entry, size: Size, spread: float = 2.0) -> dict[str, Tensor]:
    def grid(shape: tuple[int, ...]) -> Tensor:
        return (torch.randn(shape, generator=g, dtype=torch.float64) * spread * 64).round() / 64

    return {name: grid(shape) for name, shape in entry.shapes(size).items()}


def _normal(g: torch.Generator, entry: Entry, size: Size, dtype: torch.dtype) -> dict[str, Tensor]:
    return _draw(g, entry, size)


def _ties(g: torch.Generator, entry: Entry, size: Size, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.clamp(-1, 1).round() for name, x in _draw(g, entry, size, 0.6).items()}


def _equal(g: torch.Generator, entry: Entry, size: Size, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.full_like(x, 0.5) for name, x in _draw(g, entry, size).items()}


def _offset(by: str) -> Callable[..., dict[str, Tensor]]:
    """Scores around offsets of up to 1e4: one for each field, row or first position."""

    def draw(g: torch.Generator, entry: Entry, size: Size, dtype: torch.dtype) -> dict[str, Tensor]:
        drawn = _draw(g, entry, size)
        for name, x in drawn.items():
            axes = {"field": 0, "row": 1, "position": 2}[by]
            axes = min(axes, x.dim()) - (name in entry.shared)
            shape = [n if axis < axes else 1 for axis, n in enumerate(x.shape)]
            x += torch.randint(-10_000, 10_001, shape, generator=g)
        return drawn

    return draw


def _scaled(scale: float) -> Callable[..., dict[str, Tensor]]:
    def draw(g: torch.Generator, entry: Entry, size: Size, dtype: torch.dtype) -> dict[str, Tensor]:
        return {name: x * scale / 2 for name, x in _draw(g, entry, size).items()}

    return draw


def _huge(g: torch.Generator, entry: Entry, size: Size, dtype: torch.dtype) -> dict[str, Tensor]:
    """|s(y)| up to a quarter of what the dtype holds: an output has at most 12 parts here."""
    limit = torch.finfo(dtype).max / 4 / 12
    return {
        name: (torch.rand(x.shape, generator=g, dtype=torch.float64) * 2 - 1) * limit
        for name, x in _draw(g, entry, size).items()
    }


def _masked(value: float | None, share: float, whole: bool) -> Callable[..., dict[str, Tensor]]:
    """Normal scores, some of them ``value`` (None: the lowest of the dtype); with ``whole`` some rows entirely."""

    def draw(g: torch.Generator, entry: Entry, size: Size, dtype: torch.dtype) -> dict[str, Tensor]:
        mask = torch.finfo(dtype).min if value is None else value
        drawn = {
            name: x.masked_fill(torch.rand(x.shape, generator=g) < share, mask)
            for name, x in _draw(g, entry, size).items()
        }
        if whole:
            batched = [x for name, x in drawn.items() if name not in entry.shared]
            for x in batched:
                x[1::4] = mask
            batched[0][2::4] = mask
        return drawn

    return draw


@dataclass(frozen=True)
class Kind:
    """How scores are drawn; ``marginal`` is the bound on the error of marginals in float32 (None: by their size)."""

    draw: Callable[..., dict[str, Tensor]]
    marginal: float | None = None


KINDS: dict[str, Kind] = {
    "normal": Kind(_normal, 1e-5),
    "ties": Kind(_ties, 1e-5),
    "equal": Kind(_equal, 1e-5),
    "forbidden": Kind(_masked(NEG_INF, 0.25, True), 1e-5),
    "offset-field": Kind(_offset("field"), 1e-5),
    "offset-row": Kind(_offset("row"), 1e-5),
    "offset-position": Kind(_offset("position"), 1e-5),
    "wide-1e2": Kind(_scaled(1e2)),
    "wide-1e4": Kind(_scaled(1e4)),
    "wide-1e6": Kind(_scaled(1e6)),
    "wide-1e8": Kind(_scaled(1e8)),
    "huge": Kind(_huge),
    "mask-1e4": Kind(_masked(-1e4, 0.2, False)),
    "mask-1e30": Kind(_masked(-1e30, 0.2, False)),
    "mask-min": Kind(_masked(None, 0.2, False)),
    "mask-1e4-rows": Kind(_masked(-1e4, 0.2, True)),
    "mask-1e30-rows": Kind(_masked(-1e30, 0.2, True)),
    "mask-min-rows": Kind(_masked(None, 0.2, True)),
    "mask-min-all": Kind(_masked(None, 1.0, True)),
    "mask-1e30-most": Kind(_masked(-1e30, 0.7, False)),
}
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
PADDING = {"nan": float("nan"), "inf": float("inf"), "1e38": 1e38, "-inf": NEG_INF}


# Tensors: the same values in another guise.


class Subclass(Tensor):
    """A tensor of a class of the user's own."""


def _inside(x: Tensor, shape: Sequence[int], at: tuple[slice, ...]) -> Tensor:
    """``x`` as a view of a larger storage that holds NaN around it."""
    whole = torch.full(tuple(shape), float("nan"), dtype=x.dtype)
    view = whole[at]
    view.copy_(x)
    return view


def _stepped(x: Tensor) -> Tensor:
    return _inside(x, [2 * n + 1 for n in x.shape], tuple(slice(1, None, 2) for _ in x.shape))


def _offset_view(x: Tensor) -> Tensor:
    return _inside(x, [n + 2 for n in x.shape], tuple(slice(1, n + 1) for n in x.shape))


def _negative(x: Tensor) -> Tensor:
    return torch._neg_view(-x)


def _imaginary(x: Tensor) -> Tensor:
    """The imaginary part of a conjugate: strided and with the negative bit."""
    return torch.complex(x, -x).conj().imag if x.dtype in (torch.float32, torch.float64) else _negative(x)


def _made_in_inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "transposed": lambda x: x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim()))),
    "stepped": _stepped,
    "offset": _offset_view,
    "negative bit": _negative,
    "imaginary": _imaginary,
    "subclass": lambda x: x.as_subclass(Subclass),
    "parameter": torch.nn.Parameter,
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "inference": _made_in_inference,
    "expanded row": lambda x: x,  # see Problem.drawn: every row holds the values of the first
    "expanded": lambda x: x,  # one number in every place
}


def _int_view(lengths: Tensor) -> Tensor:
    wide = torch.full((*lengths.shape, 3), 10**6)
    wide[..., 1] = lengths
    return wide[..., 1]


LENGTHS: dict[str, Callable[[Tensor], Any]] = {
    "int64": lambda n: n,
    "list": lambda n: n.tolist(),
    "tuple": lambda n: tuple(n.tolist()),
    "int32": lambda n: n.int(),
    "uint8": lambda n: n.to(torch.uint8),
    "strided": _int_view,
    "inference": _made_in_inference,
}


@dataclass(frozen=True)
class Case:
    """One batch; its ``repr`` makes it again: ``Case(...).problem``."""

    entry: str
    size: str
    kind: str = "normal"
    dtype: str = "f64"
    padding: str = "nan"
    layout: str = "plain"
    lengths: str = "int64"
    seed: int = 0

    @property
    def problem(self) -> Problem:
        return _problem(self)


@dataclass(frozen=True, eq=False)
class Problem:
    """Potentials with all that is true about them."""

    case: Case
    entry: Entry
    size: Size
    potentials: dict[str, Tensor]  # in the layout of the case
    values: dict[str, Tensor]  # the same numbers, plain
    rows: list[Exact]
    lengths: Any

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return torch.float64 if self.case.dtype == "f64" else torch.float32

    @property
    def batch(self) -> int:
        return self.size.batch

    def make(self, engine: str = "auto", **changed: Tensor) -> Any:
        return self.entry.build({**self.potentials, **changed}, self.lengths, engine)

    def leaves(self) -> dict[str, Tensor]:
        """Plain copies that ask for gradients."""
        return {name: x.detach().clone().requires_grad_() for name, x in self.values.items()}

    @functools.cached_property
    def exact(self) -> bool:
        """Whether all sums are exact in float32, so that ties are ties in every engine."""
        for row in self.rows:
            finite = row.potentials[np.isfinite(row.potentials)]
            if np.abs(finite).sum() > 2**16 or not np.array_equal(finite * 64, np.round(finite * 64)):
                return False
        return True

    def order(self, b: int) -> list[int]:
        """Numbers of row b's outputs in the order of ties."""
        return _order(self)[b]

    def stack(self, of: Callable[[Exact], Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Per-row fields in the shapes of the potentials: stacked, and added up for what rows share."""
        found = [of(row) for row in self.rows]
        return {
            name: np.sum([f[name] for f in found], axis=0)
            if name in self.entry.shared and found
            else np.stack([f[name] for f in found])
            if found
            else np.zeros(shape)
            for name, shape in self.entry.shapes(self.size).items()
        }

    def row_of(self, fields: Mapping[str, np.ndarray], b: int) -> dict[str, np.ndarray]:
        return {name: x if name in self.entry.shared else x[b] for name, x in fields.items()}

    def written(self, b: int, i: int) -> tuple[int, ...]:
        """Output i of row b, flat, as the structure writes it."""
        return self.rows[b].space.outputs[i]


@functools.lru_cache(maxsize=64)
def _order(problem: Problem) -> list[list[int]]:
    lengths = problem.entry.lengths_of(problem.size)
    return [problem.entry.order(row.given, problem.size, n) for row, n in zip(problem.rows, lengths, strict=True)]


def entry_named(name: str) -> Entry:
    return next(e for e in ENTRIES if e.name == name)


@functools.lru_cache(maxsize=256)
def _problem(case: Case) -> Problem:
    entry = entry_named(case.entry)
    size = next(s for s in entry.sizes if s.name == case.size)
    dtype = DTYPES[case.dtype]
    info = torch.finfo(dtype)
    g = torch.Generator().manual_seed(case.seed)
    drawn = KINDS[case.kind].draw(g, entry, size, dtype)
    drawn = {name: torch.where(x == NEG_INF, x, x.clamp(info.min, info.max)).to(dtype) for name, x in drawn.items()}
    if case.layout == "expanded row":
        drawn = {
            name: x if name in entry.shared or not len(x) else x[:1].contiguous().expand(x.shape)
            for name, x in drawn.items()
        }
    if case.layout == "expanded":
        drawn = {name: (x.flatten()[0] if x.numel() else x.new_zeros(())).expand(x.shape) for name, x in drawn.items()}
    values = {name: x.clone(memory_format=torch.contiguous_format) for name, x in drawn.items()}
    lengths = entry.lengths_of(size)
    arrays = {name: x.double().numpy() for name, x in values.items()}
    computed = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32)
    rows = []
    for b, n in enumerate(lengths):
        space = entry.space(size, n)
        own = {name: x if name in entry.shared else x[b].copy() for name, x in arrays.items()}
        rows.append(Exact(space, own, computed.eps, computed.max))
    if case.layout.startswith("expanded"):
        potentials = drawn  # nothing can be written into the padding
    else:
        fill = PADDING[case.padding]
        for b, n in enumerate(lengths):
            for name, behind in entry.padding(size, n).items():
                values[name][b][torch.from_numpy(behind.copy())] = fill
        potentials = {name: LAYOUTS[case.layout](x) for name, x in values.items()}
    given: Any = None
    if size.lengths is not None:
        shape = (len(lengths), 2) if isinstance(entry.full_length(size), tuple) else (len(lengths),)
        given = LENGTHS[case.lengths](torch.tensor(lengths, dtype=torch.int64).reshape(shape))
    return Problem(case, entry, size, potentials, values, rows, given)


def pairwise(factors: dict[str, Sequence[Any]], generator: random.Random, tries: int = 10) -> list[dict[str, Any]]:
    """Few combinations in which every two values of two factors meet, found greedily."""
    missing = dict.fromkeys(
        ((a, x), (b, y)) for a, b in itertools.combinations(factors, 2) for x in factors[a] for y in factors[b]
    )
    chosen = []
    while missing:
        first = dict(next(iter(missing)))
        rows = [
            {name: first.get(name, generator.choice(values)) for name, values in factors.items()} for _ in range(tries)
        ]
        best = max(rows, key=lambda row: sum(pair in missing for pair in itertools.combinations(row.items(), 2)))
        for pair in itertools.combinations(best.items(), 2):
            missing.pop(pair, None)
        chosen.append(best)
    return chosen


@functools.cache
def odd_tensors() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Padding, layout, lengths and size by structure and engine: every value, and every pair of values somewhere."""
    most = max(len(entry.sizes) for entry in ENTRIES)
    factors = {
        "pair": [(e.name, engine) for e in ENTRIES for engine in e.engines if engine in ("cpu", "reference")],
        "layout": list(LAYOUTS),
        "size": list(range(most)),
        "lengths": list(LENGTHS),
        "padding": list(PADDING),
    }
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in pairwise(factors, random.Random(0)):
        found.setdefault(row.pop("pair"), []).append(row)
    return found


def kinds_and_dtypes(engine: str) -> list[tuple[str, str]]:
    """Every kind of scores in float32, and on the kernels in float64; half precision is converted before all else."""
    single = [(kind, "f32") for kind in KINDS]
    double = [(kind, "f64") for kind in KINDS]
    if engine == "cpu":
        halves = [(kind, dtype) for kind in ("normal", "mask-min-rows", "forbidden") for dtype in ("bf16", "f16")]
        return single + double[::2] + halves
    if engine == "triton":  # interpreted: a tenth of a second for a case and query
        few = ("normal", "forbidden", "offset-field", "wide-1e4", "mask-1e30", "mask-min-all")
        return [(kind, "f32") for kind in few] + [("ties", "f64")]
    return single + double[::3] + [("normal", "bf16"), ("mask-min-rows", "f16")]


@functools.cache
def cases(entry: Entry, engine: str) -> list[Case]:
    """Every kind of scores on rows of some length, then odd sizes and tensors."""
    g = random.Random(f"{entry}-{engine}")
    others: dict[str, Sequence[str]] = {
        "padding": list(PADDING),
        "layout": [name for name in LAYOUTS if not name.startswith("expanded")],
        "lengths": [name for name in LENGTHS if name != "inference"],
    }
    main = kinds_and_dtypes(engine)
    chosen = []
    for i, (kind, dtype) in enumerate(main):
        drawn = {name: g.choice(values) for name, values in others.items()}
        size = entry.sizes[i % 2 if engine != "triton" else 0].name
        chosen.append(Case(entry.name, kind=kind, dtype=dtype, seed=i, size=size, **drawn))
    for i, row in enumerate(odd_tensors().get((entry.name, engine), [])):
        kind, dtype = g.choice(main) if i % 2 else ("normal", g.choice(("f32", "f64")))
        size = entry.sizes[row["size"] % len(entry.sizes)].name
        chosen.append(Case(entry.name, kind=kind, dtype=dtype, seed=1000 + i, **{**row, "size": size}))
    return chosen


def random_cases(entry: Entry, count: int, seed: int = 0) -> list[Case]:
    """``count`` combinations drawn at random."""
    g = random.Random(f"{entry}-{seed}")
    return [
        Case(
            entry.name,
            size=g.choice(entry.sizes).name,
            kind=g.choice(list(KINDS)),
            dtype=g.choice(["f32"] * 4 + ["f64"] * 3 + ["bf16", "f16"]),
            padding=g.choice(list(PADDING)),
            layout=g.choice(list(LAYOUTS)),
            lengths=g.choice(list(LENGTHS)),
            seed=g.randrange(2**31),
        )
        for _ in range(count)
    ]
