"""Strings as numbers: 0 pads, 1 stands for what is not known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from structlearn.descriptions import Described

PADDING, UNKNOWN = 0, 1
_DIGIT = re.compile(r"\d")


class Vocabulary(Described):
    """number(names[i]) = i + 2.

    Args:
        names: the strings that are known.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._number = {name: i + 2 for i, name in enumerate(self.names)}

    @classmethod
    def of(cls, strings: Iterable[str], *, min_count: int = 1) -> Vocabulary:
        """Those that occur at least ``min_count`` times, the commonest first, ties by name."""
        counts = Counter(strings)
        kept = [name for name, count in counts.items() if count >= min_count]
        return cls(sorted(kept, key=lambda name: (-counts[name], name)))

    def __len__(self) -> int:
        return len(self.names) + 2

    def __call__(self, strings: Iterable[str]) -> list[int]:
        """The numbers of strings.

        >>> Vocabulary(["a", "b"])(["b", "z"])
        [3, 1]
        """
        number = self._number
        return [number.get(s, UNKNOWN) for s in strings]


def normal_form(word: str) -> str:
    """Lower case, digits as 0: what the vocabulary of words tells apart; letters keep the rest.

    >>> normal_form("Jan.1987")
    'jan.0000'
    """
    return _DIGIT.sub("0", word.lower())
