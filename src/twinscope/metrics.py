"""The numbers of two arrays in one pass, and the statistics of one. numpy in, values out.

Both walk over their arrays in chunks that stay in a core's cache, so that every number of a chunk is taken while it is
there, and the memory they need does not grow with the arrays. Half precisions and float32 are worked on in float32:
sums are dot products over runs of `RUN` elements, added up in float64, which keeps them within about 1e-7 of float64
(relative to the sum of magnitudes). A chunk that holds NaN, infinities, or values whose squares leave float32's range
is worked on again in float64; so is everything that is float64, an integer or complex to begin with.

Where the package was built with its C kernel (see `kernels`), that takes the sums of `array_stats` for float32 and
bfloat16, and those of `compare_arrays` for all that is worked on in float32: the same numbers, in one pass instead of
five or twenty. Everything works without it.

Any dtype that numpy or ml_dtypes can cast to a float is read. longdouble is read as float64.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import kernels
from .errors import OptionError, TwinscopeError
from .records import Stats

Array = NDArray[Any]
Shape = tuple[int, ...]
Index = tuple[int, ...]
Number = int | float | complex

#: Bytes of one operand in a chunk. What a step reads and writes mostly stays in a core's second-level cache, and the
#: cost of some twenty calls per chunk no longer shows (measured: 128 KiB is 1.4 times as slow, 1 MiB no faster).
CHUNK_BYTES: Final = 1 << 19
#: Elements that one float32 dot product may span before its sum goes to float64. Short enough for 1e-7, long enough to
#: hide the cost of the call, and below the length from which OpenBLAS would start threads of its own.
RUN: Final = 2048
#: Elements of `array_stats`' chunks: coarser, since its sums only have to tell tensors apart.
STATS_CHUNK: Final = 1 << 16
#: Smaller arrays are compared by one thread: handing the interpreter's lock around would take longer than the work.
THREADS_FROM: Final = 1 << 23
MAX_THREADS: Final = 8
#: The arrays are cut into at most this many segments, whatever the number of threads, and the segments' sums are added
#: exactly: the number of threads changes no result.
SEGMENTS: Final = 64
#: Axis permutations tried by `same_other_layout`: all of up to six axes.
MAX_PERMUTED_AXES: Final = 6

_F32: Final = np.dtype(np.float32)
_F64: Final = np.dtype(np.float64)
_C128: Final = np.dtype(np.complex128)
_I64: Final = np.dtype(np.int64)
_U32: Final = np.dtype(np.uint32)
_U64: Final = np.dtype(np.uint64)
_BITS: Final[dict[int, np.dtype[Any]]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: _U32, 8: _U64}
_ONES: Final[dict[np.dtype[Any], Array]] = {_F32: np.ones(STATS_CHUNK, _F32), _F64: np.ones(STATS_CHUNK, _F64)}
#: Squares of larger magnitudes, summed over a chunk, could overflow.
_BIG: Final[dict[np.dtype[Any], float]] = {_F32: 1e15, _F64: 1e145}
#: A mean square below this may have lost digits to underflow.
_TINY: Final[dict[np.dtype[Any], float]] = {_F32: 1e-30, _F64: 1e-290}
#: Power of two by which float64 values are scaled before squaring, and from which magnitude.
_SHIFT: Final = 600
_SHIFT_FROM: Final = 480
#: Looked up once: `array_stats` runs hundreds of times in a training step.
_add, _minimum, _maximum, _dot = np.add.reduce, np.minimum.reduce, np.maximum.reduce, np.dot
_kernels = kernels.load()
_one_pass = None if _kernels is None else _kernels.stats
_pair_pass = None if _kernels is None else _kernels.pair
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
_INF: Final = math.inf
_NAN: Final = math.nan


@dataclass(frozen=True, slots=True)
class Metrics:
    """How far a candidate array is from its reference.

    All errors, means and root mean squares are over the `finite` places where both arrays are finite; nan where there
    are none (an empty array, for one). Complex arrays: errors are magnitudes of differences, means are of magnitudes,
    `mean_diff` is the mean of ``|candidate| - |reference|``, `cosine` is the real part.

    Relative errors are ``|c - r| / |r|``. Where r and c are both 0 it is 0. Where only r is 0 it has no meaning and
    the place is left out of `max_rel` and `mean_rel`; both are inf if no other place is left.
    """

    shape: Shape
    dtypes: tuple[str, str]  # reference, candidate
    count: int  # all elements
    finite: int  # places where both are finite
    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    rmse: float
    rms_reference: float
    rms_candidate: float
    cosine: float  # 1 where both are all zero, 0 where one is
    effective_bits: float  # -log2(rmse / rms_reference); inf where rmse is 0, -inf where only rms_reference is
    mean_reference: float
    mean_candidate: float
    mean_diff: float  # signed, of c - r
    within: float  # share of all elements as numpy.isclose has it: |c - r| <= atol + rtol * |r|, or equal infinities
    nan_reference: int
    nan_candidate: int
    inf_reference: int
    inf_candidate: int
    nonfinite_mismatch: int  # places where NaN or Inf differ; NaN agrees with NaN, Inf with Inf of the same sign
    first_nonfinite_mismatch: Index | None  # in the order of the axes
    worst: Index | None  # where |c - r| is largest (one of the places, if several tie); None where nothing differs
    worst_reference: Number | None
    worst_candidate: Number | None
    identical: bool  # every element, bit for bit (-0.0 is not 0.0), NaN equal to NaN; of another dtype: after casting
    same_other_layout: str | None  # see `same_other_layout`


# ----------------------------------------------------------------------------------------------------------- one array


def array_stats(array: ArrayLike) -> Stats:
    """A tensor in a few numbers, none of which depends on the order of its axes or elements.

    >>> import numpy as np
    >>> stats = array_stats(np.array([3.0, np.nan, -4.0], dtype=np.float32))
    >>> stats.min, stats.max, stats.mean, stats.l2, stats.nan
    (-4.0, 3.0, -0.5, 5.0, 1)
    >>> weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> array_stats(weight).fingerprint == array_stats(weight.T).fingerprint
    True

    `std` is the population's. min, max, mean and std are nan, and l2 is 0, where no element is finite (or there are
    none). Complex: of the magnitudes.

    The fingerprint is exact; the other sums are good to about 1e-6. It is over bits: 0.0 and -0.0 differ, so do NaNs
    of different payload and the same value in two dtypes. complex128 is summed as two halves, modulo 2**64 each, the
    second one shifted up by 64. An element that is both NaN and Inf (complex) counts as NaN.
    """
    source = np.asarray(array)
    dtype = source.dtype
    count = source.size
    if _one_pass is not None and count and (sums := _one_pass(source)) is not None:
        low, high, total, squares, bits = sums
        big = _BIG[_F32]
        # The kernel's extremes skip NaN; its squares do not.
        plain = -big < low and high < big and squares < _INF
        return _finish(source, _F32, plain, low, high, total, squares, int(bits))
    pieces: Iterable[tuple[Array, Array]]
    if dtype is _F32 and 0 < count <= STATS_CHUNK and source.flags.c_contiguous:  # most of what a capture sees
        work = dtype
        flat = source.reshape(-1)
        pieces = ((flat, flat),)
    elif dtype.itemsize == 1:
        return _byte_stats(source)
    else:
        work = _work_dtype(dtype)
        pieces = _pieces(source, work)
    if not count:
        return Stats(_NAN, _NAN, _NAN, _NAN, 0.0, 0, 0, 0)
    big = _BIG[work]
    ones = _ONES[work]
    low, high, total, squares, fingerprint = _INF, -_INF, 0.0, 0.0, 0
    plain = True
    for raw, values in pieces:
        fingerprint += int(_add(raw.view(_U32), None, _U32)) if work is dtype is _F32 else _bit_sum(raw)
        if not plain:
            continue
        # NaN propagates through both and fails both comparisons, so finite values need no check of their own.
        chunk_low = float(_minimum(values))
        chunk_high = float(_maximum(values))
        if not (-big < chunk_low and chunk_high < big):
            plain = False
            continue
        total += float(_dot(values, ones[: values.size]))
        squares += float(_dot(values, values))
        low, high = min(low, chunk_low), max(high, chunk_high)
    fingerprint &= (1 << 8 * raw.itemsize) - 1
    return _finish(source, work, plain, low, high, total, squares, fingerprint)


def _finish(
    source: Array,
    work: np.dtype[Any],
    plain: bool,
    low: float,
    high: float,
    total: float,
    squares: float,
    fingerprint: int,
) -> Stats:
    """The statistics from the sums, or from another pass where these are not `plain` or have lost digits."""
    count = source.size
    if not plain or (squares < count * _TINY[work] and (low != 0 or high != 0)):
        return _careful_stats(source, fingerprint)
    if low == high:
        return Stats(low, high, low, 0.0, abs(low) * math.sqrt(count), 0, 0, fingerprint)
    mean = total / count
    variance = squares / count - mean * mean
    if variance * 16 < mean * mean:  # too much has cancelled: again, around the mean
        if mean * mean < 1e-10:  # squares of differences might underflow
            return _careful_stats(source, fingerprint)
        mean, variance = _around(source, work, mean)
        squares = (variance + mean * mean) * count
    return Stats(low, high, mean, math.sqrt(max(variance, 0.0)), math.sqrt(squares), 0, 0, fingerprint)


def _work_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 where that holds every value of a float dtype, float64 for all else. Refuses what is not a number."""
    kind = dtype.kind
    if kind == "f":
        return _F32 if dtype.itemsize <= 4 else _F64
    if kind in "iubc":
        return _F64
    if kind == "V" and dtype.isbuiltin == 2:  # registered by ml_dtypes
        return _F32
    raise TwinscopeError(
        f"dtype {dtype} is not a number",
        hint="raw bytes from an .npy file of bfloat16 or float8 need array.view(ml_dtypes.bfloat16) or the like first",
    )


