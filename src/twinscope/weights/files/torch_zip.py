"""torch's checkpoint files: a zip archive with a pickle that describes tensors, and their storages uncompressed.

    name/data.pkl     the pickle; tensors refer to storages by key
    name/byteorder    "little" or "big"
    name/data/<key>   one storage each, aligned to 64 bytes

Tensors are views of the mapped storages. Older files (no zip), TorchScript archives and whole pickled models are
refused.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...adapters.base import Array
from ...errors import WeightError
from .base import DAMAGED, Contents, FileFormat, Mapped, Pieces, Spec, StateDict, StoredTensor
from .nested import state_dicts
from .pickled import Call, Global, Persistent, read_pickle

_RESAVE = "save it again with torch.save(model.state_dict(), path)"
_ALIGNMENT = 64  # of torch's own files: its storages can be mapped
_ENTRIES_LIMIT = 1 << 20
_PICKLE_LIMIT = 1 << 28  # bytes

_STORAGES: Mapping[str, str] = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_TYPED = {dtype: name for name, dtype in _STORAGES.items()}

#: dtypes that have no storage class of their own: the tensor says which, over untyped bytes.
_UNTYPED = frozenset(
    ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
)
_DTYPE_NAMES = {
    **{name: name for name in (*_TYPED, *_UNTYPED)},
    **{"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32"},
}
_TENSORS = frozenset(["_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"])
_PARAMETERS = frozenset(["_rebuild_parameter", "_rebuild_parameter_with_state"])

#: Beside tensors. None of it is ever built: it is left out.
_HARMLESS = frozenset(
    [
        *(("collections", name) for name in ("OrderedDict", "defaultdict", "Counter", "deque")),
        *(("torch", name) for name in ("Size", "device", "Tensor", "strided", "contiguous_format")),
        *(("torch.nn.parameter", name) for name in ("Parameter", "Buffer")),
        *((base, name) for base in ("builtins", "__builtin__") for name in ("set", "list", "dict", "int", "bytes")),
        *(("numpy", name) for name in ("dtype", "ndarray")),
        *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
        ("_codecs", "encode"),
        ("argparse", "Namespace"),
        *(("pathlib", name) for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")),
        *(("pathlib._local", name) for name in ("Path", "PosixPath", "WindowsPath")),
        ("datetime", "datetime"),
        ("datetime", "timedelta"),
    ]
)


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    offset: int
    size: int
    plain: bool = True  # neither compressed nor encrypted


def is_zip(start: bytes) -> bool:
    """Whether a file that begins so is an archive."""
    return start[:4] == b"PK\x03\x04"


def refuse_legacy(path: Path) -> WeightError:
    """What is said of torch's files of before 1.6, and of `torch.save(..., _use_new_zipfile_serialization=False)`."""
    return WeightError(
        f"{path} is in torch's old format, which is not read here",
        hint="load it with torch.load(path, weights_only=True) and " + _RESAVE,
    )


def _read(mapped: Mapped, path: Path) -> Contents:
    entries = _directory(mapped)
    pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if any("/code/" in f"/{name}" or name.rsplit("/", 1)[-1] == "constants.pkl" for name in entries):
        raise WeightError(
            f"{path} is a TorchScript archive, not a state dict",
            hint="load it with torch.jit.load(path) and " + _RESAVE,
        )
    for name, entry in entries.items():
        if not entry.plain:
            raise WeightError(
                f"{path}: {name[:200]!r} is compressed or encrypted", hint="torch does neither: " + _RESAVE
            )
    if len(pickles) != 1:
        raise WeightError(f"{path} is a zip archive without torch's data.pkl", hint=_RESAVE)
    prefix = pickles[0][: -len("data.pkl")]
    order = entries.get(prefix + "byteorder")
    if order is not None and mapped.bytes(order.offset, min(order.size, 16)).strip() != b"little":
        raise WeightError(f"{path} was written on a big-endian machine", hint="save it again on this one")
    main = entries[pickles[0]]
    if main.size > _PICKLE_LIMIT:
        raise WeightError(f"{path}: its pickle has {main.size} bytes", hint=_RESAVE)
    found, _ = read_pickle(mapped, main.offset, main.offset + main.size, _allow(path))
    reader = _Tensors(mapped, prefix, entries)
    states, left_out = state_dicts(found, reader.of, str(path))
    return Contents(path, TORCH.name, "torch", states, left_out)


