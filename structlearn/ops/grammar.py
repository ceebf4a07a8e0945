"""Operators of weighted grammars; the equations are in ``structures/grammar.py``.

Arguments shared by all, called ``Args`` below: terms (B,N,P), rule_scores (R,) or (B,R), root_scores (NT,), (S,),
(B,NT) or (B,S), spans (B,N,N,NT) or None, lengths (B,) or None, and of the grammar: its tables, NT, Q and whether it
is dense (1; 2 if it is complete, too). Derivations are charts (B,N,N).
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from structlearn.errors import LabelError
from structlearn.ops._derivatives import given, no_third
from structlearn.ops._library import kernel, lengths_within
from structlearn.ops._register import operator

ARGS = (
    "Tensor terms, Tensor rules, Tensor roots, Tensor? spans, Tensor? lengths, Tensor tables, SymInt nonterminals,"
    " SymInt pairs, int dense"
)
_COUNT = 9  # arguments
_PACK = struct.Struct("5P13q9P2q").pack  # GrammarArgs of kernels/cpu/grammar.h


def _last_contiguous(x: Tensor) -> Tensor:
    return x if x.shape[-1] <= 1 or x.stride(-1) == 1 else x.contiguous()


def _rows(x: Tensor) -> tuple[Tensor, int]:
    """Scores (K,) or (B,K) and the stride of their rows, which is 0 for shared scores alone.

    An expanded tensor of one row or none is contiguous to torch, so its own stride may be 0 after ``contiguous``.
    """
    if x.dim() == 1:
        return _last_contiguous(x), 0
    x = x.contiguous() if x.stride(0) == 0 else _last_contiguous(x)
    return x, x.stride(0) or max(x.shape[1], 1)


def call(name: str, args: Any, *rest: Tensor | int | None) -> int:
    """Runs a C++ kernel on ``args`` and the outputs or options in ``rest``."""
    terms, rules, roots, spans, lengths, tables, nonterminals, pairs, dense = args
    terms, (rules, rules_b), (roots, roots_b) = _last_contiguous(terms), _rows(rules), _rows(roots)
    spans = None if spans is None else _last_contiguous(spans)
    b, n, p = terms.shape
    lengths = lengths_within("lengths", lengths, n)
    r = rules.shape[-1]
    at, places = tables.data_ptr(), []
    for size in (3 * r, nonterminals + 1, r, nonterminals + p + 1, pairs, pairs + 1, r, r, r):
        places.append(at)
        at += 4 * size
    packed = _PACK(
        terms.data_ptr(), rules.data_ptr(), roots.data_ptr(), 0 if spans is None else spans.data_ptr(),
        0 if lengths is None else lengths.data_ptr(), b, n, p, nonterminals, r, terms.stride(0), terms.stride(1),
        rules_b, roots_b, roots.shape[-1],
        *((0, 0, 0) if spans is None else spans.stride()[:3]), *places, dense, torch.get_num_threads(),
    )  # fmt: skip
    function = kernel("grammar_" + name, terms.dtype, 1 + len(rest))
    return int(function(packed, *[x if isinstance(x, int) else 0 if x is None else x.data_ptr() for x in rest]))


def unpack(grammar: Any) -> tuple[Tensor, int, int, int]:
    """What the operators take of a :class:`Grammar`."""
    dense = grammar.dense + (grammar.dense and grammar.complete)
    return grammar.tables, grammar.num_nonterminals, grammar.num_pairs, dense


def _chart(args: Any, *leading: int) -> Tensor:
    terms = args[0]
    b, n = terms.shape[:2]
    return terms.new_empty((*leading, b, n, n), dtype=torch.int64)  # type: ignore[no-any-return]


def _save(ctx: Any, args: Any, *more: Tensor) -> None:
    ctx.set_materialize_grads(False)
    ctx.numbers = args[6:_COUNT]
    ctx.save_for_backward(*args[:6], *more)


def _saved(ctx: Any) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """The arguments and what was saved beside them."""
    tensors = ctx.saved_tensors
    return (*tensors[:6], *ctx.numbers), tensors[6:]


def _gradient_outputs(args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where gradients of the four potentials go; the kernels write every entry. Empty for absent spans."""
    terms, rules, roots, spans = args[:4]
    new = [torch.empty(x.shape, dtype=terms.dtype, device=terms.device) for x in (terms, rules, roots)]
    return *new, terms.new_empty(0 if spans is None else spans.shape)  # type: ignore[return-value]


def _outputs(args: Any, results: Any) -> tuple[Any, ...]:
    """Results as arguments of a kernel, None for absent spans."""
    return *results[:3], results[3] if args[3] is not None else None


def _returned(args: Any, results: Any, count: int) -> tuple[Any, ...]:
    """Results as gradients of ``count`` arguments."""
    return *_outputs(args, results), *[None] * (count - 4)


