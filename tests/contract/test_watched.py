"""A model that is watched call by call computes as ever, is seen as by `capture`, and is left alone in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import twinscope
from twinscope import Phase, Trace, Watched, arrays_in, capture, compare, snapshot
from twinscope.adapters._registry import by_name
from twinscope.errors import CaptureError, FrameworkError, OptionError, TraceFormatError
from twinscope.running import Inputs, as_arguments
from zoo import zoo

pytestmark = pytest.mark.filterwarnings("ignore")


class Net:
    def __init__(self, framework: str, name: str = "mlp") -> None:
        entry = zoo(framework)[name]
        self.adapter = by_name(framework)
        self.adapter.seed(0)
        self.model = entry.build()
        self.args, self.kwargs = as_arguments(self.adapter, Inputs(*entry.args(), **entry.kwargs()))

    def loss(self, output: Any) -> Any:
        return self.adapter.default_loss(output)

    def step(self, watched: Watched) -> Any:
        loss = self.loss(watched(*self.args, **self.kwargs))
        watched.backward(loss)
        return loss

    def gradients(self, given: dict[str, Any] | None = None) -> dict[str, Any]:
        """Those stored on parameters, or those given."""
        stored = {p: self.adapter.gradient(t) for p, t in self.adapter.trainable(self.model).items()}
        found = given or {p: g for p, g in stored.items() if g is not None}
        return {p: np.array(self.adapter.to_numpy(g), copy=True) for p, g in found.items()}


def calls(trace: Trace, phase: Phase = Phase.FORWARD) -> list[str]:
    return [r.where for r in trace if r.phase is phase]


def natively(net: Net) -> dict[str, Any]:
    """The gradients that the framework's own way gives, without anybody watching."""
    if net.adapter.name == "mindspore":
        import mindspore as ms

        weights = net.adapter.trainable(net.model)
        step = ms.value_and_grad(lambda: net.loss(net.model(*net.args, **net.kwargs)), None, list(weights.values()))
        return net.gradients(dict(zip(weights, step()[1], strict=True)))
    net.loss(net.model(*net.args, **net.kwargs)).backward()
    return net.gradients()


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_block", "nested_outputs", "recompute"])
def test_the_numbers_are_those_of_a_plain_run(framework: str, name: str) -> None:
    plain = natively(Net(framework, name))
    net = Net(framework, name)
    watched = Watched(net.model, keep="tensors")
    net.step(watched)
    seen = net.gradients(watched.gradients)
    assert seen.keys() == plain.keys() and seen
    for path in plain:
        assert seen[path].tobytes() == plain[path].tobytes(), path


def test_what_is_seen_is_what_capture_sees(framework: str) -> None:
    net = Net(framework)
    watched = Watched(net.model, keep="tensors", phases=["forward", "backward"])
    net.step(watched)
    seen = watched.trace()
    other = Net(framework)
    with capture(other.model, keep="tensors", phases=["forward", "backward"]) as run:
        other.adapter.run(other.model, other.args, other.kwargs, None, backward=True)
    inside = [r.where for r in run.trace if r.path != "<outside>" and r.phase is Phase.FORWARD]
    assert calls(seen) == inside
    assert calls(seen, Phase.BACKWARD)
    assert twinscope.compare(seen, run.trace, atol=0.0, rtol=0.0)


def test_the_loss_is_not_recorded_and_steps_are_told_apart(framework: str) -> None:
    net = Net(framework)
    watched = Watched(net.model, level="op")
    for _ in range(3):
        net.step(watched)
    trace = watched.trace()
    assert trace.steps == (0, 1, 2)
    assert not [r for r in trace if r.path == "<outside>"]
    assert len({len([r for r in trace if r.step == step and r.phase is Phase.BACKWARD]) for step in (0, 1, 2)}) == 1
    watched.clear()
    assert len(watched.trace()) == 0
    net.step(watched)
    assert watched.trace().steps == (0,)


def test_a_trace_can_be_had_before_the_backward_pass_and_after_it(framework: str) -> None:
    net = Net(framework)
    watched = Watched(net.model)
    output = watched(*net.args, **net.kwargs)
    before = watched.trace()
    watched.backward(net.loss(output))
    after = watched.trace()
    assert calls(before) == calls(after) and calls(before)
    assert not calls(before, Phase.BACKWARD) and calls(after, Phase.BACKWARD)


def test_two_calls_may_share_one_backward_pass(framework: str) -> None:
    net = Net(framework)
    watched = Watched(net.model)
    loss = net.loss(watched(*net.args, **net.kwargs)) + net.loss(watched(*net.args, **net.kwargs))
    watched.backward(loss)
    trace = watched.trace()
    assert trace.steps == (0,)
    assert calls(trace, Phase.BACKWARD).count("(root)") == 2


def test_nothing_is_left_when_forward_raises(framework: str) -> None:
    net = Net(framework, "raises")
    watched = Watched(net.model)
    kind = zoo(framework)["raises"].raises
    assert kind is not None
    before = _hooks(net.model)
    for _ in range(2):
        with pytest.raises(kind):
            watched(*net.args, **net.kwargs)
        assert _hooks(net.model) == before
    good = Net(framework)
    assert natively(good)  # the framework is as it was
    assert any(r.failed for r in watched.trace())


