"""Reports: what is drawn at several widths, what may never happen to it, and the files."""

from __future__ import annotations

import csv
import json
import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from twinscope.errors import OptionError, TraceWriteError
from twinscope.records import Overall, Phase, Source, Verdict
from twinscope.report import build
from twinscope.report.files import COLUMNS, write_csv, write_json, write_text
from twinscope.report.listing import render_trace
from twinscope.report.terminal import _wrap, render, supports_color, supports_unicode
from twinscope.report.tree import Mark, Node, lines, shorten
from twinscope.result import Result, rows
from twinscope.store import Trace
from unit.result_factory import LONG, ResultFactory, network, write_trace

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (40, 80, 120)
GUIDES = re.compile(r"[│├└─✗▸±↓?∅·≈✓|`]")


def golden(name: str, text: str) -> None:
    """`text` is what is in the file; TWINSCOPE_REGENERATE=1 writes it there instead."""
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("TWINSCOPE_REGENERATE") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    assert file.is_file(), f"{file.name} is missing: run with TWINSCOPE_REGENERATE=1 and look at it"
    assert text + "\n" == file.read_text(encoding="utf-8")


def all_nodes(nodes: tuple[Node, ...]) -> list[Node]:
    return [n for node in nodes for n in (node, *all_nodes(node.children))]


# -- golden ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("verdict", list(Overall))
def test_golden(verdict: Overall, width: int) -> None:
    golden(f"report_{verdict.value.lower()}_{width}", render(network(verdict), width=width, unicode=True))


def test_golden_ascii() -> None:
    text = render(network(Overall.DIFFERENT), width=80, unicode=False)
    assert text.isascii()
    golden("report_different_80_ascii", text)


def test_golden_long_tree() -> None:
    golden("report_different_long", render(network(Overall.DIFFERENT, layers=24, bug_in=11), width=80, unicode=True))


@pytest.mark.parametrize("width", WIDTHS)
def test_golden_show(tmp_path: Path, width: int) -> None:
    trace = Trace.open(write_trace(tmp_path / "t", nan=True))
    golden(f"show_{width}", render_trace(trace, ops=True, slots=True, fold=False, width=width, unicode=True))


def test_golden_can_fail() -> None:
    other = network(Overall.DIFFERENT, bug_in=2)
    if os.environ.get("TWINSCOPE_REGENERATE") != "1":
        with pytest.raises(AssertionError):
            golden("report_different_80", render(other, width=80, unicode=True))


# -- what is said ----------------------------------------------------------------------------------------------------


def test_different_names_place_lines_and_numbers() -> None:
    text = render(network(Overall.DIFFERENT), width=100, unicode=True)
    assert text.startswith("DIFFERENT: ")
    assert text.index("DIFFERENT") < text.index("First divergence") < text.index("Calls of") < text.index("Worst pairs")
    for said in ("layers.1 · gelu", "blocks.1 · gelu", "model.py:41", "port.py:17", "0.00024", "24 times"):
        assert said in text
    assert "[1, 1]: 4 in the reference, 4.25 in the candidate" in text
    assert "called on the reference's side only" in text


def test_same_has_no_divergence() -> None:
    text = render(network(Overall.SAME), width=100, unicode=True)
    assert text.startswith("SAME: ")
    for absent in ("First divergence", "BUG", "DIFFERENT", "inherited", "Worst pairs", "Without a partner"):
        assert absent not in text


def test_undecided_says_why_before_anything_else() -> None:
    text = render(network(Overall.UNDECIDED), width=100, unicode=True)
    assert text.startswith("UNDECIDED: ")
    why = text.index("nothing of phase backward could be compared")
    assert text.index("Why undecided") < why < text.index("Calls of")
    assert "not compared" in text
    assert text.count("nothing of phase backward") == 1  # not among the notes again


def test_str_of_result_is_the_report() -> None:
    result = network(Overall.DIFFERENT)
    assert str(result).startswith("DIFFERENT: ")
    assert "\x1b" not in str(result)


def test_tolerances_are_not_called_noise() -> None:
    result = replace(network(Overall.DIFFERENT), options={"atol": 1e-6, "rtol": 1e-4, "mode": "strict"})
    text = render(result, width=120, unicode=True)
    assert "the tolerance allows 1e-05" in text
    assert "atol=1e-06, rtol=0.0001, mode=strict" in text
    assert "noise explains" not in text
    assert "noise explains" in render(network(Overall.DIFFERENT), width=120)


