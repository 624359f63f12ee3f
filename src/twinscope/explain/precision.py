"""Whether a call is the same function in a lower precision: its inputs and weights rounded, or its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ml_dtypes
import numpy as np

from ..adapters.base import Adapter, Array
from ..errors import NoFloat64
from ..replaying import KeptCall, replay

#: How much of the error must go once the rounding is made too.
_EXPLAINED = 0.25
#: How many roundoffs of a mode a result may be off that is held in that mode to the last bit.
_HELD = 16.0


def _tf32(array: Array) -> Array:
    """Ten bits after the leading one, to nearest, ties to even."""
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)).view(
        np.float32
    )


def _through(dtype: object) -> Callable[[Array], Array]:
    def rounded(array: Array) -> Array:
        with np.errstate(over="ignore"):  # what is too large for it is infinite in it
            return array.astype(dtype).astype(np.float32)  # type: ignore[call-overload,no-any-return]

    return rounded


#: Name, unit roundoff, rounding; what fits the first fits the others too.
MODES: tuple[tuple[str, float, Callable[[Array], Array]], ...] = (
    ("bfloat16", 2.0**-8, _through(ml_dtypes.bfloat16)),
    ("float16", 2.0**-11, _through(np.float16)),
    ("TF32", 2.0**-11, _tf32),
)


def precision_of(adapter: Adapter, call: KeptCall, tensor: str, truth: Array, made: Array, noise: float) -> str:
    """The mode in which `made` looks like the reference's call, "" where it looks like none.

    `call` is the reference's, and `truth` what it comes to in float64. A mode explains what was made where the call, in
    float64 but with its inputs and weights rounded, comes much nearer to it; or where every value fits the mode to the
    last bit, and is off by no more than a few of its roundoffs.
    """
    if made.shape != truth.shape or truth.dtype != np.float64 or made.dtype.kind != "f" or not truth.size:
        return ""
    error = _rmse(made, truth)
    scale = float(np.sqrt(np.mean(np.square(truth[np.isfinite(truth)])))) if np.isfinite(truth).any() else 0.0
    if not np.isfinite(error) or scale == 0:
        return ""
    held = held_in(truth, made)
    if held:
        return held
    if tensor not in call.output_names:
        return ""
    for name, unit, rounded in reversed(MODES):
        if not unit * scale / 64 <= error <= _HELD * unit * scale:
            continue
        module = adapter.is_model(call.target)
        given = [
            a if p is not None and (module or a.ndim < 2) else _round(a, rounded)
            for a, p in zip(call.inputs, call.params, strict=True)
        ]
        try:
            with _rounded_parameters(adapter, call, rounded):
                outputs = replay(adapter, call.target, call, given, float64=True)
        except NoFloat64:
            return ""
        wide = outputs[call.output_names.index(tensor)]
        if wide.shape == made.shape and _rmse(made, wide) < _EXPLAINED * error + 8 * noise:
            return name
    return ""


def held_in(truth: Array, made: Array) -> str:
    """The mode in which `made` is held to the last bit, while it is `truth` but for a few of that mode's roundoffs.

    >>> x = np.linspace(0, 1e6, 9, dtype=np.float32) / 3  # float16 has numbers of as many bits, but none as large
    >>> held_in(x, _tf32(x)), held_in(x, x), held_in(x, _tf32(x) * 2)
    ('TF32', '', '')
    """
    if made.dtype != np.float32 or made.shape != truth.shape or not made.size:
        return ""
    scale = float(np.sqrt(np.mean(np.square(truth[np.isfinite(truth)])))) if np.isfinite(truth).any() else 0.0
    error = _rmse(made, truth)
    for name, unit, rounded in MODES:
        held = error <= _HELD * unit * scale and np.array_equal(rounded(made), made, equal_nan=True)
        if held and not np.array_equal(rounded(truth.astype(np.float32)), truth):
            return name
    return ""


@contextmanager
def _rounded_parameters(adapter: Adapter, call: KeptCall, rounded: Callable[[Array], Array]) -> Iterator[None]:
    before = []
    for tensor in adapter.trainable(call.target).values():
        array = np.array(adapter.to_numpy(tensor), copy=True)
        if array.ndim < 2:
            continue  # a bias is added, in the mode that sums are taken in
        before.append((tensor, array))
        adapter.assign(tensor, _round(array, rounded))
    try:
        yield
    finally:
        for tensor, array in before:
            adapter.assign(tensor, array)


def _round(array: Array, rounded: Callable[[Array], Array]) -> Array:
    return rounded(array).astype(array.dtype) if array.dtype == np.float32 else array


def _rmse(a: Array, b: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        difference = a.astype(np.float64) - b
    fine = np.isfinite(difference)
    return float(np.sqrt(np.mean(np.square(difference[fine])))) if fine.any() else float("inf")
