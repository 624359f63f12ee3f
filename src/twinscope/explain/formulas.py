"""What functions are, as formulas in numpy: to tell by its values alone which one a call computed.

Hand-written code has no attributes to compare. But a tensor that is gelu by tanh of its input to the last bit, where
the reference's is gelu by erf, says what is wrong as plainly as an attribute does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from ..adapters.base import Array

Function = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Formula:
    """A function of one tensor."""

    family: str  # "gelu", "softmax": formulas of one family differ in one option
    option: str  # "approximate", "axis"; empty where there is none
    value: object  # of the option
    function: Function

    @property
    def name(self) -> str:
        return self.family if not self.option else f"{self.family}({self.option}={self.value!r})"


def _sigmoid(x: Array) -> Array:
    return np.asarray(special.expit(x))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0.0, x))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))))


_GELU = (
    Formula("gelu", "approximate", "none", lambda x: x * special.ndtr(x)),
    Formula("gelu", "approximate", "tanh", _gelu_tanh),
    Formula("gelu", "approximate", "sigmoid", lambda x: x * _sigmoid(1.702 * x)),
)


def _leaky(slope: float) -> Formula:
    return Formula("leaky_relu", "negative_slope", slope, lambda x: np.where(x > 0, x, slope * x))


def _elu(alpha: float) -> Formula:
    return Formula("elu", "alpha", alpha, lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))))


def _plain(name: str, function: Function) -> Formula:
    return Formula(name, "", None, function)


#: Element by element.
ELEMENTWISE: tuple[Formula, ...] = (
    *_GELU,
    _plain("relu", lambda x: np.maximum(x, 0.0)),
    _plain("relu6", lambda x: np.clip(x, 0.0, 6.0)),
    _plain("silu", lambda x: x * _sigmoid(x)),
    _plain("mish", lambda x: x * np.tanh(_softplus(x))),
    _plain("tanh", np.tanh),
    _plain("sigmoid", _sigmoid),
    Formula("hardsigmoid", "slope", "1/6", lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0)),
    Formula("hardsigmoid", "slope", "0.2", lambda x: np.clip(0.2 * x + 0.5, 0.0, 1.0)),
    _plain("hardswish", lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)),
    _plain("hardtanh", lambda x: np.clip(x, -1.0, 1.0)),
    *(_leaky(slope) for slope in (0.01, 0.2, 0.1, 0.3, 0.25, 0.02, 0.05)),
    *(_elu(alpha) for alpha in (1.0, 0.1, 0.5)),
    _plain("selu", lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))),
    _plain("softplus", _softplus),
    _plain("log_sigmoid", lambda x: -_softplus(-x)),
    _plain("softsign", lambda x: x / (1.0 + np.abs(x))),
    _plain("erf", special.erf),
    _plain("exp", np.exp),
    _plain("expm1", np.expm1),
    _plain("log", np.log),
    _plain("log1p", np.log1p),
    _plain("log2", np.log2),
    _plain("sqrt", np.sqrt),
    _plain("rsqrt", lambda x: 1.0 / np.sqrt(x)),
    _plain("reciprocal", lambda x: 1.0 / x),
    _plain("square", np.square),
    _plain("abs", np.abs),
    _plain("sin", np.sin),
    _plain("cos", np.cos),
    _plain("floor", np.floor),
    _plain("round", np.round),
    _plain("ceil", np.ceil),
    _plain("identity", lambda x: x),
)


def _along(rank: int) -> Iterator[Formula]:
    """Along one axis, of the same shape."""
    for axis in range(-1, -rank - 1, -1):
        yield Formula("softmax", "axis", axis, lambda x, k=axis: special.softmax(x, axis=k))  # type: ignore[misc]
        yield Formula("log_softmax", "axis", axis, lambda x, k=axis: special.log_softmax(x, axis=k))  # type: ignore[misc]
        yield Formula("cumsum", "axis", axis, lambda x, k=axis: np.cumsum(x, axis=k))  # type: ignore[misc]
        yield Formula("sort", "axis", axis, lambda x, k=axis: np.sort(x, axis=k))  # type: ignore[misc]
        yield Formula("flip", "axis", axis, lambda x, k=axis: np.flip(x, axis=k))  # type: ignore[misc]
        for roll in (1, -1):
            yield Formula("roll", "axis", axis, lambda x, k=axis, n=roll: np.roll(x, n, k))  # type: ignore[misc]


def _median_low(x: Array, axis: int | None) -> Array:
    ordered = np.sort(x.ravel() if axis is None else x, axis=-1 if axis is None else axis)
    n = ordered.shape[-1 if axis is None else axis]
    return np.asarray(np.take(ordered, (n - 1) // 2, axis=-1 if axis is None else axis))


def _reductions(rank: int) -> Iterator[Formula]:
    """Over one axis, the last two, or all."""
    axes: list[int | tuple[int, ...] | None] = [*range(-1, -rank - 1, -1)]
    if rank > 2:
        axes += [(-2, -1)]
    axes += [None]
    for axis in axes:
        for name, function in (("mean", np.mean), ("sum", np.sum), ("max", np.max), ("min", np.min)):
            yield Formula(name, "axis", axis, lambda x, f=function, k=axis: np.asarray(f(x, axis=k)))  # type: ignore[misc]
        for ddof in (1, 0):
            spread: tuple[tuple[str, Any], ...] = (("std", np.std), ("var", np.var))
            for name, function in spread:
                yield Formula(
                    name,
                    "axis" if ddof == 1 else "axis, ddof 0",
                    axis,
                    lambda x, f=function, k=axis, n=ddof: np.asarray(f(x, axis=k, ddof=n)),  # type: ignore[misc]
                )
        if not isinstance(axis, tuple):
            yield Formula("median", "axis", axis, lambda x, k=axis: np.asarray(np.median(x, axis=k)))  # type: ignore[misc]
            yield Formula(
                "median (the lower of the middle two)",
                "axis",
                axis,
                lambda x, k=axis: _median_low(x, k),  # type: ignore[misc]
            )
        yield Formula("norm", "axis", axis, lambda x, k=axis: np.sqrt(np.sum(x * x, axis=k)))  # type: ignore[misc]


def candidates(given: Array, size: int) -> Iterator[Formula]:
    """Formulas whose result has as many elements as that."""
    if given.size == size:
        yield from ELEMENTWISE
        yield from _along(given.ndim)
    elif 0 < size < given.size:
        yield from _reductions(given.ndim)


def matching(given: Array, result: Array, slack: float) -> list[Formula]:
    """The formulas that give `result` on `given`, but for an error of `slack`; most of the simpler kind first."""
    x = given.astype(np.float64)
    if given.size > 1 << 18 or x.size < 3:
        return []
    wanted = result.astype(np.float64).ravel()
    found = []
    with np.errstate(all="ignore"):
        for formula in candidates(x, wanted.size):
            try:
                made = np.asarray(formula.function(x), dtype=np.float64).ravel()
            except (ValueError, IndexError):
                continue
            if made.size == wanted.size and _rms(made, wanted) <= slack:
                found.append(formula)
    return found


def told_apart(reference: Sequence[Formula], candidate: Sequence[Formula]) -> tuple[Formula, Formula] | None:
    """Of the formulas that fit either side, two that differ least: one family and another option, if there are such."""
    if {f.name for f in reference} & {f.name for f in candidate}:
        return None  # nothing tells them apart
    pairs = [(a, b) for a in reference for b in candidate]
    if not pairs:
        return None
    return min(pairs, key=lambda p: (p[0].family != p[1].family, "identity" in (p[0].family, p[1].family)))


def difference(a: Formula, b: Formula) -> str:
    """In words: "gelu: approximate 'none' / 'tanh'"."""
    if a.family == b.family and a.option == b.option:
        more = " (dim)" if a.option == "axis" else ""
        return f"{a.family}: {a.option}{more} {a.value!r} / {b.value!r}"
    if a.family == b.family and a.value == b.value and "ddof" in a.option + b.option:
        first, second = (0 if "ddof" in f.option else 1 for f in (a, b))
        return f"{a.family}: ddof {first} / {second} (unbiased, correction)"
    if "median" in a.family and "median" in b.family:
        lower = "lower" in a.family
        words = ("the lower of the middle two", "the mean of the middle two")
        return f"median {words[not lower]} / {words[lower]}"
    kind = "activation" if a in ELEMENTWISE and b in ELEMENTWISE else "function"
    return f"{kind} {a.name} / {b.name}"


def _rms(a: Array, b: Array) -> float:
    fine = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), fine) or not fine.any():
        return math.inf
    return float(np.sqrt(np.mean((a[fine] - b[fine]) ** 2)))
