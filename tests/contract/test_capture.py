"""Capture does with every framework what its options say: keeps that and nothing else, and disturbs nobody."""

from __future__ import annotations

import gc
import os
import re
import resource
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from twinscope import Phase, Trace, capture
from twinscope.adapters._registry import by_name
from twinscope.capturing import Capture, Plan, TwinscopeWarning
from twinscope.errors import CaptureError, OptionError, TraceWriteError
from twinscope.records import Kind, Record, Slot
from twinscope.running import Inputs, as_arguments
from zoo import zoo

pytestmark = pytest.mark.filterwarnings("ignore")

TESTS = Path(__file__).parent.parent


class Net:
    """A network of the zoo with its inputs, and the two ways of running it once."""

    def __init__(self, framework: str, name: str) -> None:
        entry = zoo(framework)[name]
        self.adapter = by_name(framework)
        self.adapter.seed(0)
        self.model = entry.build()
        self.args, self.kwargs = as_arguments(self.adapter, Inputs(*entry.args(), **entry.kwargs()))

    def forward(self) -> Any:
        return self.adapter.run(self.model, self.args, self.kwargs, None, backward=False)[0]

    def train(self, loss: Callable[[Any], Any] | None = None) -> Any:
        return self.adapter.run(self.model, self.args, self.kwargs, loss, backward=True)[0]

    def again(self) -> Any:
        return self.model(*self.args, **self.kwargs)

    def type_of(self, path: str) -> str:
        return next(info.type for info, _ in self.adapter.modules(self.model) if info.path == path)

    def weight(self, path: str) -> Any:
        """The values of a layer's weight, as torch lays them out."""
        info, module = next((i, m) for i, m in self.adapter.modules(self.model) if i.path == path)
        param = next(p for p in info.params if p.role == "weight")
        array = np.array(self.adapter.to_numpy(self.adapter.state(module)[param.name]))
        return array if param.axes is None else array.transpose(param.axes)


def watched(framework: str, name: str, times: int = 1, **options: Any) -> Trace:
    net = Net(framework, name)
    with capture(net.model, **options) as run:
        for _ in range(times):
            net.train()
    assert run.error is None
    return run.trace


def forward_of(trace: Trace, path: str, kind: Kind = Kind.MODULE) -> list[Record]:
    return [r for r in trace.records if r.phase is Phase.FORWARD and r.path == path and r.kind is kind]


def phase_of(trace: Trace, phase: Phase) -> list[Record]:
    return [r for r in trace.records if r.phase is phase]


def ops(trace: Trace) -> list[str]:
    return [r.op for r in trace.records if r.kind is Kind.OP and r.phase is Phase.FORWARD]


def slot(record: Record, name: str) -> Slot:
    return next(s for s in record.slots if s.name == name)


def value(trace: Trace, record: Record, name: str) -> Any:
    array = trace.tensor(slot(record, name))
    assert array is not None
    return array


# -- options: level, selection -------------------------------------------------------------------------------------


def test_level_module_has_no_ops(framework: str) -> None:
    trace = watched(framework, "mlp", level="module")
    assert not ops(trace)
    assert [r.path for r in phase_of(trace, Phase.FORWARD)] == ["fc1", "act", "fc2", "fc3", ""]


def test_level_op_has_ops_and_the_same_modules(framework: str) -> None:
    trace = watched(framework, "mlp")
    assert any("tanh" in op for op in ops(trace))
    modules = [r for r in phase_of(trace, Phase.FORWARD) if r.kind is Kind.MODULE]
    assert [r.path for r in modules] == ["fc1", "act", "fc2", "fc3", ""]


def test_include(framework: str) -> None:
    trace = watched(framework, "transformer_block", include="attn.*", phases=["forward"])
    assert {r.path for r in trace.records} == {"attn.q", "attn.k", "attn.v", "attn.out"}
    deep = watched(framework, "transformer_block", include=["attn"], phases=["forward"])
    assert {r.path for r in deep.records} == {"attn", "attn.q", "attn.k", "attn.v", "attn.out"}


def test_exclude_wins_over_include(framework: str) -> None:
    trace = watched(framework, "transformer_block", include=["attn"], exclude=["attn.q", "attn.?"])
    assert {r.path for r in trace.records} - {"<outside>"} == {"attn", "attn.out"}


def test_without_include_all_is_there(framework: str) -> None:
    paths = {r.path for r in watched(framework, "transformer_block", phases=["forward"]).records}
    assert {"", "ln1", "attn", "attn.q", "fc1", "fc2"} <= paths


def test_types(framework: str) -> None:
    wanted = Net(framework, "mlp").type_of("fc1")
    for name in (wanted, wanted.rsplit(".", 1)[-1]):
        trace = watched(framework, "mlp", types=[name], level="module")
        assert {r.path for r in trace.records} == {"fc1", "fc2", "fc3"}
        assert {r.phase for r in trace.records} == {Phase.WEIGHT, Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT}


def test_ops(framework: str) -> None:
    trace = watched(framework, "mlp", ops=["tanh"])
    assert ops(trace) == ["tanh"]
    assert len(forward_of(trace, "")) == 1  # modules are chosen by other options


