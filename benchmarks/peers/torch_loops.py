"""What a careful user writes in plain torch: one loop over positions, batched over sequences and states."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.cases import ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import differentiate, inputs, mask_of, read_labels, read_partition

if TYPE_CHECKING:
    from torch import Tensor


def viterbi(unary: "Tensor", transition: "Tensor", mask: "Tensor") -> "Tensor":
    """Labels (B,N); beyond a sequence's end its last label repeats."""
    import torch

    keep = torch.arange(unary.shape[2])
    best, pointers = unary[:, 0], []
    for scores, here in zip(unary.unbind(1)[1:], mask.unbind(1)[1:], strict=True):
        top, previous = (best.unsqueeze(2) + transition).max(1)
        here = here.unsqueeze(1)
        best = torch.where(here, top + scores, best)
        pointers.append(torch.where(here, previous, keep))
    label = best.argmax(1, keepdim=True)
    labels = [label]
    for previous in reversed(pointers):
        label = previous.gather(1, label)
        labels.append(label)
    return torch.cat(labels[::-1], 1)


def log_space(unary: "Tensor", transition: "Tensor", mask: "Tensor") -> "Tensor":
    """log Z (B,) by logsumexp. `unbind` rather than indexing: under autograd an index zero-fills (B,N,C) each step."""
    import torch

    alpha, *rest = unary.unbind(1)
    for scores, here in zip(rest, mask.unbind(1)[1:], strict=True):
        step = torch.logsumexp(alpha.unsqueeze(2) + transition, 1) + scores
        alpha = torch.where(here.unsqueeze(1), step, alpha)
    return torch.logsumexp(alpha, 1)


def scaled(unary: "Tensor", transition: "Tensor", mask: "Tensor") -> "Tensor":
    """log Z (B,) in probability space: a step is a matrix product, and its sum goes into the logarithm."""
    import torch

    top = transition.detach().max()
    moves = (transition - top).exp()
    peaks = unary.detach().amax(2, keepdim=True)
    weights = (unary - peaks).exp().unbind(1)
    alpha, logs = weights[0], []
    ones = torch.ones_like(alpha[:, :1])
    for weight, here in zip(weights[1:], mask.unbind(1)[1:], strict=True):
        total = alpha.sum(1, keepdim=True)
        here = here.unsqueeze(1)
        alpha = torch.where(here, (alpha / total) @ moves * weight, alpha)
        logs.append(torch.where(here, total, ones))
    constants = ((peaks.squeeze(2) + top) * mask).sum(1) - top
    log_z = alpha.sum(1).log() + constants
    return log_z + torch.cat(logs, 1).log().sum(1) if logs else log_z


def chain_viterbi(case: ChainCase) -> Callable[[], Any]:
    unary, transition, _ = inputs(case)
    mask = mask_of(case)
    return lambda: viterbi(unary, transition, mask)


def chain_partition(case: ChainCase) -> Callable[[], Any]:
    unary, transition, _ = inputs(case, grad=True)
    mask = mask_of(case)
    return differentiate(lambda u, t: log_space(u, t, mask), unary, transition)


def chain_partition_scaled(case: ChainCase) -> Callable[[], Any]:
    unary, transition, _ = inputs(case, grad=True)
    mask = mask_of(case)
    return differentiate(lambda u, t: scaled(u, t, mask), unary, transition)


CONTESTANTS = {
    "chain_viterbi": (Contestant("torch loop", chain_viterbi, read_labels, ("torch",), family="torch"),),
    "chain_partition": (
        Contestant("torch loop, log space", chain_partition, read_partition, ("torch",), family="torch"),
        Contestant("torch loop, scaled", chain_partition_scaled, read_partition, ("torch",), family="torch"),
    ),
}
