"""The shape of an error: what kind of mistake makes a tensor differ from another in just this way.

Numbers in, values out. Every shape is a claim about ``candidate - reference`` with few free numbers, and is held
against two alternatives: that the error has no such shape, and that it is noise. Three kinds of tests are used.

    direction   the error of a group of elements (a row, a channel, all) points along a given vector: the reference (a
                factor), ones (an offset), an input. A random direction of m elements does so with a known probability,
                whatever the error's size, so a row of two elements proves nothing, many of them together do, and one
                large error does not pass for a shape of them all.
    place       what is wrong lies in one region: an index of an axis, the border, a triangle. Wrong elements that lay
                anywhere would all be there with probability share ** count.
    the same    after some rearrangement nothing is left but noise. Where values are so dense, or noise is so large,
                that any two samples would agree, nothing is said.

Probabilities are multiplied by the number of things that were tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from scipy import optimize, stats

from ..adapters.base import Array
from ..metrics import arranged

#: A shape whose chance, times all that was tried, is higher is none.
_CHANCE = 1e-4
#: The least share of the squared error that a shape explains, each free number paid for.
_SHARE = 0.9
#: An element is wrong from this many times the noise, and a tensor is the same below the other.
_WRONG, _SAME = 6.0, 4.0
#: Larger tensors are looked at in part: their first samples.
_MOST = 1 << 18
#: Most indices of an axis whose permutation is looked for by comparing each with each.
_MOST_PAIRS = 512

_EPSILON = 1e-300


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape that an error has."""

    name: str  # "scale", "row scale", "permutation"...
    statistic: float  # by which it was found: F, or how many times the chance is below one, in powers of ten
    r2: float  # the share of the squared error that it explains
    p_value: float  # the chance that an error of no shape looks so, times the number of shapes tried
    text: str  # for a person
    parameters: Mapping[str, Any] = field(default_factory=dict)
    rest: float = 0.0  # what is left when it is taken away, in units of the noise
    free: int = 1  # how many numbers were fitted
    #: From the candidate's tensor to one without the error, where that can be done.
    undo: Callable[[Array], Array] | None = field(default=None, compare=False, repr=False)

    @property
    def complete(self) -> bool:
        """Whether nothing but noise is left without it."""
        return self.rest <= _SAME


def residual_shapes(
    reference: Array, candidate: Array, noise: float, inputs: Mapping[str, Array] | None = None
) -> tuple[Shape, ...]:
    """The shapes that ``candidate - reference`` has, the best first; none where it is noise or has no shape.

    `reference` is the truth in float64 where there is one, `noise` the root mean square error that is noise, `inputs`
    are the tensors that the call was given.

    >>> random = np.random.default_rng(0)
    >>> a = random.standard_normal((4, 8))
    >>> residual_shapes(a, 2 * a, 1e-8)[0].text
    'the candidate is 2 times the reference, which is 2'
    >>> residual_shapes(a, a + 1e-9, 1e-8)
    ()
    """
    a, b = np.asarray(reference), np.asarray(candidate)
    if a.shape != b.shape:
        return tuple(_resized(a, b, noise))
    a, b = _cropped(a), _cropped(b)
    mask = _mask_shape(a, b)
    if mask is not None:
        return (mask,)
    known = {name: _cropped(x) if x.shape == np.shape(reference) else x for name, x in (inputs or {}).items()}
    finite = _finite_shape(a, b)
    if finite is not None:
        return (finite,)
    if a.size == 0 or a.dtype.kind in "bOSU" or b.dtype.kind in "bOSU":
        return ()
    search = _Search(a, b, noise, known)
    if search.total <= 0 or math.sqrt(search.total / search.count) <= _SAME * search.noise:
        return ()
    found = [shape for test in _TESTS for shape in test(search)]
    return _ranked(found)


class _Search:
    """The tensors in float64, what differs, and what every test needs of them."""

    def __init__(self, a: Array, b: Array, noise: float, inputs: Mapping[str, Array]) -> None:
        self.a, self.b = a.astype(np.float64), b.astype(np.float64)
        # infinite where the reference is, as in masked scores: no difference there
        fine = np.isfinite(self.a) & np.isfinite(self.b)
        self.whole = bool(fine.all())
        self.a, self.b = np.where(fine, self.a, 0.0), np.where(fine, self.b, 0.0)
        self.d = self.b - self.a
        self.inputs = {k: x.astype(np.float64) for k, x in inputs.items() if x.dtype.kind == "f" or _is_half(x)}
        scale = _rms(self.a)
        self.noise = max(noise, 2.0**-60 * scale, _EPSILON)
        self.total = float(np.sum(self.d * self.d))
        self.count = int(self.a.size)
        self.wrong = np.abs(self.d) > _WRONG * self.noise
        #: elements that could be wrong: where both are exactly zero nothing was computed
        self.played = (self.a != 0) | (self.b != 0)

    def left(self, without: Array) -> tuple[float, float]:
        """How much of the squared error is explained, and what is left in units of noise, by what should be `a`."""
        rest = without - self.a
        squared = float(np.sum(rest * rest))
        return 1.0 - squared / self.total, math.sqrt(squared / self.count) / self.noise

    def is_same(self, without: Array) -> bool:
        return without.shape == self.a.shape and self.left(without)[1] <= _SAME


# -- not finite, another shape -----------------------------------------------------------------------------------------


def _finite_shape(a: Array, b: Array) -> Shape | None:
    if a.dtype.kind not in "fc" and not _is_half(a):
        return None
    fine = [np.isfinite(x.astype(np.float64) if _is_half(x) else x) for x in (a, b)]
    for name, one, other in (("not finite", fine[1], fine[0]), ("only the reference is not finite", *fine)):
        bad = ~one & other
        if bad.any():
            count = int(bad.sum())
            side = "candidate" if name == "not finite" else "reference"
            text = f"the {side} is NaN or infinite in {count} of {a.size} places where the other is not"
            return Shape(name, float(count), 1.0, 0.0, text, {"count": count}, rest=math.inf, free=0)
    return None


#: A score that is so low is hidden.
_HIDDEN = -1e3