def test_exclude_ops_wins_over_ops(framework: str) -> None:
    assert not ops(watched(framework, "mlp", ops=["tanh"], exclude_ops=["tan*"]))
    rest = ops(watched(framework, "mlp", exclude_ops=["tanh"]))
    assert rest and "tanh" not in rest


@pytest.mark.parametrize("phase", ["weight", "forward", "backward", "gradient"])
def test_phases(framework: str, phase: str) -> None:
    trace = watched(framework, "mlp", phases=[phase])
    assert {str(r.phase) for r in trace.records} == {phase}
    assert len(trace.records) >= 3


def test_all_phases(framework: str) -> None:
    phases = {str(r.phase) for r in watched(framework, "conv_bn").records}
    assert phases == {"weight", "buffer", "forward", "backward", "gradient"}
    assert {str(r.phase) for r in watched(framework, "conv_bn", backward=False).records} == {
        "weight",
        "buffer",
        "forward",
    }


# -- options: what is kept -----------------------------------------------------------------------------------------


def test_keep_stats(framework: str) -> None:
    trace = watched(framework, "mlp", keep="stats")
    slots = [s for r in trace.records for s in r.slots]
    assert slots and not any(s.kept for s in slots) and not trace.kept
    assert all(s.stats is not None for s in slots if s.param is None)
    assert trace.tensor(slots[0]) is None


def test_keep_tensors(framework: str) -> None:
    trace = watched(framework, "mlp", keep="tensors")
    for record in trace.records:
        for s in record.slots:
            if s.param is not None and record.kind is Kind.OP:
                continue  # parameters are kept once, as weights
            array = trace.tensor(s)
            assert array is not None and array.shape == s.meta.shape
            assert s.stats is not None
            np.testing.assert_allclose(s.stats.l2, np.linalg.norm(array.astype(np.float64)), rtol=1e-5, atol=1e-9)
            np.testing.assert_allclose(s.stats.max, array.max(), rtol=1e-6)


@pytest.mark.parametrize("budget", [1024, "1KB", "1 kb"])
def test_keep_a_budget(framework: str, budget: Any) -> None:
    trace = watched(framework, "mlp", keep=budget)
    slots = {s.value: s for r in trace.records for s in r.slots}
    kept = [s for s in slots.values() if s.kept]
    dropped = [s for s in slots.values() if not s.kept and s.param is None]
    assert kept and dropped
    arrays = [trace.tensor(s) for s in kept]
    assert 512 < sum(a.nbytes for a in arrays if a is not None) <= 1024
    assert all(trace.tensor(s) is None and s.stats is not None for s in dropped)


def test_keep_a_budget_of_nothing(framework: str) -> None:
    assert not watched(framework, "mlp", keep=0).kept


def test_format_npy(framework: str, tmp_path: Path) -> None:
    net = Net(framework, "mlp")
    for form in ("npy", "safetensors"):
        with capture(net.model, tmp_path / form, keep="tensors", format=form):
            net.train()
    traces = [Trace.open(tmp_path / form) for form in ("npy", "safetensors")]
    for trace in traces:
        trace.verify()
    assert list((tmp_path / "npy").rglob("*.npy")) and not list((tmp_path / "npy").rglob("*.safetensors"))
    assert list((tmp_path / "safetensors").rglob("*.safetensors"))
    assert traces[0].kept == traces[1].kept != frozenset()
    for number in traces[0].kept:
        np.testing.assert_array_equal(traces[0].tensor(number), traces[1].tensor(number))


def test_shards_are_of_bounded_size(framework: str, tmp_path: Path) -> None:
    net = Net(framework, "mlp")
    with capture(net.model, tmp_path, keep="tensors", shard_bytes=4096):
        net.train()
    assert len(list(tmp_path.rglob("*.safetensors"))) > 1
    Trace.open(tmp_path).verify()


def test_rank(framework: str, tmp_path: Path) -> None:
    net = Net(framework, "mlp")
    with capture(net.model, tmp_path, rank=3):
        net.forward()
    assert Trace.open(tmp_path / "rank3").manifest.rank == 3
    with pytest.raises(OptionError, match="rank=-1 is not a rank"):
        capture(net.model, tmp_path, rank=-1)


def test_sources_are_the_users_lines(framework: str) -> None:
    trace = watched(framework, "mlp")
    file = f"{framework}_zoo.py"
    lines = (TESTS / "zoo" / file).read_text().splitlines()
    for path, text in (("fc1", "self.act(self.fc1(x))"), ("fc3", "return self.fc3(x)"), ("fc2", "tanh(self.fc2(x))")):
        (record,) = forward_of(trace, path)
        assert record.source is not None
        assert record.source.file.endswith(file) and not os.path.isabs(record.source.file)
        assert text in lines[record.source.line - 1]
        assert record.source.function in ("forward", "construct")
    tanh = next(r for r in trace.records if r.op == "tanh" and r.phase is Phase.FORWARD)
    assert tanh.source is not None and "tanh(self.fc2(x))" in lines[tanh.source.line - 1]
    (root,) = forward_of(trace, "")
    assert root.source is not None and root.source.file.endswith("test_capture.py")


