"""The trace directory: what is written can be read, what is damaged or hostile is refused, the user's files stay."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.numpy import load_file

from twinscope import store
from twinscope.errors import OptionError, TraceError, TraceFormatError, TraceWriteError
from twinscope.records import (
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
from twinscope.store import MemoryWriter, Trace, TraceWriter

MANIFEST = Manifest("torch", {"torch": "2.13.0"}, "Net", (), {"level": "module"})
FORMATS = ("safetensors", "npy")


def record(index: int, *values: int, kept: bool = True, **changes: Any) -> Record:
    slots = tuple(Slot(f"in.{i}", TensorMeta((2, 3), "float32"), value, None, kept) for i, value in enumerate(values))
    return replace(Record(index, 0, Kind.MODULE, Phase.FORWARD, "fc", "Linear", index, None, 0, slots), **changes)


def small(path: Path, format: str = "safetensors", *, close: bool = True, records: int = 3) -> dict[int, Any]:
    """A trace of a few records with a tensor each; what it holds."""
    arrays = {i: np.arange(6, dtype=np.float32).reshape(2, 3) + i for i in range(records)}
    writer = TraceWriter(path, MANIFEST, format=format, shard_bytes=4200)
    for i, array in arrays.items():
        writer.tensor(i, array)
        writer.record(record(i, i, args={"scale": float("inf"), "$x": [1, None]}))
    writer.flush()
    if close:
        writer.close()
    else:
        abandon(writer)
    return arrays


def abandon(writer: TraceWriter) -> None:
    """What the death of the process leaves: descriptors closed, nothing else done."""
    if writer._shard is not None:
        os.close(writer._shard.fd)
    os.close(writer._records_fd)


def read_all(path: Path) -> Trace:
    """Everything there is to read, as a user would."""
    trace = Trace.open(path)
    trace.verify()
    for value in trace.kept:
        trace.tensor(value)
    return trace


def edit_line(path: Path, number: int, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replace a line of records.jsonl, of a trace that was cut short (so that sizes are not compared)."""
    lines = (path / "records.jsonl").read_bytes().splitlines()
    raw = json.loads(lines[number])
    changed = change(raw)
    lines[number] = changed if isinstance(changed, bytes) else json.dumps(raw if changed is None else changed).encode()
    (path / "records.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def edit_manifest(path: Path, **changes: Any) -> None:
    raw = json.loads((path / "manifest.json").read_text())
    raw.update(changes)
    (path / "manifest.json").write_text(json.dumps(raw))


def refused(path: Path, match: str | None = None) -> TraceError:
    with pytest.raises(TraceError, match=match) as caught:
        read_all(path)
    return caught.value


# -- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_round_trip(tmp_path: Path, format: str) -> None:
    arrays = small(tmp_path, format)
    trace = Trace.open(tmp_path)
    trace.verify()
    assert trace.manifest == replace(MANIFEST, complete=True)
    assert trace.path == tmp_path
    assert len(trace) == 3 and list(trace) == list(trace.records) and isinstance(trace.records, tuple)
    assert trace.steps == (0,)
    assert trace.kept == set(arrays)
    assert trace.records[1] == record(1, 1, args={"scale": float("inf"), "$x": [1, None]})
    for item in trace:
        array = trace.tensor(item.slots[0])
        assert array is not None and array.dtype == np.float32
        np.testing.assert_array_equal(array, arrays[item.index])
        assert not array.flags.writeable
    assert trace.tensor(99) is None
    assert Trace.open(trace) is trace


def test_a_manifest_round_trips(tmp_path: Path) -> None:
    params = (
        ParamInfo("weight", TensorMeta((4, 3), "bfloat16", "cuda:0"), "weight", True, False),
        ParamInfo("b", TensorMeta((), "float32"), "bias", False, True, "other.b"),
        ParamInfo("w", TensorMeta((4, 1, 3), "float32"), "weight", True, False, None, (2, 0)),
    )
    modules = (
        ModuleInfo("", "net.Net", None, False),
        ModuleInfo("fc", "torch.nn.Linear", "linear", True, params, ("tied",), {"eps": 1e-5, "max": float("inf")}),
    )
    manifest = Manifest(
        "torch",
        {"torch": "2"},
        "Net",
        modules,
        {"a": {"$b": [float("-inf")]}},
        1,
        2,
        created="now",
        notes=("x", "\ud800"),
    )
    with TraceWriter(tmp_path, manifest) as writer:
        writer.close(replace(manifest, error="boom"))
    assert Trace.open(tmp_path).manifest == replace(manifest, error="boom")


ints = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
text = st.text(st.characters(), max_size=8)  # surrogates included
json_values = st.recursive(
    st.none() | st.booleans() | ints | floats | text | st.just("$float"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(text | st.sampled_from(["$", "$float", "$$x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
stats = st.builds(
    Stats,
    floats,
    floats,
    floats,
    floats,
    floats,
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**128 - 1),
)
metas = st.builds(TensorMeta, st.lists(st.integers(0, 2**62), max_size=5).map(tuple), text, text)
slots = st.builds(Slot, text, metas, ints, st.none() | stats, st.just(False), st.none() | text)
records = st.builds(
    Record,
    ints,
    ints,
    st.sampled_from(Kind),
    st.sampled_from(Phase),
    text,
    text,
    ints,
    st.none() | ints,
    ints,
    st.lists(slots, max_size=3).map(tuple),
    st.dictionaries(text | st.just("$float"), json_values, max_size=3),
    st.none() | st.builds(Source, text, ints, text),
    st.booleans(),
    st.none() | st.booleans(),
    st.booleans(),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records, max_size=4, unique_by=lambda r: r.index))
def test_any_record_round_trips(tmp_path_factory: pytest.TempPathFactory, items: list[Record]) -> None:
    path = tmp_path_factory.mktemp("trace")
    with TraceWriter(path, MANIFEST) as writer, MemoryWriter(MANIFEST) as memory:
        for item in items:
            writer.record(item)
            memory.record(item)
    trace = Trace.open(path)
    trace.verify()
    assert list(trace) == items
    assert repr(list(trace)) == repr(items)  # -0.0 and 0.0, True and 1 are equal, and not the same
    assert list(memory.trace()) == items
    for line in (path / "records.jsonl").read_bytes().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # strict: other tools may read it
    shutil.rmtree(path)


def test_nan_in_stats_and_args_is_strict_json(tmp_path: Path) -> None:
    nan = float("nan")
    odd = Stats(nan, float("inf"), float("-inf"), -0.0, 1.0, 3, 2, 255)
    slot = Slot("out", TensorMeta((3,), "float32"), 1, odd)
    with TraceWriter(tmp_path, MANIFEST) as writer:
        writer.record(record(0, args={"fill": nan}, slots=(slot,)))
    line = (tmp_path / "records.jsonl").read_text()
    assert "NaN" not in line and "Infinity" not in line
    assert json.loads(line)["slots"][0]["stats"] == ["nan", "inf", "-inf", -0.0, 1.0, 3, 2, "ff"]
    (read,) = Trace.open(tmp_path)
    assert repr(read.slots[0].stats) == repr(odd)
    assert repr(read.args) == repr({"fill": nan})


def test_args_that_are_not_json_become_text(tmp_path: Path) -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError

    deep: list[Any] = []
    deep.append(deep)
    args = {"t": (1, 2), "o": object, "b": Bad(), "n": np.int64(3), "f": np.float32(0.5), "d": deep, 1: np.bool_(True)}
    args["huge"] = 10**5000
    with TraceWriter(tmp_path, MANIFEST) as writer, MemoryWriter(MANIFEST) as memory:
        writer.record(record(0, args=args))
        memory.record(record(0, args=args))
    (read,) = Trace.open(tmp_path)
    assert read.args["t"] == [1, 2] and read.args["o"] == "<class 'object'>" and read.args["b"] == "<Bad>"
    assert read.args["n"] == 3 and read.args["f"] == 0.5 and read.args["1"] is True
    assert read.args["huge"].startswith("0x")
    assert memory.trace().records == (read,)


DTYPES = [
    np.dtype(getattr(ml_dtypes, name, None) if name in store._ML_DTYPES else name)
    for name in store._DTYPES
    if name not in store._ML_DTYPES or hasattr(ml_dtypes, name)
]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_round_trips(tmp_path: Path, dtype: np.dtype[Any], format: str) -> None:
    arrays = [np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype), np.array(1).astype(dtype), np.zeros((0, 3), dtype)]
    arrays += [arrays[0].T, arrays[0][:, ::2], np.broadcast_to(arrays[1], (2, 2))]
    with TraceWriter(tmp_path, MANIFEST, format=format) as writer, MemoryWriter(MANIFEST) as memory:
        for i, array in enumerate(arrays):
            writer.tensor(i, array)
            memory.tensor(i, array)
        writer.record(record(0, *range(len(arrays))))
    trace = Trace.open(tmp_path)
    trace.verify()
    for reader in (trace, memory.trace()):
        for i, array in enumerate(arrays):
            found = reader.tensor(i)
            assert found is not None and found.dtype == dtype and found.shape == array.shape
            assert found.tobytes() == array.tobytes()


plain_dtypes = st.sampled_from(["<f4", ">f4", "<f8", ">i8", "?", "u1", ">u2", "<f2", ">c8", "<c16"]).map(np.dtype)


@settings(max_examples=100, deadline=None)
@given(
    npst.arrays(plain_dtypes, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)),
    st.randoms(),
    st.sampled_from(FORMATS),
)
def test_any_tensor_round_trips(tmp_path_factory: pytest.TempPathFactory, array: Any, random: Any, format: str) -> None:
    axes = list(range(array.ndim))
    random.shuffle(axes)
    view = array.transpose(axes)[tuple(slice(None, None, random.choice([1, 2, -1])) for _ in axes)]
    path = tmp_path_factory.mktemp("trace")
    with TraceWriter(path, MANIFEST, format=format) as writer, MemoryWriter(MANIFEST) as memory:
        writer.tensor(5, view)
        memory.tensor(5, view)
        writer.record(record(0, 5))
    for trace in (Trace.open(path), memory.trace()):
        found = trace.tensor(5)
        assert found is not None and found.dtype.isnative and found.shape == view.shape
        assert found.astype(view.dtype).tobytes() == view.tobytes()
    if format == "npy":
        assert np.load(path / "tensors" / "000005.npy", allow_pickle=False).tobytes() == found.tobytes()
    shutil.rmtree(path)


def test_big_strided_and_swapped_tensors_are_written_in_pieces(tmp_path: Path) -> None:
    wide = np.arange(3_000_000, dtype=">i4").reshape(1500, 2000).T
    with TraceWriter(tmp_path, MANIFEST) as writer:
        writer.tensor(1, wide)
        writer.record(record(0, 1))
    trace = Trace.open(tmp_path)
    trace.verify()
    np.testing.assert_array_equal(trace.tensor(1), wide)


def test_the_memory_may_be_reused(tmp_path: Path) -> None:
    array = np.ones(4)
    with TraceWriter(tmp_path, MANIFEST) as writer, MemoryWriter(MANIFEST) as memory:
        for each in (writer, memory):
            each.tensor(1, array)
            each.record(record(0, 1))
        array[:] = 7
    for trace in (Trace.open(tmp_path), memory.trace()):
        np.testing.assert_array_equal(trace.tensor(1), np.ones(4))


# -- shards ----------------------------------------------------------------------------------------------------------


def test_sealed_shards_load_with_safetensors(tmp_path: Path) -> None:
    arrays = {i: np.random.default_rng(i).normal(size=(10, i)).astype(np.float32) for i in range(60)}
    arrays[60] = np.arange(4000.0)  # larger than a shard
    arrays[61] = np.array(True)
    with TraceWriter(tmp_path, MANIFEST, shard_bytes=8192) as writer:
        for i, array in arrays.items():
            writer.tensor(i, array)
        writer.tensor(99, np.array([1 + 2j]))
        writer.record(record(0, *arrays, 99))
    shards = sorted(tmp_path.glob("tensors-*.safetensors"))
    assert len(shards) > 5
    found: dict[str, Any] = {}
    for shard in shards:
        held = load_file(shard)
        assert shard.stat().st_size <= 8192 or len(held) == 1
        found.update(held)
    np.testing.assert_array_equal(found.pop("99"), [[1.0, 2.0]])
    assert found.keys() == {str(i) for i in arrays}
    for i, array in arrays.items():
        np.testing.assert_array_equal(found[str(i)], array)
    read_all(tmp_path)


def test_a_full_header_begins_another_shard(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, MANIFEST, shard_bytes=1 << 14) as writer:
        for i in range(700):
            writer.tensor(i, np.float32(i))
        writer.record(record(0, *range(700)))
    shards = sorted(tmp_path.glob("tensors-*.safetensors"))
    assert len(shards) > 1
    assert sum(len(load_file(shard)) for shard in shards) == 700
    trace = read_all(tmp_path)
    assert trace.tensor(699) == 699


def test_bfloat16_shards_load_with_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    with TraceWriter(tmp_path, MANIFEST) as writer:
        writer.tensor(1, np.array([1.5, -2], ml_dtypes.bfloat16))
        writer.tensor(2, np.array([1.5, -2], ml_dtypes.float8_e4m3fn))
    held = load_torch(tmp_path / "tensors-00000.safetensors")
    assert held["1"].dtype == torch.bfloat16 and held["1"].tolist() == [1.5, -2]
    assert held["2"].dtype == torch.float8_e4m3fn and held["2"].float().tolist() == [1.5, -2]


def test_npy_names_are_safe_and_unique(tmp_path: Path) -> None:
    names = [
        "../../x",
        "a/b",
        "A/b",
        "nul",
        "con.weight",
        "",
        "...",
        "-rf",
        "é" * 300,
        "encoder.0.out",
        "encoder.0.out",
    ]
    (tmp_path / "tensors").mkdir()
    (tmp_path / "tensors" / "a_b.npy").write_text("the user's")
    with TraceWriter(tmp_path, MANIFEST, format="npy") as writer:
        for i, name in enumerate(names):
            writer.tensor(i, np.full(3, i), name=name)
        writer.record(record(0, *range(len(names))))
    trace = read_all(tmp_path)
    files = [place.file for place in trace._places.values()]
    assert len({file.lower() for file in files}) == len(names)
    assert "tensors/encoder.0.out.npy" in files and "tensors/encoder.0.out-2.npy" in files
    assert not {"tensors/nul.npy", "tensors/con.weight.npy"} & set(files)
    for i in range(len(names)):
        np.testing.assert_array_equal(trace.tensor(i), np.full(3, i))
        np.testing.assert_array_equal(np.load(tmp_path / trace._places[i].file, allow_pickle=False), np.full(3, i))
    assert (tmp_path / "tensors" / "a_b.npy").read_text() == "the user's"


# -- wrong use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda path: TraceWriter(path, MANIFEST), lambda path: MemoryWriter(MANIFEST)])
def test_wrong_use_is_refused(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    writer = make(tmp_path)
    writer.tensor(1, np.ones(2))
    assert 1 in writer and 2 not in writer
    with pytest.raises(TraceWriteError, match="value 1 is written twice"):
        writer.tensor(1, np.ones(2))
    with pytest.raises(TraceWriteError, match="value 2 is said to be kept"):
        writer.record(record(0, 1, 2))
    for odd in (np.array([object()]), np.array(["text"]), np.zeros(1, "M8[s]"), np.zeros(1, "i4,f4")):
        with pytest.raises(TraceWriteError, match="cannot be kept"):
            writer.tensor(3, odd)
    writer.record(record(0, 1))
    writer.close()
    writer.close()
    for call in (lambda: writer.tensor(5, np.ones(1)), lambda: writer.record(record(1))):
        with pytest.raises(TraceWriteError, match="closed"):
            call()


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'npz' is not known\nHint: use one of 'safetensors', 'npy'"):
        TraceWriter(tmp_path, MANIFEST, format="npz")
    with pytest.raises(OptionError, match="shard_bytes=0"):
        TraceWriter(tmp_path, MANIFEST, shard_bytes=0)
    assert not list(tmp_path.iterdir())


def test_a_record_index_twice_is_refused(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, MANIFEST) as writer:
        writer.record(record(0))
        with pytest.raises(TraceWriteError, match="record 0 is written twice"):
            writer.record(record(0))


def test_a_line_too_long_to_read_is_not_written(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, MANIFEST) as writer:
        with pytest.raises(TraceWriteError, match="over"):
            writer.record(record(0, args={"data": "x" * (17 << 20)}))
        writer.record(record(1))
    assert len(read_all(tmp_path)) == 1


def test_an_exception_is_noted_and_passes(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), TraceWriter(tmp_path, MANIFEST) as writer:
        writer.record(record(0))
        raise ZeroDivisionError("division by zero")
    trace = read_all(tmp_path)
    assert trace.manifest.error == "ZeroDivisionError: division by zero" and not trace.manifest.complete
    assert len(trace) == 1


# -- directories that exist ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", FORMATS)
@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("new", FORMATS)
def test_only_the_files_of_a_trace_are_replaced(tmp_path: Path, old: str, new: str, close: bool) -> None:
    (tmp_path / "tensors").mkdir()
    mine = [tmp_path / "notes.txt", tmp_path / "tensors" / "mine.npy", tmp_path / "model.safetensors"]
    for file in mine:
        file.write_text("mine")
    small(tmp_path, old, close=close, records=9)
    with pytest.raises(TraceWriteError, match="holds a trace already\nHint: pass overwrite=True"):
        TraceWriter(tmp_path, MANIFEST, format=new)
    assert len(read_all(tmp_path)) == 9
    with TraceWriter(tmp_path, replace(MANIFEST, model="Other"), format=new, overwrite=True) as writer:
        writer.tensor(0, np.ones(1))
        writer.record(record(0, 0))
    trace = read_all(tmp_path)
    assert trace.manifest.model == "Other" and len(trace) == 1
    made = {place.file for place in trace._places.values()} | {"manifest.json", "records.jsonl", "tensors"}
    ours = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")} - {
        str(f.relative_to(tmp_path)) for f in mine
    }
    assert ours == made
    assert all(file.read_text() == "mine" for file in mine)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("name", ["manifest.json", "records.jsonl", "tensors-00003.safetensors"])
def test_files_of_others_are_in_the_way(tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / name).write_text('{"name": "a web page"}')
    with pytest.raises(TraceWriteError, match=f"{name} is in the way"):
        TraceWriter(tmp_path, MANIFEST, overwrite=overwrite)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == '{"name": "a web page"}'


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "below", tmp_path / "a\0b", tmp_path / ("x" * 300)):
        with pytest.raises(TraceWriteError, match="cannot be written here"):
            TraceWriter(place, MANIFEST)
    assert file.read_text() == "mine"


def test_a_linked_tensors_folder_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "tensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TraceWriteError, match="is a link"):
        TraceWriter(tmp_path / "trace", MANIFEST, format="npy")
    assert not list((tmp_path / "elsewhere").iterdir())


# -- death and disk full ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_flushed_survives_kill(tmp_path: Path, format: str) -> None:
    script = """
        import sys, time
        import numpy as np
        from twinscope.records import *
        from twinscope.store import TraceWriter
        writer = TraceWriter(sys.argv[1], Manifest("torch", {}, "Net", (), {}), format=sys.argv[2], shard_bytes=100_000)
        for i in range(10**9):
            writer.tensor(i, np.full(1000, i, np.float32))
            slot = Slot("out", TensorMeta((1000,), "float32"), i, kept=True)
            writer.record(Record(i, i, Kind.MODULE, Phase.FORWARD, "fc", "Linear", i, None, 0, (slot,)))
            if i == 99:
                writer.flush()
                print("flushed", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), format], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "flushed\n"
        time.sleep(0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    trace = Trace.open(tmp_path)
    trace.verify()
    assert not trace.manifest.complete
    assert len(trace) >= 100
    for i in range(len(trace)):
        np.testing.assert_array_equal(trace.tensor(i), np.full(1000, i, np.float32))


def test_without_a_flush_nothing_is_promised_and_nothing_breaks(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, MANIFEST)
    writer.tensor(1, np.ones(3))
    writer.record(record(0, 1))
    abandon(writer)
    assert len(read_all(tmp_path)) == 0
    (tmp_path / "records.jsonl").unlink()  # killed between two files
    assert len(read_all(tmp_path)) == 0


class FullDisk:
    """os.write that takes `room` bytes and then refuses, as a disk does: the last write is cut short."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self.real = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, fd: int, data: Any) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = self.real(fd, memoryview(data)[: self.room])
        self.room -= count
        return count


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("room", [0, 3, 900, 5000, 9000, 13_000, 30_000])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, room: int) -> None:
    writer = TraceWriter(tmp_path, MANIFEST, format=format, shard_bytes=8192)
    for i in range(5):
        writer.tensor(i, np.full(100, i, np.float32))
        writer.record(record(i, i))
    writer.flush()
    FullDisk(monkeypatch, room)
    with pytest.raises(TraceWriteError, match=r"No space left on device, after \d+ bytes") as caught:
        for i in range(5, 10_000):
            writer.tensor(i, np.full(100, i, np.float32))
            writer.record(record(i, i))
            writer.flush()
    monkeypatch.undo()
    assert str(tmp_path) in caught.value.message and caught.value.hint
    with pytest.raises(TraceWriteError, match="closed"):
        writer.tensor(0, np.ones(1))
    writer.close()
    trace = Trace.open(tmp_path)
    trace.verify()
    assert len(trace) >= 5 and not trace.manifest.complete
    for i in range(len(trace)):
        np.testing.assert_array_equal(trace.tensor(i), np.full(100, i, np.float32))


