"""Two ways to the same numbers, under a tolerance: what differs on the way and agrees where it is used is no bug."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import twinscope
from zoo.kits import kit


def scores(framework: str, when: str, scale: float = 0.5) -> Any:
    """Attention scores whose scale is applied before or after the product, or not at all."""
    k = kit(framework)

    class Scores(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = k.linear(8, 8)
            self.k = k.linear(8, 8)

        def forward(self, x: Any) -> Any:
            q, keys = self.q(x), k.permute(self.k(x), 0, 2, 1)
            made = (q * scale) @ keys if when == "before" else q @ keys
            return k.softmax(made * scale if when == "after" else made)

    return Scores()


@pytest.mark.parametrize("order", [("before", "after"), ("after", "before")])
def test_a_scale_before_or_after_the_product_is_the_same(pair: tuple[str, str], order: tuple[str, str]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    first, second = scores(pair[0], order[0]), scores(pair[1], order[1])
    found = twinscope.align(first, second, x, backward=False, atol=0.0, rtol=1e-5, mode="mean")
    assert found, str(found)


@pytest.mark.parametrize("order", [("before", "never"), ("after", "never")])
def test_a_scale_that_is_missing_is_found(pair: tuple[str, str], order: tuple[str, str]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
    first, second = scores(pair[0], order[0]), scores(pair[1], order[1])
    found = twinscope.align(first, second, x, backward=False, atol=0.0, rtol=1e-5, mode="mean")
    assert not found and found.first_divergence is not None
    assert "softmax" in str(found.first_divergence) or "mul" in str(found.first_divergence)