def test_stacks_lead_from_the_call_to_the_script(framework: str) -> None:
    trace = watched(framework, "mlp", stacks=True)
    file = f"{framework}_zoo.py"
    lines = (TESTS / "zoo" / file).read_text().splitlines()
    (record,) = forward_of(trace, "fc1")
    assert record.source is not None and record.source in record.stack
    at = record.stack.index(record.source)
    assert "self.act(self.fc1(x))" in lines[record.stack[at].line - 1]
    assert any(s.file.endswith("test_capture.py") for s in record.stack[at:])
    assert any(framework in s.file and not s.file.endswith(file) for s in record.stack), "frames of the framework"
    assert not any("src/twinscope" in s.file or s.file.startswith("twinscope/") for s in record.stack)
    assert not any(os.path.isabs(s.file) for s in record.stack)
    assert all(r.stack for r in trace.records if r.phase is Phase.FORWARD)
    without = watched(framework, "mlp")
    assert not any(r.stack for r in without.records)


def test_stacks_are_written_and_read(framework: str, tmp_path: Path) -> None:
    net = Net(framework, "mlp")
    with capture(net.model, tmp_path / "run", stacks=True):
        net.train()
    read = Trace.open(tmp_path / "run")
    (record,) = forward_of(read, "fc1")
    assert record.source in record.stack and len(record.stack) > 3


def test_sources_off(framework: str) -> None:
    trace = watched(framework, "mlp", sources=False)
    assert trace.records and all(r.source is None for r in trace.records)


# -- options: misspelt ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levl": "op"}, r"'levl' is not an option\nHint: did you mean 'level'"),
        ({"level": "layer"}, r"level='layer' is not known\nHint: use one of 'module', 'op'"),
        ({"phases": ["foward"]}, r"phases='foward' is not known\nHint: use one of 'weight'"),
        ({"keep": "everything"}, r"keep='everything' is not known\nHint: use 'stats', 'tensors'"),
        ({"keep": -1}, r"keep=-1 is not known\nHint: "),
        ({"keep": True}, r"keep=True is not known\nHint: "),
        ({"keep": "1.5.2MB"}, r"is not known\nHint: "),
        ({"steps": []}, r"names no step\nHint: use steps=range"),
        ({"steps": [-1]}, r"names no step\nHint: "),
        ({"steps": "0"}, r"names no step\nHint: "),
        ({"steps": 1.5}, r"names no step\nHint: "),
        ({"steps": [True]}, r"names no step\nHint: "),
        ({"every": 0}, r"every=0 is not a whole number of at least 1\nHint: "),
        ({"every": True}, r"every=True is not a whole number"),
        ({"shard_bytes": 0}, r"shard_bytes=0 is not a whole number"),
        ({"weights": "last"}, r"weights='last' is not known\nHint: use one of 'first', 'every', 'never'"),
        ({"format": "pickle"}, r"format='pickle' is not known\nHint: use one of 'safetensors', 'npy'"),
        ({"include": 3}, r"include=3 is not a string or a list of strings\nHint: "),
        ({"ops": [None]}, r"ops=\[None\] is not a string or a list"),
        ({"backward": "no"}, r"backward='no' is neither True nor False\nHint: "),
        ({"sources": 1}, r"sources=1 is neither True nor False"),
        ({"stacks": 1}, r"stacks=1 is neither True nor False"),
    ],
)
def test_misspelt_options(framework: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        capture(Net(framework, "mlp").model, **options)


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ({"keep": "2MB"}, "keep", 2 << 20),
        ({"keep": " 1.5 kb "}, "keep", 1536),
        ({"keep": "12B"}, "keep", 12),
        ({"keep": 7}, "keep", 7),
        ({"steps": 3}, "steps", (3,)),
        ({"steps": [5, 1, 5]}, "steps", (1, 5)),
        ({"steps": range(0, 10, 2)}, "steps", range(0, 10, 2)),
        ({"include": "a"}, "include", ("a",)),
        ({"phases": "forward"}, "phases", (Phase.FORWARD,)),
    ],
)
def test_options_as_users_write_them(options: dict[str, Any], field: str, expected: Any) -> None:
    assert getattr(Plan.parse(**options), field) == expected


# -- steps ---------------------------------------------------------------------------------------------------------


def root_steps(trace: Trace) -> list[int]:
    return [r.step for r in forward_of(trace, "")]


def test_a_step_ends_with_the_call_after_a_backward_pass(framework: str) -> None:
    trace = watched(framework, "mlp", times=3)
    assert root_steps(trace) == [0, 1, 2]
    assert trace.steps == (0, 1, 2)
    for step in range(3):
        phases = {r.phase for r in trace.records if r.step == step}
        assert {Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT} <= phases
    assert {r.step for r in phase_of(trace, Phase.WEIGHT)} == {0}
    assert all(r.nth == 0 for r in forward_of(trace, "fc1"))


def test_without_gradients_every_call_is_a_step(framework: str) -> None:
    net = Net(framework, "no_parameters")
    with capture(net.model) as run:
        for _ in range(3):
            net.forward()
    assert root_steps(run.trace) == [0, 1, 2]


def test_forward_only_loops(framework: str) -> None:
    net = Net(framework, "mlp")
    with capture(net.model) as run:
        for _ in range(3):
            net.forward()
    assert root_steps(run.trace) == [0, 1, 2]
    assert not phase_of(run.trace, Phase.BACKWARD)