def _best(*args: Any) -> tuple[Tensor, Tensor]:
    y, score = _best_fake(*args)
    call("best", args, y, score)
    return y, score


def _best_fake(*args: Any) -> tuple[Tensor, Tensor]:
    return _chart(args), args[0].new_empty(args[0].shape[0])


def _best_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, inputs, output[0])


def _best_grad(ctx: Any, _: None, grad: Tensor | None) -> Any:
    args, (y,) = _saved(ctx)
    if grad is None:
        return (None,) * _COUNT
    return _returned(args, score_backward(*args, y.unsqueeze(0), grad.unsqueeze(0)), _COUNT)


def _not_derived(y: Tensor, code: int) -> LabelError:
    """The error for chart number ``code // 3N²`` of ``y`` (..., B, N, N)."""
    words = y.shape[-1]
    square = words * words
    chart, kind, place = code // (3 * square), code // square % 3, code % square
    b, span = chart % y.shape[-3], divmod(place, words)
    entry = int(y.reshape(-1, words, words)[(chart, *span)])
    got = (
        f"{entry} on span {span} of batch row {b}, which is no rule or preterminal",
        f"rule {entry} over other children on span {span} of batch row {b}",
        f"entries that belong to no derivation, in batch row {b}",
    )[kind]
    return LabelError("y", "a derivation of the grammar", got, "each rule's children must be the symbols below it")


def _score(*args: Any) -> Tensor:
    """s(y) of charts (K,B,N,N), (K,B); with missing, -inf for charts without an entry for the whole sentence."""
    *given, y, missing = args
    y = y.contiguous()
    out: Tensor = given[0].new_empty(y.shape[:2])
    code = call("score", given, y, y.shape[0], int(missing), out)
    if code >= 0:
        raise _not_derived(y, code)
    return out


def _score_fake(*args: Any) -> Tensor:
    out: Tensor = args[0].new_empty(args[-2].shape[:2])
    return out


def _score_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, inputs, inputs[_COUNT])


def _score_grad(ctx: Any, grad: Tensor | None) -> Any:
    args, (y,) = _saved(ctx)
    if grad is None:
        return (None,) * (_COUNT + 2)
    return _returned(args, score_backward(*args, y, grad), _COUNT + 2)


def _score_backward(*args: Any) -> tuple[Tensor, ...]:
    """Counts of the parts of charts (K,B,N,N), weighted by grad (K,B)."""
    *given, y, grad = args
    results = _gradient_outputs(given)
    call("score_backward", given, y.contiguous(), y.shape[0], grad.contiguous(), *_outputs(given, results))
    return results


def _score_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    return _gradient_outputs(args)


def _counts_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, inputs, inputs[_COUNT])


def _counts_grad(ctx: Any, *directions: Tensor | None) -> Any:
    """The counts are linear in grad alone: their derivative along directions is the directions' score."""
    args, (y,) = _saved(ctx)
    moved = given(args[:4], directions)
    return *[None] * (_COUNT + 1), score(*moved, *args[4:], y, True)


def _forward(*args: Any) -> tuple[Tensor, Tensor]:
    """log Z (B,) and, if keep, what backward can use, in a form of its own; it may be nothing."""
    given = args[:-1]
    log_z, chart = _forward_fake(*args)
    call("forward", given, log_z, chart if chart.numel() else 0)
    return log_z, chart


def _forward_fake(*args: Any) -> tuple[Tensor, Tensor]:
    terms, nonterminals, dense, keep = args[0], args[6], args[8], args[_COUNT]
    b, n = terms.shape[:2]
    # dense_width and DenseSum::kept of kernels/cpu
    size = n * n * ((nonterminals + 15) // 16 * 16 + 2) + 1
    return terms.new_empty(b), terms.new_empty((b, size) if keep and dense else (0,))


def _forward_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mark_non_differentiable(output[1])
    _save(ctx, inputs, output[1])


def _forward_grad(ctx: Any, grad: Tensor | None, _: None) -> Any:
    args, (chart,) = _saved(ctx)
    if grad is None:
        return (None,) * (_COUNT + 1)
    return _returned(args, backward(*args, chart, grad), _COUNT + 1)


def _backward(*args: Any) -> tuple[Tensor, ...]:
    """sum_b grad_b d log Z_b / d potentials; chart: what forward kept, or empty."""
    *given, chart, grad = args
    results = _gradient_outputs(given)
    call("backward", given, chart if chart.numel() else 0, grad.contiguous(), *_outputs(given, results))
    return results


def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    return _gradient_outputs(args)


def _backward_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, inputs, inputs[_COUNT + 1])


def _backward_grad(ctx: Any, *directions: Tensor | None) -> Any:
    args, (grad,) = _saved(ctx)
    along, *curvature = second(*args, grad, *given(args[:4], directions))
    return *_returned(args, curvature, _COUNT + 1), along


