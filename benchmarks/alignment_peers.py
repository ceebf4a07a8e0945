"""Who aligns: structlearn, parasail, numba, JAX, a torch loop, and DeepBLAST's way."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.alignment_cases import AlignmentCase
from benchmarks.harness import Contestant
from benchmarks.peers.ours import UNTAPED


def ours_trace(case: AlignmentCase) -> Callable[[], Any]:
    import torch

    import structlearn as sl

    match = torch.from_numpy(case.match)
    return lambda: sl.Alignment(match, gap=case.gap, gap_open=case.gap_open).argmax()


def ours_score(case: AlignmentCase) -> Callable[[], Any]:
    import torch

    import structlearn as sl

    match = torch.from_numpy(case.match)
    return lambda: sl.Alignment(match, gap=case.gap, gap_open=case.gap_open).max()


def ours_partition(case: AlignmentCase) -> Callable[[], Any]:
    import torch

    import structlearn as sl

    match = torch.from_numpy(case.match).requires_grad_()

    def call() -> Any:
        match.grad = None
        log_z = sl.Alignment(match, gap=case.gap).log_partition()
        log_z.sum().backward()
        return log_z.detach(), match.grad

    return call


def ours_values(case: AlignmentCase) -> Callable[[], Any]:
    import torch

    import structlearn as sl

    match = torch.from_numpy(case.match)

    def call() -> Any:
        log_z, marginals = sl.Alignment(match, gap=case.gap).log_partition_and_marginals()
        return log_z, marginals.match

    return call


def parasail_calls(name: str, path: bool) -> Callable[[AlignmentCase], Callable[[], Any]]:
    def prepare(case: AlignmentCase) -> Callable[[], Any]:
        import parasail
        import torch

        function = getattr(parasail, name)
        gap_open, gap = int(-case.gap_open), int(-case.gap)
        pairs = list(zip(*case.sequences, strict=True))

        def some(part: list[tuple[str, str]]) -> list[Any]:
            found = []
            for x, y in part:
                result = function(x, y, gap_open, gap, parasail.blosum62)
                found.append((result.score, result.cigar if path else None))
            return found

        threads = torch.get_num_threads()
        if threads == 1:
            return lambda: some(pairs)
        pool = ThreadPoolExecutor(threads)  # its functions let go of the interpreter lock
        size = -(-len(pairs) // threads)
        parts = [pairs[k : k + size] for k in range(0, len(pairs), size)]
        return lambda: [result for found in pool.map(some, parts) for result in found]

    return prepare


def read_cigars(found: list[Any]) -> NDArray[np.int64]:
    """parasail's paths, made within the clock and decoded outside it; I consumes the query, D the other."""
    operations = {"=": 0, "X": 0, "M": 0, "I": 1, "D": 2}
    rows = []
    for _, cigar in found:
        row: list[int] = []
        for code in cigar.seq:
            row += [operations["MIDNSHP=X"[code & 15]]] * (int(code) >> 4)
        rows.append(row)
    width = max(map(len, rows))
    return np.array([row + [-100] * (width - len(row)) for row in rows])


def read_scores(found: list[Any]) -> NDArray[np.float64]:
    return np.array([float(score) for score, _ in found])


def numba_trace(case: AlignmentCase) -> Callable[[], Any]:
    from benchmarks import alignment_kernels

    return lambda: alignment_kernels.trace(case.match, np.float32(case.gap), np.float32(case.gap_open))


def numba_partition(case: AlignmentCase) -> Callable[[], Any]:
    from benchmarks import alignment_kernels

    return lambda: alignment_kernels.partition(case.match, np.float32(case.gap))


def smooth_partition(case: AlignmentCase) -> Callable[[], Any]:
    from benchmarks import alignment_kernels

    return lambda: alignment_kernels.smooth(case.match, case.gap)


def _diagonals(xp: Any, match: Any) -> Any:
    """(B, N, M) to (N+M-1, B, N): entry i of diagonal d is match[i, d-i], -inf outside."""
    b, n, m = match.shape
    wide = xp.concatenate([match, xp.full((b, n, n), -xp.inf, match.dtype)], 2).reshape(b, -1)
    return wide[:, : n * (n + m - 1)].reshape(b, n, n + m - 1).transpose(2, 0, 1)


