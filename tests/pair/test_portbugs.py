"""A few cases of benchmarks/portbugs in full: what align() says of them. `make portbugs` runs them all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")

PORTBUGS = Path(__file__).resolve().parents[2] / "benchmarks" / "portbugs"

FOUND = (
    "gelu tanh, block block.mlp.act",
    "no scale, block block.attn",
    "softmax over queries, block block.attn",
    "bn momentum 0.1, resnet stages.2.bn1",
    "resize corners, vision resize",
    "time major, rnn lstm",
    "transposed, experts moe.experts.1",
    "gradient halved, block block.mlp",
    "ln eps 1e-6, deep ln_f",
    "rms eps 1e-6, llama ln_f",
    "frozen, block block.mlp.fc1",
)
NO_BUG = (
    "clean, experts",
    "softmax by hand, block block.attn",
    "renamed, block",
    "clean, text in training",
    "sum in two parts, block kind:linear",
    "tf32, block kind:linear",
)


@pytest.fixture(scope="module")
def portbugs() -> Any:
    """The benchmark's modules, which find each other as scripts do."""
    sys.path.insert(0, str(PORTBUGS))
    try:
        import cases
        import judges
        import planting

        yield cases, planting, judges
    finally:
        sys.path.remove(str(PORTBUGS))


def opinion(portbugs: Any, pair: tuple[str, str], name: str) -> Any:
    cases, planting, judges = portbugs
    chosen = [c for c in cases.cases() if (c.pair, c.name) == ("-".join(pair), name)]
    if not chosen:
        pytest.skip("not a case of this pair")
    return judges.judge_by_twinscope(planting.prepare(chosen[0]))


@pytest.mark.parametrize("name", FOUND)
def test_a_bug_is_found_where_it_is(portbugs: Any, pair: tuple[str, str], name: str) -> None:
    said = opinion(portbugs, pair, name)
    assert said.different, said
    assert said.right_place, said


@pytest.mark.parametrize("name", NO_BUG)
def test_what_is_no_bug_is_not_called_one(portbugs: Any, pair: tuple[str, str], name: str) -> None:
    said = opinion(portbugs, pair, name)
    assert said.verdict in ("same", "undecided"), said


def test_every_kind_has_a_case_in_each_pair(portbugs: Any, pair: tuple[str, str]) -> None:
    cases, _, _ = portbugs
    own = {c.plant.number for c in cases.cases() if c.pair == "-".join(pair) and c.plant is not None}
    only_there = {"torch-paddle": {19, 22, 26}, "torch-mindspore": {3}}
    if "-".join(pair) not in only_there:
        pytest.skip("not a pair of the benchmark")
    assert set(range(1, 44)) - own == set(cases.NOT_HERE) | only_there["-".join(pair)]