def _second(*args: Any) -> tuple[Tensor, ...]:
    """(d log Z_b . v (B,), sum_b grad_b (d^2 log Z_b) v) for a direction v."""
    given, grad, directions = args[:_COUNT], args[_COUNT], args[_COUNT + 1 :]
    v = [None if d is None else d.contiguous() for d in directions]
    along, *results = _second_fake(*args)
    call("second", given, grad.contiguous(), *v, along, *_outputs(given, results))
    return along, *results


def _second_fake(*args: Any) -> tuple[Tensor, ...]:
    return args[0].new_empty(args[0].shape[0]), *_gradient_outputs(args)


def _entropy(*args: Any) -> Tensor:
    """-E[log p(y)]."""
    out = _entropy_fake(*args)
    call("entropy", args, out)
    return out


def _entropy_fake(*args: Any) -> Tensor:
    out: Tensor = args[0].new_empty(args[0].shape[0])
    return out


def _entropy_context(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, inputs)


def _entropy_grad(ctx: Any, grad: Tensor | None) -> Any:
    args, _ = _saved(ctx)
    if grad is None:
        return (None,) * _COUNT
    return _returned(args, entropy_backward(*args, grad), _COUNT)


def _entropy_backward(*args: Any) -> tuple[Tensor, ...]:
    """sum_b grad_b d H_b / d potentials."""
    *given, grad = args
    results = _gradient_outputs(given)
    call("entropy_backward", given, grad.contiguous(), *_outputs(given, results))
    return results


def _kbest(*args: Any) -> tuple[Tensor, Tensor]:
    *given, k = args
    y, scores = _kbest_fake(*args)
    call("kbest", given, k, y, scores)
    return y, scores


def _kbest_fake(*args: Any) -> tuple[Tensor, Tensor]:
    k = args[-1]
    return _chart(args, k), args[0].new_empty((k, args[0].shape[0]))


def _sample(*args: Any) -> Tensor:
    """Charts (S,B,N,N) by inverse CDF from uniform (S,B,2N-1,2), from the whole sentence down."""
    *given, uniform = args
    y = _sample_fake(*args)
    call("sample", given, uniform.contiguous(), uniform.shape[0], y)
    return y


def _sample_fake(*args: Any) -> Tensor:
    return _chart(args, args[-1].shape[0])


def count(*args: Any) -> Tensor:
    """Number of derivations that are not forbidden, (B,), float64: Z with every allowed part at 1."""
    allowed = [None if x is None else torch.where(x == float("-inf"), x, 0.0).double() for x in args[:4]]
    out = torch.empty(args[0].shape[0], dtype=torch.float64)
    call("plain", (*allowed, *args[4:]), out)
    return out


_FOUR = "(Tensor d_terms, Tensor d_rules, Tensor d_roots, Tensor d_spans)"

best = operator(f"grammar_best({ARGS}) -> (Tensor y, Tensor score)", _best, _best_fake)
best_score = operator(
    f"grammar_max({ARGS}) -> (Tensor y, Tensor score)",
    _best,
    _best_fake,
    setup_context=_best_context,
    backward=_best_grad,
)
score_backward = operator(
    f"grammar_score_backward({ARGS}, Tensor y, Tensor grad) -> {_FOUR}",
    _score_backward,
    _score_backward_fake,
    setup_context=_counts_context,
    backward=_counts_grad,
)
score = operator(
    f"grammar_score({ARGS}, Tensor y, bool missing) -> Tensor",
    _score,
    _score_fake,
    setup_context=_score_context,
    backward=_score_grad,
)
second = operator(
    f"grammar_second({ARGS}, Tensor grad, Tensor v_terms, Tensor v_rules, Tensor v_roots, Tensor? v_spans)"
    " -> (Tensor along, Tensor d_terms, Tensor d_rules, Tensor d_roots, Tensor d_spans)",
    _second,
    _second_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
backward = operator(
    f"grammar_backward({ARGS}, Tensor chart, Tensor grad) -> {_FOUR}",
    _backward,
    _backward_fake,
    setup_context=_backward_context,
    backward=_backward_grad,
)
forward = operator(
    f"grammar_forward({ARGS}, bool keep) -> (Tensor log_z, Tensor chart)",
    _forward,
    _forward_fake,
    setup_context=_forward_context,
    backward=_forward_grad,
)
entropy_backward = operator(
    f"grammar_entropy_backward({ARGS}, Tensor grad) -> {_FOUR}",
    _entropy_backward,
    _backward_fake,
    setup_context=lambda ctx, inputs, output: None,
    backward=no_third,
)
entropy = operator(
    f"grammar_entropy({ARGS}) -> Tensor",
    _entropy,
    _entropy_fake,
    setup_context=_entropy_context,
    backward=_entropy_grad,
)
kbest = operator(f"grammar_kbest({ARGS}, int k) -> (Tensor y, Tensor scores)", _kbest, _kbest_fake)
sample = operator(f"grammar_sample({ARGS}, Tensor uniform) -> Tensor", _sample, _sample_fake)