def jax_partition(case: AlignmentCase) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    n, m = case.match.shape[1:]
    low = -1e30  # finite, since the gradient of logaddexp at -inf is NaN

    def log_z(match: Any) -> Any:
        b = match.shape[0]
        diagonals = jnp.maximum(_diagonals(jnp, match), low)
        rows = jnp.arange(n + 1)

        def step(carry: Any, entry: Any) -> Any:
            before, last = carry
            d, scores = entry
            down = jnp.pad(last, ((0, 0), (1, 0)), constant_values=low)[:, :-1]
            diagonal = jnp.pad(before, ((0, 0), (1, 0)), constant_values=low)[:, :-1]
            reached = jnp.pad(scores, ((0, 0), (1, 0)), constant_values=low) + diagonal
            total = jax.nn.logsumexp(jnp.stack([reached, down + case.gap, last + case.gap]), axis=0)
            inside = (rows <= d) & (d - rows <= m)
            total = jnp.where(inside, total, low)
            return (last, total), None

        first = jnp.where(rows == 0, 0.0, low) * jnp.ones((b, 1))
        second = jnp.where(rows <= 1, case.gap, low) * jnp.ones((b, 1))
        later = (jnp.arange(2, n + m + 1), diagonals)
        (_, last), _ = jax.lax.scan(step, (first, second), later)
        return last[:, n]

    both = jax.jit(jax.value_and_grad(lambda match: (lambda z: (z.sum(), z))(log_z(match)), has_aux=True))
    match = jnp.asarray(case.match)

    def call() -> Any:
        (_, z), gradient = both(match)
        return z.block_until_ready(), gradient.block_until_ready()

    return call


def torch_partition(case: AlignmentCase) -> Callable[[], Any]:
    import torch
    from torch.nn.functional import pad

    n, m = case.match.shape[1:]
    low = -1e30
    match = torch.from_numpy(case.match).requires_grad_()
    rows = torch.arange(n + 1)

    def call() -> Any:
        match.grad = None
        b = match.shape[0]
        wide = pad(match, (0, n), value=low).flatten(1)[:, : n * (n + m - 1)].view(b, n, n + m - 1)
        before = torch.where(rows == 0, 0.0, low).expand(b, -1)
        last = torch.where(rows <= 1, case.gap, low).expand(b, -1)
        for d, scores in enumerate(wide.unbind(2), 2):
            reached = pad(scores + before[:, :-1], (1, 0), value=low)
            down = pad(last[:, :-1], (1, 0), value=low)
            total = torch.stack([reached, down + case.gap, last + case.gap]).logsumexp(0)
            inside = (rows <= d) & (d - rows <= m)
            before, last = last, torch.where(inside, total, low)
        log_z = last[:, n]
        log_z.sum().backward()
        return log_z.detach(), match.grad

    return call


def _large(case: AlignmentCase) -> str | None:
    return "not tried: its tape takes gigabytes" if case.match.shape[1] > 500 else None


def _numpy(found: Any) -> Any:
    return tuple(np.asarray(x, dtype=np.float64) for x in found)


def _path(found: Any) -> NDArray[np.int64]:
    return np.asarray(found)


_TRACES = ("nw_trace_scan_16", "nw_trace_striped_16", "nw_trace_diag_16")
_SCORES = ("nw_striped_16", "nw_scan_16")
TRACE = (
    Contestant("structlearn", ours_trace, _path, role="ours"),
    *(
        Contestant(f"parasail {name}", parasail_calls(name, True), read_cigars, ("parasail",), family="parasail")
        for name in _TRACES
    ),
    Contestant("numba, plain loops", numba_trace, lambda found: found[1], ("numba",), family="numba"),
)
SCORE = (
    Contestant("structlearn", ours_score, np.asarray, role="ours"),
    *(
        Contestant(f"parasail {name}", parasail_calls(name, False), read_scores, ("parasail",), family=name)
        for name in _SCORES
    ),
)
PARTITION = (
    Contestant("structlearn", ours_partition, _numpy, role="ours"),
    Contestant(UNTAPED, ours_values, _numpy, role="untaped"),
    Contestant("numba forward-backward", numba_partition, _numpy, ("numba",), family="numba"),
    Contestant("JAX jit anti-diagonal scan", jax_partition, _numpy, ("jax",), family="jax"),
    Contestant("DeepBLAST's way (numba, pair by pair)", smooth_partition, _numpy, ("numba",), family="deepblast"),
    Contestant("torch anti-diagonal loop", torch_partition, _numpy, family="torch", cannot=_large),
)