@pytest.mark.parametrize("room", [0, 10, 200, 4000, 4400])
def test_a_full_disk_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    writer = TraceWriter(tmp_path, MANIFEST, shard_bytes=8192)
    writer.tensor(0, np.ones(3))
    writer.record(record(0, 0))
    writer.flush()
    writer.record(record(1, 0))
    FullDisk(monkeypatch, room)
    with pytest.raises(TraceWriteError, match="No space left"):
        writer.close()
    monkeypatch.undo()
    assert not list(tmp_path.glob(".manifest*"))
    trace = Trace.open(tmp_path)
    assert len(trace) >= 1 and not trace.manifest.complete
    np.testing.assert_array_equal(trace.tensor(0), np.ones(3))


def test_a_disk_that_is_full_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TraceWriter(tmp_path, MANIFEST)
    for i in range(3):
        writer.record(record(i))
    full = FullDisk(monkeypatch, 10)
    refused_before = full.__class__.__call__

    def free_later(self: FullDisk, fd: int, data: Any) -> int:
        try:
            return refused_before(self, fd, data)
        except OSError:
            self.room = 1 << 30  # somebody deletes a file
            raise

    monkeypatch.setattr(FullDisk, "__call__", free_later)
    with pytest.raises(TraceWriteError, match="No space left"):
        writer.flush()
    monkeypatch.undo()
    assert len(read_all(tmp_path)) == 3


