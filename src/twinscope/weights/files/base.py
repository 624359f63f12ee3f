"""What checkpoint files have in common: tensors read when asked for, and files that appear whole or not at all.

A file is mapped into memory and never trusted: every offset and extent is compared with the file's length before an
array is laid over it. Arrays are read-only views of the mapping wherever the file has the elements in one piece.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from ...adapters.base import Array
from ...errors import WeightError
from ..transforms import dtype_of

#: What a hint says of a file that nobody wrote on purpose.
DAMAGED = "the file is damaged or was copied only in part; copy or save it again"

_DIMS_LIMIT = 32  # numpy 1 has no more
_BLOCK = 4 << 20  # bytes; what is written, compared or converted at a time
_EXPANDED_LIMIT = 1 << 30  # bytes; a tensor may be larger than what is stored of it (stride 0), within reason

Stride: TypeAlias = int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file. Nothing is read before `read` is called."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]
    place: tuple[Any, ...] | None = None  # equal for two names of one tensor

    @property
    def nbytes(self) -> int:
        """How many bytes the elements take."""
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize

    @classmethod
    def view(
        cls,
        mapped: Mapped,
        offset: int,
        dtype: str,
        shape: Sequence[int],
        *,
        end: int | None = None,
        strides: Sequence[Stride] | None = None,
        fortran: bool = False,
    ) -> StoredTensor:
        """A tensor that lies in the mapped file from `offset` on; `end` is where its elements must have ended.

        `strides` are in elements. Whatever reaches out of the file is a `WeightError`.
        """
        extents = checked_shape(shape, mapped.where)
        itemsize = dtype_of(dtype).itemsize
        if strides is None:
            strides = _dense(extents[::-1])[::-1] if fortran else _dense(extents)
        if len(strides) != len(extents) or not all(type(s) is int and 0 <= s < 1 << 62 for s in strides):
            raise WeightError(f"{mapped.where}: strides {_short(strides)} do not fit {_short(extents)}", hint=DAMAGED)
        empty = 0 in extents
        last = 0 if empty else 1 + sum((n - 1) * s for n, s in zip(extents, strides, strict=True))
        limit = mapped.size if end is None else min(end, mapped.size)
        if offset < 0 or offset + last * itemsize > limit:
            raise WeightError(
                f"{mapped.where}: a tensor of shape {_short(extents)} reaches beyond the bytes stored for it",
                hint=DAMAGED,
            )
        if math.prod(extents) > max(last, _EXPANDED_LIMIT // itemsize):
            raise WeightError(
                f"{mapped.where}: a tensor of shape {_short(extents)} is stored in {last * itemsize} bytes",
                hint="save it again without expanded tensors: tensor.contiguous()",
            )
        if empty:
            return cls(extents, dtype, lambda: np.empty(extents, dtype_of(dtype)))
        steps = tuple(s * itemsize for s in strides)

        def read() -> Array:
            return np.ndarray(extents, dtype_of(dtype), mapped.data, offset, steps)

        return cls(extents, dtype, read, ("view", offset, extents, steps, dtype))


@dataclass(frozen=True, slots=True)
class StateDict:
    """Tensors by name, and where in the file they were: "" for the top, or the keys that lead there."""

    where: str
    tensors: Mapping[str, StoredTensor]
    left_out: tuple[str, ...] = ()  # what else lay beside them, in words


@dataclass(frozen=True, slots=True)
class Contents:
    """What a checkpoint file holds. Usually one state dict; optimizers and averaged weights may lie beside it."""

    path: Path
    format: str
    framework: str | None  # None where any may have written it
    states: tuple[StateDict, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor that is going to be written: its names in the file (more than one where it is tied), shape and dtype."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """How many bytes the elements take."""
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize


#: The elements of one tensor: pieces of contiguous little-endian bytes, in C order, all of `Spec.nbytes` together.
Pieces: TypeAlias = Iterable[Array]
#: What a format's `write` is given: an open file, all tensors to come in the wished order, and then each with its bytes
#: in any order; the framework is that of the model the file is meant for.
Write: TypeAlias = Callable[[BinaryIO, Sequence[Spec], Iterable[tuple[Spec, Pieces]], str | None], None]


@dataclass(frozen=True, slots=True)
class FileFormat:
    """One kind of checkpoint file."""

    name: str
    framework: str | None
    extensions: tuple[str, ...]
    dtypes: frozenset[str]  # what its framework reads back
    read: Callable[[Mapped, Path], Contents]
    write: Write
    cannot_hold: Callable[[Spec], str | None] = lambda _spec: None  # a reason, for what a dtype does not tell


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """A file in memory. Arrays over it keep it alive."""

    where: str
    data: mmap.mmap | bytes
    size: int

    def bytes(self, offset: int, count: int) -> bytes:
        """A copy of some bytes; `WeightError` where there are not that many."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise WeightError(f"{self.where}: it ends at byte {self.size}, in the midst of something", hint=DAMAGED)
        return bytes(self.data[offset : offset + count])


