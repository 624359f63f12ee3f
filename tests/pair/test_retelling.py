"""What a call of one framework was told otherwise than one of another, told in its place."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from twinscope.adapters._registry import by_name
from twinscope.explain.retelling import Called, ways
from twinscope.pairing.opnames import canonical_op
from twinscope.records import Kind
from twinscope.replaying import KeptCall, each_call, keep_calls, replay
from zoo import retold as zoo
from zoo import told

pytestmark = pytest.mark.filterwarnings("ignore")

NEAR = {"rtol": 2e-4, "atol": 2e-5}
#: The kernels of the two differ by more than that, or the two have no such input.
OTHERWISE = {"normalize-eps", "grid_sample-padding_mode", "elu-alpha"}
#: What only Paddle can be told, and by default is told otherwise than torch always is.
ONLY_PADDLE = {"smooth_l1_loss-huber", "median-mode"}
COMMON = [c for c in zoo.CASES if c.name not in OTHERWISE | ONLY_PADDLE]


def called(framework: str, case: zoo.OpCase, otherwise: bool) -> Called | None:
    text = case.told.get(framework, ("", ""))[otherwise]
    if not text:
        return None
    adapter = by_name(framework)
    calls: list[KeptCall] = []
    each_call(adapter, zoo.model(framework, text), [adapter.from_numpy(a) for a in case.inputs], {}, calls.append)
    return Called(adapter, next(c for c in calls if c.kind is Kind.OP and canonical_op(c.type) == case.op))


def alike(got: tuple[np.ndarray, ...], side: Called) -> bool:
    a, b = got[0], side.call.outputs[0]
    return a.size == b.size and np.allclose(a.reshape(b.shape), b, **NEAR)


@pytest.mark.parametrize("case", COMMON, ids=lambda c: c.name)
def test_an_op_is_told_what_the_other_framework_was_told(pair: tuple[str, str], case: zoo.OpCase) -> None:
    told_so(called(pair[0], case, True), called(pair[1], case, False), case)


@pytest.mark.parametrize("case", [c for c in zoo.CASES if c.name in ONLY_PADDLE], ids=lambda c: c.name)
def test_what_the_other_framework_always_does(pair: tuple[str, str], case: zoo.OpCase) -> None:
    if pair[1] != "paddle":
        pytest.skip("can be told nothing")
    told_so(called(pair[0], case, False), called(pair[1], case, False), case)


def told_so(reference: Called | None, candidate: Called | None, case: zoo.OpCase) -> None:
    if reference is None or candidate is None:
        pytest.skip("has no such option")
    assert not alike(candidate.call.outputs, reference)
    found = [way for way in ways(candidate, reference) if way.differs]
    assert found
    for way in found:
        assert way.call is not None
        try:
            got = replay(candidate.adapter, way.call.target, way.call, candidate.call.inputs)
        except (TypeError, ValueError, RuntimeError, IndexError):
            continue
        if alike(got, reference):
            assert case.option.split("-")[0] in way.text
            break
    else:
        pytest.fail(f"none of {[way.text for way in found]}")


@pytest.mark.parametrize("case", COMMON, ids=lambda c: c.name)
def test_ops_that_were_told_the_same(pair: tuple[str, str], case: zoo.OpCase) -> None:
    reference, candidate = called(pair[0], case, False), called(pair[1], case, False)
    if reference is None or candidate is None:
        pytest.skip("has no such option")
    named = [way.text for way in ways(candidate, reference) if way.differs]
    assert not [text for text in named if text.startswith(case.option.split("-")[0] + " ")]


LAYERS = [
    ("layer_norm-eps", {"torch": "F.layer_norm(x, (8,), eps=1e-3)", "paddle": "F.layer_norm(x, 8, epsilon=1e-3)"}),
    ("gelu-approximate", {"torch": "F.gelu(x, approximate='tanh')", "paddle": "F.gelu(x, True)"}),
    ("leaky_relu-negative_slope", {"torch": "F.leaky_relu(x, 0.2)", "paddle": "F.leaky_relu(x, 0.2)"}),
    ("gelu-approximate", {"mindspore": "ops.gelu(x, approximate='tanh')"}),
    ("leaky_relu-negative_slope", {"mindspore": "ops.leaky_relu(x)"}),
    ("softmax-dim", {"torch": "x.softmax(1)", "paddle": "F.softmax(x, 1)", "mindspore": "ops.softmax(x, 1)"}),
]


@pytest.mark.parametrize("name,texts", LAYERS, ids=[name for name, _ in LAYERS])
def test_a_layer_and_a_function(pair: tuple[str, str], name: str, texts: dict[str, str]) -> None:
    """The reference calls a function, the candidate has a layer; and the other way round."""
    if pair[0] not in texts:
        pytest.skip("said elsewhere")
    case = next(c for c in told.CASES if c.name == name)
    reference, candidate = by_name(pair[0]), by_name(pair[1])
    calls: list[KeptCall] = []
    given = reference.from_numpy(case.inputs)
    each_call(reference, zoo.model(pair[0], texts[pair[0]]), [given], {}, calls.append)
    function = Called(reference, next(c for c in calls if canonical_op(c.type) == case.kind))
    layer = case.build(pair[1])
    seen = keep_calls(candidate, layer, (candidate.from_numpy(case.inputs),), {})[""]
    module = Called(candidate, seen)  # type: ignore[arg-type]
    first = next(iter(ways(module, function)))
    assert first.differs and first.settings is not None
    assert list(first.settings) == [case.setting]
    with candidate.altered(layer, first.settings) as changed:
        assert changed
        assert alike(replay(candidate, layer, seen, seen.inputs), function)
    back = next(iter(ways(function, module)))
    assert back.differs and back.call is not None and case.setting in back.text
    assert alike(replay(reference, back.call.target, back.call, function.call.inputs), module)


def test_a_layer_of_another_kind_says_nothing(pair: tuple[str, str]) -> None:
    case = next(c for c in told.CASES if c.name == "gelu-approximate")
    sides = []
    for framework, text in zip(pair, ("Softmax(-1)", "LeakyReLU(0.2)"), strict=True):
        adapter = by_name(framework)
        layer = eval(text, vars(importlib.import_module(f"{framework}.nn")))
        call = keep_calls(adapter, layer, (adapter.from_numpy(case.inputs),), {})[""]
        sides.append(Called(adapter, call))  # type: ignore[arg-type]
    assert not [way for way in ways(sides[1], sides[0]) if way.differs and "training" not in (way.settings or {})]