def test_a_full_disk_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch, 20)
    with pytest.raises(TraceWriteError, match="No space left"):
        TraceWriter(tmp_path / "trace", MANIFEST)
    monkeypatch.undo()
    assert not list((tmp_path / "trace").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
def test_the_limit_of_a_file_s_size(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        import numpy as np
        from twinscope.errors import TraceWriteError
        from twinscope.records import *
        from twinscope.store import TraceWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        writer = TraceWriter(sys.argv[1], Manifest("torch", {}, "Net", (), {}))
        try:
            for i in range(100):
                writer.tensor(i, np.full(10_000, i, np.float32))
                slot = Slot("out", TensorMeta((10_000,), "float32"), i, kept=True)
                writer.record(Record(i, i, Kind.MODULE, Phase.FORWARD, "fc", "Linear", i, None, 0, (slot,)))
        except TraceWriteError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "File too large, after" in done.stdout
    trace = read_all(tmp_path)
    assert 10 < len(trace) < 25  # 18 tensors fit beside the header
    assert "File too large" in trace.manifest.notes[0]
    assert len(load_file(tmp_path / "tensors-00000.safetensors")) == len(trace)


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("close", [True, False])
def test_truncation_anywhere(tmp_path: Path, format: str, close: bool) -> None:
    path = tmp_path / "trace"
    arrays = small(path, format, close=close, records=2)
    whole = list(Trace.open(path))
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        data = file.read_bytes()
        step = 1 if len(data) < 2000 else 37  # every byte, but of a header's padding
        cuts = {*range(0, len(data), step), *range(max(0, len(data) - 80), len(data))}
        for cut in sorted(cuts):
            file.write_bytes(data[:cut])
            try:
                trace = Trace.open(path)
                assert list(trace) == whole[: len(trace)]
                if close:
                    assert len(trace) == 2
                for value in trace.kept:
                    np.testing.assert_array_equal(trace.tensor(value), arrays[value])
                trace.verify()
                # what is left is the whole, or a prefix of a trace that was cut short
                assert not close or file.name == "manifest.json"
                assert file.name != "manifest.json" or cut >= len(data) - 1
            except TraceFormatError:
                assert close or file.name != "records.jsonl"
        file.write_bytes(data)
    assert len(read_all(path)) == 2


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("close", [True, False])
def test_damage_anywhere_is_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, format: str, close: bool
) -> None:
    path = tmp_path_factory.mktemp("trace")
    small(path, format, close=close, records=2)
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    chunk = st.binary(max_size=6) | st.sampled_from(
        [
            b"1e999",
            b"NaN",
            b"-",
            b"[" * 50,
            b'"..',
            b"/",
            b"\\u0000",
            b"\n",
            b"9" * 30,
            b"null",
            b"true",
            b"{}",
            b'"',
            b"\xff",
        ]
    )

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(sorted(files)), st.integers(0, 1500), st.integers(0, 4), chunk)
    def check(name: str, where: int, cut: int, put: bytes) -> None:
        data = files[name]
        where %= len(data) + 1
        damaged = data[:where] + put + data[where + cut :]
        (path / name).write_bytes(damaged)
        try:
            read_all(path)
        except TraceError:
            pass
        else:
            # A manifest has no checksum, nor has what was not finished. Everything else must be noticed.
            assert damaged == data or name == "manifest.json" or not close
        finally:
            (path / name).write_bytes(data)

    check()


