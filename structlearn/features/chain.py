"""Joint features of a label sequence.

    Psi(x, y) = sum_t Phi(x^t) (x) e(y_t)  +  eta sum_t e(y_{t-1}) (x) e(y_t),   s(y) = <weights, Psi(x, y)>

with Phi the encoder's output at position t (the input itself if there is none).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from structlearn.errors import ShapeError
from structlearn.structures import LinearChain


class ChainMap(nn.Module):
    """x (B, N, in_features) to a :class:`LinearChain` with unary = Phi(x) W^T and transition = eta A.

    Args:
        in_features: size of Phi(x^t).
        num_labels: C.
        eta: weight of the transition features.
        encoder: any module x -> (B, N, in_features); the identity if not given.

    Weights: ``emission`` (C, in_features) and ``transition`` (C, C), zero at the start.
    """

    def __init__(self, in_features: int, num_labels: int, *, eta: float = 1.0, encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.eta = eta
        self.emission = nn.Parameter(torch.zeros(num_labels, in_features))
        self.transition = nn.Parameter(torch.zeros(num_labels, num_labels))

    def features(self, x: Tensor) -> Tensor:
        """Phi(x), (B, N, in_features)."""
        phi: Tensor = x if self.encoder is None else self.encoder(x)
        if phi.dim() != 3 or phi.shape[2] != self.emission.shape[1]:
            raise ShapeError(
                "x", f"(B, N, {self.emission.shape[1]}) after the encoder", tuple(phi.shape), "check in_features or the encoder"
            )
        return phi

    def forward(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> LinearChain:
        """The scores of all label sequences for x."""
        return LinearChain(self.features(x) @ self.emission.T, self.eta * self.transition, lengths=lengths)

    def joint(self, x: Tensor, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Psi(x, y), (B, C * in_features + C * C), in the order of ``weights()``."""
        chain = self(x, lengths)
        labels, mask, classes, dtype = chain.positions(y)
        hot = nn.functional.one_hot(labels, classes).to(dtype) * mask.unsqueeze(-1)
        emission = torch.einsum("bnc,bnf->bcf", hot, torch.where(mask.unsqueeze(-1), self.features(x), 0.0))
        transition = self.eta * torch.einsum("bnp,bnc->bpc", hot[:, :-1], hot[:, 1:])
        return torch.cat([emission.flatten(1), transition.flatten(1)], 1)

    def weights(self) -> Tensor:
        """All weights as one vector."""
        return torch.cat([self.emission.flatten(), self.transition.flatten()])