def _mask_shape(a: Array, b: Array) -> Shape | None:
    """Scores of which others are hidden: by -inf or a large negative number."""
    if a.ndim < 2 or a.dtype.kind != "f" or b.dtype.kind != "f":
        return None
    hidden = [(x == -np.inf) | (x <= _HIDDEN) for x in (a, b)]
    seen = [x[~h] for x, h in zip((a, b), hidden, strict=True)]
    if not hidden[0].any() and not hidden[1].any():
        return None
    # numbers that are large altogether hide nothing
    if any(x.size and not (np.isfinite(x).all() and np.abs(x).max() < -_HIDDEN / 10) for x in seen):
        return None
    differ = hidden[0] != hidden[1]
    if not differ.any():
        return None
    counts = [int(h.sum()) for h in hidden]
    text = f"another mask: {counts[0]} of {a.size} places are hidden in the reference, {counts[1]} in the candidate"
    rows, columns = np.indices(a.shape[-2:])
    for k in (-1, 0, 1, 2):
        if (differ == np.broadcast_to(columns - rows == k, a.shape)).all():
            text += f"; off by one, on the diagonal {k}"
    if not counts[1]:
        text += "; there is no mask, it is added as it is (a boolean one), or it is too weak"
    elif (hidden[0] ^ hidden[1]).all():
        text += "; it is inverted"
    return Shape("mask", float(differ.sum()), 1.0, 0.0, text, {"hidden": tuple(counts)}, 0.0, 0)


def _resized(a: Array, b: Array, noise: float) -> Iterator[Shape]:
    """Tensors of other sizes: one may be the other's sum or mean."""
    if a.size == b.size:
        yield from residual_shapes(a, b.reshape(a.shape), noise)
        return
    wide, narrow, direction = (b, a, "none") if b.size > a.size else (a, b, "more")
    wide, narrow = wide.astype(np.float64), narrow.astype(np.float64)
    floor = _SAME * max(noise, 2.0**-22 * _rms(narrow))
    for word, reduce in (("mean", np.mean), ("sum", np.sum)):
        for axes in _subsets(wide.ndim):
            made = np.asarray(reduce(wide, axis=axes))
            if made.size != narrow.size or narrow.size == 0:
                continue
            if _rms(made.reshape(narrow.shape) - narrow) > floor:
                continue
            whole = len(axes) == wide.ndim
            over = "" if whole else f" over axis {', '.join(map(str, axes))}"
            sides = (word, "none") if direction == "none" else ("none", word)
            text = f"reduction {sides[0]!r} / {sides[1]!r}: one is the {word} of the other{over}"
            undo: Callable[[Array], Array] | None = None
            if direction == "none":
                undo = partial(_reduced, reduce, axes, a.shape)
            yield Shape("reduction", math.inf, 1.0, 0.0, text, {"reduction": word, "axes": axes}, 0.0, 0, undo)
            return


# -- directions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fit:
    """What groups of an error come to when each is laid along vectors of its own."""

    fitted: Array  # the error that is explained, in the grouped layout
    log_chance: float  # natural logarithm
    r2: float
    f: float
    groups: int  # how many groups are off by more than noise
    coefficients: Array


def _fit(d: Array, *vectors: Array, noise: float, total: float) -> _Fit | None:
    """Lay each row of `d` along the rows of `vectors`; `total` is the squared error that there is to explain."""
    groups, size = d.shape
    basis: list[Array] = []
    coefficients: list[Array] = []
    rest = d
    for v in vectors:
        own = v.copy()
        for done in basis:
            own = own - np.sum(own * done, 1, keepdims=True) * done
        length = np.sqrt(np.sum(own * own, 1, keepdims=True))
        # what is left of a vector that is all but a multiple of the one before is rounding
        usable = length > 1e-9 * np.sqrt(np.sum(v * v, 1, keepdims=True))
        own = np.where(usable, own / np.maximum(length, _EPSILON), 0.0)
        amount = np.sum(rest * own, 1, keepdims=True)
        rest = rest - amount * own
        basis.append(own)
        coefficients.append(np.where(usable, amount / np.maximum(length, _EPSILON), 0.0)[:, 0])
    spare = size - len(vectors)
    if spare < 1:
        return None
    energy, left = np.sum(d * d, 1), np.sum(rest * rest, 1)
    off = energy > size * (_WRONG / 2 * noise) ** 2
    if not off.any():
        return None
    # nothing is closer than noise lets it be seen
    share = np.clip((left[off] + spare * noise**2) / (energy[off] + spare * noise**2), 1e-300, 1.0)
    # of a random direction, 1 - cos^2 is a Beta variable
    log_p = stats.beta.logcdf(share, spare / 2, len(vectors) / 2)
    log_p = np.where(np.isfinite(log_p), log_p, -700.0)
    chance = float(stats.chi2.logsf(-2.0 * float(np.sum(log_p)), 2 * int(off.sum())))
    chance = chance if math.isfinite(chance) else -1e4
    free = groups * len(vectors)
    degrees = d.size - free
    squared = float(np.sum(left))
    r2 = 1.0 - (squared / degrees) / (total / d.size)
    f = ((total - squared) / free) / max(squared / degrees, noise**2)
    return _Fit(d - rest, chance, r2, f, int(off.sum()), np.stack(coefficients))


def _p(log_chance: float, tries: int) -> float:
    return min(1.0, math.exp(min(0.0, max(-700.0, log_chance + math.log(tries)))))


