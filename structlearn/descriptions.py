"""Objects as plain data and back: the class and what its constructor was given.

    build(describe(x)) is a new x: {"class_path": "structlearn.costs.Hamming", "init_args": {"normalize": True}}

Numbers, strings, lists, dictionaries and tensors stand for themselves. What a constructor was given is remembered by
:class:`Described`; for other classes it is read from attributes named like the arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from structlearn.errors import ArgumentError
from structlearn.registry import class_named, class_path

# Arguments that only training uses; a description leaves them to their defaults.
TRAINING_ONLY = frozenset({"optimizer", "schedule"})


class Described:
    """Remembers the arguments of its constructor."""

    _given: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        # Copying and unpickling call this without arguments and bring the remembered ones with the state.
        given = inspect.signature(cls.__init__).bind_partial(self, *args, **kwargs).arguments
        object.__setattr__(self, "_given", {name: value for name, value in given.items() if value is not self})
        return self


def describe(value: Any) -> Any:
    """``value`` as plain data and tensors."""
    if value is None or isinstance(value, bool | int | float | str | Tensor):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, type) or inspect.isroutine(value) or not hasattr(value, "__dict__"):
        raise _unknown(value, "functions and classes have no description")
    return {"class_path": class_path(type(value)), "init_args": describe(_arguments(value))}


def _arguments(value: Any) -> dict[str, Any]:
    if isinstance(value, Described):
        return {name: given for name, given in value._given.items() if name not in TRAINING_ONLY}
    found = {}
    layer = type(value).__module__.startswith("torch.nn.")
    for name, parameter in inspect.signature(type(value).__init__).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if layer and name in ("device", "dtype"):
            continue
        if not hasattr(value, name):
            raise _unknown(value, f"derive it from structlearn.descriptions.Described, or keep {name!r} as attribute")
        found[name] = getattr(value, name)
        if layer and name == "bias":  # the parameter itself; the constructor takes whether there is one
            found[name] = found[name] is not None
    return found


def _unknown(value: object, remedy: str) -> ArgumentError:
    return ArgumentError("describe", "plain data, tensors and described objects", type(value).__name__, remedy)


def build(description: Any, *, trusted: Iterable[str] = ()) -> Any:
    """The object that ``description`` tells of.

    Args:
        trusted: packages whose classes may be made beside those that :mod:`structlearn.registry` lists; a description
            from elsewhere could name any.
    """
    trusted = tuple(trusted)
    if isinstance(description, list | tuple):
        return [build(item, trusted=trusted) for item in description]
    if not isinstance(description, dict):
        return description
    if set(description) != {"class_path", "init_args"}:
        return {key: build(item, trusted=trusted) for key, item in description.items()}
    kind, init_args = class_named(description["class_path"], trusted=trusted), description["init_args"]
    if not isinstance(init_args, dict):
        got = type(init_args).__name__
        raise ArgumentError("init_args", "a mapping of names to values", got, f"write the arguments of {kind.__name__}")
    arguments = {key: build(item, trusted=trusted) for key, item in init_args.items()}
    try:
        return kind(**arguments)
    except TypeError as error:
        path = description["class_path"]
        raise ArgumentError("init_args", f"arguments of {path}", sorted(map(str, arguments)), str(error)) from error
