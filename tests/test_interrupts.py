"""Ctrl-C in the exact solvers: training stops at once, keeps the last whole round and says how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_svm_training import free_port

# Some 0.1 s when the machine is idle; other processes may be running.
SECONDS = 3.0
BEGINNING = f"""
import sys, time, warnings
sys.path[:0] = {sys.path!r}
import torch
torch.set_num_threads(1)
import structlearn as sl
from structlearn.data.ocr import ocr_words
from structlearn.solvers import qp as qps

def begun(*_):
    if not begun.told:
        begun.told = True
        print("begun", flush=True)
begun.told = False

def words(**options):
    data = ocr_words(60, seed=3)
    given = {{"C": 1e6, "gap": 1e-14, "max_rounds": 10**6, **options}}
    model = sl.StructuredSVM(sl.features.ChainMap(128, 26), sl.costs.Hamming(), **given)
    return model.fit(data.images, data.labels, data.lengths, callback=begun)

def points(**options):
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(3000, 20, generator=g, dtype=torch.float64), torch.randint(5, (3000,), generator=g)
    model = sl.StructuredSVM(sl.features.MulticlassMap(20, 5), sl.costs.ZeroOne(), **options)
    return model.fit(X, y, callback=begun)

def program(size):
    a = torch.randn(size, 8, dtype=torch.float64)
    return qps.DualQP(a @ a.T, torch.rand(size, dtype=torch.float64), torch.arange(size) // 4, 1e9)

def voting(n_jobs=1):
    from rerank_cases import lists
    from structlearn.reranking.features import CandidateFeatures
    from structlearn.reranking.voting import VotingReranker
    data = lists(200)
    begun()
    VotingReranker(CandidateFeatures(min_lists=1), slices=4, C=1e6, tol=1e-15, max_iter=10**9).fit(data)

def smo():
    made = program(3000)
    begun()
    qps.smo(made, torch.zeros(3000, dtype=torch.float64), 1e-15, 10**12)

def outer(f):
    try:
        model = f()
        print("status", model.certificate_.status)
        score = model._fitted.lift(model.coef_)
        xi = model._fitted.oracle(score).value
        primal = model._fitted.formulation.primal(float(model.coef_ @ score), xi, len(xi))
        print("same", abs(primal - model.certificate_.primal) <= 1e-6 * primal)
    except KeyboardInterrupt as error:
        print("KeyboardInterrupt", error)
    print("ended", time.time(), flush=True)
    import os
    os._exit(0)  # what tearing torch down takes is not ours

warnings.simplefilter("ignore")
"""
FITS = {
    "n_slack": "words()",
    "own": "words(variant='own')",
    "one_slack": "words(solver='one_slack')",
    "bcfw": "words(solver='bcfw')",
    "bar": "words(solver='bcfw', verbose=True)",
    "qpth": "words(solver='one_slack', qp='qpth')",
    "clarabel": "words(solver='one_slack', qp='clarabel')",
    "kernel": "words(kernel='poly', solver='one_slack')",
    "classes": "points(C=1e6, gap=1e-14)",
}


def interrupt(process: subprocess.Popen[str], *, after: float, times: int = 1) -> tuple[float, str]:
    """Seconds from the signal to the end of the work, and what the process wrote."""
    assert process.stdout is not None
    line = process.stdout.readline()
    while line and line.strip() != "begun":
        line = process.stdout.readline()
    time.sleep(after)
    assert process.poll() is None, process.stdout.read()
    began = time.time()
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    out, _ = process.communicate(timeout=60)
    ended = [float(line.split()[1]) for line in out.splitlines() if line.startswith("ended")]
    return (ended[0] if ended else time.time()) - began, out


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BEGINNING + code], cwd=Path(__file__).parent, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_a_fit_stops_and_keeps_the_last_round(fit: str) -> None:
    seconds, out = interrupt(start(f"outer(lambda: {fit})"), after=0.4)
    assert seconds < SECONDS, out
    assert "interrupted after round" in out, out
    assert "with checkpoint=FILE, fit would go on" in out
    assert "same True" in out


@pytest.mark.parametrize("work", ["smo", "voting"])
def test_c_code_stops(work: str) -> None:
    seconds, out = interrupt(start(f"outer({work})"), after=1.0)
    assert seconds < SECONDS, out
    assert "KeyboardInterrupt" in out


def test_two_signals_end_the_work_too() -> None:
    seconds, out = interrupt(start("outer(lambda: words())"), after=0.3, times=2)
    assert seconds < SECONDS, out
    assert "finished" not in out


def test_a_checkpoint_is_named(tmp_path: Path) -> None:
    file = tmp_path / "svm.pt"
    fit = f"outer(lambda: words(solver='bcfw', checkpoint={str(file)!r}, checkpoint_every=1))"
    _, out = interrupt(start(fit), after=0.4)
    assert f"fit again with the same arguments to go on from {file}" in out
    again = f"r = []; words(solver='bcfw', checkpoint={str(file)!r}, max_seconds=1e-3); print('resumed')"
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + again],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "resumed" in done.stdout, done.stderr


DISTRIBUTED = """
import torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=100))
rank = dist.get_rank()
def wait(row):
    if row.round == 2:
        begun()
        if rank == 1:
            time.sleep(90)
def work():
    data = ocr_words(20, seed=rank)
    model = sl.StructuredSVM(
        sl.features.ChainMap(128, 26), sl.costs.Hamming(), C=100.0, gap=1e-12, solver="one_slack", distributed=True
    )
    return model.fit(data.images, data.labels, data.lengths, callback=wait)
outer(work)
"""


def test_a_process_that_waits_for_another_stops() -> None:
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    first, second = (start(DISTRIBUTED, **common, RANK=str(rank)) for rank in range(2))
    try:
        seconds, out = interrupt(first, after=1.0)
        assert seconds < SECONDS, out
        assert "KeyboardInterrupt StructuredSVM was interrupted in round 3" in out
    finally:
        second.kill()
        second.communicate()