def _allow(path: Path) -> Any:
    def allow(module: str, name: str) -> None:
        known = (
            (module == "torch._utils" and name in (*_TENSORS, *_PARAMETERS))
            or (module == "torch._tensor" and name == "_rebuild_from_type_v2")
            or (module == "torch" and (name in _STORAGES or name in _DTYPE_NAMES))
            or (module == "torch.storage" and name in ("UntypedStorage", "TypedStorage"))
            or (module, name) in _HARMLESS
        )
        if not known:
            shown = f"{module}.{name}"[:200]
            if module == "torch._utils" and name.startswith("_rebuild_"):
                raise WeightError(
                    f"{path} holds a tensor of a kind that is not read here ({shown!r})",
                    hint="save dense tensors: tensor.dequantize(), tensor.to_dense()",
                )
            raise WeightError(
                f"{path} needs {shown!r} to be loaded; nothing was run",
                hint="if you trust whoever wrote it, load it with torch.load(path, weights_only=False) and " + _RESAVE,
            )

    return allow


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Makes tensors of what the pickle says of them."""

    mapped: Mapped
    prefix: str
    entries: Mapping[str, _Entry]

    def of(self, value: Any) -> StoredTensor | None:
        """The tensor that a value of the pickle stands for; None for anything else."""
        for _ in range(4):  # a parameter of a subclass of a tensor is three deep
            if not isinstance(value, Call):
                return None
            args = value.args
            if value.function.module == "torch._utils" and value.function.name in _TENSORS:
                return self._tensor(value.function.name, args)
            if value.function.module == "torch._utils" and value.function.name in _PARAMETERS and args:
                value = args[0]
            elif value.function.name == "_rebuild_from_type_v2" and len(args) >= 3 and isinstance(args[0], Global):
                if type(args[2]) is not tuple:
                    raise self._damaged()
                value = Call(args[0], args[2])
            else:
                return None
        return None

    def _tensor(self, function: str, args: tuple[Any, ...]) -> StoredTensor:
        if len(args) < 4 or not isinstance(args[0], Persistent) or type(args[0].key) is not tuple:
            raise self._damaged()
        key = args[0].key
        if len(key) != 5 or key[0] != "storage" or not isinstance(key[1], Global) or type(key[2]) is not str:
            raise self._damaged()
        dtype = _STORAGES.get(key[1].name, "uint8")
        if function == "_rebuild_tensor_v3":
            if len(args) < 7 or not isinstance(args[6], Global) or args[6].name not in _DTYPE_NAMES:
                raise self._damaged()
            dtype = _DTYPE_NAMES[args[6].name]
        metadata = args[7] if function == "_rebuild_tensor_v3" and len(args) > 7 else None
        if function == "_rebuild_tensor_v2" and len(args) > 6:
            metadata = args[6]
        entry = self.entries.get(f"{self.prefix}data/{key[2]}")
        offset, size, stride = args[1:4]
        if isinstance(size, Call) and size.function.name == "Size" and len(size.args) == 1:
            (size,) = size.args
        if entry is None or type(offset) is not int or type(size) is not tuple or type(stride) is not tuple:
            raise self._damaged()
        if not 0 <= offset <= entry.size:
            raise self._damaged()
        itemsize = _itemsize(dtype)
        tensor = StoredTensor.view(
            self.mapped,
            entry.offset + offset * itemsize,
            dtype,
            size,
            end=entry.offset + entry.size,
            strides=stride,
        )
        if isinstance(metadata, dict) and (metadata.get("conj") or metadata.get("neg")):
            tensor = replace(tensor, read=_lazily(tensor, bool(metadata.get("conj")), bool(metadata.get("neg"))))
        return tensor

    def _damaged(self) -> WeightError:
        return WeightError(f"{self.mapped.where}: it describes a tensor that it does not hold", hint=DAMAGED)


def _lazily(tensor: StoredTensor, conjugate: bool, negative: bool) -> Any:
    """torch keeps the conjugate of a tensor as a mark on it."""

    def read() -> Array:
        found = tensor.read()
        found = np.conj(found) if conjugate else found
        return -found if negative else found

    return read


def _itemsize(dtype: str) -> int:
    return Spec((), (1,), dtype).nbytes


def _directory(mapped: Mapped) -> dict[str, _Entry]:
    """The archive's entries by name, each where its bytes are. By hand: zipfile believes what it reads."""
    damaged = WeightError(f"{mapped.where} is not a whole zip archive", hint=DAMAGED)
    size = mapped.size
    at = mapped.data.rfind(b"PK\x05\x06", max(0, size - 65557))
    if at < 0 or at + 22 > size:
        raise damaged
    count, length, start = struct.unpack("<HII", mapped.bytes(at + 10, 10))
    if count == 0xFFFF or 0xFFFFFFFF in (length, start):
        if at < 20 or mapped.bytes(at - 20, 4) != b"PK\x06\x07":
            raise damaged
        (wide,) = struct.unpack("<Q", mapped.bytes(at - 12, 8))
        if mapped.bytes(wide, 4) != b"PK\x06\x06":
            raise damaged
        count, length, start = struct.unpack("<QQQ", mapped.bytes(wide + 32, 24))
    if count > _ENTRIES_LIMIT or start + length > size:
        raise damaged
    found: dict[str, _Entry] = {}
    place = start
    for _ in range(count):
        head = mapped.bytes(place, 46)
        flags, method = struct.unpack("<HH", head[8:12])
        packed, unpacked, name_size, extra_size, comment_size = struct.unpack("<IIHHH", head[20:34])
        (offset,) = struct.unpack("<I", head[42:46])
        name_bytes = mapped.bytes(place + 46, name_size)
        extra = mapped.bytes(place + 46 + name_size, extra_size)
        if head[:4] != b"PK\x01\x02":
            raise damaged
        name = name_bytes.decode("utf-8", "replace")
        packed, unpacked, offset = _wide(extra, packed, unpacked, offset, damaged)
        local = mapped.bytes(offset, 30)
        if local[:4] != b"PK\x03\x04":
            raise damaged
        begin = offset + 30 + sum(struct.unpack("<HH", local[26:30]))
        if begin + packed > size:
            raise damaged
        if name in found:
            raise WeightError(f"{mapped.where}: {name[:200]!r} is there twice", hint=DAMAGED)
        found[name] = _Entry(begin, packed, method == 0 and not flags & 1 and packed == unpacked)
        place += 46 + name_size + extra_size + comment_size
    return found


