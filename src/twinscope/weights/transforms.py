"""What may happen to parameters on their way from one framework to the other: small steps that compose and reverse.

A step takes a list of arrays and gives a list of arrays, so that one parameter may become three and three one. Steps
are plain values, saved in a map by their name and their fields; a chain of them is a tuple, and the empty chain is a
mere rename. Every step knows its inverse, so a map works in both directions.

    one to one, done to each array   Transpose Permute Reshape Squeeze Unsqueeze Interleave Reorder Cast
    one to many, many to one         Split / Concat, Tie / Untie, Divide / Sum, Normalize / Normed
    none to one, one to none         Constant / Omit
    any                              Arrange, Each (chains side by side), Function (the user's own)

Views where numpy gives views: what is only renamed, transposed or split costs no memory.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from ..adapters.base import Array
from ..errors import OptionError, WeightError
from ..patterns import did_you_mean

#: numpy's own limit on axes, before its version 2.
_MOST_AXES = 32

#: Of pieces and copies, and of chains within chains: a damaged map must not fill the memory or the stack.
_MOST_COPIES = 1024
_DEEPEST = 8

#: Elements of a tensor that is made of nothing.
_LARGEST = 2**28


@dataclass(frozen=True, slots=True)
class Transform:
    """One step. Subclasses say what it does to a list of arrays and what undoes it.

    Fields that make no sense are refused when the step is made, so that every step there is can be undone and saved.
    """

    def __post_init__(self) -> None:
        wrong = next((f.name for f in fields(self) if not _is_legal(getattr(self, f.name), str(f.type))), None)
        if wrong is not None or not self._sound():
            shown = ", ".join(f"{f.name}={reprlib.repr(getattr(self, f.name))}" for f in fields(self))
            blamed = "" if wrong is None else f": {wrong} is illegal"
            raise WeightError(
                f"there is no transform {type(self).__name__.lower()}({shown}){blamed}", hint="the map is damaged"
            )

    def _sound(self) -> bool:
        """Whether the fields, each legal by itself, go together."""
        return True

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        """The arrays after this step. Never changes what it is given."""
        raise NotImplementedError

    def inverse(self) -> Transform:
        """The step that undoes this one."""
        raise NotImplementedError

    def __str__(self) -> str:
        shown = ", ".join(_short(getattr(self, f.name)) for f in fields(self))
        return f"{type(self).__name__.lower()}({shown})"


#: Steps in order; the empty chain changes nothing.
Chain: TypeAlias = tuple[Transform, ...]


def _short(value: Any) -> str:
    return "[" + ", ".join(_short(v) for v in value) + "]" if isinstance(value, tuple) else str(value)


# -- one to one --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transpose(Transform):
    """Swap two axes; by default the first two. Its own inverse.

    >>> Transpose().apply([np.zeros((2, 3))])[0].shape
    (3, 2)
    """

    first: int = 0
    second: int = 1

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        return [_fitting(self, a, max(self.first, self.second)).swapaxes(self.first, self.second) for a in arrays]

    def inverse(self) -> Transform:
        return self

    def __str__(self) -> str:
        return "transpose" if (self.first, self.second) == (0, 1) else f"transpose({self.first}, {self.second})"


@dataclass(frozen=True, slots=True)
class Permute(Transform):
    """Axis `axes[i]` of what comes in is axis `i` of what goes out.

    >>> Permute((2, 0, 1)).apply([np.zeros((2, 3, 4))])[0].shape
    (4, 2, 3)
    """

    axes: tuple[int, ...]

    def _sound(self) -> bool:
        return _is_order(self.axes)

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        for a in arrays:
            if len(self.axes) != a.ndim:
                raise _misfit(self, a)
        return [a.transpose(self.axes) for a in arrays]

    def inverse(self) -> Transform:
        return Permute(_back(self.axes))


@dataclass(frozen=True, slots=True)
class Reshape(Transform):
    """From one shape to another of the same size.

    >>> Reshape((6,), (2, 3)).apply([np.zeros(6)])[0].shape
    (2, 3)
    """

    source: tuple[int, ...]
    target: tuple[int, ...]

    def _sound(self) -> bool:
        return max(len(self.source), len(self.target)) <= _MOST_AXES and math.prod(self.source) == math.prod(
            self.target
        )

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        for a in arrays:
            if a.shape != self.source:
                raise _misfit(self, a)
        return [a.reshape(self.target) for a in arrays]

    def inverse(self) -> Transform:
        return Reshape(self.target, self.source)


@dataclass(frozen=True, slots=True)
class Squeeze(Transform):
    """Drop an axis of extent 1.

    >>> Squeeze(2).apply([np.zeros((4, 3, 1, 5))])[0].shape
    (4, 3, 5)
    """

    axis: int

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        for a in arrays:
            if self.axis >= a.ndim or a.shape[self.axis] != 1:
                raise _misfit(self, a)
        return [a.squeeze(self.axis) for a in arrays]

    def inverse(self) -> Transform:
        return Unsqueeze(self.axis)


@dataclass(frozen=True, slots=True)
class Unsqueeze(Transform):
    """Insert an axis of extent 1.

    >>> Unsqueeze(2).apply([np.zeros((4, 3, 5))])[0].shape
    (4, 3, 1, 5)
    """

    axis: int

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        for a in arrays:
            if self.axis > a.ndim or a.ndim >= _MOST_AXES // 2:
                raise _misfit(self, a)
        return [np.expand_dims(a, self.axis) for a in arrays]

    def inverse(self) -> Transform:
        return Squeeze(self.axis)


@dataclass(frozen=True, slots=True)
class Interleave(Transform):
    """Take one axis for a grid of `sizes`, and permute the grid: how packed projections differ.

    q, k and v stacked as three blocks of 2 heads of 4 rows, packed per head instead:

    >>> rows = np.repeat(np.arange(6), 4)                  # q0 q1 k0 k1 v0 v1
    >>> Interleave((3, 2, 4), (1, 0, 2)).apply([rows])[0][::4].tolist()     # q0 k0 v0 q1 k1 v1
    [0, 2, 4, 1, 3, 5]
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    axis: int = 0

    def _sound(self) -> bool:
        return _is_order(self.order) and 0 < len(self.order) == len(self.sizes) <= _MOST_AXES // 2

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        found = []
        for a in arrays:
            if self.axis >= a.ndim or a.shape[self.axis] != math.prod(self.sizes):
                raise _misfit(self, a)
            before, after = a.shape[: self.axis], a.shape[self.axis + 1 :]
            grid = a.reshape(*before, *self.sizes, *after)
            order = [*range(self.axis), *(self.axis + i for i in self.order)]
            found.append(grid.transpose(*order, *range(len(order), grid.ndim)).reshape(a.shape))
        return found

    def inverse(self) -> Transform:
        return Interleave(tuple(self.sizes[i] for i in self.order), _back(self.order), self.axis)


