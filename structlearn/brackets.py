"""Which labelled brackets count, and which labels are equal, by the rules of the evalb program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class BracketRules:
    """What does not count, and what counts as equal.

    ``delete`` takes the word away where it names a part of speech, and only the bracket where it names a phrase.
    ``equal`` maps a label to the one that stands for it.
    """

    delete: frozenset[str] = frozenset()
    equal: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _deleted(self) -> frozenset[str]:
        return self.delete | {self.equal[label] for label in self.delete if label in self.equal}

    def phrase(self, label: str) -> str | None:
        """The label that stands for a phrase called ``label``, without function tags; None if it does not count."""
        bare = re.split("[-=]", label, maxsplit=1)[0]
        bare = self.equal.get(bare, bare)
        return None if bare in self._deleted else bare


COLLINS = BracketRules(frozenset({"", "TOP", "ROOT", "S1", "-NONE-", ",", ":", "``", "''", "."}), {"PRT": "ADVP"})
"""evalb's COLLINS.prm, which names only TOP for the top node; ROOT, S1 and the unnamed one are the same node."""
