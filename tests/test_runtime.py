"""Threads, processes and builds: the same answers whoever calls, wherever, on whatever instruction set."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ChainCase
from torch.utils.data import DataLoader, Dataset

import structlearn as sl

# Above the size at which the kernels spread over threads (chain.h).
LARGE = ChainCase(
    "large", B=24, N=40, C=16, lengths=tuple(range(17, 41)), start=True, end=True, dtype=torch.float32, spread=1.0
)


def answers(case: ChainCase = LARGE, seed: int = 0) -> list[torch.Tensor]:
    """One of everything the C++ kernels compute."""
    problem = ChainCase(**{**vars(case), "seed": seed}).problem()
    leaves = problem.leaves()
    s = problem.make("cpu", **leaves)
    log_z = s.log_partition()
    weights = torch.linspace(0.5, 1.5, case.B, dtype=case.dtype)
    first = torch.autograd.grad(log_z @ weights, list(leaves.values()))
    second = torch.autograd.grad(s.entropy() @ weights, list(leaves.values()))
    with torch.no_grad():
        return [
            s.argmax(),
            s.max(),
            log_z.detach(),
            s.topk(2)[0],
            s.sample(2, torch.Generator().manual_seed(seed)),
            *first,
            *second,
            *(x for x in problem.make("cpu").marginals() if x is not None),
        ]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_repeats_are_equal_to_the_bit() -> None:
    first = answers()
    for _ in range(5):
        assert equal(answers(), first)


def test_python_threads_at_once() -> None:
    """Two threads inside the kernels at the same time, over and over, on different batches."""
    torch.set_num_threads(2)  # sums are cut into one chunk a thread, so the expected bits need the same number
    few = ChainCase("few", B=3, N=40, C=9, lengths=(40, 7, 22), start=True, dtype=torch.float32)
    cases = (LARGE, few, LARGE, few)
    expected = [answers(case, seed) for seed, case in enumerate(cases)]
    wrong: list[Any] = []
    gate = threading.Barrier(4)

    def work(seed: int) -> None:
        torch.set_num_threads(2)
        gate.wait()
        try:
            for _ in range(8):
                if not equal(answers(cases[seed], seed), expected[seed]):
                    wrong.append(seed)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=120)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    assert wrong == []


class Decoded(Dataset[torch.Tensor]):
    """Item i is decoded in the worker, with threads of its own."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.set_num_threads(2)
        problem = ChainCase(**{**vars(LARGE), "seed": index}).problem()
        s = problem.make("cpu")
        return torch.cat(
            [s.argmax().double().flatten(), s.log_partition().double(), s.marginals().unary.double().flatten()]
        )


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loader_workers(start: str) -> None:
    data = Decoded()
    expected = [data[i] for i in range(len(data))]  # the parent has used its threads before it forks
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=start, timeout=100)
    for found, want in zip(loader, expected, strict=True):
        assert torch.equal(found, want)
    assert equal(answers(), answers())


FORKS = """
import os, threading, torch, structlearn as sl
torch.set_num_threads(2)
s = sl.LinearChain(torch.randn(64, 100, 20), torch.randn(20, 20))
labels, stop = s.argmax(), threading.Event()

def inside():
    while not stop.is_set():
        s.argmax(), s.log_partition()

threads = [threading.Thread(target=inside) for _ in range(2)]
for t in threads:
    t.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(s.argmax(), labels) and s.topk(2)[1].isfinite().all() else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for t in threads:
    t.join()
"""


def test_forks_while_other_threads_are_inside_kernels() -> None:
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


