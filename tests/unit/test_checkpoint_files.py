"""Checkpoint files without any framework: written, read, converted, damaged, hostile, and what memory it takes."""

from __future__ import annotations

import ctypes
import json
import math
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import twinscope
from twinscope.errors import WeightError
from twinscope.weights.convert import convert_checkpoint
from twinscope.weights.files import FORMATS, format_for, read_checkpoint, read_file
from twinscope.weights.files.base import Spec, appearing, blocks, raw
from twinscope.weights.transforms import Concat, Constant, Omit, Reorder, Split, Tie, Transpose, Untie, dtype_of
from twinscope.weights.weightmap import Entry, Held, WeightMap

EXTENSIONS = [".pth", ".pdparams", ".ckpt", ".safetensors"]
DTYPES = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool"]


def save(path: Path, arrays: dict[str, Any]) -> Path:
    """Write arrays as they are, each under its name, by the format's own writer."""
    given = {name: np.asarray(array) for name, array in arrays.items()}
    specs = [Spec((name,), array.shape, str(array.dtype.name)) for name, array in given.items()]
    with appearing(path, overwrite=True) as part:
        pairs = ((s, [raw(b, s.dtype) for b in blocks(given[s.names[0]])]) for s in specs)
        format_for(path).write(part.file, specs, pairs, None)
    return path


def sample(dtype: str, shape: tuple[int, ...] = (3, 4)) -> Any:
    numbers = np.arange(math.prod(shape)).reshape(shape) - 5
    return (numbers % 3 == 0) if dtype == "bool" else numbers.astype(dtype_of(dtype))


