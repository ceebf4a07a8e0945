"""Checks that several structures share: dtypes, devices, lengths and labels of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from structlearn.errors import DeviceError, DTypeError, LabelError, PotentialError, ShapeError
from structlearn.ops._library import lengths_within
from structlearn.ops._register import is_eager

_COMPUTED = (torch.float32, torch.float64)
_HALF = (torch.bfloat16, torch.float16)


def check_tensor(name: str, value: Tensor, rank: int, shape: str) -> None:
    """``value`` must be a tensor of ``rank`` axes, described by ``shape``."""
    if not isinstance(value, Tensor):
        raise ShapeError(name, f"a tensor {shape}", type(value).__name__, "wrap it with torch.as_tensor")
    if value.dim() != rank:
        raise ShapeError(name, shape, tuple(value.shape), f"give it {rank} axes")


def same_kind(named: dict[str, Tensor | None]) -> list[Any]:
    """The potentials on one device and in one floating dtype; half precision is computed in float32.

    A view that torch means to negate when it is read (of an imaginary part, say) is negated: kernels read memory.
    """
    if not is_dynamo_compiling():  # which knows no such views
        named = {name: None if v is None else v.resolve_neg() for name, v in named.items()}
    values = list(named.values())
    first = values[0]
    assert first is not None
    dtype, on_cpu = first.dtype, first.is_cpu
    if dtype in _COMPUTED:
        for v in values:
            if v is not None and (v.dtype is not dtype or not (v.is_cpu if on_cpu else v.device == first.device)):
                break
        else:
            return values
    device = first.device
    given = {name: v for name, v in named.items() if v is not None}
    leader = next(iter(given))
    for name, v in given.items():
        if v.device != device:
            raise DeviceError(name, f"device {device}, as {leader}", v.device, f"move it with .to('{device}')")
        if v.dtype not in _COMPUTED + _HALF:
            raise DTypeError(name, "float32, float64, bfloat16 or float16", v.dtype, "convert it with .float()")
    wide = {name: v.dtype for name, v in given.items() if v.dtype in _COMPUTED}
    leader, target = next(iter(wide.items()), (leader, torch.float32))
    for name, found in wide.items():
        if found is not target:
            raise DTypeError(name, f"{target}, as {leader}", found, f"convert it with .to({target})")
    return [None if v is None else v.to(target) for v in values]


def check_lengths(
    name: str, lengths: Tensor | Sequence[int] | None, batch: int, size: int, device: torch.device
) -> Tensor | None:
    """``lengths`` as an int64 tensor (B,) on ``device``, each in 0..size.

    Values are checked where there are any and it costs no synchronisation: on the CPU, in plain eager execution; else
    by the kernels' operators.
    """
    if lengths is None:
        return None
    if not isinstance(lengths, Tensor):
        try:
            lengths = torch.as_tensor(lengths)
        except (TypeError, ValueError, RuntimeError):
            raise DTypeError(name, "integers", repr(lengths), "give a list of int or an integer tensor") from None
        lengths = lengths.long() if lengths.numel() == 0 else lengths  # an empty list has no dtype of its own
    if lengths.shape != (batch,):
        raise ShapeError(name, f"(B,) with B={batch}", tuple(lengths.shape), "give one length for every batch row")
    if lengths.dtype is not torch.int64:
        if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype is torch.bool:
            raise DTypeError(name, "integers", lengths.dtype, "convert it with .long()")
        lengths = lengths.long()
    if lengths.is_cpu and is_eager(lengths):
        lengths = lengths.contiguous()
        lengths_within(name, lengths, size)
    if lengths.is_meta and device.type != "meta":
        raise DeviceError(name, f"device {device}, as the potentials", lengths.device, "a meta tensor has no values")
    if not is_dynamo_compiling() and not savable(lengths):
        lengths = lengths.clone()
    return lengths if lengths.device == device else lengths.to(device, non_blocking=True)


def savable(lengths: Tensor | Sequence[int] | None) -> bool:
    """Whether autograd would save them: outside of ``torch.inference_mode`` it refuses tensors that were made there."""
    return not isinstance(lengths, Tensor) or not lengths.is_inference() or torch.is_inference_mode_enabled()


def unpadded(lengths: Tensor | None, batch: int, size: int, device: torch.device) -> Tensor:
    """(B, size) mask of the positions below each length."""
    if lengths is None:
        return torch.ones((batch, size), dtype=torch.bool, device=device)
    return torch.arange(size, device=device) < lengths[:, None]


def _leading(shape: tuple[int, ...]) -> str:
    return f"(..., {', '.join(map(str, shape))})"


def check_label_tensor(name: str, y: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """``y`` as int64 labels of ``shape``, with any number of leading axes, on ``device``."""
    if not isinstance(y, Tensor):
        raise ShapeError(name, f"a tensor {_leading(shape)}", type(y).__name__, "wrap it with torch.as_tensor")
    if y.is_floating_point() or y.is_complex() or y.dtype is torch.bool:
        remedy = "convert it with .long(); scores and one-hot rows are not labels"
        raise DTypeError(name, "integer labels", y.dtype, remedy)
    if tuple(y.shape[y.dim() - len(shape) :]) != shape:
        raise ShapeError(name, _leading(shape), tuple(y.shape), "one label for every position, padded with -100")
    if y.device != device:
        raise DeviceError(name, f"device {device}, as the potentials", y.device, f"move it with .to('{device}')")
    return y if y.dtype is torch.int64 else y.long()


def bad_label(name: str, y: Tensor, place: Sequence[int], classes: int) -> LabelError:
    """The error for the label at ``place``."""
    return LabelError(
        name,
        f"labels in 0..{classes - 1} at unpadded positions",
        f"{int(y[tuple(place)])} at {tuple(place)}",
        "check the label vocabulary, or shorten lengths if this position is padding",
    )


def check_labels(name: str, y: Tensor, mask: Tensor, classes: int) -> None:
    """Labels (..., B, N) must lie in 0..classes-1 where ``mask`` (B, N) is true."""
    if not is_eager(y):
        return
    bad = ((y < 0) | (y >= classes)) & mask
    if bool(bad.any()):
        raise bad_label(name, y, bad.nonzero()[0].tolist(), classes)


def check_potential(name: str, value: Tensor, mask: Tensor | None) -> None:
    """No NaN and no score above finfo.max / 4 in ``value`` where ``mask`` (over its leading axes) is true.

    Queries are right where no s(y) is above finfo.max / 4, which this bounds part by part. Lowest numbers are masks.
    """
    limit = torch.finfo(value.dtype).max / 4
    bad = ~(value <= limit)
    if mask is not None:
        bad = bad & mask.view(*mask.shape, *[1] * (value.dim() - mask.dim()))
    if not bool(bad.any()):
        return
    place = tuple(bad.nonzero()[0].tolist())
    found = float(value[place])
    if found != found:
        remedy = "look for 0/0 or inf-inf in the encoder"
        raise PotentialError(name, "no NaN at unpadded places", f"NaN at {place}", remedy)
    remedy = "scale the scores down; to force a part, forbid the others with -inf"
    raise PotentialError(name, f"scores up to finfo.max / 4 = {limit:.3g}", f"{found:.3g} at {place}", remedy)
