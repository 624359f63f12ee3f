"""The sentences of the main errors: what was wrong, where, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinscope
from twinscope import errors
from twinscope.adapters import _registry
from twinscope.capturing import Plan
from twinscope.errors import (
    FrameworkError,
    MatchError,
    NotAModelError,
    OptionError,
    TraceError,
    TraceFormatError,
    TwinscopeError,
)
from unit.result_factory import write_trace

CASES: list[tuple[str, type[TwinscopeError], str, Callable[[Path], Any]]] = [
    (
        "not a model",
        NotAModelError,
        "int is not a model of a known framework\nHint: hand in a torch.nn.Module, paddle.nn.Layer or "
        "mindspore.nn.Cell, or register an adapter for its framework",
        lambda place: twinscope.capture(3),
    ),
    (
        "an array is no model",
        NotAModelError,
        "numpy.ndarray is not a model of a known framework\nHint: ",
        lambda place: twinscope.align(np.ones(3), np.ones(3), np.ones(3)),
    ),
    (
        "no such framework",
        FrameworkError,
        "no adapter for 'caffe'\nHint: known frameworks: mindspore, paddle, torch",
        lambda place: _registry.by_name("caffe"),
    ),
    (
        "an option that is misspelt",
        OptionError,
        "'kep' is not an option\nHint: did you mean 'keep'?",
        lambda place: Plan.parse(kep="stats"),
    ),
    (
        "an option that is nothing like any",
        OptionError,
        "'zzz' is not an option\nHint: known are 'level', 'backward', 'keep'",
        lambda place: Plan.parse(zzz=1),
    ),
    (
        "a value that is misspelt",
        OptionError,
        "level='layer' is not known\nHint: use one of 'module', 'op'",
        lambda place: Plan.parse(level="layer"),
    ),
    (
        "a budget",
        OptionError,
        "keep='5 apples' is not known\nHint: use 'stats', 'tensors', or a budget: keep=500_000_000 or keep='500MB'",
        lambda place: Plan.parse(keep="5 apples"),
    ),
    (
        "a tolerance",
        OptionError,
        "atol='small' is not a tolerance\nHint: write atol=1e-5, or leave it out",
        lambda place: twinscope.compare(write_trace(place / "t"), place / "t", atol="small"),  # type: ignore[arg-type]
    ),
    (
        "a mode",
        OptionError,
        "mode='max' is not known\nHint: use one of 'strict', 'mean'",
        lambda place: twinscope.compare(write_trace(place / "t"), place / "t", mode="max"),
    ),
    (
        "no trace",
        TraceError,
        "nowhere",
        lambda place: twinscope.compare(place / "nowhere", place / "nowhere"),
    ),
    (
        "a damaged trace",
        TraceFormatError,
        "manifest.json",
        lambda place: damaged(place),
    ),
    (
        "a mapping of what is not there",
        MatchError,
        "fcc",
        lambda place: twinscope.compare(write_trace(place / "t"), place / "t", mapping={"fcc": "fc"}),
    ),
]


def damaged(place: Path) -> None:
    trace = write_trace(place / "t")
    (trace / "manifest.json").write_text('{"schema": 1, ')
    twinscope.Trace.open(trace)


@pytest.mark.parametrize(("kind", "sentence", "work"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_sentences(tmp_path: Path, kind: type[TwinscopeError], sentence: str, work: Callable[[Path], Any]) -> None:
    with pytest.raises(kind) as caught:
        work(tmp_path)
    text = str(caught.value)
    assert sentence in text
    assert caught.value.hint and text.endswith(f"\nHint: {caught.value.hint}")
    assert text == f"{caught.value.message}\nHint: {caught.value.hint}"
    assert not caught.value.message.endswith(".")
    assert not caught.value.hint[0].isupper() or caught.value.hint.split()[0].isupper()


def test_an_error_without_a_hint() -> None:
    assert str(TwinscopeError("off")) == "off"
    assert TwinscopeError("off").hint is None


def test_the_tree_that_is_drawn_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    for name, cls in vars(errors).items():
        if inspect.isclass(cls) and issubclass(cls, TwinscopeError):
            assert f" {name} " in drawn + " " or f"{name}\n" in drawn, name
    # what Python's own users would catch
    assert issubclass(OptionError, ValueError) and issubclass(NotAModelError, TypeError)


def test_every_error_raised_on_purpose_is_one_of_the_tree() -> None:
    """`raise ValueError` and its like, outside of what is caught again nearby, is not how users are told."""
    source = Path(twinscope.__file__).parent
    for name in ("capturing.py", "aligning.py", "comparing.py", "judge.py", "patterns.py"):
        text = (source / name).read_text()
        for wrong in ("raise ValueError", "raise TypeError", "raise RuntimeError", "raise Exception"):
            assert wrong not in text, name


def test_errors_can_be_sent_to_another_process() -> None:
    import copy

    error = OptionError("off", hint="look here")
    again = copy.copy(error)
    assert type(again) is OptionError and str(again) == str(error) and again.hint == error.hint


@pytest.mark.parametrize("wrong", [1, None, [], object()])
def test_what_is_no_trace_is_refused_with_a_hint(wrong: Any) -> None:
    with pytest.raises(errors.OptionError, match="neither a trace nor the path of one") as caught:
        twinscope.compare(wrong, wrong)
    assert "twinscope.align" in str(caught.value)


def test_a_mapping_that_is_a_string_is_refused(tmp_path: Path) -> None:
    write_trace(tmp_path / "a")
    with pytest.raises(errors.OptionError, match="is a string"):
        twinscope.compare(tmp_path / "a", tmp_path / "a", mapping="a=b")  # type: ignore[arg-type]