@dataclass(frozen=True, slots=True)
class Reorder(Transform):
    """Cut an axis into equal chunks and put them in another order: the gates of an LSTM. Chunk `order[i]` comes `i`-th.

    >>> Reorder((0, 2, 1)).apply([np.array([1, 1, 2, 2, 3, 3])])[0].tolist()
    [1, 1, 3, 3, 2, 2]
    """

    order: tuple[int, ...]
    axis: int = 0

    def _sound(self) -> bool:
        return len(self.order) > 0 and _is_order(self.order)

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        found = []
        for a in arrays:
            if self.axis >= a.ndim or a.shape[self.axis] % len(self.order):
                raise _misfit(self, a)
            chunks = np.split(a, len(self.order), self.axis)
            found.append(np.concatenate([chunks[i] for i in self.order], self.axis))
        return found

    def inverse(self) -> Transform:
        return Reorder(_back(self.order), self.axis)


@dataclass(frozen=True, slots=True)
class Cast(Transform):
    """Another dtype, by numpy's names (bfloat16 by ml_dtypes). Backwards it restores the dtype, not what was rounded.

    Rounding is all that is lost: numbers out of the target's range, and fractions where it has none, are refused.

    >>> Cast("float32", "float16").apply([np.zeros(2, "float32")])[0].dtype
    dtype('float16')
    """

    source: str
    target: str

    def _sound(self) -> bool:  # or raises
        return dtype_of(self.source) is not None and dtype_of(self.target) is not None

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        return [self._cast(a, dtype_of(self.target)) for a in arrays]

    def _cast(self, array: Array, target: np.dtype[Any]) -> Array:
        if array.dtype.kind == "c" and target.kind != "c":
            raise _misfit(self, array)
        try:
            with np.errstate(over="raise", invalid="raise"):
                made = array.astype(target, copy=False)
        except FloatingPointError as error:
            raise self._loses(array) from error
        # of whole numbers numpy keeps the low bits, without a word
        if target.kind in "biu" and made is not array and not np.array_equal(made.astype(array.dtype), array):
            raise self._loses(array)
        return made

    def _loses(self, array: Array) -> WeightError:
        return WeightError(
            f"a tensor of shape {list(array.shape)} holds numbers that are {array.dtype} and cannot be {self.target}",
            hint="give both models the same dtype",
        )

    def inverse(self) -> Transform:
        return Cast(self.target, self.source)

    def __str__(self) -> str:
        return f"cast to {self.target}"


