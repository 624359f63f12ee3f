"""The MindSpore adapter keeps the promises of adapters/base.py. Never import paddle here: MindSpore must come first."""

from __future__ import annotations

import gc
import inspect
import json
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import mindspore as ms
    from mindspore import Parameter, Tensor, mint, nn, ops
    from mindspore.graph.api import _pynative_executor
    from mindspore.ops import relu

from twinscope.adapters.base import KINDS
from twinscope.adapters.mindspore import _KINDS, _PATCHES, MindSporeAdapter
from twinscope.errors import FrameworkError, WeightError
from twinscope.records import Level
from zoo import NAMES, zoo

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.filterwarnings("ignore"),  # MindSpore warns about its own deprecated parts
]

ZOO = zoo("mindspore")
ADAPTER = MindSporeAdapter()

KEPT = {"relu": relu, "partial": partial(ops.relu)}


@ms.jit
def compiled(x: Any) -> Any:
    y = ops.clip(ops.relu(x), -1.0, 1.0) + x.sum()
    return ops.softmax(y) * 2 + ops.gelu(x).mean()


class Log:
    """A sink that reads everything it is shown, as a careless one would, and remembers the calls."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.open: list[str] = []
        self.gradients: dict[int, list[Any]] = {}
        self.stops: list[Callable[[], None]] = []

    def _enter(self, name: str, args: Any, kwargs: Mapping[str, Any]) -> str:
        self._look((args, dict(kwargs)))
        self.events.append("  " * len(self.open) + name + (" again" if ADAPTER.in_backward() else ""))
        self.arguments.append((args, dict(kwargs)))
        self.open.append(name)
        return name

    def enter_module(self, module: Any, args: Any, kwargs: Mapping[str, Any]) -> str:
        return self._enter(type(module).__name__, args, kwargs)

    def enter_op(self, name: str, args: Any, kwargs: Mapping[str, Any]) -> str:
        return self._enter(name.removeprefix("mindspore."), args, kwargs)

    def leave(self, token: str, output: Any) -> None:
        assert self.open.pop() == token
        self._look(output)

    def fail(self, token: str) -> None:
        assert self.open.pop() == token
        self.events.append("  " * len(self.open) + f"{token} failed")

    def _look(self, value: Any) -> None:
        for _, tensor in ADAPTER.leaves(value):
            ADAPTER.meta(tensor)
            ADAPTER.version(tensor)
            np.array(ADAPTER.to_numpy(tensor))
            tensor * 1  # its own work must not be told, nor get into the graph
            if not ADAPTER.in_backward():
                seen: list[Any] = []
                stop = ADAPTER.watch_gradient(tensor, seen.append)
                if stop is not None:
                    self.gradients[len(self.gradients)] = seen
                    self.stops.append(stop)


def convert(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ADAPTER.from_numpy(value)
    if isinstance(value, tuple):
        return tuple(convert(v) for v in value)
    if isinstance(value, dict):
        return {k: convert(v) for k, v in value.items()}
    return value


def train(name: str, sink: Log | None, level: Level = Level.OP) -> list[Any]:
    """Two training steps; every number there is afterwards."""
    entry = ZOO[name]
    ADAPTER.seed(0)
    model = entry.build()
    args, kwargs = convert(entry.args()), convert(entry.kwargs())
    weights = [p for p in model.get_parameters() if p.requires_grad]
    # nn.SGD knows no bfloat16
    optimizer = nn.SGD(weights, 0.1, momentum=0.9) if weights and name != "bfloat16" else None
    numbers: list[Any] = []
    with nullcontext() if sink is None else ADAPTER.observe(model, sink, level):
        for _ in range(2):
            outputs: list[Any] = []

            def forward(outputs: list[Any] = outputs) -> Any:
                outputs.append(model(*args, **kwargs))
                return ADAPTER.default_loss(outputs[-1])

            if entry.raises:
                with pytest.raises(entry.raises, match="planted"):
                    ms.value_and_grad(forward, None, weights)()
                continue
            if weights:
                loss, gradients = ms.value_and_grad(forward, None, weights)()
                if optimizer is not None:
                    optimizer(gradients)
            else:
                loss, gradients = forward(), ()
            tensors = [t for _, t in ADAPTER.leaves(outputs)]
            for tensor in (loss, *gradients, *tensors, *model.get_parameters()):
                numbers.append(np.array(ADAPTER.to_numpy(tensor)))
    numbers.append(ADAPTER.random_state())
    for stop in sink.stops if sink else ():
        stop()
    return numbers


def same(a: Any, b: Any) -> bool:
    if not isinstance(a, np.ndarray):
        return bool(a == b)
    if a.dtype == ml_dtypes.bfloat16 or not np.isnan(a.astype(np.float64)).any():
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return bool(np.array_equal(a, b, equal_nan=True))  # MindSpore's NaN differ in sign from run to run


def everything() -> dict[str, Any]:
    """The dicts and code objects that watching could have changed."""
    found: dict[str, Any] = {
        name: dict(vars(sys.modules[name]))
        for name in ("mindspore.ops", "mindspore.mint", "mindspore.mint.nn.functional")
    }
    for cls in (Tensor, Parameter, nn.Cell, nn.Dense, ops.MatMul):
        found[cls.__name__] = dict(vars(cls))
    functions = [nn.Cell.__call__, ops.relu, ops.MatMul.__call__, ops.assign, Tensor.astype, ops.clip]
    found["codes"] = [f.__code__ for f in functions] + [s.function.__code__ is s.own for s in _PATCHES._ops.values()]
    return found


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    found = []
    for key in a:
        if key == "codes":
            if a[key][:6] != b[key][:6] or not all(a[key][6:]) or not all(b[key][6:]):
                found.append("codes")
            continue
        missing = object()
        # MindSpore counts its cells, and imports parts of itself when they are first needed
        names = {n for n in {*a[key], *b[key]} if not isinstance(b[key].get(n), types.ModuleType)}
        names -= {"total_instance_count"}
        found += [f"{key}.{n}" for n in names if a[key].get(n, missing) is not b[key].get(n, missing)]
    return found


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = everything()
    yield
    _pynative_executor.clear_res()  # MindSpore keeps half a graph where a forward function raised under value_and_grad
    assert differences(before, everything()) == []
    assert not _PATCHES._swapped and not _PATCHES._shadowed


class Probe(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)
        self.matmul = ops.MatMul()

    def construct(self, x: Any, *, scale: float = 1.0) -> Any:
        return self.matmul(self.fc(x), x.T) * scale


def probe_input() -> Any:
    return Tensor(np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32))


def told(function: Callable[[], Any], model: Any = None, level: Level = Level.OP) -> list[str]:
    log = Log()
    with ADAPTER.observe(model if model is not None else Probe(), log, level):
        function()
    for stop in log.stops:
        stop()
    return log.events


# -- the zoo ---------------------------------------------------------------------------------------------------------


def test_the_zoo_is_complete() -> None:
    lacks = sys.modules["zoo.mindspore_zoo"].LACKS
    assert set(ZOO) | set(lacks) == set(NAMES)


@pytest.mark.parametrize("name", list(ZOO))
def test_watching_changes_no_number(name: str) -> None:
    log = Log()
    plain, watched = train(name, None), train(name, log)
    assert log.events and not log.open
    assert len(plain) == len(watched)
    assert all(same(a, b) for a, b in zip(plain, watched, strict=True))


def test_the_comparison_above_can_fail() -> None:
    plain, other = train("mlp", None), train("mlp", None)
    other[0] = other[0] + np.float32(1e-7)
    assert not all(same(a, b) for a, b in zip(plain, other, strict=True))


@pytest.mark.parametrize("name", list(ZOO))
def test_module_paths_and_kinds_agree_with_the_vocabulary(name: str) -> None:
    model = ZOO[name].build()
    found = ADAPTER.modules(model)
    assert found[0][0].path == "" and found[0][1] is model
    for info, cell in found:
        assert info.kind is None or info.kind in KINDS
        json.dumps(dict(info.attributes))
        assert [p.name for p in info.params] == list(ADAPTER.state(cell))


def test_all_kinds_are_known() -> None:
    assert set(_KINDS.values()) <= KINDS


# -- modules ---------------------------------------------------------------------------------------------------------


def by_path(model: Any) -> dict[str, Any]:
    return {info.path: info for info, _ in ADAPTER.modules(model)}


def test_roles_and_attributes_are_neutral() -> None:
    infos = by_path(ZOO["conv_bn"].build())
    norm = infos["bn1"]
    assert {p.name: (p.role, p.buffer, p.trainable) for p in norm.params} == {
        "moving_mean": ("running_mean", True, False),
        "moving_variance": ("running_var", True, False),
        "gamma": ("weight", False, True),
        "beta": ("bias", False, True),
    }
    assert norm.attributes["momentum"] == 0.1 and norm.attributes["momentum_raw"] == 0.9
    assert norm.attributes["eps"] == 1e-5 and norm.attributes["affine"] is True
    conv = infos["conv2"].attributes
    assert (conv["stride"], conv["padding"], conv["groups"], conv["bias"]) == ([2, 2], [1, 1], 1, False)


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (lambda: nn.GELU(approximate=False), "approximate", "none"),
        (lambda: nn.GELU(), "approximate", "tanh"),
        (lambda: nn.LayerNorm((4,)), "eps", 1e-7),
        (lambda: nn.Dropout(p=0.3), "p", 0.3),
        (lambda: nn.Dropout(keep_prob=0.8), "p", 0.2),
        (lambda: nn.LeakyReLU(), "negative_slope", 0.2),
        (lambda: nn.BatchNorm2d(3, affine=False), "affine", False),
        (lambda: nn.Softmax(), "dim", -1),
        (lambda: nn.Conv1d(3, 4, 3, pad_mode="valid"), "padding", [0]),
        (lambda: nn.Conv2d(3, 4, 3), "padding", "same"),
        (lambda: nn.GRU(3, 4, 2, bidirectional=True), "bidirectional", True),
        (lambda: nn.MultiheadAttention(8, 2), "num_heads", 2),
        (lambda: nn.BatchNorm3d(3), "momentum", 0.1),
    ],
)
def test_attributes(layer: Callable[[], Any], name: str, value: Any) -> None:
    assert by_path(layer())[""].attributes[name] == value


def test_inner_cells_of_framework_layers_are_not_modules() -> None:
    infos = by_path(ZOO["lstm"].build())
    assert list(infos) == ["", "emb", "rnn", "fc"]
    assert [p.name for p in infos["rnn"].params] == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    assert [p.role for p in by_path(nn.BatchNorm3d(3))[""].params] == ["running_mean", "running_var", "weight", "bias"]


def test_shared_modules_and_tied_parameters() -> None:
    assert by_path(ZOO["shared_module"].build())["first"].aliases == ("again",)

    class Tied(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Dense(3, 3)
            self.b = nn.Dense(3, 3)
            self.b.weight = self.a.weight

    ties = {i.path: [p.tied_to for p in i.params] for i, _ in ADAPTER.modules(Tied())}
    assert ties["a"] == [None, None] and sorted(map(str, ties["b"])) == ["None", "a.weight"]


def test_a_users_subclass_has_the_kind_but_is_not_builtin() -> None:
    info = by_path(ZOO["bfloat16"].build())["fc1"]
    assert (info.kind, info.builtin) == ("linear", False)
    assert by_path(ZOO["mlp"].build())["fc1"].builtin


# -- moving numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32", "uint8", "bool", "complex64"])
def test_numbers_survive_the_round_trip(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = ADAPTER.from_numpy(array)
    assert ADAPTER.meta(tensor).dtype == dtype and ADAPTER.meta(tensor).shape == (2, 3)
    back = ADAPTER.to_numpy(tensor)
    assert back.dtype == array.dtype and np.array_equal(back, array)


def test_bfloat16_survives_the_round_trip() -> None:
    array = np.array([1.5, -2.0, 3.14], ml_dtypes.bfloat16)
    tensor = ADAPTER.from_numpy(array)
    assert ADAPTER.meta(tensor).dtype == "bfloat16"
    assert ADAPTER.to_numpy(tensor).dtype == ml_dtypes.bfloat16
    assert ADAPTER.to_numpy(tensor).tobytes() == array.tobytes()
    assert ADAPTER.from_numpy(np.ones(2, np.float32), like=tensor).dtype == ms.bfloat16


def test_from_numpy_owns_its_memory() -> None:
    array = np.ones(3, np.float32)
    tensor = ADAPTER.from_numpy(array)
    array[:] = 7
    assert ADAPTER.to_numpy(tensor).tolist() == [1, 1, 1]


def test_assign_is_in_place_and_keeps_the_dtype() -> None:
    parameter = Parameter(Tensor(np.zeros((2, 3), np.float32)), name="p")
    before, version = id(parameter), ADAPTER.version(parameter)
    ADAPTER.assign(parameter, np.arange(6, dtype=np.float64).reshape(2, 3))
    assert id(parameter) == before and parameter.dtype == ms.float32
    assert parameter.asnumpy()[1, 2] == 5 and ADAPTER.version(parameter) != version
    with pytest.raises(WeightError, match=r"shape \(3, 2\) to p of shape \(2, 3\)"):
        ADAPTER.assign(parameter, np.zeros((3, 2)))


def test_seed_and_random_state() -> None:
    ADAPTER.seed(3)
    before, first = ADAPTER.random_state(), nn.Dense(3, 3).weight.asnumpy().copy()
    assert ADAPTER.random_state() != before  # initializers draw from it
    ADAPTER.seed(3)
    assert ADAPTER.random_state() == before
    assert np.array_equal(first, nn.Dense(3, 3).weight.asnumpy())


def test_versions_and_recognition() -> None:
    assert set(ADAPTER.versions()) == {"mindspore", "numpy"}
    assert ADAPTER.is_model(nn.ReLU()) and not ADAPTER.is_model(Tensor(1.0))
    assert ADAPTER.is_tensor(Parameter(Tensor(1.0), name="p")) and not ADAPTER.is_tensor(np.ones(1))


# -- what is told ----------------------------------------------------------------------------------------------------


def test_modules_and_ops_are_told_in_order() -> None:
    model, x = Probe(), probe_input()
    log = Log()
    with ADAPTER.observe(model, log, Level.OP):
        model(x, scale=2.0)
    assert log.events == [
        "Probe",
        "  Dense",
        "    ops.MatMul",
        "    ops.BiasAdd",
        "  Tensor.permute",
        "  ops.MatMul",
        "  Tensor.mul",
    ]
    assert log.arguments[0][0] == (x,) and log.arguments[0][1] == {"scale": 2.0}
    assert len(log.arguments[2][0]) == 2  # a primitive is not among its own arguments


def test_module_level_tells_no_ops() -> None:
    assert told(lambda: None) == []
    model, x = Probe(), probe_input()
    assert told(lambda: model(x), model, Level.MODULE) == ["Probe", "  Dense"]


def test_only_the_watched_model_is_told() -> None:
    other, x = Probe(), probe_input()
    assert told(lambda: other(x), Probe(), Level.MODULE) == []


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: relu(x), "ops.relu"),
        (lambda x: KEPT["relu"](x), "ops.relu"),
        (lambda x: KEPT["partial"](x), "ops.relu"),
        (lambda x: mint.nn.functional.softmax(x, -1), "mint.nn.functional.softmax"),
        (lambda x: mint.add(x, x), "mint.add"),
        (lambda x: x + 1, "Tensor.add"),
        (lambda x: 2 - x, "Tensor.__rsub__"),
        (lambda x: x @ x.reshape(4, 3), "Tensor.matmul"),
        (lambda x: -x, "Tensor.neg"),
        (lambda x: x > 0, "Tensor.gt"),
        (lambda x: x[0], "Tensor.__getitem__"),
        (lambda x: x.mean(), "Tensor.mean"),
        (lambda x: x.astype(ms.float16), "Tensor.astype"),
        (lambda x: ops.Tanh()(x), "ops.Tanh"),
        (lambda x: ops.clip(x, -1, 1), "ops.clip"),
        (lambda x: ops.cat((x, x), 0), "ops.cat"),
        (lambda x: ops.stack([x, x]), "ops.stack"),
        (lambda x: ops.zeros((2, 3)), "ops.zeros"),
        (lambda x: ms.numpy.tanh(x), "numpy.tanh"),
        (lambda x: ops.function.nn_func.layer_norm, None),
        (lambda x: (x.shape, x.dtype, x.ndim, x.size), None),
        (lambda x: x.asnumpy(), None),
        (lambda x: x.sum, None),
        (lambda x: ops.shape(x), None),
        (lambda x: x[0, 0].item(), "Tensor.__getitem__"),
    ],
)
def test_public_calls(call: Callable[[Any], Any], name: str | None) -> None:
    x = probe_input()
    events = [e.strip() for e in told(lambda: call(x))]
    assert events[-1:] == ([name] if name else [])
    assert len(events) <= 2  # outermost only: what these call inside is not told


def test_losses_are_told_but_optimizers_and_backward_are_not() -> None:
    model, x = Probe(), probe_input()
    loss = nn.MSELoss()
    optimizer = nn.Adam(model.trainable_params(), 1e-3)
    step = ms.value_and_grad(lambda: loss(model(x), x @ x.T), None, optimizer.parameters)
    log = Log()
    with ADAPTER.observe(model, log, Level.OP):
        _, gradients = step()
        count = len(log.events)
        assert any("ops.square" in e for e in log.events)
        optimizer(gradients)
    assert len(log.events) == count and not any("again" in e for e in log.events)


@pytest.mark.parametrize("make", [nn.Adam, nn.SGD, nn.RMSProp, nn.AdamWeightDecay])
def test_optimizers_compile_while_watched(make: Any) -> None:
    model, x = Probe(), probe_input()
    optimizer = make(model.trainable_params(), 0.1)
    log = Log()
    with ADAPTER.observe(model, log, Level.OP):
        _, gradients = ms.value_and_grad(lambda: model(x).sum(), None, optimizer.parameters)()
        before, version = model.fc.weight.asnumpy().copy(), ADAPTER.version(model.fc.weight)
        optimizer(gradients)
    assert not np.array_equal(before, model.fc.weight.asnumpy())
    assert ADAPTER.version(model.fc.weight) != version
    assert by_path(model)["fc"].params[0].name == "weight"


def test_compiled_functions_run_silently_and_unchanged() -> None:
    x = probe_input()
    assert told(lambda: compiled(x)) == []
    assert np.array_equal(compiled(x).asnumpy(), compiled(x).asnumpy())
    with ADAPTER.observe(Probe(), Log(), Level.OP):
        assert inspect.getsource(ops.relu).startswith("def relu(")


def test_recurrent_layers_and_losses_run_while_watched() -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32))
    labels = Tensor(np.array([1, 2], np.int32))
    model = nn.LSTM(4, 5, batch_first=True)
    events = told(lambda: model(x), model)
    assert events[0] == "LSTM" and "  ops.LSTM" in events
    assert told(lambda: nn.CrossEntropyLoss()(x[:, 0], labels))


def test_recomputation_is_told_and_marked() -> None:
    log = Log()
    train("recompute", log)
    assert log.events.count("ops.Tanh again") == 0
    assert sum(e.strip() == "Tanh again" for e in log.events) == 2
    assert sum(e.strip() == "Tanh" for e in log.events) == 2
    assert not ADAPTER.in_backward()


def test_other_threads_are_not_told() -> None:
    x = probe_input()

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: ops.relu(x).asnumpy())
        thread.start()
        thread.join()

    assert told(elsewhere) == []


def test_nested_observations_each_hear_their_own() -> None:
    a, b, x = Probe(), Probe(), probe_input()
    outer, inner = Log(), Log()
    with ADAPTER.observe(a, outer, Level.MODULE):
        with ADAPTER.observe(b, inner, Level.OP):
            a(x)
            b(x)
        b(x)
        a(x)
    assert outer.events == ["Probe", "  Dense"] * 2
    assert [e.strip() for e in inner.events].count("Probe") == 1 and len(inner.events) == 12


# -- failures --------------------------------------------------------------------------------------------------------


def test_the_users_exception_comes_through_and_nothing_stays() -> None:
    entry = ZOO["raises"]
    model, log = entry.build(), Log()
    before = everything()
    with pytest.raises(KeyError, match="planted"), ADAPTER.observe(model, log, Level.OP):
        model(*convert(entry.args()))
    assert differences(before, everything()) == []
    assert log.events[-2:] == ["  RaisesInside failed", "Raises failed"] and not log.open
    assert not model._forward_hook and not model._forward_pre_hook


def test_a_failing_op_is_told() -> None:
    x = probe_input()
    log = Log()
    with pytest.raises(TypeError), ADAPTER.observe(Probe(), log, Level.OP):
        ops.relu(x, x, x)
    assert log.events == ["ops.relu", "ops.relu failed"]


def test_graph_mode_is_refused_and_left_alone() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(FrameworkError, match="graph mode"), ADAPTER.observe(Probe(), Log(), Level.OP):
            pass
        assert ms.get_context("mode") == ms.GRAPH_MODE
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_a_run_that_raises_leaves_mindspore_usable() -> None:
    entry, x = ZOO["raises"], probe_input()
    for _ in range(3):
        with pytest.raises(KeyError, match="planted"):
            ADAPTER.run(entry.build(), convert(entry.args()), {}, None, True)
    assert x[0].shape == (4,) and not (x * entry.build().fc.weight[:3, :4])._requires_grad


# -- gradients -------------------------------------------------------------------------------------------------------


def test_gradients_are_total_and_come_once() -> None:
    w = Parameter(Tensor(np.array([1.0, 2.0], np.float32)), name="w")
    x = Tensor(np.array([3.0, 4.0], np.float32))
    seen: list[tuple[str, Any]] = []

    def forward(x: Any) -> Any:
        y = x * w
        assert ADAPTER.requires_grad(y) and ADAPTER.requires_grad(w)
        stops.append(ADAPTER.watch_gradient(y, lambda g: seen.append(("y", g.asnumpy().copy()))))
        stops.append(ADAPTER.watch_gradient(x, lambda g: seen.append(("x", g.asnumpy().copy()))))
        return (y * y + y * 3 + w).sum()

    stops = [ADAPTER.watch_gradient(w, lambda g: seen.append(("w", g.asnumpy().copy())))]
    _, (_, (dw,)) = ms.value_and_grad(forward, 0, [w])(x)
    y = np.array([3.0, 8.0])
    assert sorted(name for name, _ in seen) == ["w", "x", "y"]
    found = dict(seen)
    assert np.allclose(found["y"], 2 * y + 3)
    assert np.array_equal(found["w"], dw.asnumpy())
    assert np.allclose(found["x"], (2 * y + 3) * np.array([1.0, 2.0]))
    for stop in stops:
        assert stop is not None
        stop()
    seen.clear()
    ms.value_and_grad(lambda: (x * w).sum(), None, [w])()
    assert seen == []


def test_what_needs_no_gradient_is_not_watched() -> None:
    frozen = Parameter(Tensor(1.0), name="f", requires_grad=False)
    for tensor in (frozen, Tensor(1.0) * 2, Tensor(np.array([1, 2]))):
        assert not ADAPTER.requires_grad(tensor)
        assert ADAPTER.watch_gradient(tensor, lambda _: None) is None


def test_run_sees_every_parameter_gradient() -> None:
    model, entry = ZOO["mlp"].build(), ZOO["mlp"]
    seen: dict[str, int] = {}
    stops = []
    for parameter in model.get_parameters():
        name = parameter.name
        stops.append(ADAPTER.watch_gradient(parameter, lambda _, n=name: seen.__setitem__(n, seen.get(n, 0) + 1)))
    output, loss = ADAPTER.run(model, convert(entry.args()), {}, None, True)
    assert np.isclose(loss.asnumpy(), output.asnumpy().mean())
    assert seen == {p.name: 1 for p in model.get_parameters()}
    seen.clear()
    assert ADAPTER.run(model, convert(entry.args()), {}, None, False)[1] is None and not seen
    for stop in stops:
        stop()  # type: ignore[misc]


def test_run_without_parameters_goes_backward_to_the_input() -> None:
    entry = ZOO["no_parameters"]
    args = convert(entry.args())
    seen: list[Any] = []

    def loss(output: Any) -> Any:
        ADAPTER.watch_gradient(output, seen.append)
        return output.sum()

    ADAPTER.run(entry.build(), args, {}, loss, True)
    assert len(seen) == 1 and seen[0].shape == (3,)


# -- versions of tensors ---------------------------------------------------------------------------------------------


def _item(t: Any) -> None:
    t[0] = 5.0


@pytest.mark.parametrize(
    "change",
    [
        _item,
        lambda t: ops.assign(t, t * 2),
        lambda t: ops.assign_add(t, t),
        lambda t: ops.AssignSub()(t, t),
        lambda t: t.assign_value(t * 2),
    ],
)
@pytest.mark.parametrize("level", [Level.MODULE, Level.OP])
def test_in_place_changes_are_noticed(change: Callable[[Any], Any], level: Level) -> None:
    tensor = Parameter(Tensor(np.array([1.0, 2.0], np.float32)), name="t")
    with ADAPTER.observe(Probe(), Log(), level):
        before = ADAPTER.version(tensor)
        tensor.sum()
        tensor * 2
        assert ADAPTER.version(tensor) == before
        change(tensor)
        assert ADAPTER.version(tensor) != before


def test_running_statistics_change_in_training_only() -> None:
    norm = nn.BatchNorm2d(3)
    x = Tensor(np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32))
    with ADAPTER.observe(norm, Log(), Level.OP):
        before = ADAPTER.version(norm.moving_mean)
        norm(x)
        assert ADAPTER.version(norm.moving_mean) == before
        norm.set_train()
        norm(x)
        assert ADAPTER.version(norm.moving_mean) != before


def test_counting_changes_keeps_nothing_alive() -> None:
    from twinscope.adapters.mindspore import _CHANGES

    tensor = Tensor(np.zeros(2, np.float32))
    key = id(tensor)
    _CHANGES.bump(tensor)
    assert key in _CHANGES._counts
    del tensor
    gc.collect()
    assert key not in _CHANGES._counts
