"""F1 of the candidates that were chosen from n-best lists.

F1 = 2 m / (p + g) over all lists, with m, p and g the brackets matched, predicted and gold of the chosen ones.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class ChosenF1(Metric):
    """``update(chosen, counts)`` takes indices (B,) and brackets matched, predicted, gold of all candidates (B, M, 3).

    ``compute`` gives f1, ``best``, that of an oracle, and ``first``, that of the first candidates.
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("counts", torch.zeros((3, 3), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, chosen: Tensor, counts: Tensor) -> None:
        rows = torch.arange(len(chosen), device=chosen.device)
        share = 2 * counts[..., 0].double() / counts[..., 1:].sum(-1).clamp(min=1)
        picks = (chosen, share.argmax(-1), torch.zeros_like(chosen))
        self.counts = self.counts + torch.stack([counts[rows, pick].sum(0) for pick in picks])

    def compute(self) -> dict[str, Tensor]:
        rows = self.counts.tolist()
        found = {name: 2 * m / max(p + g, 1) for name, (m, p, g) in zip(("f1", "best", "first"), rows, strict=True)}
        return {name: torch.tensor(value, device=self.counts.device) for name, value in found.items()}