def _hooks(model: Any) -> int:
    """How many hooks of any kind there are on its modules."""
    parts = getattr(model, "cells_and_names", None) or getattr(model, "named_modules", None) or model.named_sublayers
    return sum(
        len(v) for _, module in parts() for k, v in vars(module).items() if "hook" in k and hasattr(v, "__len__")
    )


def test_a_call_without_a_backward_pass_disturbs_nobody(framework: str) -> None:
    net = Net(framework)
    want = natively(Net(framework))
    watched = Watched(net.model)
    watched(*net.args, **net.kwargs)
    found = natively(net)
    assert {p: g.tobytes() for p, g in found.items()} == {p: g.tobytes() for p, g in want.items()}
    watched.clear()


def test_two_models_by_turns(framework: str) -> None:
    """MindSpore keeps what one backward pass needs: the other model's is refused, not wrong."""
    nets = Net(framework), Net(framework, "transformer_block")
    watched = [Watched(net.model) for net in nets]
    losses = [net.loss(w(*net.args, **net.kwargs)) for net, w in zip(nets, watched, strict=True)]
    watched[1].backward(losses[1])
    if framework == "mindspore":
        with pytest.raises(FrameworkError, match="is gone: MindSpore keeps that of one model at a time"):
            watched[0].backward(losses[0])
    else:
        watched[0].backward(losses[0])
    for net, w in zip(nets, watched, strict=True):
        net.step(w)


@pytest.mark.parametrize("name", ["transformer_block", "lstm"])
def test_a_call_without_a_backward_pass_is_no_matter_to_align(framework: str, name: str) -> None:
    net = Net(framework, name)
    Watched(net.model)(*net.args, **net.kwargs)
    assert twinscope.align(net.model, net.model, Inputs(*net.args, **net.kwargs), weights=False)


def test_backward_says_what_it_needs(framework: str) -> None:
    net = Net(framework)
    watched = Watched(net.model)
    with pytest.raises(CaptureError, match="without a call of the model before it\nHint: call the watched model"):
        watched.backward(net.args[0])
    output = watched(*net.args, **net.kwargs)
    with pytest.raises(OptionError, match="the loss is float, not a tensor"):
        watched.backward(1.0)
    watched.backward(net.loss(output))
    with pytest.raises(OptionError, match="did you mean 'level'"):
        Watched(net.model, levl="op")


def test_a_snapshot_holds_weights_buffers_and_gradients(framework: str) -> None:
    net = Net(framework, "conv_bn")
    assert not calls(snapshot(net.model), Phase.GRADIENT)
    watched = Watched(net.model)
    net.step(watched)
    held = snapshot(net.model, gradients=watched.gradients)
    want = net.gradients(watched.gradients)
    found = {
        f"{r.path}.{s.name}".lstrip("."): held.tensor(s) for r in held if r.phase is Phase.GRADIENT for s in r.slots
    }
    assert found.keys() == want.keys()
    for path, array in want.items():
        assert np.array_equal(found[path], array)
    names = {s.name for r in held if r.phase is Phase.WEIGHT for s in r.slots}
    assert names & {"running_mean", "_mean", "moving_mean"}


def test_snapshots_compare(framework: str) -> None:
    first, second = Net(framework), Net(framework)
    assert compare(snapshot(first.model), snapshot(second.model), atol=0.0)
    path, tensor = next(iter(second.adapter.trainable(second.model).items()))
    second.adapter.assign(tensor, second.adapter.to_numpy(tensor) + np.float32(0.1))
    found = compare(snapshot(first.model), snapshot(second.model), atol=1e-3)
    assert not found
    assert path.rpartition(".")[0] in str(found)


def test_plain_and_back(framework: str) -> None:
    net = Net(framework)
    watched = Watched(net.model, keep="tensors", weights="never")
    net.step(watched)
    trace = watched.trace()
    plain = trace.to_plain()
    arrays = {s.value: a for r in trace for s in r.slots if (a := trace.tensor(s)) is not None}
    again = Trace.from_plain(plain, arrays)
    assert compare(trace, again, atol=0.0)
    worse = {value: array + 1 if array.dtype.kind == "f" else array for value, array in arrays.items()}
    assert not compare(trace, Trace.from_plain(plain, worse), atol=0.1)
    with pytest.raises(TraceFormatError, match="not a trace: value"):
        Trace.from_plain(plain, {value: array[None] for value, array in arrays.items()})


def test_arrays_of_nested_values(framework: str) -> None:
    adapter = by_name(framework)
    tensor = adapter.from_numpy(np.arange(3, dtype=np.float32))
    found = dict(arrays_in({"x": tensor, "y": [2, None, np.ones(2)], "name": "text"}))
    assert list(found) == ["x", "y.0", "y.2"]
    assert np.array_equal(found["x"], [0, 1, 2]) and found["y.0"] == 2
