"""Turns a plain function into a torch.library operator that costs little when called eagerly.

An operator through the dispatcher with ``register_autograd`` costs about 20 microseconds a call, as much as
decoding a short sentence. The same forward, ``setup_context`` and ``backward`` also fit
``torch.autograd.Function`` (7 microseconds) and, where no gradient is wanted, a direct call (none), so a
plain eager call takes those, and everything else (compile, fake tensors, dispatch modes) takes the operator.
``torch.func`` cannot differentiate an operator with ``register_autograd``; it gets a third Function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("structlearn", "DEF")  # type: ignore[no-untyped-call]

_PLAIN = (Tensor, torch.nn.Parameter)


def is_eager(first: Tensor) -> bool:
    """Whether a call on ``first`` is plain eager execution, so that a kernel may be called directly."""
    return (
        type(first) in _PLAIN
        and not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def operator(
    schema: str,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Registers ``structlearn::{schema}`` and returns what the package calls.

    The first argument is a tensor. Without ``backward`` the results carry no gradient.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, forward, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"structlearn::{name}", fake, lib=LIBRARY)
    op = getattr(torch.ops.structlearn, name).default

    if backward is None:

        def without_gradient(*args: Any) -> Any:
            if is_eager(args[0]):
                return forward(*args)
            return op(*[a.detach() if isinstance(a, Tensor) else a for a in args])

        return without_gradient

    assert setup_context is not None
    torch.library.register_autograd(f"structlearn::{name}", backward, setup_context=setup_context, lib=LIBRARY)

    # One forward with ctx: given a separate setup_context, apply() inspects the signature on every call (25 us).
    def forward_in_context(ctx: Any, *args: Any) -> Any:
        results = forward(*args)
        setup_context(ctx, args, results)
        return results

    function: Any = type(
        name,
        (torch.autograd.Function,),
        {"forward": staticmethod(forward_in_context), "backward": staticmethod(backward)},
    )

    def differentiable(*args: Any) -> Any:
        if is_eager(args[0]):
            if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
                return function.apply(*args)
            return forward(*args)
        if torch._C._functorch.peek_interpreter_stack() is not None and not torch.compiler.is_compiling():
            return transformed.apply(*args)
        return op(*args)

    # Each level of torch.func unwraps its arguments and calls forward, which is the function of the next level.
    transformed: Any = type(
        name,
        (torch.autograd.Function,),
        {
            "forward": staticmethod(differentiable),
            "setup_context": staticmethod(setup_context),
            "backward": staticmethod(backward),
            "vmap": staticmethod(_row_by_row(differentiable)),
        },
    )
    return differentiable


def _row_by_row(function: Callable[..., Any]) -> Callable[..., Any]:
    """The vmap rule of ``function``: a loop, since its arguments have a batch axis of their own."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        rows = [
            function(*[a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)])
            for i in range(info.batch_size)
        ]
        if isinstance(rows[0], Tensor):
            return torch.stack(rows), 0
        return tuple(torch.stack(x) for x in zip(*rows, strict=True)), (0,) * len(rows[0])

    return rule