def _along(search: _Search) -> Iterator[Shape]:
    """One factor, one offset, both; the same with an input in the place of the reference."""
    a, d = search.a.reshape(1, -1), search.d.reshape(1, -1)
    ones = np.ones_like(a)
    tries = 3 + 2 * len(search.inputs)
    if search.count == 1:
        yield from _single(search)
        return
    for name, vectors in (("scale", (a,)), ("offset", (ones,)), ("affine", (ones, a))):
        fit = _fit(d, *vectors, noise=search.noise, total=search.total)
        if fit is None or not _holds(fit, tries) or not _without_the_largest(search, vectors):
            continue
        p = _p(fit.log_chance, tries)
        rest = math.sqrt(float(np.sum((d - fit.fitted) ** 2)) / search.count) / search.noise
        if name == "scale":
            yield _scale(search, 1.0 + float(fit.coefficients[0, 0]), fit, p, rest)
        elif name == "offset":
            by = float(fit.coefficients[0, 0])
            text = f"the candidate is the reference plus {by:.4g}"
            yield Shape(name, fit.f, fit.r2, p, text, {"offset": by}, rest, 1, _unscaled(1.0, by))
        elif fit.groups:
            slope = 1.0 + float(fit.coefficients[1, 0])
            level = float(np.mean(search.b) - slope * np.mean(search.a))
            text = f"the candidate is {slope:.6g} times the reference plus {level:.4g}"
            if abs(slope) > 1e-6:
                yield Shape(
                    name,
                    fit.f,
                    fit.r2,
                    p,
                    text,
                    {"factor": slope, "offset": level},
                    rest,
                    2,
                    _unscaled(slope, level),
                )


def _holds(fit: _Fit, tries: int) -> bool:
    return fit.r2 >= _SHARE and _p(fit.log_chance, tries) < _CHANCE