@pytest.mark.parametrize("format", FORMATS)
def test_one_flipped_bit_of_a_tensor_is_found(tmp_path: Path, format: str) -> None:
    array = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    with TraceWriter(tmp_path, MANIFEST, format=format) as writer:
        writer.tensor(42, array)
        writer.record(record(0, 42))
    place = Trace.open(tmp_path)._places[42]
    file = tmp_path / place.file
    data = file.read_bytes()
    for position in [0, 1, 4095, 4096, 12_345, place.nbytes - 1]:
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place.offset + position] ^= 1 << bit
            file.write_bytes(damaged)
            trace = Trace.open(tmp_path)
            for read in (trace.verify, lambda trace=trace: trace.tensor(42)):
                with pytest.raises(TraceFormatError, match=f"{file.name}: the tensor of value 42 does not match"):
                    read()
    file.write_bytes(data)
    read_all(tmp_path)


def test_pages_lost_moved_or_zeroed_are_found() -> None:
    raw = np.random.default_rng(1).integers(0, 256, 5 * 4096 + 100, dtype=np.uint8)
    good = store._checksum(raw)
    assert store._checksum(raw[4096:], store._checksum(raw[:4096])) == good
    swapped, zeroed, shifted = raw.copy(), raw.copy(), np.roll(raw, 8)
    swapped[:4096], swapped[4096:8192] = raw[4096:8192], raw[:4096]
    zeroed[8192:8704] = 0
    assert len({good, store._checksum(swapped), store._checksum(zeroed), store._checksum(shifted)}) == 4


