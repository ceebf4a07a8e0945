"""Operators of the tree kernel; the equations are in ``reranking/tree_kernel.py``.

A set of trees is five int64 tensors: production (U,) and first_child (U+1,) into children (E,) of the different
subtrees, children before parents; first_node (T+1,) into nodes, the numbers of each tree's nodes, rising.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from structlearn.ops._library import kernel
from structlearn.ops._register import operator

_PACK = struct.Struct("5Pq5Pqqq").pack  # TreeKernelArgs of kernels/cpu/tree_kernel.cpp


def _call(name: str, left: Sequence[Tensor], right: Sequence[Tensor], decay: float, out: Tensor) -> Tensor:
    left, right = [x.contiguous() for x in left], [x.contiguous() for x in right]
    same = all(a.data_ptr() == b.data_ptr() and a.shape == b.shape for a, b in zip(left, right, strict=True))
    packed = _PACK(
        *[x.data_ptr() for x in left], left[3].shape[0] - 1,
        *[x.data_ptr() for x in right], right[3].shape[0] - 1,
        same, torch.get_num_threads(),
    )  # fmt: skip
    rate = torch.tensor([decay], dtype=out.dtype)
    kernel("tree_kernel_" + name, out.dtype, 3)(packed, rate.data_ptr(), out.data_ptr())
    return out


def _gram(
    production: Tensor, first_child: Tensor, children: Tensor, first_node: Tensor, nodes: Tensor,
    production2: Tensor, first_child2: Tensor, children2: Tensor, first_node2: Tensor, nodes2: Tensor, decay: float,
) -> Tensor:  # fmt: skip
    left = (production, first_child, children, first_node, nodes)
    right = (production2, first_child2, children2, first_node2, nodes2)
    return _call("gram", left, right, decay, _gram_fake(*left, *right, decay))


def _gram_fake(
    production: Tensor, first_child: Tensor, children: Tensor, first_node: Tensor, nodes: Tensor,
    production2: Tensor, first_child2: Tensor, children2: Tensor, first_node2: Tensor, nodes2: Tensor, decay: float,
) -> Tensor:  # fmt: skip
    return production.new_empty((first_node.shape[0] - 1, first_node2.shape[0] - 1), dtype=torch.float64)


def _diagonal(
    production: Tensor, first_child: Tensor, children: Tensor, first_node: Tensor, nodes: Tensor, decay: float
) -> Tensor:
    forest = (production, first_child, children, first_node, nodes)
    return _call("diagonal", forest, forest, decay, _diagonal_fake(*forest, decay))


def _diagonal_fake(
    production: Tensor, first_child: Tensor, children: Tensor, first_node: Tensor, nodes: Tensor, decay: float
) -> Tensor:
    return production.new_empty(first_node.shape[0] - 1, dtype=torch.float64)


_SET = "Tensor production, Tensor first_child, Tensor children, Tensor first_node, Tensor nodes"
_SET2 = "Tensor production2, Tensor first_child2, Tensor children2, Tensor first_node2, Tensor nodes2"
gram = operator(f"tree_kernel_gram({_SET}, {_SET2}, float decay) -> Tensor", _gram, _gram_fake)
diagonal = operator(f"tree_kernel_diagonal({_SET}, float decay) -> Tensor", _diagonal, _diagonal_fake)
