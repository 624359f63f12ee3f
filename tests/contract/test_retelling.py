"""Calls of functions told otherwise: what two calls were told differently, and what else could be tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twinscope.adapters._registry import by_name
from twinscope.explain.optable import OPTIONS
from twinscope.explain.retelling import Called, Way, retold, told_to, ways
from twinscope.pairing.opnames import canonical_op
from twinscope.records import Kind
from twinscope.replaying import KeptCall, each_call, keep_calls, replay
from zoo import retold as zoo
from zoo import told

pytestmark = pytest.mark.filterwarnings("ignore")


def called(framework: str, case: zoo.OpCase, otherwise: bool) -> Called | None:
    """The call of the op that the case is about."""
    text = case.told.get(framework, ("", ""))[otherwise]
    if not text:
        return None
    adapter = by_name(framework)
    calls: list[KeptCall] = []
    inputs = [adapter.from_numpy(a) for a in case.inputs]
    each_call(adapter, zoo.model(framework, text), inputs, {}, calls.append)
    own = [c for c in calls if c.kind is Kind.OP and canonical_op(c.type) == case.op]
    assert own, [(c.type, canonical_op(c.type)) for c in calls]
    return Called(adapter, own[0])


def made(side: Called, call: KeptCall | None) -> list[np.ndarray] | None:
    """What a call comes to; None where it cannot be made."""
    assert call is not None
    try:
        return list(replay(side.adapter, call.target, call, side.call.inputs))
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError, AssertionError):
        return None


def right(got: list[np.ndarray] | None, wanted: Called) -> bool:
    """Whether it is what the other call came to."""
    want = wanted.call.outputs
    return got is not None and any(
        a.shape == b.shape and np.allclose(a, b, 1e-5, 1e-6) for a in got[:1] for b in want[:1]
    )


def names(found: list[Way]) -> list[str]:
    return [way.text.split()[0] for way in found]


BOTH = [c for c in zoo.CASES]


@pytest.mark.parametrize("case", BOTH, ids=lambda c: c.name)
def test_what_two_calls_were_told_differently_comes_first(framework: str, case: zoo.OpCase) -> None:
    plain, other = called(framework, case, False), called(framework, case, True)
    if plain is None or other is None:
        pytest.skip("has no such option")
    assert not right(list(plain.call.outputs), other)
    found = list(ways(plain, other))
    assert found and found[0].differs, names(found)
    option = case.option.split("-")[0]
    assert names(found)[0] == option, names(found)
    assert right(made(plain, found[0].call), other), found[0].text
    assert [way for way in ways(plain, plain) if way.differs] == []


@pytest.mark.parametrize("case", BOTH, ids=lambda c: c.name)
def test_the_usual_suspects(framework: str, case: zoo.OpCase) -> None:
    plain, other = called(framework, case, False), called(framework, case, True)
    if plain is None or other is None:
        pytest.skip("has no such option")
    found = list(ways(plain))
    assert not any(way.differs for way in found)
    assert len(found) <= 40
    assert any(right(made(plain, way.call), other) for way in found) is case.suspected, names(found)


@pytest.mark.parametrize("case", BOTH, ids=lambda c: c.name)
def test_the_call_itself_is_not_changed(framework: str, case: zoo.OpCase) -> None:
    plain, other = called(framework, case, False), called(framework, case, True)
    if plain is None or other is None:
        pytest.skip("has no such option")
    before = plain.call.args, dict(plain.call.kwargs), plain.call.target
    for way in ways(plain, other):
        made(plain, way.call)
    assert (plain.call.args, plain.call.kwargs, plain.call.target) == before
    assert right(made(plain, plain.call), plain)


SHOWN = [c for c in told.CASES if c.shows and c.inputs is not None and (c.kind, c.setting) != ("prelu", "init")]


@pytest.mark.parametrize("case", SHOWN, ids=lambda c: c.name)
def test_layers_told_differently(framework: str, case: told.Case) -> None:
    texts = case.told.get(framework, ("", ""))
    if not all(texts):
        pytest.skip("has no such setting")
    adapter = by_name(framework)
    sides = []
    for otherwise in (False, True):
        adapter.seed(1)
        layer = case.build(framework, otherwise)
        given = adapter.from_numpy(case.inputs)
        with adapter.evaluating(layer):
            adapter.seed(0)
            call = keep_calls(adapter, layer, (given,), {})[""]
        sides.append(Called(adapter, call))  # type: ignore[arg-type]
    plain, other = sides
    found = [way for way in ways(plain, other) if way.differs]
    assert found
    for way in found:
        assert way.settings is not None and way.call is None
        with adapter.altered(plain.call.target, way.settings) as changed, adapter.evaluating(plain.call.target):
            if changed and right(made(plain, plain.call), other):
                break
    else:
        pytest.fail(f"none of {[way.text for way in found]}")
    assert not [way for way in ways(plain, plain) if way.differs]


def test_an_option_that_a_function_does_not_have(framework: str) -> None:
    side = called(framework, zoo.CASES[0], False)
    assert side is not None
    told = told_to(side.adapter, side.call)["approximate"]
    assert retold(side.adapter, side.call, replace(told, place=""), "tanh") is None
    if framework == "mindspore":
        assert retold(side.adapter, side.call, replace(told, place=None, own="colour"), "blue") is None


def test_most_options_of_the_table_are_found(framework: str) -> None:
    """A release that renames a parameter, or documents it otherwise, is noticed."""
    missing: list[str] = []
    for case in BOTH:
        side: Any = called(framework, case, False)
        if side is not None and case.option.split("-")[0] not in told_to(side.adapter, side.call):
            missing.append(f"{case.name}: {side.call.type}")
    assert not missing, missing
    assert {case.op for case in BOTH} <= set(OPTIONS)
