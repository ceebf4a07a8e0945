"""Gradients of a reference dynamic program, taken by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from structlearn.structures.base import Structure, recordable, recording


def log_partition_gradient(structure: Structure) -> dict[str, Tensor]:
    """d (sum_b log Z_b) / d potentials by field name, differentiable where the potentials are."""
    given = structure.potentials
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in given.values())
    with recording():
        leaves = {
            name: x if differentiable and x.requires_grad else recordable(x).requires_grad_() for name, x in given.items()
        }
        log_z = structure.replace(**leaves).log_partition()
        grads = torch.autograd.grad(
            log_z.sum(), list(leaves.values()), create_graph=differentiable, allow_unused=True, materialize_grads=True
        )
    return dict(zip(leaves, grads, strict=True))
