"""What every joint feature map is.

    s(y) = F(x, y; w) = <w, Psi(x, y)>,

linear in the head's weights w, with any encoder in front. Psi = dF/dw, so a gradient of the structure's own score gives
it whatever the structure, one backward pass an instance; a map that adds up its features by label instead has it for
the whole batch at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.descriptions import Described
from structlearn.errors import ShapeError
from structlearn.structures import Structure
from structlearn.structures.checks import check_label_tensor, unpadded


class FeatureMap(Described, nn.Module, ABC):
    """s(y) = <w, Psi(x, y)>: called on x (B, ...) it gives a :class:`Structure`, ``joint`` gives Psi (B, d).

    A subclass defines ``forward`` and names the parameters that s is linear in in ``head``.
    """

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
        with torch.no_grad():
            # A scalar parameter has a histogram (B,); of an empty batch -1 would not tell the width.
            parts = self.histograms(x, y, lengths)
            return torch.cat([part.reshape(part.shape[0], math.prod(part.shape[1:])) for part in parts], 1)

    def histograms(self, x: Any, y: Any, lengths: Any = None) -> list[Tensor]:
        """Psi(x, y) by head parameter, (B, ...) with the parameter's shape behind the batch.

        Right for every map, but one backward pass an instance: a subclass overrides it by sums over the whole batch.
        """
        parameters = self.head_parameters()
        found = [p.new_zeros((0, *p.shape)) for p in parameters]
        with torch.enable_grad():
            scores = self(x, lengths).score(y)
            rows = [
                torch.autograd.grad(s, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
                for s in scores
            ]
        return [torch.stack(row) for row in zip(*rows, strict=True)] if rows else found


def one_output(y: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """``y`` as int64 labels of exactly ``shape``: one output an instance."""
    y = check_label_tensor("y", y, shape, device)
    if y.dim() != len(shape):
        raise ShapeError("y", str(shape), tuple(y.shape), "pass one output an instance; call joint for each of several")
    return y


def added_up(values: Tensor, index: Tensor, size: int) -> Tensor:
    """out[b, i] = sum of values[b, t] over the t with index[b, t] = i, (B, size, F) from (B, M, F) and (B, M)."""
    b, _, f = values.shape
    rows = torch.arange(b, device=index.device)[:, None] * size + index
    return values.new_zeros((b * size, f)).index_add_(0, rows.flatten(), values.flatten(0, 1)).view(b, size, f)


def zero_beyond(phi: Tensor, lengths: Tensor | None) -> Tensor:
    """phi (B, N, F), 0 at padded positions: a product with NaN there would reach the gradients of all weights."""
    if lengths is None:
        return phi
    return torch.where(unpadded(lengths, phi.shape[0], phi.shape[1], phi.device).unsqueeze(-1), phi, 0.0)


def counted(used: Tensor, index: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """How often each place of ``shape`` has its flat ``index`` (B, M) where ``used`` (B, M), (B, *shape)."""
    return added_up(used.to(dtype).unsqueeze(-1), index, math.prod(shape)).view(-1, *shape)
