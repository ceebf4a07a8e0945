"""Compile every kernel for GPUs that need not be present, and keep what each uses in `resources.csv`.

    python -m structlearn.gpu.aot --check [--states 16 64] [--dtypes float32] [--architectures 90]
    python -m structlearn.gpu.aot --write

The launches are those of the launch functions themselves: same arguments, specialisation, tile sizes and warps.
Registers are per thread, shared memory and spills in bytes per program; a spill is any use of the local stack.
"""

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from structlearn.structures.rules import Grammar

from . import alignment, chain, chain_count, semimarkov, semimarkov_count, span_tree
from . import grammar as cfg
from .launch import Launch

ARCHITECTURES = (80, 90, 100)
STATES = (16, 50, 64, 256)
DTYPES = ("float32", "float64")
KEY = ("kernel", "dtype", "states", "transition", "arch")
USAGE = ("num_warps", "registers", "spill_bytes", "shared_bytes")
TABLE = Path(__file__).with_name("resources.csv")
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.uint8: "*u8",
}
Row = dict[str, str]


def launches(states: int, dtype: torch.dtype, shared: bool) -> Iterator[Launch]:
    """Every launch of a ragged batch with start and end scores; B and N odd, as in use."""
    B, N, C = 3, 7, states
    unary = torch.zeros(B, N, C, dtype=dtype)
    transition = torch.zeros((C, C) if shared else (B, N - 1, C, C), dtype=dtype)
    bounds = torch.zeros(C, dtype=dtype)
    potentials = (unary, transition, bounds, bounds, torch.full((B,), N))
    per_row = torch.zeros(B, dtype=dtype)
    yield from chain.plan_viterbi(*potentials)[0]
    yield from chain.plan_kbest(*potentials, 5)[0]
    yield from chain.plan_forward(*potentials)[0]
    yield from chain.plan_backward(*potentials, unary, per_row, per_row)[0]
    yield from chain.plan_sample(*potentials, unary, torch.zeros(5, B, N, dtype=dtype))[0]
    classes, cells = torch.zeros(B, N, dtype=torch.int64), torch.zeros(3, 2, C + 1, C, dtype=torch.int64)
    by_label, by_automaton = classes[..., None].expand(B, N, C), (classes, cells, cells, cells[0, :, 0])
    for counter, size in (((by_label, *[None] * 4), 51), ((by_label, *by_automaton), 1001)):
        worth = torch.zeros(B, size, dtype=dtype)
        yield from chain_count.plan_best_by_count(*potentials, *counter, size, worth, worth)[0]
    yield from _semimarkov_launches(transition, B, N)
    if shared:  # alignments and trees have no transitions: once is enough
        yield from _alignment_launches(states, dtype)
        yield from _tree_launches(C, dtype)


def _alignment_launches(rows: int, dtype: torch.dtype) -> Iterator[Launch]:
    """Ragged pairs with as many rows as a chain has states; the forms that do most."""
    B, N, M = 3, rows, 7
    match, x, y = (torch.zeros(shape, dtype=dtype) for shape in ((B, N, M), (B, N), (B, M)))
    lengths = (torch.full((B,), N), torch.full((B,), M))
    per_row = torch.zeros(B, dtype=dtype)
    yield from alignment.plan_best(match, x, y, None, None, *lengths, alignment.GLOBAL, -1)[0]
    yield from alignment.plan_best(match, x, y, x, y, *lengths, alignment.LOCAL, -1)[0]
    affine = (match, x, y, x, y, *lengths)
    launches, (_, kept) = alignment.plan_forward(*affine, alignment.LOCAL, -1)
    yield from launches
    yield from alignment.plan_backward(*affine, alignment.SEMIGLOBAL, -1, per_row, kept, per_row)[0]


def _semimarkov_launches(transition: torch.Tensor, B: int, N: int) -> Iterator[Launch]:
    """Widths that one tile holds, then more of them, which change the two forward kernels."""
    C, lengths, per_row = transition.shape[-1], torch.full((B,), N), transition.new_zeros(B)
    potentials = (transition.new_zeros(B, N, 8, C), transition, lengths)
    values, scales = transition.new_zeros(B, N, 2, C), torch.zeros(B, N + 1, dtype=torch.float64)
    for W in (8, 40):
        wide = (transition.new_zeros(B, N, W, C), transition, lengths)
        yield from semimarkov.plan_viterbi(*wide)[0]
        yield from semimarkov.plan_forward(*wide)[0]
    yield from semimarkov.plan_kbest(*potentials, 5)[0]
    yield from semimarkov.plan_backward(*potentials, values, scales, per_row)[0]
    uniform = transition.new_zeros(5, B, N, 2)
    yield from semimarkov.plan_sample(*potentials, values, scales, per_row, uniform)[0]
    step, between = (torch.zeros_like(x, dtype=torch.int64) for x in potentials[:2])
    for counter, size in (((step, None), 51), ((step, between), 1001)):
        worth = transition.new_zeros(B, size)
        yield from semimarkov_count.plan_best_by_count(*potentials, *counter, size, worth, worth)[0]