def mapped_file(path: Path) -> Mapped:
    """The file, mapped read-only."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise WeightError(f"{path} cannot be read: {reason}", hint="check the path") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise WeightError(f"{path} is not a file", hint="name the checkpoint file itself")
        if status.st_size == 0:
            raise WeightError(f"{path} is empty", hint=DAMAGED)
        try:
            data = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise WeightError(f"{path} cannot be mapped: {error}", hint="copy it to a local disk") from error
    finally:
        os.close(fd)
    return Mapped(str(path), data, len(data))


def checked_shape(shape: Any, where: str) -> tuple[int, ...]:
    """A shape that numpy can make, else a `WeightError`."""
    good = (
        isinstance(shape, (tuple, list))
        and len(shape) <= _DIMS_LIMIT
        and all(type(n) is int and 0 <= n < 1 << 62 for n in shape)
        and math.prod(n for n in shape if n) < 1 << 58
    )
    if not good:
        raise WeightError(f"{where}: a tensor cannot have the shape {_short(shape)}", hint=DAMAGED)
    return tuple(shape)


def joined(parts: Sequence[Callable[[], Array]], shape: tuple[int, ...], dtype: str, where: str) -> StoredTensor:
    """A tensor that is stored in several pieces, put together when it is read."""

    def read() -> Array:
        whole = np.empty(math.prod(shape), dtype_of(dtype))
        at = 0
        for part in parts:
            piece = part().reshape(-1)
            if at + piece.size > whole.size:
                break
            whole[at : at + piece.size] = piece
            at += piece.size
        if at != whole.size:
            raise WeightError(f"{where}: the pieces of a tensor do not make up {_short(shape)}", hint=DAMAGED)
        return whole.reshape(shape)

    return StoredTensor(shape, dtype, read)


def frozen(tensors: dict[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """The dict, read-only."""
    return MappingProxyType(tensors)


def _dense(shape: Sequence[int]) -> list[int]:
    found: list[int] = []
    step = 1
    for n in reversed(shape):
        found.append(step)
        step *= max(n, 1)
    return found[::-1]


def _short(value: Any) -> str:
    """A value of the file's as text: never long, never deep."""
    if isinstance(value, (tuple, list)):
        inner = ", ".join(str(v)[:20] if type(v) is int and v.bit_length() < 1000 else "?" for v in value[:8])
        return f"[{inner}{', ...' if len(value) > 8 else ''}]"
    return type(value).__name__


# -- elements ----------------------------------------------------------------------------------------------------------


def blocks(array: Array, limit: int = _BLOCK) -> Iterator[Array]:
    """The array's elements in C order, in views of about `limit` bytes at most."""
    if array.nbytes <= limit or array.ndim == 0:
        if array.size:
            yield array
        return
    per_row = array.nbytes // len(array)
    if per_row > limit:
        for row in array:
            yield from blocks(row, limit)
        return
    rows = max(1, limit // max(per_row, 1))
    for begin in range(0, len(array), rows):
        yield array[begin : begin + rows]


def little_endian(dtype: str) -> np.dtype[Any]:
    """The dtype as files have it."""
    found = dtype_of(dtype)
    return found if sys.byteorder == "little" else found.newbyteorder("<")


def raw(block: Array, dtype: str) -> Array:
    """A block's elements as bytes, in a file's order; its own memory if possible."""
    return np.ascontiguousarray(block, dtype=little_endian(dtype)).reshape(-1).view(np.uint8)


def same_elements(first: Array, second: Array) -> bool:
    """Whether two arrays are equal bit for bit, without a copy of either."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    name = str(first.dtype.name)
    pairs = zip(blocks(first), blocks(second), strict=True)
    return all(np.array_equal(raw(a, name), raw(b, name)) for a, b in pairs)


def kind_of(dtype: str) -> str:
    """What a dtype is of: two kinds are never converted into each other without being asked.

    >>> kind_of("bfloat16"), kind_of("uint8"), kind_of("bool")
    ('float', 'integer', 'bool')
    """
    for prefix, kind in (("bool", "bool"), ("complex", "complex"), ("int", "integer"), ("uint", "integer")):
        if dtype.startswith(prefix):
            return kind
    return "float"


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Part:
    """A file that is being written; it is thrown away at the end unless it is `wanted`."""

    file: BinaryIO
    wanted: bool = True


@contextmanager
def appearing(target: Path, *, overwrite: bool) -> Iterator[Part]:
    """A file that is at `target` when all of it was written, and nowhere when something went wrong."""
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    if not overwrite and os.path.lexists(target):
        raise _exists(target)
    try:
        fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(fd, "w+b", buffering=1 << 16) as file:
                kept = Part(file)
                yield kept
            if not kept.wanted:
                part.unlink()
                return
            if not overwrite and os.path.lexists(target):
                raise _exists(target)
            os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise WeightError(
            f"{target} cannot be written: {error.strerror}", hint="choose another place, or make room on the disk"
        ) from error


def _exists(target: Path) -> WeightError:
    return WeightError(f"{target} is there already", hint="pass overwrite=True, or choose another name")
