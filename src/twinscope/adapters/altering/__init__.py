"""What `Adapter.alter` does: a module for each framework, and here what they share.

A layer is changed in its own attributes only, which `Adapter.altered` keeps and puts back: parameters, children, hooks
and the class stay what they are. A primitive or a list that others may hold too is replaced, never changed itself. What
cannot be told in this way, or would need weights of another shape, is not told at all: `alter` is False then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Neutral settings, as `explain.neutral` gives them.
Settings = Mapping[str, Any]

#: Padding of one axis that depends on the input's size: `explain.neutral.SAME`.
SAME = "same"

LINEAR_MODES = ("linear", "bilinear", "trilinear", "bicubic")
_AXES_OF_MODE = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def family(kind: str) -> str:
    """What kinds share whose layers are made alike: ``conv_transpose2d`` and ``conv_transpose3d``.

    >>> family("batch_norm2d"), family("sync_batch_norm"), family("lstm_cell"), family("mse_loss")
    ('batch_norm', 'batch_norm', 'lstm_cell', 'mse_loss')
    """
    return (kind[:-2] if kind[-2:] in ("1d", "2d", "3d") else kind).removeprefix("sync_")


def axes_of(kind: str) -> int:
    """How many axes a layer works on: 2 where the kind does not say."""
    return int(kind[-2]) if kind[-2:] in ("1d", "2d", "3d") else 2


def symmetric(padding: Any) -> list[int] | None:
    """One number for each axis where as much is padded before as after; else None."""
    if not isinstance(padding, (tuple, list)) or any(p == SAME or p[0] != p[1] for p in padding):
        return None
    return [before for before, _ in padding]


def flat(padding: Sequence[Sequence[int]]) -> list[int]:
    """Before and after, axis by axis in one list."""
    return [n for pair in padding for n in pair]


def same_padding(extent: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """What SAME stands for on an axis of this extent.

    >>> same_padding(8, 3, 2, 1), same_padding(7, 3, 2, 1), same_padding(8, 3, 1, 2)
    ((0, 1), (1, 1), (2, 2))
    """
    total = max((-(-extent // stride) - 1) * stride + (kernel - 1) * dilation + 1 - extent, 0)
    return total // 2, total - total // 2


def each(value: Any, dims: int) -> list[int]:
    """One number for each axis, as layers keep them: one number, or several, or those of more axes."""
    if isinstance(value, (tuple, list)):
        return [int(n) for n in (value[-dims:] if len(value) > 1 else list(value) * dims)]
    return [int(value)] * dims


def extents(value: Any, mode: str, before: Any) -> Any:
    """A size or a factor with a number for each axis, as far as the axes are known."""
    if value is None or isinstance(value, (tuple, list)):
        return value
    axes = _AXES_OF_MODE.get(mode) or (len(before) if isinstance(before, (tuple, list)) else 2)
    return (value,) * axes


def resized(own: Mapping[str, Any], settings: Settings) -> dict[str, Any] | None:
    """What an upsampling layer is to hold: one of size and factor, `align_corners` only where the mode has it."""
    told = {name: settings.get(name, own.get(name)) for name in ("size", "scale_factor", "mode", "align_corners")}
    if settings.get("size") is not None and "scale_factor" not in settings:
        told["scale_factor"] = None
    if settings.get("scale_factor") is not None and "size" not in settings:
        told["size"] = None
    if told["mode"] not in LINEAR_MODES:
        if settings.get("align_corners"):
            return None
        told["align_corners"] = None
    return told


def padded(padding: Sequence[int], length: int) -> list[int]:
    """As a padding layer keeps it, of as many numbers as it had: neutral is without the axes that are not padded."""
    if len(padding) > length:
        raise ValueError(f"{len(padding) // 2} axes where the layer pads {length // 2}")
    return [*padding, *[0] * (length - len(padding))]