def _tree_launches(states: int, dtype: torch.dtype) -> Iterator[Launch]:
    """As many labels as states, sentences of 40 words."""
    B, N = 3, 40
    spans, lengths, per_row = (
        torch.zeros(B, N, N, states, dtype=dtype),
        torch.full((B,), N),
        torch.zeros(B, dtype=dtype),
    )
    yield from span_tree.plan_best(spans, lengths)[0]
    launches_, (_, chart) = span_tree.plan_forward(spans, lengths)
    yield from launches_
    yield from span_tree.plan_backward(spans, lengths, chart, per_row, per_row)[0]
    yield from _grammar_launches(states, dtype)


def _grammar_launches(states: int, dtype: torch.dtype) -> Iterator[Launch]:
    """A chain of rules over that many nonterminals and preterminals, with spans; widths differ in a number alone."""
    B, N, NT, P = 3, 3, states, states
    symbols = torch.arange(NT)
    rules = torch.stack([symbols, symbols + NT, (symbols + 1) % NT], 1)
    grammar = Grammar(torch.cat([rules, torch.stack([symbols, symbols + NT, symbols + NT], 1)]), NT, P)
    terms, spans = torch.zeros(B, N, P, dtype=dtype), torch.zeros(B, N, N, NT, dtype=dtype)
    scores, roots = torch.zeros(grammar.num_rules, dtype=dtype), torch.zeros(NT, dtype=dtype)
    given = (terms, scores, roots, spans, torch.full((B,), N), grammar.tables, NT, grammar.num_pairs)
    forward, (_, chart, raw) = cfg.plan_forward(*given)
    uses = torch.zeros(B, grammar.num_rules, dtype=dtype)
    seen = set()
    for launch in (
        *cfg.plan_best(*given)[0],
        *forward,
        *cfg.plan_backward(cfg.Potentials(*given), chart, raw, chart, uses),
    ):
        if launch.name not in seen:
            seen.add(launch.name)
            yield launch


def source(launch: Launch) -> Any:
    """The kernel specialised as a launch would: None and 1 are constants, multiples of 16 and pointers are aligned."""
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for i, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, launch.args[parameter.name]
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = POINTERS[value.dtype] if isinstance(value, torch.Tensor) else "i32"
        if isinstance(value, torch.Tensor) or value % 16 == 0:
            attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature, constants, attributes)


def usage(launch: Launch, arch: int) -> Row:
    """Compile one launch for one architecture and read what the binary declares."""
    import triton
    from triton.backends.compiler import GPUTarget

    compiled = triton.compile(source(launch), target=GPUTarget("cuda", arch, 32), options=launch.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(compiled.asm["cubin"])
        binary.flush()
        tool = resources.files("triton") / "backends/nvidia/bin/cuobjdump"
        command = [str(tool), "--dump-resource-usage", binary.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    declared = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", report)}
    numbers = (
        launch.num_warps,
        declared["REG"],
        declared["STACK"] + declared["LOCAL"],
        # What the launch asks for comes on top of what the binary reserves.
        declared["SHARED"] + compiled.metadata.shared,
    )
    return dict(zip(USAGE, map(str, numbers), strict=True))


def measure(states: Sequence[int], dtypes: Sequence[str], architectures: Sequence[int]) -> Iterator[Row]:
    import triton

    for dtype in dtypes:
        for C in states:
            for shared in (True, False):
                for launch in launches(C, getattr(torch, dtype), shared):
                    for arch in architectures:
                        where = "shared" if shared else "position"
                        key = (launch.name, dtype, str(C), where, f"sm_{arch}")
                        yield dict(zip(KEY, key, strict=True)) | usage(launch, arch) | {"triton": triton.__version__}


def differences(rows: Sequence[Row], recorded: Sequence[Row]) -> list[str]:
    """What breaks the promise of the table: a spill, a launch it lacks, or other numbers from the same compiler.

    Another version of triton may use other numbers of registers, so only spills are compared then.
    """
    table = {tuple(row[name] for name in KEY): row for row in recorded}
    found = []
    for row in rows:
        key = tuple(row[name] for name in KEY)
        what, entry = " ".join(key), table.get(key)
        if row["spill_bytes"] != "0":
            found.append(f"{what}: spills {row['spill_bytes']} bytes")
        if entry is None:
            found.append(f"{what}: not in the table; run with --write")
        elif entry["triton"] == row["triton"]:
            found += [
                f"{what}: {name} is {row[name]}, recorded {entry[name]}" for name in USAGE if row[name] != entry[name]
            ]
    return found


def read() -> list[Row]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile the kernels ahead of time and compare their resource usage.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare with the recorded table; status 1 if different")
    action.add_argument("--write", action="store_true", help="record the whole table")
    parser.add_argument("--states", type=int, nargs="+", default=STATES, choices=STATES)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--architectures", type=int, nargs="+", default=ARCHITECTURES, choices=ARCHITECTURES)
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        parser.error("TRITON_INTERPRET: expected unset, got it set; the interpreter replaces the kernels to compile")
    if options.write:
        rows = list(measure(STATES, DTYPES, ARCHITECTURES))
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, (*KEY, *USAGE, "triton"), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        found = differences(rows, rows)
    else:
        rows = list(measure(options.states, options.dtypes, options.architectures))
        found = differences(rows, read())
    print(f"{len(rows)} compilations, {len(found)} differences", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
