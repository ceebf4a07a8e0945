"""Operators of weighted grammars on Triton kernels; arguments as in ``ops/grammar.py``, gradients of first order."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from structlearn.ops._derivatives import require_second
from structlearn.ops._register import operator
from structlearn.ops.grammar import ARGS, _best_fake, _gradient_outputs, _returned, _save, _saved

_COUNT = 9  # arguments of the grammar


def _gpu() -> Any:
    from structlearn.gpu import grammar

    return grammar


def _best(*args: Any) -> tuple[Tensor, Tensor]:
    return _gpu().best(*args[: _COUNT - 1])  # type: ignore[no-any-return]


def _forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """log Z (B,), inside sums (B,N,N,S) and those before spans (B,N,N,NT)."""
    return _gpu().forward(*args[: _COUNT - 1])  # type: ignore[no-any-return]


def _forward_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    terms, nonterminals = args[0], args[6]
    b, n, p = terms.shape
    return terms.new_empty(b), terms.new_empty((b, n, n, nonterminals + p)), terms.new_empty((b, n, n, nonterminals))


def _forward_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(*output[1:])
    _save(ctx, inputs, *output)


def _forward_grad(ctx: Any, grad: Tensor | None, *_: None) -> Any:
    args, (log_z, chart, raw) = _saved(ctx)
    if grad is None:
        return (None,) * _COUNT
    return _returned(args, backward(*args, log_z.detach(), chart, raw, grad), _COUNT)


def _backward(*args: Any) -> tuple[Tensor, ...]:
    """sum_b grad_b d log Z_b / d potentials."""
    given = args[:_COUNT]
    terms, rules, roots, spans = _gpu().backward(*given[:-1], *args[_COUNT:])
    return terms, rules, roots, given[0].new_empty(0) if spans is None else spans


def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    return _gradient_outputs(args[:_COUNT])


def _no_second(ctx: Any, *grads: Any) -> Any:
    require_second("triton")


best = operator(f"grammar_gpu_best({ARGS}) -> (Tensor y, Tensor score)", _best, _best_fake)
backward = operator(
    f"grammar_gpu_backward({ARGS}, Tensor log_z, Tensor chart, Tensor raw, Tensor grad)"
    " -> (Tensor d_terms, Tensor d_rules, Tensor d_roots, Tensor d_spans)",
    _backward,
    _backward_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=_no_second,
)
forward = operator(
    f"grammar_gpu_forward({ARGS}) -> (Tensor log_z, Tensor chart, Tensor raw)",
    _forward,
    _forward_fake,
    setup_context=_forward_context,
    backward=_forward_grad,
)
