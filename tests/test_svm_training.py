"""Training that is stopped, resumed, spread over processes, kernelised, or part of a network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import structlearn as sl
from structlearn.data.ocr import ocr_words
from structlearn.errors import ArgumentError, DependencyError, FormatError, ShapeError
from structlearn.solvers import ConvergenceWarning, History, SVMLayer, refit_head
from structlearn.solvers import qp as qps
from structlearn.solvers.planes import Rows, Terms, WorkingSet
from structlearn.solvers.solver import Solver


def words(count: int = 20) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    data = ocr_words(count, seed=3)
    return data.images, data.labels, data.lengths


def svm(**options: Any) -> sl.StructuredSVM:
    return sl.StructuredSVM(sl.features.ChainMap(128, 26), sl.costs.Hamming(), **{"C": 5.0, "gap": 1e-3, **options})


@pytest.mark.parametrize("solver", ["n_slack", "one_slack", "bcfw"])
def test_a_checkpoint_continues_with_the_same_bits(solver: str, tmp_path: Path) -> None:
    whole = svm(solver=solver).fit(*words())
    file = tmp_path / "svm.pt"
    with pytest.warns(ConvergenceWarning):
        svm(solver=solver, checkpoint=file, checkpoint_every=2, max_rounds=4).fit(*words())
    resumed = svm(solver=solver, checkpoint=file, checkpoint_every=2).fit(*words())
    assert torch.equal(whole.coef_, resumed.coef_)
    for name in ("primal", "dual", "violation", "constraints"):
        assert whole.history_[name] == resumed.history_[name]
    with pytest.raises(FormatError, match="one of another"):
        svm(solver=solver, checkpoint=file, C=6.0).fit(*words())
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(FormatError, match="a checkpoint of structlearn"):
        svm(solver=solver, checkpoint=file).fit(*words())


def test_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    file = tmp_path / "svm.pt"
    script = textwrap.dedent(f"""
        import os, signal, sys
        sys.path[:0] = {sys.path!r}
        from test_svm_training import svm, words
        def kill(row):
            if row.round == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        svm(solver="bcfw", checkpoint={str(file)!r}, checkpoint_every=1).fit(*words(), callback=kill)
    """)
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    resumed = svm(solver="bcfw", checkpoint=file, checkpoint_every=1).fit(*words())
    assert torch.equal(resumed.coef_, svm(solver="bcfw").fit(*words()).coef_)


def test_a_pruned_working_set_keeps_every_list_and_product() -> None:
    """Many planes a block, so that torch would write repeated indices from several threads."""
    blocks, rounds, dim = 1500, 6, 5
    g = torch.Generator().manual_seed(0)
    held = WorkingSet(blocks, dim, Rows.none())
    for _ in range(rounds):
        a = torch.randn(blocks, dim, generator=g, dtype=torch.float64)
        held.add(Terms.dense(a), torch.ones(blocks).double(), torch.ones(blocks).double(), torch.arange(blocks))
    held.alpha.view.copy_((torch.rand(len(held), generator=g) > 0.5).double())
    w, alpha = held.weights(), held.alpha.view.clone()
    held.prune(0)
    assert len(held) == int(alpha.sum())
    torch.testing.assert_close(held.weights(), w)
    planes, seen = held.dense(), 0
    for i in range(blocks):
        p = int(held.head[i])
        while p >= 0:
            assert int(held.block.view[p]) == i
            seen += 1
            q, at = p, int(held.gram_start.view[p])
            while q >= 0 and i % 50 == 0:
                assert float(held.gram.view[at]) == pytest.approx(float(planes[p] @ planes[q]), abs=1e-9)
                q, at = int(held.next.view[q]), at + 1
            p = int(held.next.view[p])
    assert seen == len(held)
    torch.testing.assert_close(held.slacks(w), reference_slacks(held, planes, w))


def reference_slacks(held: WorkingSet, planes: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    xi = torch.zeros(len(held.head), dtype=torch.float64)
    for p in range(len(held)):
        i = int(held.block.view[p])
        xi[i] = max(float(xi[i]), float(held.b.view[p] - planes[p] @ w))
    return xi


def test_an_interrupt_leaves_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Solver.round

    def interrupted(self: Solver) -> Any:
        if self.rounds == 3:
            raise KeyboardInterrupt
        return plain(self)

    monkeypatch.setattr(Solver, "round", interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = svm(solver="bcfw").fit(*words())
    assert len(model.history_) == 3
    assert not model.certificate_.converged
    assert model.score(*words()) > 0.5


def test_history_is_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = svm(verbose=True, gap=1e-2).fit(*words())
    assert "gap" in capsys.readouterr().out
    columns = model.history_.to_dict()
    assert set(columns) == set(History.columns)
    assert columns["round"] == list(range(1, len(model.history_) + 1))
    assert str(model.history_).count("\n") == len(model.history_)
    model.history_.plot(tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 1000


@pytest.mark.parametrize("method", [m for m in qps.METHODS if qps.installed(m)])
@pytest.mark.parametrize("penalty", ["linear", "quadratic"])
def test_every_qp_solver_gives_the_same_dual(method: str, penalty: str) -> None:
    g = torch.Generator().manual_seed(0)
    A = torch.randn(30, 8, generator=g, dtype=torch.float64)
    A[7] = A[3]  # a singular Gram matrix, twice over
    b = torch.rand(30, generator=g, dtype=torch.float64)
    group = torch.arange(30) // 5
    program = qps.DualQP(A @ A.T, b, group, *((0.3, 0.0) if penalty == "linear" else (float("inf"), 2.0)))
    exact = qps.solve(program, "smo", tolerance=1e-10)
    got = qps.solve(program, method, tolerance=1e-8)
    assert got.dual == pytest.approx(exact.dual, rel=1e-6)
    assert -1e-9 <= got.gap <= 1e-5
    assert float(got.alpha.min()) >= 0
    if penalty == "linear":
        assert float(torch.zeros(6, dtype=torch.float64).index_add(0, group, got.alpha).max()) <= 0.3 + 1e-12


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qps, "installed", lambda method: method != "piqp")
    with pytest.raises(DependencyError, match="pip install piqp"):
        svm(qp="piqp").fit(*words())


def small_chains() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(15, 4, 3, generator=g, dtype=torch.float64)
    return x, (x.sum(-1) > 0).long() + (x[..., 0] > 1), torch.tensor([4, 3, 2] * 5)


def test_the_linear_kernel_is_no_kernel() -> None:
    plain = sl.StructuredSVM(sl.features.ChainMap(3, 3), sl.costs.Hamming(), C=2.0, gap=1e-6, solver="one_slack")
    data = small_chains()
    first = plain.fit(*data)
    kernelised = sl.StructuredSVM(**{**plain.get_params(), "kernel": "linear"}).fit(*data)
    assert kernelised.certificate_.primal == pytest.approx(first.certificate_.primal, rel=1e-5)
    assert torch.equal(kernelised.predict(data[0], data[2]), first.predict(data[0], data[2]))


@pytest.mark.parametrize("megabytes", [64.0, 0.0])
def test_the_polynomial_kernel_is_its_feature_map(megabytes: float) -> None:
    """(<x, z> + 1)^2 is an inner product of 1, sqrt(2) x and all products x_i x_j."""
    x, y, lengths = small_chains()
    wide = torch.cat([torch.ones(15, 4, 1), 2**0.5 * x, (x[..., :, None] * x[..., None, :]).flatten(2)], -1)
    cost = sl.costs.Hamming()
    linear = sl.StructuredSVM(sl.features.ChainMap(13, 3), cost, C=2.0, gap=1e-6, solver="one_slack")
    first = linear.fit(wide, y, lengths)
    poly = sl.StructuredSVM(
        sl.features.ChainMap(3, 3), cost, C=2.0, gap=1e-5, solver="one_slack", kernel="poly", kernel_megabytes=megabytes
    ).fit(x, y, lengths)
    assert poly.certificate_.primal == pytest.approx(first.certificate_.primal, rel=1e-4)
    assert torch.equal(poly.predict(x, lengths), first.predict(wide, lengths))
    points, beta = poly._fitted.support(poly.coef_)  # type: ignore[attr-defined]
    assert len(points) == len(beta) <= int(lengths.sum())


def test_kernels_of_classes_and_bad_kernels() -> None:
    ring = torch.randn(60, 2, dtype=torch.float64)
    y = (ring.norm(dim=1) > 1.1).long()
    options: dict[str, Any] = {"C": 100.0, "gap": 1e-2, "solver": "one_slack"}
    flat = sl.features.MulticlassMap(2, 2)
    model = sl.StructuredSVM(flat, sl.costs.ZeroOne(), kernel="rbf", **options).fit(ring, y)
    assert model.score(ring, y) > 0.9
    with pytest.raises(ArgumentError, match="positive semi-definite"):
        sl.StructuredSVM(flat, sl.costs.ZeroOne(), kernel=lambda a, b: -(a @ b.T), **options).fit(ring, y)
    with pytest.raises(ArgumentError, match="symmetric"):
        sl.StructuredSVM(flat, sl.costs.ZeroOne(), kernel=lambda a, b: a @ b.T + a[:, :1], **options).fit(ring, y)
    with pytest.raises(ArgumentError, match="'linear', 'poly', 'rbf'"):
        sl.StructuredSVM(flat, sl.costs.ZeroOne(), kernel="cosine", **options).fit(ring, y)
    with pytest.raises(ArgumentError, match="'n_slack' or 'one_slack' with kernel"):
        sl.StructuredSVM(flat, sl.costs.ZeroOne(), kernel="rbf", solver="bcfw").fit(ring, y)


def test_a_network_gets_an_exact_head() -> None:
    x, y, lengths = words(30)
    encoder = nn.Sequential(nn.Linear(128, 16), nn.Tanh())
    module = sl.features.ChainMap(16, 26, encoder=encoder)
    loss = sl.StructuredHinge(sl.costs.Hamming())
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(15):
        optimizer.zero_grad()
        loss(module(x, lengths), y).backward()
        optimizer.step()
    before = module.weights().clone()
    refit = refit_head(module, x, y, lengths, cost=sl.costs.Hamming(), C=5.0, gap=1e-3)
    assert refit.certificate.converged
    assert torch.equal(module.weights(), before)
    assert torch.equal(refit.module.encoder[0].weight, encoder[0].weight)  # type: ignore[index]

    def objective(m: sl.features.ChainMap) -> float:
        with torch.no_grad():
            return float(0.5 * m.weights().square().sum() + 5.0 * loss(m(x, lengths), y))

    assert objective(refit.module) == pytest.approx(refit.certificate.primal, rel=1e-4)  # type: ignore[arg-type]
    assert objective(refit.module) < objective(module)  # type: ignore[arg-type]


@pytest.mark.parametrize("penalty", ["linear", "quadratic"])
def test_the_layer_solves_and_differentiates(penalty: Any) -> None:
    g = torch.Generator().manual_seed(2)
    a = torch.randn(6, 4, generator=g, dtype=torch.float64)
    b = torch.ones(6, dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1, 2, 2])
    layer = SVMLayer(penalty)
    box, ridge = (2.0 / 3, 0.0) if penalty == "linear" else (float("inf"), 3 / 2.0)
    exact = qps.solve(qps.DualQP(a @ a.T, b, group, box, ridge), "smo", tolerance=1e-11).alpha @ a
    torch.testing.assert_close(layer(a, b, group, 2.0), exact, atol=1e-5, rtol=1e-5)
    weights = torch.randn(4, generator=g, dtype=torch.float64)

    def value(a: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
        return layer(a, b, group, C) @ weights

    inputs = (a.requires_grad_(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradcheck(value, inputs, eps=1e-5, atol=1e-3, rtol=1e-3)
    with pytest.raises(ShapeError, match="a, b, group"):
        layer(a, b[:3], group, 2.0)


def test_an_encoder_learns_through_the_layer() -> None:
    """The SVM is fitted on the support half; the loss of its w on the query half trains the encoder."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(24, 6, generator=g, dtype=torch.float64)
    sign = torch.where(x[:, 0] * 1.0 + 0.2 * x[:, 1] > 0, 1.0, -1.0).double()
    x[:, 2:] *= 4.0  # directions that say nothing, and loudly
    encoder = nn.Linear(6, 3, bias=False).double()
    layer, optimizer = SVMLayer(), torch.optim.Adam(encoder.parameters(), lr=0.05)
    losses = []
    for _ in range(25):
        phi = encoder(x)
        support, query = sign[:12, None] * phi[:12], sign[12:, None] * phi[12:]
        w = layer(support, torch.ones(12).double(), torch.arange(12), 1.0)
        loss = (1 - query @ w).clamp(min=0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.6 * losses[0]


def chains(**options: Any) -> sl.StructuredSVM:
    given = {"C": 2.0, "gap": 5e-7, "solver": "one_slack", **options}
    return sl.StructuredSVM(sl.features.ChainMap(3, 3), sl.costs.Hamming(), **given)  # type: ignore[arg-type]


DISTRIBUTED = """
import os, sys
sys.path[:0] = {path!r}
import torch, torch.distributed as dist
from datetime import timedelta
import structlearn as sl
from structlearn.errors import ProcessError
from test_svm_training import chains, small_chains
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
x, y, lengths = small_chains()
mine = slice(0, 9) if rank == 0 else slice(9, None)
def die(row):
    if {dies} and rank == 1 and row.round == 3:
        os._exit(1)
try:
    model = chains(distributed=True).fit(x[mine], y[mine], lengths[mine], callback=die)
except ProcessError as error:
    print("ProcessError", error)
    os._exit(3)
torch.save((model.coef_, model.certificate_.primal, model.certificate_.dual), f"{{sys.argv[1]}}/{{rank}}.pt")
dist.destroy_process_group()  # a process that ends with gloo's threads running may abort
"""


def launch(tmp_path: Path, dies: bool, port: int) -> list[subprocess.Popen[str]]:
    script = DISTRIBUTED.format(path=sys.path, dies=dies)
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            env={**common, "RANK": str(rank)}, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    for process in launch(tmp_path, False, free_port()):
        process.communicate(timeout=120)
        assert process.returncode == 0
    x, y, lengths = small_chains()
    one = chains().fit(x, y, lengths)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert torch.equal(first[0], second[0])
    assert first[1] == pytest.approx(one.certificate_.primal, rel=1e-6)
    two = sl.features.ChainMap(3, 3).double()
    with torch.no_grad():
        nn.utils.vector_to_parameters(first[0], two.parameters())
    predicted = two(x, lengths).argmax()
    assert torch.equal(predicted, one.predict(x, lengths))


def test_a_dead_process_is_an_error(tmp_path: Path) -> None:
    first, second = launch(tmp_path, True, free_port())
    out, _ = first.communicate(timeout=120)
    second.communicate(timeout=120)
    assert first.returncode == 3
    assert "ProcessError" in out


def test_the_page_on_ones_own_output_space_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "own-structure.md").read_text()
    exec(compile(page.split("```python\n")[1].split("```")[0], "own-structure.md", "exec"), {"__name__": "page"})
    right, gap = map(float, capsys.readouterr().out.split())
    assert right > 0.8
    assert gap < 0.05