def _without_the_largest(search: _Search, vectors: Sequence[Array]) -> bool:
    """Whether it is there without the largest error too: one wrong element is no shape of them all."""
    if search.count < 4:
        return True
    keep = np.ones(search.count, bool)
    keep[np.argsort(np.abs(search.d).ravel())[-max(1, search.count // 64) :]] = False
    d = search.d.reshape(1, -1)[:, keep]
    total = float(np.sum(d * d))
    fit = _fit(d, *(v[:, keep] for v in vectors), noise=search.noise, total=total) if total > 0 else None
    return fit is not None and fit.r2 >= _SHARE / 2


def _single(search: _Search) -> Iterator[Shape]:
    """A loss: one number is any multiple of another, but few are a known one."""
    a, b = float(search.a.ravel()[0]), float(search.b.ravel()[0])
    if a == 0:
        return
    sure = _SAME * search.noise / abs(a) + 1e-7
    name = known_factor(b / a, sure, *_extents(search))
    if name is not None:
        p = min(1.0, 400 * sure)
        text = f"the candidate is {b / a:.6g} times the reference, which is {name}"
        if p < 0.01:
            parameters = {"factor": b / a, "known": name}
            yield Shape("scale", 1 / p, 1.0, p, text, parameters, 0.0, 1, _unscaled(b / a))


def _scale(search: _Search, c: float, fit: _Fit, p: float, rest: float) -> Shape:
    if abs(c) * _rms(search.a) <= _SAME * search.noise:
        return Shape("zeros", fit.f, fit.r2, p, "the candidate is zero", {}, rest, 0)
    spread = _SAME * search.noise / (_rms(search.a) * math.sqrt(search.count))
    sure = max(spread, 1e-7, math.sqrt(max(rest, 1.0)) * spread)
    known = known_factor(c, sure, *_extents(search))
    text = f"the candidate is {_factor(c)} times the reference" + (f", which is {known}" if known else "")
    # a known number is the number itself, not a fit to it
    parameters = {"factor": c, "known": known} if known else {"factor": c}
    return Shape("scale", fit.f, fit.r2, p, text, parameters, rest, 1, _unscaled(c))


def _factor(c: float) -> str:
    """A factor, with digits enough to tell it from 1."""
    return f"{c:.6g}" if abs(c - 1) > 1e-4 else f"{c:.10g}"


def _keys(shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Ways to divide a tensor into groups: the axes that say which group, and what such a group is called."""
    rank = len(shape)
    wide = [i for i in range(rank) if shape[i] > 1]
    if len(wide) < 2:
        return
    seen = set()
    rows = [(wide[-1], "row"), *((i, f"row along axis {i}") for i in wide[:-1])]
    for along, name in rows:
        key = tuple(i for i in wide if i != along)
        if key not in seen:
            seen.add(key)
            yield name, key
    channels = [wide[-1], *([1] if rank > 1 and shape[1] > 1 else []), *wide]
    for axis in dict.fromkeys(channels):
        if (axis,) not in seen:
            seen.add((axis,))
            yield ("channel" if axis in (wide[-1], 1) else f"index of axis {axis}"), (axis,)
    if len(wide) > 2 and (wide[0], wide[1]) not in seen:
        yield "plane", (wide[0], wide[1])


def _in_groups(search: _Search) -> Iterator[Shape]:
    """A factor, an offset or both of its own for every row, channel or plane."""
    shape = search.a.shape
    keys = list(_keys(shape))
    tries = 3 * max(1, len(keys))
    best: dict[tuple[int, ...], float] = {}
    for kind in ("scale", "offset", "affine"):
        for name, key in keys:
            order = (*key, *(i for i in range(len(shape)) if i not in key))
            groups = math.prod(shape[i] for i in key)
            a, d = (x.transpose(order).reshape(groups, -1) for x in (search.a, search.d))
            vectors = {"scale": (a,), "offset": (np.ones_like(a),), "affine": (np.ones_like(a), a)}[kind]
            fit = _fit(d, *vectors, noise=search.noise, total=search.total)
            # of one group it is that group's shape, which is told as a place
            if fit is None or not _holds(fit, tries) or fit.groups < min(3, groups):
                continue
            if kind == "affine" and 1 - fit.r2 > 0.1 * (1 - best.get(key, 0.0)):
                continue  # a number more, and hardly better
            best[key] = max(best.get(key, 0.0), fit.r2)
            inverse = np.argsort(order)
            fitted = fit.fitted.reshape([shape[i] for i in order]).transpose(inverse)
            rest = search.left(search.b - fitted)[1]
            numbers = 1.0 + fit.coefficients[-1] if kind != "offset" else fit.coefficients[0]
            what = {"scale": "a factor", "offset": "an offset", "affine": "a factor and an offset"}[kind]
            text = f"{what} of its own for every {name} ({numbers.min():.6g} to {numbers.max():.6g})"
            parameters = {"axes": key, "least": float(numbers.min()), "most": float(numbers.max())}
            free = groups * len(vectors)
            p = _p(fit.log_chance, tries)
            word = name.split(" ")[0]
            yield Shape(f"{word} {kind}", fit.f, fit.r2, p, text, parameters, rest, free)


def _bent_rows(search: _Search) -> Iterator[Shape]:
    """A factor for every row, of all but an offset for every channel: an epsilon in a norm that has a bias."""
    shape = search.a.shape
    wide = [i for i in range(len(shape)) if shape[i] > 1]
    if len(wide) < 2 or search.count > 1 << 18:
        return
    a, d = (x.reshape(-1, shape[wide[-1]]) for x in (search.a, search.d))
    off = np.sum(d * d, 1) > d.shape[1] * (_WRONG * search.noise) ** 2
    a, d = a[off], d[off]
    rows, size = d.shape
    free = rows + size
    degrees = d.size - free
    if rows < 3 or size < 4 or degrees < max(4, d.size // 3):
        return
    # every row counts the same: those of least variance would be all that is seen
    lengths = np.sqrt(np.mean(d * d, 1, keepdims=True))
    d = d / lengths
    offset = np.zeros(size)
    s = np.zeros((rows, 1))
    for _ in range(60):  # D = s_r (a - c): by turns
        moved = a - offset
        s = np.sum(d * moved, 1, keepdims=True) / np.maximum(np.sum(moved * moved, 1, keepdims=True), _EPSILON)
        weight = float(np.sum(s * s))
        if weight <= 0:
            return
        offset = np.sum(s * (s * a - d), 0) / weight
    rest = d - s * (a - offset)
    squared = max(float(np.sum(rest * rest)), float(np.sum((search.noise / lengths) ** 2)) * size)
    r2 = 1.0 - squared / degrees
    f = (max(d.size - squared, 0.0) / free) / (squared / degrees)
    p = float(min(1.0, 4 * stats.f.sf(f, free, degrees)))
    if r2 < 0.95 or p > _CHANCE:
        return
    factors = 1.0 + (s * lengths)[:, 0]
    text = f"a factor of its own for every row, but for the bias ({factors.min():.6g} to {factors.max():.6g})"
    parameters = {"axes": tuple(wide[:-1]), "least": float(factors.min()), "most": float(factors.max())}
    left = math.sqrt(float(np.sum((rest * lengths) ** 2)) / search.count) / search.noise
    yield Shape("row scale", f, r2, p, text, parameters, left, free)


def _of_inputs(search: _Search) -> Iterator[Shape]:
    """The candidate is an input; an input is added or left out; the error is a function of an input's elements."""
    fitting = {}
    for name, x in search.inputs.items():
        laid = arranged(search.a, x) if x.size == search.count else None
        if laid is not None and np.isfinite(laid[0]).all():
            fitting[name] = laid[0]
    for name, x in fitting.items():
        if search.is_same(search.b - x + search.a) and search.count > 2:
            text = f"the candidate is its input {name}: an operation is missing"
            yield Shape("identity", math.inf, 1.0, 0.0, text, {"input": name}, search.left(search.b - x + search.a)[1])
            return
    d = search.d.reshape(1, -1)
    tries = 2 * max(1, len(fitting))
    for name, x in fitting.items():
        fit = _fit(d, x.reshape(1, -1), noise=search.noise, total=search.total) if search.count > 2 else None
        if fit is not None and _holds(fit, tries) and _without_the_largest(search, (x.reshape(1, -1),)):
            c = float(fit.coefficients[0, 0])
            whole = "" if abs(abs(c) - 1) < 1e-3 else f"{abs(c):.4g} times "
            word = "lacks" if c < 0 else "has added"
            text = f"the candidate {word} {whole}its input {name}: a residual"
            rest = search.left(search.b - c * x)[1]
            p = _p(fit.log_chance, tries)
            shape = Shape("input added", fit.f, fit.r2, p, text, {"input": name, "factor": c}, rest)
            yield shape
    for name, x in fitting.items():
        shape_of = _function_of(search, name, x, tries)
        if shape_of is not None:
            yield shape_of


def _function_of(search: _Search, name: str, x: Array, tries: int) -> Shape | None:
    """Whether the error of an element depends on nothing but the input's element: neighbours in value are alike."""
    if search.count < 16:
        return None
    order = np.argsort(x.ravel(), kind="stable")
    d, sorted_x = search.d.ravel()[order], x.ravel()[order]
    if sorted_x[0] == sorted_x[-1]:
        return None
    # a straight line between the neighbours on either side
    span = sorted_x[2:] - sorted_x[:-2]
    t = np.where(span > 0, (sorted_x[1:-1] - sorted_x[:-2]) / np.maximum(span, _EPSILON), 0.5)
    middle = d[:-2] + t * (d[2:] - d[:-2])
    expected = 1.0 + t**2 + (1 - t) ** 2  # of an error without shape, in units of its variance
    centred = d - d.mean()
    variance = float(np.mean(centred[1:-1] ** 2))
    if variance <= (_WRONG / 2 * search.noise) ** 2:
        return None
    ratio = float(np.mean((d[1:-1] - middle) ** 2 / expected)) / variance
    # errors of no shape, laid out in this order, give 1 with about this deviation
    score = (1.0 - ratio) * math.sqrt(search.count / 3.0)
    kurtosis = float(np.mean(centred**4)) / max(float(np.mean(centred**2)) ** 2, _EPSILON)
    p = float(min(1.0, tries * stats.norm.sf(score)))
    effective = search.count / max(kurtosis, 1.0)  # of heavy tails, few elements say anything
    if ratio > 1 - _SHARE or p > _CHANCE or effective < 8:
        return None
    text = f"the error is a function of the input {name}, element by element: another formula"
    rest = math.sqrt(ratio * variance) / search.noise
    return Shape("function", score, 1.0 - ratio, p, text, {"input": name}, rest, free=search.count // 8)


# -- places ------------------------------------------------------------------------------------------------------------


def _places(search: _Search) -> Iterator[Shape]:
    """What is wrong is wrong in one region, and the rest is right."""
    wrong, played = search.wrong & search.played, search.played
    count, all_played = int(wrong.sum()), int(played.sum())
    if not count or count > 0.75 * all_played:
        return
    if count <= max(1, search.count // 500) and search.count >= 8:
        where = [tuple(int(n) for n in index) for index in np.argwhere(wrong)[:4]]
        text = f"only {count} of {search.count} elements {'is' if count == 1 else 'are'} wrong, at {where}"
        yield Shape("elements", float(count), 1.0, 0.0, text, {"indices": where}, free=2 * count)
    regions = list(_regions(search))
    for name, text, parameters, region, ways in regions:
        inside = int((region & played).sum())
        if not inside or inside > 0.75 * all_played or (wrong & ~region).any():
            continue
        if count < 0.25 * inside:
            continue  # a few elements that happen to be there
        log_chance = count * math.log(inside / all_played) + math.log(ways)
        p = _p(log_chance, len(regions))
        if p > _CHANCE:
            continue
        rest = math.sqrt(float(np.mean(np.where(region, 0.0, search.d) ** 2))) / search.noise
        yield Shape(name, -log_chance / math.log(10), 1.0, p, text, parameters, rest, free=2)


def _regions(search: _Search) -> Iterator[tuple[str, str, dict[str, Any], Array, int]]:
    """(name, text, parameters, mask, in how many ways it was chosen)"""
    shape = search.a.shape
    for axis, extent in enumerate(shape):
        if extent < 3:
            continue
        others = tuple(i for i in range(len(shape)) if i != axis)
        hit = search.wrong.any(axis=others)
        indices = [int(i) for i in np.flatnonzero(hit)]
        which = "row" if axis == 0 and len(shape) == 2 else "channel" if axis in (1, len(shape) - 1) else "index"
        if 0 < len(indices) <= max(1, extent // 4):
            mask = _laid(hit, axis, shape)
            said = ", ".join(map(str, indices[:6])) + ("..." if len(indices) > 6 else "")
            plural = f"{which} {said}" if len(indices) == 1 else f"{which}s {said}"
            text = f"only {plural.replace('indexs', 'indices')} of axis {axis} (of {extent}) is wrong"
            yield "index", text, {"axis": axis, "indices": indices}, mask, math.comb(extent, len(indices))
        places = np.arange(extent)
        for word, chosen in (
            ("first half", places < extent // 2),
            ("second half", places >= (extent + 1) // 2),
            ("even indices", places % 2 == 0),
            ("odd indices", places % 2 == 1),
        ):
            text = f"only the {word} of axis {axis} {'are' if 'ind' in word else 'is'} wrong"
            yield "half", text, {"axis": axis, "half": word}, _laid(chosen, axis, shape), 1
    for axes, word in _spatial(shape):
        for width in (1, 2, 3):
            for side, text in (
                ("both", f"only the border of the {word} is wrong"),
                ("end", f"only the last rows and columns of the {word} are wrong"),
                ("start", f"only the first rows and columns of the {word} are wrong"),
            ):
                if any(shape[i] <= 2 * width for i in axes):
                    continue
                mask = np.zeros(shape, bool)
                for i in axes:
                    places = np.arange(shape[i])
                    first, last = places < width, places >= shape[i] - width
                    edge = {"both": first | last, "end": last, "start": first}[side]
                    mask |= _laid(edge, i, shape)
                said = f"{text}, {width} wide: padding"
                yield "border", said, {"axes": axes, "width": width, "side": side}, mask, 1
    if len(shape) >= 2 and min(shape[-2:]) >= 3:
        rows, columns = np.indices(shape[-2:])
        for k, word, chosen in (
            (1, "above the diagonal", columns > rows),
            (0, "on or below the diagonal", columns <= rows),
            (-1, "below the diagonal", columns < rows),
            (0, "on the diagonal", columns == rows),
            (1, "next to the diagonal", columns == rows + 1),
        ):
            mask = np.broadcast_to(chosen, shape)
            text = f"only what lies {word} of the last two axes is wrong: a mask"
            yield "triangle", text, {"where": word, "diagonal": k}, mask, 1


def _spatial(shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    if len(shape) == 3:
        yield (2,), "last axis"
        yield (1,), "axis 1"
        yield (1, 2), "last two axes"
    elif len(shape) == 4:
        yield (2, 3), "last two axes"
        yield (1, 2), "axes 1 and 2"
    elif len(shape) == 5:
        yield (2, 3, 4), "last three axes"


def _laid(chosen: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """A mask over one axis, spread over all."""
    return np.broadcast_to(chosen.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


# -- the same, otherwise arranged --------------------------------------------------------------------------------------


def _signs(search: _Search) -> Iterator[Shape]:
    """The same magnitudes, some of them with the other sign."""
    b, a = search.b, search.a
    if search.count < 4 or _rms(np.abs(b) - np.abs(a)) > _SAME * search.noise:
        return
    turned = search.wrong & (np.sign(b) != np.sign(a))
    if not turned.any() or (search.wrong & ~turned).any():
        return
    share = float(turned.sum()) / search.count
    if share > 0.9:
        return  # a factor of -1
    shape = Shape(
        "sign",
        float(turned.sum()),
        1.0,
        0.0,
        f"{share:.0%} of the elements have the other sign",
        {"share": share},
        _rms(np.abs(b) - np.abs(a)) / search.noise,
        free=2,
        undo=partial(_turned, turned),
    )
    if turned.sum() >= 4:
        yield shape


def _arrangements(search: _Search) -> Iterator[Shape]:
    """The same values in another order: axes exchanged, an axis shifted or permuted, memory read otherwise."""
    if search.count < 4 or not search.whole:
        return
    # all must be there: the cheapest test comes first
    sorted_a, sorted_b = np.sort(search.a, axis=None), np.sort(search.b, axis=None)
    apart = _rms(sorted_b - sorted_a)
    if apart > _SAME * search.noise:
        return
    for found in (_exchanged, _reread, _permuted_axis):
        shape = found(search)
        if shape is not None:
            yield shape
            return
    # any two samples agree when there are more values than the noise can tell apart
    gaps = np.diff(sorted_a)
    spacing = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0
    distinct = int((gaps > 4 * _SAME * search.noise).sum()) + 1
    if spacing > 4 * _SAME * search.noise and distinct >= 6:
        text = "the same values in another order: a permutation"
        yield Shape("permutation", math.inf, 1.0, 0.0, text, {}, apart / search.noise, free=search.count)


def _rearranged(search: _Search, name: str, text: str, parameters: dict[str, Any], undo: Any) -> Shape:
    r2, rest = search.left(undo(search.b))
    shape = search.a.shape

    def change(y: Array) -> Array:
        return np.asarray(undo(y)) if y.shape == shape else y

    return Shape(name, math.inf, r2, 0.0, text, parameters, rest, 0, change)


def _exchanged(search: _Search) -> Shape | None:
    """Axes exchanged: a square matrix that nobody could see was transposed."""
    shape = search.a.shape
    if not 2 <= len(shape) <= 5:
        return None
    own = tuple(range(len(shape)))
    for axes in sorted(itertools.permutations(own), key=lambda p: sum(map(int.__ne__, p, own))):
        if axes == own or tuple(shape[i] for i in axes) != shape:
            continue
        if search.is_same(search.b.transpose(axes)):
            text = f"the candidate is transposed: axes {own} are {axes}"
            return _rearranged(search, "transposed", text, {"axes": axes}, partial(np.transpose, axes=axes))
    return None


def _reread(search: _Search) -> Shape | None:
    """Memory read in another order: heads and their elements, channels and places, a reshape without a transpose."""
    shape = search.a.shape
    ways: list[tuple[str, dict[str, Any], Callable[[Array], Array]]] = []
    for i, j in itertools.combinations(range(len(shape)), 2):
        if shape[i] < 2 or shape[j] < 2:
            continue
        text = f"axes {i} and {j} were split in the other order: a permutation, transposed or reshaped too early"
        ways += [(text, {"axes": (i, j)}, partial(_resplit, (i, j), back)) for back in (False, True)]
    for axis, extent in enumerate(shape):
        for p in _factors(extent):
            q = extent // p
            text = (
                f"axis {axis} is in another order: {q} times {p} where it should be {p} times {q}, interleaved or "
                "transposed before it was flattened: a permutation"
            )
            ways.append((text, {"axis": axis, "factors": (p, q)}, partial(_swapped_within, axis, (p, q))))
            if axis == 0 or shape[axis - 1] < 2:
                continue
            text = (
                f"axes {axis - 1} and {axis} are in another order, {p} parts of {q}: a permutation, for want of a "
                "transpose before they were reshaped"
            )
            before = shape[axis - 1]
            for parts in ((p, before, q), (before, p, q)):
                ways.append((text, {"axes": (axis - 1, axis)}, partial(_swapped_between, axis, parts)))
    for text, parameters, undo in ways:
        if search.is_same(undo(search.b)):
            return _rearranged(search, "reordered", text, parameters, undo)
    return None


def _resplit(axes: tuple[int, int], back: bool, y: Array) -> Array:
    """Two axes as one, divided the other way round."""
    rest = [k for k in range(y.ndim) if k not in axes]
    order = (*rest, *axes)
    flat = y.transpose(order)
    *lead, m, n = flat.shape
    turned = flat.swapaxes(-1, -2).reshape(*lead, m, n) if back else flat.reshape(*lead, n, m).swapaxes(-1, -2)
    return np.asarray(turned.transpose(np.argsort(order)))


def _swapped_within(axis: int, parts: tuple[int, int], y: Array) -> Array:
    """An axis seen as two, which change places."""
    front, end = y.shape[:axis], y.shape[axis + 1 :]
    return np.asarray(y.reshape(*front, *parts, *end).swapaxes(axis, axis + 1).reshape(y.shape))


def _swapped_between(axis: int, parts: tuple[int, int, int], y: Array) -> Array:
    """An axis and the one before seen as three, of which the first two change places."""
    front, end = y.shape[: axis - 1], y.shape[axis + 1 :]
    return np.asarray(y.reshape(*front, *parts, *end).swapaxes(axis - 1, axis).reshape(y.shape))


def _permuted_axis(search: _Search) -> Shape | None:
    """One axis in another order, the same for all else."""
    shape = search.a.shape
    for axis, extent in enumerate(shape):
        if extent < 2 or extent == search.count:
            continue
        order = _order(np.moveaxis(search.a, axis, 0), np.moveaxis(search.b, axis, 0))
        if order is None:
            continue
        # b[order[i]] is a[i]
        if not search.is_same(np.take(search.b, order, axis)):
            continue
        how = describe_order(order)
        text = f"axis {axis} is in another order, {how}: a permutation"
        parameters = {"axis": axis, "order": tuple(int(n) for n in order), "how": how}
        return _rearranged(search, "permutation", text, parameters, partial(np.take, indices=order, axis=axis))
    if len([n for n in shape if n > 1]) == 1:  # a vector: by its values
        flat_a, flat_b = search.a.ravel(), search.b.ravel()
        gaps = np.diff(np.sort(flat_a))
        if flat_a.size >= 4 and gaps.min(initial=0.0) > 4 * _SAME * search.noise:
            order = np.empty(flat_a.size, int)
            order[np.argsort(flat_a)] = np.argsort(flat_b)
            how = describe_order(order)
            text = f"the same values in another order, {how}: a permutation"
            parameters = {"axis": int(np.argmax(shape)), "order": tuple(int(n) for n in order), "how": how}

            return _rearranged(search, "permutation", text, parameters, partial(_taken, order))
    return None


def _order(a: Array, b: Array) -> Array | None:
    """For every slice of `a` the one of `b` that is nearest, if that is a permutation; None where it is none."""
    a, b = a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1)
    extent = a.shape[0]
    if extent <= _MOST_PAIRS:
        if a.shape[1] > 4096:
            a, b = a[:, :4096], b[:, :4096]
        squares = np.sum(a * a, 1)[:, None] + np.sum(b * b, 1)[None, :] - 2 * a @ b.T
        _, order = optimize.linear_sum_assignment(squares)
    else:
        along = np.random.default_rng(0).standard_normal(a.shape[1])
        order = np.empty(extent, int)
        order[np.argsort(a @ along)] = np.argsort(b @ along)
    same = np.array_equal(order, np.arange(extent))
    return None if same else np.asarray(order)


def describe_order(order: Sequence[int] | Array) -> str:
    """A permutation in words: shifted, reversed, blocks exchanged, interleaved.

    >>> describe_order([2, 3, 0, 1]), describe_order([3, 2, 1, 0]), describe_order([0, 2, 1, 3])
    ('its two halves swapped', 'reversed', '2 of 4 exchanged: 1 and 2')
    """
    order = np.asarray(order)
    n = len(order)
    own = np.arange(n)
    moved = np.flatnonzero(order != own)
    for parts in range(2, min(n, 9)):
        if n % parts:
            continue
        blocks = order.reshape(parts, -1)
        first = blocks[:, 0]
        size = n // parts
        if size > 1 and (first % size == 0).all() and np.array_equal(blocks, first[:, None] + np.arange(size)):
            which = [int(i) for i in np.flatnonzero(first // size != np.arange(parts))]
            if parts == 2:
                return "its two halves swapped"
            if len(which) == 2:
                return f"parts {which[0]} and {which[1]} of {parts} swapped"
            return f"its {parts} parts as {tuple(int(i) for i in first // size)}"
    if len(moved) == 2:
        return f"2 of {n} exchanged: {moved[0]} and {moved[1]}"
    if np.array_equal(order, own[::-1]):
        return "reversed"
    shift = int(order[0])
    if np.array_equal(order, (own + shift) % n):
        by = shift if shift <= n // 2 else shift - n
        return f"shifted by {by}"
    for p in _factors(n):
        if np.array_equal(order, own.reshape(p, n // p).T.ravel()):
            return f"interleaved by {n // p}" if p == 2 or n // p == 2 else f"{p} times {n // p} for {n // p} times {p}"
    return f"{len(moved)} of {n} elsewhere"


# -- known numbers -----------------------------------------------------------------------------------------------------


def _extents(search: _Search) -> tuple[list[int], list[int]]:
    own = [n for n in search.a.shape if n > 1]
    given = [n for x in search.inputs.values() for n in x.shape if n > 1]
    sizes = [math.prod(own)] if len(own) > 1 else []
    sizes += [int(x.size) for x in search.inputs.values() if x.size > 1]
    return [*dict.fromkeys([*own, *given])], [*dict.fromkeys(sizes)]


def known_factor(c: float, sure: float, extents: Sequence[int] = (), sizes: Sequence[int] = ()) -> str | None:
    """What a factor is, where it is a number that people forget; `sure` is how exactly it is known, relatively.

    >>> known_factor(8**-0.5, 1e-6, [4, 8])
    '1/sqrt(8)'
    >>> known_factor(0.4871, 1e-6, [4, 8]) is None
    True
    """

    def near(value: float) -> bool:
        return abs(c - value) <= sure * abs(value)

    if not math.isfinite(c) or c == 0 or sure > 0.01:
        return None
    simple = {-1.0: "-1: another sign", 2.0: "2", 0.5: "1/2", math.sqrt(2): "sqrt(2)", math.sqrt(0.5): "1/sqrt(2)"}
    for value, name in simple.items():
        if near(value):
            return name
    for n in extents:
        for value, name in (
            (math.sqrt(n), f"sqrt({n})"),
            (1 / math.sqrt(n), f"1/sqrt({n})"),
            (n, f"{n}, the extent of an axis: sum and mean"),
            (1 / n, f"1/{n}, of the extent of an axis: mean and sum"),
        ):
            if near(value):
                return name
    for n in [*extents, *sizes]:
        if n < 2:
            continue
        ratio = n / (n - 1)
        for value, name in (
            (ratio, f"{n}/{n - 1}"),
            (1 / ratio, f"{n - 1}/{n}"),
            (math.sqrt(ratio), f"sqrt({n}/{n - 1})"),
            (1 / math.sqrt(ratio), f"sqrt({n - 1}/{n})"),
        ):
            if near(value):
                return f"{name}: ddof, the variance of a sample or of the population (unbiased, correction)"
    for n in sizes:
        for value, name in ((n, f"{n}, the number of elements: sum and mean"), (1 / n, f"1/{n}: mean and sum")):
            if near(value):
                return name
    for d in (8, 16, 32, 64, 128, 256, 512, 768, 1024):
        if near(math.sqrt(d)) or near(1 / math.sqrt(d)):
            return f"sqrt({d})" if c > 1 else f"1/sqrt({d})"
    for p in (0.1, 0.2, 0.25, 0.3, 0.4, 0.6, 0.7, 0.75, 0.8, 0.9, 0.05, 0.15):
        if near(1 - p):
            return f"1 - {p:g}: a dropout's share"
        if near(1 / (1 - p)):
            return f"1/(1 - {p:g}): a dropout's share"
    for value, name in (
        (255.0, "255"),
        (1 / 255, "1/255"),
        (math.log(2), "log(2)"),
        (1 / math.log(2), "1/log(2)"),
        (math.pi / 180, "degrees and radians"),
        (1000.0, "1000"),
        (100.0, "100"),
        (10.0, "10"),
        (0.1, "0.1"),
        (0.01, "0.01"),
        (0.001, "0.001"),
        (1.702, "1.702, of the sigmoid's gelu"),
    ):
        if near(value):
            return name
    if sure < 1e-4:
        for q in range(1, 13):
            p_ = round(abs(c) * q)
            if 1 <= p_ <= 64 and near(math.copysign(p_ / q, c)):
                return f"{math.copysign(1, c) * p_:.0f}/{q}" if q > 1 else f"{math.copysign(1, c) * p_:.0f}"
    return None


# -- precision ---------------------------------------------------------------------------------------------------------

#: Modes of less precision than float32: bits that a value keeps.
_MODES = {"bfloat16": 8, "float16": 11, "tf32": 11}


def precision_mode(reference: Array, candidate: Array, noise: float = 0.0) -> str | None:
    """The lower precision that a candidate looks like: "bfloat16: ..." with the evidence, or None.

    Either all of its values are numbers of that precision and the reference's are not, or its error has no shape and
    the size that rounded inputs give. `reference` may be the truth in float64.

    >>> x = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    >>> precision_mode(x, x.astype(ml_dtypes.bfloat16).astype(np.float32))
    'bfloat16: every value is one, 9.2 effective bits'
    >>> precision_mode(x, x) is None, precision_mode(x, x * np.float32(1.01)) is None
    (True, True)
    """
    a, b = np.asarray(reference), np.asarray(candidate)
    if a.shape != b.shape or a.size < 8 or a.dtype.kind != "f" or (b.dtype.kind != "f" and not _is_half(b)):
        return None
    x, y = a.astype(np.float64), b.astype(np.float64)
    fine = np.isfinite(x) & np.isfinite(y) & ((x != 0) | (y != 0))
    x, y = x[fine], y[fine]
    scale = _rms(x)
    if x.size < 8 or scale == 0:
        return None
    error = _rms(y - x)
    if error <= max(_SAME * noise, 2.0**-21 * scale):
        return None
    bits = -math.log2(error / scale)
    own = np.asarray(reference)[fine].astype(np.float32)
    if bits < 5.5:
        return None
    for mode in ("bfloat16", "float16", "tf32"):
        if _is_rounded(y, mode) and not _is_rounded(own, mode):
            # what else is wrong with it is more than rounding
            if bits < _MODES[mode] - 2:
                return None
            return f"{mode}: every value is one, {bits:.1f} effective bits"
    # rounded inputs of a product: about one bit more than the mode's own
    if not 7.5 <= bits <= 14.5:
        return None
    if residual_shapes(np.where(fine, a, 0).astype(np.float64), np.where(fine, b, 0).astype(np.float64), error / 20):
        return None
    if not _is_even(x, y - x):
        return None
    if bits <= 10.7:
        return f"bfloat16: an error without shape, {bits:.1f} effective bits, as from inputs rounded to it"
    return f"tf32 or float16: an error without shape, {bits:.1f} effective bits, as from inputs rounded to it"


def _is_even(x: Array, d: Array) -> bool:
    """Whether an error is as rounding leaves it: no bias, and no element far beyond the others."""
    n = d.size
    level = abs(float(d.mean())) * math.sqrt(n) / max(float(d.std()), _EPSILON)
    heavy = float(np.abs(d).max()) / max(_rms(d), _EPSILON)
    return level < 5.0 and heavy < 4.0 + 2.0 * math.sqrt(math.log(n))


def _is_rounded(values: Array, mode: str) -> bool:
    return bool(np.array_equal(rounded(values, mode), values.astype(np.float64)))


def rounded(values: Array, mode: str) -> Array:
    """The nearest numbers of a mode, in float64.

    >>> rounded(np.array([1.001, 3.0]), "bfloat16")
    array([1., 3.])
    """
    narrow = np.asarray(values, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if mode == "float16":
            return narrow.astype(np.float16).astype(np.float64)
        if mode == "bfloat16":
            return narrow.astype(ml_dtypes.bfloat16).astype(np.float64)
        bits = narrow.view(np.uint32)
        kept = (bits + 0x0FFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
        return np.asarray(np.where(np.isfinite(narrow), kept.view(np.float32), narrow)).astype(np.float64)


#: What shapes mean, where that is known.
MEANING: Mapping[str, str] = {
    "row scale": "an epsilon (eps) or a normalisation may differ",
    "channel offset": "a bias may differ or be missing",
    "channel scale": "a weight or scale may differ",
    "channel affine": "a weight and a bias (affine) may differ",
    "function": "an activation may be another, or one of its parameters",
    "border": "padding may differ",
    "triangle": "a mask may differ, by one or in kind",
    "index": "one row of a weight may be wrong",
    "sign": "signs are turned: half of them in a rotary embedding",
}

# -- small things ------------------------------------------------------------------------------------------------------


def _ranked(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """The complete ones first, of those the simplest; what only fits more numbers than that to the same is left out."""
    ranked = sorted(shapes, key=lambda s: (not s.complete, s.free, -s.r2))
    found: list[Shape] = []
    for shape in ranked:
        fitted = shape.name.endswith(("scale", "offset", "affine"))
        if not (fitted and found and found[0].complete) and shape.text not in [f.text for f in found]:
            found.append(shape)
    return tuple(found)


def _cropped(array: Array) -> Array:
    while array.size > _MOST and array.shape[0] > 1:
        array = array[: max(1, array.shape[0] // 2)]
    return array


def _unscaled(factor: float, offset: float = 0.0) -> Callable[[Array], Array]:
    return lambda y: _typed((y - offset) / factor, y)


def _turned(which: Array, y: Array) -> Array:
    return _typed(np.where(which, -y, y), y) if y.shape == which.shape else y


def _taken(order: Array, y: Array) -> Array:
    return np.asarray(y.ravel()[order].reshape(y.shape))


def _reduced(reduce: Any, axes: tuple[int, ...], shape: tuple[int, ...], y: Array) -> Array:
    return _typed(np.asarray(reduce(y.astype(np.float64), axis=axes)).reshape(shape), y)


def _typed(values: Array, like: Array) -> Array:
    return np.asarray(values).astype(like.dtype)


def _is_half(array: Array) -> bool:
    return array.dtype == np.dtype(ml_dtypes.bfloat16)


def _rms(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


def _factors(n: int) -> list[int]:
    return [p for p in range(2, n // 2 + 1) if n % p == 0]


def _subsets(rank: int) -> Iterator[tuple[int, ...]]:
    for count in range(rank, 0, -1):
        yield from itertools.combinations(range(rank), count)


_TESTS: tuple[Callable[[_Search], Iterator[Shape]], ...] = (
    _along,
    _of_inputs,
    _signs,
    _arrangements,
    _places,
    _in_groups,
    _bent_rows,
)
