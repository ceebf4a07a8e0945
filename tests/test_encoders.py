"""Encoders against plain torch on one sentence at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from structlearn import encoders
from structlearn.data.batch import TokenInputs


@pytest.mark.parametrize("layers", [1, 2])
def test_states_and_gradients_of_padded_sentences_are_those_of_packed_ones(layers: int) -> None:
    torch.manual_seed(0)
    encoder = encoders.BiLSTM(encoders.Dense(5), hidden=6, layers=layers, dropout=0.0).double()
    lengths = torch.tensor([7, 1, 4, 6])
    x = torch.randn(4, 7, 5, dtype=torch.float64, requires_grad=True)
    # What stands at padding is never read.
    noisy = torch.where(torch.arange(7)[:, None] < lengths[:, None, None], x, 1e9)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    wanted, _ = pad_packed_sequence(encoder.lstm(packed)[0], batch_first=True, total_length=7)
    found = encoder(TokenInputs(lengths, dense=noisy))
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(wanted)

    def gradients(states: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((states * weight).sum(), [x, *encoder.parameters()])

    for a, b in zip(gradients(found), gradients(wanted), strict=True):
        torch.testing.assert_close(a, b)
