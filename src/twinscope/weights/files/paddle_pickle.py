"""paddle's checkpoint files: a pickled dict of numpy arrays.

What paddle adds to it: bfloat16 is kept as uint16 (it has no uint16 of its own), a table from structured to parameter
names lies beside the arrays, protocols 2 and 3 cut arrays of more than 1 GiB into slices, and in nested dicts an array
comes in a tuple with the parameter's name.

The pickle is followed by hand (`pickled`), so that nothing in it can run; arrays are views of the mapped file, except
in protocol 2, which writes bytes as text. Real pickle is used when the user asks for it by name.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...adapters.base import Array
from ...errors import WeightError
from ..transforms import dtype_of
from .base import DAMAGED, Contents, FileFormat, Mapped, Pieces, Spec, StoredTensor, checked_shape, joined
from .nested import state_dicts
from .pickled import Call, Global, Payload, latin1, read_pickle

_SLICES = "UnpackBigParamInfor@@"
_NAMES = "StructuredToParameterName@@"

_RECONSTRUCT = frozenset([("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")])
_FROM_BUFFER = frozenset([("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer")])
_BYTES = frozenset([("builtins", "bytes"), ("__builtin__", "bytes")])
_TUPLE = frozenset([("builtins", "tuple"), ("__builtin__", "tuple")])
_FLOATS = frozenset(["bfloat16", "float8_e4m3fn", "float8_e5m2"])
_ALLOWED = frozenset(
    [
        *(*_RECONSTRUCT, *_FROM_BUFFER, *_BYTES, *_TUPLE),
        *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"), ("collections", "OrderedDict")),
        *(("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar")),
        *(("ml_dtypes", name) for name in _FLOATS),
    ]
)

#: numpy's codes of what paddle writes, and what they mean in its files.
_CODES: Mapping[str, str] = {
    **{"b1": "bool", "i1": "int8", "u1": "uint8", "i2": "int16", "u2": "bfloat16", "i4": "int32", "u4": "uint32"},
    **{"i8": "int64", "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64"},
    "c16": "complex128",
}
_WRITTEN = {dtype: code for code, dtype in _CODES.items() if dtype not in ("uint32", "uint64")}  # paddle has neither


def is_pickle(start: bytes) -> bool:
    """Whether a file that begins so is a pickle of protocol 2 to 5."""
    return len(start) > 2 and start[0] == 0x80 and 2 <= start[1] <= 5


def read_with_pickle(mapped: Mapped, path: Path) -> Contents:
    """The same by Python's own pickle, which runs what the file says: only for files of people one trusts."""
    import pickle  # here alone: nothing else in the package may unpickle

    try:
        with path.open("rb") as file:
            top = pickle.load(file, encoding="latin1")
    except Exception as error:  # the file runs whatever it likes
        raise WeightError(
            f"{path} cannot be unpickled: {type(error).__name__}: {error}", hint="load it with paddle.load"
        ) from error
    return _contents(mapped, path, top, _live)


def _live(value: Any) -> StoredTensor | None:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        value = value[1]
    if isinstance(value, StoredTensor):
        return value
    if not isinstance(value, np.ndarray):
        return None
    array = value.view(dtype_of("bfloat16")) if value.dtype == np.uint16 else value
    return StoredTensor(array.shape, str(array.dtype.name), lambda: array)


def _read(mapped: Mapped, path: Path) -> Contents:
    def allow(module: str, name: str) -> None:
        if (module, name) not in _ALLOWED:
            shown = f"{module}.{name}"[:200]
            raise WeightError(
                f"{path} needs {shown!r} to be loaded; nothing was run",
                hint="if you trust whoever wrote it, pass allow_pickle=True; or save again with "
                "paddle.save(model.state_dict(), path)",
            )

    top, _ = read_pickle(mapped, 0, mapped.size, allow)
    return _contents(mapped, path, top, lambda value: _tensor(mapped, value))


def _contents(mapped: Mapped, path: Path, top: Any, tensor_of: Callable[[Any], StoredTensor | None]) -> Contents:
    if isinstance(top, dict):
        top = dict(top)
        top.pop(_NAMES, None)
        if _SLICES in top:
            _join_slices(mapped, top, tensor_of)
    states, left_out = state_dicts(top, tensor_of, str(path))
    return Contents(path, PADDLE.name, "paddle", states, left_out)


def _join_slices(mapped: Mapped, top: dict[Any, Any], tensor_of: Callable[[Any], StoredTensor | None]) -> None:
    damaged = WeightError(f"{mapped.where}: its table of sliced tensors is damaged", hint=DAMAGED)
    table = top.pop(_SLICES)
    if type(table) is not dict:
        raise damaged
    for name, entry in table.items():
        if type(entry) is not dict or type(entry.get("slices")) is not list:
            raise damaged
        shape = checked_shape(entry.get("OriginShape"), mapped.where)
        if not all(type(part) is str for part in entry["slices"]):
            raise damaged
        parts = [tensor_of(top.pop(part, None)) for part in entry["slices"]]
        dtypes = {part.dtype for part in parts if part is not None}
        if None in parts or len(dtypes) != 1 or name in top:
            raise damaged
        if sum(math.prod(part.shape) for part in parts if part is not None) != math.prod(shape):
            raise damaged
        top[name] = joined([part.read for part in parts if part is not None], shape, dtypes.pop(), mapped.where)


