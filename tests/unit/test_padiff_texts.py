"""What both generations of PaDiff print: trees, mismatches, stacks."""

from __future__ import annotations

import doctest
import importlib

import ml_dtypes
import numpy as np
import pytest

from twinscope import Phase, Record
from twinscope.compat.padiff.mismatch import mismatch
from twinscope.compat.padiff.stacks import line_of, stack_text
from twinscope.compat.padiff.trees import HERE, Node, draw, titled, tree_of_calls, tree_of_modules
from twinscope.records import Kind, ModuleInfo, Source


@pytest.mark.parametrize("name", ["mismatch", "trees", "stacks"])
def test_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"twinscope.compat.padiff.{name}")).failed == 0


def test_a_strict_mismatch_reads_like_numpys() -> None:
    x = np.linspace(0, 1, 30, dtype="float32").reshape(5, 6)
    y = x.copy()
    y[2, 3] += 0.5
    found = mismatch(x, y, atol=1e-4, rtol=1e-7).splitlines()
    assert found[:3] == ["Not equal to tolerance rtol=1e-07, atol=0.0001", "", "Mismatched elements: 1 / 30 (3.33%)"]
    assert found[3] == "Max absolute difference: 0.5"
    assert found[4].startswith("Max relative difference: 0.")
    assert found[5].startswith(" x: array([[0.")
    assert "Mean absolute" not in "\n".join(found)


def test_a_mean_mismatch_names_the_mean_of_the_error() -> None:
    x, y = np.float32([1, -1]), np.float32([-1, 1])  # of equal mean
    found = mismatch(x, y, atol=0.0, rtol=0.5, mode="mean")
    assert "Mean absolute difference: 2 (allowed: 0.5)" in found
    assert "Mean absolute difference: 0 (allowed: 0.5)" in mismatch(x, x, atol=0.0, rtol=0.5, mode="mean")


def test_long_arrays_are_cut_as_numpy_cuts_them() -> None:
    x = np.zeros((100, 100), "float32")
    found = mismatch(x, x + 1, atol=0, rtol=0).splitlines()
    (first, second) = (i for i, line in enumerate(found) if line.startswith((" x: ", " y: ")))
    assert second - first <= 3 and found[second - 1].endswith("...")
    assert "Mismatched elements: 10000 / 10000 (100%)" in found


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2)), "(shapes (2, 3), (3, 2) mismatch)"),
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0]), "x and y nan location mismatch"),
        (np.zeros(0), np.zeros(0), "Mismatched elements: 0 / 0 (0%)"),
        (np.array([True]), np.array([False]), "Mismatched elements: 1 / 1 (100%)"),
        (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 4], ml_dtypes.bfloat16), "Max absolute difference: 2"),
        (np.array([1 + 1j]), np.array([1 - 1j]), "Max absolute difference: 2"),
        (np.array(1.0), np.array(2.0), " x: array(1.)"),
    ],
)
def test_every_kind_of_array_can_be_shown(x: np.ndarray, y: np.ndarray, text: str) -> None:
    assert text in mismatch(x, y, atol=0, rtol=0)


def test_equal_nans_are_no_mismatch() -> None:
    x = np.array([np.nan, 1.0])
    assert "Mismatched elements: 0 / 2" in mismatch(x, x.copy(), atol=0, rtol=0)


def call(call_id: int, parent: int | None, kind: Kind, path: str, type_: str, phase: Phase = Phase.FORWARD) -> Record:
    return Record(call_id, 0, kind, phase, path, type_, call_id, parent, 0)


CALLS = [
    call(2, 1, Kind.OP, "fc1", "paddle.nn.functional.linear"),
    call(1, 0, Kind.MODULE, "fc1", "paddle.nn.layer.common.Linear"),
    call(4, 3, Kind.OP, "act", "paddle.nn.functional.relu"),
    call(3, 0, Kind.MODULE, "act", "paddle.nn.layer.activation.ReLU"),
    call(0, None, Kind.MODULE, "", "__main__.Net"),
    call(1, 0, Kind.MODULE, "fc1", "paddle.nn.layer.common.Linear", Phase.BACKWARD),
]


def test_the_tree_of_calls_marks_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PADIFF_PATH_LOG", raising=False)
    assert draw(tree_of_calls(CALLS, "__main__.Net", {2}, {"act": "(net in map)"})) == [
        "    (net) Net",
        "     |--- (net) Linear",
        "     |     +--- (api) paddle.nn.functional.linear    <---  *** HERE ***",
        "     +--- (net in map) ReLU",
        "           +--- (api) paddle.nn.functional.relu",
    ]
    without = draw(tree_of_calls(CALLS, "__main__.Net", hidden=lambda r: r.path == "act" and r.kind is Kind.MODULE))
    assert without[-1] == "     +--- (api) paddle.nn.functional.relu"
    assert not any(HERE in line for line in without)


def test_paths_are_shown_when_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADIFF_PATH_LOG", "ON")
    assert "(net) Linear  (Net.fc1)" in "\n".join(draw(tree_of_calls(CALLS, "__main__.Net")))
    monkeypatch.setenv("PADIFF_PATH_LOG", "OFF")
    assert "Net.fc1" not in "\n".join(draw(tree_of_calls(CALLS, "__main__.Net")))


def test_the_tree_of_modules_says_what_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PADIFF_PATH_LOG", raising=False)
    infos = [ModuleInfo(p, t, None, False) for p, t in (("", "m.Net"), ("a", "m.Linear"), ("b", "m.Linear"))]
    text = titled("Torch Model", tree_of_modules(infos, "m.Net", {"b"}, {""}))
    assert text.splitlines() == [
        "Torch Model",
        "=========================",
        "    Net  (skip)",
        "     |--- Linear",
        "     +--- Linear    <---  *** HERE ***",
    ]


def test_a_deep_tree_keeps_its_lines_apart() -> None:
    tree = Node("a", (Node("b", (Node("c"), Node("d"))), Node("e")))
    assert draw(tree, "") == ["a", " |--- b", " |     |--- c", " |     +--- d", " +--- e"]


def test_a_stack_shows_the_line_of_each_frame() -> None:
    here = Source("tests/unit/test_padiff_texts.py", 1, "forward")
    record = Record(0, 0, Kind.OP, Phase.FORWARD, "", "op", 0, None, 0, stack=(here, Source("gone.py", 7, "<module>")))
    lines = stack_text(record).splitlines()
    assert lines[0].strip() == "File tests/unit/test_padiff_texts.py: 1    forward"
    assert lines[2].strip() == "File gone.py: 7    <module>"
    assert line_of(__file__, 1) == '"""What both generations of PaDiff print: trees, mismatches, stacks."""'
    assert line_of("gone.py", 7) == ""
