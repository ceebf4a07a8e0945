"""Tensors for the peers that take tensors, and readers of what they return."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases import PAD, ChainCase, Partition

if TYPE_CHECKING:
    from torch import Tensor


def inputs(case: ChainCase, *, grad: bool = False) -> "tuple[Tensor, Tensor, Tensor]":
    """unary (B,N,C), transition (C,C), lengths (B,); the potentials are leaves that want gradients if `grad`."""
    import torch

    unary, transition = torch.tensor(case.unary), torch.tensor(case.transition)
    return unary.requires_grad_(grad), transition.requires_grad_(grad), torch.tensor(case.lengths)


def mask_of(case: ChainCase) -> "Tensor":
    """(B,N) bool."""
    import torch

    return torch.tensor(case.mask)


def differentiate(log_partition: "Callable[..., Tensor]", *leaves: "Tensor") -> "Callable[[], tuple[Any, ...]]":
    """The call that is timed: clear the gradients, log Z (B,) of the leaves forward, backward of its sum."""

    def call() -> tuple[Any, ...]:
        for leaf in leaves:
            leaf.grad = None
        log_z = log_partition(*leaves)
        log_z.sum().backward()  # type: ignore[no-untyped-call]
        return log_z, *[leaf.grad for leaf in leaves]

    return call


def read_labels(result: Any) -> NDArray[np.int64]:
    """(B,N) labels of any array or tensor."""
    return np.asarray(result).astype(np.int64)


def read_lists(result: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """(B,N) labels of a list of ragged lists."""
    labels = np.full((len(result), max(map(len, result))), PAD, dtype=np.int64)
    for row, sequence in zip(labels, result, strict=True):
        row[: len(sequence)] = sequence
    return labels


def read_partition(result: Any) -> Partition:
    """log Z and both gradients, of tensors or arrays."""
    fields = (value.detach() if hasattr(value, "detach") else value for value in result)
    return Partition(*(np.array(value, dtype=np.float64) for value in fields))
