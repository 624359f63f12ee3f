"""Kinds of mistakes, each in one small module between layers that are right, and twins that go another way about it.

Every row is written once in each framework. What a row shows holds for its kind, so no row is a case of the benchmark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from twinscope import Overall, Result, Verdict, align

pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH = 16
_RANDOM = np.random.default_rng(0)
X = _RANDOM.standard_normal((3, 7, WIDTH)).astype(np.float32)
SQUARE = _RANDOM.standard_normal((WIDTH, WIDTH)).astype(np.float32)
LATER = np.triu(np.ones((7, 7), bool), 1)
INF = float("inf")

_Code = Callable[[Any, Any, Any], Any]


class Kind(NamedTuple):
    """What the module between does on either side: of the framework, of the module with its weight w, of x."""

    torch: _Code
    paddle: _Code
    cause: str = ""  # a regular expression that the cause contains


def _mask(p: Any, hidden: Any, x: Any, far: float) -> Any:
    return p.where(p.to_tensor(hidden), p.full_like(x, far), x)


def _scores(x: Any) -> Any:
    return x[..., :7]


BUGS = {
    "a constant of an activation": Kind(
        lambda t, s, x: 0.5 * x * (1 + t.tanh(0.79788456 * (x + 0.044715 * x**3))),
        lambda p, s, x: 0.5 * x * (1 + p.tanh(0.79788456 * (x + 0.04715 * x**3))),
        "factor",
    ),
    "a constant that was rounded": Kind(lambda t, s, x: x / 2**0.5, lambda p, s, x: x / 1.414, "factor"),
    "a limit": Kind(lambda t, s, x: t.clamp(x, -1, 1), lambda p, s, x: p.clip(x, -1, 1.5), r"max|1\.5"),
    "an epsilon where one side has a layer": Kind(
        lambda t, s, x: t.nn.functional.layer_norm(x, (WIDTH,), eps=1e-5),
        lambda p, s, x: (
            (x - x.mean(-1, keepdim=True)) / p.sqrt(((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True) + 1e-6)
        ),
        "times",  # every row has the same variance here, so that is all there is to see
    ),
    "too few": Kind(
        lambda t, s, x: x + t.topk(x, 3, -1)[0].sum(-1, keepdim=True),
        lambda p, s, x: x + p.topk(x, 2, -1)[0].sum(-1, keepdim=True),
        r"\bk\b",
    ),
    "a mask the wrong way round": Kind(
        lambda t, s, x: t.softmax(_scores(x).masked_fill(t.tensor(LATER), -1e9), -1) @ x,
        lambda p, s, x: p.nn.functional.softmax(_mask(p, ~LATER, _scores(x), -1e9), -1) @ x,
        "mask",
    ),
    "a residual left out": Kind(lambda t, s, x: x + t.tanh(x), lambda p, s, x: p.tanh(x), "sum|residual"),
    "an activation too many": Kind(
        lambda t, s, x: t.tanh(x), lambda p, s, x: p.nn.functional.relu(p.tanh(x)), "relu.*too many"
    ),
    "another order of channels": Kind(lambda t, s, x: x * 1.0, lambda p, s, x: x[..., list(range(15, -1, -1))], ""),
    "a norm for a mean": Kind(
        lambda t, s, x: x - x.mean(-1, keepdim=True),
        lambda p, s, x: x - p.linalg.norm(x, axis=-1, keepdim=True),
        "mean.*norm",
    ),
    "a square weight turned": Kind(lambda t, s, x: x @ s.w, lambda p, s, x: x @ s.w.T, "transpos"),
    "detached": Kind(lambda t, s, x: x * t.sigmoid(x), lambda p, s, x: x * p.tanh(x * 0 + x).detach(), ""),
    "detached in the reference": Kind(
        lambda t, s, x: x * t.sigmoid(x).detach(),
        lambda p, s, x: x * p.nn.functional.sigmoid(x),
        "detach.*reference's side only",
    ),
    "rounded down": Kind(lambda t, s, x: t.round(x * 3), lambda p, s, x: p.floor(x * 3), "round|floor"),
}

TWINS = {
    "a maximum for a slope": Kind(
        lambda t, s, x: t.maximum(x, 0.1 * x), lambda p, s, x: p.nn.functional.leaky_relu(x, 0.1)
    ),
    "a sum of exponentials": Kind(
        lambda t, s, x: x - t.logsumexp(x, -1, keepdim=True), lambda p, s, x: p.nn.functional.log_softmax(x, -1)
    ),
    "a mask written out": Kind(
        lambda t, s, x: t.softmax(_scores(x).masked_fill(t.tensor(LATER), -INF), -1) @ x,
        lambda p, s, x: p.nn.functional.softmax(_mask(p, LATER, _scores(x), -1e9), -1) @ x,
    ),
    "a mask that is added": Kind(
        lambda t, s, x: t.softmax(_scores(x).masked_fill(t.tensor(LATER), -INF), -1) @ x,
        lambda p, s, x: (
            p.nn.functional.softmax(_scores(x) + p.to_tensor(np.where(LATER, -INF, 0).astype("float32")), -1) @ x
        ),
    ),
    "rows of NaN made zero": Kind(
        lambda t, s, x: t.nan_to_num(t.softmax(_scores(x).masked_fill(t.tensor(LATER.T), -INF), -1)) @ x,
        lambda p, s, x: p.nan_to_num(p.nn.functional.softmax(_mask(p, LATER.T, _scores(x), -INF), -1)) @ x,
    ),
    "a layer norm written out": Kind(
        lambda t, s, x: t.nn.functional.layer_norm(x, (WIDTH,), eps=1e-5),
        lambda p, s, x: (
            (x - x.mean(-1, keepdim=True)) / p.sqrt(((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True) + 1e-5)
        ),
    ),
    "largest by sorting": Kind(
        lambda t, s, x: x + t.topk(x, 3, -1)[0].sum(-1, keepdim=True),
        lambda p, s, x: x + p.sort(x, -1, descending=True)[..., :3].sum(-1, keepdim=True),
    ),
    "in two parts": Kind(lambda t, s, x: x @ s.w, lambda p, s, x: p.concat([x[:, :3] @ s.w, x[:, 3:] @ s.w], 1)),
    "a roll of slices": Kind(lambda t, s, x: t.roll(x, 2, 1), lambda p, s, x: p.concat([x[:, -2:], x[:, :-2]], 1)),
    "saturated": Kind(lambda t, s, x: t.sigmoid(x * 40), lambda p, s, x: p.nn.functional.sigmoid(x * 40)),
    "one of many": Kind(lambda t, s, x: t.softmax(x * 40, -1), lambda p, s, x: p.nn.functional.softmax(x * 40, -1)),
    "zeros": Kind(lambda t, s, x: x * 0.0, lambda p, s, x: x * 0.0),
    "nothing gets through": Kind(lambda t, s, x: t.relu(x - 50), lambda p, s, x: p.nn.functional.relu(x - 50)),
    "denormal numbers": Kind(lambda t, s, x: t.tanh(x * 1e-39) * 1e36, lambda p, s, x: p.tanh(x * 1e-39) * 1e36),
    "tiny numbers": Kind(lambda t, s, x: x * 1e-20, lambda p, s, x: x * 1e-20),
    "huge numbers": Kind(lambda t, s, x: x * 1e18, lambda p, s, x: x * 1e18),
}


def judged(code: Kind) -> Result:
    import paddle
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(SQUARE))

        def forward(self, x: Any) -> Any:
            return code.torch(torch, self, x)

    class Second(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.w = self.create_parameter([WIDTH, WIDTH])

        def forward(self, x: Any) -> Any:
            return code.paddle(paddle, self, x)

    class Reference(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.norm = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)
            self.here, self.out = First(), torch.nn.Linear(WIDTH, 5)

        def forward(self, x: Any) -> Any:
            return self.out(self.here(self.norm(self.into(x))))

    class Candidate(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.norm = paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.LayerNorm(WIDTH)
            self.here, self.out = Second(), paddle.nn.Linear(WIDTH, 5)

        def forward(self, x: Any) -> Any:
            return self.out(self.here(self.norm(self.into(x))))

    torch.manual_seed(0)
    weights = np.cos(np.arange(3 * 7 * 5, dtype=np.float32)).reshape(3, 7, 5)
    losses = (lambda y: (y * torch.tensor(weights)).mean(), lambda y: (y * paddle.to_tensor(weights)).mean())
    return align(Reference(), Candidate(), X, loss=losses)


@pytest.fixture(autouse=True)
def _torch_and_paddle(pair: tuple[str, str]) -> None:
    if pair != ("torch", "paddle"):
        pytest.skip("written in torch and paddle")


@pytest.mark.parametrize("name", BUGS)
def test_a_mistake_is_found_where_it_is(name: str) -> None:
    result = judged(BUGS[name])
    assert result.verdict is Overall.DIFFERENT, str(result)
    first = next(f for f in result.findings if f.verdict is Verdict.BUG)
    assert (first.candidate or "").partition(" ")[0] == "here", str(result)
    assert re.search(BUGS[name].cause, first.cause or ""), first.cause


@pytest.mark.parametrize("name", TWINS)
def test_another_way_to_the_same_is_none(name: str) -> None:
    result = judged(TWINS[name])
    assert result.verdict is Overall.SAME, str(result)


def test_a_choice_that_falls_the_other_way_within_noise_is_no_bug() -> None:
    flips = Kind(lambda t, s, x: x * (t.round(x * 1e5) % 2), lambda p, s, x: x * (p.round(x * 1e5) % 2))
    result = judged(flips)
    assert result.verdict is not Overall.DIFFERENT, str(result)
    assert any("falls the other way" in note for note in result.notes), result.notes
    wrong = Kind(lambda t, s, x: x * (t.round(x * 1e5) % 2), lambda p, s, x: x * (p.round(x * 1e5) % 3))
    assert judged(wrong).verdict is Overall.DIFFERENT


def test_a_tensor_that_went_through_fewer_bits_is_a_matter_of_precision() -> None:
    rounded = Kind(lambda t, s, x: t.tanh(x), lambda p, s, x: p.tanh(x.astype("bfloat16").astype("float32")))
    result = judged(rounded)
    assert result.verdict is not Overall.DIFFERENT, str(result)
    assert [f.verdict for f in result.findings] == [Verdict.PRECISION]
    assert "bfloat16" in (result.findings[0].cause or "")
    off = Kind(lambda t, s, x: t.tanh(x), lambda p, s, x: p.tanh(x.astype("bfloat16").astype("float32") * 1.5))
    assert judged(off).verdict is Overall.DIFFERENT


def test_several_mistakes_are_listed_each_once_and_in_order() -> None:
    two = Kind(
        lambda t, s, x: t.tanh(t.relu(x) / 3.0) @ s.w,
        lambda p, s, x: p.tanh(p.nn.functional.leaky_relu(x, 0.2) / 3.1) @ s.w.T,
    )
    result = judged(two)
    said = [(f.candidate, f.cause) for f in result.findings if f.verdict is Verdict.BUG]
    assert len(said) == 3, said
    for (_, cause), word in zip(said, ("relu", "factor", "transpos"), strict=True):
        assert word in (cause or ""), said
    one = Kind(two.torch, lambda p, s, x: p.tanh(p.nn.functional.relu(x) / 3.1) @ s.w)
    assert len(judged(one).findings) == 1
