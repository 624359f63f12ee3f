"""Patterns over dotted paths and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinscope import patterns


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("encoder", "encoder", True),
        ("encoder", "encoder.3.attn", True),  # whatever lies below is meant too
        ("encoder", "encoder2", False),
        ("encoder", "my.encoder", False),
        ("encoder.*", "encoder.3", True),
        ("encoder.*", "encoder", False),
        ("encoder.*.attn", "encoder.3.attn.q", True),
        ("encoder.*.attn", "encoder.3.mlp.attn", False),
        ("encoder.**.attn", "encoder.3.mlp.attn", True),
        ("**.attn", "attn", False),
        ("**", "anything.at.all", True),
        ("*", "", True),
        ("?", "", False),
        ("layer?", "layer1", True),
        ("layer?", "layer12", False),
        ("a.b", "axb", False),  # a dot is a dot
        ("a+", "aa", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_matches(pattern: str, path: str, expected: bool) -> None:
    assert patterns.matches(pattern, path) is expected


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("Linear", "torch.nn.modules.linear.Linear", True),
        ("linear", "torch.nn.modules.linear.Linear", False),
        ("torch.nn.modules.linear.Linear", "torch.nn.modules.linear.Linear", True),
        ("soft*", "torch.softmax", True),
        ("soft*", "torch.log_softmax", False),
        ("torch.*", "torch.softmax", True),
        ("torch.*", "torch.nn.softmax", False),
        ("modules.linear", "torch.nn.modules.linear.Linear", False),
    ],
)
def test_matches_name(pattern: str, name: str, expected: bool) -> None:
    assert patterns.matches_name(pattern, name) is expected


@given(st.lists(st.text("abc[](){}+*?\\^$|", min_size=1), min_size=1, max_size=4))
def test_a_path_without_wildcards_matches_itself_and_what_is_below(parts: list[str]) -> None:
    path = ".".join(p.replace("*", "s").replace("?", "q") for p in parts)
    assert patterns.matches(path, path)
    assert patterns.matches(path, path + ".below")
    assert not patterns.matches(path, path + "x")


def test_did_you_mean() -> None:
    assert patterns.did_you_mean("levl", ["level", "keep"]) == "did you mean 'level'?"
    assert patterns.did_you_mean("zzz", ["level", "keep"]) == "known are 'level', 'keep'"


@pytest.mark.parametrize(
    ("pattern", "path", "target", "expected"),
    [
        ("encoder.layers.{i}.attn", "encoder.layers.3.attn", "blocks.{i}.attention", "blocks.3.attention"),
        ("layer{i}.{j}", "layer1.0", "stages.{j}.{i}", "stages.0.1"),
        ("**.q", "a.b.q", "**.wq", "a.b.wq"),
        ("*.x.*", "a.x.b", "*.y.*", "a.y.b"),
        ("{i}.{i}", "3.3", "{i}", "3"),
        ("plain", "plain", "other", "other"),
    ],
)
def test_capture_and_fill(pattern: str, path: str, target: str, expected: str) -> None:
    found = patterns.capture(pattern, path)
    assert found is not None
    assert patterns.fill(target, found) == expected


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("encoder.{i}", "encoder.3.attn"),  # as a whole, not what is below
        ("{i}.{i}", "3.4"),
        ("encoder.{i}", "encoder."),
        ("*.x", "a.b.x"),
        ("a.b", "axb"),
    ],
)
def test_what_does_not_fit(pattern: str, path: str) -> None:
    assert patterns.capture(pattern, path) is None


def test_a_placeholder_that_was_not_captured() -> None:
    with pytest.raises(KeyError):
        patterns.fill("{j}", {"c_i": "3"})
