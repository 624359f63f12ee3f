"""What proving a map costs where the two networks really differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from twinscope import copy_weights, map_weights
from twinscope.errors import WeightError

X = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")


class Block(nn.Module):
    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.turned = turned

    def forward(self, x: Any) -> Any:
        one, other = (self.second, self.first) if self.turned else (self.first, self.second)
        return x + other(torch.relu(one(x)))


class Net(nn.Module):
    """Blocks of layers that could all stand for one another; `end` is what comes after them."""

    def __init__(self, end: Any, turned: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(turned) for _ in range(2))
        self.head, self.end, self.runs = nn.Linear(6, 6), end, 0

    def forward(self, x: Any) -> Any:
        self.runs += 1
        for block in self.blocks:
            x = block(x)
        return self.end(self.head(x))


@pytest.mark.parametrize("turned", [False, True])
def test_what_agrees_is_not_searched_for_what_differs_elsewhere(turned: bool) -> None:
    reference, candidate = Net(torch.sigmoid), Net(torch.tanh, turned)
    mapping = map_weights(reference, candidate, X)
    pairs = {e.reference[0]: e.candidate[0] for e in mapping}
    for i in range(2):  # the blocks agree, however their layers are called
        name = "second" if turned else "first"
        assert pairs[f"blocks.{i}.first.weight"] == f"blocks.{i}.{name}.weight"
    assert any("differ" in note for note in mapping.notes)
    assert candidate.runs < 12
    assert not any("differ" in note for note in map_weights(reference, Net(torch.sigmoid, turned), X).notes)


class Ends(nn.Module):
    """A last layer with a bias or without; `act` makes the networks differ, so that nothing is proven."""

    def __init__(self, name: str, bias: bool, act: Any) -> None:
        super().__init__()
        self.first = nn.Linear(6, 9)
        self.ends = nn.ModuleDict({name: nn.Linear(9, 4, bias=bias)})
        self.act = act
        for end in self.ends.values():
            if bias:
                nn.init.zeros_(end.bias)

    def forward(self, x: Any) -> Any:
        return next(iter(self.ends.values()))(self.act(self.first(x)))


def test_a_bias_on_one_side_leaves_the_only_layer_of_its_shape_sure() -> None:
    mapping = map_weights(Ends("a", True, torch.sigmoid), Ends("x", False, torch.tanh), X)
    assert mapping.complete, str(mapping)
    found = {e.reference: e for e in mapping}
    assert found[("ends.a.weight",)].candidate == ("ends.x.weight",)
    assert found[("ends.a.bias",)].candidate == ()
    counting = Ends("a", True, torch.sigmoid)
    nn.init.ones_(counting.ends["a"].bias)
    with pytest.raises(WeightError, match="cannot be left out"):
        copy_weights(counting, Ends("x", False, torch.tanh), inputs=X)
