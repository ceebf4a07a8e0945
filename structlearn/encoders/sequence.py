"""Encoders that let tokens see their neighbours: recurrent, convolutional, by attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from structlearn.data.batch import TokenInputs
from structlearn.encoders.base import Encoder, real
from structlearn.errors import ArgumentError

_LSTM_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class BiLSTM(Encoder):
    """Phi(x^t) = [forward LSTM state at t; backward LSTM state at t].

    Args:
        embedding: tokens to vectors, e.g. :class:`WordsAndLetters`.
        hidden: size of both states together.
        layers: of the LSTM.
        dropout: of its output and between layers.
    """

    def __init__(self, embedding: Encoder, hidden: int = 256, layers: int = 1, dropout: float = 0.3) -> None:
        super().__init__()
        if hidden % 2:
            raise ArgumentError("hidden", "an even number", hidden, "half of it is for each direction")
        self.embedding = embedding
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(
            embedding.out_features, hidden // 2, layers, batch_first=True, bidirectional=True, dropout=between
        )
        self.dropout = nn.Dropout(dropout)
        self.out_features = hidden

    def build(self, codec: Any) -> None:
        self.embedding.build(codec)

    def forward(self, x: TokenInputs) -> Tensor:
        phi = self.embedding(x)
        if phi.is_cuda:
            # Packed, so that the backward states do not start from padding.
            packed = pack_padded_sequence(phi, x.lengths.cpu(), batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=phi.shape[1])
            return self.dropout(states)
        for layer in range(self.lstm.num_layers):
            if layer:
                phi = nn.functional.dropout(phi, self.lstm.dropout, self.training)
            phi = self._layer(phi, x.lengths, layer)
        return self.dropout(phi)

    def _layer(self, phi: Tensor, lengths: Tensor, layer: int) -> Tensor:
        """What one layer of ``lstm`` gives for packed sentences, from padded ones.

        On a CPU packing takes twice the time: (32, 24, 220) with 128 states a side, forward and backward, 50 ms of CPU
        packed and 24 so.
        """
        b, n, _ = phi.shape
        steps = torch.arange(n, device=phi.device)
        # Word t of a sentence of length m changes places with word m - 1 - t; padding stays behind.
        turned = torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)[..., None]
        start = phi.new_zeros((1, b, self.lstm.hidden_size))
        sides = []
        for suffix in ("", "_reverse"):
            weights = [getattr(self.lstm, f"{name}_l{layer}{suffix}") for name in _LSTM_WEIGHTS]
            side = phi.gather(1, turned.expand_as(phi)) if suffix else phi
            states = torch.lstm(side, (start, start), weights, True, 1, 0.0, self.training, False, True)[0]
            sides.append(states.gather(1, turned.expand_as(states)) if suffix else states)
        inside = (steps < lengths[:, None])[..., None]
        return torch.where(inside, torch.cat(sides, -1), 0.0)


class CNN(Encoder):
    """Phi = h_k, h_i = h_{i-1} + relu(conv_i(h_{i-1})): every layer sees ``width`` tokens.

    Args:
        embedding: tokens to vectors.
        hidden: channels.
        layers: k.
        width: of a filter, odd.
        dropout: after every layer.
    """

    def __init__(
        self, embedding: Encoder, hidden: int = 256, layers: int = 3, width: int = 3, dropout: float = 0.2
    ) -> None:
        super().__init__()
        if width % 2 == 0:
            raise ArgumentError("width", "an odd number", width, "filters are centred on a token")
        self.embedding = embedding
        self.enter = nn.Linear(embedding.out_features, hidden)
        self.layers = nn.ModuleList(nn.Conv1d(hidden, hidden, width, padding=width // 2) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.out_features = hidden

    def build(self, codec: Any) -> None:
        self.embedding.build(codec)

    def forward(self, x: TokenInputs) -> Tensor:
        phi = self.enter(self.embedding(x)).mT
        mask = real(x, phi.shape[2])[:, None]
        for layer in self.layers:
            phi = phi + self.dropout(layer(torch.where(mask, phi, 0.0)).relu())
        return phi.mT


class Transformer(Encoder):
    """Phi = torch.nn.TransformerEncoder over tokens with sinusoidal positions.

    Args:
        embedding: tokens to vectors.
        hidden: size of the model.
        heads: of attention; divide ``hidden``.
        layers: of the encoder.
        dropout: everywhere.
    """

    def __init__(
        self, embedding: Encoder, hidden: int = 256, heads: int = 4, layers: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        if hidden % heads or hidden % 2:
            raise ArgumentError("hidden", f"an even multiple of heads={heads}", hidden, "heads share the size")
        self.embedding = embedding
        self.enter = nn.Linear(embedding.out_features, hidden)
        layer = nn.TransformerEncoderLayer(hidden, heads, 2 * hidden, dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out_features = hidden

    def build(self, codec: Any) -> None:
        self.embedding.build(codec)

    def forward(self, x: TokenInputs) -> Tensor:
        phi = self.enter(self.embedding(x))
        n = phi.shape[1]
        return self.layers(phi + self._places(n, phi), src_key_padding_mask=~real(x, n))

    def _places(self, size: int, like: Tensor) -> Tensor:
        rate = torch.exp(torch.arange(0, self.out_features, 2, device=like.device) * (-9.21 / self.out_features))
        angle = torch.arange(size, device=like.device)[:, None] * rate
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).to(like.dtype)
