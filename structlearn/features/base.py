"""What every joint feature map is.

    s(y) = F(x, y; w) = <w, Psi(x, y)>,

linear in the head's weights w, with any encoder in front. Since Psi = dF/dw, ``joint`` is one gradient of the
structure's own score, whatever the structure; maps do not write Psi a second time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.errors import ShapeError
from structlearn.structures import Structure


class FeatureMap(nn.Module, ABC):
    """x to a :class:`Structure`; a subclass defines ``forward`` and names its head's parameters in ``head``."""

    head: tuple[str, ...]

    def __init__(self, in_features: int, encoder: nn.Module | None) -> None:
        super().__init__()
        self.in_features = in_features
        self.encoder = encoder

    @abstractmethod
    def forward(self, x: Any, lengths: Any = None) -> Structure:
        """The scores of all outputs for x."""

    def features(self, x: Any, rank: int) -> Tensor:
        """Phi(x), (B, ..., in_features) with ``rank`` axes."""
        phi: Tensor = x if self.encoder is None else self.encoder(x)
        if phi.dim() != rank or phi.shape[-1] != self.in_features:
            axes = ", ".join(["B", "N"][: rank - 1])
            raise ShapeError(
                "x",
                f"({axes}, {self.in_features}) after the encoder",
                tuple(phi.shape),
                "check in_features or the encoder",
            )
        return phi

    def head_parameters(self) -> list[nn.Parameter]:
        """The parameters that the score is linear in, in the order of ``weights``."""
        return [self.get_parameter(name) for name in self.head]

    def weights(self) -> Tensor:
        """w, all head parameters as one vector (d,)."""
        return torch.cat([p.flatten() for p in self.head_parameters()])

    def joint(self, x: Any, y: Any, lengths: Any = None) -> Tensor:
        """Psi(x, y), (B, d): <weights(), joint(x, y)> = s(y) for each instance. Carries no gradient."""
        parameters = self.head_parameters()
        with torch.enable_grad():
            scores = self(x, lengths).score(y)
            rows = []
            for i in range(scores.shape[0]):
                grads = torch.autograd.grad(scores[i], parameters, retain_graph=True, allow_unused=True)
                rows.append(
                    torch.cat(
                        [
                            torch.zeros_like(p).flatten() if g is None else g.flatten()
                            for p, g in zip(parameters, grads, strict=True)
                        ]
                    )
                )
        return torch.stack(rows) if rows else scores.new_zeros((0, sum(p.numel() for p in parameters)))