def test_two_forwards_before_one_backward_are_one_step(framework: str) -> None:
    net = Net(framework, "mlp")

    def loss(output: Any) -> Any:
        return net.adapter.mean(output) + net.adapter.mean(net.again())

    with capture(net.model) as run:
        for _ in range(2):
            net.train(loss)
    assert root_steps(run.trace) == [0, 0, 1, 1]
    assert [r.nth for r in forward_of(run.trace, "")] == [0, 1, 0, 1]
    assert len([r for r in phase_of(run.trace, Phase.BACKWARD) if r.path == "" and r.kind is Kind.MODULE]) == 4


def test_steps_as_the_user_says(framework: str) -> None:
    net = Net(framework, "mlp")
    with capture(net.model) as run:
        run.step()  # none has begun: this only says who counts
        for _ in range(2):
            net.train()
            net.train()
            run.step()
    assert root_steps(run.trace) == [0, 0, 1, 1]
    gradients = [r for r in phase_of(run.trace, Phase.GRADIENT) if r.path == "fc1"]
    assert [(r.step, r.nth) for r in gradients] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_nothing_of_a_step_that_is_not_wanted(framework: str) -> None:
    for options, expected in (
        ({"steps": [1, 3]}, [1, 3]),
        ({"steps": range(1, 4)}, [1, 2, 3]),
        ({"every": 2}, [0, 2]),
        ({"steps": range(1, 4), "every": 2}, [1, 3]),
        ({"steps": 9}, []),
    ):
        trace = watched(framework, "mlp", times=4, level="module", **options)
        assert root_steps(trace) == expected
        assert {r.step for r in trace.records} == set(expected)
        assert {r.step for r in phase_of(trace, Phase.WEIGHT)} == set(expected[:1])


@pytest.mark.parametrize("options", [{"steps": [1]}, {"steps": [0]}, {"include": "fc2"}, {"phases": "forward"}])
def test_steps_are_the_same_whatever_is_recorded(framework: str, options: dict[str, Any]) -> None:
    """Two calls before each backward pass, the first of them a step of the network's own or not."""
    net = Net(framework, "mlp")

    def loss(output: Any) -> Any:
        return net.adapter.mean(output) + net.adapter.mean(net.again())

    with capture(net.model, level="module", **options) as run:
        for _ in range(3):
            net.train(loss)
        net.forward()
    wanted = options.get("steps", [0, 1, 2])
    calls = [r.step for r in forward_of(run.trace, "fc2")]
    assert [step for step in calls if step < 3] == sorted([*wanted, *wanted])
    assert (3 in calls) == ("steps" not in options)


@pytest.mark.parametrize(("weights", "expected"), [("first", {0}), ("every", {0, 1, 2}), ("never", set())])
def test_weights(framework: str, weights: str, expected: set[int]) -> None:
    trace = watched(framework, "mlp", times=3, weights=weights, level="module")
    assert {r.step for r in phase_of(trace, Phase.WEIGHT)} == expected


def test_pause_and_resume(framework: str) -> None:
    net = Net(framework, "mlp")
    with capture(net.model) as run:
        net.train()
        run.pause()
        net.train()
        run.resume()
        net.train()
    full = watched(framework, "mlp", times=2)
    assert [(r.phase, r.path, r.op) for r in run.trace.records] == [(r.phase, r.path, r.op) for r in full.records]
    assert root_steps(run.trace) == [0, 1]


# -- what is recorded ----------------------------------------------------------------------------------------------


def test_gradients_are_the_analytic_ones(framework: str) -> None:
    net = Net(framework, "mlp")
    with capture(net.model, keep="tensors") as run:
        net.train()
    trace = run.trace
    root = next(r for r in phase_of(trace, Phase.BACKWARD) if r.path == "" and r.kind is Kind.MODULE)
    np.testing.assert_allclose(value(trace, root, "out"), np.full((4, 3), 1 / 12), rtol=1e-6)
    last = next(r for r in phase_of(trace, Phase.BACKWARD) if r.path == "fc3" and r.kind is Kind.MODULE)
    np.testing.assert_allclose(value(trace, last, "out"), np.full((4, 3), 1 / 12), rtol=1e-6)
    expected = np.full((4, 3), 1 / 12) @ net.weight("fc3")
    np.testing.assert_allclose(value(trace, last, "in.0"), expected, rtol=1e-5)
    gradient = next(r for r in phase_of(trace, Phase.GRADIENT) if r.path == "fc3")
    np.testing.assert_allclose(value(trace, gradient, "bias"), np.full(3, 1 / 3), rtol=1e-6)
    (forward,) = forward_of(trace, "fc3")
    assert not np.allclose(value(trace, forward, "out"), 1 / 12)


def test_every_module_with_a_gradient_gets_it_once(framework: str) -> None:
    trace = watched(framework, "transformer_block", level="module")
    forward = Counter(r.path for r in phase_of(trace, Phase.FORWARD))
    backward = Counter(r.path for r in phase_of(trace, Phase.BACKWARD))
    assert forward == backward
    for record in phase_of(trace, Phase.BACKWARD):
        (partner,) = [r for r in phase_of(trace, Phase.FORWARD) if r.call_id == record.call_id]
        assert {s.name for s in record.slots} <= {s.name for s in partner.slots}
        assert partner.path == record.path