def _dense(array: Array) -> Array | None:
    """The elements in memory order, without copying; None where memory between them would be skipped."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    order = _memory_order(array)
    turned = array.transpose(order)
    turned = turned[tuple(slice(None, None, -1) if s < 0 else slice(None) for s in turned.strides)]
    return turned.reshape(-1) if turned.flags.c_contiguous else None


def _memory_order(array: Array) -> Index:
    return tuple(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What a chunk is copied to before its bits are read: native byte order, and no padding bytes."""
    if dtype.kind == "f" and dtype.itemsize > 8:
        return _F64
    if dtype.kind == "c" and dtype.itemsize > 16:
        return _C128
    return dtype.newbyteorder("=") if dtype.kind != "V" else dtype


def _pieces(source: Array, work: np.dtype[Any]) -> Iterator[tuple[Array, Array]]:
    """Chunks in memory order: (as stored, in the working dtype), both flat and contiguous, the latter maybe reused."""
    dtype = source.dtype
    native = _native(dtype)
    flat = _dense(source)
    if flat is not None and native == dtype and flat.flags.aligned:
        if native == work:
            if flat.size <= STATS_CHUNK:
                yield flat, flat
                return
            for start in range(0, flat.size, STATS_CHUNK):
                chunk = flat[start : start + STATS_CHUNK]
                yield chunk, chunk
            return
        blocks, store = _Blocks((flat.size,), STATS_CHUNK), None
        source = flat
    else:
        blocks = _Blocks(source.shape, STATS_CHUNK)
        store = np.empty(blocks.largest, native)
    buffer = np.empty(blocks.largest, work) if native != work else None
    for number in range(blocks.count):
        block = source[blocks.index(number)]
        if store is None:
            raw = block.reshape(-1)
        else:
            raw = store[: block.size]
            np.copyto(raw.reshape(block.shape), block, casting="unsafe")
        if buffer is None:
            yield raw, raw
        else:
            values = buffer[: raw.size]
            if native.kind == "c":
                with np.errstate(all="ignore"):
                    np.abs(raw, out=values)  # hypot: no overflow in between
                    values[np.isnan(raw)] = _NAN
            else:
                np.copyto(values, raw, casting="unsafe")
            yield raw, values


def _bit_sum(raw: Array) -> int:
    size = raw.dtype.itemsize
    if size == 16:
        halves = np.add.reduce(raw.view(_U64).reshape(-1, 2), axis=0, dtype=_U64)
        return int(halves[0]) + (int(halves[1]) << 64)
    bits = _BITS[size]
    return int(np.add.reduce(raw.view(bits), None, bits))


def _around(source: Array, work: np.dtype[Any], center: float) -> tuple[float, float]:
    """Mean and variance by way of the differences from a value near the mean."""
    shift = work.type(center)
    scratch = np.empty(min(source.size, STATS_CHUNK), work)
    first = second = 0.0
    for _, values in _pieces(source, work):
        difference = np.subtract(values, shift, out=scratch[: values.size])
        for start in range(0, values.size, RUN):
            run = difference[start : start + RUN]
            first += float(np.dot(run, _ONES[work][: run.size]))
            second += float(np.dot(run, run))
    offset = first / source.size
    return float(shift) + offset, second / source.size - offset * offset


