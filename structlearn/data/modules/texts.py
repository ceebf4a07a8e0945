"""Texts with classes, flat or in a taxonomy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from structlearn.data.codecs.texts import ClassificationCodec
from structlearn.data.modules.base import TaskData
from structlearn.data.taxonomies import Text, parse_texts, read_taxonomy
from structlearn.data.vocabulary import Vocabulary, normal_form
from structlearn.storage.text import read_text
from structlearn.taxonomy import Taxonomy

_BRANCHES, _LEAVES = 3, 3


class ClassificationData(TaskData):
    """JSON lines of texts; with no ``train`` texts are generated whose words tell of their class and of its parent.

    Args:
        train, validation, test, batch_size, examples, seed, workers: see :class:`TaskData`.
        taxonomy: table of nodes and parents, see :func:`read_taxonomy`; generated classes have one of their own.
        flat: leave the taxonomy out.
        min_count: words that occur less often are unknown.
    """

    def __init__(
        self,
        train: Path | str | None = None,
        validation: Path | str | None = None,
        test: Path | str | None = None,
        *,
        taxonomy: Path | str | None = None,
        flat: bool = False,
        min_count: int = 2,
        batch_size: int = 32,
        examples: int | None = None,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        super().__init__(train, validation, test, batch_size=batch_size, examples=examples, seed=seed, workers=workers)
        self.taxonomy, self.flat, self.min_count = taxonomy, flat, min_count

    def read(self, path: Path) -> list[Text]:
        return parse_texts(read_text(path), source=str(path))

    def generate(self, count: int, seed: int) -> list[Text]:
        draw = random.Random(seed)
        texts = []
        for _ in range(count):
            branch, leaf = draw.randrange(_BRANCHES), draw.randrange(_LEAVES)
            words = [_word("topic", branch, draw.randrange(20)) for _ in range(6)]
            words += [_word("leaf", branch, leaf, draw.randrange(10)) for _ in range(3)]
            words += [_word("common", draw.randrange(50)) for _ in range(8)]
            draw.shuffle(words)
            texts.append(Text(words, f"topic{branch}/leaf{leaf}"))
        return texts

    def make_codec(self, examples: Sequence[Text]) -> ClassificationCodec:
        words = Vocabulary.of((normal_form(w) for t in examples for w in t.words), min_count=self.min_count)
        chars = Vocabulary.of(c for t in examples for w in t.words for c in w)
        classes = sorted({t.label for t in examples})
        return ClassificationCodec(classes, words, chars, self._taxonomy(classes))

    def _taxonomy(self, classes: list[str]) -> Taxonomy | None:
        if self.flat or (self.taxonomy is None and self.files["train"] is not None):
            return None
        if self.taxonomy is not None:
            return read_taxonomy(self.taxonomy, classes)
        names = sorted({name.split("/")[0] for name in classes}) + classes
        place = {name: i for i, name in enumerate(names)}
        parents = [(place[name.split("/")[0]],) if "/" in name else () for name in names]
        return Taxonomy(parents, classes=[place[name] for name in classes], names=names)


def _word(kind: str, *numbers: int) -> str:
    """A word of its own for each kind and numbers; in letters, as vocabularies take all digits for one."""
    return "-".join([kind, *(f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in numbers)])