def test_verify_finds_changed_records_and_headers(tmp_path: Path) -> None:
    small(tmp_path)
    for name, old, new in (
        ("records.jsonl", b'"path":"fc"', b'"path":"fd"'),
        ("tensors-00000.safetensors", b'"0":{"dtype":"F32"', b'"0":{"dtype":"I32"'),
    ):
        data = (tmp_path / name).read_bytes()
        assert old in data
        (tmp_path / name).write_bytes(data.replace(old, new, 1))
        trace = Trace.open(tmp_path)
        with pytest.raises(TraceFormatError, match=f"{name} does not match its checksum"):
            trace.verify()
        (tmp_path / name).write_bytes(data)
    read_all(tmp_path)


def test_a_damaged_middle_line_is_named(tmp_path: Path) -> None:
    small(tmp_path, close=False)
    edit_line(tmp_path, 1, lambda raw: b"{" + json.dumps(raw).encode()[5:])
    refused(tmp_path, "records.jsonl, line 2: ")


def test_a_last_line_cut_short_is_left_out_unless_the_trace_is_complete(tmp_path: Path) -> None:
    small(tmp_path / "cut", close=False)
    small(tmp_path / "complete")
    for path in (tmp_path / "cut", tmp_path / "complete"):
        data = (path / "records.jsonl").read_bytes()
        (path / "records.jsonl").write_bytes(data[:-10])
    assert len(read_all(tmp_path / "cut")) == 2
    refused(tmp_path / "complete", r"records.jsonl has \d+ bytes instead of \d+")


