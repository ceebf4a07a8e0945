"""Which parts of speech a word may have: relative frequency, with its spelling where it is rare or unseen.

    P(t | w)     = ( c(w, t) + a P(t | spelling of w) ) / ( c(w) + a )
    P(t | e_k)   = ( c(e_k, t) + n(e_k) P(t | e_{k-1}) ) / ( c(e_k) + n(e_k) )        (Witten and Bell)

e_0, e_1, ... describe the spelling ever more closely: nothing, then capitals, digits and hyphens, then these with the
last one, two and three letters; n(e) is how many different tags e was seen with. The counts of spellings are those of
rare words, because unseen words are like them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from structlearn.errors import ArgumentError, ShapeError

Tagged = Sequence[tuple[str, str]]


class Lexicon:
    """log P(t | w) - log P(t) = log P(w | t) - log P(w): what a generative model needs, up to a constant a word.

    Args:
        sentences: (word, tag) pairs of each training sentence.
        rare: words seen at most so often teach the spellings.
        weight: ``a`` above, how many observations the spelling is worth.
        cutoff: tags less likely than this share of the best one are forbidden, which keeps parsing fast.
    """

    def __init__(
        self, sentences: Iterable[Tagged], *, rare: int = 3, weight: float = 0.5, cutoff: float = 1e-3
    ) -> None:
        if rare < 1 or weight <= 0 or not 0 <= cutoff < 1:
            got = f"rare={rare}, weight={weight}, cutoff={cutoff}"
            raise ArgumentError(
                "rare, weight, cutoff", "rare >= 1, weight > 0, 0 <= cutoff < 1", got, "use the defaults"
            )
        sentences = [list(sentence) for sentence in sentences]
        self.weight, self.cutoff = weight, cutoff
        tag_counts = Counter(tag for sentence in sentences for _, tag in sentence)
        if not tag_counts:
            raise ShapeError("sentences", "at least one tagged word", "none", "pass the pos() of the training trees")
        self.tags = tuple(sorted(tag_counts))
        self.words: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for word, tag in sentence:
                self.words[word][tag] += 1
        self.words.default_factory = None
        self._spellings: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for sentence in sentences:
            for place, (word, tag) in enumerate(sentence):
                if self.words[word].total() <= rare:
                    for key in spellings(word, first=place == 0):
                        self._spellings[key][tag] += 1
        self._spellings.default_factory = None
        total = tag_counts.total()
        self._prior = {tag: tag_counts[tag] / total for tag in self.tags}

    def probabilities(self, word: str, *, first: bool = False) -> dict[str, float]:
        """P(t | w) of every tag; ``first`` says that the word opens its sentence, where a capital says little."""
        spelled = {tag: 1 / len(self.tags) for tag in self.tags}
        for key in spellings(word, first=first):
            seen = self._spellings.get(key)
            if seen is None:
                break
            kinds, total = len(seen), seen.total()
            spelled = {tag: (seen[tag] + kinds * p) / (total + kinds) for tag, p in spelled.items()}
        known = self.words.get(word, Counter())
        total = known.total()
        return {tag: (known[tag] + self.weight * p) / (total + self.weight) for tag, p in spelled.items()}

    def scores(self, words: Sequence[str]) -> Tensor:
        """(N, T) log P(t | w) - log P(t) of a sentence, in the order of ``tags``; forbidden tags are -inf."""
        rows = []
        for place, word in enumerate(words):
            p = self.probabilities(word, first=place == 0)
            least = self.cutoff * max(p.values())
            rows.append([math.log(p[t] / self._prior[t]) if p[t] > least else -math.inf for t in self.tags])
        return torch.tensor(rows, dtype=torch.float32).view(len(words), len(self.tags))


def spellings(word: str, *, first: bool) -> list[tuple[str, ...]]:
    """Descriptions of a spelling, from the one that says nothing to the closest."""
    if word.isupper() and len(word) > 1:
        case = "upper"
    elif word[:1].isupper():
        case = "first" if first else "title"
    else:
        case = "lower"
    shape = (case, "digit" if any(c.isdigit() for c in word) else "", "hyphen" if "-" in word else "")
    ending = word.lower()
    return [(), shape, *[(*shape, ending[-k:]) for k in (1, 2, 3)]]