def _careful_stats(source: Array, fingerprint: int) -> Stats:
    """In float64, over the finite elements, scaled so that no square leaves the range of float64."""

    def finite() -> Iterator[tuple[Array, int, int]]:
        for _, values in _pieces(source, work):
            wide = values.astype(_F64)
            good = np.isfinite(wide)
            if good.all():
                yield wide, 0, 0
            else:
                nans = int(np.count_nonzero(np.isnan(wide)))
                kept = wide[good]
                yield kept, nans, wide.size - kept.size - nans

    # Magnitudes of complex64 may exceed float32.
    work = _F64 if source.dtype.kind == "c" else _work_dtype(source.dtype)
    low, high, nan, inf = _INF, -_INF, 0, 0
    for values, nans, infs in finite():
        nan += nans
        inf += infs
        if values.size:
            low = min(low, float(values.min()))
            high = max(high, float(values.max()))
    count = source.size - nan - inf
    if not count:
        return Stats(_NAN, _NAN, _NAN, _NAN, 0.0, nan, inf, fingerprint)
    shift = _exponent(max(abs(low), abs(high)))
    total = squares = 0.0
    for values, _, _ in finite():
        values = _times(values, -shift)
        total += float(values.sum())
        squares += float(values @ values)
    mean = total / count
    spread = max(abs(math.ldexp(low, -shift) - mean), abs(math.ldexp(high, -shift) - mean))
    narrow = _exponent(spread)
    deviations = 0.0
    for values, _, _ in finite():
        values = _times(_times(values, -shift) - mean, -narrow)
        deviations += float(values @ values)
    std = 0.0 if low == high else _ldexp(math.sqrt(deviations / count), shift + narrow)
    mean = min(max(_ldexp(mean, shift), low), high)
    return Stats(low, high, mean, std, _ldexp(math.sqrt(squares), shift), nan, inf, fingerprint)


def _byte_stats(source: Array) -> Stats:
    """Of a dtype of one byte: count how often each of the 256 bytes occurs; the rest is exact."""
    _work_dtype(source.dtype)
    occurrences = np.zeros(256, np.int64)
    for raw, _ in _pieces(source, source.dtype):
        occurrences += np.bincount(raw.view(np.uint8), minlength=256)
    fingerprint = int(occurrences @ np.arange(256)) & 0xFF
    values = _byte_values(source.dtype).astype(_F64)
    nan = int(occurrences[np.isnan(values)].sum())
    inf = int(occurrences[np.isinf(values)].sum())
    used = (occurrences > 0) & np.isfinite(values)
    values, weights = values[used], occurrences[used]
    count = int(weights.sum())
    if not count:
        return Stats(_NAN, _NAN, _NAN, _NAN, 0.0, nan, inf, fingerprint)
    mean = float(values @ weights) / count
    std = math.sqrt(float((values - mean) ** 2 @ weights) / count)
    l2 = math.sqrt(float(values**2 @ weights))
    return Stats(float(values.min()), float(values.max()), mean, std, l2, nan, inf, fingerprint)


def _byte_values(dtype: np.dtype[Any]) -> Array:
    every = np.arange(256, dtype=np.uint8)
    # A bool that holds another byte than 0 or 1 is true, but a view of one is not defined.
    return (every != 0).astype(_F32) if dtype.kind == "b" else every.view(dtype).astype(_F32)


def _exponent(largest: float) -> int:
    """By which power of two to divide magnitudes up to `largest` so that their squares can be added up."""
    if largest == 0 or 2.0**-_SHIFT_FROM <= largest <= 2.0**_SHIFT_FROM:
        return 0
    return _SHIFT if largest > 1 else -_SHIFT


def _times(values: Array, exponent: int) -> Array:
    """float64 or complex128 values times a power of two; ldexp would take ten times as long."""
    return np.asarray(values * 2.0**exponent) if exponent else values


def _ldexp(value: float, exponent: int) -> float:
    if not exponent:
        return value
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(_INF, value)


# ---------------------------------------------------------------------------------------------------------- two arrays


