"""What can go wrong, one class a kind of mistake.

Every message has the same four parts, so that the remedy is in the traceback:

    ShapeError: unary: expected (B, N, C) with C=9 to match transition, got (4, 12, 7); states come last
"""

from __future__ import annotations


class StructLearnError(ValueError):
    """Base of all errors raised by structlearn.

    Message: ``{argument}: expected {expected}, got {got}; {remedy}``.
    """

    def __init__(self, argument: str, expected: str, got: object, remedy: str) -> None:
        argument_, expected_, got_, remedy_ = (_cut_off(str(part)) for part in (argument, expected, got, remedy))
        super().__init__(f"{argument_}: expected {expected_}, got {got_}; {remedy_}")
        self.argument = argument
        self.expected = expected
        self.got = got
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[StructLearnError], tuple[str, str, object, str]]:
        return type(self), (self.argument, self.expected, self.got, self.remedy)


def _cut_off(text: str) -> str:
    """Values come from files, too, and may be of any length."""
    return text if len(text) <= 600 else f"{text[:600]}..."


class ShapeError(StructLearnError):
    """A tensor has the wrong rank or sizes that do not fit the other arguments."""


class DTypeError(StructLearnError):
    """A tensor has a dtype that cannot be used, alone or beside the other arguments."""


class DeviceError(StructLearnError):
    """Tensors that must be on one device are not."""


class LengthsError(StructLearnError):
    """A length is negative or larger than the padded size."""


class LabelError(StructLearnError):
    """An output lies outside the output space, at an unpadded place."""


class PotentialError(StructLearnError):
    """An unpadded potential is NaN."""


class InfeasibleError(StructLearnError):
    """Every output of an instance is forbidden, so there is no best one."""


class BackendError(StructLearnError):
    """A named backend does not exist, or cannot run this call here."""


class DerivativeError(StructLearnError):
    """A derivative of an order that no backend provides."""


class ArgumentError(StructLearnError):
    """An option has a value outside its domain."""


class TreeError(StructLearnError):
    """A tree breaks its own rules: a node without children, a word beside trees, a reserved mark in a label."""


class FormatError(StructLearnError):
    """A file does not keep to its format; the message opens with the file and the line."""


class InferenceError(StructLearnError):
    """A cost does not decompose in the way that the requested inference needs."""


class OutOfMemoryError(StructLearnError, MemoryError):
    """A kernel got no memory to work in."""


class DependencyError(StructLearnError, ImportError):
    """An optional package is not installed."""


class ProcessError(StructLearnError):
    """A process of a distributed run does not answer."""
