"""The semi-Markov chain's Triton kernels, interpreted, at sizes that take several tiles, against the reference."""

from __future__ import annotations

import pytest
import torch
from cases import NEG_INF
from structlearn.gpu import semimarkov as gpu
from torch import Tensor

import structlearn as sl

pytestmark = pytest.mark.usefixtures("poisoned_memory")

# (B, N, W, C), shared, dtype: a part of a block, a block and a bit, several tiles of labels, of widths, of both.
CASES = [
    ((2, 5, 3, 17), True, torch.float64),
    ((2, 5, 3, 17), False, torch.float32),
    ((2, 3, 2, 70), True, torch.float64),
    ((2, 3, 2, 70), False, torch.float64),
    ((2, 3, 2, 144), True, torch.float32),
    ((2, 2, 2, 144), False, torch.float32),
    ((1, 18, 17, 130), True, torch.float32),
    ((2, 36, 35, 16), True, torch.float32),
]


def draw(*shape: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(shape, dtype=dtype)
    return x.masked_fill(torch.rand(shape) < 0.2, NEG_INF)


@pytest.mark.parametrize(("shape", "shared", "dtype"), CASES, ids=str)
def test_several_tiles(shape: tuple[int, int, int, int], shared: bool, dtype: torch.dtype) -> None:
    b, n, _, c = shape
    segments, transition = draw(*shape, dtype=dtype), draw(*((c, c) if shared else (b, n - 1, c, c)), dtype=dtype)
    lengths = torch.tensor([n, 1, max(n - 2, 0)][:b])
    grad = torch.rand(b, dtype=dtype)
    results = []
    for backend, wide in (("triton", dtype), ("reference", torch.float64)):
        leaves = [x.to(wide, copy=True).requires_grad_() for x in (segments, transition)]
        s = sl.SemiMarkov(*leaves, lengths=lengths, backend=backend)
        log_z = s.log_partition()
        found = torch.autograd.grad(log_z, leaves, grad.to(wide))
        results.append([x.detach().double() for x in (log_z, s.max(), *found)])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-5 if dtype is torch.float32 else 1e-10, atol=1e-5)
    exact = sl.SemiMarkov(segments, transition, lengths=lengths, backend="reference")
    assert torch.equal(gpu.viterbi(segments, transition, lengths)[0], exact._best()[0])


def test_long_sequences_keep_their_digits() -> None:
    segments, transition = torch.randn(1, 150, 3, 4) * 5, torch.randn(4, 4)
    s = sl.SemiMarkov(segments, transition, backend="triton")
    exact = sl.SemiMarkov(segments.double(), transition.double(), backend="cpu")
    torch.testing.assert_close(s.log_partition().double(), exact.log_partition(), rtol=1e-6, atol=0)
    torch.testing.assert_close(s.marginals().segments.double(), exact.marginals().segments, rtol=0, atol=2e-5)


def test_strides() -> None:
    whole = torch.randn(6, 2, 3, 4)  # (W, B, C, N)
    segments, transition = whole[::2].permute(1, 3, 0, 2), torch.randn(3, 3).T
    assert not segments.is_contiguous()
    a = sl.SemiMarkov(segments, transition, backend="triton")
    b = sl.SemiMarkov(segments.contiguous(), transition.contiguous(), backend="triton")
    assert torch.equal(a.argmax(), b.argmax())
    assert torch.equal(a.log_partition(), b.log_partition())
    assert torch.equal(a.marginals().segments, b.marginals().segments)
