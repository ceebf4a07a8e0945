"""hmmlearn's C++ Viterbi, sequence by sequence, float64; it takes probabilities and logarithms of emissions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import PAD, ChainCase
from benchmarks.harness import Contestant
from benchmarks.peers.tensors import inputs, read_labels, read_lists


def chain_viterbi(case: ChainCase) -> Callable[[], Any]:
    """Contiguous float64 arrays, one a sequence, made outside the timed call."""
    from hmmlearn import _hmmc

    start, moves = np.ones(case.shape[2]), np.exp(case.transition.astype(np.float64))
    frames = [np.ascontiguousarray(u[:n], dtype=np.float64) for u, n in zip(case.unary, case.lengths, strict=True)]
    return lambda: [_hmmc.viterbi(start, moves, frame)[1] for frame in frames]


def chain_viterbi_wrapped(case: ChainCase) -> Callable[[], Any]:
    """Float32 tensors in, padded label tensor out."""
    import torch
    from hmmlearn import _hmmc

    unary, transition, lengths = inputs(case)

    def call() -> Any:
        frames, moves = unary.double().numpy(), transition.double().exp().numpy()
        start = np.ones(moves.shape[0])
        labels = np.full(frames.shape[:2], PAD, dtype=np.int64)
        for row, frame, length in zip(labels, frames, lengths.tolist(), strict=True):
            row[:length] = _hmmc.viterbi(start, moves, frame[:length])[1]
        return torch.from_numpy(labels)

    return call


_REQUIRES = ("hmmlearn._hmmc",)
CONTESTANTS = {
    "chain_viterbi": (
        Contestant("hmmlearn C++ (float64)", chain_viterbi, read_lists, _REQUIRES, family="hmmlearn"),
        Contestant("hmmlearn C++, tensors in and out", chain_viterbi_wrapped, read_labels, _REQUIRES, "wrapped"),
    ),
}
