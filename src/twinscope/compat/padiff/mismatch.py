"""How far two arrays are apart, said as the documents say it; whether they are too far apart is decided elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np


def mismatch(x: Any, y: Any, *, atol: float, rtol: float, mode: str = "strict") -> str:
    """The text under "Diff found": tolerance, how many elements differ, by how much at most, and both arrays.

    >>> print(mismatch(np.float32([1, 2]), np.float32([1, 2.5]), atol=0.1, rtol=0))
    Not equal to tolerance rtol=0, atol=0.1
    <BLANKLINE>
    Mismatched elements: 1 / 2 (50%)
    Max absolute difference: 0.5
    Max relative difference: 0.2
     x: array([1., 2.], dtype=float32)
     y: array([1. , 2.5], dtype=float32)

    In mode "mean" the mean of the absolute error is held against the tolerance, and the text says so.
    """
    a, b = np.asarray(x), np.asarray(y)
    lines = [f"Not equal to tolerance rtol={rtol:g}, atol={atol:g}", ""]
    if a.shape != b.shape:
        lines.append(f"(shapes {a.shape}, {b.shape} mismatch)")
    else:
        lines += _numbers(a, b, atol, rtol, mode)
    lines += [_shown(" x: ", a), _shown(" y: ", b)]
    return "\n".join(lines)


def _numbers(a: Any, b: Any, atol: float, rtol: float, mode: str) -> list[str]:
    left, right = _wide(a), _wide(b)
    with np.errstate(all="ignore"):
        error = np.abs(left - right)
        equal = (left == right) | (_nan(left) & _nan(right))
        error = np.where(equal, 0.0, error)
        within = equal | (error <= atol + rtol * np.abs(right))
        relative = error[(right != 0) & ~_nan(error)] / np.abs(right[(right != 0) & ~_nan(error)])
    lines = []
    if not np.array_equal(_nan(left), _nan(right)):
        lines.append("x and y nan location mismatch:")
    if mode == "mean" and error.size:
        allowed = atol + rtol * float(np.nanmean(np.abs(right)))
        lines.append(f"Mean absolute difference: {float(np.nanmean(error)):.8g} (allowed: {allowed:.8g})")
    wrong, total = int(error.size - np.count_nonzero(within)), error.size
    percent = 100 * wrong / total if total else 0.0
    lines.append(f"Mismatched elements: {wrong} / {total} ({percent:.3g}%)")
    if error.size and not _nan(error).all():
        lines.append(f"Max absolute difference: {float(np.nanmax(error)):.8g}")
        lines.append(f"Max relative difference: {float(relative.max()) if relative.size else float('inf'):.8g}")
    return lines


def _nan(array: Any) -> Any:
    return np.isnan(array)


def _wide(array: Any) -> Any:
    """In float64: bfloat16 and bool know too little arithmetic."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _shown(name: str, array: Any) -> str:
    with np.printoptions(precision=6, threshold=20, edgeitems=3, linewidth=75):
        lines = (name + np.array_repr(array)).splitlines()
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"{lines[2]}..."])