def _tensor(mapped: Mapped, value: Any) -> StoredTensor | None:
    """The array that a value of the pickle stands for; None for anything else."""
    if isinstance(value, Call) and _key(value) in _TUPLE and len(value.args) == 1:
        (value,) = value.args
    if type(value) is tuple and len(value) == 2 and type(value[0]) is str:
        value = value[1]
    if isinstance(value, StoredTensor):
        return value
    if not isinstance(value, Call):
        return None
    if _key(value) in _RECONSTRUCT:
        state = value.state
        if type(state) is not tuple or len(state) != 5:
            raise _damaged(mapped)
        _, shape, dtype, fortran, data = state
        return _array(mapped, data, dtype, shape, bool(fortran))
    if _key(value) in _FROM_BUFFER:
        if len(value.args) != 4 or value.args[3] not in ("C", "F"):
            raise _damaged(mapped)
        data, dtype, shape, order = value.args
        return _array(mapped, data, dtype, shape, order == "F")
    return None


def _array(mapped: Mapped, data: Any, dtype_call: Any, shape: Any, fortran: bool) -> StoredTensor:
    dtype = _dtype(mapped, dtype_call)
    extents = checked_shape(shape, mapped.where)
    count = math.prod(extents) * dtype_of(dtype).itemsize
    if isinstance(data, Call) and _key(data) in _BYTES and not data.args:
        data = b""
    elif isinstance(data, Call) and _key(data) == ("_codecs", "encode") and data.args:
        data = data.args[0]  # bytes that protocol 2 wrote as a string of their codes
    if isinstance(data, str):
        try:
            data = data.encode("latin1")
        except UnicodeError as error:
            raise _damaged(mapped) from error
    if isinstance(data, Payload):
        if not data.text:
            if data.size != count:
                raise _damaged(mapped)
            return StoredTensor.view(mapped, data.offset, dtype, extents, end=data.offset + data.size, fortran=fortran)
        text = data
        if not text.size // 2 <= count <= text.size:
            raise _damaged(mapped)

        def decoded() -> Array:
            return _laid_out(latin1(mapped, text, count), dtype, extents, fortran)

        return StoredTensor(extents, dtype, decoded, ("text", text.offset, extents, dtype, fortran))
    if not isinstance(data, bytes) or len(data) != count:
        raise _damaged(mapped)
    small = _laid_out(np.frombuffer(data, np.uint8), dtype, extents, fortran)
    return StoredTensor(extents, dtype, lambda: small)


def _laid_out(flat: Array, dtype: str, shape: tuple[int, ...], fortran: bool) -> Array:
    return flat.view(dtype_of(dtype)).reshape(shape, order="F" if fortran else "C")


def _dtype(mapped: Mapped, value: Any) -> str:
    if not isinstance(value, Call) or _key(value) != ("numpy", "dtype") or not value.args:
        raise _damaged(mapped)
    state = value.state
    if type(state) is tuple and len(state) > 1 and state[1] == ">":
        raise WeightError(f"{mapped.where} was written on a big-endian machine", hint="save it again on this one")
    code = value.args[0]
    if isinstance(code, Global) and code.module == "ml_dtypes" and code.name in _FLOATS:
        return code.name
    if not isinstance(code, str) or code.lstrip("<|=") not in _CODES:
        shown = code[:20] if isinstance(code, str) else type(code).__name__
        raise WeightError(
            f"{mapped.where} holds an array of numpy's type {shown!r}", hint="numbers and booleans can be read"
        )
    return _CODES[code.lstrip("<|=")]


def _key(call: Call) -> tuple[str, str]:
    return call.function.module, call.function.name


def _damaged(mapped: Mapped) -> WeightError:
    return WeightError(f"{mapped.where}: it describes an array that it does not hold", hint=DAMAGED)


# -- writing -----------------------------------------------------------------------------------------------------------


def _write(
    file: BinaryIO, _specs: Sequence[Spec], tensors: Iterable[tuple[Spec, Pieces]], _framework: str | None
) -> None:
    """One dict in protocol 4. Each array is remembered under a number, so that its further names cost nothing."""
    file.write(b"\x80\x04}")
    for number, (spec, pieces) in enumerate(tensors):
        first, *further = spec.names
        file.write(_text(first) + _head(spec))
        file.writelines(piece.data for piece in pieces)  # a loop's variable would keep the array until the next one
        file.write(b"tb" + b"r" + struct.pack("<I", number) + b"s")
        for name in further:
            file.write(_text(name) + b"j" + struct.pack("<I", number) + b"s")
    file.write(b".")


def _head(spec: Spec) -> bytes:
    """Everything of an array up to its bytes: `_reconstruct(ndarray, (0,), b"b")` and the state it is then given."""
    shape = b"(" + b"".join(b"\x8a\x09" + n.to_bytes(9, "little", signed=True) for n in spec.shape) + b"t"
    byte_order = "|" if dtype_of(spec.dtype).itemsize == 1 else "<"
    return b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\n",
            b"cnumpy\nndarray\nK\x00\x85C\x01b\x87R",
            b"(K\x01",
            shape,
            b"cnumpy\ndtype\n" + _text(_WRITTEN[spec.dtype]) + b"\x89\x88\x87R",
            b"(K\x03" + _text(byte_order) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89",
            b"\x8e" + struct.pack("<Q", spec.nbytes),
        ]
    )


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


PADDLE = FileFormat("paddle pickle", "paddle", (".pdparams",), frozenset(_WRITTEN), _read, _write)
