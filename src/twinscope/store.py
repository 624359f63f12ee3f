"""The trace directory: write it, read it, verify it.

    manifest.json              what the trace says of itself; replaced as a whole, never half written
    records.jsonl              one record per line, appended as the run goes on
    tensors-00000.safetensors  full tensors, packed, in shards of bounded size; or, with format="npy",
    tensors/<name>.npy         one file each

A line of records.jsonl has the fields of `records.Record` under their own names; those at their default are left out. A
slot's `stats` are [min, max, mean, std, l2, nan, inf, fingerprint]: floats that are not finite are the strings "nan",
"inf" and "-inf", the fingerprint is hexadecimal. The first kept slot of a value has `data`: the file that holds the
tensor, the offset from that file's start, the number of bytes, dtype, shape and checksum. Elements are little-endian
and in C order. Inside `args`, a float that is not finite is {"$float": "inf"}, and one more "$" is put before a key
that begins with one.

A shard is a safetensors file. Its header comes first but is known last, so room is reserved, padded with spaces, and
filled when the shard is sealed; until then the lines of records.jsonl are enough to read it. What safetensors or npy
cannot name (see `_DTYPES`) is described there as integers of the same width, complex numbers as pairs of floats; the
true dtype is in `data`.

The checksum is the CRC-32 of the sums of each 4096 bytes, read as 64-bit integers, followed by the bytes that are left.
The sums cost a quarter of what the CRC of all bytes does. They find single flipped bits and lost, zeroed or misplaced
pages; they miss words swapped within one row, and two flips in one row that cancel out, which disks do not do. They do
not withstand an adversary.

Nothing is synchronised to the disk: what was flushed survives the death of the process, not of the machine (where the
checksums tell). A directory that is read is not trusted: names are checked, no link is followed, only regular files are
opened, sizes are compared with the file's before memory is taken for them, and nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from .errors import OptionError, TraceError, TraceFormatError, TraceWriteError
from .records import (
    SCHEMA_VERSION,
    Kind,
    Manifest,
    ModuleInfo,
    ParamInfo,
    Phase,
    Record,
    Slot,
    Source,
    Stats,
    TensorMeta,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Array = npt.NDArray[Any]

_MANIFEST = "manifest.json"
_RECORDS = "records.jsonl"
_TENSORS = "tensors"
_MARK = "twinscope-trace"  # the manifest's "format": what tells a trace from somebody else's manifest.json
_FORMATS = ("safetensors", "npy")

_LINE_LIMIT = 16 << 20  # bytes; JSON can take thirty times its length in memory
_MANIFEST_LIMIT = 64 << 20
_INT_LIMIT = 1 << 63
_DIMS_LIMIT = 64  # numpy 2 has no more
_DEPTH_LIMIT = 64  # of args, when they are written
_BIG_INT_BITS = 4096  # Python refuses to read integers of more than 4300 digits

_HEADER_ROOM = 1 << 18  # of a shard, its length field included: 3000 tensors; a multiple of the page size
#: How many of the last tensors written may still be named by `TraceWriter.alias`.
_ALIASED = 4096
_ROW = 4096  # bytes that are summed up before the CRC
_CHUNK = 1 << 20  # bytes; a multiple of _ROW
_COPY_LIMIT = 4 << 20  # a tensor that is not contiguous is copied at once up to here, and piece by piece beyond
_LINES_BUFFER = 1 << 16

_O_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_O_READ = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _O_READ |= getattr(os, _flag, 0)

_SHARD_NAME = re.compile(r"tensors-[0-9]{5,9}\.safetensors")
_NPY_NAME = re.compile(r"tensors/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,150}\.npy")
_DEVICES = frozenset(["CON", "PRN", "AUX", "NUL", *(f"{port}{n}" for port in ("COM", "LPT") for n in range(1, 10))])

#: dtype: bytes per element, safetensors' name, npy's name. complex: see `_Shard.add`.
_DTYPES: Mapping[str, tuple[int, str, str]] = {
    "bool": (1, "BOOL", "|b1"),
    "int8": (1, "I8", "|i1"),
    "uint8": (1, "U8", "|u1"),
    "int16": (2, "I16", "<i2"),
    "uint16": (2, "U16", "<u2"),
    "float16": (2, "F16", "<f2"),
    "bfloat16": (2, "BF16", "<u2"),
    "int32": (4, "I32", "<i4"),
    "uint32": (4, "U32", "<u4"),
    "float32": (4, "F32", "<f4"),
    "int64": (8, "I64", "<i8"),
    "uint64": (8, "U64", "<u8"),
    "float64": (8, "F64", "<f8"),
    "complex64": (8, "F32", "<c8"),
    "complex128": (16, "F64", "<c16"),
    "float8_e4m3fn": (1, "F8_E4M3", "|u1"),
    "float8_e5m2": (1, "F8_E5M2", "|u1"),
    **{
        name: (1, "U8", "|u1")
        for name in (
            *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz"),
            *("float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int2", "uint2", "int4", "uint4"),
        )
    },
}
_ML_DTYPES = frozenset(  # not asked of numpy, which knows these names once ml_dtypes is imported
    name for name, (_, _, own) in _DTYPES.items() if name != np.dtype(own).name
)

_RECORD_KEYS = frozenset(item.name for item in fields(Record))
_SLOT_KEYS = frozenset(["name", "shape", "dtype", "device", "value", "stats", "kept", "param", "data"])
_PLACE_KEYS = frozenset(["file", "offset", "nbytes", "dtype", "shape", "checksum"])
_KINDS = {kind.value: kind for kind in Kind}
_PHASES = {phase.value: phase for phase in Phase}
_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_NO_ARGS: Mapping[str, Any] = MappingProxyType({})


class Writer(Protocol):
    """What a recorder writes to: `TraceWriter` on disk, `MemoryWriter` in memory. For one thread."""

    def __contains__(self, value: object) -> bool: ...
    def tensor(self, value: int, array: Any, *, name: str | None = None) -> None: ...
    def alias(self, value: int, of: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool: ...
    def record(self, record: Record) -> None: ...
    def flush(self) -> None: ...
    def close(self, manifest: Manifest | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies."""

    file: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    checksum: int
    strides: tuple[int, ...] = ()  # in elements, where they do not lie in the order of the axes


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trace:
    """The records of one run with a manifest; tensors are read when they are asked for.

    >>> writer = MemoryWriter(Manifest("torch", {}, "Net", (), {}))
    >>> writer.tensor(7, np.arange(3))
    >>> writer.record(Record(0, 0, Kind.OP, Phase.FORWARD, "", "torch.relu", 0, None, 0,
    ...     (Slot("out", TensorMeta((3,), "int64"), 7, kept=True),)))
    >>> trace = writer.trace()
    >>> len(trace), trace.steps, trace.tensor(trace.records[0].slots[0])
    (1, (0,), array([0, 1, 2]))
    >>> trace.tensor(8) is None
    True
    """

    manifest: Manifest
    records: Sequence[Record]
    path: Path | None = None
    _arrays: Mapping[int, Array] = field(default_factory=dict)
    _places: Mapping[int, _Place] = field(default_factory=dict)
    _files: Mapping[str, tuple[int, int]] | None = None  # name: bytes and CRC; None in a trace that was cut short

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else str(self.path)
        return f"<Trace of {self.manifest.model} ({self.manifest.framework}), {len(self.records)} records, {where}>"

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps that were recorded, ascending."""
        return tuple(sorted({record.step for record in self.records}))

    @property
    def kept(self) -> frozenset[int]:
        """The values whose full tensors the trace holds."""
        return frozenset(self._arrays) | frozenset(self._places)

    def tensor(self, slot: Slot | int) -> Array | None:
        """The full tensor of a slot or value, read-only and of its true dtype; None where it was not kept.

        Reads the file and checks the checksum each time: the caller holds on to what it needs.
        """
        value = slot.value if isinstance(slot, Slot) else slot
        array = self._arrays.get(value)
        if array is not None:
            return array
        place = self._places.get(value)
        if place is None or self.path is None:
            return None
        return _read_tensor(self.path, value, place)

    def with_arrays(self, arrays: Mapping[int, Array]) -> Trace:
        """The same trace with further tensors, by value, which slots of no record of its own may have."""
        return replace(self, _arrays={**self._arrays, **arrays})

    @classmethod
    def joined(cls, traces: Sequence[Trace], *, arrays_only: bool = False) -> Trace:
        """Traces in memory of one model's steps, whose numbers are all different, as one; with `arrays_only` the first,
        and the tensors of the others."""
        arrays = {value: array for trace in traces for value, array in trace._arrays.items()}
        return replace(
            traces[0], records=[r for t in traces[: 1 if arrays_only else None] for r in t.records], _arrays=arrays
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str] | Trace) -> Trace:
        """The trace in directory `path`; a trace is returned as it is.

        A trace whose writer died is read up to its last whole record.

        >>> Trace.open("no/such/place")
        Traceback (most recent call last):
        ...
        twinscope.errors.TraceError: no/such/place: there is no such directory
        Hint: a trace is a directory with a manifest.json, as twinscope.capture writes it
        """
        return path if isinstance(path, Trace) else _load(Path(path))

    def to_plain(self) -> dict[str, Any]:
        """Manifest and records as a trace's files have them, in JSON's types, without the tensors.

        What a program needs that keeps traces in a form of its own; `from_plain` reads it again.
        """
        manifest = _parse(_encode_manifest(replace(self.manifest, complete=False), "npy", None))
        return {"manifest": manifest, "records": [_parse(_encode_record(record, {})) for record in self.records]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], arrays: Mapping[int, Array]) -> Trace:
        """The trace that `to_plain` described, or that another program's files describe, with `arrays` by value.

        Statistics that a slot does not have are computed from its array.

        >>> writer = MemoryWriter(Manifest("torch", {}, "Net", (), {}))
        >>> writer.tensor(7, np.arange(3))
        >>> writer.record(Record(0, 0, Kind.OP, Phase.FORWARD, "", "torch.relu", 0, None, 0,
        ...     (Slot("out", TensorMeta((3,), "int64"), 7, kept=True),)))
        >>> again = Trace.from_plain(writer.trace().to_plain(), {7: np.arange(3)})
        >>> again.records[0].op, again.tensor(7), again.records[0].slots[0].stats.max
        ('relu', array([0, 1, 2]), 2.0)
        >>> Trace.from_plain({"manifest": {}, "records": []}, {})
        Traceback (most recent call last):
        ...
        twinscope.errors.TraceFormatError: not a trace: 'framework' is missing or not known
        Hint: docs/trace-format.md says what a manifest and records have
        """
        from .metrics import array_stats

        stats: dict[int, Stats] = {}
        kept: dict[int, Array] = {}
        records = []
        try:
            manifest, _ = _decode_manifest({**plain["manifest"], "complete": False, "files": None})
            metas: dict[tuple[tuple[int, ...], str, str], TensorMeta] = {}
            for raw in plain["records"]:
                bare = [{k: v for k, v in slot.items() if k not in ("kept", "data")} for slot in raw["slots"]]
                record = _decode_record({**raw, "slots": bare}, '"$' in _encode(raw.get("args", {})), metas, {})
                slots = []
                for slot in record.slots:
                    array = arrays.get(slot.value)
                    if array is not None:
                        if tuple(array.shape) != slot.meta.shape:
                            raise _Bad(f"value {slot.value} is {list(array.shape)}, not {list(slot.meta.shape)}")
                        kept[slot.value] = array
                        if slot.stats is None and slot.value not in stats:
                            stats[slot.value] = array_stats(array)
                        own = slot.stats or stats[slot.value]
                        slot = replace(slot, kept=True, stats=own)
                    slots.append(slot)
                records.append(replace(record, slots=tuple(slots)))
        except _DAMAGE as error:
            raise TraceFormatError(
                f"not a trace: {_why(error)}", hint="docs/trace-format.md says what a manifest and records have"
            ) from error
        return cls(replace(manifest, complete=True), tuple(records), None, kept)

    def verify(self) -> None:
        """Read everything once; raise TraceFormatError, naming file and value, where a checksum does not match."""
        if self.path is None:
            return
        for name, (size, crc) in (self._files or {}).items():
            _verify_file(self.path, name, size, crc)
        for value, place in self._places.items():
            _verify_tensor(self.path, value, place)


class MemoryWriter:
    """Keeps a trace in memory: the interface of `TraceWriter`, and `trace()`.

    >>> with MemoryWriter(Manifest("torch", {}, "Net", (), {})) as writer:
    ...     writer.tensor(1, np.ones(2))
    >>> writer.trace().tensor(1)
    array([1., 1.])
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._records: list[Record] = []
        self._arrays: dict[int, Array] = {}
        self._closed = False

    def __contains__(self, value: object) -> bool:
        return value in self._arrays

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close(None if error is None else replace(self._manifest, error=_describe(error)))

    def tensor(self, value: int, array: Any, *, name: str | None = None) -> None:
        """Keep a copy of `array` under `value`, once; `name` is for files."""
        array = np.asarray(array)
        _dtype_of(array)
        self._check(value)
        copy: Array = np.array(array, order="C", copy=True, subok=False)
        if not copy.dtype.isnative:
            copy = copy.astype(copy.dtype.newbyteorder("="))
        copy.flags.writeable = False
        self._arrays[value] = copy

    def alias(self, value: int, of: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        """Say that `value` is the tensor kept as `of`, in another arrangement: `strides` are in elements."""
        self._check(value)
        whole = self._arrays[of].reshape(-1)
        self._arrays[value] = _arranged(whole, shape, strides)
        return True

    def record(self, record: Record) -> None:
        """Append a record; the tensors of its kept slots must be here already."""
        self._check(None)
        _check_kept(record, self._arrays)
        if record.args:
            record = replace(record, args=_plain(record.args))
        self._records.append(record)

    def flush(self) -> None:
        """Nothing to do: nothing outlives the process."""

    def close(self, manifest: Manifest | None = None) -> None:
        """Take the final manifest; without one, the first one marked complete."""
        if not self._closed:
            self._manifest = replace(self._manifest, complete=True) if manifest is None else manifest
            self._closed = True

    def trace(self) -> Trace:
        """What has been written so far, as a reader sees it. Arrays are shared, not copied."""
        return Trace(self._manifest, tuple(self._records), None, dict(self._arrays))

    def _check(self, value: int | None) -> None:
        if self._closed:
            raise TraceWriteError("this trace is closed", hint="begin another one")
        if value is not None and value in self._arrays:
            raise _twice(value)


class _Shard:
    """A safetensors file that is being written."""

    def __init__(self, path: Path, room: int) -> None:
        self.path = path
        self.room = room
        self.fd = os.open(path, _O_CREATE, 0o666)
        self.position = room  # where the next tensor goes
        self._entries: list[str] = []
        self._header_bytes = 2
        try:
            _write(self.fd, self._header())
        except OSError:
            os.close(self.fd)
            raise

    def _header(self) -> bytes:
        text = ("{" + ",".join(self._entries) + "}").encode()
        return (self.room - 8).to_bytes(8, "little") + text + b" " * (self.room - 8 - len(text))

    def entry(self, value: int, dtype: str, shape: tuple[int, ...], nbytes: int) -> str:
        # Complex numbers as pairs: safetensors has had C64 since 0.6 only, and has no C128.
        if dtype.startswith("complex"):
            shape = (*shape, 2)
        begin = self.position - self.room
        extents = ",".join(map(str, shape))
        name = _DTYPES[dtype][1]
        return f'"{value}":{{"dtype":"{name}","shape":[{extents}],"data_offsets":[{begin},{begin + nbytes}]}}'

    def fits(self, entry: str) -> bool:
        return self._header_bytes + len(entry) + 1 <= self.room - 8

    def add(self, entry: str, nbytes: int) -> None:
        self._entries.append(entry)
        self._header_bytes += len(entry) + 1
        self.position += nbytes

    def seal(self) -> tuple[int, int]:
        """Write the true header; size of the file and CRC of the header."""
        try:
            os.ftruncate(self.fd, self.position)  # of a tensor that did not fit on the disk, nothing is left
            os.lseek(self.fd, 0, os.SEEK_SET)
            header = self._header()
            _write(self.fd, header)
        finally:
            os.close(self.fd)
        return self.position, zlib.crc32(header)


class TraceWriter:
    """Writes a trace directory, from one thread.

    The manifest is there from the start, marked incomplete. A tensor is written at once, records in batches; after
    `flush`, everything so far can be read even if the process is killed. When the disk refuses, TraceWriteError is
    raised, the writer is closed, and what was written until then can be read.

    Only files that an earlier trace made are replaced, and only with `overwrite`; everything else in the directory is
    left alone.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with TraceWriter(place, Manifest("torch", {}, "Net", (), {})) as writer:
    ...         writer.tensor(1, np.ones(2))
    ...         writer.record(Record(0, 0, Kind.MODULE, Phase.FORWARD, "fc", "torch.nn.Linear", 0, None, 0,
    ...             (Slot("out", TensorMeta((2,), "float64"), 1, kept=True),)))
    ...     trace = Trace.open(place)
    ...     trace.verify()
    ...     trace.manifest.complete, trace.tensor(1)
    (True, array([1., 1.]))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        manifest: Manifest,
        *,
        format: str = "safetensors",
        shard_bytes: int = 256 << 20,
        overwrite: bool = False,
    ) -> None:
        if format not in _FORMATS:
            raise OptionError(f"format={format!r} is not known", hint=f"use one of {', '.join(map(repr, _FORMATS))}")
        if shard_bytes < 1:
            raise OptionError(
                f"shard_bytes={shard_bytes!r} is not a size", hint="use a number of bytes, such as 1 << 28"
            )
        self.path = Path(path)
        self.bytes_written = 0
        self._manifest = manifest
        self._format = format
        self._shard_bytes = shard_bytes
        self._room = max(_ROW, min(_HEADER_ROOM, shard_bytes // 4 // _ROW * _ROW))
        self._shard: _Shard | None = None
        self._shards = 0
        self._values: set[int] = set()
        self._whole: dict[int, _Place] = {}  # the last tensors that were written, for `alias`
        self._fresh: dict[int, _Place] = {}  # written, but not yet named by a record
        self._indices: set[int] = set()
        self._npy_names: set[str] = set()
        self._lines: list[bytes] = []
        self._lines_bytes = 0
        self._records_bytes = 0
        self._records_crc = 0
        self._files: dict[str, tuple[int, int]] = {}
        self._records_fd = -1
        self._closed = True
        try:
            self._begin(overwrite)
        except (OSError, ValueError) as error:  # ValueError: NUL in the path
            raise TraceWriteError(
                f"{self.path}: a trace cannot be written here: {_reason(error)}",
                hint="choose a directory you can write to",
            ) from error
        self._closed = False

    def __contains__(self, value: object) -> bool:
        """Whether the tensor of `value` has been written."""
        return value in self._values

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        with suppress(TraceWriteError):  # the user's exception is the news
            self.close(replace(self._manifest, error=_describe(error)))

    # -- writing ---------------------------------------------------------------------------------------------------

    def tensor(self, value: int, array: Any, *, name: str | None = None) -> None:
        """Write the full tensor of `value`, once; the caller may reuse the memory afterwards.

        A reader finds it only through a record with a kept slot of this value. `name` is for format="npy": the file's
        name without its ending, made safe and unique.
        """
        self._check_open()
        if value in self._values:
            raise _twice(value)
        array = np.asarray(array)
        dtype = _dtype_of(array)
        try:
            if self._format == "npy":
                place = self._write_npy(value, array, dtype, name)
            else:
                place = self._write_packed(value, array, dtype)
        except OSError as error:
            self._fail(error)
        self._values.add(value)
        self._fresh[value] = place
        self._whole[value] = place
        while len(self._whole) > _ALIASED:
            del self._whole[next(iter(self._whole))]
        self.bytes_written += place.nbytes

    def alias(self, value: int, of: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        """Say that `value` is the tensor kept as `of`, in another arrangement: `strides` are in elements. Nothing is
        written again. False where the format cannot say so: call `tensor` then."""
        self._check_open()
        if value in self._values:
            raise _twice(value)
        place = self._whole.get(of)
        if self._format == "npy" or place is None:
            return False
        self._values.add(value)
        self._fresh[value] = replace(place, shape=tuple(shape), strides=tuple(strides))
        return True

    def record(self, record: Record) -> None:
        """Append a record. `tensor` must have been called for its kept slots. Buffered until `flush`."""
        self._check_open()
        _check_kept(record, self._values)
        if record.index in self._indices:
            raise TraceWriteError(
                f"{self.path}: record {record.index} is written twice", hint="indices count the records of one trace"
            )
        line = _encode_record(record, self._fresh)
        if len(line) > _LINE_LIMIT:
            raise TraceWriteError(
                f"{self.path}: record {record.index} ({record.path}) takes {len(line)} bytes, over {_LINE_LIMIT}",
                hint="its args hold data; shorten them",
            )
        for slot in record.slots:
            if slot.kept:
                self._fresh.pop(slot.value, None)
        self._indices.add(record.index)
        self._lines.append(line)
        self._lines_bytes += len(line)
        if self._lines_bytes >= _LINES_BUFFER:
            self.flush()

    def flush(self) -> None:
        """Hand everything so far to the operating system: it survives the death of this process."""
        self._check_open()
        try:
            self._write_lines()
        except OSError as error:
            self._fail(error)

    def close(self, manifest: Manifest | None = None) -> None:
        """Seal the trace with the final manifest; without one, the first one marked complete. Twice does no harm."""
        if self._closed:
            return
        final = replace(self._manifest, complete=True) if manifest is None else manifest
        try:
            self._write_lines()
            self._seal()
            self._files[_RECORDS] = (self._records_bytes, self._records_crc)
            self._write_manifest(final, self._files)
        except OSError as error:
            self._fail(error)
        self._manifest = final
        self._closed = True
        os.close(self._records_fd)

    # -- the parts -------------------------------------------------------------------------------------------------

    def _begin(self, overwrite: bool) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        _make_way(self.path, overwrite)
        if self._format == "npy":
            (self.path / _TENSORS).mkdir(exist_ok=True)
            if (self.path / _TENSORS).is_symlink():
                raise TraceWriteError(f"{self.path / _TENSORS} is a link", hint="a trace keeps its files in one place")
        self._write_manifest(replace(self._manifest, complete=False), None)
        self._records_fd = os.open(self.path / _RECORDS, _O_CREATE | os.O_APPEND, 0o666)

    def _write_manifest(self, manifest: Manifest, files: Mapping[str, tuple[int, int]] | None) -> None:
        data = _encode_manifest(manifest, self._format, files)
        if len(data) > _MANIFEST_LIMIT:
            raise TraceWriteError(f"{self.path / _MANIFEST} takes {len(data)} bytes, over {_MANIFEST_LIMIT}")
        temporary = self.path / f".manifest-{os.getpid()}.tmp"
        temporary.unlink(missing_ok=True)
        try:
            fd = os.open(temporary, _O_CREATE, 0o666)
            try:
                _write(fd, data)
            finally:
                os.close(fd)
            os.replace(temporary, self.path / _MANIFEST)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _write_lines(self) -> None:
        if not self._lines:
            return
        data = b"".join(self._lines)
        try:
            _write(self._records_fd, data)
        except OSError:
            os.ftruncate(self._records_fd, self._records_bytes)  # a line cut short must not get others behind it
            raise
        self._lines.clear()
        self._lines_bytes = 0
        self._records_bytes += len(data)
        self._records_crc = zlib.crc32(data, self._records_crc)
        self.bytes_written += len(data)

    def _write_packed(self, value: int, array: Array, dtype: str) -> _Place:
        shard = self._shard
        nbytes = array.nbytes
        if shard is not None:
            entry = shard.entry(value, dtype, array.shape, nbytes)
            if not shard.fits(entry) or shard.position + nbytes > self._shard_bytes:  # one of its own if it is larger
                self._seal()
                shard = None
        if shard is None:
            shard = _Shard(self.path / f"tensors-{self._shards:05d}.safetensors", self._room)
            self._shard = shard
            self._shards += 1
            entry = shard.entry(value, dtype, array.shape, nbytes)
        offset = shard.position
        checksum = _write_array(shard.fd, array)
        shard.add(entry, nbytes)
        return _Place(shard.path.name, offset, nbytes, dtype, array.shape, checksum)

    def _write_npy(self, value: int, array: Array, dtype: str, name: str | None) -> _Place:
        stem = _safe_stem(f"{value:06d}" if name is None else name)
        file, attempt = f"{_TENSORS}/{stem}.npy", 1
        header = _npy_header(dtype, array.shape)
        while True:
            try:
                if file.lower() in self._npy_names:  # two names that differ in case are one on some systems
                    raise FileExistsError
                fd = os.open(self.path / file, _O_CREATE, 0o666)
                break
            except FileExistsError:  # a name used before, or a file of the user's
                attempt += 1
                file = f"{_TENSORS}/{stem}-{attempt}.npy"
        self._npy_names.add(file.lower())
        try:
            _write(fd, header)
            checksum = _write_array(fd, array)
        except OSError:
            os.close(fd)
            (self.path / file).unlink(missing_ok=True)
            raise
        os.close(fd)
        return _Place(file, len(header), array.nbytes, dtype, array.shape, checksum)

    def _seal(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            self._files[shard.path.name] = shard.seal()

    def _check_open(self) -> None:
        if self._closed:
            raise TraceWriteError(f"{self.path}: this trace is closed", hint="begin another one")

    def _fail(self, error: OSError) -> NoReturn:
        """Close for good after the disk refused, saving what can be saved."""
        self._closed = True
        stopped = f"writing stopped: {_reason(error)}"
        # Each on its own: that one fails (again) must not keep the others from being tried.
        for rescue in (
            self._seal,
            self._write_lines,
            lambda: self._write_manifest(replace(self._manifest, notes=(*self._manifest.notes, stopped)), None),
            lambda: os.close(self._records_fd),
        ):
            try:
                rescue()
            except (OSError, TraceWriteError):
                continue
        raise TraceWriteError(
            f"{self.path}: {stopped}, after {self.bytes_written} bytes of tensors and records",
            hint="free some space, choose another place or keep less; what was flushed before can be read",
        ) from error


# -- writing: functions ----------------------------------------------------------------------------------------------


def _write(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:  # Linux writes at most 2 GiB at a time
        count = os.write(fd, view)
        if count <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[count:]


def _write_array(fd: int, array: Array) -> int:
    """Write the elements, little-endian and in C order; their checksum."""
    checksum = 0
    for raw in _raw(array):
        checksum = _checksum(raw, checksum)
        _write(fd, raw.data)
    return checksum


def _raw(array: Array) -> Iterator[Array]:
    """The bytes of an array, little-endian, in C order, in pieces of a multiple of _ROW; its own memory if possible."""
    order = array.dtype.byteorder
    little = order in "<|" or (order == "=" and sys.byteorder == "little")
    if array.flags.c_contiguous and little:
        yield array.reshape(-1).view(np.uint8)
        return
    if little and array.dtype.itemsize <= 8:
        array = array.view(f"<u{array.dtype.itemsize}")  # numpy's own types are copied faster than those of ml_dtypes
    wanted = array.dtype.newbyteorder("<")
    if array.nbytes <= _COPY_LIMIT:
        yield np.ascontiguousarray(array, dtype=wanted).reshape(-1).view(np.uint8)
        return
    flat, count = array.flat, _CHUNK // array.dtype.itemsize
    for begin in range(0, array.size, count):
        yield np.ascontiguousarray(flat[begin : begin + count], dtype=wanted).view(np.uint8)


def _checksum(raw: Array, crc: int = 0) -> int:
    """See the module's docstring. To go on from `crc`, what came before must have been a multiple of _ROW."""
    whole = raw.size - raw.size % _ROW
    if whole:
        sums = np.add.reduce(raw[:whole].view("<u8").reshape(-1, _ROW // 8), axis=1, dtype=np.uint64)
        crc = zlib.crc32(sums.astype("<u8", copy=False).data, crc)
    if whole < raw.size:
        crc = zlib.crc32(raw[whole:].data, crc)
    return crc


def _dtype_of(array: Array) -> str:
    name = str(array.dtype.name)
    if name not in _DTYPES:
        raise TraceWriteError(
            f"a tensor of dtype {name} cannot be kept", hint="numbers and booleans can, of the frameworks' dtypes"
        )
    return name


def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Version 1.0 of numpy's format. Written here, not by numpy, whose padding differs between versions."""
    text = f"{{'descr': '{_DTYPES[dtype][2]}', 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin-1")


def _safe_stem(name: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9_.+-]+", "_", name)[:120].strip(".") or "_"
    if not re.match(r"[A-Za-z0-9_]", stem) or stem.split(".")[0].upper() in _DEVICES:
        stem = "_" + stem
    return stem


def _check_kept(record: Record, values: set[int] | Mapping[int, Array]) -> None:
    for slot in record.slots:
        if slot.kept and slot.value not in values:
            raise TraceWriteError(
                f"record {record.index} ({record.path}), slot {slot.name}: value {slot.value} is said to be kept, "
                "but its tensor was not written",
                hint="call tensor() before record()",
            )


def _twice(value: int) -> TraceWriteError:
    return TraceWriteError(f"the tensor of value {value} is written twice", hint="ask `value in writer` first")


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - __str__ is the user's code
        return type(error).__name__


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _make_way(path: Path, overwrite: bool) -> None:
    """Remove the files of an older trace, and no others. Its manifest stays: it marks what a crash leaves as ours."""
    shards = sorted(entry.name for entry in os.scandir(path) if _SHARD_NAME.fullmatch(entry.name))
    if not os.path.lexists(path / _MANIFEST):
        for name in (_RECORDS, *shards):
            if os.path.lexists(path / name):
                raise TraceWriteError(
                    f"{path / name} is in the way, and no manifest.json says that a trace made it",
                    hint="move it away, or choose another directory",
                )
        return
    try:
        old = _parse(_read_whole(path, _MANIFEST, _MANIFEST_LIMIT))
    except (TraceError, ValueError, RecursionError):
        old = None
    if not isinstance(old, dict) or old.get("format") != _MARK:
        raise TraceWriteError(
            f"{path / _MANIFEST} is in the way, and is not a trace's", hint="move it away, or choose another directory"
        )
    if not overwrite:
        raise TraceWriteError(f"{path} holds a trace already", hint="pass overwrite=True, or choose another directory")
    for name in (*shards, *_npy_files(path), _RECORDS):
        (path / name).unlink(missing_ok=True)


def _npy_files(path: Path) -> set[str]:
    """The .npy files that an older trace's records name, however damaged they are."""
    if (path / _TENSORS).is_symlink() or not (path / _TENSORS).is_dir():
        return set()
    names: set[str] = set()
    try:
        fd, _ = _open(path, _RECORDS)
    except TraceError:
        return names
    with os.fdopen(fd, "rb") as file:
        while line := file.readline(_LINE_LIMIT):
            try:
                for slot in _parse(line)["slots"]:
                    name = slot.get("data", {}).get("file")
                    if type(name) is str and _is_file_name(name) and name.startswith(_TENSORS + "/"):
                        names.add(name)
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                continue
    return names


# -- encoding --------------------------------------------------------------------------------------------------------


def _number(value: Any) -> Any:
    """JSON's numbers for numpy's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False, default=_number).encode


def _plain(value: Any, depth: int = 0) -> Any:
    """A deep copy in JSON's types (floats may be infinite or nan); what JSON does not know becomes its repr."""
    kind = type(value)
    if kind is str or kind is bool or value is None or kind is float:
        return value
    if kind is int and value.bit_length() <= _BIG_INT_BITS:
        return value
    if depth < _DEPTH_LIMIT:
        if isinstance(value, Mapping):
            return {key if type(key) is str else _text(key): _plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [_plain(item, depth + 1) for item in value]
    if isinstance(value, np.generic):
        item = value.item()
        return _plain(item, depth) if isinstance(item, (bool, int, float, str)) else _text(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _BIG_INT_BITS else hex(value)
    return _text(value)


def _text(value: Any) -> str:
    try:
        text = str.__str__(value) if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001 - __repr__ is anybody's code
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 10_000 else text[:10_000] + "..."


def _escape(value: Any) -> Any:
    kind = type(value)
    if kind is float and value - value != 0.0:
        return {"$float": _name_float(value)}
    if kind is dict:
        return {"$" + key if key[:1] == "$" else key: _escape(item) for key, item in value.items()}
    if kind is list:
        return [_escape(item) for item in value]
    return value


def _unescape(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        if len(value) == 1 and "$float" in value:
            return _NOT_FINITE[value["$float"]]
        return {key[1:] if key[:1] == "$" else key: _unescape(item) for key, item in value.items()}
    if kind is list:
        return [_unescape(item) for item in value]
    return value


def _name_float(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


@lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return _encode(text)


@lru_cache(maxsize=4096)
def _meta_text(meta: TensorMeta) -> tuple[str, str]:
    """The part of a slot that says what its tensor is."""
    shape = ",".join(map(str, meta.shape))
    device = "" if meta.device == "cpu" else f',"device":{_encode(meta.device)}'
    return f'"shape":[{shape}],"dtype":{_encode(meta.dtype)}', device


def _stats_text(stats: Stats) -> str:
    numbers = (stats.min, stats.max, stats.mean, stats.std, stats.l2)
    shown = ",".join([repr(float(x)) if x - x == 0.0 else f'"{_name_float(x)}"' for x in numbers])
    return f'[{shown},{stats.nan},{stats.inf},"{stats.fingerprint:x}"]'


def _encode_slot(slot: Slot, fresh: Mapping[int, _Place], named: set[int]) -> str:
    value = slot.value
    what, device = _meta_text(slot.meta)
    text = f'{{"name":{_quoted(slot.name)},{what},"value":{value}{device}'
    if slot.stats is not None:
        text += f',"stats":{_stats_text(slot.stats)}'
    if slot.param is not None:
        text += f',"param":{_quoted(slot.param)}'
    if slot.kept:
        text += ',"kept":true'
        if value in fresh and value not in named:
            named.add(value)
            place = fresh[value]
            data: dict[str, Any] = {
                "file": place.file,
                "offset": place.offset,
                "nbytes": place.nbytes,
                "dtype": place.dtype,
                "shape": place.shape,
                "checksum": place.checksum,
            }
            if place.strides:
                data["strides"] = place.strides
            text += f',"data":{_encode(data)}'
    return text + "}"


def _encode_record(record: Record, fresh: Mapping[int, _Place]) -> bytes:
    """A line of records.jsonl. Written by hand: an encoder that does not know what comes takes four times as long."""
    named: set[int] = set()
    slots = ",".join([_encode_slot(slot, fresh, named) for slot in record.slots])
    parent = "null" if record.parent_id is None else record.parent_id
    text = (
        f'{{"index":{record.index},"step":{record.step},"kind":"{record.kind.value}","phase":"{record.phase.value}",'
        f'"path":{_quoted(record.path)},"type":{_quoted(record.type)},"call_id":{record.call_id},"parent_id":{parent},'
        f'"nth":{record.nth},"slots":[{slots}]'
    )
    if record.source is not None:
        text += f',"source":[{_quoted(record.source.file)},{record.source.line},{_quoted(record.source.function)}]'
    if record.builtin:
        text += ',"builtin":true'
    if record.training is not None:
        text += f',"training":{"true" if record.training else "false"}'
    if record.failed:
        text += ',"failed":true'
    if record.stack:
        text += f',"stack":{_encode([[s.file, s.line, s.function] for s in record.stack])}'
    if record.args:
        args = _plain(record.args)
        try:
            told = _encode(args)
        except ValueError:  # not finite
            told = '"$'
        if '"$' in told:
            told = _encode(_escape(args))
        text += f',"args":{told}'
    return (text + "}\n").encode("ascii")


def _encode_meta(meta: TensorMeta) -> dict[str, Any]:
    return {"shape": list(meta.shape), "dtype": meta.dtype, "device": meta.device}


def _encode_manifest(manifest: Manifest, format: str, files: Mapping[str, tuple[int, int]] | None) -> bytes:
    out: dict[str, Any] = {
        "format": _MARK,
        "schema": SCHEMA_VERSION,
        "tensors": format,
        "framework": manifest.framework,
        "versions": dict(manifest.versions),
        "model": manifest.model,
        "plan": _escape(_plain(manifest.plan)),
        "rank": manifest.rank,
        "world": manifest.world,
        "created": manifest.created,
        "complete": manifest.complete,
        "error": manifest.error,
        "notes": list(manifest.notes),
    }
    if files is not None:
        out["files"] = {name: {"bytes": size, "crc32": crc} for name, (size, crc) in files.items()}
    out["modules"] = modules_to_json(manifest.modules)
    return (_encode(out) + "\n").encode("ascii")


def modules_to_json(modules: Sequence[ModuleInfo]) -> list[dict[str, Any]]:
    """What a model is made of, in JSON's types: as a manifest has it."""
    return [
        {
            "path": module.path,
            "type": module.type,
            "kind": module.kind,
            "builtin": module.builtin,
            "params": [
                {
                    "name": param.name,
                    **_encode_meta(param.meta),
                    "role": param.role,
                    "trainable": param.trainable,
                    "buffer": param.buffer,
                    "tied_to": param.tied_to,
                    "axes": None if param.axes is None else list(param.axes),
                }
                for param in module.params
            ],
            "aliases": list(module.aliases),
            "attributes": _escape(_plain(module.attributes)),
        }
        for module in modules
    ]


# -- reading: files --------------------------------------------------------------------------------------------------


class _Bad(ValueError):
    """What is wrong with a value that was read; where, is added by who knows it."""


#: What parsing and decoding damaged or hostile JSON can raise. UnicodeDecodeError and JSONDecodeError are ValueErrors.
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


def _is_file_name(name: str) -> bool:
    if _SHARD_NAME.fullmatch(name):
        return True
    return bool(_NPY_NAME.fullmatch(name)) and name[len(_TENSORS) + 1 :].split(".")[0].upper() not in _DEVICES


def _open(root: Path, name: str) -> tuple[int, int]:
    """A descriptor of the regular file `name` in `root`, and its size. Follows no link below `root`; never blocks."""
    path = root / name
    try:
        if "/" in name:
            folder = os.path.realpath(path.parent)  # on Windows, a junction is no link to lstat
            if folder != os.path.join(os.path.realpath(root), name.split("/")[0]):
                raise TraceFormatError(f"{path.parent} leads elsewhere", hint="a trace keeps its files in one place")
        if not stat.S_ISREG(os.lstat(path).st_mode):  # opening a device can have effects already
            raise TraceFormatError(f"{path} is not a regular file", hint="a trace has plain files only, no links")
        fd = os.open(path, _O_READ)
    except FileNotFoundError as error:
        raise TraceFormatError(f"{path} is missing", hint="copy the whole directory, or capture again") from error
    except OSError as error:
        raise TraceFormatError(f"{path} cannot be read: {_reason(error)}", hint="check its permissions") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise TraceFormatError(f"{path} is not a regular file", hint="a trace has plain files only, no links")
    return fd, found.st_size


def _read_whole(root: Path, name: str, limit: int) -> bytes:
    fd, size = _open(root, name)
    with os.fdopen(fd, "rb") as file:
        if size > limit:
            raise TraceFormatError(f"{root / name} has {size} bytes, over {limit}", hint="it is not what a trace has")
        try:
            return file.read(limit)
        except OSError as error:
            raise TraceFormatError(f"{root / name} cannot be read: {_reason(error)}") from error


def _damaged(root: Path, value: int, place: _Place, why: str) -> TraceFormatError:
    return TraceFormatError(
        f"{root / place.file}: the tensor of value {value} {why}",
        hint="the trace is damaged or was copied only in part; capture again, or go without this tensor",
    )


def _read_into(root: Path, value: int, place: _Place, file: Any, raw: Array) -> None:
    view, done = raw.data, 0
    while done < len(view):
        try:
            count = file.readinto(view[done:])
        except OSError as error:
            raise _damaged(root, value, place, f"cannot be read: {_reason(error)}") from error
        if not count:
            raise _damaged(root, value, place, "is cut short")
        done += count


def _seek(root: Path, value: int, place: _Place) -> Any:
    """The file of a tensor, unbuffered, at the tensor's first byte; sizes and npy header have been checked."""
    fd, size = _open(root, place.file)
    file = os.fdopen(fd, "rb", buffering=0)
    try:
        if place.offset + place.nbytes > size:
            raise _damaged(root, value, place, f"needs {place.offset + place.nbytes} bytes, and the file has {size}")
        if place.file.endswith(".npy"):
            if place.offset + place.nbytes < size:
                raise _damaged(root, value, place, "has more bytes behind it than were written")
            expected = _npy_header(place.dtype, place.shape)
            found = np.empty(len(expected), np.uint8)
            if place.offset == len(expected):
                _read_into(root, value, place, file, found)
            if place.offset != len(expected) or found.tobytes() != expected:
                raise _damaged(root, value, place, "has a header that was not written by Twinscope")
        file.seek(place.offset)
    except BaseException:
        file.close()
        raise
    return file


def _read_tensor(root: Path, value: int, place: _Place) -> Array:
    with _seek(root, value, place) as file:
        try:
            array = np.empty(math.prod(place.shape) if place.strides else place.shape, _numpy_dtype(place.dtype))
            raw = array.reshape(-1).view(np.uint8)
        except (ValueError, MemoryError) as error:
            raise _damaged(root, value, place, f"of shape {place.shape} does not fit into memory") from error
        _read_into(root, value, place, file, raw)
    if _checksum(raw) != place.checksum:
        raise _damaged(root, value, place, "does not match its checksum")
    if place.dtype == "bool" and raw.size and raw.max() > 1:
        raise _damaged(root, value, place, "is of dtype bool and has bytes other than 0 and 1")
    if place.strides:
        array = _arranged(array, place.shape, place.strides)
    array.flags.writeable = False
    return array


def _verify_tensor(root: Path, value: int, place: _Place) -> None:
    buffer: Array = np.empty(min(_CHUNK, place.nbytes), np.uint8)
    crc, left = 0, place.nbytes
    with _seek(root, value, place) as file:
        while left:
            raw = buffer[: min(left, _CHUNK)]
            _read_into(root, value, place, file, raw)
            crc = _checksum(raw, crc)
            left -= raw.size
    if crc != place.checksum:
        raise _damaged(root, value, place, "does not match its checksum")


def _verify_file(root: Path, name: str, size: int, crc: int) -> None:
    """Check a file's size, and the CRC of all of records.jsonl and of the header of a shard."""
    fd, found = _open(root, name)
    with os.fdopen(fd, "rb") as file:
        left = size
        if name != _RECORDS:
            left = min(size, _HEADER_ROOM, 8 + int.from_bytes(file.read(8), "little"))
            file.seek(0)
        actual = 0
        while left > 0 and (data := file.read(min(left, _CHUNK))):
            actual = zlib.crc32(data, actual)
            left -= len(data)
    if found != size or actual != crc:
        what = f"has {found} bytes instead of {size}" if found != size else "does not match its checksum"
        raise TraceFormatError(f"{root / name} {what}", hint="the trace is damaged; capture again")


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name not in _ML_DTYPES:
        return np.dtype(name).newbyteorder("<")
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:
        raise TraceError(f"tensors of dtype {name} cannot be read", hint="pip install -U ml_dtypes") from error


# -- reading: JSON ---------------------------------------------------------------------------------------------------


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0.0:
        raise _Bad("a number is too large")
    return number


def _integer(text: str) -> int:
    if len(text) > 4000:  # Python has no such limit before 3.10.7, and takes hours over a line of digits
        raise _Bad("a number is too large")
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise _Bad(f"{text} is not JSON")


_decode = json.JSONDecoder(parse_int=_integer, parse_float=_finite, parse_constant=_no_constant).decode


def _parse(data: bytes) -> Any:
    return _decode(data.decode("utf-8"))


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _expect(value: Any, kind: type[Any], what: str) -> Any:
    if type(value) is not kind:
        raise _Bad(f"{what} is {_show(value)}")
    if kind is int and not -_INT_LIMIT <= int(value) < _INT_LIMIT:
        raise _Bad(f"{what} is out of range")
    return value


def _decode_shape(shape: Any) -> tuple[int, ...]:
    if type(shape) is not list or len(shape) > _DIMS_LIMIT:
        raise _Bad(f"a shape is {_show(shape)}")
    for extent in shape:
        if type(extent) is not int or not 0 <= extent < _INT_LIMIT:
            raise _Bad(f"a shape is {_show(shape)}")
    return tuple(shape)


def _decode_stats(raw: Any) -> Stats:
    if type(raw) is not list or len(raw) != 8:
        raise _Bad(f"stats are {_show(raw)}")
    for i in range(5):
        number = raw[i]
        if type(number) is not float:
            if type(number) is str:
                raw[i] = _NOT_FINITE[number]
            elif type(number) is int:
                raw[i] = float(number)
            else:
                raise _Bad(f"stats are {_show(raw)}")
    low, high, mean, std, l2, nan, inf, fingerprint = raw
    if type(nan) is not int or type(inf) is not int or not (0 <= nan < _INT_LIMIT and 0 <= inf < _INT_LIMIT):
        raise _Bad("a count in stats is no count")
    if type(fingerprint) is not str or len(fingerprint) > 40:
        raise _Bad("a fingerprint is no hexadecimal number")
    return Stats(low, high, mean, std, l2, nan, inf, int(fingerprint, 16))


def _decode_place(raw: Any) -> _Place:
    if type(raw) is not dict or raw.keys() - {"strides"} != _PLACE_KEYS:
        raise _Bad(f"data is {_show(raw)}")
    file, dtype = _expect(raw["file"], str, "a file name"), _expect(raw["dtype"], str, "a dtype")
    offset, nbytes, checksum = raw["offset"], raw["nbytes"], raw["checksum"]
    if not _is_file_name(file):
        raise _Bad(f"{_show(file)} is not the name of a file that a trace has")
    if dtype not in _DTYPES:
        raise _Bad(f"dtype {_show(dtype)} is not known")
    for number in (offset, nbytes, checksum):
        if type(number) is not int or not 0 <= number < _INT_LIMIT:
            raise _Bad(f"{_show(number)} is not an offset, size or checksum")
    shape = _decode_shape(raw["shape"])
    expected = _DTYPES[dtype][0]
    for extent in shape:
        expected *= extent
    if expected != nbytes:
        raise _Bad(f"a {dtype} tensor of shape {shape} cannot have {nbytes} bytes")
    strides = _decode_shape(raw["strides"]) if "strides" in raw else ()
    if strides and not _is_dense(shape, strides):
        raise _Bad(f"strides {list(strides)} do not fit the shape {list(shape)}")
    return _Place(file, offset, nbytes, dtype, shape, checksum, strides)


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether these strides reach every one of the shape's elements, and nothing else."""
    if len(shape) != len(strides):
        return False
    expected = 1
    for stride, extent in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= extent
    return expected > 0


def _arranged(flat: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of all elements of `flat` under another shape, strides in elements."""
    if not _is_dense(shape, strides) or math.prod(shape) != flat.size:
        raise ValueError(f"shape {shape} and strides {strides} do not rearrange {flat.size} elements")
    return np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in strides], writeable=False)


def _decode_record(
    raw: Any, escaped: bool, metas: dict[tuple[tuple[int, ...], str, str], TensorMeta], places: dict[int, _Place]
) -> Record:
    """A record from its JSON; places are added to `places`. Written out by hand: this runs 100,000 times per trace."""
    if type(raw) is not dict or not raw.keys() <= _RECORD_KEYS:
        raise _Bad("this is not a record")
    get = raw.get
    numbers = (raw["index"], raw["step"], raw["call_id"], raw["nth"])
    for number in numbers:
        if type(number) is not int or not -_INT_LIMIT <= number < _INT_LIMIT:
            raise _Bad(f"{_show(number)} is not an index")
    parent = raw["parent_id"]
    if parent is not None:
        _expect(parent, int, "parent_id")
    kind, phase = _KINDS.get(raw["kind"]), _PHASES.get(raw["phase"])
    if kind is None or phase is None:
        raise _Bad(f"kind and phase are {_show(raw['kind'])}, {_show(raw['phase'])}")
    path, type_ = raw["path"], raw["type"]
    raw_slots, builtin, training, failed = raw["slots"], get("builtin", False), get("training"), get("failed", False)
    if type(path) is not str or type(type_) is not str or type(raw_slots) is not list:
        raise _Bad("path, type or slots are of the wrong type")
    if type(builtin) is not bool or type(failed) is not bool or (training is not None and type(training) is not bool):
        raise _Bad("builtin, training or failed are of the wrong type")
    slots = []
    for item in raw_slots:
        if type(item) is not dict or not item.keys() <= _SLOT_KEYS:
            raise _Bad(f"a slot is {_show(item)}")
        get_slot = item.get
        name, dtype, value, device = item["name"], item["dtype"], item["value"], get_slot("device", "cpu")
        kept, stats, param = get_slot("kept", False), get_slot("stats"), get_slot("param")
        if type(name) is not str or type(dtype) is not str or type(device) is not str or type(kept) is not bool:
            raise _Bad(f"a slot is {_show(item)}")
        if param is not None and type(param) is not str:
            raise _Bad(f"slot {_show(name)} is the parameter {_show(param)}")
        if type(value) is not int or not -_INT_LIMIT <= value < _INT_LIMIT:
            raise _Bad(f"slot {_show(name)} has the value {_show(value)}")
        key = (_decode_shape(item["shape"]), dtype, device)
        meta = metas.get(key)
        if meta is None:
            meta = metas[key] = TensorMeta(*key)
        if "data" in item:
            if value in places or not kept:
                raise _Bad(f"slot {_show(name)}: value {value} is kept twice, or not at all")
            places[value] = _decode_place(item["data"])
        elif kept and value not in places:
            raise _Bad(f"slot {_show(name)}: value {value} is kept nowhere")
        slots.append(Slot(name, meta, value, None if stats is None else _decode_stats(stats), kept, param))
    source = get("source")
    if source is not None:
        source = _decode_source(source)
    stack = tuple(_decode_source(item) for item in _expect(get("stack"), list, "stack")) if "stack" in raw else ()
    args = get("args", _NO_ARGS)
    if args is not _NO_ARGS:
        _expect(args, dict, "args")
        if escaped:
            args = _expect(_unescape(args), dict, "args")
    else:
        args = {}
    index, step, call_id, nth = numbers
    return Record(
        index,
        step,
        kind,
        phase,
        path,
        type_,
        call_id,
        parent,
        nth,
        tuple(slots),
        args,
        source,
        builtin,
        training,
        failed,
        stack,
    )


def _decode_source(raw: Any) -> Source:
    if type(raw) is not list or len(raw) != 3:
        raise _Bad(f"source is {_show(raw)}")
    file, line, function = raw
    return Source(_expect(file, str, "source"), _expect(line, int, "source"), _expect(function, str, "source"))


def _decode_strings(raw: Any, what: str) -> tuple[str, ...]:
    return tuple(_expect(item, str, what) for item in _expect(raw, list, what))


def _optional(value: Any, what: str) -> str | None:
    return None if value is None else str(_expect(value, str, what))


def _decode_axes(raw: Any, meta: TensorMeta) -> tuple[int, ...] | None:
    if raw is None:
        return None
    axes = _decode_shape(raw)
    rest = set(range(len(meta.shape))) - set(axes)
    if len(set(axes)) != len(axes) or max(axes, default=-1) >= len(meta.shape) or any(meta.shape[a] != 1 for a in rest):
        raise _Bad(f"axes {list(axes)} do not fit a tensor of shape {list(meta.shape)}")
    return axes


def _decode_module(raw: Any) -> ModuleInfo:
    params = []
    for item in _expect(_expect(raw, dict, "a module")["params"], list, "params"):
        meta = TensorMeta(
            _decode_shape(_expect(item, dict, "a parameter")["shape"]),
            _expect(item["dtype"], str, "dtype"),
            _expect(item["device"], str, "device"),
        )
        params.append(
            ParamInfo(
                _expect(item["name"], str, "name"),
                meta,
                _expect(item["role"], str, "role"),
                _expect(item["trainable"], bool, "trainable"),
                _expect(item["buffer"], bool, "buffer"),
                _optional(item["tied_to"], "tied_to"),
                _decode_axes(item.get("axes"), meta),
            )
        )
    return ModuleInfo(
        _expect(raw["path"], str, "path"),
        _expect(raw["type"], str, "type"),
        _optional(raw["kind"], "kind"),
        _expect(raw["builtin"], bool, "builtin"),
        tuple(params),
        _decode_strings(raw["aliases"], "aliases"),
        _expect(_unescape(_expect(raw["attributes"], dict, "attributes")), dict, "attributes"),
    )


def modules_from_json(raw: Any, where: str) -> tuple[ModuleInfo, ...]:
    """The inverse of `modules_to_json`, of JSON that anyone may have written."""
    try:
        return tuple(_decode_module(module) for module in _expect(raw, list, "modules"))
    except _DAMAGE as error:
        why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise TraceFormatError(f"{where}: {why}", hint="the file is damaged: write it again") from error


def _decode_manifest(raw: dict[str, Any]) -> tuple[Manifest, dict[str, tuple[int, int]] | None]:
    manifest = Manifest(
        framework=_expect(raw["framework"], str, "framework"),
        versions={
            key: _expect(item, str, "a version") for key, item in _expect(raw["versions"], dict, "versions").items()
        },
        model=_expect(raw["model"], str, "model"),
        modules=tuple(_decode_module(module) for module in _expect(raw["modules"], list, "modules")),
        plan=_expect(_unescape(_expect(raw["plan"], dict, "plan")), dict, "plan"),
        rank=_expect(raw["rank"], int, "rank"),
        world=_expect(raw["world"], int, "world"),
        schema=raw["schema"],
        created=_expect(raw["created"], str, "created"),
        complete=_expect(raw["complete"], bool, "complete"),
        error=_optional(raw["error"], "error"),
        notes=_decode_strings(raw["notes"], "notes"),
    )
    if raw.get("files") is None:
        if manifest.complete:
            raise _Bad("it is marked complete and lists no files")
        return manifest, None
    files = {}
    for name, entry in _expect(raw["files"], dict, "files").items():
        if name != _RECORDS and not _SHARD_NAME.fullmatch(name):
            raise _Bad(f"{_show(name)} is not the name of a file that a trace has")
        files[name] = (_expect(entry["bytes"], int, "bytes"), _expect(entry["crc32"], int, "crc32"))
    if _RECORDS not in files:
        raise _Bad("it lists files, and records.jsonl is not among them")
    return manifest, files


def _load(path: Path) -> Trace:
    expected = "a trace is a directory with a manifest.json, as twinscope.capture writes it"
    try:
        if not path.is_dir():
            what = "is not a directory" if os.path.lexists(path) else "there is no such directory"
            raise TraceError(f"{path}{' ' if what[0] == 'i' else ': '}{what}", hint=expected)
        if not os.path.lexists(path / _MANIFEST):
            raise TraceError(f"{path} has no manifest.json", hint=expected)
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        raise TraceError(f"{str(path)!r} cannot be read: {_reason(error)}", hint=expected) from error
    try:
        raw = _parse(_read_whole(path, _MANIFEST, _MANIFEST_LIMIT))
        if type(raw) is not dict or raw.get("format") != _MARK:
            raise TraceFormatError(f"{path / _MANIFEST} is not a trace's", hint=expected)
        schema = raw.get("schema")
        if type(schema) is int and schema > SCHEMA_VERSION:
            raise TraceFormatError(
                f"{path} was written by a newer Twinscope (schema {_show(schema)}, known here: {SCHEMA_VERSION})",
                hint="pip install -U twinscope",
            )
        if type(schema) is not int or schema < 1:
            raise _Bad(f"schema is {_show(schema)}")
        manifest, files = _decode_manifest(raw)
    except _DAMAGE as error:
        raise TraceFormatError(
            f"{path / _MANIFEST} is damaged: {_why(error)}", hint="copy the trace again, or capture again"
        ) from error
    if files is None and not os.path.lexists(path / _RECORDS):
        return Trace(manifest, (), path)  # killed before the first record
    places: dict[int, _Place] = {}
    records = _load_records(path, places, None if files is None else files[_RECORDS][0])
    return Trace(manifest, records, path, {}, places, files)


def _load_records(path: Path, places: dict[int, _Place], size: int | None) -> tuple[Record, ...]:
    """Every record; `size` is what the file must have, None for a trace cut short, whose last line may be, too."""
    fd, found = _open(path, _RECORDS)
    records: list[Record] = []
    metas: dict[tuple[tuple[int, ...], str, str], TensorMeta] = {}
    indices: set[int] = set()
    number = 0
    with os.fdopen(fd, "rb", buffering=1 << 18) as file:
        if size is not None and found != size:
            raise TraceFormatError(
                f"{path / _RECORDS} has {found} bytes instead of {size}",
                hint="the trace was copied only in part, or edited",
            )
        try:
            while line := file.readline(_LINE_LIMIT + 1):
                number += 1
                if not line.endswith(b"\n"):
                    if len(line) > _LINE_LIMIT:
                        raise _Bad(f"more than {_LINE_LIMIT} bytes in one line")
                    if size is None:
                        break  # the writer died here
                    raise _Bad("the last line is cut short")
                record = _decode_record(_parse(line), b'"$' in line, metas, places)
                if record.index in indices:
                    raise _Bad(f"record {record.index} is there twice")
                indices.add(record.index)
                records.append(record)
        except OSError as error:
            raise TraceFormatError(f"{path / _RECORDS} cannot be read: {_reason(error)}") from error
        except _DAMAGE as error:
            raise TraceFormatError(
                f"{path / _RECORDS}, line {number}: {_why(error)}",
                hint="the trace is damaged; copy it again, or capture again",
            ) from error
    return tuple(records)


def _why(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, KeyError):
        return f"{error} is missing or not known"
    return str(error) or type(error).__name__