def test_in_place_operations_do_not_change_what_was_recorded(framework: str) -> None:
    trace = watched(framework, "inplace", keep="tensors")
    (fc1,), (act,), (fc2,), (root,) = (forward_of(trace, p) for p in ("fc1", "act", "fc2", ""))
    before = value(trace, fc1, "out")
    assert before.min() < 0
    np.testing.assert_array_equal(value(trace, act, "in.0"), before)
    np.testing.assert_array_equal(value(trace, act, "out"), np.maximum(before, 0))
    np.testing.assert_array_equal(value(trace, fc2, "in.0"), np.maximum(before, 0))
    y = value(trace, fc2, "out")
    np.testing.assert_allclose(value(trace, root, "out"), (y + 1) * 2, rtol=1e-6)
    assert slot(fc2, "out").value != slot(root, "out").value


def test_arguments_that_are_no_tensors(framework: str) -> None:
    trace = watched(framework, "nested_outputs", level="module")
    (root,) = forward_of(trace, "")
    assert root.args == {"scale": 2.0, "extra": None}
    assert all(r.args == {} for r in phase_of(trace, Phase.BACKWARD))


def test_nested_structures_have_dotted_names(framework: str) -> None:
    trace = watched(framework, "nested_outputs", keep="tensors")
    (root,) = forward_of(trace, "")
    assert [s.name for s in root.slots] == [
        "in.0.0",
        "in.0.1.other",
        "out.logits",
        "out.hidden.0",
        "out.hidden.1",
        "out.extra.sum",
    ]
    assert slot(root, "in.0.0").value == slot(root, "out.hidden.0").value
    (a,) = forward_of(trace, "a")
    assert slot(a, "out").value == slot(root, "out.hidden.1").value
    np.testing.assert_allclose(value(trace, root, "out.logits").sum(), value(trace, root, "out.extra.sum"), rtol=1e-5)


def test_shared_modules_are_counted(framework: str) -> None:
    trace = watched(framework, "shared_module")
    calls = forward_of(trace, "first")
    assert [r.nth for r in calls] == [0, 1]
    assert calls[0].call_id < calls[1].call_id
    assert len([r for r in phase_of(trace, Phase.BACKWARD) if r.path == "first" and r.kind is Kind.MODULE]) == 2
    assert len([r for r in phase_of(trace, Phase.GRADIENT) if r.path == "first"]) == 1
    assert [r.nth for r in forward_of(trace, "head")] == [0]
    assert next(m for m in trace.manifest.modules if m.path == "first").aliases == ("again",)


def test_tied_weights(framework: str) -> None:
    trace = watched(framework, "tied_weights", keep="tensors")
    info = next(m for m in trace.manifest.modules if m.path == "emb")
    path = info.param_path(info.params[0].name)
    product = [r for r in forward_of(trace, "", Kind.OP) for s in r.inputs() if s.param == path]
    assert product  # the root multiplies with the embedding's own tensor
    (gradient,) = [r for r in phase_of(trace, Phase.GRADIENT) if r.path == "emb"]
    # a lookup reaches only the rows that occur: the others come from the product
    assert np.abs(value(trace, gradient, info.params[0].name)).sum(1).all()


def test_recomputation_is_recorded_once(framework: str) -> None:
    for name in ("recompute", "recompute_reentrant"):
        trace = watched(framework, name)
        modules = [r for r in phase_of(trace, Phase.FORWARD) if r.kind is Kind.MODULE]
        assert Counter(r.path for r in modules) == dict.fromkeys(
            ("stem", "inner.0", "inner.1", "inner.2", "inner", "head", ""), 1
        )
        inner = [r for r in phase_of(trace, Phase.BACKWARD) if r.path.startswith("inner.") and r.kind is Kind.MODULE]
        assert Counter(r.path for r in inner) == {"inner.0": 1, "inner.1": 1, "inner.2": 1}
        assert {r.path for r in phase_of(trace, Phase.GRADIENT)} == {"stem", "inner.0", "inner.2", "head"}


def test_integers_and_booleans(framework: str) -> None:
    trace = watched(framework, "integers", keep="tensors", level="module")
    (root,) = forward_of(trace, "")
    ids, keep = value(trace, root, "in.0"), value(trace, root, "out.2")
    assert ids.dtype == np.int64 and keep.dtype == np.bool_
    np.testing.assert_array_equal(keep, ids > 3)
    np.testing.assert_array_equal(value(trace, root, "out.1"), ids + 1)
    assert slot(root, "out.2").meta.dtype == "bool" and slot(root, "in.0").meta.dtype == "int64"
    backward = next(r for r in phase_of(trace, Phase.BACKWARD) if r.path == "")
    assert {s.name for s in backward.slots} == {"out.0"}


