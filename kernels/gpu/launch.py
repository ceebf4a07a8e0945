"""What every launch function shares: a kernel launch as data, tile sizes, and the potentials as kernel arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PAD_LABEL = -100


@dataclass(frozen=True)
class Launch:
    """One kernel with its grid and arguments by name, ready to run here or to be compiled for another device."""

    kernel: Any
    grid: tuple[int, ...]
    args: dict[str, Any]
    num_warps: int

    @property
    def options(self) -> dict[str, Any]:
        """One stage: the software pipeliner knows nothing of the barriers between a row's stores and its loads.

        Fusion is named because its default differs between versions of triton; the max kernels have no product to fuse.
        """
        return {"num_warps": self.num_warps, "num_stages": 1, "enable_fp_fusion": True}

    def run(self) -> None:
        if 0 not in self.grid:
            self.kernel[self.grid](**self.args, **self.options)


def run(launches: Sequence[Launch], device: torch.device) -> None:
    if device.type == "cuda":
        with torch.cuda.device(device):
            for launch in launches:
                launch.run()
    else:
        for launch in launches:
            launch.run()


def tiles(C: int, dtype: torch.dtype, per_thread: int) -> tuple[int, int, int]:
    """(BLOCK_C, BLOCK_P, num_warps) for tiles of `per_thread` 32-bit registers in each of at most 512 threads.

    A row of C is never cut, so from C = 512 * per_thread on a thread holds more. A single warp, as at C <= 32 and 32
    registers, needs no barrier for its reductions.
    """
    words = dtype.itemsize // 4
    block_c = max(16, 1 << (C - 1).bit_length())
    block_p = min(block_c, max(1, 512 * per_thread // (block_c * words)))
    return block_c, block_p, min(16, max(1, block_c * block_p * words // (32 * per_thread)))


class Potentials:
    """The arguments every kernel takes, with states, and each transition matrix, contiguous."""

    def __init__(
        self, unary: Tensor, transition: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor | None
    ) -> None:
        self.B, self.N, self.C = unary.shape
        self.shared = transition.dim() == 2
        self.unary = unary if unary.stride(-1) == 1 else unary.contiguous()
        whole = transition.stride()[-2:] == (self.C, 1)
        self.transition = transition if whole else transition.contiguous()
        self.start = None if start is None else start.contiguous()
        self.end = None if end is None else end.contiguous()
        self.lengths = None if lengths is None else lengths.contiguous()

    def args(self, *names: str) -> dict[str, Any]:
        """The named tensors, the sizes and the strides."""
        batch, position = (0, 0) if self.shared else self.transition.stride()[:2]
        strides = {"stride_ub": self.unary.stride(0), "stride_un": self.unary.stride(1)}
        strides |= {"stride_tb": batch, "stride_tn": position}
        return {name: getattr(self, name) for name in names} | {"N": self.N, "C": self.C} | strides

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.unary.dtype, device=self.unary.device)

    def labels(self, *shape: int) -> Tensor:
        return torch.full(shape, PAD_LABEL, dtype=torch.int64, device=self.unary.device)
