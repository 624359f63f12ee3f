"""What is said of two torch networks that differ in a way people meet: neither a bug passed nor a rewrite blamed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from twinscope import Overall, Phase, align
from twinscope.errors import FrameworkError, OptionError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

X = np.random.default_rng(0).standard_normal((2, 6, 16)).astype(np.float32)


def fill(a: Any, hidden: Any, value: float) -> Any:
    return a.masked_fill(hidden, value)


def upper(size: int, shift: int) -> Any:
    return torch.triu(torch.ones(size, size, dtype=torch.bool), shift)


MASKS: list[Callable[[Any, int, int], Any]] = [
    lambda a, n, s: fill(a, upper(n, s), float("-inf")),
    lambda a, n, s: a + torch.triu(torch.full((n, n), -1e9), s),
    lambda a, n, s: a + torch.triu(torch.full((n, n), float("-inf")), s),
    lambda a, n, s: fill(a, torch.arange(n)[:, None] < torch.arange(n)[None] - (s - 1), -1e9),
    lambda a, n, s: torch.where(torch.tril(torch.ones(n, n), s - 1) > 0, a, torch.tensor(-1e9)),
]


class Attention(nn.Module):
    def __init__(
        self, mask: int = 1, shift: int = 1, detach: bool = False, late: bool = True, extra: float = 1.0
    ) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.norm = nn.LayerNorm(16)
        self.mask, self.shift, self.detach, self.late, self.extra = mask, shift, detach, late, extra

    def forward(self, x: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        a = (q @ k.transpose(-1, -2)) * 0.25 if self.late else (q * 0.25) @ k.transpose(-1, -2)
        h = torch.softmax(MASKS[self.mask](a, x.shape[1], self.shift), -1) @ v
        if self.extra != 1.0:
            h = h * self.extra
        return self.norm(x + self.o(h.detach() if self.detach else h))


@pytest.mark.parametrize(("one", "other"), list(itertools.product(range(len(MASKS)), repeat=2)))
def test_a_mask_may_be_written_in_any_way(one: int, other: int) -> None:
    result = align(Attention(one), Attention(other), X)
    assert result.verdict is Overall.SAME, str(result)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 1), (3, 0)])
def test_a_mask_that_is_off_by_one_is_found(one: int, other: int) -> None:
    result = align(Attention(one), Attention(other, shift=2), X)
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None and result.first_divergence.phase is Phase.FORWARD


def test_a_scale_may_come_before_or_after_the_product() -> None:
    assert align(Attention(), Attention(late=False), X).verdict is Overall.SAME
    assert align(Attention(late=False), Attention(), X).verdict is Overall.SAME


def test_an_extra_op_between_two_calls_is_named() -> None:
    result = align(Attention(), Attention(extra=1.5), X)
    assert result.first_divergence is not None
    assert "look at" in result.first_divergence.message
    assert "mul()" in result.first_divergence.message


@pytest.mark.parametrize("swap", [False, True])
def test_a_detached_branch_is_a_bug_of_the_backward_pass(swap: bool) -> None:
    pair = (Attention(detach=True), Attention()) if swap else (Attention(), Attention(detach=True))
    result = align(*pair, X)
    assert result.verdict is Overall.DIFFERENT
    [found] = result.findings
    assert found.phase is Phase.BACKWARD
    assert found.cause == f"detached: detach() on the {'reference' if swap else 'candidate'}'s side only"


def test_a_frozen_parameter_is_seen() -> None:
    frozen = Attention()
    frozen.v.requires_grad_(False)
    result = align(Attention(), frozen, X)
    assert result.verdict is Overall.DIFFERENT
    assert any("v.weight is trainable on one side only" in n for n in result.notes)


class Deep(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(nn.LayerNorm(16, eps=eps if i == 22 else 1e-5), nn.Linear(16, 16), nn.GELU())
            for i in range(24)
        ]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return x


def test_a_small_bug_deep_in_a_network_is_found_where_it_is() -> None:
    assert align(Deep(), Deep(), X).verdict is Overall.SAME
    result = align(Deep(), Deep(1e-4), X)
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None and result.first_divergence.reference == "blocks.22.0"


class Half(nn.Module):
    def __init__(self, dtype: Any, depth: int, last: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(depth)])
        self.last, self.dtype = last, dtype
        self.to(dtype)

    def forward(self, x: Any) -> Any:
        x = x.to(self.dtype)
        for i, layer in enumerate(self.layers):
            x = x + (self.last if i == len(self.layers) - 1 else F.gelu)(layer(x))
        return x.float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("depth", [1, 4, 12])
def test_half_precision_hides_no_wrong_activation(dtype: Any, depth: int) -> None:
    assert align(Half(dtype, depth, F.gelu), Half(dtype, depth, F.gelu), X).verdict is Overall.SAME
    for wrong in (F.silu, F.relu):
        assert align(Half(dtype, depth, F.gelu), Half(dtype, depth, wrong), X).verdict is Overall.DIFFERENT


class Dropping(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(16, 64), nn.Dropout(p), nn.Linear(64, 4)

    def forward(self, x: Any) -> Any:
        return self.b(self.drop(self.a(x)))


def test_the_rate_of_an_active_dropout_shows_in_what_it_lets_through() -> None:
    result = align(Dropping(0.5), Dropping(0.4), X)
    assert result.verdict is Overall.DIFFERENT
    assert [f.reference for f in result.findings] == ["drop"]
    assert "p=0.5 / 0.4" in (result.findings[0].cause or "")
    assert align(Dropping(0.5).eval(), Dropping(0.4).eval(), X).verdict is Overall.SAME


def test_nothing_finite_is_not_the_same() -> None:
    assert align(Attention(), Attention(), X * np.float32(np.nan)).verdict is Overall.UNDECIDED


def test_a_compiled_model_is_refused_with_a_hint() -> None:
    with pytest.raises(FrameworkError, match=r"before torch\.compile"):
        align(torch.compile(Attention(), backend="eager"), Attention(), X)


def test_a_loss_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(OptionError, match="cannot be called"):
        align(Attention(), Attention(), X, loss=3)
    for loss in (lambda out: None, lambda out: 3.0, lambda out: out.detach().sum()):
        with pytest.raises(OptionError, match="led to no gradient"):
            align(Attention(), Attention(), X, loss=loss)
    assert align(Attention(), Attention(), X, loss=lambda out: None, backward=False).verdict is Overall.SAME


class Chain(nn.Module):
    def __init__(self, names: str) -> None:
        super().__init__()
        for name in names if names == "abc" else names[::-1]:
            setattr(self, name, nn.Linear(16, 16))
        self.order = names

    def forward(self, x: Any) -> Any:
        for name in self.order:
            x = torch.tanh(getattr(self, name)(x))
        return x


def test_weights_whose_names_say_nothing_are_paired_by_running() -> None:
    result = align(Chain("abc"), Chain("xyz"), X)
    assert result.verdict is Overall.SAME
    assert result.weights is not None
    found = {entry.reference[0]: entry.candidate[0] for entry in result.weights.entries}
    assert {k: v for k, v in found.items() if k.endswith("weight")} == {
        "a.weight": "x.weight",
        "b.weight": "y.weight",
        "c.weight": "z.weight",
    }
    assert align(Chain("abc"), Chain("xyz"), X, mapping={"a": "y", "b": "x", "c": "z"}).verdict is not Overall.SAME
