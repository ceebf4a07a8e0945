"""The words of the constraint language, and reading them from text.

>>> at_most(1, "A0") & implies("R-A0", "A0")
at_most(1, 'A0') & implies('R-A0', 'A0')
>>> parse("at_most(1, 'A0') & (forbid('O', 'I') | exactly(2, 'B'))")
at_most(1, 'A0') & (forbid('O', 'I') | exactly(2, 'B'))
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any

from structlearn.constraints.atoms import Implies, Key, Linear, NoOverlap, Sense
from structlearn.constraints.automata import DFA
from structlearn.constraints.language import And, Constraint, Label, LabelSet, Soft, label_tuple
from structlearn.constraints.lists import Allowed
from structlearn.constraints.sequences import Regular, Transition
from structlearn.errors import ArgumentError, StructLearnError


def everything() -> Constraint:
    """All outputs."""
    return And(())


def no_overlap(none: LabelSet = 0) -> Constraint:
    """Of parts whose spans share a word at most one has a label outside ``none``; needs ``spans``."""
    return NoOverlap(label_tuple(none))


def at_most(k: int, label: LabelSet) -> Constraint:
    """sum_t [y_t in label] <= k."""
    return _count("at_most", "<=", k, label)


def at_least(k: int, label: LabelSet) -> Constraint:
    """sum_t [y_t in label] >= k."""
    return _count("at_least", ">=", k, label)


def exactly(k: int, label: LabelSet) -> Constraint:
    """sum_t [y_t in label] = k."""
    return _count("exactly", "==", k, label)


def _count(name: str, sense: Sense, k: int, label: LabelSet) -> Constraint:
    if not isinstance(k, int) or isinstance(k, bool) or k < 0:
        raise ArgumentError("k", "an integer >= 0", repr(k), "it counts parts")
    labels = label_tuple(label)
    said = repr(labels[0]) if len(labels) == 1 else repr(list(labels))
    return Linear(tuple((one, 1.0) for one in dict.fromkeys(labels)), sense, float(k), f"{name}({k}, {said})")


def implies(first: LabelSet, then: LabelSet, *, before: bool = False) -> Constraint:
    """Where a label of ``first`` occurs one of ``then`` occurs too, with ``before`` at an earlier part."""
    return Implies(label_tuple(first), label_tuple(then), before)


def forbid(first: LabelSet, then: LabelSet) -> Constraint:
    """No label of ``first`` is followed at once by one of ``then``."""
    return Transition(label_tuple(first), label_tuple(then))


def require(first: LabelSet, then: LabelSet) -> Constraint:
    """Every label of ``first`` is followed at once by one of ``then``; so it is never last."""
    return Transition(label_tuple(first), label_tuple(then), required=True)


def regular(language: str | DFA) -> Constraint:
    """The sequences that a regular expression over labels describes (:mod:`.regex`), or that an automaton accepts."""
    return Regular(language)


def linear(terms: Mapping[Key, float], sense: Sense, bound: float) -> Constraint:
    """sum_k weight_k [label at some part], or [(part, label)], against ``bound``; ``sense`` is <=, >= or ==."""
    if sense not in ("<=", ">=", "=="):
        raise ArgumentError("sense", "'<=', '>=' or '=='", repr(sense), "say on which side of the bound the sum lies")
    if not terms:
        raise ArgumentError("terms", "at least one weight", "none", "map labels or (part, label) to weights")
    if not all(math.isfinite(value) for value in (*terms.values(), bound)):
        got = f"{list(terms.values())} and {bound}"
        raise ArgumentError("linear", "finite weights and a finite bound", got, "leave out what does not bind")
    return Linear(tuple((key, float(value)) for key, value in terms.items()), sense, float(bound))


def allowed(outputs: Sequence[Sequence[Label]]) -> Constraint:
    """One of the listed outputs."""
    if not len(outputs):
        raise ArgumentError("outputs", "at least one output", "none", "a set without outputs has no answer")
    return Allowed(tuple(tuple(y) for y in outputs))


def soft(constraint: Constraint, penalty: float = 1.0) -> Constraint:
    """s(y) - penalty where y breaks the constraint; the penalty can be learnt."""
    return Soft(constraint, float(penalty))


_WORDS: dict[str, Any] = {
    f.__name__: f
    for f in (
        everything,
        no_overlap,
        at_most,
        at_least,
        exactly,
        implies,
        forbid,
        require,
        regular,
        linear,
        allowed,
        soft,
    )
}


def parse(text: str) -> Constraint:
    """A constraint from text, as configuration files hold it: calls of this module's words joined by & and |.

    It reads back what ``repr`` gives for any constraint.
    """

    def argument(word: str, position: int, node: ast.expr) -> Any:
        if position == 0 and word == "soft":
            return read(node)
        if position == 0 and word == "regular" and isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id != "DFA":
                raise ValueError(ast.unparse(node))
            named = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
            return DFA(*map(ast.literal_eval, node.args), **named)
        return ast.literal_eval(node)

    def read(node: ast.expr) -> Constraint:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            return read(node.left) & read(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return read(node.left) | read(node.right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _WORDS:
            name = node.func.id
            positional = [argument(name, i, a) for i, a in enumerate(node.args)]
            named = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
            constraint: Constraint = _WORDS[name](*positional, **named)
            return constraint
        raise ValueError(ast.unparse(node))

    try:
        return read(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, StructLearnError):
            raise
        words = ", ".join(_WORDS)
        raise ArgumentError("constraint", f"calls of {words}, joined by & and |", str(error), f"in {text!r}") from error