def test_marks_tell_the_bug_from_its_surroundings() -> None:
    report = build(network(Overall.DIFFERENT))
    nodes = {(n.path, n.label): n for n in all_nodes(report.tree)}
    assert nodes["layers.1", "gelu()"].mark is Mark.BUG
    assert nodes["layers.1", "layers.1"].mark is Mark.INSIDE
    assert nodes["layers.2", "gelu()"].mark is Mark.FOLLOWS
    assert nodes["layers.0", "layers.0"].mark is Mark.NOISE
    assert nodes[LONG, LONG].mark is Mark.MISSING
    assert [n.mark for n in all_nodes(report.tree)].count(Mark.BUG) == 1
    assert Mark.BUG not in [n.mark for n in all_nodes(build(network(Overall.SAME)).tree)]


def test_layers_are_folded_unless_the_bug_is_inside() -> None:
    assert not any(n.label == "linear()" for n in all_nodes(build(network(Overall.DIFFERENT)).tree))
    assert any(n.label == "linear()" for n in all_nodes(build(network(Overall.DIFFERENT), fold=False).tree))
    made = ResultFactory()
    root = made.record("", "net.Net", 0, None)
    layer = made.record("attn", "torch.nn.MultiheadAttention", 1, 0)
    op = made.record("attn", "torch.softmax", 2, 1, op=True, builtin=True)
    other = made.record("attn", "torch.matmul", 3, 1, op=True, builtin=True)
    made.finding(made.pair(op, Verdict.BUG, error=1e-3))
    made.pair(other, Verdict.NOISE)
    made.pair(layer, Verdict.BUG, error=1e-3)
    made.pair(root, Verdict.BUG, error=1e-3)
    nodes = all_nodes(build(made.result(Overall.DIFFERENT)).tree)
    assert [(n.label, n.mark) for n in nodes] == [
        ("(root)", Mark.INSIDE),
        ("attn", Mark.INSIDE),
        ("softmax()", Mark.BUG),
        ("matmul()", Mark.NOISE),
    ]


def test_backward_only_bug_says_so() -> None:
    made = ResultFactory()
    root = made.record("", "net.Net", 0, None)
    layer = made.record("fc", "torch.nn.Linear", 1, 0, source=Source("net.py", 3, "forward"))
    made.pair(layer, Verdict.EXACT)
    made.pair(root, Verdict.EXACT)
    made.pair(made.record("", "net.Net", 0, None, phase=Phase.BACKWARD), Verdict.EXACT)
    made.finding(made.pair(made.record("fc", "torch.nn.Linear", 1, 0, phase=Phase.BACKWARD), Verdict.BUG, error=1e-3))
    text = render(made.result(Overall.DIFFERENT), width=100, unicode=True)
    assert re.search(r"✗ BUG .*fc  Linear  in backward", text)
    assert "in         the backward pass" in text


def test_steps_are_counted() -> None:
    made = ResultFactory()
    for step in range(3):
        made.pair(made.record("", "net.Net", step, None, step=step), Verdict.EXACT if step < 2 else Verdict.BUG)
    made.finding(made.pairs[2])
    text = render(made.result(Overall.DIFFERENT), width=100, unicode=True)
    assert "Calls of the reference in step 2" in text
    assert "step 0     1 exact" in text
    assert "step 2     1 differ" in text


# -- what may never happen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 33, 40, 59, 60, 80, 120, 200])
@pytest.mark.parametrize("verdict", list(Overall))
@pytest.mark.parametrize("unicode", [True, False])
def test_nothing_is_wider_than_the_terminal(verdict: Overall, width: int, unicode: bool) -> None:
    for line in render(network(verdict), width=width, unicode=unicode).splitlines():
        assert cell_len(line) <= width, line


@pytest.mark.parametrize("width", [20, 40, 80])
def test_nothing_is_cut(width: int) -> None:
    text = render(network(Overall.DIFFERENT), width=width, unicode=True)
    solid = re.sub(r"\s", "", GUIDES.sub("", text))
    for whole in (LONG, "model.Classifier", "port.py:17", "outisoffby0.00024ofitsscale"):
        assert whole in solid


