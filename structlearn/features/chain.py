"""Joint features of a label sequence.

    Psi(x, y) = sum_t Phi(x^{t-r..t+r}) (x) e(y_t)  +  eta sum_t e(y_{t-1}) (x) e(y_t)
              [ + eta sum_t e(y_{t-2}) (x) e(y_{t-1}) (x) e(y_t) ]        order=2
              [ + eta sum_t Phi(x^t) (x) e(y_{t-1}) (x) e(y_t) ]          input_transitions

with Phi the encoder's output at each position (the input itself if there is none), side by side over a window of
``2 window + 1`` positions, zero beyond the ends of the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from structlearn.errors import ArgumentError
from structlearn.features.base import FeatureMap, added_up, counted, one_output, zero_beyond
from structlearn.structures import LinearChain, SecondOrderChain
from structlearn.structures.checks import check_labels, check_lengths, unpadded


class ChainMap(FeatureMap):
    """x (B, N, in_features) to a :class:`LinearChain` with unary = Phi(x) W^T and transition = eta A.

    Args:
        in_features: size of Phi(x^t), before the window.
        num_labels: C.
        eta: weight of the transition features.
        encoder: any module x -> (B, N, in_features); the identity if not given.
        window: r, positions to either side whose Phi also scores a label.
        order: 1, or 2 for a :class:`SecondOrderChain`.
        input_transitions: score each transition by the input as well; gives transitions (B, N-1, C, C).

    Weights, zero at the start: ``emission`` (C, (2r+1) in_features), ``transition`` (C, C), and where asked for
    ``second`` (C, C, C) and ``input_transition`` (C, C, in_features).
    """

    def __init__(
        self,
        in_features: int,
        num_labels: int,
        *,
        eta: float = 1.0,
        encoder: nn.Module | None = None,
        window: int = 0,
        order: int = 1,
        input_transitions: bool = False,
    ) -> None:
        super().__init__(in_features, encoder)
        if order not in (1, 2):
            raise ArgumentError("order", "1 or 2", order, "longer histories need an automaton: see constraints.DFA")
        if order == 2 and input_transitions:
            raise ArgumentError("input_transitions", "False with order=2", True, "use order=1")
        if window < 0:
            raise ArgumentError("window", "an integer >= 0", window, "0 looks at the position itself")
        self.eta = eta
        self.window = window
        self.head = ("emission", "transition")
        self.emission = nn.Parameter(torch.zeros(num_labels, (2 * window + 1) * in_features))
        self.transition = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.second: nn.Parameter | None = None
        self.input_transition: nn.Parameter | None = None
        if order == 2:
            self.second = nn.Parameter(torch.zeros(num_labels, num_labels, num_labels))
            self.head += ("second",)
        if input_transitions:
            self.input_transition = nn.Parameter(torch.zeros(num_labels, num_labels, in_features))
            self.head += ("input_transition",)

    def _windows(self, phi: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, N, F) to (B, N, (2r+1) F): the neighbours' features, 0 beyond either end."""
        phi = zero_beyond(phi, lengths)
        if self.window == 0:
            return phi
        n = phi.shape[1]
        wide = nn.functional.pad(phi, (0, 0, self.window, self.window))
        return torch.cat([wide[:, i : i + n] for i in range(2 * self.window + 1)], -1)

    def forward(self, x: Any, lengths: Tensor | Sequence[int] | None = None) -> LinearChain | SecondOrderChain:  # type: ignore[override]
        """The scores of all label sequences for x."""
        phi = self.features(x, 3)
        lengths = check_lengths("lengths", lengths, phi.shape[0], phi.shape[1], phi.device)
        unary = self._windows(phi, lengths) @ self.emission.T
        transition = self.eta * self.transition
        if self.second is not None:
            return SecondOrderChain(unary, transition, self.eta * self.second, lengths=lengths)
        if self.input_transition is not None:
            transition = transition + self.eta * torch.einsum(
                "bnf,pcf->bnpc", zero_beyond(phi, lengths)[:, 1:], self.input_transition
            )
        return LinearChain(unary, transition, lengths=lengths)

    def histograms(self, x: Any, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Tensor]:
        phi = self.features(x, 3)
        b, n, f = phi.shape
        lengths = check_lengths("lengths", lengths, b, n, phi.device)
        mask, c = unpadded(lengths, b, n, phi.device), self.transition.shape[0]
        y = one_output(y, (b, n), phi.device)
        check_labels("y", y, mask, c)
        y = y.masked_fill(~mask, 0)
        wide = zero_beyond(self._windows(phi, lengths), lengths)
        pairs = y[:, :-1] * c + y[:, 1:]
        found = [added_up(wide, y, c), self.eta * counted(mask[:, 1:], pairs, (c, c), phi.dtype)]
        if self.second is not None:
            triples = pairs[:, :-1] * c + y[:, 2:]
            found.append(self.eta * counted(mask[:, 2:], triples, (c, c, c), phi.dtype))
        if self.input_transition is not None:
            into = zero_beyond(phi, lengths)[:, 1:]
            found.append(self.eta * added_up(into, pairs, c * c).view(b, c, c, f))
        return found
