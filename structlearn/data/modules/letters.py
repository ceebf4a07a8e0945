"""Words of letter images: handwriting, or generated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from structlearn.data.codecs.letters import LetterCodec
from structlearn.data.letters import Word, read_letters
from structlearn.data.modules.base import TaskData
from structlearn.data.ocr import ocr_words


class LetterData(TaskData):
    """Rows of 16 x 8 images. ``train`` is a file of letters with folds; with no ``train`` words are generated.

    Args:
        train: tab-separated letters, see :func:`read_letters`; its fold ``fold`` is for training, the others for test,
            and every tenth training word for validation.
        fold: of the training words.
        batch_size, examples, seed, workers: see :class:`TaskData`.
    """

    def __init__(
        self,
        train: Path | str | None = None,
        *,
        fold: int = 0,
        batch_size: int = 32,
        examples: int | None = None,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        super().__init__(train, None, train, batch_size=batch_size, examples=examples, seed=seed, workers=workers)
        self.fold = fold
        self._read: dict[bool, list[Word]] = {}

    def read(self, path: Path) -> list[Word]:
        """The training fold, first, and then the others."""
        if not self._read:
            found = read_letters(path)
            self._read = {own: [w for w, fold in found if (fold == self.fold) is own] for own in (True, False)}
        return self._read[True]

    def examples(self, stage: str) -> list[Word]:  # type: ignore[override]
        if stage == "test" and self.files["train"] is not None:
            self.read(self.files["train"])
            return self._read[False][: self.limit]
        return super().examples(stage)  # type: ignore[arg-type]

    def generate(self, count: int, seed: int) -> list[Word]:
        words = ocr_words(count, seed=seed)
        rows = zip(words.images, words.labels, words.lengths.tolist(), strict=True)
        return [Word(images[:n], labels[:n]) for images, labels, n in rows]

    def make_codec(self, examples: Sequence[Word]) -> LetterCodec:
        return LetterCodec()