def test_bfloat16_stays_bfloat16(framework: str, tmp_path: Path) -> None:
    net = Net(framework, "bfloat16")
    with capture(net.model, tmp_path, keep="tensors", level="module") as run:
        net.train()
    (fc1,) = forward_of(run.trace, "fc1")
    assert slot(fc1, "out").meta.dtype == "bfloat16"
    array = value(run.trace, fc1, "out")
    assert array.dtype == ml_dtypes.bfloat16
    stats = slot(fc1, "out").stats
    assert stats is not None and stats.fingerprint == int(array.view(np.uint16).sum(dtype=np.uint64)) % (1 << 16)
    (root,) = forward_of(run.trace, "")
    assert slot(root, "out").meta.dtype == "float32"


def test_nan_is_counted(framework: str) -> None:
    trace = watched(framework, "makes_nan", keep="tensors", level="module")
    (root,) = forward_of(trace, "")
    array = value(trace, root, "out")
    stats = slot(root, "out").stats
    assert stats is not None and stats.nan == np.isnan(array).sum() > 0
    np.testing.assert_allclose(stats.mean, array[np.isfinite(array)].mean(dtype=np.float64), rtol=1e-5)
    clean = slot(forward_of(trace, "fc")[0], "out").stats
    assert clean is not None and clean.nan == 0


def test_the_data_flow_is_told_by_values(framework: str) -> None:
    trace = watched(framework, "mlp", level="module")
    (fc1,), (act,), (root,), (fc3,) = (forward_of(trace, p) for p in ("fc1", "act", "", "fc3"))
    assert slot(fc1, "out").value == slot(act, "in.0").value
    assert slot(fc3, "out").value == slot(root, "out").value
    assert slot(fc1, "out").value != slot(act, "out").value


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_the_users_exception_comes_through(framework: str, tmp_path: Path, place: str) -> None:
    net = Net(framework, "raises")
    run = capture(net.model, tmp_path / "t" if place == "disk" else None)
    raised: list[BaseException] = []
    with pytest.raises(KeyError, match="planted") as caught, run:
        try:
            net.train()
        except KeyError as error:
            raised.append(error)
            raise
    assert caught.value is raised[0] and type(caught.value) is KeyError
    trace = run.trace
    assert trace.manifest.error is not None and trace.manifest.error.startswith("KeyError: ")
    assert "planted" in trace.manifest.error
    failed = {r.path for r in trace.records if r.failed}
    assert failed == {"", "inner"}
    (inner,) = forward_of(trace, "inner")
    assert not inner.outputs() and inner.inputs()
    assert not forward_of(trace, "fc")[0].failed
    assert not phase_of(trace, Phase.BACKWARD)


def test_a_run_that_ends_well_has_no_error(framework: str) -> None:
    trace = watched(framework, "mlp")
    assert trace.manifest.error is None and trace.manifest.complete
    assert not any(r.failed for r in trace.records)


def test_the_model_works_after_an_exception(framework: str) -> None:
    net = Net(framework, "raises")
    for _ in range(2):
        with pytest.raises(KeyError), capture(net.model):
            net.train()
    other = Net(framework, "mlp")
    with capture(other.model) as run:
        other.train()
    assert root_steps(run.trace) == [0]


def test_a_call_that_the_user_catches(framework: str) -> None:
    net = Net(framework, "raises")
    with capture(net.model) as run:
        for _ in range(2):
            with pytest.raises(KeyError):
                net.forward()
    assert run.trace.manifest.error is None
    assert [r.failed for r in forward_of(run.trace, "")] == [True, True]


def test_use_in_the_wrong_order(framework: str) -> None:
    net = Net(framework, "mlp")
    run = capture(net.model)
    for method in (run.step, run.pause, run.resume):
        with pytest.raises(CaptureError, match=r"the capture is not running\nHint: use it inside its with block"):
            method()
    with pytest.raises(CaptureError, match="has not ended"):
        run.trace
    with run:
        net.forward()
        with pytest.raises(CaptureError, match=r"has not ended\nHint: read .trace after the with block"):
            run.trace
        with pytest.raises(CaptureError, match=r"entered once\nHint: "):
            run.__enter__()
    assert run.trace.records
    with pytest.raises(CaptureError, match="not running"):
        run.step()
    with pytest.raises(CaptureError, match="entered once"), run:
        pass
    assert run.error is None


# -- on disk -------------------------------------------------------------------------------------------------------


def test_on_disk_as_in_memory(framework: str, tmp_path: Path) -> None:
    net = Net(framework, "transformer_block")
    place = tmp_path / "trace"
    with capture(net.model, keep="tensors") as first, capture(net.model, place, keep="tensors") as second:
        net.train()
        net.train()
    memory, disk = first.trace, second.trace
    disk.verify()
    assert [shorn(r) for r in memory.records] == [shorn(r) for r in disk.records]
    assert memory.kept == disk.kept
    for number in memory.kept:
        a, b = memory.tensor(number), disk.tensor(number)
        assert a is not None and b is not None and a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert memory.manifest.modules == disk.manifest.modules


