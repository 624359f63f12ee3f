"""safetensors: eight bytes of length, a JSON header, and the elements; and the index over several such files.

https://github.com/huggingface/safetensors#format. `twinscope.store` writes the same format for traces, in shards whose
header is known last; here it is known first.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

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
)

_HEADER_LIMIT = 100_000_000  # of the format
_NAMES: Mapping[str, str] = {
    **{"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32"},
    **{"I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32"},
    **{"F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
}
_WRITTEN = {dtype: name for name, dtype in _NAMES.items()}
_FRAMEWORKS = {"torch": "pt", "paddle": "pd", "mindspore": "ms"}


def is_safetensors(start: bytes) -> bool:
    """Whether a file that begins so may be one."""
    return len(start) > 8 and int.from_bytes(start[:8], "little") <= _HEADER_LIMIT and start[8:9] == b"{"


def _read(mapped: Mapped, path: Path) -> Contents:
    size = int.from_bytes(mapped.bytes(0, 8), "little")
    if size > _HEADER_LIMIT:
        raise WeightError(f"{path}: its header would have {size} bytes", hint=DAMAGED)
    header = _parse(mapped.bytes(8, size), path)
    begin = 8 + size
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _damaged(path)
    tensors: dict[str, StoredTensor] = {}
    left_out: list[str] = []
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
            raise _damaged(path)
        offsets = entry.get("data_offsets")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
            raise _damaged(path)
        first, last = offsets
        if not 0 <= first <= last <= mapped.size - begin:
            raise WeightError(f"{path}: {name[:200]!r} reaches beyond the end of the file", hint=DAMAGED)
        spans.append((first, last))
        dtype = _NAMES.get(entry["dtype"])
        if dtype is None:
            left_out.append(f"{name} ({entry['dtype'][:50]})")
            continue
        shape = checked_shape(entry.get("shape"), str(path))
        if math.prod(shape) * dtype_of(dtype).itemsize != last - first:
            raise WeightError(
                f"{path}: {name[:200]!r} has {last - first} bytes, and shape {list(shape)} of {dtype}", hint=DAMAGED
            )
        tensors[name] = StoredTensor.view(mapped, begin + first, dtype, shape, end=begin + last)
    reached = 0
    for first, last in sorted(spans):
        if first != reached:
            raise WeightError(f"{path}: its tensors overlap or leave gaps", hint=DAMAGED)
        reached = last
    if begin + reached != mapped.size:
        raise WeightError(f"{path} is longer than its tensors", hint=DAMAGED)
    wrote = next((name for name, short in _FRAMEWORKS.items() if metadata.get("format") == short), None)
    return Contents(path, SAFETENSORS.name, wrote, (StateDict("", frozen(tensors), tuple(left_out)),))


def read_index(mapped: Mapped, path: Path, read: Callable[[Path], Contents]) -> Contents:
    """The files that an index names, as one: `{"weight_map": {tensor: file}}`, all in the index's own directory."""
    if mapped.size > _HEADER_LIMIT:
        raise WeightError(f"{path} is too long for an index", hint="name the checkpoint file itself")
    index = _parse(mapped.bytes(0, mapped.size), path)
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise WeightError(f"{path} is not an index of checkpoint files", hint='an index has a "weight_map"')
    shards: dict[str, Mapping[str, StoredTensor]] = {}
    tensors: dict[str, StoredTensor] = {}
    framework = None
    for name, shard in places.items():
        if not isinstance(shard, str) or shard != os.path.basename(shard) or shard in ("", ".", "..") or "\0" in shard:
            raise WeightError(
                f"{path}: {str(shard)[:200]!r} is not the name of a file beside it", hint="the index is damaged"
            )
        if shard.endswith(".json"):
            raise WeightError(f"{path}: an index cannot name another one", hint="the index is damaged")
        if shard not in shards:
            found = read(path.with_name(shard))
            framework = found.framework
            shards[shard] = found.states[0].tensors if found.states else {}
        if name not in shards[shard]:
            raise WeightError(f"{path}: {name[:200]!r} is not in {shard}", hint="the index and the files do not match")
        tensors[name] = shards[shard][name]
    return Contents(path, "index", framework, (StateDict("", frozen(tensors)),))


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name is there twice")
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise WeightError(f"{path}: its header cannot be read: {str(error)[:200]}", hint=DAMAGED) from error
    if not isinstance(header, dict):
        raise _damaged(path)
    return header


def _damaged(path: Path) -> WeightError:
    return WeightError(f"{path}: its header is not of a safetensors file", hint=DAMAGED)


# -- writing -----------------------------------------------------------------------------------------------------------


def _write(
    file: BinaryIO, specs: Sequence[Spec], tensors: Iterable[tuple[Spec, Pieces]], framework: str | None
) -> None:
    """Wide dtypes come first, so that every element is aligned. A tied tensor is there once for each of its names."""
    header: dict[str, Any] = {"__metadata__": {"format": _FRAMEWORKS[framework]}} if framework else {}
    places: dict[str, int] = {}
    at = 0
    for spec in sorted(specs, key=lambda s: -dtype_of(s.dtype).itemsize):
        for name in spec.names:
            header[name] = {
                "dtype": _WRITTEN[spec.dtype],
                "shape": list(spec.shape),
                "data_offsets": [at, at + spec.nbytes],
            }
            places[name] = at
            at += spec.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    file.write(len(text).to_bytes(8, "little") + text)
    for spec, pieces in tensors:
        _pour(file, pieces, [begin + places[name] for name in spec.names])
    file.truncate(begin + at)


def _pour(file: BinaryIO, pieces: Pieces, places: Sequence[int]) -> None:
    """Write the same bytes to several places. On its own, so that the last piece does not outlive it."""
    done = 0
    for piece in pieces:
        for place in places:
            file.seek(place + done)
            file.write(piece.data)
        done += piece.nbytes


SAFETENSORS = FileFormat("safetensors", None, (".safetensors",), frozenset(_WRITTEN), _read, _write)
