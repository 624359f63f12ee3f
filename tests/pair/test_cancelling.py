"""Gradients that cancel are rounding on both sides and no bug; a bug among gradients that do not is one."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from twinscope import Overall, Phase, Verdict, align

pytestmark = pytest.mark.filterwarnings("ignore")

X = np.random.default_rng(0).standard_normal((4, 16)).astype("float32")


def network(framework: str, told: str = "", scaled: bool = False) -> Any:
    """It ends in a norm, whose mean does not depend on what it is given, unless its weights are `scaled`."""
    library = importlib.import_module(framework)
    nn = importlib.import_module(f"{framework}.nn")
    base = getattr(nn, {"torch": "Module", "paddle": "Layer", "mindspore": "Cell"}[framework])
    linear = nn.Dense if framework == "mindspore" else nn.Linear
    word = "eps" if framework == "torch" else "epsilon"

    class Net(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.one = linear(16, 16)
            self.first = nn.LayerNorm([16], **{word: 1e-4 if told == "eps" else 1e-5})
            self.two = linear(16, 16)
            self.last = nn.LayerNorm([16], **{word: 1e-5})

        def forward(self, x: Any) -> Any:
            h = self.first(self.one(x))
            if told == "cut":
                h = library.ops.stop_gradient(h) if framework == "mindspore" else h.detach()
            return self.last(self.two(h))

        construct = forward

    net = Net()
    if scaled:
        from twinscope.adapters._registry import by_name

        adapter = by_name(framework)
        weight = next(iter(adapter.state(net.last).values()))
        adapter.assign(weight, np.linspace(0.5, 1.5, 16).astype("float32"))
    return net


def test_a_gradient_that_cancels_is_no_bug(pair: tuple[str, str]) -> None:
    result = align(network(pair[0]), network(pair[1]), X)
    assert result.verdict is Overall.SAME, str(result)
    assert not any(p.verdict is Verdict.BUG for p in result.pairs)


def test_one_that_does_not_is_compared(pair: tuple[str, str]) -> None:
    assert align(network(pair[0], scaled=True), network(pair[1]), X).verdict is Overall.SAME
    cut = align(network(pair[0], scaled=True), network(pair[1], "cut"), X)
    assert cut.verdict is Overall.DIFFERENT
    assert any(f.phase in (Phase.BACKWARD, Phase.GRADIENT) for f in cut.findings)


def test_a_forward_bug_is_found_behind_it(pair: tuple[str, str]) -> None:
    result = align(network(pair[0]), network(pair[1], "eps"), X)
    assert result.verdict is Overall.DIFFERENT
    assert [f.candidate for f in result.findings] == ["first"]
