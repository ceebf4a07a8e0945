"""What a codec is: examples as people write them, as tensors, and back.

A codec is made from training data, then belongs to the model: it is saved with it, so a saved model reads and writes
text by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from structlearn.data.batch import Batch
from structlearn.descriptions import Described
from structlearn.errors import ArgumentError


class Codec(Described, ABC):
    """Examples to batches and outputs to what people read."""

    formats: ClassVar[tuple[str, ...]]  # that :meth:`parse` and :meth:`render` know, the first by default

    @abstractmethod
    def encode(self, examples: Sequence[Any]) -> list[Any]:
        """Each example as tensors of its own size; done once for all data."""

    @abstractmethod
    def collate(self, encoded: Sequence[Any]) -> Batch:
        """Encoded examples as one batch with ``places`` 0..B-1."""

    @abstractmethod
    def length(self, encoded: Any) -> int:
        """What examples of a batch should have alike."""

    @abstractmethod
    def parse(self, text: str, form: str, source: str = "text") -> list[Any]:
        """The examples that a text in one of ``formats`` holds; gold may be missing."""

    @abstractmethod
    def render(self, example: Any, output: Any, form: str) -> str:
        """One example with its output, in one of ``formats``, ready to be written."""

    def check_format(self, form: str) -> None:
        if form not in self.formats:
            raise ArgumentError("format", f"one of {self.formats}", repr(form), "see structlearn predict --help")