def test_memory_stays_flat_over_many_steps() -> None:
    """10,000 loss steps; a leak of 100 bytes a step would add a megabyte."""
    shapes = (4, 9, 5), (4, 8, 3, 4), (4, 6, 6, 3), (4, 7, 6), (5, 5), (4, 4)
    scores = [torch.randn(shape, requires_grad=True) for shape in shapes]
    chain, segments, spans, match, step, jump = scores
    make: list[Callable[[], sl.Structure]] = [
        lambda: sl.LinearChain(chain, step),
        lambda: sl.SemiMarkov(segments, jump),
        lambda: sl.SpanTree(spans),
        lambda: sl.Alignment(match, gap=-1.0),
    ]
    losses = sl.CRFLoss(), sl.PerceptronLoss()

    def steps(count: int) -> None:
        for i in range(count):
            s = make[i % len(make)]()
            losses[i // len(make) % 2](s, s.argmax()).backward()
            for x in scores:
                x.grad = None

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    steps(2_000)
    before = resident()
    steps(10_000)
    assert resident() - before < 1 << 20


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that makes the kernels' allocations and threads fail."""
    library = tmp_path_factory.mktemp("faults") / "failing_memory.so"
    source = Path(__file__).with_name("failing_memory.cpp")
    subprocess.run(["c++", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=120)
    return str(library)


@pytest.mark.parametrize("what", ["memory", "threads 1", "threads 2", "limit"])
def test_nothing_that_runs_out_ends_the_process(what: str, faults: str) -> None:
    """An exception or the right answer, and right answers afterwards."""
    program = str(Path(__file__).with_name("faults_program.py"))
    env = os.environ | ({"LD_PRELOAD": faults} if what != "limit" else {})
    done = subprocess.run(
        [sys.executable, program, faults if what != "limit" else "", *what.split()],
        env=env, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    if what != "limit":
        assert json.loads(done.stdout)["failed"] > 0


LEFT = """
import threading, time, torch
import structlearn as sl
torch.set_num_threads(2)
def work(record):
    unary, spans = (torch.randn(s, requires_grad=record) for s in ((32, 50, 10), (16, 20, 20, 5)))
    segments, match = (torch.randn(s, requires_grad=record) for s in ((8, 30, 5, 10), (4, 40, 40)))
    transition, gap = torch.zeros(10, 10), torch.zeros(4)
    while True:
        for s in (sl.LinearChain(unary, transition), sl.SpanTree(spans), sl.SemiMarkov(segments, transition),
                  sl.Alignment(match, gap=gap)):
            value = s.log_partition().sum()
            if record:
                value.backward()
            s.argmax()
            s.topk(2)
for i in range(4):
    threading.Thread(target=work, args=(i % 2 == 0,), daemon=True).start()
time.sleep(0.3)
print(0)
"""


def test_the_interpreter_is_left_while_threads_are_inside_kernels() -> None:
    for _ in range(4):
        assert in_a_process(LEFT) == 0


def test_an_older_build_says_what_to_do(tmp_path: Path) -> None:
    source, library = tmp_path / "old.c", tmp_path / "_kernels_base.so"
    source.write_text("int sl_within(void) { return 1; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    code = f"""
import json
from tests.fuzz_kernels import use_build
use_build({str(tmp_path)!r})
import structlearn as sl
print(json.dumps([sl.ops.backends(), sl.ops._library.load_error()]))
"""
    names, words = in_a_process(code.replace("tests.fuzz_kernels", "fuzz_kernels"), STRUCTLEARN_ISA="base")
    assert "cpu" not in names
    assert "make" in words
    assert "pip install ." in words


def in_a_process(code: str, **environment: str) -> Any:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


COMPARED = """
import json, torch
import structlearn as sl
from cases import ChainCase
from structlearn.ops import _library
from test_runtime import LARGE, answers
found = []
for case in (
    LARGE,
    ChainCase("narrow", B=19, N=7, C=5, lengths=tuple(b % 8 for b in range(19)), start=True, dtype=torch.float32),
    ChainCase("wide", B=9, N=6, C=33, lengths=None, per_position=True, end=True, dtype=torch.float64),
    ChainCase("ties", B=9, N=9, C=9, lengths=None, integers=True, dtype=torch.float32),
    ChainCase("few", B=3, N=9, C=9, lengths=(9, 0, 4), start=True, end=True, dtype=torch.float32),
    ChainCase("one of two labels", B=1, N=9, C=2, lengths=None, integers=True, dtype=torch.float64),
    ChainCase("one with full vectors", B=1, N=5, C=16, lengths=None, integers=True, dtype=torch.float32),
    ChainCase("hard", B=11, N=8, C=9, lengths=None, spread=80.0, dtype=torch.float32),
):
    found.append([x.double().tolist() for x in answers(case)])
assert sl.ops.backends()[1] == "cpu"
print(json.dumps({"file": _library._find().name, "found": found}))
"""


def test_instruction_sets_agree() -> None:
    """The builds for SSE, AVX2 and AVX-512 that this machine can run: labels equal, numbers to rounding.

    Each process has used its threads and must still end with its own exit code.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    sets = {"AVX512": ["base", "avx2", "avx512"], "AVX2": ["base", "avx2"]}.get(capability, ["base"])
    results = {isa: in_a_process(COMPARED, STRUCTLEARN_ISA=isa) for isa in sets}
    for isa, result in results.items():
        assert result["file"] == f"_kernels_{isa}.so"
        for case, (found, expected) in enumerate(zip(result["found"], results["base"]["found"], strict=True)):
            for i, (x, y) in enumerate(zip(found, expected, strict=True)):
                x, y = torch.tensor(x), torch.tensor(y)
                if i in (0, 3):
                    assert torch.equal(x, y), f"labels differ between base and {isa} in case {case}"
                elif i != 4:  # draws compare a uniform number with rounded sums
                    torch.testing.assert_close(x, y, rtol=1e-4, atol=2e-4, msg=lambda m, isa=isa: f"{isa}: {m}")


def test_the_default_device_and_dtype_do_not_matter() -> None:
    expected = answers()
    torch.set_default_dtype(torch.float64)
    try:
        torch.set_default_device("meta")
        try:
            problem = LARGE.problem()
            s = sl.LinearChain(**problem.potentials, lengths=torch.tensor(LARGE.lengths, device="cpu"), backend="cpu")
            assert torch.equal(s.argmax(), expected[0])
            assert torch.equal(s.log_partition(), expected[2])
            assert s.marginals().unary.device.type == "cpu"
            assert s.entropy().device.type == "cpu"
            leaves = problem.leaves()
            moving = sl.LinearChain(**leaves, lengths=s.lengths, backend="cpu")
            (moving.log_partition().sum() + moving.max().sum() + moving.entropy().sum()).backward()
            assert leaves["unary"].grad is not None
            assert leaves["unary"].grad.device.type == "cpu"
        finally:
            torch.set_default_device(None)
    finally:
        torch.set_default_dtype(torch.float32)


def test_importing_leaves_the_compiler_out() -> None:
    """torch._dynamo takes as long to import as torch itself, and most programs never compile."""
    assert in_a_process("import sys, structlearn; print(int('torch._dynamo' in sys.modules))") == 0