@given(st.text(max_size=120), st.integers(4, 60), st.integers(4, 60))
@settings(max_examples=300, deadline=None)
def test_wrapping_loses_nothing(text: str, first: int, rest: int) -> None:
    text = "".join(c for c in text if c.isprintable())
    wrapped = _wrap(Text(text), first, rest)
    assert "".join("".join(line.plain for line in wrapped).split()) == "".join(text.split())
    for i, line in enumerate(wrapped):
        assert cell_len(line.plain) <= (first if i == 0 else rest)


def test_wrapping_breaks_at_spaces_then_at_dots() -> None:
    wrapped = _wrap(Text("in encoder.layers.0.attention"), 18, 18)
    assert [t.plain for t in wrapped] == ["in encoder.layers.", "0.attention"]
    assert [t.plain for t in _wrap(Text("one two three"), 9, 9)] == ["one two", "three"]
    assert [t.plain for t in _wrap(Text("abcdefghij"), 4, 4)] == ["abcd", "efgh", "ij"]


def test_hostile_names_are_spelled_out() -> None:
    made = ResultFactory()
    evil = "a\x1b]0;owned\x07\x1b[2J\nSAME\u202e[bold]"
    made.finding(made.pair(made.record(evil, "net.Net\x1b[31m", 0, None), Verdict.BUG))
    text = render(made.result(Overall.DIFFERENT), width=100, unicode=True)
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert "\\x1b]0;owned" in text
    assert "[bold]" in text  # not taken for markup
    assert not any(line.startswith("SAME") for line in text.splitlines())


def test_a_trace_need_not_be_honest_about_parents() -> None:
    made = ResultFactory()
    for call, parent in ((0, 0), (1, 2), (2, 1), (3, 99)):  # its own parent, a cycle, nobody
        made.pair(made.record(f"m{call}", "net.M", call, parent), Verdict.EXACT)
    for call in range(4, 3000):
        made.pair(made.record(f"m{call}", "net.M", call, call - 1), Verdict.EXACT)
    report = build(made.result(Overall.SAME))
    assert lines(report.tree) == 3000
    assert render(report, width=80)


def test_empty_result() -> None:
    text = render(ResultFactory().result(Overall.UNDECIDED, ("nothing was recorded",)), width=80)
    assert "no pairs" in text and "nothing was recorded" in text


# -- shortening ------------------------------------------------------------------------------------------------------


def test_long_trees_lose_what_agrees_and_say_so() -> None:
    tree = build(network(Overall.DIFFERENT, layers=60, bug_in=30)).tree
    short = shorten(tree, 40)
    assert lines(tree) > 200 > 40 >= lines(short)
    bugs = [n for n in all_nodes(short) if n.mark is Mark.BUG]
    assert [(n.path, n.label) for n in bugs] == [("layers.30", "gelu()")]
    drawn, hidden = 0, 0
    for node in all_nodes(short):
        drawn += not node.merged
        hidden += node.hidden
    assert drawn + hidden == lines(tree)


def test_trees_of_nothing_but_trouble_stay_bounded() -> None:
    made = ResultFactory()
    for call in range(1, 900, 3):
        made.finding(made.pair(made.record(f"a.{call}", "net.M", call, 0), Verdict.BUG))
        made.lost(made.record(f"a.{call + 1}", "net.M", call + 1, 0))
        made.pair(made.record(f"a.{call + 2}", "net.M", call + 2, 0), Verdict.NOISE)
    made.pair(made.record("", "net.Net", 0, None), Verdict.BUG)
    tree = build(made.result(Overall.DIFFERENT)).tree
    short = shorten(tree, 40)
    assert lines(tree) == 901 and 100 < lines(short) <= 122
    nodes = all_nodes(short)
    assert nodes[-1].merged and nodes[-1].mark is Mark.BUG
    assert sum(n.hidden + (not n.merged) for n in nodes) == 901


def test_short_trees_stay_whole() -> None:
    tree = build(network(Overall.SAME)).tree
    assert shorten(tree, lines(tree)) == tree
    assert shorten(tree, lines(tree) - 1) != tree


# -- colour ----------------------------------------------------------------------------------------------------------


class FakeTerminal:
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colour_only_when_asked() -> None:
    result = network(Overall.DIFFERENT)
    plain, coloured = render(result, width=80), render(result, width=80, color=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("", "")])