# -- one to many, many to one ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split(Transform):
    """One array into several along an axis.

    >>> [a.tolist() for a in Split((1, 2)).apply([np.array([1, 2, 3])])]
    [[1], [2, 3]]
    """

    sizes: tuple[int, ...]
    axis: int = 0

    def _sound(self) -> bool:
        return len(self.sizes) > 0

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        (array,) = _count(self, arrays, 1)
        if self.axis >= array.ndim or array.shape[self.axis] != sum(self.sizes):
            raise _misfit(self, array)
        return list(np.split(array, np.cumsum(self.sizes)[:-1], self.axis))

    def inverse(self) -> Transform:
        return Concat(self.sizes, self.axis)


@dataclass(frozen=True, slots=True)
class Concat(Transform):
    """Several arrays into one along an axis.

    >>> Concat((1, 2)).apply([np.array([1]), np.array([2, 3])])[0].tolist()
    [1, 2, 3]
    """

    sizes: tuple[int, ...]
    axis: int = 0

    def _sound(self) -> bool:
        return len(self.sizes) > 0

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        _count(self, arrays, len(self.sizes))
        for array, size in zip(arrays, self.sizes, strict=True):
            if self.axis >= array.ndim or array.shape[self.axis] != size:
                raise _misfit(self, array)
        _alike(self, arrays, self.axis)
        return [np.concatenate(list(arrays), self.axis)]

    def inverse(self) -> Transform:
        return Split(self.sizes, self.axis)


@dataclass(frozen=True, slots=True)
class Tie(Transform):
    """One array to several places that are one tensor, or are to start out equal.

    >>> len(Tie(2).apply([np.zeros(3)]))
    2
    """

    times: int

    def _sound(self) -> bool:
        return 1 <= self.times <= _MOST_COPIES

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        return _count(self, arrays, 1) * self.times

    def inverse(self) -> Transform:
        return Untie(self.times)


@dataclass(frozen=True, slots=True)
class Untie(Transform):
    """Several equal arrays to one; refused when they are not equal.

    >>> Untie(2).apply([np.zeros(3), np.ones(3)])
    Traceback (most recent call last):
    ...
    twinscope.errors.WeightError: 2 tensors that are to become one are not equal
    Hint: they were tied, and no longer are: choose one of them with a rule of your own
    """

    times: int

    def _sound(self) -> bool:
        return 1 <= self.times <= _MOST_COPIES

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        first, *rest = _count(self, arrays, self.times)
        _alike(self, [first, *rest])
        if not all(a is first or np.array_equal(a, first, equal_nan=True) for a in rest):
            raise WeightError(
                f"{self.times} tensors that are to become one are not equal",
                hint="they were tied, and no longer are: choose one of them with a rule of your own",
            )
        return [first]

    def inverse(self) -> Transform:
        return Tie(self.times)


@dataclass(frozen=True, slots=True)
class Sum(Transform):
    """Several arrays added up: two biases that one framework keeps apart. Backwards the first gets all of it.

    >>> Sum(2).apply([np.array([1.0]), np.array([2.0])])[0].tolist()
    [3.0]
    """

    terms: int

    def _sound(self) -> bool:
        return 1 <= self.terms <= _MOST_COPIES

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        first, *rest = _count(self, arrays, self.terms)
        _alike(self, arrays)  # numpy would broadcast
        total = first
        for array in rest:
            total = total + array
        return [total]

    def inverse(self) -> Transform:
        return Divide(self.terms)


