"""Calls are made again, alone: in their own precision, in float64 and backward; and the model is none the wiser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twinscope import Inputs
from twinscope.adapters._registry import by_name
from twinscope.errors import NoFloat64
from twinscope.records import Kind, Level
from twinscope.replaying import KeptCall, each_call, keep_calls, replay, replay_backward
from twinscope.running import as_arguments, unchanged
from zoo import NAMES, normal, zoo
from zoo.layers import INPUTS, layers

pytestmark = pytest.mark.filterwarnings("ignore")

#: Calls whose further outputs are scratch memory, and those whose kernel depends on how an input lies in memory.
SCRATCH = ("mindspore.ops.BatchNorm", "mindspore.ops.LSTM")
BY_LAYOUT = ("torch.gru", "torch.Tensor.matmul")


def calls_of(framework: str, name: str, level: Level = Level.OP) -> tuple[Any, Any, list[KeptCall]]:
    adapter = by_name(framework)
    entry = zoo(framework)[name]
    adapter.seed(0)
    model = entry.build()
    found: list[KeptCall] = []
    args, kwargs = as_arguments(adapter, Inputs(*entry.args(), **entry.kwargs()))
    with unchanged(adapter, model), adapter.evaluating(model):
        each_call(adapter, model, args, kwargs, found.append, level)
    return adapter, model, found


def held(adapter: Any, model: Any) -> dict[str, Any]:
    """All that must be as before: objects, values, dtypes, versions, the sharing of memory."""
    found: dict[str, Any] = {"random": adapter.random_state()}
    for info, module in adapter.modules(model):
        found[f"names {info.path}"] = sorted(vars(module))
        for name, tensor in adapter.state(module).items():
            values = np.ascontiguousarray(adapter.to_numpy(tensor)).tobytes()
            place = tensor.data_ptr()
            if adapter.name == "mindspore" and adapter.meta(tensor).dtype == "bfloat16":
                place = 0  # without a dtype of numpy's that would keep it, it gets new memory; the values are the same
            found[info.param_path(name)] = (
                id(tensor),
                values,
                adapter.meta(tensor),
                adapter.version(tensor),
                adapter.requires_grad(tensor),
                place,
            )
    return found


def dtypes(adapter: Any, model: Any) -> set[str]:
    tensors = [t for _, m in adapter.modules(model) for t in adapter.state(m).values()]
    return {d for d in (adapter.meta(t).dtype for t in tensors) if "float" in d}


# -- every call again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in NAMES if n != "raises"])
def test_every_call_gives_the_same_again(framework: str, name: str) -> None:
    adapter, model, calls = calls_of(framework, name)
    assert {c.kind for c in calls} == {Kind.MODULE, Kind.OP}
    before = held(adapter, model)
    with adapter.evaluating(model):
        for call in calls:
            again = replay(adapter, call.target, call, call.inputs)
            kept = call.outputs[:1] if call.type in SCRATCH else call.outputs
            for mine, first in zip(again, kept, strict=call.type not in SCRATCH):
                assert mine.dtype == first.dtype
                if call.type in BY_LAYOUT or call.kind is Kind.MODULE:
                    np.testing.assert_allclose(mine.astype("f8"), first.astype("f8"), rtol=1e-5, atol=1e-6)
                else:
                    assert np.array_equal(mine, first, equal_nan=mine.dtype.kind == "f"), call
    assert held(adapter, model) == before


@pytest.mark.parametrize("name", ["mlp", "transformer_block", "conv_bn", "inplace", "nested_outputs", "integers"])
def test_a_function_is_found_by_its_name(framework: str, name: str) -> None:
    adapter, _, calls = calls_of(framework, name)
    found = 0
    for call in calls:
        function = adapter.function(call.type) if call.kind is Kind.OP else None
        if function is not None:
            found += 1
            [mine, *_] = replay(adapter, function, call, call.inputs)
            np.testing.assert_array_equal(mine, call.outputs[0])
    assert found >= 1
    assert adapter.function(f"{framework}.no_such_function") is None
    assert adapter.told() is None


@pytest.mark.parametrize("name", [n for n in NAMES if n != "raises"])
def test_in_float64_every_call_gives_nearly_the_same(framework: str, name: str) -> None:
    adapter, model, calls = calls_of(framework, name)
    before = held(adapter, model)
    wide = 0
    with adapter.evaluating(model):
        for call in calls:
            try:
                outputs = replay(adapter, call.target, call, call.inputs, float64=True)
            except NoFloat64:
                assert framework == "mindspore", call
                continue
            for mine, first in zip(outputs, call.outputs, strict=True):
                if first.dtype.kind in "iub":
                    np.testing.assert_array_equal(mine, first)
                    continue
                wide += mine.dtype == np.float64
                limit = 0.05 if "bf" in name else 1e-4
                np.testing.assert_allclose(mine, first.astype("f8"), rtol=limit, atol=limit / 4)
    assert wide
    assert held(adapter, model) == before


def test_inputs_are_those_from_before_the_call(framework: str) -> None:
    adapter, _, calls = calls_of(framework, "inplace")
    ops = [c for c in calls if c.kind is Kind.OP and adapter.is_inplace(c.type)]
    assert ops
    for call in ops:
        assert call.changed == (0,)
        assert not np.array_equal(call.inputs[0], call.outputs[0])
    for call in calls:
        if call.kind is Kind.OP and not adapter.is_inplace(call.type) and "relu" not in call.type.lower():
            assert call.changed == ()


def test_calls_are_numbered_and_nested(framework: str) -> None:
    _, _, calls = calls_of(framework, "shared_module")
    assert len({c.number for c in calls}) == len(calls)
    root = calls[-1]
    assert (root.path, root.parent, root.number) == ("", None, 0)
    first = [c for c in calls if c.path == "first" and c.kind is Kind.MODULE]
    assert [c.nth for c in first] == [0, 1]
    for call in calls[:-1]:
        assert call.parent is not None and call.parent < call.number
    linear = next(c for c in calls if c.kind is Kind.OP and any(c.params))
    assert "first.weight" in linear.params


def test_only_what_is_wanted_is_kept(framework: str) -> None:
    adapter = by_name(framework)
    entry = zoo(framework)["mlp"]
    args, kwargs = as_arguments(adapter, Inputs(*entry.args()))
    found: list[KeptCall] = []
    each_call(adapter, entry.build(), args, kwargs, found.append, wanted=lambda kind, path, type_, nth: path == "fc2")
    assert found and {c.path for c in found} == {"fc2"}


def test_what_the_caller_raises_comes_after_the_run(framework: str) -> None:
    adapter = by_name(framework)
    entry = zoo(framework)["mlp"]
    model = entry.build()
    args, kwargs = as_arguments(adapter, Inputs(*entry.args()))

    def tell(call: KeptCall) -> None:
        raise KeyError(call.path)

    with pytest.raises(KeyError):
        each_call(adapter, model, args, kwargs, tell)
    each_call(adapter, model, args, kwargs, lambda call: None)


def test_calls_may_be_made_again_while_the_model_runs(framework: str) -> None:
    adapter = by_name(framework)
    entry = zoo(framework)["transformer_block"]
    model = entry.build()
    args, kwargs = as_arguments(adapter, Inputs(*entry.args(), **entry.kwargs()))
    calls: list[KeptCall] = []

    def tell(call: KeptCall) -> None:
        calls.append(call)
        try:
            [wide, *_] = replay(adapter, call.target, call, call.inputs, float64=True)
        except NoFloat64:
            return
        np.testing.assert_allclose(wide, call.outputs[0], rtol=1e-3, atol=1e-5)

    plain, _ = adapter.run(model, args, kwargs, None, False)
    output = each_call(adapter, model, args, kwargs, tell)
    assert np.array_equal(adapter.to_numpy(output), adapter.to_numpy(plain))
    _, _, expected = calls_of(framework, "transformer_block")
    assert [(c.number, c.type) for c in calls] == [(c.number, c.type) for c in expected]


def test_the_first_calls_of_modules(framework: str) -> None:
    adapter = by_name(framework)
    entry = zoo(framework)["shared_module"]
    args, kwargs = as_arguments(adapter, Inputs(*entry.args()))
    found = keep_calls(adapter, entry.build(), args, kwargs)
    assert set(found) == {"", "first", "head"}


# -- float64 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(INPUTS))
def test_every_layer_is_float64_and_back(framework: str, name: str) -> None:
    if name not in layers(framework):
        pytest.skip("this framework has none")
    adapter = by_name(framework)
    built = layers(framework)[name]
    model = built.build()

    def run(dtype: Any) -> list[Any]:
        given = [adapter.from_numpy(a.astype(dtype) if a.dtype.kind == "f" else a) for a in INPUTS[name]]
        made = built.call(model, *given) if built.call else model(*given)
        return [np.array(adapter.to_numpy(t)) for _, t in adapter.leaves(made)]

    with adapter.evaluating(model):
        plain = run("f4")  # derived weights come to be here
        before = held(adapter, model)
        try:
            with adapter.in_float64(model):
                assert dtypes(adapter, model) <= {"float64"}
                wide = run("f8")
            for mine, first in zip(wide, plain, strict=True):
                assert mine.dtype == np.float64
                np.testing.assert_allclose(mine, first, rtol=1e-4, atol=1e-5)
        except NoFloat64:
            assert framework == "mindspore"
        assert held(adapter, model) == before
        for mine, first in zip(run("f4"), plain, strict=True):
            np.testing.assert_allclose(mine, first, rtol=1e-6, atol=1e-7)


def test_an_exception_restores_too(framework: str) -> None:
    adapter = by_name(framework)
    model = zoo(framework)["tied_weights"].build()
    before = held(adapter, model)
    with pytest.raises(ZeroDivisionError), adapter.in_float64(model):
        assert dtypes(adapter, model) == {"float64"}
        raise ZeroDivisionError
    assert held(adapter, model) == before


def test_what_is_done_to_the_model_in_float64_is_undone(framework: str) -> None:
    adapter = by_name(framework)
    model = zoo(framework)["mlp"].build()
    before = held(adapter, model)
    with adapter.in_float64(model):
        for _, module in adapter.modules(model):
            object.__setattr__(module, "cache_of_float64", 1)
            for tensor in adapter.state(module).values():
                adapter.assign(tensor, np.zeros(tuple(tensor.shape)))
    after = held(adapter, model)
    for key in before:  # that it was written to may be counted
        assert (after[key][:3] if isinstance(before[key], tuple) else after[key]) == (
            before[key][:3] if isinstance(before[key], tuple) else before[key]
        )


def test_a_model_left_in_float64_is_noticed(framework: str) -> None:
    """The twin: what the tests above compare does tell."""
    adapter = by_name(framework)
    model = zoo(framework)["mlp"].build()
    before = held(adapter, model)
    undo = [adapter.widen(t) for _, m in adapter.modules(model) for t in adapter.state(m).values()]
    assert held(adapter, model) != before
    for put_back in undo:
        put_back()
    assert held(adapter, model) == before


def test_a_function_that_computes_in_float32_is_not_taken_for_float64(framework: str) -> None:
    adapter = by_name(framework)
    call = next(c for c in calls_of(framework, "mlp")[2] if c.kind is Kind.OP and "tanh" in c.type.lower())

    def narrow(x: Any) -> Any:
        values = np.tanh(adapter.to_numpy(x).astype("f4"))
        return adapter.from_numpy(values.astype(adapter.to_numpy(x).dtype))

    def rounding(x: Any) -> Any:
        return adapter.from_numpy(np.round(adapter.to_numpy(x)))

    call = replace(call, args=call.args[:1], kwargs={})
    with pytest.raises(NoFloat64, match="lower precision"):
        replay(adapter, narrow, call, call.inputs, float64=True)
    [rounded] = replay(adapter, rounding, call, call.inputs, float64=True)
    np.testing.assert_array_equal(rounded, np.round(call.inputs[0]))


# -- backward ----------------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_the_formula(framework: str) -> None:
    adapter, model, calls = calls_of(framework, "mlp")
    call = next(c for c in calls if c.path == "fc1" and c.kind is Kind.MODULE)
    own = {n: adapter.to_numpy(t).astype("f8") for n, t in adapter.state(call.target).items()}
    info = next(i for i, _ in adapter.modules(model) if i.path == "fc1")
    turned = next(p.axes for p in info.params if p.name == "weight") == (1, 0)  # [in, out]
    weight = own["weight"].T if turned else own["weight"]
    x, dy = call.inputs[0].astype("f8"), normal(*call.outputs[0].shape, seed=5).astype("f8")
    before = held(adapter, model)
    for float64, limit in ((False, 1e-5), (True, 1e-13)):
        pulled = replay_backward(
            adapter, call.target, call, call.inputs, [dy if float64 else dy.astype("f4")], float64=float64
        )
        np.testing.assert_allclose(pulled.outputs[0], x @ weight.T + own["bias"], rtol=limit, atol=limit)
        np.testing.assert_allclose(pulled.inputs[0], dy @ weight, rtol=limit, atol=limit)
        dw = pulled.parameters["weight"]
        np.testing.assert_allclose(dw.T if turned else dw, dy.T @ x, rtol=limit, atol=limit)
        np.testing.assert_allclose(pulled.parameters["bias"], dy.sum(0), rtol=limit, atol=limit)
        assert dw.dtype == (np.float64 if float64 else np.float32)
    with pytest.raises(AssertionError):  # the twin: other gradients of the output, other gradients of all
        wrong = replay_backward(adapter, call.target, call, call.inputs, [2 * dy.astype("f4")])
        np.testing.assert_allclose(wrong.inputs[0], dy @ weight, rtol=1e-3)
    assert held(adapter, model) == before
    assert all(adapter.gradient(t) is None for t in adapter.trainable(model).values())


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_block", "lstm", "gru", "tied_weights", "inplace"])
@pytest.mark.parametrize("training", [True, False])
def test_every_module_can_be_pulled_back(framework: str, name: str, training: bool) -> None:
    adapter = by_name(framework)
    entry = zoo(framework)[name]
    model = entry.build()
    args, kwargs = as_arguments(adapter, Inputs(*entry.args(), **entry.kwargs()))
    calls: list[KeptCall] = []
    with unchanged(adapter, model), as_is(adapter, model, training):
        each_call(adapter, model, args, kwargs, calls.append, Level.MODULE)
        for call in calls:
            gradients = [np.ones(a.shape, a.dtype) if a.dtype.kind == "f" else None for a in call.outputs]
            pulled = replay_backward(adapter, call.target, call, call.inputs, gradients)
            for array, gradient in zip(call.inputs, pulled.inputs, strict=True):
                assert (gradient is None) == (array.dtype.kind != "f")
                assert gradient is None or gradient.shape == array.shape
            trainable = adapter.trainable(call.target)
            assert set(pulled.parameters) == set(trainable)
            assert all(g is not None for g in pulled.parameters.values())
            np.testing.assert_allclose(pulled.outputs[0], call.outputs[0], rtol=1e-4, atol=1e-5)


@contextmanager
def as_is(adapter: Any, model: Any, training: bool) -> Iterator[None]:
    if training:
        yield
    else:
        with adapter.evaluating(model):
            yield


def test_without_gradients_of_outputs_there_are_none(framework: str) -> None:
    adapter, _, calls = calls_of(framework, "mlp")
    call = next(c for c in calls if c.path == "fc1" and c.kind is Kind.MODULE)
    pulled = replay_backward(adapter, call.target, call, call.inputs, [None])
    assert pulled.inputs == (None,)
    assert set(pulled.parameters.values()) == {None}
