"""Launch functions of the span tree's Triton kernels; recurrences and limits are described beside the kernels.

    s(y) = sum over the spans i..j of a labelled binary tree of spans[i, j, label]

Shapes everywhere: spans (B, N, N, L), read at i <= j < length alone; lengths (B,) int64 or None. float32 or float64.
Trees are charts (B, N, N) of labels, -100 where there is no span. A row of length 0 has score and log-partition 0; one
without feasible output has -inf, a chart of -100 and gradient 0.
"""

from typing import Any

import torch
from torch import Tensor

from .launch import PAD_LABEL, Launch, run


class Potentials:
    """The arguments every kernel takes, with labels contiguous, and the tiles."""

    def __init__(self, spans: Tensor, lengths: Tensor | None) -> None:
        self.B, self.N, _, self.L = spans.shape
        self.spans = spans if spans.stride(-1) == 1 or self.L == 1 else spans.contiguous()
        self.lengths = None if lengths is None else lengths.contiguous()
        words = spans.element_size() // 4
        # A tile of 8 registers a thread at 4 warps; a vector of first words at one lane a thread.
        self.block_l = min(128, max(4, _power(self.L)))
        self.block_j = max(1, min(1024 // words // self.block_l, _power(self.N)))
        self.block_i = min(256, max(32, _power(self.N)))

    def args(self) -> dict[str, Any]:
        """The potentials with sizes and strides."""
        strides = dict(zip(("stride_b", "stride_i", "stride_j"), self.spans.stride()[:3], strict=True))
        return {"spans": self.spans, "lengths": self.lengths, "N": self.N, "L": self.L, **strides}

    def tile(self) -> dict[str, int]:
        return {"BLOCK_J": self.block_j, "BLOCK_L": self.block_l}

    def chart(self, *leading: int) -> Tensor:
        return self.spans.new_empty((*leading, self.B, self.N, self.N))

    def inside(self, label: Tensor, inside: Tensor, cut: Tensor, total: Tensor, log: bool) -> list[Launch]:
        """Labels, then widths in order."""
        from .span_tree_kernels import span_inside_kernel, span_label_kernel

        variant = "log" if log else "max"
        labels = self.args() | self.tile() | {"label": label, "LOG": log}
        widths = {
            "label": label,
            "lengths": self.lengths,
            "inside": inside,
            "cut": cut,
            "total": total,
            "N": self.N,
            "LOG": log,
            "BLOCK_I": self.block_i,
        }
        return [
            Launch(span_label_kernel, (self.B, self.N), labels, 4, variant),
            Launch(span_inside_kernel, (self.B,), widths, self.block_i // 32, variant),
        ]


def _power(size: int) -> int:
    return 1 << (max(size, 1) - 1).bit_length()


def plan_best(spans: Tensor, lengths: Tensor | None) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    from .span_tree_kernels import span_trace_kernel

    x = Potentials(spans, lengths)
    label, inside = x.chart(2)
    labels = torch.full((x.B, x.N, x.N), PAD_LABEL, dtype=torch.int64, device=spans.device)
    score = spans.new_empty(x.B)
    # Without LOG the cuts are not stored, and any chart will do.
    launches = x.inside(label, inside, inside, score, log=False)
    stack = torch.empty((x.B, x.N), dtype=torch.int64, device=spans.device)
    trace = x.args() | {
        "inside": inside,
        "stack": stack,
        "labels": labels,
        "BLOCK_U": min(1024, max(32, _power(x.N))),
        "BLOCK_L": x.block_l,
    }
    return [*launches, Launch(span_trace_kernel, (x.B,), trace, 1)], (labels, score)


def best(spans: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """argmax_y s(y) and max_y s(y): charts (B, N, N) int64, score (B,)."""
    launches, outputs = plan_best(spans, lengths)
    run(launches, spans.device)
    return outputs


def plan_forward(spans: Tensor, lengths: Tensor | None) -> tuple[list[Launch], tuple[Tensor, Tensor]]:
    x = Potentials(spans, lengths)
    chart, log_z = x.chart(3), spans.new_empty(x.B)
    return x.inside(chart[0], chart[1], chart[2], log_z, log=True), (log_z, chart)


def forward(spans: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """log sum_y exp s(y): log_z (B,), and (3, B, N, N) for `backward`: labels, inside sums, sums over cuts."""
    launches, outputs = plan_forward(spans, lengths)
    run(launches, spans.device)
    return outputs


def plan_backward(
    spans: Tensor, lengths: Tensor | None, chart: Tensor, log_z: Tensor, grad: Tensor
) -> tuple[list[Launch], Tensor]:
    from .span_tree_kernels import span_gradient_kernel, span_outside_kernel

    x = Potentials(spans, lengths)
    share = x.chart()
    d_spans = torch.empty(spans.shape, dtype=spans.dtype, device=spans.device)
    outside = {
        "inside": chart[1],
        "cut": chart[2],
        "lengths": x.lengths,
        "log_z": log_z.contiguous(),
        "grad": grad.contiguous(),
        "share": share,
        "N": x.N,
        "BLOCK_I": x.block_i,
    }
    gradient = x.args() | x.tile() | {"label": chart[0], "share": share, "d_spans": d_spans}
    return [
        Launch(span_outside_kernel, (x.B,), outside, x.block_i // 32),
        Launch(span_gradient_kernel, (x.B, x.N), gradient, 4),
    ], d_spans


def backward(spans: Tensor, lengths: Tensor | None, chart: Tensor, log_z: Tensor, grad: Tensor) -> Tensor:
    """sum_b grad_b d log_z_b / d spans, (B, N, N, L), 0 where there is no span."""
    launches, d_spans = plan_backward(spans, lengths, chart, log_z, grad)
    run(launches, spans.device)
    return d_spans
