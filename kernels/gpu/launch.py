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
    variant: str = ""  # which of the forms that arguments of None give the kernel
    fusion: bool = True

    @property
    def name(self) -> str:
        return f"{self.kernel.__name__}/{self.variant}" if self.variant else str(self.kernel.__name__)

    @property
    def options(self) -> dict[str, Any]:
        """Compiler options, each set because the default does harm.

        One stage: the software pipeliner knows nothing of the barriers between a row's stores and its loads.
        Registers up to the hardware's limit: left alone, the assembler spills a few bytes to fit one more program.
        Fusion: its default differs between versions of triton; a kernel with a product whose ties count forbids it.
        """
        registers = min(255, 65536 // (32 * self.num_warps))
        return {"num_warps": self.num_warps, "num_stages": 1, "maxnreg": registers, "enable_fp_fusion": self.fusion}

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


def tiles(C: int, dtype: torch.dtype, per_thread: int, max_warps: int = 16) -> tuple[int, int, int]:
    """(BLOCK_C, BLOCK_P, num_warps) for tiles of `per_thread` 32-bit registers a thread.

    BLOCK_C covers all C states, so beyond 32 * max_warps * per_thread states a thread holds more than that.
    """
    words = dtype.itemsize // 4
    block_c = max(16, 1 << (C - 1).bit_length())
    block_p = min(block_c, max(1, 32 * max_warps * per_thread // (block_c * words)))
    return block_c, block_p, min(max_warps, max(1, block_c * block_p * words // (32 * per_thread)))


def resident_tiles(C: int, dtype: torch.dtype, max_warps: int = 16) -> tuple[int, int, int]:
    """One tile of the whole C x C matrix, kept in registers, where 32 a thread hold it; else smaller ones at 16.

    With 16 warps that is C <= 128 in float32, C <= 64 in float64.
    """
    block_c, block_p, num_warps = tiles(C, dtype, 32, max_warps)
    return (block_c, block_p, num_warps) if block_p == block_c else tiles(C, dtype, 16)


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
        """The named tensors, the sizes, and the strides of unary."""
        sizes = {"N": self.N, "C": self.C, "stride_ub": self.unary.stride(0), "stride_un": self.unary.stride(1)}
        return {name: getattr(self, name) for name in names} | sizes

    def transitions(self) -> dict[str, Any]:
        """The transition and its strides, both 0 where it is shared."""
        batch, position = (0, 0) if self.shared else self.transition.stride()[:2]
        return {"transition": self.transition, "stride_tb": batch, "stride_tn": position}

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self.unary.dtype, device=self.unary.device)

    def labels(self, *shape: int) -> Tensor:
        return torch.full(shape, PAD_LABEL, dtype=torch.int64, device=self.unary.device)