def _wide(extra: bytes, packed: int, unpacked: int, offset: int, damaged: WeightError) -> tuple[int, int, int]:
    """Sizes and offset, taken from the zip64 field where they do not fit 32 bits."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack("<HH", extra[at : at + 4])
        field = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if kind != 1:
            continue
        values = list(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
        try:
            unpacked = values.pop(0) if unpacked == 0xFFFFFFFF else unpacked
            packed = values.pop(0) if packed == 0xFFFFFFFF else packed
            offset = values.pop(0) if offset == 0xFFFFFFFF else offset
        except IndexError:
            raise damaged from None
    return packed, unpacked, offset


# -- writing -----------------------------------------------------------------------------------------------------------


def _write(
    file: BinaryIO, specs: Sequence[Spec], tensors: Iterable[tuple[Spec, Pieces]], _framework: str | None
) -> None:
    keys: dict[tuple[str, ...], int] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        _add(archive, "archive/byteorder", [b"little"], 6)
        for spec, pieces in tensors:
            key = keys[spec.names] = len(keys)
            _add(archive, f"archive/data/{key}", (piece.data for piece in pieces), spec.nbytes)
        pickle = _pickle([(spec, keys[spec.names]) for spec in specs if spec.names in keys])
        _add(archive, "archive/data.pkl", [pickle], len(pickle))
        _add(archive, "archive/version", [b"3\n"], 2)


def _add(archive: zipfile.ZipFile, name: str, pieces: Iterable[bytes | memoryview], size: int) -> None:
    info = zipfile.ZipInfo(name)
    info.file_size = size
    wide = size * 1.05 > zipfile.ZIP64_LIMIT
    assert archive.fp is not None
    begin = archive.fp.tell() + 30 + len(name.encode()) + (20 if wide else 0) + 4
    padding = -begin % _ALIGNMENT
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    with archive.open(info, "w", force_zip64=wide) as entry:
        for piece in pieces:
            entry.write(piece)


def _pickle(tensors: Sequence[tuple[Spec, int]]) -> bytes:
    """An OrderedDict of tensors in protocol 2, as torch writes it."""
    out = io.BytesIO()
    out.write(b"\x80\x02ccollections\nOrderedDict\n)R")
    for spec, key in tensors:
        for name in spec.names:
            out.write(_text(name))
            out.write(_tensor(spec, key))
            out.write(b"s")
    out.write(b".")
    return out.getvalue()


def _tensor(spec: Spec, key: int) -> bytes:
    typed = spec.dtype in _TYPED
    count = math.prod(spec.shape) if typed else spec.nbytes
    storage = f"ctorch\n{_TYPED[spec.dtype]}\n".encode() if typed else b"ctorch.storage\nUntypedStorage\n"
    strides = []
    step = 1
    for n in reversed(spec.shape):
        strides.append(step)
        step *= max(n, 1)
    return b"".join(
        [
            b"ctorch._utils\n_rebuild_tensor_v2\n((" if typed else b"ctorch._utils\n_rebuild_tensor_v3\n((",
            *(_text("storage"), storage, _text(str(key)), _text("cpu"), _number(count), b"tQ"),
            *(_number(0), _numbers(spec.shape), _numbers(strides[::-1])),
            b"\x89ccollections\nOrderedDict\n)R",
            b"" if typed else f"ctorch\n{spec.dtype}\n".encode(),
            b"tR",
        ]
    )


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _number(value: int) -> bytes:
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def _numbers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_number, values)) + b"t"


TORCH = FileFormat("torch zip", "torch", (".pth", ".pt", ".bin"), frozenset([*_TYPED, *_UNTYPED]), _read, _write)

__all__ = ["TORCH", "StateDict", "is_zip", "refuse_legacy"]