def shorn(record: Record) -> tuple[Any, ...]:
    """A record without what differs between two runs on two lines of this file."""
    called = (record.step, record.kind, record.phase, record.path, record.type, record.call_id, record.parent_id)
    return (*called, record.nth, record.slots, dict(record.args), record.builtin, record.training, record.failed)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel refuses to make any file larger than `size`, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_does_not_stop_the_training(framework: str, tmp_path: Path) -> None:
    net = Net(framework, "mlp")
    plain = net.adapter.to_numpy(net.forward()).copy()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with capture(net.model, tmp_path / "t", keep="stats") as run, largest_file(60_000):
            outputs = [net.train() for _ in range(20)]
    told = [w for w in told if issubclass(w.category, TwinscopeWarning)]
    assert len(told) == 1
    assert isinstance(run.error, TraceWriteError) and "Hint: free some space" in str(run.error)
    assert "writing stopped" in str(told[0].message)
    for output in outputs:
        np.testing.assert_array_equal(net.adapter.to_numpy(output), plain)
    trace = Trace.open(tmp_path / "t")
    assert 0 < len(trace.records) < 20 * 15
    assert any("stopped" in note for note in trace.manifest.notes)


def test_a_disk_with_room_says_nothing(framework: str, tmp_path: Path) -> None:
    net = Net(framework, "mlp")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with capture(net.model, tmp_path / "t", keep="stats") as run:
            net.train()
    assert run.error is None
    assert not [w for w in told if issubclass(w.category, TwinscopeWarning)]


def test_a_killed_run_leaves_what_it_finished(framework: str, tmp_path: Path) -> None:
    code = """
        import os, signal, sys, warnings
        warnings.simplefilter("ignore")
        import {framework}
        from twinscope import Inputs, capture
        from twinscope.adapters._registry import by_name
        from twinscope.running import as_arguments
        from zoo import zoo

        adapter, entry = by_name("{framework}"), zoo("{framework}")["mlp"]
        model = entry.build()
        args, kwargs = as_arguments(adapter, Inputs(*entry.args()))

        def loss(output):
            if step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return adapter.default_loss(output)

        with capture(model, sys.argv[1], keep="tensors"):
            for step in range(5):
                adapter.run(model, args, kwargs, loss, backward=True)
    """
    code = textwrap.dedent(code.replace("{framework}", framework))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "t")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr
    trace = Trace.open(tmp_path / "t")
    assert not trace.manifest.complete
    assert {0, 1, 2} <= set(root_steps(trace))
    for record in trace.records:
        if record.step < 3:
            for s in record.slots:
                assert not s.kept or trace.tensor(s) is not None
    phases = {r.phase for r in trace.records if r.step == 2}
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT} <= phases


# -- several at once -----------------------------------------------------------------------------------------------


class Doing(dict):  # type: ignore[type-arg]
    """A mapping that does something when the network looks at it."""

    def __init__(self, content: Any, work: Callable[[], None]) -> None:
        super().__init__(content)
        self.work = work

    def __getitem__(self, key: Any) -> Any:
        self.work()
        return super().__getitem__(key)


def test_a_call_in_another_thread_does_not_disturb(framework: str) -> None:
    """The other thread is in the middle of the model's call when this thread's call ends."""
    net = Net(framework, "nested_outputs")
    inside, go_on = threading.Event(), threading.Event()
    (x, y), scale = net.args[0], net.kwargs["scale"]
    outputs: list[Any] = []

    def wait() -> None:
        inside.set()
        go_on.wait(20)

    thread = threading.Thread(target=lambda: outputs.append(net.model((x, Doing(y, wait)), scale=scale)))

    def begin() -> None:
        if not thread.is_alive() and not inside.is_set():
            thread.start()
            inside.wait(20)

    traces = []
    for work in (lambda: None, begin):
        with capture(net.model, keep="tensors") as run:
            net.adapter.run(net.model, ((x, Doing(y, work)),), {"scale": scale}, None, backward=False)
        traces.append((run, run.trace))
    assert inside.is_set()
    go_on.set()
    thread.join(20)
    assert len(outputs) == 1
    (_, plain), (run, disturbed) = traces
    assert run.error is None
    assert [shorn(r) for r in plain.records] == [shorn(r) for r in disturbed.records]


def test_two_models_at_once(framework: str) -> None:
    first, second = Net(framework, "mlp"), Net(framework, "conv_bn")
    with capture(first.model) as outer, capture(second.model) as inner:
        first.train()
        second.train()
    for run, name in ((outer, "mlp"), (inner, "conv_bn")):
        alone = watched(framework, name)
        assert run.error is None
        modules = [(r.path, r.phase, r.step) for r in run.trace.records if r.kind is not Kind.OP]
        assert modules == [(r.path, r.phase, r.step) for r in alone.records if r.kind is not Kind.OP]
        assert [(r.path, r.op) for r in run.trace.records if r.kind is Kind.OP and r.path != "<outside>"] == [
            (r.path, r.op) for r in alone.records if r.kind is Kind.OP and r.path != "<outside>"
        ]


def test_one_model_twice_at_once(framework: str) -> None:
    net = Net(framework, "mlp")
    with capture(net.model, keep="tensors") as outer, capture(net.model, keep="stats", level="module") as inner:
        net.train()
    alone = watched(framework, "mlp", keep="tensors")
    assert [shorn(r) for r in outer.trace.records] == [shorn(r) for r in alone.records]
    assert [(r.path, r.phase) for r in inner.trace.records] == [
        (r.path, r.phase) for r in alone.records if r.kind is not Kind.OP
    ]


