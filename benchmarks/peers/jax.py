"""JAX: jit-compiled scans over positions, arrays already on the device, ragged lengths by masks."""

from collections.abc import Callable
from typing import Any

from benchmarks.cases import ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import read_labels, read_partition


def _arrays(case: ChainCase) -> tuple[Any, Any, Any]:
    import jax.numpy as jnp

    return jnp.asarray(case.unary), jnp.asarray(case.transition), jnp.asarray(case.lengths, dtype=jnp.int32)


def _steps(unary: Any, lengths: Any) -> tuple[Any, Any]:
    """Time-major scores (N-1,B,C) and masks (N-1,B,1) of the positions after the first."""
    import jax.numpy as jnp

    here = jnp.arange(1, unary.shape[1])[:, None] < lengths[None, :]
    return unary.transpose(1, 0, 2)[1:], here[:, :, None]


def viterbi(unary: Any, transition: Any, lengths: Any) -> Any:
    """Labels (B,N), back-pointers kept by the forward scan."""
    import jax
    import jax.numpy as jnp

    keep = jnp.arange(transition.shape[0])

    def forward(best: Any, step: Any) -> Any:
        scores, here = step
        sums = best[:, :, None] + transition
        pointers = jnp.where(here, sums.argmax(1), keep)
        return jnp.where(here, sums.max(1) + scores, best), pointers

    def backward(label: Any, pointers: Any) -> Any:
        previous = jnp.take_along_axis(pointers, label[:, None], 1)[:, 0]
        return previous, previous

    best, pointers = jax.lax.scan(forward, unary[:, 0], _steps(unary, lengths))
    last = best.argmax(1)
    _, labels = jax.lax.scan(backward, last, pointers, reverse=True)
    return jnp.concatenate([labels, last[None]]).T


def viterbi_lazy(unary: Any, transition: Any, lengths: Any) -> Any:
    """Labels (B,N); the forward scan keeps maxima only, the backward one recovers the argmax along the best path."""
    import jax
    import jax.numpy as jnp

    columns = transition.T

    def forward(best: Any, step: Any) -> Any:
        scores, here = step
        return jnp.where(here, (best[:, :, None] + transition).max(1) + scores, best), best

    def backward(label: Any, step: Any) -> Any:
        best, here = step
        previous = jnp.where(here[:, 0], (best + columns[label]).argmax(1), label)
        return previous, previous

    steps = _steps(unary, lengths)
    best, history = jax.lax.scan(forward, unary[:, 0], steps)
    last = best.argmax(1)
    _, labels = jax.lax.scan(backward, last, (history, steps[1]), reverse=True)
    return jnp.concatenate([labels, last[None]]).T


def log_space(unary: Any, transition: Any, lengths: Any) -> Any:
    """log Z (B,) by logsumexp."""
    import jax
    import jax.numpy as jnp

    def forward(alpha: Any, step: Any) -> Any:
        scores, here = step
        return jnp.where(here, jax.nn.logsumexp(alpha[:, :, None] + transition, 1) + scores, alpha), None

    alpha, _ = jax.lax.scan(forward, unary[:, 0], _steps(unary, lengths))
    return jax.nn.logsumexp(alpha, 1)


def scaled(unary: Any, transition: Any, lengths: Any) -> Any:
    """log Z (B,) in probability space: a step is a matrix product, and its sum goes into the logarithm."""
    import jax
    import jax.numpy as jnp

    top = jax.lax.stop_gradient(transition.max())
    moves = jnp.exp(transition - top)
    peaks = jax.lax.stop_gradient(unary.max(2, keepdims=True))
    weights = jnp.exp(unary - peaks)

    def forward(alpha: Any, step: Any) -> Any:
        weight, here = step
        total = alpha.sum(1, keepdims=True)
        return jnp.where(here, (alpha / total) @ moves * weight, alpha), jnp.where(here, total, 1.0)

    alpha, totals = jax.lax.scan(forward, weights[:, 0], _steps(weights, lengths))
    real = jnp.arange(unary.shape[1])[None, :] < lengths[:, None]
    constants = ((peaks[:, :, 0] + top) * real).sum(1) - top
    return jnp.log(alpha.sum(1)) + jnp.log(totals).sum((0, 2)) + constants


def _labels(function: Callable[..., Any]) -> Callable[[ChainCase], Callable[[], Any]]:
    def prepare(case: ChainCase) -> Callable[[], Any]:
        import jax

        arrays, compiled = _arrays(case), jax.jit(function)
        return lambda: compiled(*arrays).block_until_ready()

    return prepare


def _gradients(function: Callable[..., Any]) -> Callable[[ChainCase], Callable[[], Any]]:
    def prepare(case: ChainCase) -> Callable[[], Any]:
        import jax

        def total(unary: Any, transition: Any, lengths: Any) -> Any:
            log_z = function(unary, transition, lengths)
            return log_z.sum(), log_z

        arrays, compiled = _arrays(case), jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))

        def call() -> Any:
            (_, log_z), gradients = jax.block_until_ready(compiled(*arrays))
            return log_z, *gradients

        return call

    return prepare


def _contestant(name: str, prepare: Any, read: Any, role: Any = "peer") -> Contestant:
    return Contestant(name, prepare, read, ("jax",), role, "jax", compiles_by_shape=True)


CONTESTANTS = {
    "chain_viterbi": (
        _contestant("JAX jit scan", _labels(viterbi), read_labels),
        _contestant("JAX jit scan, lazy argmax", _labels(viterbi_lazy), read_labels, "level"),
    ),
    "chain_partition": (
        _contestant("JAX jit scan, log space", _gradients(log_space), read_partition),
        _contestant("JAX jit scan, scaled", _gradients(scaled), read_partition),
    ),
}