@dataclass(frozen=True, slots=True)
class Divide(Transform):
    """One array as a sum of several: itself and zeros.

    >>> [a.tolist() for a in Divide(2).apply([np.array([3.0])])]
    [[3.0], [0.0]]
    """

    terms: int

    def _sound(self) -> bool:
        return 1 <= self.terms <= _MOST_COPIES

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        (array,) = _count(self, arrays, 1)
        return [array] + [np.zeros(array.shape, array.dtype)] * (self.terms - 1)

    def inverse(self) -> Transform:
        return Sum(self.terms)


@dataclass(frozen=True, slots=True)
class Normed(Transform):
    """Weight normalization carried out: a magnitude and a direction to the weight that they stand for.

    Norms are taken over every axis but `axis` (over all of them when it is None); `magnitude` is the magnitude's shape.

    >>> Normed(0, (2,)).apply([np.array([1.0, 10.0]), np.array([[3.0, 4.0], [0.0, 2.0]])])[0].round(6).tolist()
    [[0.6, 0.8], [0.0, 10.0]]
    """

    axis: int | None
    magnitude: tuple[int, ...]

    def _sound(self) -> bool:
        return len(self.magnitude) <= _MOST_AXES

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        magnitude, direction = _count(self, arrays, 2)
        norm = _norm(self, direction, self.axis)
        if magnitude.shape != self.magnitude or magnitude.size != norm.size:
            raise _misfit(self, magnitude, direction)
        norm[norm == 0] = 1.0  # a direction of zeros stays one
        weight = direction * (magnitude.reshape(norm.shape).astype(norm.dtype) / norm)
        return [weight.astype(direction.dtype, copy=False)]

    def inverse(self) -> Transform:
        return Normalize(self.axis, self.magnitude)


@dataclass(frozen=True, slots=True)
class Normalize(Transform):
    """A weight as magnitude and direction, which weight normalization keeps apart.

    Where the weight is all zeros its direction becomes ones: frameworks divide by the direction's length.

    >>> [a.tolist() for a in Normalize(0, (1,)).apply([np.array([[3.0, 4.0]])])]
    [[5.0], [[3.0, 4.0]]]
    """

    axis: int | None
    magnitude: tuple[int, ...]

    def _sound(self) -> bool:
        return len(self.magnitude) <= _MOST_AXES

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        (weight,) = _count(self, arrays, 1)
        norm = _norm(self, weight, self.axis)
        if norm.size != math.prod(self.magnitude):
            raise _misfit(self, weight)
        direction = weight if norm.all() else np.where(norm == 0, np.ones((), weight.dtype), weight)
        return [norm.reshape(self.magnitude).astype(weight.dtype), direction]

    def inverse(self) -> Transform:
        return Normed(self.axis, self.magnitude)


def _norm(step: Transform, weight: Array, axis: int | None) -> Array:
    if axis is not None and axis >= weight.ndim:
        raise _misfit(step, weight)
    others = tuple(i for i in range(weight.ndim) if i != axis)
    wide = weight.astype(np.float64)
    found: Array = np.sqrt(np.sum(wide * wide, axis=others, keepdims=True))
    return found


# -- none to one, one to none ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fill(Transform):
    value: float
    shape: tuple[int, ...]
    dtype: str

    def _sound(self) -> bool:
        """Whether the dtype has that number (rounded to the two or three bits of the smallest dtypes, if need be)."""
        dtype = dtype_of(self.dtype)
        with np.errstate(all="ignore"):
            held = complex(np.asarray(self.value).astype(dtype).astype(np.complex128))
        rounding = 0.0 if dtype.kind in "biu" else 0.25
        return (
            abs(held - self.value) <= rounding * abs(self.value)
            and len(self.shape) <= _MOST_AXES
            and math.prod(self.shape) <= _LARGEST
        )