def equal(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def held(*pairs: tuple[str, tuple[int, ...]], **more: Any) -> tuple[Held, ...]:
    return tuple(Held(path, shape, "float32", **more) for path, shape in pairs)


def simple_map(**more: Any) -> WeightMap:
    """Two layers, the first transposed: torch's names on the left, paddle's on the right."""
    fields: dict[str, Any] = {
        "frameworks": ("torch", "paddle"),
        "models": ("A", "B"),
        "reference": held(("fc.weight", (4, 3)), ("fc.bias", (4,)), ("norm.weight", (4,))),
        "candidate": held(("dense.w", (3, 4)), ("dense.b", (4,)), ("bn.scale", (4,))),
        "entries": (
            Entry(("fc.weight",), ("dense.w",), (Transpose(),)),
            Entry(("fc.bias",), ("dense.b",)),
            Entry(("norm.weight",), ("bn.scale",)),
        ),
    }
    return WeightMap(**{**fields, **more})


def simple_arrays() -> dict[str, Any]:
    return {
        "fc.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
        "fc.bias": np.arange(4, dtype=np.float32),
        "norm.weight": np.full(4, 0.5, np.float32),
    }


# -- each format by itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_written_is_read_back(tmp_path: Path, extension: str, dtype: str) -> None:
    arrays = {
        "whole": sample(dtype),
        "scalar": sample(dtype, ()),
        "transposed": sample(dtype, (5, 2)).T,
        "empty": sample(dtype, (0, 3)),
        "ümlaut.é": sample(dtype, (2, 1, 3)),
    }
    found = read_checkpoint(save(tmp_path / f"a{extension}", arrays))
    assert list(sorted(found)) == sorted(arrays)
    assert all(equal(found[name], array) for name, array in arrays.items())
    assert all(found[name].size == 0 or not found[name].flags.writeable for name in arrays)


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_reading_copies_nothing(tmp_path: Path, extension: str) -> None:
    found = read_checkpoint(save(tmp_path / f"a{extension}", {"a": np.ones((100, 100), np.float32)}))
    assert np.shares_memory(found["a"], found["a"])


@pytest.mark.parametrize("dtype", ["uint16", "float8_e4m3fn", "complex64"])
def test_rarer_dtypes_of_torch(tmp_path: Path, dtype: str) -> None:
    array = np.ones(3).astype(dtype_of(dtype))
    assert equal(read_checkpoint(save(tmp_path / "a.pth", {"a": array}))["a"], array)


def test_safetensors_are_read_by_the_package_itself(tmp_path: Path) -> None:
    import safetensors.numpy

    arrays = {"b": np.array([True, False, True]), "a": sample("float64"), "h": sample("float16")}
    found = safetensors.numpy.load_file(save(tmp_path / "a.safetensors", arrays))
    assert all(equal(found[name], array) for name, array in arrays.items())
    safetensors.numpy.save_file(arrays, tmp_path / "b.safetensors")
    mine = read_checkpoint(tmp_path / "b.safetensors")
    assert all(equal(mine[name], array) for name, array in arrays.items())


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    save(tmp_path / "1.safetensors", {"a": np.ones(2, np.float32)})
    save(tmp_path / "2.safetensors", {"b": np.zeros(3, np.float32)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    assert sorted(read_checkpoint(index)) == ["a", "b"]
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}}))
    with pytest.raises(WeightError, match=r"'b' is not in 1\.safetensors"):
        read_checkpoint(index)
    for shard in ("../1.safetensors", "/etc/passwd", "", ".."):
        index.write_text(json.dumps({"weight_map": {"a": shard}}))
        with pytest.raises(WeightError, match="not the name of a file beside it"):
            read_checkpoint(index)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickled_arrays_are_read_without_pickle(tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {
        "f": np.arange(6, dtype=np.float32).reshape(2, 3),
        "order": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
        "half": np.array([0x3F80, 0x4000], np.uint16),  # as paddle keeps bfloat16
        "empty": np.zeros((0, 2), np.float32),
        "scalar": np.array(3, np.int64),
        "large": np.arange(70_000, dtype=np.int32).reshape(700, 100),
        "flag": np.array([True, False]),
    }
    path = tmp_path / "a.pdparams"
    path.write_bytes(pickle.dumps({**arrays, "StructuredToParameterName@@": {"f": "linear_0.w_0"}}, protocol))
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.delattr(pickle, name)
    found = read_checkpoint(path)
    assert sorted(found) == sorted(arrays)
    assert equal(found["half"], np.array([1.0, 2.0], ml_dtypes.bfloat16))
    assert all(equal(found[name], array) for name, array in arrays.items() if name not in ("half", "order"))
    assert np.array_equal(found["order"], arrays["order"])


def test_slices_that_paddle_cut_are_put_together(tmp_path: Path) -> None:
    table = {"w": {"OriginShape": (2, 3), "slices": ["w@@.0", "w@@.1"]}}
    parts = {"w@@.0": np.arange(4.0), "w@@.1": np.arange(4.0, 6.0), "UnpackBigParamInfor@@": table}
    path = tmp_path / "a.pdparams"
    path.write_bytes(pickle.dumps(parts, 2))
    assert read_checkpoint(path)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    table["w"]["OriginShape"] = (7,)
    path.write_bytes(pickle.dumps(parts, 2))
    with pytest.raises(WeightError, match="sliced tensors is damaged"):
        read_checkpoint(path)


def proto(*values: tuple[str, tuple[int, ...], str, bytes]) -> bytes:
    """A mindspore checkpoint made by hand."""

    def sized(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(content)) + content

    out = b""
    for tag, dims, kind, content in values:
        tensor = b"".join(b"\x08" + varint(n) for n in dims) + sized(2, kind.encode()) + sized(3, content)
        out += sized(1, sized(1, tag.encode()) + sized(2, tensor))
    return out


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def test_chunks_strings_and_checksums_of_mindspore(tmp_path: Path) -> None:
    import zlib

    one, two = np.arange(4, dtype=np.float32).tobytes(), np.arange(4, 6, dtype=np.float32).tobytes()
    body = proto(("w", (2, 3), "Float32", one), ("w", (2, 3), "Float32", two), ("note", (0,), "str", b"h\0\0\0"))
    path = tmp_path / "a.ckpt"
    path.write_bytes(body + b"crc_num" + zlib.crc32(body).to_bytes(10, "big"))
    assert read_checkpoint(path)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read_file(path).states[0].left_out == ("note (str)",)
    path.write_bytes(body + b"crc_num" + (1).to_bytes(10, "big"))
    with pytest.raises(WeightError, match="checksum is wrong"):
        read_checkpoint(path)
    path.write_bytes(proto(("w", (4,), "Float32", one), ("x", (4,), "Float32", one), ("w", (4,), "Float32", one)))
    with pytest.raises(WeightError, match="'w' is there twice"):
        read_checkpoint(path)
    path.write_bytes(proto(("w", (), "Float32", one[:4]), ("v", (0,), "Float32", one[:4])))
    found = read_checkpoint(path)
    assert found["w"].shape == found["v"].shape == ()


@pytest.mark.parametrize("start", ["d85e3a7f", "d95e3a7f", "da5e3a7f"])
def test_encrypted_files_are_refused(tmp_path: Path, start: str) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(bytes.fromhex(start) + bytes(100))
    with pytest.raises(WeightError, match="is encrypted") as caught:
        read_checkpoint(path)
    assert "dec_key" in (caught.value.hint or "")


# -- hostile -----------------------------------------------------------------------------------------------------------


class Evil:
    """Pickled, it makes a directory when it is loaded."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (self.place,)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    proof = tmp_path / "proof"
    path = tmp_path / "a.pdparams"
    path.write_bytes(pickle.dumps({"w": np.ones(2), "evil": Evil(str(proof))}, protocol))
    with pytest.raises(WeightError, match="mkdir' to be loaded; nothing was run") as caught:
        read_checkpoint(path)
    assert "allow_pickle=True" in (caught.value.hint or "") and not proof.exists()
    assert list(read_checkpoint(path, allow_pickle=True)) == ["w"]
    assert proof.exists()  # what one asked for by name


def test_allow_pickle_is_for_paddle_alone(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"evil": Evil(str(proof))}, 2))
    for allow in (False, True):
        with pytest.raises(WeightError, match=r"mkdir' to be loaded"):
            read_checkpoint(path, allow_pickle=allow)
    assert not proof.exists()


def test_a_pickle_that_fails_under_allow_pickle_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.pdparams"
    path.write_bytes(b"\x80\x04cno_such_module\nthing\n.")
    with pytest.raises(WeightError, match="cannot be unpickled"):
        read_checkpoint(path, allow_pickle=True)


def torch_file(path: Path, program: bytes, **storages: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", program)
        archive.writestr("a/byteorder", storages.pop("byteorder", b"little"))
        for key, content in storages.items():
            archive.writestr(f"a/data/{key.strip('_')}", content)
    return path


def tensor_program(offset: int, shape: str, strides: str, key: str = "0") -> bytes:
    """A dict with one tensor, in torch's pickle; shape and strides as instructions."""
    return (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
        + b"X\x01\x00\x00\x00" + key.encode() + b"X\x03\x00\x00\x00cpuJ\x04\x00\x00\x00tQ"
        + b"\x8a\x08" + struct.pack("<q", offset)
        + shape.encode("latin1") + strides.encode("latin1")
        + b"\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


def test_views_of_a_storage(tmp_path: Path) -> None:
    content = np.arange(4, dtype=np.float32).tobytes()
    path = torch_file(tmp_path / "a.pth", tensor_program(1, "(K\x02t", "(K\x02t"), _0=content)
    assert read_checkpoint(path)["w"].tolist() == [1, 3]
    path = torch_file(tmp_path / "a.pth", tensor_program(0, "(K\x03K\x04t", "(K\x00K\x01t"), _0=content)
    assert read_checkpoint(path)["w"].tolist() == [[0, 1, 2, 3]] * 3


HOSTILE = {
    "offset": (tensor_program(10, "(K\x02t", "(K\x01t"), "does not hold|beyond"),
    "negative offset": (tensor_program(-1, "(K\x02t", "(K\x01t"), "does not hold"),
    "stride": (tensor_program(0, "(K\x02t", "(K\x09t"), "beyond"),
    "negative stride": (tensor_program(2, "(K\x02t", "(J\xff\xff\xff\xfft"), "strides"),
    "extent": (tensor_program(0, "(K\x09t", "(K\x01t"), "beyond"),
    "huge": (tensor_program(0, "(J\xff\xff\xff\x00J\xff\xff\xff\x7ft", "(K\x00K\x00t"), "is stored in"),
    "overflow": (tensor_program(0, "(" + "J\xff\xff\xff\x7f" * 3 + "t", "(K\x00K\x00K\x00t"), "cannot have the shape"),
    "dims": (tensor_program(0, "(" + "K\x01" * 40 + "t", "(" + "K\x01" * 40 + "t"), "cannot have the shape"),
    "storage": (tensor_program(0, "(K\x02t", "(K\x01t", key="7"), "does not hold"),
    "cut": (tensor_program(0, "(K\x02t", "(K\x01t")[:-9], "damaged"),
    "recursion": (b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "list, not a dict"),
    "itself": (b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", "no tensors"),
    "doubling": (b"\x80\x02}" + b"NN\x86q\x00" + b"0h\x00h\x00\x86q\x00" * 100 + b"h\x00s.", "damaged"),
    "twice": (b"\x80\x02}X\x01\x00\x00\x00aNsX\x01\x00\x00\x00aNs.", "twice"),
    "long number": (b"\x80\x02\x8b\xff\xff\xff\x7f.", "damaged"),
    "unknown instruction": (b"\x80\x02\xff.", "0xff"),
    "model": (b"\x80\x02c__main__\nNet\n)\x81.", "__main__.Net"),
    "wrong kind": (b"\x80\x02}K\x01K\x02sK\x05b.", "no tensors"),
    "not a dict": (b"\x80\x02K\x01.", "not a dict"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_torch_files(tmp_path: Path, case: str) -> None:
    program, message = HOSTILE[case]
    path = torch_file(tmp_path / "a.pth", program, _0=bytes(16))
    with pytest.raises(WeightError, match=message):
        read_checkpoint(path)


def test_other_archives_are_refused_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/code/__torch__.py", b"")
    with pytest.raises(WeightError, match="TorchScript") as caught:
        read_checkpoint(path)
    assert "state_dict()" in (caught.value.hint or "")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}." * 100)
    with pytest.raises(WeightError, match="compressed"):
        read_checkpoint(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", b"hello")
    with pytest.raises(WeightError, match=r"without torch's data.pkl"):
        read_checkpoint(path)
    torch_file(path, b"\x80\x02}.", byteorder=b"big")
    with pytest.raises(WeightError, match="big-endian"):
        read_checkpoint(path)
    path.write_bytes(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    with pytest.raises(WeightError, match="old format") as caught:
        read_checkpoint(path)
    assert "torch.save" in (caught.value.hint or "")
    for content, message in ((b"", "is empty"), (b"hello there", "not a checkpoint")):
        path.write_bytes(content)
        with pytest.raises(WeightError, match=message):
            read_checkpoint(path)
    for place in (tmp_path, tmp_path / "nothing", tmp_path / "nul\0"):
        with pytest.raises(WeightError):
            read_checkpoint(place)


def header(entries: Any, body: bytes = bytes(8)) -> bytes:
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return struct.pack("<Q", len(text)) + text + body


def entry(begin: int, end: int, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "content",
    [
        header({"a": entry(0, 16, (4,))}),
        header({"a": entry(-8, 0)}),
        header({"a": entry(0, 8, (3,))}),
        header({"a": entry(0, 8), "b": entry(0, 8)}),
        header({"a": entry(0, 4, (1,))}),
        header({"a": entry(0, 8, (2**70, 0))}),
        header({"a": entry(0, 8, (True, 2))}),
        header({"a": entry(0, 8, dtype=7)}),
        header({"a": {"dtype": "F32"}}),
        header({"a": 1}),
        header({"__metadata__": 3}),
        header([1]),
        header(b'{"a":' * 20_000),
        header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32"}}'),
        header(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}'),
        struct.pack("<Q", 1 << 25) + b"{",
    ],
)
def test_hostile_safetensors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightError):
        read_checkpoint(path)
    path.write_bytes(header({"a": entry(0, 8)}))
    assert read_checkpoint(path)["a"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "content",
    [
        proto(("w", (3,), "Float32", bytes(8))),
        proto(("w", (2**62,), "Float32", bytes(8))),
        proto(("w", (2**64 - 1,), "Float32", bytes(8))),
        proto(("w", (2,), "Float32", bytes(8)), ("w", (2,), "Float32", bytes(8))),
        proto(("w", (2,), "Float32", bytes(4)), ("w", (1,), "Float32", bytes(4))),
        proto(("w", (2,), "Float32", bytes(8)))[:-1],
        b"\n" + b"\xff" * 20,
        b"\n\x05\x0a\xff\xff\xff\x7f",
        proto(("note", (0,), "str", b"h\0\0\0")),
    ],
)
def test_hostile_mindspore_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(content)
    with pytest.raises(WeightError):
        read_checkpoint(path)


def pristine(extension: str, tmp_path: Path) -> bytes:
    path = tmp_path / f"pristine{extension}"
    if not path.exists():
        save(path, {"a.weight": sample("float32"), "b": sample("bfloat16", (2,)), "c": sample("int64", ())})
    return path.read_bytes()


def touch_all(path: Path) -> None:
    """Read everything there is, and convert it: damage is a WeightError, whatever it is."""
    try:
        found = read_checkpoint(path)
        for name in found:
            raw(found[name], str(found[name].dtype.name))
        convert_checkpoint(path, path.with_name("out.safetensors"), None, overwrite=True)
    except WeightError as error:
        assert error.hint


@pytest.mark.parametrize("extension", [*EXTENSIONS, ".protocol2"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_an_error_of_ours(tmp_path: Path, extension: str, data: st.DataObject) -> None:
    if extension == ".protocol2":
        content = bytearray(pickle.dumps({"m": {"a": sample("float32"), "b": ("x", sample("float16"))}, "e": 3}, 2))
    else:
        content = bytearray(pristine(extension, tmp_path))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 4)) if content else 0):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged"
    path.write_bytes(content)
    touch_all(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=st.binary(max_size=60))
def test_any_pickle_at_all(tmp_path: Path, program: bytes) -> None:
    path = tmp_path / "any.pdparams"
    path.write_bytes(b"\x80\x04" + program)
    touch_all(path)


def test_the_reader_of_the_property_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "a.pdparams"
    path.write_bytes(pickle.dumps({"w": np.ones(2)}, 4))
    assert list(read_checkpoint(path)) == ["w"]


# -- converting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", EXTENSIONS)
@pytest.mark.parametrize("target", EXTENSIONS)
def test_without_a_map_the_same_tensors_are_wrapped_again(tmp_path: Path, source: str, target: str) -> None:
    arrays = {name: sample(name) for name in DTYPES}
    report = convert_checkpoint(save(tmp_path / f"a{source}", arrays), tmp_path / f"b{target}", None)
    found = read_checkpoint(tmp_path / f"b{target}")
    assert all(equal(found[name], array) for name, array in arrays.items())
    assert len(report) == len(arrays) and report.direction == "as it is" and "no mapping" in str(report)


def test_there_and_back(tmp_path: Path) -> None:
    arrays = simple_arrays()
    save(tmp_path / "a.pth", arrays)
    simple_map().save(tmp_path / "map.json")
    report = convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", tmp_path / "map.json")
    found = read_checkpoint(tmp_path / "b.pdparams")
    assert list(found) == ["dense.w", "dense.b", "bn.scale"] == list(report.written)
    assert equal(found["dense.w"], arrays["fc.weight"].T.copy())
    assert report.direction == "reference to candidate" and report.notes == report.left == () and report
    back = convert_checkpoint(tmp_path / "b.pdparams", tmp_path / "c.pth", str(tmp_path / "map.json"))
    assert back.direction == "candidate to reference"
    again = read_checkpoint(tmp_path / "c.pth")
    assert all(equal(again[name], array) for name, array in arrays.items())
    with pytest.raises(WeightError, match="has none of the names of that side"):
        convert_checkpoint(tmp_path / "b.pdparams", tmp_path / "d.pdparams", simple_map(), reverse=False)


def test_equal_names_on_both_sides_go_by_the_framework(tmp_path: Path) -> None:
    same = held(("w", (3, 3)))
    both = simple_map(reference=same, candidate=same, entries=(Entry(("w",), ("w",), (Transpose(),)),))
    save(tmp_path / "a.pdparams", {"w": np.arange(9, dtype=np.float32).reshape(3, 3)})
    assert convert_checkpoint(tmp_path / "a.pdparams", tmp_path / "b.pth", both).direction == "candidate to reference"
    assert convert_checkpoint(tmp_path / "b.pth", tmp_path / "c.pdparams", both).direction == "reference to candidate"
    assert (tmp_path / "a.pdparams").read_bytes() == (tmp_path / "c.pdparams").read_bytes()


def test_names_that_fit_neither_side(tmp_path: Path) -> None:
    save(tmp_path / "a.pth", {"fc_weight": np.ones(2, np.float32)})
    with pytest.raises(WeightError) as caught:
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", simple_map())
    assert "none of the names of either side" in caught.value.message
    assert "the reference's fc.weight [4, 3] is not in it (nearest: fc_weight)" in caught.value.message
    assert not (tmp_path / "b.pdparams").exists()


def test_all_problems_at_once(tmp_path: Path) -> None:
    arrays = simple_arrays()
    arrays["fc.weights"] = arrays.pop("fc.weight")
    arrays["fc.bias"] = np.ones(5, np.float32)
    arrays["norm.weight"] = np.ones(4, np.int64)
    save(tmp_path / "a.pth", arrays)
    unsure = simple_map(
        candidate=(*simple_map().candidate, *held(("extra", (2,)))),
        entries=(
            *simple_map().entries[:2],
            Entry(("norm.weight",), ("bn.scale",), why="order", confidence=0.4, options=("bn.bias",)),
        ),
    )
    with pytest.raises(WeightError) as caught:
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", unsure)
    for part in (
        "fc.weight [4, 3] is not in the file (nearest: fc.weights",
        "dense.w [3, 4] needs it",
        "fc.bias is [5] in the file and [4] in the torch model",
        "norm.weight is int64 in the file and float32 in the torch model",
        "the map is not sure of norm.weight -> bn.scale (order); it could also be bn.bias",
        "extra [2] of the paddle model has no source in the map",
        "fc.weights [4, 3] is in the file and not in the torch model (nearest: fc.weight",
    ):
        assert part in caught.value.message
    assert os.listdir(tmp_path) == ["a.pth"]
    with pytest.raises(WeightError, match="not in the file"):  # nothing at all can be converted
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", unsure, strict=False)
    assert os.listdir(tmp_path) == ["a.pth"]


@pytest.mark.parametrize("target", [".pdparams", ".safetensors"])
def test_not_strict_converts_what_fits(tmp_path: Path, target: str) -> None:
    arrays = simple_arrays()
    del arrays["fc.bias"]
    save(tmp_path / "a.pth", arrays)
    report = convert_checkpoint(tmp_path / "a.pth", tmp_path / f"b{target}", simple_map(), strict=False)
    assert report.written == ("dense.w", "bn.scale")
    assert sorted(read_checkpoint(tmp_path / f"b{target}")) == ["bn.scale", "dense.w"]
    assert [text.split(";")[0] for text in report.left] == ["fc.bias [4] is not in the file"]
    assert not report and "\nleft out: fc.bias [4] is not in the file" in str(report)


@pytest.mark.parametrize("target", EXTENSIONS)
def test_what_fails_while_writing_is_left_out_or_refused(tmp_path: Path, target: str) -> None:
    other = "mindspore" if target == ".ckpt" else "torch" if target == ".pth" else "paddle"
    mapping = simple_map(
        frameworks=("safetensors", other),
        reference=held(("one", (2,)), ("two", (2,)), ("gone", (2,)), ("fine", (2,))),
        candidate=held(("both", (2,)), ("fine", (2,))),
        entries=(
            Entry(("one", "two"), ("both",), (Untie(2),)),
            Entry(("gone",), (), (Omit(1.0, (2,), "float32"),)),
            Entry(("fine",), ("fine",)),
        ),
    )
    arrays = {name: np.full(2, i, np.float32) for i, name in enumerate(("one", "two", "gone", "fine"))}
    save(tmp_path / "a.safetensors", arrays)
    with pytest.raises(WeightError) as caught:
        convert_checkpoint(tmp_path / "a.safetensors", tmp_path / f"b{target}", mapping)
    assert "are not equal" in caught.value.message and "cannot be left out" in caught.value.message
    assert os.listdir(tmp_path) == ["a.safetensors"]
    report = convert_checkpoint(tmp_path / "a.safetensors", tmp_path / f"b{target}", mapping, strict=False)
    assert report.written == ("fine",) and len(report.left) == 2
    assert {k: v.tolist() for k, v in read_checkpoint(tmp_path / f"b{target}").items()} == {"fine": [3, 3]}


def test_one_to_many_and_none_to_one(tmp_path: Path) -> None:
    mapping = simple_map(
        reference=held(("qkv", (6, 2))),
        candidate=held(("q", (2, 2)), ("k", (2, 2)), ("v", (2, 2)), ("gamma", (3,))),
        entries=(
            Entry((), ("gamma",), (Constant(1.0, (3,), "float32"),)),
            Entry(("qkv",), ("q", "k", "v"), (Split((2, 2, 2)),)),
        ),
    )
    packed = np.arange(12, dtype=np.float32).reshape(6, 2)
    save(tmp_path / "a.pth", {"qkv": packed})
    report = convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", mapping)
    assert report.written == ("q", "k", "v", "gamma")
    found = read_checkpoint(tmp_path / "b.pdparams")
    assert equal(found["k"], packed[2:4]) and found["gamma"].tolist() == [1, 1, 1]
    convert_checkpoint(tmp_path / "b.pdparams", tmp_path / "c.pth", mapping)
    assert equal(read_checkpoint(tmp_path / "c.pth")["qkv"], packed)


def test_tied_parameters(tmp_path: Path) -> None:
    tied = (Held("embed.weight", (3, 2), "float32", names=("head.weight",)),)
    single = (Held("table", (3, 2), "float32", stored="emb.embedding_table"),)
    mapping = simple_map(
        frameworks=("torch", "mindspore"),
        reference=tied,
        candidate=single,
        entries=(Entry(("embed.weight",), ("table",)),),
    )
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    for given_names in (["embed.weight"], ["head.weight"], ["embed.weight", "head.weight"]):
        save(tmp_path / "a.pth", dict.fromkeys(given_names, array))
        report = convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.ckpt", mapping, overwrite=True)
        assert report.written == ("emb.embedding_table",)
    for extension in (".pth", ".safetensors"):
        back = convert_checkpoint(tmp_path / "b.ckpt", tmp_path / f"c{extension}", mapping)
        assert back.written == ("embed.weight", "head.weight")
        found = read_checkpoint(tmp_path / f"c{extension}")
        assert equal(found["embed.weight"], array) and equal(found["head.weight"], array)
    assert (tmp_path / "c.pth").stat().st_size < (tmp_path / "a.pth").stat().st_size  # stored once
    save(tmp_path / "a.pth", {"embed.weight": array, "head.weight": array + 1})
    with pytest.raises(WeightError, match="are one tensor in the model and differ in the file"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.ckpt", mapping, overwrite=True)
    untied = simple_map(
        frameworks=("mindspore", "paddle"),
        reference=single,
        candidate=held(("a", (3, 2)), ("b", (3, 2))),
        entries=(Entry(("table",), ("a", "b"), (Tie(2),)),),
    )
    assert convert_checkpoint(tmp_path / "b.ckpt", tmp_path / "d.pdparams", untied).written == ("a", "b")


@pytest.mark.parametrize("nest", ["state_dict", "model", "net.inner"])
@pytest.mark.parametrize("prefix", ["", "module.", "module.model."])
def test_nested_and_prefixed_checkpoints(tmp_path: Path, nest: str, prefix: str) -> None:
    arrays = {prefix + name: array for name, array in simple_arrays().items()}
    whole: dict[str, Any] = OrderedDict(arrays)
    for key in reversed(nest.split(".")):
        whole = {key: whole, "epoch": 3, "args": {"lr": 0.1}}
    path = tmp_path / "a.pdparams"
    path.write_bytes(pickle.dumps(whole, 4))
    mapping = simple_map(frameworks=("paddle", "torch"))
    report = convert_checkpoint(path, tmp_path / "b.pth", mapping)
    assert report.written == ("dense.w", "dense.b", "bn.scale")
    said = str(report)
    assert f"the weights were taken from {nest!r} of the file" in said and "epoch (3), args (dict)" in said
    assert (f"begin with {prefix!r}, which was taken off" in said) == bool(prefix)


def test_a_prefix_that_only_the_map_has(tmp_path: Path) -> None:
    save(tmp_path / "a.pth", {"weight": np.ones((4, 3), np.float32), "bias": np.ones(4, np.float32)})
    mapping = simple_map(
        reference=simple_map().reference[:2], candidate=simple_map().candidate[:2], entries=simple_map().entries[:2]
    )
    report = convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", mapping)
    assert len(report) == 2 and "the names in the map begin with 'fc.'" in str(report)


def test_of_several_state_dicts_the_usual_one_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.pdparams"
    arrays = simple_arrays()
    path.write_bytes(pickle.dumps({"ema": {k: v * 0 for k, v in arrays.items()}, "model": arrays}, 4))
    report = convert_checkpoint(path, tmp_path / "b.pth", simple_map(frameworks=("paddle", "torch")))
    assert read_checkpoint(tmp_path / "b.pth")["dense.b"].tolist() == [0, 1, 2, 3]
    assert "the state dict 'ema'" in str(report)
    path.write_bytes(pickle.dumps({"one": arrays, "two": dict(arrays)}, 4))
    with pytest.raises(WeightError, match="several state dicts"):
        convert_checkpoint(path, tmp_path / "c.pth", None)


def test_an_optimizer_in_a_mindspore_file_is_only_said(tmp_path: Path) -> None:
    arrays = simple_arrays()
    more = {"moments.fc.bias": arrays["fc.bias"], "global_step": np.array([7], np.int32), "epoch_num": np.array(3)}
    save(tmp_path / "a.ckpt", {**arrays, **more})
    report = convert_checkpoint(
        tmp_path / "a.ckpt", tmp_path / "b.pdparams", simple_map(frameworks=("mindspore", "paddle"))
    )
    assert len(report) == 3 and "moments.fc.bias, global_step, epoch_num" in str(report)


def test_narrowing_nan_and_numbers_that_do_not_fit(tmp_path: Path) -> None:
    arrays = {"w": np.array([1.0, np.nan, 1e10], np.float32), "n": np.array([1, 2**40])}
    mapping = simple_map(
        reference=(Held("w", (3,), "float32"), Held("n", (2,), "int64")),
        candidate=(Held("w", (3,), "float16"), Held("n", (2,), "int32")),
        entries=(Entry(("w",), ("w",)), Entry(("n",), ("n",))),
    )
    save(tmp_path / "a.pth", arrays)
    with pytest.raises(WeightError, match="n: int64 does not fit int32"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", mapping)
    assert os.listdir(tmp_path) == ["a.pth"]
    report = convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", mapping, strict=False)
    assert "w: float32 narrowed to float16, some to infinity" in report.notes and "w holds NaN" in report.notes
    assert read_checkpoint(tmp_path / "b.pdparams")["w"].dtype == np.float16
    save(tmp_path / "a.pth", {**arrays, "w": np.ones(3, np.float32), "n": np.array([1, 2])})
    report = convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", mapping, overwrite=True)
    assert set(report.notes) == {"w: float32 narrowed to float16", "n: int64 narrowed to int32"}


def test_what_is_not_needed_may_be_absent(tmp_path: Path) -> None:
    counter = {"needed": False, "buffer": True}
    mapping = simple_map(
        reference=(*simple_map().reference, *held(("steps", (1,)), **counter)),
        candidate=(*simple_map().candidate, *held(("count", (1,)), **counter)),
        entries=(*simple_map().entries, Entry(("steps",), ("count",))),
    )
    save(tmp_path / "a.pth", simple_arrays())
    report = convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", mapping)
    assert len(report) == 3 and "steps is not in the file, and not needed" in report.notes


def test_dtypes_that_the_target_cannot_hold(tmp_path: Path) -> None:
    save(tmp_path / "a.pth", {"c": np.ones(2, np.complex64), "f": np.ones(2, np.float32)})
    with pytest.raises(WeightError, match="c: a mindspore checkpoint file cannot hold complex64"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.ckpt", None)
    assert convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.ckpt", None, strict=False).written == ("f",)
    save(tmp_path / "a.pth", {"e": np.ones(0, np.float32), "f": np.ones(2, np.float32)})
    with pytest.raises(WeightError, match=r"mindspore reads the shape \[0\] as a scalar"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "c.ckpt", None)


def test_targets(tmp_path: Path) -> None:
    save(tmp_path / "a.pth", simple_arrays())
    with pytest.raises(WeightError, match=r"extension '\.pdparam'; legal are \.pth") as caught:
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparam", None)
    assert ".pdparams" in (caught.value.hint or "")
    (tmp_path / "b.ckpt").write_bytes(b"precious")
    with pytest.raises(WeightError, match="is there already"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.ckpt", None)
    assert (tmp_path / "b.ckpt").read_bytes() == b"precious"
    assert len(convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.ckpt", None, overwrite=True)) == 3
    with pytest.raises(WeightError, match="cannot be written"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "nowhere" / "b.ckpt", None)
    with pytest.raises(WeightError, match=r"leads to paddle; \.ckpt is a file of mindspore"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "c.ckpt", simple_map())
    same = convert_checkpoint(tmp_path / "a.pth", tmp_path / "a.pth", None, overwrite=True)
    assert len(same) == 3 and equal(read_checkpoint(tmp_path / "a.pth")["fc.bias"], simple_arrays()["fc.bias"])
    assert sorted(os.listdir(tmp_path)) == ["a.pth", "b.ckpt"]


def test_nothing_is_left_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a.pth", simple_arrays())

    def full(*_: Any) -> Iterator[Any]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("twinscope.weights.convert.raw", full)
    for extension in EXTENSIONS:
        with pytest.raises(WeightError, match="No space left"):
            convert_checkpoint(tmp_path / "a.pth", tmp_path / f"b{extension}", None)
    assert os.listdir(tmp_path) == ["a.pth"]


def test_no_framework_is_imported(tmp_path: Path) -> None:
    save(tmp_path / "a.pth", simple_arrays())
    code = (
        "import sys\nfrom twinscope.weights.convert import convert_checkpoint\n"
        "for extension in sys.argv[2:]:\n"
        "    convert_checkpoint(sys.argv[1] + '/a.pth', sys.argv[1] + '/b' + extension, None)\n"
        "print(*{'torch', 'paddle', 'mindspore', 'safetensors', 'google'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(twinscope.__file__).parent.parent)}
    arguments = [sys.executable, "-c", code, str(tmp_path), *EXTENSIONS]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_thousands_of_parameters_take_seconds(tmp_path: Path) -> None:
    names = [f"blocks.{i}.weight" for i in range(2000)]
    save(tmp_path / "a.pth", {name: np.zeros(2, np.float32) for name in names})
    mapping = simple_map(
        reference=held(*((name, (2,)) for name in names)),
        candidate=held(*((f"x.{name}", (2,)) for name in names)),
        entries=tuple(Entry((name,), (f"x.{name}",)) for name in names),
    )
    began = time.monotonic()
    assert len(convert_checkpoint(tmp_path / "a.pth", tmp_path / "b.pdparams", mapping)) == 2000
    save(
        tmp_path / "a.pth", {f"y{name}": np.zeros(2, np.float32) for name in names[1:]} | {names[0]: np.zeros(2, "f4")}
    )
    with pytest.raises(WeightError, match="is not in the file"):
        convert_checkpoint(tmp_path / "a.pth", tmp_path / "c.pdparams", mapping)
    assert time.monotonic() - began < 20


def test_extensions_belong_to_one_format() -> None:
    every = [extension for known in FORMATS for extension in known.extensions]
    assert len(set(every)) == len(every) == 6


# -- memory ------------------------------------------------------------------------------------------------------------


def anonymous() -> int:
    """Bytes of this process that are not a mapped file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


class Peak:
    """The most anonymous memory above what there was, watched by a thread."""

    def __enter__(self) -> Peak:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)  # what was freed and kept would hide as much of what is allocated
        self.before = self.most = anonymous()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.done.wait(0.0005):
            self.most = max(self.most, anonymous())

    def __exit__(self, *_: Any) -> None:
        self.done.set()
        self.thread.join()

    @property
    def above(self) -> int:
        return self.most - self.before


COUNT, SIDE = 24, 2048  # tensors of 16 MiB
LARGEST = SIDE * SIDE * 4


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("large") / "a.pth"
    tensor = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    specs = [Spec((f"layer{i}.weight",), tensor.shape, "float32") for i in range(COUNT)]
    with appearing(path, overwrite=False) as part:
        format_for(path).write(part.file, specs, ((s, [raw(tensor, "float32")]) for s in specs), None)
    yield path
    path.unlink()


def large_map(steps: Any, framework: str) -> WeightMap:
    names = [(f"layer{i}.weight", (SIDE, SIDE)) for i in range(COUNT)]
    return simple_map(
        frameworks=("torch", framework),
        reference=held(*names),
        candidate=held(*names),
        entries=tuple(Entry((name,), (name,), steps) for name, _ in names),
    )


linux_only = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is counted as Linux does")


@linux_only
@pytest.mark.parametrize("target", EXTENSIONS)
@pytest.mark.parametrize("step", ["transpose", "gates", "split and joined"])
def test_memory_is_at_most_twice_the_largest_tensor(tmp_path: Path, large: Path, target: str, step: str) -> None:
    steps = {
        "transpose": (Transpose(),),
        "gates": (Reorder((0, 2, 1, 3)),),
        "split and joined": (Split((SIDE // 2, SIDE // 2)), Concat((SIDE // 2, SIDE // 2))),
    }[step]
    framework = format_for(Path(f"b{target}")).framework or "paddle"
    mapping = large_map(steps, framework)
    with Peak() as peak:
        report = convert_checkpoint(large, tmp_path / f"b{target}", mapping)
    (tmp_path / f"b{target}").unlink()
    assert len(report) == COUNT
    assert peak.above < 2 * LARGEST + (8 << 20), f"{peak.above / LARGEST:.2f} of the largest tensor"


@linux_only
def test_the_measurement_can_fail(large: Path) -> None:
    with Peak() as peak:
        kept = [np.array(array) for array in read_checkpoint(large).values()]
    assert peak.above > (len(kept) - 2) * LARGEST


@linux_only
def test_text_pickles_too_take_twice_the_largest_at_most(tmp_path: Path) -> None:
    path = tmp_path / "a.pdparams"
    tensor = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    with path.open("wb") as file:
        pickle.dump({f"w{i}": tensor + i for i in range(4)}, file, protocol=2)
    assert "text" in str(next(iter(read_file(path).states[0].tensors.values())).place)
    del tensor
    with Peak() as peak:
        convert_checkpoint(path, tmp_path / "b.pth", None)
    assert peak.above < 2 * LARGEST + (8 << 20), f"{peak.above / LARGEST:.2f} of the largest tensor"
    assert equal(read_checkpoint(tmp_path / "b.pth")["w3"], np.array(read_checkpoint(path)["w3"]))
