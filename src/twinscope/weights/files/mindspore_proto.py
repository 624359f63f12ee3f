"""mindspore's checkpoint files: protocol buffers, read and written by hand.

    Checkpoint  { repeated Value value = 1 }
    Value       { string tag = 1; TensorProto tensor = 2; MapTensorProto maptensor = 3 }
    TensorProto { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3 }

A tensor of more than 512 MiB is cut into values of one tag that follow one another, each with the dims of the whole.
With crc_check=True the file ends in b"crc_num" and ten bytes of CRC-32, which is checked here.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from ...errors import WeightError
from ..transforms import dtype_of
from .base import (
    DAMAGED,
    Contents,
    FileFormat,
    Mapped,
    Pieces,
    Spec,
    StateDict,
    StoredTensor,
    checked_shape,
    frozen,
    joined,
)

_TYPES: Mapping[str, str] = {
    **{"Bool": "bool", "Int8": "int8", "UInt8": "uint8", "Int16": "int16", "UInt16": "uint16", "Int32": "int32"},
    **{"UInt32": "uint32", "Int64": "int64", "UInt64": "uint64", "Float16": "float16", "Float32": "float32"},
    **{"Float64": "float64", "BFloat16": "bfloat16"},
}
_WRITTEN = {dtype: name for name, dtype in _TYPES.items()}
_CHUNK = 512 << 20  # bytes; mindspore's own
_CRC = b"crc_num"
_CRC_SIZE = len(_CRC) + 10
_ENCRYPTED = (b"\xd8\x5e\x3a\x7f", b"\xd9\x5e\x3a\x7f", b"\xda\x5e\x3a\x7f")  # AES-GCM, AES-CBC, SM4-CBC
_TAG_LIMIT = 1 << 16

_Field = tuple[int, int, int, int]  # number, wire type, value or offset, size


def is_encrypted(start: bytes) -> bool:
    """Whether a file that begins so was saved with enc_key."""
    return start[:4] in _ENCRYPTED


def refuse_encrypted(path: Path) -> WeightError:
    """What is said of such a file."""
    return WeightError(
        f"{path} is encrypted",
        hint="load it with mindspore.load_checkpoint(path, dec_key=...) and save it again without enc_key",
    )


def _read(mapped: Mapped, path: Path) -> Contents:
    end = _checked_end(mapped)
    pieces: dict[str, list[tuple[int, int]]] = {}
    described: dict[str, tuple[str, tuple[int, ...]]] = {}
    left_out: dict[str, str] = {}
    last = ""
    for number, wire, offset, size in _fields(mapped, 0, end):
        if (number, wire) != (1, 2):
            raise _damaged(mapped)
        tag, kind, shape, content = _value(mapped, offset, offset + size)
        if tag != last and (tag in pieces or tag in left_out):
            raise WeightError(f"{path}: {tag[:200]!r} is there twice", hint=DAMAGED)
        last = tag
        if kind is None or kind not in _TYPES:
            left_out[tag] = f"{tag} ({'a hash table' if kind is None else kind[:50]})"
            continue
        if described.setdefault(tag, (kind, shape)) != (kind, shape):
            raise WeightError(f"{path}: the pieces of {tag[:200]!r} are not of one tensor", hint=DAMAGED)
        pieces.setdefault(tag, []).append(content)
    if not pieces:
        raise WeightError(f"{path} holds no tensors", hint="save it with mindspore.save_checkpoint(net, path)")
    tensors = {}
    for tag, parts in pieces.items():
        kind, shape = described[tag]
        tensors[tag] = _tensor(mapped, tag, _TYPES[kind], shape, parts)
    state = StateDict("", frozen(tensors), tuple(left_out.values()))
    return Contents(path, MINDSPORE.name, "mindspore", (state,))


def _checked_end(mapped: Mapped) -> int:
    """Where the messages end: at the checksum, if there is one, which must be right."""
    if mapped.size < _CRC_SIZE or mapped.bytes(mapped.size - _CRC_SIZE, len(_CRC)) != _CRC:
        return mapped.size
    end = mapped.size - _CRC_SIZE
    wanted = int.from_bytes(mapped.bytes(mapped.size - 10, 10), "big")
    found = 0
    for begin in range(0, end, 1 << 20):
        found = zlib.crc32(mapped.data[begin : min(begin + (1 << 20), end)], found)
    if found != wanted:
        raise WeightError(f"{mapped.where}: its checksum is wrong", hint=DAMAGED)
    return end


def _value(mapped: Mapped, begin: int, end: int) -> tuple[str, str | None, tuple[int, ...], tuple[int, int]]:
    """Tag, type, shape and content of one value; type None for what is no tensor."""
    tag: str | None = None
    kind: str | None = None
    dims: list[int] = []
    content = (begin, 0)
    for number, wire, offset, size in _fields(mapped, begin, end):
        if (number, wire) == (1, 2):
            tag = _name(mapped, offset, size)
        elif (number, wire) == (2, 2):
            for inner, inner_wire, inner_offset, inner_size in _fields(mapped, offset, offset + size):
                if (inner, inner_wire) == (1, 0):
                    dims.append(inner_offset)
                elif (inner, inner_wire) == (1, 2):  # packed
                    at = inner_offset
                    while at < inner_offset + inner_size:
                        number_found, at = _varint(mapped, at, inner_offset + inner_size)
                        dims.append(number_found)
                elif (inner, inner_wire) == (2, 2):
                    kind = _name(mapped, inner_offset, inner_size)
                elif (inner, inner_wire) == (3, 2):
                    content = (inner_offset, inner_size)
    if tag is None:
        raise _damaged(mapped)
    if kind not in _TYPES:
        return tag, kind, (), content
    return tag, kind, checked_shape(dims, mapped.where), content


def _tensor(
    mapped: Mapped, tag: str, dtype: str, shape: tuple[int, ...], parts: Sequence[tuple[int, int]]
) -> StoredTensor:
    itemsize = dtype_of(dtype).itemsize
    total = sum(size for _, size in parts)
    if shape == (0,) and total == itemsize:
        shape = ()  # as mindspore reads it
    if total != math.prod(shape) * itemsize or any(size % itemsize for _, size in parts):
        raise WeightError(
            f"{mapped.where}: {tag[:200]!r} has {total} bytes, and shape {list(shape)} of {dtype}", hint=DAMAGED
        )
    if len(parts) == 1:
        return StoredTensor.view(mapped, parts[0][0], dtype, shape, end=sum(parts[0]))
    views = [StoredTensor.view(mapped, offset, dtype, (size // itemsize,), end=offset + size) for offset, size in parts]
    return joined([view.read for view in views], shape, dtype, mapped.where)


def _name(mapped: Mapped, offset: int, size: int) -> str:
    if size > _TAG_LIMIT:
        raise _damaged(mapped)
    try:
        return mapped.bytes(offset, size).decode("utf-8")
    except UnicodeError as error:
        raise _damaged(mapped) from error


def _fields(mapped: Mapped, begin: int, end: int) -> Iterator[_Field]:
    """The fields of one message: number, wire type, and the number itself or where its bytes lie."""
    at = begin
    while at < end:
        key, at = _varint(mapped, at, end)
        number, wire = key >> 3, key & 7
        if number == 0 or number > 1 << 29:
            raise _damaged(mapped)
        if wire == 0:
            value, at = _varint(mapped, at, end)
            yield number, wire, value, 0
            continue
        if wire == 2:
            size, at = _varint(mapped, at, end)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _damaged(mapped)
        if at + size > end:
            raise _damaged(mapped)
        yield number, wire, at, size
        at += size


def _varint(mapped: Mapped, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise _damaged(mapped)
        byte = mapped.data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _damaged(mapped)


def _damaged(mapped: Mapped) -> WeightError:
    return WeightError(f"{mapped.where} is not a whole mindspore checkpoint", hint=DAMAGED)


# -- writing -----------------------------------------------------------------------------------------------------------


def _write(
    file: BinaryIO, _specs: Sequence[Spec], tensors: Iterable[tuple[Spec, Pieces]], _framework: str | None
) -> None:
    for spec, pieces in tensors:
        if spec.nbytes == 0:
            file.write(_head(spec, 0))
        _pour(file, spec, pieces)


def _pour(file: BinaryIO, spec: Spec, pieces: Pieces) -> None:
    """Write a tensor's bytes in chunks. On its own, so that the last piece does not outlive it."""
    left = spec.nbytes
    room = 0
    for piece in pieces:
        flat = memoryview(piece.data).cast("B")
        while len(flat):
            if room == 0:
                room = min(left, _CHUNK)
                file.write(_head(spec, room))
            taken = min(room, len(flat))
            file.write(flat[:taken])
            flat = flat[taken:]
            room -= taken
            left -= taken


def _head(spec: Spec, size: int) -> bytes:
    """Everything of a value up to its bytes. Chunks are a multiple of every item's size."""
    dims = b"".join(b"\x08" + _number(n) for n in spec.shape)
    tensor = dims + _field(2, _WRITTEN[spec.dtype].encode()) + b"\x1a" + _number(size)
    tag = _field(1, spec.names[0].encode())
    value = tag + b"\x12" + _number(len(tensor) + size) + tensor
    return b"\x0a" + _number(len(value) + size) + value


def _field(number: int, content: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(content)) + content


def _number(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _cannot_hold(spec: Spec) -> str | None:
    return "mindspore reads the shape [0] as a scalar" if spec.shape == (0,) else None


MINDSPORE = FileFormat(
    "mindspore checkpoint", "mindspore", (".ckpt",), frozenset(_WRITTEN), _read, _write, _cannot_hold
)