@dataclass(frozen=True, slots=True)
class Constant(_Fill):
    """A parameter that the other side does without, filled with the value that changes nothing.

    >>> Constant(1.0, (2,), "float32").apply([])[0].tolist()
    [1.0, 1.0]
    """

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        _count(self, arrays, 0)
        return [np.full(self.shape, self.value, dtype_of(self.dtype))]

    def inverse(self) -> Transform:
        return Omit(self.value, self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Omit(_Fill):
    """A parameter that the other side does without; refused when it holds anything but the value that changes nothing.

    >>> Omit(1.0, (2,), "float32").apply([np.array([1.0, 1.5], "float32")])
    Traceback (most recent call last):
    ...
    twinscope.errors.WeightError: a tensor of shape [2] cannot be left out: it is not 1.0 throughout
    Hint: the other side has no place for it, so the two cannot compute the same
    """

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        (array,) = _count(self, arrays, 1)
        if array.shape != self.shape:
            raise _misfit(self, array)
        if not bool(np.all(array == np.asarray(self.value, array.dtype))):
            raise WeightError(
                f"a tensor of shape {list(array.shape)} cannot be left out: it is not {self.value} throughout",
                hint="the other side has no place for it, so the two cannot compute the same",
            )
        return []

    def inverse(self) -> Transform:
        return Constant(self.value, self.shape, self.dtype)


# -- any ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrange(Transform):
    """The arrays themselves in another order: array `order[i]` comes `i`-th.

    >>> Arrange((1, 0)).apply([np.zeros(1), np.zeros(2)])[0].shape
    (2,)
    """

    order: tuple[int, ...]

    def _sound(self) -> bool:
        return _is_order(self.order)

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        _count(self, arrays, len(self.order))
        return [arrays[i] for i in self.order]

    def inverse(self) -> Transform:
        return Arrange(_back(self.order))


@dataclass(frozen=True, slots=True)
class Each(Transform):
    """Chains side by side: the first takes the first `takes[0]` arrays and gives `gives[0]`, and so on.

    >>> both = Each(((Transpose(),), ()), (1, 1), (1, 1))
    >>> [a.shape for a in both.apply([np.zeros((2, 3)), np.zeros((2, 3))])]
    [(3, 2), (2, 3)]
    """

    chains: tuple[Chain, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]

    def _sound(self) -> bool:
        return len(self.chains) == len(self.takes) == len(self.gives) and _depth((self,)) <= _DEEPEST

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        _count(self, arrays, sum(self.takes))
        found: list[Array] = []
        at = 0
        for chain, takes, gives in zip(self.chains, self.takes, self.gives, strict=True):
            made = run(chain, arrays[at : at + takes])
            if len(made) != gives:
                raise WeightError(f"{describe(chain)} gave {len(made)} arrays, not {gives}", hint="the map is damaged")
            found += made
            at += takes
        return found

    def inverse(self) -> Transform:
        return Each(tuple(inverted(chain) for chain in self.chains), self.gives, self.takes)

    def __str__(self) -> str:
        return "[" + " | ".join(describe(chain) or "as is" for chain in self.chains) + "]"


@dataclass(frozen=True, slots=True)
class _Registered:
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None


_FUNCTIONS: dict[str, _Registered] = {}


def register_transform(name: str, forward: Callable[..., Any], backward: Callable[..., Any] | None = None) -> Function:
    """Make a function of yours usable in maps, under a name that is saved with them.

    `forward` takes the arrays of the reference, in its own layout, and returns the candidate's array or a list of
    arrays; `backward` is its inverse, without which the map works in one direction only. Whoever loads a map with it
    must have registered the name before.

    >>> register_transform("doubled", lambda a: a * 2, lambda a: a / 2).apply([np.array([3.0])])[0].tolist()
    [6.0]
    """
    if not isinstance(name, str):
        raise OptionError(
            f"the name of a transform cannot be {name!r}", hint="name it by a text, which maps are saved with"
        )
    if not callable(forward) or not (backward is None or callable(backward)):
        raise OptionError(f"the transform {name!r} is not callable", hint="hand in functions of arrays")
    _FUNCTIONS[name] = _Registered(forward, backward)
    return Function(name)


@dataclass(frozen=True, slots=True)
class Function(Transform):
    """The user's own step, known by the name given to `register_transform`."""

    function: str
    backward: bool = False

    def apply(self, arrays: Sequence[Array]) -> list[Array]:
        known = _FUNCTIONS.get(self.function)
        if known is None:
            raise WeightError(
                f"the map needs a transform named {self.function!r}, which is not registered here",
                hint=f"call twinscope.register_transform({self.function!r}, ...) before using the map",
            )
        call = known.backward if self.backward else known.forward
        if call is None:
            raise WeightError(
                f"the transform {self.function!r} has no inverse",
                hint=f"hand one in: twinscope.register_transform({self.function!r}, forward, backward)",
            )
        made = call(*(a.copy() for a in arrays))  # which the function may write to
        found = [np.asarray(a) for a in made] if isinstance(made, (tuple, list)) else [np.asarray(made)]
        if any(a.dtype.kind == "O" for a in found):
            raise WeightError(
                f"the transform {self.function!r} returned {reprlib.repr(made)}",
                hint="return an array, or a list of arrays",
            )
        return found

    def inverse(self) -> Transform:
        return Function(self.function, not self.backward)

    def __str__(self) -> str:
        return f"{self.function}, backwards" if self.backward else self.function


def _depth(chain: Chain) -> int:
    return max((1 + max(map(_depth, step.chains), default=0) for step in chain if isinstance(step, Each)), default=0)


# -- chains ------------------------------------------------------------------------------------------------------------


def run(chain: Chain, arrays: Sequence[Array]) -> list[Array]:
    """The arrays after every step of the chain.

    >>> run((Split((1, 1)), Transpose()), [np.zeros((2, 3))])[0].shape
    (3, 1)
    """
    found = list(arrays)
    for step in chain:
        found = step.apply(found)
    return found


def inverted(chain: Chain) -> Chain:
    """The chain that undoes this one.

    >>> inverted((Squeeze(2), Transpose()))
    (Transpose(first=0, second=1), Unsqueeze(axis=2))
    """
    return tuple(step.inverse() for step in reversed(chain))


def describe(chain: Chain) -> str:
    """The chain in words, "" for the empty one.

    >>> describe((Squeeze(2), Transpose()))
    'squeeze(2), transpose'
    """
    return ", ".join(str(step) for step in chain)


def simplified(chain: Chain) -> Chain:
    """The same chain without steps that undo one another.

    >>> simplified((Transpose(), Split((1, 2)), Concat((1, 2)), Transpose(), Squeeze(0)))
    (Squeeze(axis=0),)
    """
    found: list[Transform] = []
    for step in chain:
        if isinstance(step, Each):
            chains = tuple(simplified(c) for c in step.chains)
            if len(chains) < 2 or (len(set(chains)) == 1 and all(_each_alone(s) for s in chains[0])):
                for inner in chains[0] if chains else ():
                    _push(found, inner)
                continue
            step = Each(chains, step.takes, step.gives)
        _push(found, step)
    return tuple(found)


def _push(chain: list[Transform], step: Transform) -> None:
    idle = (
        (isinstance(step, Arrange) and step.order == tuple(range(len(step.order))))
        or (isinstance(step, Permute) and step.axes == tuple(range(len(step.axes))))
        or (isinstance(step, Reorder) and step.order == tuple(range(len(step.order))))
        or (isinstance(step, (Reshape, Cast)) and step.source == step.target)
        or (isinstance(step, (Split, Concat)) and len(step.sizes) == 1)
    )
    if idle:
        return
    before = chain[-1] if chain else None
    if isinstance(before, Arrange) and isinstance(step, Arrange) and len(before.order) == len(step.order):
        chain.pop()
        _push(chain, Arrange(tuple(before.order[i] for i in step.order)))
    elif before == step.inverse() and _undoes(step):
        chain.pop()
    else:
        chain.append(step)


def _undoes(step: Transform) -> bool:
    """Whether this step, after its inverse, gives back what that was given: a sum does not tell its terms."""
    if isinstance(step, Each):
        return all(_undoes(s) for chain in step.chains for s in chain)
    return not isinstance(step, (Cast, Divide, Normalize, Omit, Constant, Function))


def _each_alone(step: Transform) -> bool:
    """Whether the step does the same to every array, however many there are."""
    return isinstance(step, (Transpose, Permute, Reshape, Squeeze, Unsqueeze, Interleave, Reorder, Cast))


_BY_NAME: Mapping[str, type[Transform]] = {
    cls.__name__.lower(): cls
    for cls in (
        *(Transpose, Permute, Reshape, Squeeze, Unsqueeze, Interleave, Reorder, Cast),
        *(Split, Concat, Tie, Untie, Sum, Divide, Normed, Normalize, Constant, Omit, Arrange, Each, Function),
    )
}


def to_json(chain: Chain) -> list[dict[str, Any]]:
    """The chain in JSON's types: each step by its name, with its fields.

    >>> to_json((Squeeze(2),))
    [{'step': 'squeeze', 'axis': 2}]
    """
    return [
        {"step": type(step).__name__.lower(), **{f.name: _plain(getattr(step, f.name)) for f in fields(step)}}
        for step in chain
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        if value and all(isinstance(v, Transform) for v in value):
            return to_json(value)
        return [_plain(v) for v in value]
    return value


def from_json(steps: Any) -> Chain:
    """The inverse of `to_json`; anything unknown is refused.

    >>> from_json([{"step": "squeeze", "axis": 2}])
    (Squeeze(axis=2),)
    """
    return _chain(steps, 0)


def _chain(steps: Any, depth: int) -> Chain:
    if not isinstance(steps, list):
        raise WeightError(f"a chain of transforms must be a list, not {reprlib.repr(steps)}", hint="the map is damaged")
    if depth > _DEEPEST:
        raise WeightError(f"chains of transforms within chains, more than {_DEEPEST} deep", hint="the map is damaged")
    return tuple(_step(step, depth) for step in steps)


def _step(given: Any, depth: int) -> Transform:
    if not isinstance(given, dict) or not isinstance(given.get("step"), str):
        raise WeightError(f"not a transform: {reprlib.repr(given)}", hint="the map is damaged")
    name = given["step"]
    cls = _BY_NAME.get(name)
    if cls is None:
        raise WeightError(
            f"the map has a transform {reprlib.repr(name)} that is not known", hint=did_you_mean(name, _BY_NAME)
        )
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items() if key != "step"}
    if cls is Each and isinstance(values.get("chains"), tuple):
        values["chains"] = tuple(_chain(chain, depth + 1) for chain in values["chains"])
    try:
        return cls(**values)
    except TypeError as error:  # a field too many or too few
        raise WeightError(f"the transform {name!r} cannot be read: {error}", hint="the map is damaged") from None


def _is_legal(value: Any, annotation: str) -> bool:
    """Whether a field may hold this. A map may come from anywhere: nothing but what is listed here gets through."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if annotation == "int":
        return whole and 0 <= value < 2**31
    if annotation == "int | None":
        return value is None or _is_legal(value, "int")
    if annotation == "float":  # what JSON has a number for
        return (whole and abs(value) < 2**53) or (isinstance(value, float) and math.isfinite(value))
    if annotation == "bool":
        return isinstance(value, bool)
    if annotation == "str":
        return isinstance(value, str)
    if annotation == "tuple[int, ...]":
        return isinstance(value, tuple) and len(value) <= _MOST_COPIES and all(_is_legal(v, "int") for v in value)
    if annotation == "Chain":
        return isinstance(value, tuple) and all(isinstance(v, Transform) for v in value)
    return annotation == "tuple[Chain, ...]" and isinstance(value, tuple) and all(_is_legal(v, "Chain") for v in value)


def _is_order(order: tuple[int, ...]) -> bool:
    return sorted(order) == list(range(len(order)))


def _back(order: tuple[int, ...]) -> tuple[int, ...]:
    """The order that undoes this one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def dtype_of(name: str) -> np.dtype[Any]:
    """numpy's dtype of that name, ml_dtypes' included.

    >>> dtype_of("bfloat16").itemsize
    2
    """
    found = getattr(ml_dtypes, name, np.sctypeDict.get(name))
    known = isinstance(found, type) and issubclass(found, np.generic)
    if not known or not (np.dtype(found).kind in "biufc" or np.dtype(found).isbuiltin == 2):  # 2: of ml_dtypes
        raise WeightError(f"dtype {reprlib.repr(name)} is not known", hint="use numpy's name, or bfloat16")
    return np.dtype(found)


def _count(step: Transform, arrays: Sequence[Array], count: int) -> list[Array]:
    if len(arrays) != count:
        raise WeightError(
            f"{step} takes {count} arrays and was given {len(arrays)}", hint="the map was made for other models"
        )
    return list(arrays)


def _fitting(step: Transform, array: Array, axis: int) -> Array:
    if axis >= array.ndim:
        raise _misfit(step, array)
    return array


def _alike(step: Transform, arrays: Sequence[Array], axis: int | None = None) -> None:
    """Refuse arrays that differ in dtype, or in another extent than that of the axis."""
    if len({(a.dtype, tuple(n for i, n in enumerate(a.shape) if i != axis)) for a in arrays}) > 1:
        raise _misfit(step, *arrays)


def _misfit(step: Transform, *arrays: Array) -> WeightError:
    what = "a tensor" if len(arrays) == 1 else "tensors"
    shown = " and ".join(f"{list(a.shape)} {a.dtype}" for a in arrays[:8])
    return WeightError(f"{step} does not fit {what} of shape {shown}", hint="the map was made for other models")