def test_the_last_line_of_a_complete_trace_must_end(tmp_path: Path) -> None:
    small(tmp_path)
    data = (tmp_path / "records.jsonl").read_bytes()
    (tmp_path / "records.jsonl").write_bytes(data[:-1] + b" ")
    with pytest.raises(TraceFormatError, match="line 3: the last line is cut short"):
        Trace.open(tmp_path)


# -- not a trace -----------------------------------------------------------------------------------------------------


def test_what_is_not_a_trace(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "a web page"}')
    for name, match in (
        ("none", "there is no such directory"),
        ("file", "file is not a directory"),
        ("empty", "has no manifest.json"),
        ("web", "is not a trace's"),
        ("a\0b", "cannot be read|no such directory"),
        ("x" * 300, "cannot be read|no such directory"),
    ):
        error = refused(tmp_path / name, match)
        assert error.hint == "a trace is a directory with a manifest.json, as twinscope.capture writes it"


def test_a_newer_trace(tmp_path: Path) -> None:
    small(tmp_path)
    edit_manifest(tmp_path, schema=SCHEMA_VERSION + 1, modules="something new", more=1)
    error = refused(tmp_path, f"newer Twinscope .schema {SCHEMA_VERSION + 1}")
    assert isinstance(error, TraceFormatError) and error.hint == "pip install -U twinscope"


@pytest.mark.parametrize("schema", [0, -1, "1", None, 1.0, True, []])
def test_an_odd_schema(tmp_path: Path, schema: Any) -> None:
    small(tmp_path)
    edit_manifest(tmp_path, schema=schema)
    refused(tmp_path, "schema is")


@pytest.mark.parametrize(
    "key", ["framework", "versions", "model", "modules", "plan", "rank", "created", "complete", "notes"]
)
@pytest.mark.parametrize("value", [None, 17.5, "x", [1], {"a": 1}, [[]], [{}]])
def test_wrong_types_in_the_manifest(tmp_path: Path, key: str, value: Any) -> None:
    small(tmp_path)
    edit_manifest(tmp_path, **{key: value})
    if (key, value) in (("framework", "x"), ("model", "x"), ("created", "x"), ("plan", {"a": 1})):
        read_all(tmp_path)
    else:
        assert isinstance(refused(tmp_path, "manifest.json is damaged"), TraceFormatError)


# -- hostile ---------------------------------------------------------------------------------------------------------

HUGE = [-1, 2**62, 2**63, 2**64, 10**40, 1.0, True, "0", None, [], {}]