def test_captures_one_after_the_other_are_alike(framework: str) -> None:
    net = Net(framework, "mlp")
    traces = []
    for _ in range(3):
        with capture(net.model) as run:
            net.train()
        traces.append([shorn(r) for r in run.trace.records])
    assert traces[0] == traces[1] == traces[2]


# -- the user's training -------------------------------------------------------------------------------------------


def torch_training(net: Net, kind: str) -> Callable[[], None]:
    import torch

    make = {"sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "adam": lambda p: torch.optim.Adam(p, 0.01)}
    optimizer = make[kind](net.model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        net.again().mean().backward()
        optimizer.step()

    return step


def paddle_training(net: Net, kind: str) -> Callable[[], None]:
    import paddle

    parameters = net.model.parameters()
    make = {
        "sgd": lambda: paddle.optimizer.Momentum(0.1, momentum=0.9, parameters=parameters),
        "adam": lambda: paddle.optimizer.Adam(0.01, parameters=parameters),
    }
    optimizer = make[kind]()

    def step() -> None:
        net.again().mean().backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def mindspore_training(net: Net, kind: str) -> Callable[[], None]:
    import mindspore
    from mindspore import nn

    parameters = net.model.trainable_params()
    make = {
        "sgd": lambda: nn.Momentum(parameters, 0.1, 0.9),
        "adam": lambda: nn.Adam(parameters, 0.01),
    }
    optimizer = make[kind]()
    gradient = mindspore.value_and_grad(lambda *args: net.model(*args, **net.kwargs).mean(), None, optimizer.parameters)

    def step() -> None:
        _, gradients = gradient(*net.args)
        optimizer(gradients)

    return step


TRAINING = {"torch": torch_training, "paddle": paddle_training, "mindspore": mindspore_training}


def numbers(net: Net) -> dict[str, Any]:
    found = {}
    for info, module in net.adapter.modules(net.model):
        for name, tensor in net.adapter.state(module).items():
            found[info.param_path(name)] = np.array(net.adapter.to_numpy(tensor), copy=True)
    return found


def give(net: Net, state: dict[str, Any]) -> None:
    for info, module in net.adapter.modules(net.model):
        for name, tensor in net.adapter.state(module).items():
            net.adapter.assign(tensor, state[info.param_path(name)])


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_block"])
def test_training_is_bit_identical(framework: str, name: str, kind: str) -> None:
    first = numbers(Net(framework, name))
    ends, traces = [], []
    for watch in (False, True):
        net = Net(framework, name)
        give(net, first)
        step = TRAINING[framework](net, kind)
        run: Capture | None = capture(net.model, keep="tensors", weights="every") if watch else None
        with run or nullcontext():
            for _ in range(3):
                step()
        ends.append(numbers(net))
        if run is not None:
            assert run.error is None
            traces.append(run.trace)
    assert ends[0].keys() == ends[1].keys()
    for path, array in ends[0].items():
        assert array.tobytes() == ends[1][path].tobytes(), path
    assert any(a.tobytes() != first[p].tobytes() for p, a in ends[0].items())  # or nothing was trained
    (trace,) = traces
    assert root_steps(trace) == [0, 1, 2]
    assert {r.step for r in phase_of(trace, Phase.WEIGHT)} == {0, 1, 2}
    assert not [op for op in ops(trace) if re.search(r"(?i)adam|momentum|sgd|addcdiv|foreach|sqrt", op)]


def test_weights_are_those_at_the_beginning_of_the_step(framework: str) -> None:
    net = Net(framework, "mlp")
    step = TRAINING[framework](net, "sgd")
    seen = []
    with capture(net.model, keep="tensors", weights="every", level="module") as run:
        for _ in range(2):
            seen.append(net.weight("fc2"))
            step()
    info = next(m for m in run.trace.manifest.modules if m.path == "fc2")
    weight = next(p for p in info.params if p.role == "weight")
    records = [r for r in phase_of(run.trace, Phase.WEIGHT) if r.path == "fc2"]
    assert len(records) == 2
    for record, expected in zip(records, seen, strict=True):
        array = value(run.trace, record, weight.name)
        np.testing.assert_array_equal(array if weight.axes is None else array.transpose(weight.axes), expected)
    assert not np.array_equal(seen[0], seen[1])


def sizes(run: Capture) -> dict[str, int]:
    recorder = run._recorder
    return {k: len(v) for k, v in vars(recorder).items() if isinstance(v, (list, dict, set)) and v is not None}


def test_memory_stays_bounded(framework: str, tmp_path: Path) -> None:
    net = Net(framework, "mlp")
    step = TRAINING[framework](net, "sgd")
    measured: list[tuple[dict[str, int], int]] = []
    with capture(net.model, tmp_path / "t", keep="stats") as run:
        tracemalloc.start()
        try:
            for number in range(60):
                step()
                if number in (19, 59):
                    gc.collect()
                    measured.append((sizes(run), tracemalloc.get_traced_memory()[0]))
        finally:
            tracemalloc.stop()
    assert run.error is None
    (early, before), (late, after) = measured
    assert {k: n for k, n in late.items() if n > early[k] + 5} == {}
    assert after - before < 300_000  # forty steps of this network are a few megabytes of records
    assert (tmp_path / "t" / "records.jsonl").stat().st_size > 500_000
