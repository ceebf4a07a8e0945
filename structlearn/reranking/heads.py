"""The head child of a phrase, by priority lists after Magerman and Collins.

For every label: the side from which children are searched, and the labels looked for, first to last. Where none is
found the child on that side is the head. Coordination (X and X) takes the first conjunct.
"""

from __future__ import annotations

from collections.abc import Sequence

_VERBS = "TO VBD VBN MD VBZ VB VBG VBP VP AUX ADJP NN NNS NP"
_TABLE: dict[str, tuple[str, tuple[str, ...]]] = {
    label: (side, tuple(order.split()))
    for label, side, order in [
        ("ADJP", "left", "NNS QP NN $ ADVP JJ VBN VBG ADJP JJR NP JJS DT FW RBR RBS SBAR RB"),
        ("ADVP", "right", "RB RBR RBS FW ADVP TO CD JJR JJ IN NP JJS NN"),
        ("CONJP", "right", "CC RB IN"),
        ("INTJ", "left", ""),
        ("LST", "right", "LS :"),
        ("NAC", "left", "NN NNS NNP NNPS NP NAC EX $ CD QP PRP VBG JJ JJS JJR ADJP FW"),
        ("NP", "right", "NN NNP NNPS NNS NX POS JJR NP $ ADJP PRN CD JJ JJS RB QP"),
        ("NX", "right", "NN NNP NNPS NNS NX POS JJR NP $ ADJP PRN CD JJ JJS RB QP"),
        ("PP", "right", "IN TO VBG VBN RP FW PP"),
        ("PRN", "left", ""),
        ("PRT", "right", "RP"),
        ("QP", "left", "$ IN NNS NN JJ RB DT CD NCD QP JJR JJS"),
        ("RRC", "right", "VP NP ADVP ADJP PP"),
        ("S", "left", "TO IN VP S SBAR ADJP UCP NP"),
        ("SBAR", "left", "WHNP WHPP WHADVP WHADJP IN DT S SQ SINV SBAR FRAG"),
        ("SBARQ", "left", "SQ S SINV SBARQ FRAG"),
        ("SINV", "left", "VBZ VBD VBP VB MD VP S SINV ADJP NP"),
        ("SQ", "left", "VBZ VBD VBP VB MD VP SQ"),
        ("UCP", "right", ""),
        ("VP", "left", _VERBS),
        ("WHADJP", "left", "CC WRB JJ ADJP"),
        ("WHADVP", "right", "CC WRB"),
        ("WHNP", "left", "WDT WP WP$ WHADJP WHPP WHNP"),
        ("WHPP", "right", "IN TO FW"),
    ]
}
# In a noun phrase the rightmost noun is the head whichever noun tag it has.
_NOUNS = frozenset({"NN", "NNP", "NNPS", "NNS", "NX", "POS"})


def head_child(label: str, children: Sequence[str]) -> int:
    """Index of the head among the labels of the children.

    >>> head_child("NP", ["DT", "JJ", "NN"]), head_child("VP", ["MD", "VP"]), head_child("S", ["NP", "VP", "."])
    (2, 0, 1)
    """
    if len(children) == 1:
        return 0
    side, order = _TABLE.get(label, ("left", ()))
    if "CC" in children[1:-1] and label in children:
        return children.index(label)
    indices = range(len(children)) if side == "left" else range(len(children) - 1, -1, -1)
    if label in ("NP", "NX"):
        for i in indices:
            if children[i] in _NOUNS:
                return i
    for wanted in order:
        for i in indices:
            if children[i] == wanted:
                return i
    return indices[0]
