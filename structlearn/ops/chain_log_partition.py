"""log Z of chains on the CPU, called eagerly, with its gradient computed in the same kernel call.

For short sequences the time goes into Python and into autograd's bookkeeping, not into the recurrence: one kernel
call instead of two, and the gradient handed to autograd as it is, take 40 % off both at (32,50,10).
The gradient is that of sum_b log Z_b; a backward pass that weights the rows differently, that asks for a second
derivative or that comes a second time takes the operators of ``ops/chain.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structlearn.ops import chain


def value_and_gradient(*args: Any) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor | None, Tensor | None]]:
    """log Z (B,) and d (sum_b log Z_b) / d (unary, transition, start, end)."""
    unary, transition, start, end, _ = args
    log_z = unary.new_empty(unary.shape[0])
    gradient = (
        unary.new_empty(unary.shape),
        unary.new_empty(transition.shape),
        None if start is None else unary.new_empty(start.shape),
        None if end is None else unary.new_empty(end.shape),
    )
    chain.call("value_and_gradient", args, log_z, *gradient)
    return log_z, gradient


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        log_z, ctx.gradient = value_and_gradient(*args)
        ctx.save_for_backward(*args)
        return log_z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        gradient, ctx.gradient = ctx.gradient, None
        weights = grad.tolist()
        equal = not weights or weights.count(weights[0]) == len(weights)
        if gradient is not None and equal and not torch.is_grad_enabled():
            if weights and weights[0] != 1.0:
                gradient = tuple(None if x is None else x.mul_(weights[0]) for x in gradient)
            return *gradient, None
        args = ctx.saved_tensors
        with torch.no_grad():
            log_z, alpha = chain.forward(*args, True, "cpu")
        unary, transition, start, end = chain.backward(*args, alpha, log_z, grad, "cpu")
        return unary, transition, None if args[2] is None else start, None if args[3] is None else end, None


def log_partition(*args: Any) -> Tensor:
    """log Z (B,) for chain arguments on the CPU that need a gradient."""
    log_z: Tensor = _LogPartition.apply(*args)  # type: ignore[no-untyped-call]
    return log_z