def test_when_a_stream_has_colours(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if name:
        monkeypatch.setenv(name, value)
    assert supports_color(FakeTerminal()) is (not name)  # type: ignore[arg-type]
    with open(os.devnull, "w", encoding="utf-8") as file:
        assert not supports_color(file)


def test_symbols_only_where_they_can_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with open(tmp_path / "a", "w", encoding="ascii") as file:
        assert not supports_unicode(file)
    with open(tmp_path / "b", "w", encoding="utf-8") as file:
        assert supports_unicode(file)
        monkeypatch.setenv("TERM", "dumb")
        assert not supports_unicode(file)


# -- traces ----------------------------------------------------------------------------------------------------------


def test_show_folds_and_filters(tmp_path: Path) -> None:
    trace = Trace.open(write_trace(tmp_path / "t"))
    text = render_trace(trace, width=100, unicode=True)
    assert "fc  Linear  4x5 float32" in text and "linear()" not in text and "relu()" not in text
    assert "relu()" in render_trace(trace, ops=True, width=100)
    assert "linear()" in render_trace(trace, ops=True, fold=False, width=100)
    only = render_trace(trace, path="fc", width=100)
    assert "fc  Linear" in only and "Net" not in only.split("Step 0")[1]
    assert "weight  5x6 float32" in render_trace(trace, phase="weight", width=100)
    assert "nothing" in render_trace(trace, phase="buffer", width=100)


def test_show_counts_what_is_not_finite(tmp_path: Path) -> None:
    assert "1 NaN" in render_trace(Trace.open(write_trace(tmp_path / "a", nan=True)), width=100)
    assert "NaN" not in render_trace(Trace.open(write_trace(tmp_path / "b")), width=100)


def test_show_refuses_what_is_not_there(tmp_path: Path) -> None:
    trace = Trace.open(write_trace(tmp_path / "t"))
    with pytest.raises(OptionError, match="step 7 is not in this trace"):
        render_trace(trace, step=7)
    with pytest.raises(OptionError, match="phase='backwards' is not known"):
        render_trace(trace, phase="backwards")


# -- files -----------------------------------------------------------------------------------------------------------


def test_json_is_strict_and_whole(tmp_path: Path) -> None:
    result = network(Overall.DIFFERENT)
    write_json(result, tmp_path / "r.json")
    read = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert read["verdict"] == "DIFFERENT"
    assert read["first_divergence"]["reference"] == "layers.1 · gelu"
    assert len(read["pairs"]) == len(result.pairs)


def test_csv_has_a_row_for_each_tensor(tmp_path: Path) -> None:
    result = network(Overall.DIFFERENT)
    write_csv(result, tmp_path / "r.csv")
    with open(tmp_path / "r.csv", encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == sum(len(p.diffs) for p in result.pairs)
    assert tuple(read[0]) == COLUMNS
    assert next(r["reference"] for r in read if r["verdict"] == "BUG") == "layers.1 · gelu"
    assert read[0]["reference_shape"] == "2x3"


def test_columns_are_those_of_rows() -> None:
    assert tuple(rows(network(Overall.SAME).pairs[0])[0]) == COLUMNS


def test_csv_of_nothing_has_a_header(tmp_path: Path) -> None:
    write_csv(ResultFactory().result(Overall.UNDECIDED), tmp_path / "r.csv")
    assert (tmp_path / "r.csv").read_text(encoding="utf-8") == ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize("write", [write_json, write_csv])
def test_files_say_why_they_cannot_be_written(tmp_path: Path, write: object) -> None:
    assert callable(write)
    result = network(Overall.SAME)
    with pytest.raises(OptionError, match="there is no directory"):
        write(result, tmp_path / "no" / "r")
    with pytest.raises(OptionError, match="is a directory"):
        write(result, tmp_path)
    with pytest.raises(TraceWriteError, match="cannot be written"):
        write(result, tmp_path / ("n" * 300))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    class Broken(Exception):
        pass

    class BrokenResult:
        def to_dict(self) -> dict[str, object]:
            raise Broken

    target = tmp_path / "r.json"
    target.write_text("old", encoding="utf-8")
    with pytest.raises(Broken):
        write_json(BrokenResult(), target)  # type: ignore[arg-type]
    assert target.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    write_text("new", target)
    assert target.read_text(encoding="utf-8") == "new\n"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask


def test_report_is_the_same_for_the_same_result() -> None:
    first: Result = network(Overall.DIFFERENT)
    assert build(first) == build(network(Overall.DIFFERENT))
    assert render(build(first), width=80) == render(first, width=80)
