"""The public names: a change of this list is a change of the interface."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import twinscope

NAMES = [
    "Capture",
    "ConvertReport",
    "Entry",
    "Finding",
    "InputPair",
    "Inputs",
    "LintFinding",
    "LintReport",
    "MemoryWriter",
    "Overall",
    "Phase",
    "Plan",
    "Record",
    "Result",
    "Trace",
    "TraceWriter",
    "TwinscopeError",
    "TwinscopeWarning",
    "Verdict",
    "Watched",
    "WeightMap",
    "Weights",
    "Writer",
    "__version__",
    "align",
    "align_isolated",
    "array_stats",
    "arrays_in",
    "as_array",
    "capture",
    "compare",
    "compare_arrays",
    "convert_checkpoint",
    "copy_weights",
    "is_tensor",
    "judge_trace",
    "lint",
    "map_weights",
    "modules_of",
    "no_dropout",
    "outputs_of",
    "read_checkpoint",
    "register_transform",
    "save_checkpoint",
    "seed",
    "snapshot",
    "watch_gradient",
    "weight_rule",
]

FUNCTIONS = [n for n in NAMES if n.islower() and n != "__version__" and n != "align_isolated"]


def test_the_list_of_names() -> None:
    assert twinscope.__all__ == NAMES
    assert dir(twinscope) == NAMES


def test_every_name_is_there() -> None:
    for name in NAMES:
        assert getattr(twinscope, name) is getattr(twinscope, name)
    with pytest.raises(AttributeError, match="module 'twinscope' has no attribute 'alignn'"):
        twinscope.alignn


def test_what_type_checkers_see_is_what_there_is() -> None:
    text = Path(twinscope.__file__).read_text()
    for name in set(NAMES) - {"__version__"}:
        assert f" import {name} as {name}\n" in text


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"__version__"}))
def test_every_name_says_what_it_is(name: str) -> None:
    text = inspect.getdoc(getattr(twinscope, name))
    assert text, name
    first = text.splitlines()[0]
    assert not first.startswith(f"{name}("), "dataclasses write this themselves"
    assert len(first) > 15


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example(name: str) -> None:
    function = getattr(twinscope, name)
    text = inspect.getdoc(function) or ""
    assert f"{name}(" in text, "an example of a call"
    missing = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.annotation is inspect.Parameter.empty and p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    assert not missing


@pytest.mark.parametrize(
    "name",
    [
        "array_stats",
        "compare_arrays",
        "Plan",
        "Inputs",
        "InputPair",
        "TwinscopeError",
        "register_transform",
        "arrays_in",
        "as_array",
        "is_tensor",
    ],
)
def test_examples_that_need_no_framework_run(name: str) -> None:
    found = getattr(twinscope, name)
    tests = doctest.DocTestFinder(recurse=False).find(found, name, module=importlib.import_module(found.__module__))
    assert sum(len(t.examples) for t in tests) > 0
    for test in tests:
        runner = doctest.DocTestRunner(verbose=False)
        runner.run(test, out=lambda text: None)
        assert runner.failures == 0, name


def test_every_module_says_what_it_is_for() -> None:
    for info in pkgutil.walk_packages(twinscope.__path__, "twinscope."):
        if info.name.startswith("twinscope.adapters.") and info.name.rpartition(".")[2] in (
            "torch",
            "paddle",
            "mindspore",
        ):
            continue  # they import their frameworks
        if info.name in ("twinscope.demo", "twinscope.adapters"):
            continue
        assert importlib.import_module(info.name).__doc__, info.name
