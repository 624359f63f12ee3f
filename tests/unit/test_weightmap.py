"""The map: saved and loaded, both ways round, and what a damaged file may not do."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinscope.adapters.base import Array
from twinscope.errors import WeightError
from twinscope.weights.transforms import Concat, Constant, Omit, Split, Tie, Transform, Transpose
from twinscope.weights.weightmap import SURE, Entry, Held, WeightMap

REFERENCE = (
    Held("qkv.weight", (6, 4), "float32"),
    Held("proj.weight", (4, 2), "bfloat16", names=("head.weight",)),
    Held("norm.weight", (2,), "float32"),
    Held("norm.steps", (), "int64", trainable=False, buffer=True, needed=False),
    Held("scale", (0, 3), "float32", trainable=False),
)
CANDIDATE = (
    Held("q.weight", (4, 2), "float32", stored="q_0.w"),
    Held("k.weight", (4, 2), "float32", stored=""),
    Held("v.weight", (4, 2), "float32"),
    Held("proj.weight", (2, 4), "bfloat16"),
    Held("proj.bias", (2,), "float32"),
    Held("extra", (5,), "float32"),
)
ENTRIES = (
    Entry(
        ("qkv.weight",),
        ("q.weight", "k.weight", "v.weight"),
        (Transpose(), Split((2, 2, 2), 1)),
        "names and shapes",
        0.9,
        "outputs of attn agree to 1e-7",
    ),
    Entry(("proj.weight",), ("proj.weight",), (Transpose(),), "one of two", 0.5, options=("extra",)),
    Entry((), ("proj.bias",), (Constant(0.0, (2,), "float32"),), "no bias there"),
    Entry(("norm.weight",), (), (Omit(1.0, (2,), "float32"),), "no affine there"),
)
MAPPING = WeightMap(
    ("torch", "paddle"),
    ("Net", "模型"),
    REFERENCE,
    CANDIDATE,
    ENTRIES,
    skipped_reference=("scale",),
    skipped_candidate=("extra",),
    notes=("said of it",),
)
ARRAYS = {
    "qkv.weight": np.arange(24, dtype=np.float32).reshape(6, 4),
    "proj.weight": np.arange(8, dtype=np.float32).reshape(4, 2),
    "norm.weight": np.ones(2, np.float32),
}

paths = st.text("abc._é", min_size=1, max_size=6)
steps: st.SearchStrategy[Transform] = st.sampled_from(
    [Transpose(), Split((1, 2)), Concat((1, 2), 1), Tie(2), Constant(0.1, (3,), "bfloat16")]
)


@st.composite
def maps(draw: st.DrawFn) -> WeightMap:
    sides = []
    for _ in range(2):
        named = draw(st.lists(paths, unique=True, max_size=5))
        sides.append(
            tuple(
                Held(
                    path,
                    tuple(draw(st.lists(st.integers(0, 2**40), max_size=3))),
                    draw(st.sampled_from(["float32", "bfloat16"])),
                    draw(st.booleans()),
                    draw(st.booleans()),
                    tuple(draw(st.lists(paths, max_size=2))),
                    draw(st.none() | st.text(max_size=3)),
                    draw(st.booleans()),
                )
                for path in named
            )
        )
    taken, filled = ([h.path for h in side] for side in sides)
    entries = []
    while taken or filled:
        m, n = draw(st.integers(0, len(taken))), draw(st.integers(0, len(filled)))
        entries.append(
            Entry(
                tuple(taken[:m]),
                tuple(filled[:n]),
                tuple(draw(st.lists(steps, max_size=3))),
                draw(st.text(max_size=5)),
                draw(st.floats(0, 1)),
                draw(st.text(max_size=5)),
                tuple(draw(st.lists(paths, max_size=2))),
            )
        )
        if m == n == 0:
            break
        taken, filled = taken[m:], filled[n:]
    skipped = [tuple(draw(st.lists(paths, max_size=2))) for _ in range(2)]
    names = draw(st.tuples(st.text(max_size=3), st.text(max_size=3)))
    notes = tuple(draw(st.lists(st.text(max_size=5), max_size=2)))
    return WeightMap(names, names, sides[0], sides[1], tuple(entries), *skipped, notes)


def without_options(mapping: WeightMap) -> WeightMap:
    """The other places that an entry could fill are of the candidate, and mean nothing the other way round."""
    return dataclasses.replace(mapping, entries=tuple(dataclasses.replace(e, options=()) for e in mapping.entries))


# -- laws --------------------------------------------------------------------------------------------------------------


@given(maps())
@settings(deadline=None, max_examples=150)
def test_a_map_is_read_as_it_was_written_and_inverted_twice_is_itself(mapping: WeightMap) -> None:
    text = json.dumps(mapping.to_json(), allow_nan=False)
    again = WeightMap.from_json(json.loads(text))
    assert again == mapping
    assert [e.sure for e in again] == [e.sure for e in mapping]
    back = mapping.inverted()
    assert back.inverted() == without_options(mapping)
    assert WeightMap.from_json(json.loads(json.dumps(back.to_json()))) == back
    assert (back.unmatched_reference, back.unmatched_candidate) == (
        mapping.unmatched_candidate,
        mapping.unmatched_reference,
    )
    assert back.complete == mapping.complete
    assert mapping.models[0] in str(mapping)


def test_a_map_is_saved_and_loaded(tmp_path: Path) -> None:
    MAPPING.save(tmp_path / "map.json")
    assert WeightMap.load(tmp_path / "map.json") == MAPPING
    assert [p.name for p in tmp_path.iterdir()] == ["map.json"]
    assert "模型" in (tmp_path / "map.json").read_text(encoding="utf-8")
    MAPPING.inverted().save(tmp_path / "map.json")
    assert WeightMap.load(tmp_path / "map.json") == MAPPING.inverted()


def test_a_map_that_an_editor_saved_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    MAPPING.save(tmp_path / "map.json")
    (tmp_path / "map.json").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "map.json").read_bytes())
    assert WeightMap.load(tmp_path / "map.json") == MAPPING


def test_what_is_barely_unsure_is_not_saved_as_sure() -> None:
    barely = dataclasses.replace(MAPPING, entries=(Entry(("norm.weight",), ("extra",), confidence=SURE - 1e-9),))
    assert not WeightMap.from_json(barely.to_json()).entries[0].sure


def test_what_is_unmatched_unsure_and_complete() -> None:
    assert len(MAPPING) == 4 and list(MAPPING) == list(ENTRIES)
    assert [h.path for h in MAPPING.unmatched_reference] == ["norm.steps"]
    assert MAPPING.unmatched_candidate == ()
    assert MAPPING.unsure == (ENTRIES[1],)
    assert not MAPPING.complete
    sure = dataclasses.replace(
        MAPPING, entries=(ENTRIES[0], dataclasses.replace(ENTRIES[1], confidence=1), *ENTRIES[2:])
    )
    assert sure.complete, "a counter that is not needed may be left over"
    assert not dataclasses.replace(sure, skipped_candidate=()).complete


def test_the_table_shows_every_entry_and_what_is_left() -> None:
    shown = str(dataclasses.replace(MAPPING, skipped_candidate=()))
    for expected in (
        "Net (torch) -> 模型 (paddle): 4 entries, 1 proven by running, 1 not sure",
        "unmatched: 0 of the reference, 1 of the candidate",
        "q.weight + k.weight + v.weight",
        "transpose, split([2, 2, 2], 1)",
        "names and shapes; outputs of attn agree to 1e-7",
        "could also be extra",
        'hints={"proj.weight": "..."}',
        "only in the reference: norm.steps [] int64 (buffer, not needed)",
        "only in the candidate: extra [5] float32 (parameter)",
        "said of it",
    ):
        assert expected in shown
    assert "unmatched" not in str(MAPPING)


# -- arrays ------------------------------------------------------------------------------------------------------------


def carried(mapping: WeightMap, source: Callable[[str], Array]) -> dict[str, Array]:
    return {path: array for _, path, array in mapping.arrays(source)}


def test_arrays_are_carried_there_and_back() -> None:
    there = carried(MAPPING, ARRAYS.__getitem__)
    assert {path: array.shape for path, array in there.items()} == {
        h.path: h.shape for h in CANDIDATE if h.path != "extra"
    }
    np.testing.assert_array_equal(there["k.weight"], ARRAYS["qkv.weight"].T[:, 2:4])
    back = carried(MAPPING.inverted(), there.__getitem__)
    assert back.keys() == ARRAYS.keys()
    for path, array in back.items():
        np.testing.assert_array_equal(array, ARRAYS[path])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (Entry(("qkv.weight",), ("q.weight",), (Split((5, 5)),)), r"qkv\.weight -> q\.weight: .*\[6, 4\]"),
        (Entry(("qkv.weight",), ("q.weight",)), r"qkv\.weight becomes \[6, 4\] and does not fit q\.weight \[4, 2\]"),
        (
            Entry(("proj.weight",), ("q.weight",), (Tie(2),)),
            r"proj\.weight: the transform gives 2 tensors for 1 places",
        ),
        (Entry((), ("proj.bias",)), r"\(nothing\): the transform gives 0 tensors for 1 places"),
    ],
)
def test_an_entry_that_does_not_fit_is_named(entry: Entry, said: str) -> None:
    with pytest.raises(WeightError, match=said):
        carried(dataclasses.replace(MAPPING, entries=(entry,)), ARRAYS.__getitem__)


# -- damaged and hostile files -----------------------------------------------------------------------------------------

JUNK: list[Any] = [
    *(None, True, -1, 0, 2, 1.5, float("nan"), float("inf"), 10**30, "", "x", "\ud800", "z" * 5000),
    *([], [1], ["x"], ["x", "x"], [None], [[]], [{}], {}, {"reference": 1}, [True], [-1], {"path": "x"}),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(p for key, v in inner for p in places(v, (*at, key)))]


def replaced(value: Any, at: tuple[Any, ...], junk: Any) -> Any:
    if not at:
        return junk
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[at[0]] = replaced(value[at[0]], at[1:], junk)
    return copied


def only_refused(value: Any) -> None:
    try:
        read = WeightMap.from_json(value)
    except WeightError as error:
        assert error.hint and len(str(error)) < 8000
        return
    assert WeightMap.from_json(read.to_json()) == read
    for used in (read, read.inverted()):
        str(used)
        try:
            carried(used, lambda path: np.ones((2, 3), np.float32))
        except WeightError as error:
            assert error.hint


def test_whatever_in_a_map_is_replaced_it_is_refused_or_harmless() -> None:
    written = json.loads(json.dumps(MAPPING.to_json()))
    for at in places(written):
        for junk in JUNK:
            only_refused(replaced(written, at, junk))


def test_whatever_in_a_map_is_missing_it_is_refused_or_harmless() -> None:
    written = json.loads(json.dumps(MAPPING.to_json()))
    for *holder, key in (at for at in places(written) if at):
        inner = written
        for k in holder:
            inner = inner[k]
        if isinstance(inner, dict):
            only_refused(replaced(written, tuple(holder), {k: v for k, v in inner.items() if k != key}))
    for key in ("twinscope_map", "frameworks", "models", "entries", "reference", "candidate"):
        with pytest.raises(WeightError):
            WeightMap.from_json({k: v for k, v in written.items() if k != key})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.data())
@settings(deadline=None, max_examples=200)
def test_any_json_at_all_is_refused_or_harmless(value: Any, data: st.DataObject) -> None:
    only_refused(value)
    written = json.loads(json.dumps(MAPPING.to_json()))
    only_refused(replaced(written, data.draw(st.sampled_from(places(written))), value))


@pytest.mark.parametrize(
    ("at", "junk", "said"),
    [
        (("twinscope_map",), 2, "has version 2, this is version 1"),
        (("frameworks",), ["torch"], "must be two each"),
        (("reference", 0, "shape"), [-1, 2], r"reference\[0\]\.shape cannot be \[-1, 2\]"),
        (("reference", 0, "shape"), [True], r"reference\[0\]\.shape cannot be \[True\]"),
        (("reference", 0, "path"), "proj.weight", "listed twice"),
        (("entries", 0, "reference"), ["nowhere"], "the reference holds no 'nowhere'"),
        (("entries", 0, "candidate"), ["q.weight", "nowhere"], "the candidate holds no 'nowhere'"),
        (("entries", 0, "candidate"), ["q.weight", "q.weight"], r"two entries fill 'q\.weight'"),
        (("entries", 1, "candidate"), ["q.weight"], r"two entries fill 'q\.weight'"),
        (("entries", 1, "confidence"), 1.5, r"entries\[1\]\.confidence cannot be 1\.5"),
        (("entries", 1, "transform"), [{"step": "permute", "axes": [0, 0]}], r"entries\[1\].*permute"),
        (("entries", 2, "transform", 0, "shape"), [10**9, 10**9], r"entries\[2\].*constant"),
        (("skipped",), [], "skipped has no 'reference'"),
    ],
)
def test_damage_is_said_with_its_place(at: tuple[Any, ...], junk: Any, said: str) -> None:
    with pytest.raises(WeightError, match=said):
        WeightMap.from_json(replaced(MAPPING.to_json(), at, junk), "map.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"twinscope_map": 1', "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b'{"twinscope_map": ' + b"9" * 5000 + b"}", "is not JSON|has version"),
        (b"[]", "is not a weight map"),
        (b"{}", "is not a weight map"),
    ],
    ids=["empty", "not text", "cut", "deep", "long number", "list", "object"],
)
def test_a_file_that_is_no_map_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "map.json").write_bytes(content)
    with pytest.raises(WeightError, match=rf"map\.json.*({said})"):
        WeightMap.load(tmp_path / "map.json")


def test_a_map_cut_anywhere_is_refused(tmp_path: Path) -> None:
    MAPPING.save(tmp_path / "map.json")
    whole = (tmp_path / "map.json").read_bytes()
    for end in range(0, len(whole) - 2, 97):
        (tmp_path / "map.json").write_bytes(whole[:end])
        with pytest.raises(WeightError):
            WeightMap.load(tmp_path / "map.json")


def test_places_that_cannot_be_read_or_written_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "none" / "map.json", tmp_path / "file" / "map.json", tmp_path / "folder", "nul\0byte"):
        with pytest.raises(WeightError, match="cannot be written"):
            MAPPING.save(place)
        with pytest.raises(WeightError, match=r"cannot be read|is not JSON"):
            WeightMap.load(place)
    unwritable = dataclasses.replace(MAPPING, notes=("\ud800",))
    with pytest.raises(WeightError, match="cannot be written"):
        unwritable.save(tmp_path / "map.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"], "nothing half written stays"


def test_a_failed_save_leaves_the_map_that_was_there(tmp_path: Path) -> None:
    MAPPING.save(tmp_path / "map.json")
    with pytest.raises(WeightError):
        dataclasses.replace(MAPPING, notes=("\ud800",)).save(tmp_path / "map.json")
    assert WeightMap.load(tmp_path / "map.json") == MAPPING
