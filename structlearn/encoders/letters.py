"""Letter images as vectors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from structlearn.encoders.base import Encoder, dense_of


class LetterCNN(Encoder):
    """Phi(x^t) = a small convolutional network of the t-th image alone; images (B, N, height * width), row by row.

    Args:
        height, width: of an image.
        channels: of the first layer, twice as many in the second.
        features: size of Phi.
        dropout: before and after the last layer.
    """

    def __init__(
        self, height: int = 16, width: int = 8, channels: int = 32, features: int = 128, dropout: float = 0.3
    ) -> None:
        super().__init__()
        self.height, self.width = height, width
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * channels * (height // 4) * (width // 4), features),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.out_features = features

    def forward(self, x: Any) -> Tensor:
        images = dense_of(x)
        b, n, _ = images.shape
        return self.layers(images.reshape(b * n, 1, self.height, self.width)).view(b, n, -1)