class _Blocks:
    """An array's shape cut into blocks of at most `limit` elements that follow each other in the order of the axes.

    Each spans whole trailing axes, a range of one axis, and one position of every axis before it.
    """

    __slots__ = ("axis", "count", "inner", "largest", "per", "rows", "shape")

    def __init__(self, shape: Shape, limit: int) -> None:
        axis, inner = max(len(shape) - 1, 0), 1
        while axis > 0 and inner * shape[axis] <= limit:
            inner *= shape[axis]
            axis -= 1
        extent = shape[axis] if shape else 1
        self.shape = shape
        self.axis = axis
        self.inner = inner
        self.rows = max(1, min(extent, limit // max(1, inner)))
        self.per = -(-extent // self.rows)
        self.count = self.per * math.prod(shape[:axis])
        self.largest = self.rows * inner

    def index(self, number: int) -> tuple[int | slice, ...]:
        if not self.shape:
            return ()
        outer, part = divmod(number, self.per)
        lead: list[int | slice] = []
        for extent in reversed(self.shape[: self.axis]):
            outer, position = divmod(outer, extent)
            lead.append(position)
        return (*reversed(lead), slice(part * self.rows, (part + 1) * self.rows))

    def start(self, number: int) -> int:
        outer, part = divmod(number, self.per)
        return (outer * (self.shape[self.axis] if self.shape else 1) + part * self.rows) * self.inner


class _Side:
    """One of the two arrays, read block by block into the working dtype."""

    __slots__ = ("array", "direct", "table")

    def __init__(self, array: Array, work: np.dtype[Any]) -> None:
        self.array = array
        self.direct = array.dtype == work and array.flags.aligned
        # A table is three times as fast as ml_dtypes' cast from float8.
        self.table = _byte_values(array.dtype).astype(work) if array.dtype.itemsize == 1 and work != _I64 else None

    def read(self, index: tuple[int | slice, ...], padded: int, buffer: Array) -> Array:
        """The block, flat, with zeros up to `padded`; a view of the array itself wherever that will do."""
        block = self.array[index]
        if self.direct and block.size == padded and block.flags.c_contiguous:
            return block.reshape(-1)
        target = buffer[: block.size].reshape(block.shape)
        if self.table is not None:
            np.take(self.table, block.view(np.uint8), out=target, mode="clip")
        else:
            np.copyto(target, block, casting="unsafe")
        buffer[block.size : padded] = 0
        return buffer[:padded]


#: Where the elements of a contiguous array lie, their kind, and their size. Does not keep the array alive.
_Memory = tuple[int, int, int]


def _memory(array: Array) -> _Memory | None:
    """What the kernel has to know of an array, if it can read that as it is."""
    kind = kernels.PAIR_KINDS.get(array.dtype)
    flags = array.flags
    if kind is None or not flags.c_contiguous or not flags.aligned:
        return None
    address: int = array.__array_interface__["data"][0]  # `array.ctypes.data` takes three times as long
    return address, kind, array.itemsize


class _Pair:
    """Two arrays of one shape, their axes in the reference's memory order, cut into blocks."""

    __slots__ = ("blocks", "candidate", "order", "reference", "shape", "size", "work")

    def __init__(self, reference: Array, candidate: Array, limit: int | None = None) -> None:
        self.work = _common_dtype(reference.dtype, candidate.dtype)
        self.size = reference.size
        self.order: Index | None = None
        if not (reference.flags.c_contiguous and candidate.flags.c_contiguous):
            order = _memory_order(reference)
            if order != tuple(range(reference.ndim)):
                self.order = order
                reference, candidate = reference.transpose(order), candidate.transpose(order)
        self.shape: Shape = reference.shape
        shape = self.shape
        if reference.flags.c_contiguous and candidate.flags.c_contiguous:
            reference, candidate = reference.reshape(-1), candidate.reshape(-1)
            shape = (self.size,)
        self.blocks = _Blocks(shape, limit or CHUNK_BYTES // self.work.itemsize)
        self.reference = _Side(reference, self.work)
        self.candidate = _Side(candidate, self.work)

    def memory(self) -> tuple[_Memory, _Memory] | None:
        """Of both arrays, if the kernel can read them as they are."""
        if len(self.blocks.shape) != 1:
            return None
        reference = _memory(self.reference.array)
        candidate = _memory(self.candidate.array) if reference else None
        return (reference, candidate) if reference and candidate else None

    def place(self, position: int) -> Index:
        """The index, in the user's order of axes, of an element met at `position`."""
        if len(self.shape) == 1:
            return (position,)
        where = [int(i) for i in np.unravel_index(position, self.shape)]
        if self.order is None:
            return tuple(where)
        return tuple(where[self.order.index(axis)] for axis in range(len(where)))

    def first(self, positions: Array) -> Index:
        """The first place, in the user's order of axes, among positions given in ascending order."""
        if self.order is None:
            return self.place(int(positions[0]))
        where = np.unravel_index(positions, self.shape)
        columns = [where[self.order.index(axis)] for axis in range(len(where))]
        best = np.lexsort(columns[::-1])[0]
        return tuple(int(column[best]) for column in columns)


def _common_dtype(reference: np.dtype[Any], candidate: np.dtype[Any]) -> np.dtype[Any]:
    """What both are worked on in. int64 stands for two integer dtypes of which one does not fit float64."""
    works = _work_dtype(reference), _work_dtype(candidate)
    if "c" in (reference.kind, candidate.kind):
        return _C128
    if reference.kind in "iub" and candidate.kind in "iub" and max(reference.itemsize, candidate.itemsize) == 8:
        return _I64
    return _F32 if works == (_F32, _F32) else _F64


class _Scratch:
    """What one thread writes to. Rows of `three`: difference, its magnitude, relative error.

    No two of the arrays that one call reads and writes lie a multiple of 4096 bytes apart: processors that tell
    addresses apart by their lower bits first take four times as long when they do.
    """

    __slots__ = (
        *("candidate", "flags", "ones", "padded", "reference", "room", "runs", "size", "sums", "three", "three_runs"),
        "work",
    )

    def __init__(self, size: int, work: np.dtype[Any]) -> None:
        self.size, self.work = size, work
        self.padded = -1

    def fit(self, padded: int) -> None:
        """Makes room for a chunk. Not before: the kernel mostly needs none."""
        if padded == self.padded:
            return
        if self.padded < 0:
            room = self.size if self.size <= RUN else -(-self.size // RUN) * RUN
            self.room = np.empty((5, room + 832 // self.work.itemsize), self.work)
            self.reference, self.candidate = self.room[3, :room], self.room[4, :room]
            self.flags = np.empty(room, np.bool_)
        self.padded = padded
        length = min(padded, RUN)
        self.runs = (padded // length, length)
        self.three = self.room[:3, :padded]
        self.three_runs = self.three.reshape(3, -1, 1, length)  # a view: rows stay rows
        self.ones = _ONES[self.room.dtype][:length].reshape(length, 1)
        self.sums = np.empty((7, padded // length, 1, 1), self.room.dtype)


@dataclass(slots=True)
class _Part:
    """What was found in one segment. Sums are kept per power of two that their terms were divided by."""

    finite: int = 0
    within: int = 0
    nan_reference: int = 0
    nan_candidate: int = 0
    inf_reference: int = 0
    inf_candidate: int = 0
    mismatch: int = 0
    first_mismatch: Index | None = None
    identical: bool = True
    max_abs: float = 0.0
    worst: int = -1
    max_rel: float = 0.0
    rel_left_out: int = 0
    rel: float = 0.0
    values: dict[int, list[float]] = field(default_factory=dict)  # sum r, c, rr, rc, cc
    errors: dict[int, list[float]] = field(default_factory=dict)  # sum d, |d|, dd

    def add_values(self, shift: int, *terms: float) -> None:
        held = self.values.setdefault(shift, [0.0] * 5)
        for i, term in enumerate(terms):
            held[i] += term

    def add_errors(self, shift: int, *terms: float) -> None:
        held = self.errors.setdefault(shift, [0.0] * 3)
        for i, term in enumerate(terms):
            held[i] += term


@dataclass(frozen=True, slots=True)
class _Tolerance:
    atol: float
    rtol: float
    equal_nan: bool

    def count(self, errors: Array, sizes: Array, flags: Array) -> int:
        """How many errors are within; sizes are magnitudes of the reference, overwritten."""
        kind = errors.dtype.type
        limit = float(np.finfo(errors.dtype).max)  # a larger tolerance would be inf, or widen the whole array
        atol = kind(min(self.atol, limit))
        if self.rtol == 0:
            np.less_equal(errors, atol, out=flags)
        else:
            np.multiply(sizes, kind(min(self.rtol, limit)), out=sizes)
            if atol:
                np.add(sizes, atol, out=sizes)
            np.less_equal(errors, sizes, out=flags)
        return int(np.count_nonzero(flags))


def compare_arrays(
    reference: ArrayLike,
    candidate: ArrayLike,
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
    equal_nan: bool = False,
    threads: int | None = None,
) -> Metrics:
    """Every number about two arrays of one shape, in one pass and in memory that does not grow with them.

    >>> import numpy as np
    >>> reference = np.array([[1.0, 2.0], [4.0, np.inf]], dtype=np.float32)
    >>> metrics = compare_arrays(reference, reference + np.float32([[0, 0], [1, 0]]), atol=0.5)
    >>> metrics.max_abs, metrics.worst, metrics.worst_candidate, metrics.within, metrics.nonfinite_mismatch
    (1.0, (1, 0), 5.0, 0.75, 0)
    >>> compare_arrays(reference, reference.T).same_other_layout
    'transpose(1, 0)'

    `atol`, `rtol` and `equal_nan` bear on `within` alone, which tests in the working precision. `threads` is only a
    matter of speed: no result depends on it. Arrays of different shapes are refused. Two integer arrays are compared
    exactly, 64 bits included; an integer array against floats is read as float64.
    """
    tolerance = _tolerance(atol, rtol, equal_nan)
    if threads is not None and threads < 1:
        raise OptionError(f"threads={threads!r} is not a number of threads", hint="use 1 or more, or None")
    reference, candidate = np.asarray(reference), np.asarray(candidate)
    if reference.shape != candidate.shape:
        raise TwinscopeError(
            f"the reference has shape {reference.shape}, the candidate {candidate.shape}",
            hint="compare shapes first; same_other_layout() says whether both hold the same values in another order",
        )
    pair = _Pair(reference, candidate)
    total = _Part()
    if pair.size:
        parts = _all_parts(pair, tolerance, threads)
        total = _merge(parts)
    return _metrics(reference, candidate, pair, total)


def _tolerance(atol: float, rtol: float, equal_nan: bool) -> _Tolerance:
    for name, value in (("atol", atol), ("rtol", rtol)):
        if not value >= 0:
            raise OptionError(f"{name}={value!r} is not a tolerance", hint="use 0 or a positive number")
    return _Tolerance(float(atol), float(rtol), bool(equal_nan))


def _all_parts(pair: _Pair, tolerance: _Tolerance, threads: int | None) -> list[_Part]:
    blocks = pair.blocks
    segments = min(blocks.count, SEGMENTS)
    edges = [blocks.count * i // segments for i in range(segments + 1)]
    if threads is None:
        threads = min(_cpus(), MAX_THREADS) if pair.size >= THREADS_FROM else 1
    threads = min(threads, segments)
    work = _F64 if pair.work in (_C128, _I64) else pair.work
    scratches = [_Scratch(blocks.largest, work) for _ in range(threads)]

    def segment(i: int) -> _Part:
        scratch = scratches.pop()
        try:
            return _segment(pair, range(edges[i], edges[i + 1]), tolerance, scratch)
        finally:
            scratches.append(scratch)

    if threads == 1:
        return [segment(i) for i in range(segments)]
    with ThreadPoolExecutor(threads, thread_name_prefix="twinscope-metrics") as pool:
        return list(pool.map(segment, range(segments)))


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _segment(pair: _Pair, numbers: range, tolerance: _Tolerance, scratch: _Scratch) -> _Part:
    part = _Part()
    blocks = pair.blocks
    exact = pair.work in (_C128, _I64)
    pair_pass = _pair_pass if pair.work == _F32 else None
    memory = pair.memory() if pair_pass is not None else None
    for number in numbers:
        index = blocks.index(number)
        start = blocks.start(number)
        size = pair.reference.array[index].size
        if (
            pair_pass is not None
            and memory is not None
            and _kernel_chunk(pair_pass, *memory, size, start, start, part, tolerance)
        ):
            continue
        # matmul reports overflow and NaN, which are looked for in its result instead. Set per thread.
        with np.errstate(all="ignore"):
            if exact:
                r, c = pair.reference.array[index].reshape(-1), pair.candidate.array[index].reshape(-1)
                _exact_chunk(pair, r, c, start, part, tolerance)
                continue
            padded = size if size <= RUN else -(-size // RUN) * RUN
            scratch.fit(padded)
            r = pair.reference.read(index, padded, scratch.reference)
            c = pair.candidate.read(index, padded, scratch.candidate)
            if pair_pass is None:
                plain = _plain_chunk(r, c, size, start, part, tolerance, scratch)
            else:
                plain = False
                if memory is None and (at_r := _memory(r)) and (at_c := _memory(c)):  # else it was refused above
                    plain = _kernel_chunk(pair_pass, at_r, at_c, size, 0, start, part, tolerance)
            if not plain:
                r64, c64 = r[:size].astype(_F64), c[:size].astype(_F64)
                _careful_chunk(pair, r64, c64, c64 - r64, start, part, tolerance)
    return part


def _kernel_chunk(
    pair_pass: kernels.PairPass,
    reference: _Memory,
    candidate: _Memory,
    size: int,
    offset: int,
    start: int,
    part: _Part,
    tolerance: _Tolerance,
) -> bool:
    """What `_plain_chunk` does, by the kernel, for `size` elements that lie at `offset`."""
    sums = pair_pass(
        reference[0] + offset * reference[2],
        reference[1],
        candidate[0] + offset * candidate[2],
        candidate[1],
        size,
        min(tolerance.atol, _FLOAT32_MAX),
        min(tolerance.rtol, _FLOAT32_MAX),
    )
    if sums is None:
        return False
    r1, c1, rr, rc, cc, d1, a1, dd, largest, worst, q1, most, left_out, within, identical = sums
    part.finite += size
    part.add_values(0, r1, c1, rr, rc, cc)
    if identical:
        part.within += size
        return True
    part.identical = False
    part.add_errors(0, d1, a1, dd)
    if largest > part.max_abs:
        part.max_abs = largest
        part.worst = start + int(worst)
    part.rel_left_out += int(left_out)
    part.rel += q1
    if most > part.max_rel:
        part.max_rel = most
    # The kernel counts in float32, to which a tolerance is rounded.
    settled = largest <= tolerance.atol or (not left_out and most <= tolerance.rtol * (1 - 1e-6))
    part.within += size if settled else int(within)
    return True


def _plain_chunk(
    r: Array, c: Array, size: int, start: int, part: _Part, tolerance: _Tolerance, scratch: _Scratch
) -> bool:
    """The numbers of a chunk in its own precision; False, with nothing counted, where that would not be right."""
    sums, ones, runs = scratch.sums, scratch.ones, scratch.runs
    rows, columns = (*runs[:1], 1, runs[1]), (*runs, 1)
    r_rows = r.reshape(rows)
    np.matmul(r_rows, r.reshape(columns), out=sums[3])
    np.matmul(r_rows, ones, out=sums[4])
    tiny = _TINY[r.dtype] * size
    bits = _BITS[r.dtype.itemsize]
    if r[:8].tobytes() == c[:8].tobytes() and not (r.view(bits) != c.view(bits)).any():
        rr, r1 = sums[3:5].sum(axis=(1, 2, 3), dtype=_F64).tolist()
        if not (rr < _INF and (rr >= tiny or not r.any())):
            return False
        part.finite += size
        part.within += size
        part.add_values(0, r1, r1, rr, rr, rr)
        return True

    difference, magnitude, relative = scratch.three
    np.subtract(c, r, out=difference)
    np.abs(difference, out=magnitude)
    d_columns = difference.reshape(columns)
    np.matmul(scratch.three_runs[0], d_columns, out=sums[5])
    np.matmul(r_rows, d_columns, out=sums[6])
    np.matmul(scratch.three_runs[0], ones, out=sums[0])
    sizes = np.abs(r[:size], out=difference[:size])  # the difference itself is no longer needed
    np.divide(magnitude[:size], sizes, out=relative[:size])
    relative[size:] = 0
    np.matmul(scratch.three_runs[1:], ones, out=sums[1:3])
    d1, a1, q1, rr, r1, dd, rd = sums.sum(axis=(1, 2, 3), dtype=_F64).tolist()
    largest = float(np.maximum.reduce(magnitude))
    # NaN and Inf anywhere make these NaN or Inf; squares of tiny values would have underflowed.
    if not (rr < _INF and dd < _INF and (dd >= tiny or largest == 0) and (rr >= tiny or not r.any())):
        return False

    cc, rc, c1 = rr + 2 * rd + dd, rr + rd, r1 + d1
    if cc * 4 < rr:  # c is small beside r, and cancels
        c64 = c[:size].astype(_F64)
        cc, rc, c1 = float(c64 @ c64), float(c64 @ r[:size].astype(_F64)), float(c64.sum())
    part.finite += size
    part.add_values(0, r1, c1, rr, rc, cc)
    part.add_errors(0, d1, a1, dd)
    part.identical = False
    if largest > part.max_abs:
        part.max_abs = largest
        part.worst = start + int(np.argmax(magnitude))

    left_out = 0
    if not q1 < _INF:  # the reference holds zeros, or nearly
        zero = np.equal(sizes, 0, out=scratch.flags[:size])
        left_out = int(np.count_nonzero(magnitude[:size][zero])) if zero.any() else 0
        part.rel_left_out += left_out
        np.copyto(relative[:size], 0, where=zero)
        q1 = float(np.matmul(scratch.three_runs[2], ones, out=sums[2]).sum(dtype=_F64))
    if q1 < _INF:
        # No element exceeds the sum over its run, which most often settles it: the largest are far above the others.
        most = float(sums[2].max()) * (1 + 1e-5)
        if most > part.max_rel:
            most = float(np.maximum.reduce(relative))
    else:
        wide = np.divide(magnitude[:size], sizes, dtype=_F64)
        wide[zero] = 0
        q1, most = float(wide.sum()), float(wide.max())
    part.rel += q1
    if most > part.max_rel:
        part.max_rel = most

    if largest <= tolerance.atol or (not left_out and most <= tolerance.rtol * (1 - 1e-6)):
        part.within += size
    else:
        part.within += tolerance.count(magnitude[:size], sizes, scratch.flags[:size])
    return True


def _exact_chunk(pair: _Pair, r: Array, c: Array, start: int, part: _Part, tolerance: _Tolerance) -> None:
    """Complex values, and integers of 64 bits, which float64 does not hold."""
    if pair.work == _C128:
        r, c = r.astype(_C128), c.astype(_C128)
        _careful_chunk(pair, r, c, c - r, start, part, tolerance)
        return
    wide_r, wide_c = (x.astype(_U64 if x.dtype.kind == "u" else _I64) for x in (r, c))
    r64, c64 = wide_r.astype(_F64), wide_c.astype(_F64)
    difference = c64 - r64
    # Modulo 2**64, so right as long as the true difference fits int64; beyond, float64's is near enough.
    wrapped = (wide_c.view(_U64) - wide_r.view(_U64)).view(_I64)
    np.copyto(difference, wrapped, where=np.abs(difference) < 2.0**62)
    _careful_chunk(pair, r64, c64, difference, start, part, tolerance)


def _careful_chunk(
    pair: _Pair, r: Array, c: Array, difference: Array, start: int, part: _Part, tolerance: _Tolerance
) -> None:
    """The numbers of a chunk in float64 (or complex128), whatever it holds."""
    good = np.isfinite(r) & np.isfinite(c)
    if not good.all():
        nan_r, nan_c = np.isnan(r), np.isnan(c)
        both = nan_r & nan_c
        agree = both | (r == c)
        part.nan_reference += int(np.count_nonzero(nan_r))
        part.nan_candidate += int(np.count_nonzero(nan_c))
        part.inf_reference += int(np.count_nonzero(np.isinf(r) & ~nan_r))
        part.inf_candidate += int(np.count_nonzero(np.isinf(c) & ~nan_c))
        part.within += int(np.count_nonzero(~good & (agree if tolerance.equal_nan else agree & ~both)))
        wrong = np.flatnonzero(~good & ~agree)
        if wrong.size:
            part.identical = False
            part.mismatch += wrong.size
            place = pair.first(wrong + start)
            if part.first_mismatch is None or place < part.first_mismatch:
                part.first_mismatch = place
        positions = np.flatnonzero(good)
        r, c, difference = r[good], c[good], difference[good]
    else:
        positions = None
    if not r.size:
        return
    part.finite += r.size
    complex_ = r.dtype == _C128
    part.identical = part.identical and not difference.any() and not (r.view(_U64) != c.view(_U64)).any()

    magnitude_r, magnitude_c = np.abs(r), np.abs(c)
    shift = _exponent(max(float(magnitude_r.max()), float(magnitude_c.max())))
    if shift:
        r, c = (_times(x, -shift) for x in (r, c))
        magnitude_r, magnitude_c, difference = np.abs(r), np.abs(c), c - r
    errors = np.abs(difference)
    largest = float(errors.max())
    plain_r, plain_c = (r.view(_F64), c.view(_F64)) if complex_ else (r, c)
    part.add_values(
        shift,
        float((magnitude_r if complex_ else r).sum()),
        float((magnitude_c if complex_ else c).sum()),
        float(plain_r @ plain_r),
        float(plain_r @ plain_c),
        float(plain_c @ plain_c),
    )
    narrow = _exponent(largest)
    signed = magnitude_c - magnitude_r if complex_ else difference
    signed, scaled = _times(signed, -narrow), _times(errors, -narrow)
    part.add_errors(shift + narrow, float(signed.sum()), float(scaled.sum()), float(scaled @ scaled))

    true_largest = _ldexp(largest, shift)
    if true_largest > part.max_abs:
        part.max_abs = true_largest
        at = int(errors.argmax())
        part.worst = start + (at if positions is None else int(positions[at]))

    zero = magnitude_r == 0
    part.rel_left_out += int(np.count_nonzero(zero & (errors > 0)))
    relative = errors / np.where(zero, 1.0, magnitude_r)
    relative[zero] = 0
    part.rel += float(relative.sum())
    part.max_rel = max(part.max_rel, float(relative.max()))

    errors, magnitude_r = _times(errors, shift), _times(magnitude_r, shift)  # tolerances are in the original scale
    part.within += tolerance.count(errors, magnitude_r, np.empty(errors.size, np.bool_))


def _merge(parts: list[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    total = _Part()
    for part in parts:
        total.finite += part.finite
        total.within += part.within
        total.nan_reference += part.nan_reference
        total.nan_candidate += part.nan_candidate
        total.inf_reference += part.inf_reference
        total.inf_candidate += part.inf_candidate
        total.mismatch += part.mismatch
        total.rel_left_out += part.rel_left_out
        total.identical = total.identical and part.identical
        total.max_rel = max(total.max_rel, part.max_rel)
        if part.max_abs > total.max_abs:
            total.max_abs, total.worst = part.max_abs, part.worst
        if part.first_mismatch is not None:
            total.first_mismatch = min(total.first_mismatch or part.first_mismatch, part.first_mismatch)
        for shift, terms in part.values.items():
            total.add_values(shift, *terms)
        for shift, terms in part.errors.items():
            total.add_errors(shift, *terms)
        total.rel += part.rel
    return total


def _gather(sums: dict[int, list[float]], orders: tuple[int, ...]) -> tuple[list[float], int]:
    """Sums of one scale, and its power of two. Terms of order 2 are squares, so their scale counts twice."""
    if len(sums) == 1:
        ((shift, terms),) = sums.items()
        return terms, shift
    shift = max((s for s, terms in sums.items() if any(terms)), default=0)
    gathered = [0.0] * len(orders)
    for other, terms in sums.items():
        for i, term in enumerate(terms):
            gathered[i] += _ldexp(term, (other - shift) * orders[i])
    return gathered, shift


def _metrics(reference: Array, candidate: Array, pair: _Pair, part: _Part) -> Metrics:
    n = part.finite
    nan = _NAN
    mean_r = mean_c = mean_d = mean_abs = rmse = rms_r = rms_c = cosine = bits = max_rel = mean_rel = max_abs = nan
    worst: Index | None = None
    worst_r: Number | None = None
    worst_c: Number | None = None
    if n:
        (r1, c1, rr, rc, cc), shift = _gather(part.values, (1, 1, 2, 2, 2))
        (d1, a1, dd), narrow = _gather(part.errors, (1, 1, 2))
        mean_r, mean_c = _ldexp(r1 / n, shift), _ldexp(c1 / n, shift)
        mean_d, mean_abs = _ldexp(d1 / n, narrow), _ldexp(a1 / n, narrow)
        scaled_rmse, scaled_r, scaled_c = math.sqrt(dd / n), math.sqrt(rr / n), math.sqrt(cc / n)
        rmse, rms_r, rms_c = _ldexp(scaled_rmse, narrow), _ldexp(scaled_r, shift), _ldexp(scaled_c, shift)
        if rr and cc:
            cosine = min(1.0, max(-1.0, rc / n / (scaled_r * scaled_c)))
        else:
            cosine = 1.0 if rr == cc else 0.0
        if not dd:
            bits = _INF
        elif not rr:
            bits = -_INF
        else:
            bits = math.log2(scaled_r) - math.log2(scaled_rmse) + shift - narrow
        usable = n - part.rel_left_out
        max_rel, mean_rel = (part.max_rel, part.rel / usable) if usable else (_INF, _INF)
        max_abs = part.max_abs
    if part.worst >= 0:
        worst = pair.place(part.worst)
        worst_r, worst_c = _item(reference[worst]), _item(candidate[worst])
        # Found in the working precision; said exactly.
        max_abs = float(abs(worst_c - worst_r))
    different = not part.identical
    return Metrics(
        shape=reference.shape,
        dtypes=(_name(reference.dtype), _name(candidate.dtype)),
        count=pair.size,
        finite=n,
        max_abs=max_abs,
        mean_abs=mean_abs,
        max_rel=max_rel,
        mean_rel=mean_rel,
        rmse=rmse,
        rms_reference=rms_r,
        rms_candidate=rms_c,
        cosine=cosine,
        effective_bits=bits,
        mean_reference=mean_r,
        mean_candidate=mean_c,
        mean_diff=mean_d,
        within=part.within / pair.size if pair.size else nan,
        nan_reference=part.nan_reference,
        nan_candidate=part.nan_candidate,
        inf_reference=part.inf_reference,
        inf_candidate=part.inf_candidate,
        nonfinite_mismatch=part.mismatch,
        first_nonfinite_mismatch=part.first_mismatch,
        worst=worst,
        worst_reference=worst_r,
        worst_candidate=worst_c,
        identical=part.identical,
        same_other_layout=_other_layout(reference, candidate) if different and _may_be_reordered(part) else None,
    )


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


def _item(value: Any) -> Number:
    """A Python number of an element: exact for integers."""
    kind = value.dtype.kind
    if kind in "iub":
        return int(value)
    return complex(value) if kind == "c" else float(value)


# ------------------------------------------------------------------------------------- the same values, another order


def same_other_layout(reference: ArrayLike, candidate: ArrayLike) -> str | None:
    """How two arrays that differ hold exactly the same values in another order, or None if they do not.

    Their shapes may differ. The answer is the first that holds of

    - ``transpose(1, 0)``: the reference is ``candidate.transpose(1, 0)``
    - ``reshape``: the shapes differ, and one is the other, reshaped
    - ``column-major reshape``: the reference is ``candidate.reshape(shape, order="F")``, or the other way round
    - ``other order``: the same values, each as often, in some other order

    >>> import numpy as np
    >>> weight = np.arange(6.0).reshape(2, 3)
    >>> same_other_layout(weight, weight.T)
    'transpose(1, 0)'
    >>> same_other_layout(weight, weight.reshape(6))
    'reshape'
    >>> same_other_layout(weight, weight[::-1])
    'other order'
    >>> same_other_layout(weight, weight.T + 1) is None
    True
    """
    first, second = np.asarray(reference), np.asarray(candidate)
    _common_dtype(first.dtype, second.dtype)
    if first.size != second.size or not first.size:
        return None
    if first.shape == second.shape and _equal(first, second):
        return None
    return _other_layout(first, second)


def _may_be_reordered(part: _Part) -> bool:
    """Whether sums leave it possible. Noise fails this: reordering keeps the sum, so the differences must cancel."""
    if part.nan_reference != part.nan_candidate or part.inf_reference != part.inf_candidate:
        return False
    if part.nan_reference or part.inf_reference:
        return True  # NaN in another place takes its partner out of the sums
    (d1, a1, _), _ = _gather(part.errors, (1, 1, 2))
    (_, _, rr, _, cc), _ = _gather(part.values, (1, 1, 2, 2, 2))
    return abs(d1) <= 1e-5 * a1 and abs(rr - cc) <= 1e-5 * (rr + cc)


def _other_layout(reference: Array, candidate: Array) -> str | None:
    work = _common_dtype(reference.dtype, candidate.dtype)
    # An exact sum over mixed bits: equal for the same values in any order. Decides almost always.
    if _multiset(reference, work) != _multiset(candidate, work):
        return None
    if sorted(reference.shape) == sorted(candidate.shape) and reference.ndim <= MAX_PERMUTED_AXES:
        for axes in _permutations(reference.shape, candidate.shape):
            if _equal(reference, candidate.transpose(axes)):
                return f"transpose({', '.join(str(axis) for axis in axes)})"
    if reference.shape != candidate.shape and _equal_in_order(reference, candidate):
        return "reshape"
    if _equal_in_order(reference.T, candidate) or _equal_in_order(reference, candidate.T):
        return "column-major reshape"
    return "other order"


def _permutations(reference: Shape, candidate: Shape) -> list[Index]:
    """Those that turn one shape into the other, the ones that move the fewest axes first."""
    own = tuple(range(len(reference)))
    wide = [axis for axis in own if reference[axis] > 1]
    found = []
    for axes in itertools.permutations(own):
        if tuple(candidate[axis] for axis in axes) == reference and axes != own:
            found.append(axes)
    return sorted(found, key=lambda axes: (sum(axes[axis] != axis for axis in wide), sum(map(int.__ne__, axes, own))))


def _equal(reference: Array, candidate: Array) -> bool:
    """Whether every element is equal, NaN to NaN, block by block."""
    probe = tuple(slice(-1, None) for _ in reference.shape)
    middle = tuple(slice(extent // 2, extent // 2 + 1) for extent in reference.shape)
    for index in (probe, middle):
        if not _same(reference[index], candidate[index]):
            return False
    pair = _Pair(reference, candidate, STATS_CHUNK)
    return all(
        _same(pair.reference.array[index], pair.candidate.array[index])
        for index in map(pair.blocks.index, range(pair.blocks.count))
    )


def _same(r: Array, c: Array) -> bool:
    if r.dtype != c.dtype:  # no common dtype is defined for some pairs of ml_dtypes' types
        r, c = (x if x.dtype.kind == "c" else x.astype(_F64) for x in (r, c))
    equal = r == c
    if equal.all():
        return True
    return bool((equal | (_is_nan(r) & _is_nan(c))).all())


def _is_nan(values: Array) -> Array:
    return np.asarray(np.not_equal(values, values))  # isnan refuses some of ml_dtypes' types


def _equal_in_order(reference: Array, candidate: Array) -> bool:
    """Whether both hold the same sequence of elements, whatever their shapes."""
    step = STATS_CHUNK
    left, right = reference.flat, candidate.flat
    return all(_same(left[i : i + step], right[i : i + step]) for i in range(0, reference.size, step))


def _multiset(array: Array, work: np.dtype[Any]) -> tuple[int, int]:
    """Two sums over the mixed bits of the elements. 0.0 and -0.0 count as one, and so do all NaNs."""
    first = second = 0
    for raw, _ in _pieces(array, array.dtype):
        if work == _I64:
            bits = raw.astype(_U64 if raw.dtype.kind == "u" else _I64).view(_U64)
        else:
            wide: Array = raw.astype(_C128 if work == _C128 else _F64)
            wide[np.isnan(wide)] = _NAN
            wide += 0.0
            bits = wide.view(_U64)
            if work == _C128:
                bits = _mixed(bits[0::2]) ^ bits[1::2]
        mixed = _mixed(bits)
        first += int(np.add.reduce(mixed, dtype=_U64))
        second += int(np.add.reduce(_mixed(mixed), dtype=_U64))
    return first & (2**64 - 1), second & (2**64 - 1)


def _mixed(bits: Array) -> Array:
    """splitmix64's finisher: every bit of the input moves half of the output's."""
    mixed = bits + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def arranged(left: Array, right: Array) -> tuple[Array, str] | None:
    """`right` in the shape of `left`, with a word on what was done; None when no rearrangement explains the shapes."""
    found = arrangement(left, right)
    return None if found is None else (found[0](right), found[1])


def arrangement(left: Array, right: Array) -> tuple[Callable[[Array], Array], str] | None:
    """What brings `right`, and all that is laid out like it, into the shape of `left`: `arranged`, to be used again."""
    if left.shape == right.shape:
        return (lambda array: array), ""
    if left.size != right.size:
        return None
    shape = left.shape
    squeezed = [tuple(n for n in s if n != 1) for s in (left.shape, right.shape)]
    if sorted(squeezed[0]) == sorted(squeezed[1]) and squeezed[0] != squeezed[1] and len(squeezed[0]) <= 6:
        source = right.reshape(squeezed[1])
        target = left.reshape(squeezed[0])
        best, best_error = None, math.inf
        for order in itertools.permutations(range(source.ndim)):
            turned = source.transpose(order)
            if turned.shape != target.shape:
                continue
            error = _quick_error(target, turned)
            if error < best_error:
                best, best_error = order, error
        if best is not None:
            note = f"compared after permuting axes: {right.shape} to {left.shape}"
            chosen = best
            return (lambda array: array.reshape(squeezed[1]).transpose(chosen).reshape(shape)), note
    return (lambda array: array.reshape(shape)), f"compared after reshaping: {right.shape} to {left.shape}"


def _quick_error(left: Array, right: Array) -> float:
    """Mean difference over a sample: enough to tell which permutation of axes is meant."""
    step = tuple(slice(None, None, max(1, n // 16)) for n in left.shape)
    a, b = left[step].astype(np.float64), right[step].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.nan_to_num(np.abs(a - b), nan=0.0, posinf=0.0).mean()) if a.size else 0.0