def set_data(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw["slots"][0]["data"].update(changes)


NAMES = [
    "../outside.safetensors",
    "/etc/passwd",
    "..",
    "",
    ".",
    "tensors-00000.safetensors\0",
    "tensors\\x.npy",
    "tensors/../x.npy",
    "tensors/..",
    "tensors/.npy",
    "tensors/a/b.npy",
    "tensors//b.npy",
    "tensors/con.npy",
    "tensors/nul.x.npy",
    "C:\\x.npy",
    "//server/x.npy",
    "tensors-00000.safetensors/",
    "tensors-\u0660\u0660\u0660\u0660\u0660.safetensors",
    "manifest.json",
    "tensors-00000.safetensors\n",
    "records.jsonl",
    "NUL",
    7,
    None,
    ["tensors-00000.safetensors"],
    {},
    "x" * 5000,
]

Change = Callable[[dict[str, Any]], Any]


def set_slot(**changes: Any) -> Change:
    return lambda raw: raw["slots"][0].update(changes)


def set_record(**changes: Any) -> Change:
    return lambda raw: raw.update(changes)


def drop(*path: Any) -> Change:
    def change(raw: Any) -> None:
        for key in path[:-1]:
            raw = raw[key]
        del raw[path[-1]]

    return change


def insert(text: str) -> Change:
    """Before the first of the args."""
    return lambda raw: json.dumps(raw).replace('"scale"', f'"a": {text}, "scale"').encode()


ANY = ["index", "step", "call_id", "nth", "kind", "phase", "path", "type", "slots", "source", "builtin", "failed"]
STATS = [[], {}, 7, "x", [0.0] * 8, [0.0] * 7 + ["zz"], ["x"] * 8, [10**400, 0, 0, 0, 0, 0, 0, "f"]]
STATS += [
    [0.0] * 5 + end for end in ([0, 0, "f" * 99], [-1, 0, "f"], [0.5, 0, "f"], [True, 0, "f"], [0, 0, 15], [0, 0])
]
SHAPES = [[-2, -3], [6.0], [2, 3, 1.0], [True, 6], "23", None, {}, [1] * 100 + [6], [2**70], [7], [2**62, 0]]
SHAPES += [[2**32, 2**32], [10**3999], [[2, 3]]]

HOSTILE: list[Change] = [
    *(set_data(file=name) for name in NAMES),
    *(set_data(nbytes=number) for number in HUGE),
    *(set_data(offset=number) for number in HUGE if number != 2**62),
    *(set_data(shape=shape) for shape in SHAPES),
    *(set_data(dtype=dtype) for dtype in ("object", "O", "float64", "U8", "V8", "", "M8[s]", None, 7, [], "float128")),
    *(set_data(checksum=number) for number in (-1, "0", None, 2**64, 1.5)),
    set_data(more=1),
    *(set_slot(data=data) for data in (None, [], 7, {})),
    *(set_slot(kept=kept) for kept in (False, 1, None, "true")),
    *(set_slot(value=value) for value in (0, 2**63, 1.0, "1", None, True, [])),
    *(set_slot(shape=shape) for shape in SHAPES if shape not in ([7], [2**62, 0], [2**32, 2**32])),
    *(set_slot(dtype=dtype) for dtype in (None, 7, [])),
    *(set_slot(stats=stats) for stats in STATS),
    set_slot(more=1),
    set_slot(device=None),
    *(drop("slots", 0, key) for key in ("name", "shape", "dtype", "value", "kept", "data")),
    *(drop("slots", 0, "data", key) for key in ("file", "offset", "nbytes", "dtype", "shape", "checksum")),
    *(drop(key) for key in ("index", "step", "kind", "phase", "path", "type", "call_id", "parent_id", "nth", "slots")),
    lambda raw: raw["slots"].append(raw["slots"][0]),
    lambda raw: raw["slots"].append(None),
    *(
        set_record(**{key: value})
        for key in ANY
        for value in (2**63, 1.5, {}, [1], "zz")[: 4 if key in ("path", "type") else 5]
    ),
    set_record(parent_id="x"),
    set_record(training=1),
    set_record(args=[]),
    set_record(args={"$float": "inf"}),
    set_record(args={"x": {"$float": "big"}}),
    set_record(args={"x": {"$float": ["inf"]}}),
    set_record(index=0),
    set_record(source=["x", "1", "f"]),
    *(set_record(stack=stack) for stack in (None, 7, {}, [None], [["x", 1]], [["x", "1", "f"]])),
    set_record(more=1),
    lambda raw: [raw],
    *(lambda raw, line=line: line for line in (b"[]", b"null", b"7", b"", b"\0" * 100, b"\xff\xfe{}", b"[" * 200_000)),
    lambda raw: b'{"index":' * 100_000,
    lambda raw: json.dumps(raw).encode("utf-16"),
    lambda raw: json.dumps(raw).replace('"step": 0', '"step": ' + "9" * 10_000).encode(),
    *map(insert, ("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 4001, "[" * 50_000 + "]" * 50_000)),
    lambda raw: json.dumps(raw).encode() + b" " * (17 << 20),
]


#: What only the tensor's file tells.
HOSTILE_DATA: list[Change] = [
    set_data(offset=2**62),
    set_data(offset=4096 + 73),
    set_data(checksum=12345),
    set_data(file="tensors-99999.safetensors"),
    set_data(shape=[2**60], nbytes=2**62, offset=0),
    set_data(shape=[2**62, 2**62, 0], nbytes=0),
    set_data(shape=[0] * 60, nbytes=0),
]


@pytest.mark.parametrize("change", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines(tmp_path: Path, change: Change) -> None:
    small(tmp_path, close=False)
    edit_line(tmp_path, 1, change)
    began = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(TraceFormatError, match=r"records.jsonl, line 2: ") as caught:
            Trace.open(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.hint
    assert peak < 100 << 20
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("change", HOSTILE_DATA, ids=range(len(HOSTILE_DATA)))
def test_hostile_data(tmp_path: Path, change: Change) -> None:
    small(tmp_path, close=False)
    edit_line(tmp_path, 1, change)
    trace = Trace.open(tmp_path)
    for read in (trace.verify, lambda: trace.tensor(1)):
        with pytest.raises(TraceFormatError, match=r"tensors-\d+.safetensors( is missing|: the tensor of value 1 )"):
            read()
    assert trace.tensor(0) is not None


def test_the_unchanged_line_is_fine(tmp_path: Path) -> None:
    small(tmp_path, close=False)
    edit_line(tmp_path, 1, lambda raw: None)
    assert len(read_all(tmp_path)) == 3


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[" * 100_000, '{"format": ' * 100_000, "\0", "9" * 10_000, "1e999"]
)
def test_hostile_manifests(tmp_path: Path, text: str) -> None:
    small(tmp_path)
    (tmp_path / "manifest.json").write_text(text)
    assert isinstance(refused(tmp_path, "manifest.json is"), TraceFormatError)


def test_hostile_file_lists(tmp_path: Path) -> None:
    small(tmp_path)
    good = json.loads((tmp_path / "manifest.json").read_text())["files"]
    entry = good["records.jsonl"]
    for files in (
        {},
        [],
        {"records.jsonl": 1},
        {**good, "../x": entry},
        {**good, "/etc/passwd": entry},
        {"records.jsonl": {}},
    ):
        edit_manifest(tmp_path, files=files)
        refused(tmp_path, "manifest.json is damaged")
    edit_manifest(tmp_path, files={**good, "tensors-00000.safetensors": {"bytes": 2**62, "crc32": 0}})
    refused(tmp_path, "tensors-00000.safetensors has .* bytes instead of")


def test_a_manifest_too_large_is_not_read(tmp_path: Path) -> None:
    small(tmp_path)
    os.truncate(tmp_path / "manifest.json", 1 << 40)
    refused(tmp_path, "over")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "dangling", "device"])
@pytest.mark.parametrize("name", ["manifest.json", "records.jsonl", "tensors-00000.safetensors", "tensors/000000.npy"])
def test_odd_files_are_neither_followed_nor_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "trace"
    small(path, "npy" if name.endswith("npy") else "safetensors", close=False)
    file, outside = path / name, tmp_path / "outside"
    shutil.move(file, outside)
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(outside)
    elif kind == "folder":
        file.mkdir()
    elif kind == "dangling":
        file.symlink_to(tmp_path / "nowhere")
    else:
        file.symlink_to("/dev/zero")
    assert isinstance(refused(path, "is not a regular file"), TraceFormatError)
    if name == "manifest.json":
        with pytest.raises(TraceWriteError, match="in the way"):
            TraceWriter(path, MANIFEST, overwrite=True)


def test_a_linked_tensors_folder_is_not_read_nor_cleared(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    small(path, "npy")
    shutil.move(path / "tensors", tmp_path / "outside")
    (path / "tensors").symlink_to(tmp_path / "outside")
    refused(path, "leads elsewhere")
    TraceWriter(path, MANIFEST, overwrite=True).close()
    assert len(list((tmp_path / "outside").iterdir())) == 3


def test_npy_files_put_in_by_others(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.abort, ())

    small(tmp_path, "npy")
    file = tmp_path / "tensors" / "000001.npy"
    for array in (np.array([Bomb()], object), np.zeros(6, np.float64), np.zeros((3, 2), np.float32, order="F")):
        np.save(file, array, allow_pickle=True)
        refused(tmp_path, "000001.npy: the tensor of value 1 ")
    file.unlink()
    refused(tmp_path, "000001.npy is missing")


def test_bytes_that_are_no_booleans(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, MANIFEST) as writer:
        writer.tensor(1, np.array([True, False]))
        writer.record(record(0, 1))
    place = Trace.open(tmp_path)._places[1]
    with (tmp_path / place.file).open("r+b") as file:
        file.seek(place.offset)
        file.write(b"\x07\x01")
    edit_manifest(tmp_path, complete=False, files=None)
    edit_line(tmp_path, 0, set_data(checksum=zlib.crc32(b"\x07\x01")))
    with pytest.raises(TraceFormatError, match="other than 0 and 1"):
        Trace.open(tmp_path).tensor(1)


# -- cost ------------------------------------------------------------------------------------------------------------


def test_a_tensor_is_written_from_its_own_memory(tmp_path: Path) -> None:
    array = np.ones((2000, 4000), np.float32)  # 32 MB
    with TraceWriter(tmp_path, MANIFEST) as writer:
        writer.tensor(0, np.ones(1))
        tracemalloc.start()
        try:
            writer.tensor(1, array)
            writer.tensor(2, array.T)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 6 << 20


def test_ten_thousand_records_open_quickly(tmp_path: Path) -> None:
    numbers = Stats(-1.5, 2.5, 0.001, 0.9, 12.0, 0, 0, 123456789)
    with TraceWriter(tmp_path, MANIFEST) as writer:
        for i in range(10_000):
            slot = Slot("out", TensorMeta((8, 64), "float32"), i, numbers)
            writer.record(record(i, slots=(slot,), args={"dim": -1}))
    began = time.process_time()
    trace = Trace.open(tmp_path)
    assert time.process_time() - began < 3  # measured: 0.1
    assert len(trace) == 10_000


def test_nothing_is_pickled() -> None:
    tree = ast.parse(Path(store.__file__).read_text())
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in [*node.names, ast.alias(getattr(node, "module", None) or "")]
    }
    assert not imported & {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & {"load", "loads", "dump", "save", "tofile", "fromfile"}


# -- the same elements in another arrangement --------------------------------------------------------------------------


def aliased(writer: MemoryWriter | TraceWriter) -> np.ndarray:
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    turned = whole.transpose(2, 0, 1)
    writer.tensor(1, whole)
    assert writer.alias(2, 1, turned.shape, tuple(s // 4 for s in turned.strides))
    slots = tuple(Slot(f"out.{v}", TensorMeta(a.shape, "float32"), v, kept=True) for v, a in ((1, whole), (2, turned)))
    writer.record(Record(0, 0, Kind.OP, Phase.FORWARD, "", "torch.permute", 0, None, 0, slots))
    return turned


def test_an_alias_is_read_in_its_own_arrangement_and_takes_no_room(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", MANIFEST) as writer:
        turned = aliased(writer)
        assert writer.bytes_written == 24 * 4
    trace = Trace.open(tmp_path / "t")
    trace.verify()
    found = trace.tensor(2)
    assert found is not None and found.shape == (4, 2, 3)
    assert np.array_equal(found, turned)
    memory = MemoryWriter(MANIFEST)
    turned = aliased(memory)
    kept = memory.trace().tensor(2)
    assert kept is not None and np.array_equal(kept, turned) and not kept.flags.writeable


def test_an_alias_must_rearrange_all_of_it() -> None:
    writer = MemoryWriter(MANIFEST)
    writer.tensor(1, np.arange(6.0))
    for shape, strides in (((2, 2), (3, 1)), ((6,), (2,)), ((2, 3), (1, 1)), ((2, 3), (3,)), ((7,), (1,))):
        with pytest.raises(ValueError, match="do not rearrange"):
            writer.alias(2, 1, shape, strides)


def test_npy_files_have_no_aliases(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", MANIFEST, format="npy") as writer:
        writer.tensor(1, np.arange(6.0))
        assert not writer.alias(2, 1, (3, 2), (1, 3))


@pytest.mark.parametrize("strides", [[1, 1, 1], [6, 2, 1, 1], [-12, 4, 1], [24, 4, 1], [1 << 40, 4, 1], "x", [0, 0, 0]])
def test_hostile_strides_are_refused(tmp_path: Path, strides: object) -> None:
    with TraceWriter(tmp_path / "t", MANIFEST) as writer:
        aliased(writer)
    path = tmp_path / "t" / "records.jsonl"
    record = json.loads(path.read_text())
    record["slots"][1]["data"]["strides"] = strides
    path.write_text(json.dumps(record) + "\n")
    manifest = json.loads((tmp_path / "t" / "manifest.json").read_text())
    manifest["complete"] = False  # a complete trace is refused for its checksum alone
    manifest.pop("files", None)
    (tmp_path / "t" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TraceFormatError):
        Trace.open(tmp_path / "t")
