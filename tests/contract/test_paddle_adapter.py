"""The paddle adapter keeps the promises of adapters/base.py. Never import mindspore here: paddle was first."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it complains about a missing ccache
    import paddle
    import paddle.nn.functional as F
    from paddle import nn
    from paddle.base import core
    from paddle.linalg import matmul  # a C function, imported by name on purpose
    from paddle.nn.functional import relu

from twinscope import Overall, align
from twinscope.adapters.base import KINDS
from twinscope.adapters.paddle import _KINDS, PaddleAdapter
from twinscope.errors import WeightError
from twinscope.records import Level
from zoo import NAMES, zoo

pytestmark = pytest.mark.paddle

ZOO = zoo("paddle")
LACKS = __import__("zoo.paddle_zoo", fromlist=["LACKS"]).LACKS


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def adapter() -> PaddleAdapter:
    return PaddleAdapter()


class Events:
    """A sink that writes down what it is told and hands out numbered tokens."""

    def __init__(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
        self.seen: list[tuple[str, str]] = []
        self.args: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.open: list[Any] = []
        self.wanted = wanted
        self.outputs: list[Any] = []

    def _enter(self, kind: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.seen.append((kind, name))
        self.args.append((args, dict(kwargs)))
        if not self.wanted(name):
            return None
        self.open.append((kind, name))
        return kind, name

    def enter_module(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._enter("module", type(module).__name__, args, kwargs)

    def enter_op(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._enter("op", name, args, kwargs)

    def leave(self, token: Any, output: Any) -> None:
        assert self.open.pop() == token
        self.seen.append(("leave", token[1]))
        self.outputs.append(output)

    def fail(self, token: Any) -> None:
        assert self.open.pop() == token
        self.seen.append(("fail", token[1]))

    def names(self, kind: str = "op") -> list[str]:
        return [name for k, name in self.seen if k == kind]


class Greedy(Events):
    """A sink that does what a recorder does: measures everything and watches every gradient."""

    def __init__(self, adapter: PaddleAdapter) -> None:
        super().__init__()
        self.adapter = adapter
        self.gradients: list[Any] = []

    def _look(self, value: Any) -> None:
        for _, tensor in self.adapter.leaves(value):
            self.adapter.meta(tensor)
            self.adapter.version(tensor)
            float(np.sum(self.adapter.to_numpy(tensor).astype(np.float64)))
            self.adapter.watch_gradient(tensor, lambda g: self.gradients.append(self.adapter.to_numpy(g).copy()))

    def _enter(self, kind: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._look((args, dict(kwargs)))
        return super()._enter(kind, name, args, kwargs)

    def leave(self, token: Any, output: Any) -> None:
        self._look(output)
        super().leave(token, output)


def to_paddle(adapter: PaddleAdapter, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return adapter.from_numpy(value)
    if isinstance(value, (tuple, list)):
        return type(value)(to_paddle(adapter, v) for v in value)
    if isinstance(value, dict):
        return {k: to_paddle(adapter, v) for k, v in value.items()}
    return value


def given(adapter: PaddleAdapter, name: str) -> tuple[Any, dict[str, Any]]:
    return to_paddle(adapter, ZOO[name].args()), to_paddle(adapter, ZOO[name].kwargs())


class Small(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.fc(x) * scale


def told(adapter: PaddleAdapter, work: Callable[[], Any], level: Level = Level.OP) -> Events:
    events = Events()
    with adapter.observe(Small(), events, level):
        work()
    return events


# -- the zoo and its modules ---------------------------------------------------------------------------------------


def test_zoo_is_complete() -> None:
    assert set(ZOO) | set(LACKS) == set(NAMES)


@pytest.mark.parametrize("name", list(ZOO))
def test_run(adapter: PaddleAdapter, name: str) -> None:
    model = ZOO[name].build()
    args, kwargs = given(adapter, name)
    expected = ZOO[name].raises
    with pytest.raises(expected) if expected else nullcontext():
        output, loss = adapter.run(model, args, kwargs, None, backward=ZOO[name].backward)
        assert list(adapter.leaves(output))
        assert (loss is not None) == ZOO[name].backward
    assert all(adapter.gradient(p) is None for p in model.parameters())


def test_kinds_are_neutral() -> None:
    assert set(_KINDS.values()) <= KINDS
    assert "wibble" not in KINDS


def test_modules_of_batch_norm_and_conv(adapter: PaddleAdapter) -> None:
    infos = {info.path: info for info, _ in adapter.modules(ZOO["conv_bn"].build())}
    assert list(infos) == ["", "conv1", "bn1", "conv2", "bn2", "pool", "fc"]
    assert infos[""].kind is None and not infos[""].builtin
    assert infos["conv1"].kind == "conv2d" and infos["conv1"].builtin
    assert {p.name: (p.role, p.buffer, p.trainable) for p in infos["bn1"].params} == {
        "weight": ("weight", False, True),
        "bias": ("bias", False, True),
        "_mean": ("running_mean", True, False),
        "_variance": ("running_var", True, False),
    }
    assert infos["bn1"].attributes["momentum"] == 0.1 and infos["bn1"].attributes["raw_momentum"] == 0.9
    assert infos["bn1"].attributes["eps"] == 1e-5 and infos["bn1"].attributes["affine"] is True
    conv2 = infos["conv2"].attributes
    assert conv2["stride"] == [2, 2] and conv2["padding"] == [1, 1] and conv2["bias"] is False
    assert conv2["groups"] == 1 and conv2["dilation"] == [1, 1]
    assert infos["pool"].attributes["kernel_size"] == 2 and infos["pool"].attributes["stride"] == 2


def test_a_subclass_keeps_the_kind_but_is_not_builtin(adapter: PaddleAdapter) -> None:
    infos = {info.path: info for info, _ in adapter.modules(ZOO["bfloat16"].build())}
    assert infos["fc1"].kind == "linear" and not infos["fc1"].builtin
    assert infos["fc1"].params[0].meta.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda: nn.GELU(), {"approximate": "none"}),
        (lambda: nn.GELU(approximate=True), {"approximate": "tanh"}),
        (lambda: nn.LayerNorm(3, epsilon=1e-6), {"eps": 1e-6, "elementwise_affine": True, "normalized_shape": [3]}),
        (lambda: nn.Softmax(axis=1), {"dim": 1}),
        (lambda: nn.LeakyReLU(0.2), {"negative_slope": 0.2}),
        (lambda: nn.Dropout(0.3), {"p": 0.3}),
        (lambda: nn.AvgPool2D(2, exclusive=False), {"count_include_pad": True, "kernel_size": 2, "stride": 2}),
        (lambda: nn.MultiHeadAttention(8, 2), {"embed_dim": 8, "num_heads": 2}),
        (
            lambda: nn.LSTM(3, 4, num_layers=2, direction="bidirect"),
            {"hidden_size": 4, "num_layers": 2, "bidirectional": True, "batch_first": True, "bias": True},
        ),
        (lambda: nn.GRU(3, 4, time_major=True), {"bidirectional": False, "batch_first": False}),
        (lambda: nn.InstanceNorm2D(3, weight_attr=False, bias_attr=False), {"affine": False}),
        (lambda: nn.InstanceNorm2D(3), {"affine": True, "track_running_stats": False}),
        (lambda: nn.BatchNorm1D(3, weight_attr=False, bias_attr=False), {"affine": False}),
        (lambda: nn.Linear(2, 3, bias_attr=False), {"in_features": 2, "out_features": 3, "bias": False}),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16), {"nhead": 2, "norm_first": False, "activation": "relu"}),
        (lambda: nn.Conv2D(2, 4, 3, padding="same"), {"padding": "same"}),
    ],
)
def test_attributes(adapter: PaddleAdapter, layer: Any, expected: dict[str, Any]) -> None:
    (info, _), *_ = adapter.modules(layer())
    assert {k: info.attributes.get(k) for k in expected} == expected


def test_roles_of_other_layers(adapter: PaddleAdapter) -> None:
    def roles(layer: Any) -> list[str]:
        return [p.role for p in adapter.modules(layer)[0][0].params]

    assert roles(nn.PReLU()) == ["weight"]
    assert roles(nn.InstanceNorm2D(3)) == ["weight", "bias"]
    assert roles(nn.Embedding(3, 2)) == ["weight"]
    assert roles(nn.LSTM(3, 4)) == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    assert roles(nn.GRU(3, 4, direction="bidirect"))[-1] == "bias_hh_l0_reverse"


def test_shared_and_tied(adapter: PaddleAdapter) -> None:
    infos = {info.path: info for info, _ in adapter.modules(ZOO["shared_module"].build())}
    assert list(infos) == ["", "first", "head"]
    assert infos["first"].aliases == ("again",) and infos["head"].aliases == ()

    class Tied(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight

    params = {i.param_path(p.name): p.tied_to for i, _ in adapter.modules(Tied()) for p in i.params}
    assert params == {"a.weight": None, "a.bias": None, "b.weight": "a.weight", "b.bias": None}


def test_buffers(adapter: PaddleAdapter) -> None:
    class Buffered(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", paddle.ones([2]))

    model = Buffered()
    ((info, _),) = adapter.modules(model)
    assert [(p.name, p.buffer, p.trainable) for p in info.params] == [("table", True, False)]
    assert adapter.state(model)["table"] is model.table


# -- watching ------------------------------------------------------------------------------------------------------


def test_modules_are_told_in_calling_order(adapter: PaddleAdapter) -> None:
    events = Events()
    model = ZOO["transformer_block"].build()
    args, kwargs = given(adapter, "transformer_block")
    with adapter.observe(model, events, Level.MODULE):
        model(*args, **kwargs)
    assert events.names("module") == (
        ["TransformerBlock", "LayerNorm", "Attention", *["Linear"] * 4, "LayerNorm", "Linear", "GELU", "Linear"]
    )
    assert events.names("op") == [] and not events.open


def test_arguments_are_as_the_user_passed_them(adapter: PaddleAdapter) -> None:
    events = Events()
    model, x = Small(), paddle.ones([2, 4])
    with adapter.observe(model, events, Level.MODULE):
        model(x, scale=3.0)
        model(x=x)
    (first_args, first_kwargs), _, (args, kwargs), _ = events.args
    assert first_args == (x,) and first_args[0] is x and first_kwargs == {"scale": 3.0}
    assert args == () and kwargs["x"] is x


def test_only_the_watched_model_is_told(adapter: PaddleAdapter) -> None:
    events = Events()
    model, other = Small(), Small()
    with adapter.observe(model, events, Level.MODULE):
        other(paddle.ones([2, 4]))
    assert events.seen == []


def test_failures_are_told_innermost_first(adapter: PaddleAdapter) -> None:
    events = Events()
    model = ZOO["raises"].build()
    args, _ = given(adapter, "raises")
    with pytest.raises(KeyError, match="planted"), adapter.observe(model, events, Level.OP):
        model(*args)
    assert events.seen[-2:] == [("fail", "RaisesInside"), ("fail", "Raises")] and not events.open


def test_a_failing_op_is_told(adapter: PaddleAdapter) -> None:
    events = Events()
    with pytest.raises(ValueError), adapter.observe(Small(), events, Level.OP):
        paddle.matmul(paddle.ones([2, 3]), paddle.ones([2, 3]))
    assert events.seen[-1] == ("fail", "paddle.matmul") and not events.open


def test_what_is_not_wanted_is_not_handed_back(adapter: PaddleAdapter) -> None:
    events = Events(wanted=lambda name: False)
    model = ZOO["mlp"].build()
    args, _ = given(adapter, "mlp")
    with adapter.observe(model, events, Level.OP):
        output = model(*args)
    assert events.names("module") and events.names("op")
    assert not [k for k, _ in events.seen if k in ("leave", "fail")]
    np.testing.assert_array_equal(output.numpy(), model(*args).numpy())


def test_outermost_calls_only(adapter: PaddleAdapter) -> None:
    logits, labels = paddle.randn([3, 5]), paddle.to_tensor([0, 1, 2])
    events = told(adapter, lambda: F.cross_entropy(logits, labels))
    assert events.names() == ["paddle.nn.functional.cross_entropy"]


def test_calls_of_layers_are_told(adapter: PaddleAdapter) -> None:
    events = told(adapter, lambda: nn.Sequential(nn.Conv2D(1, 2, 3), nn.GELU())(paddle.ones([1, 1, 4, 4])))
    assert events.names() == ["paddle.ones", "paddle.nn.functional.conv2d", "paddle.nn.functional.gelu"]


def test_kernels_that_layers_call_are_told(adapter: PaddleAdapter) -> None:
    model, x = nn.LSTM(4, 3), paddle.ones([2, 5, 4])
    assert "paddle._C_ops.rnn" in told(adapter, lambda: model(x)).names()


@pytest.mark.parametrize("place", ["name", "dict", "closure", "default", "attribute", "partial", "c name"])
def test_calls_are_seen_however_imported(adapter: PaddleAdapter, place: str) -> None:
    x = paddle.ones([2, 2])
    held = {"relu": relu}
    kept = relu

    def by_default(x: Any, act: Any = relu) -> Any:
        return act(x)

    model = Small()
    model.act = relu
    work = {
        "name": lambda: relu(x),
        "dict": lambda: held["relu"](x),
        "closure": lambda: kept(x),
        "default": lambda: by_default(x),
        "attribute": lambda: model.act(x),
        "partial": lambda: list(map(relu, [x])),
        "c name": lambda: matmul(x, x),
    }[place]
    expected = "paddle.matmul" if place == "c name" else "paddle.nn.functional.relu"
    assert told(adapter, work).names() == [expected]


@pytest.mark.parametrize(
    ("expected", "work"),
    [
        ("paddle.Tensor.add", lambda x: x + 1),
        ("paddle.Tensor.add", lambda x: 1 + x),
        ("paddle.Tensor.__rsub__", lambda x: 1 - x),
        ("paddle.Tensor.matmul", lambda x: x @ x),
        ("paddle.Tensor.div", lambda x: x / 2),
        ("paddle.Tensor.neg", lambda x: -x),
        ("paddle.Tensor.gt", lambda x: x > 1),
        ("paddle.Tensor.eq", lambda x: x == 1),
        ("paddle.Tensor.__getitem__", lambda x: x[0]),
        ("paddle.Tensor.__setitem__", lambda x: x.__setitem__(0, 1.0)),
        ("paddle.Tensor.T", lambda x: x.T),
        ("paddle.Tensor.detach", lambda x: x.detach()),
        ("paddle.Tensor.clone", lambda x: x.clone()),
        ("paddle.reshape", lambda x: x.reshape([-1])),
        ("paddle.Tensor.astype", lambda x: x.astype("float64")),
        ("paddle.mean", lambda x: x.mean(axis=0)),
        ("paddle.Tensor.add_", lambda x: x.add_(x)),
        ("paddle.nn.functional.relu_", lambda x: F.relu_(x)),
        ("paddle.concat", lambda x: paddle.concat([x, x])),
        ("paddle.einsum", lambda x: paddle.einsum("ij,jk->ik", x, x)),
        ("paddle.fft.fft", lambda x: paddle.fft.fft(x)),
        ("paddle.inverse", lambda x: paddle.linalg.inv(x + 0.5)),
        ("paddle.zeros", lambda x: paddle.zeros([2])),
        ("paddle.nn.functional.layer_norm", lambda x: F.layer_norm(x, [2])),
        ("paddle.nn.functional.interpolate", lambda x: F.interpolate(x.unsqueeze([0, 1]), scale_factor=2)),
        ("paddle.nn.functional.pad", lambda x: F.pad(x, [1, 1, 1, 1])),
    ],
)
def test_ops_are_told_and_unchanged(adapter: PaddleAdapter, expected: str, work: Any) -> None:
    plain = work(paddle.to_tensor([[1.0, 2.0], [3.0, 5.0]]))
    x = paddle.to_tensor([[1.0, 2.0], [3.0, 5.0]])
    results: list[Any] = []
    events = told(adapter, lambda: results.append(work(x)))
    assert expected in events.names()
    if plain is not None:
        assert type(results[0]) is type(plain)
        np.testing.assert_array_equal(results[0].numpy(), plain.numpy())


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.shape,
        lambda x: x.dtype,
        lambda x: x.ndim,
        lambda x: paddle.shape(x),
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: x.item(0),
        lambda x: x.sum,
        lambda x: len(x),
        lambda x: str(x),
        lambda x: paddle.is_tensor(x),
        lambda x: paddle.get_default_dtype(),
        lambda x: paddle.broadcast_shape([1, 2], [2, 1]),
        lambda x: x.set_value(np.ones((2, 2), np.float32)),
        lambda x: x.clear_grad(),
        lambda x: copy.deepcopy(x),
        lambda x: nn.Linear(2, 2),
        lambda x: x.numel(),
    ],
)
def test_bookkeeping_is_not_told(adapter: PaddleAdapter, work: Any) -> None:
    x = paddle.to_tensor([[1.0, 2.0], [3.0, 4.0]])
    assert told(adapter, lambda: work(x)).seen == []


def test_backward_and_optimizers_are_not_told(adapter: PaddleAdapter) -> None:
    model = Small()
    loss = model(paddle.ones([2, 4])).sum()
    clip = nn.ClipGradByGlobalNorm(0.1)
    optimizers = [
        paddle.optimizer.SGD(0.1, parameters=model.parameters()),
        paddle.optimizer.AdamW(0.1, parameters=model.parameters(), grad_clip=clip),
    ]

    def work() -> None:
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.clear_grad()

    assert told(adapter, work).seen == []


def test_other_threads_are_not_told(adapter: PaddleAdapter) -> None:
    model, x = Small(), paddle.ones([2, 4])
    events = Events()
    with adapter.observe(model, events, Level.OP):
        thread = threading.Thread(target=lambda: model(relu(x)))
        thread.start()
        thread.join()
    assert events.seen == []


def test_the_sink_itself_is_not_told(adapter: PaddleAdapter) -> None:
    class Curious(Events):
        def leave(self, token: Any, output: Any) -> None:
            paddle.mean(output) + 1
            super().leave(token, output)

    events = Curious()
    model, x = Small(), paddle.ones([2, 4])
    with adapter.observe(model, events, Level.OP):
        model(x)
    assert events.names() == ["paddle.nn.functional.linear", "paddle.Tensor.mul"]


def test_two_observers_at_once(adapter: PaddleAdapter) -> None:
    a, b, x = Small(), Small(), paddle.ones([2, 4])
    first, second = Events(), Events()
    with adapter.observe(a, first, Level.OP):
        with adapter.observe(b, second, Level.OP):
            b(a(x))
        a(x)
    assert first.names("module") == ["Small", "Linear"] * 2
    assert second.names("module") == ["Small", "Linear"]
    assert len(first.names()) == 6 and len(second.names()) == 4


def test_functions_installed_meanwhile_are_found(adapter: PaddleAdapter) -> None:
    told(adapter, lambda: None)

    def fresh(x: Any) -> Any:
        return paddle._C_ops.relu(x)

    fresh.__module__ = "paddle.nn.functional"
    F.twinscope_fresh = fresh
    try:
        assert told(adapter, lambda: fresh(paddle.ones([2]))).names() == [
            "paddle.ones",
            "paddle.nn.functional.twinscope_fresh",
        ]
    finally:
        del F.twinscope_fresh


# -- no effect, nothing left ---------------------------------------------------------------------------------------


def step(adapter: PaddleAdapter, name: str, level: Level | None) -> dict[str, Any]:
    """One training step; everything it changed, as bytes."""
    adapter.seed(7)
    model = ZOO[name].build()
    args, kwargs = given(adapter, name)
    optimizer = None
    if model.parameters():
        optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    sink = Greedy(adapter)
    result: dict[str, Any] = {}
    with adapter.observe(model, sink, level) if level else nullcontext():
        try:
            output = model(*args, **kwargs)
        except KeyError:
            result["raised"] = True
        else:
            result["out"] = [adapter.to_numpy(t).tobytes() for _, t in adapter.leaves(output)]
            loss = adapter.default_loss(output)
            if not loss.stop_gradient:
                loss.backward()
            grads = [p.grad for p in model.parameters()]
            result["grad"] = [None if g is None else adapter.to_numpy(g).tobytes() for g in grads]
            if optimizer is not None:
                optimizer.step()
    result["state"] = [
        adapter.to_numpy(t).tobytes() for _, m in adapter.modules(model) for t in adapter.state(m).values()
    ]
    result["random"] = adapter.random_state()
    if level and name != "no_parameters":
        assert sink.names("module") and not sink.open
    return result


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("name", list(ZOO))
def test_watching_changes_no_bit(adapter: PaddleAdapter, name: str, level: Level) -> None:
    assert step(adapter, name, level) == step(adapter, name, None)


def test_a_changed_bit_would_be_noticed(adapter: PaddleAdapter) -> None:
    """The negative twin: a sink that draws a random number is caught."""
    before = adapter.random_state()
    events = Events()
    events.leave = lambda token, output: (events.open.pop(), paddle.rand([1]))  # type: ignore[method-assign]
    model, x = Small(), paddle.ones([2, 4])
    with adapter.observe(model, events, Level.OP):
        model(x)
    assert adapter.random_state() != before


def world(model: Any) -> dict[str, Any]:
    """Everything that watching could leave something on."""
    spaces = [paddle, F, paddle.linalg, paddle.tensor, paddle.special, paddle._C_ops, paddle._legacy_C_ops, core.eager]
    found: dict[str, Any] = {m.__name__: {k: id(v) for k, v in vars(m).items()} for m in spaces}
    for cls in (paddle.Tensor, nn.Layer, nn.Linear, paddle.optimizer.SGD):
        found[cls.__name__] = {k: id(v) for k, v in vars(cls).items()}
    functions = [v for space in (*spaces, paddle.Tensor, nn.Layer) for v in vars(space).values()]
    found["codes"] = [id(f.__code__) for f in functions if hasattr(f, "__code__")]
    found["tests"] = id(matmul)
    found["model"] = [sorted(vars(m)) for _, m in PaddleAdapter().modules(model)]
    found["hooks"] = [len(m._forward_pre_hooks) + len(m._forward_post_hooks) for m in model.sublayers(True)]
    return found


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "lstm", "recompute", "raises"])
def test_nothing_is_left_behind(adapter: PaddleAdapter, name: str, level: Level) -> None:
    model = ZOO[name].build()
    args, kwargs = given(adapter, name)
    before = world(model)
    during: dict[str, Any] = {}
    with pytest.raises(KeyError) if ZOO[name].raises else nullcontext(), adapter.observe(model, Events(), level):
        during = world(model)
        model(*args, **kwargs)
    after = world(model)
    assert [k for k in before if before[k] != after[k]] == []
    assert during["codes"] != before["codes"]  # or this test could not fail
    assert during["paddle.nn.functional"] == before["paddle.nn.functional"]


def test_a_second_observation_of_another_thread_keeps_its_patches(adapter: PaddleAdapter) -> None:
    inside, go_on = threading.Event(), threading.Event()
    events = Events()
    model, x = Small(), paddle.ones([2, 4])

    def other() -> None:
        with adapter.observe(model, events, Level.OP):
            inside.set()
            go_on.wait(10)
            model(x)

    before = world(model)
    thread = threading.Thread(target=other)
    with adapter.observe(model, Events(), Level.OP):
        thread.start()
        inside.wait(10)
    go_on.set()
    thread.join()
    assert events.names() == ["paddle.nn.functional.linear", "paddle.Tensor.mul"]
    assert world(model) == before


# -- tensors -------------------------------------------------------------------------------------------------------

DTYPES = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64", "bfloat16"]


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (64, 80)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_go_there_and_back(adapter: PaddleAdapter, dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.random.default_rng(0).standard_normal(shape) * 3).astype(dtype if dtype != "bfloat16" else np.float32)
    if dtype == "bfloat16":
        array = np.asarray(array).astype(ml_dtypes.bfloat16)
    array = np.asarray(array)
    tensor = adapter.from_numpy(array)
    assert adapter.meta(tensor).shape == shape and adapter.meta(tensor).dtype == dtype
    assert adapter.meta(tensor).device == "cpu"
    back = adapter.to_numpy(tensor)
    assert back.dtype == array.dtype and back.shape == shape
    assert back.tobytes() == array.tobytes()


def test_a_transposed_tensor_and_array(adapter: PaddleAdapter) -> None:
    array = np.arange(128 * 80, dtype=np.float32).reshape(128, 80)
    np.testing.assert_array_equal(adapter.to_numpy(adapter.from_numpy(array).t()), array.T)
    np.testing.assert_array_equal(adapter.to_numpy(adapter.from_numpy(array.T[::-1])), array.T[::-1])


def test_from_numpy_like(adapter: PaddleAdapter) -> None:
    like = paddle.ones([1], dtype="bfloat16")
    assert adapter.meta(adapter.from_numpy(np.ones(3, np.float64), like=like)).dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_assign_in_place(adapter: PaddleAdapter, dtype: str) -> None:
    layer = nn.Linear(2, 2)
    layer.to(dtype=dtype)
    weight, place = layer.weight, layer.weight.data_ptr()
    adapter.assign(weight, np.full((2, 2), 1.5))
    assert layer.weight is weight and weight.data_ptr() == place and not weight.stop_gradient
    assert adapter.meta(weight).dtype == dtype
    assert (adapter.to_numpy(weight).astype(np.float32) == 1.5).all()
    with pytest.raises(WeightError, match=r"shape \(3,\)"):
        adapter.assign(weight, np.ones(3))


def test_assign_reaches_the_kernel_of_lstm(adapter: PaddleAdapter) -> None:
    model, x = nn.LSTM(3, 2), paddle.ones([1, 2, 3])
    for tensor in adapter.state(model).values():
        adapter.assign(tensor, np.zeros(tensor.shape))
    assert not model(x)[0].numpy().any()
    adapter.assign(model.bias_ih_l0, np.ones(8))
    assert model(x)[0].numpy().all()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(paddle.ones([3])),
        lambda x: x.zero_(),
        lambda x: x.fill_(2.0),
        lambda x: x.scale_(2.0),
        lambda x: x.__setitem__(0, 5.0),
        lambda x: F.relu_(x),
        lambda x: x.set_value(np.zeros(3, np.float32)),
        lambda x: x.copy_(paddle.zeros([3]), True),
        lambda x: paddle.assign(paddle.zeros([3]), output=x),
    ],
)
def test_version_changes_with_the_tensor(adapter: PaddleAdapter, change: Any) -> None:
    x = paddle.ones([3])
    with adapter.observe(Small(), Events(), Level.OP):
        before = adapter.version(x)
        x + 1, x.numpy(), x.reshape([1, 3])
        assert adapter.version(x) == before
        change(x)
        assert adapter.version(x) != before


def test_version_changes_with_a_step_and_with_running_statistics(adapter: PaddleAdapter) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1D(3))
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    with adapter.observe(model, Events(), Level.MODULE):
        watched = (model[0].weight, model[1]._mean)
        versions = [[adapter.version(t) for t in watched]]
        loss = model(paddle.rand([4, 3])).sum()
        versions.append([adapter.version(t) for t in watched])
        loss.backward()
        optimizer.step()
        versions.append([adapter.version(t) for t in watched])
    assert versions[0][0] == versions[1][0] != versions[2][0]
    assert versions[0][1] != versions[1][1]


# -- gradients -----------------------------------------------------------------------------------------------------


def leaf(*values: float) -> Any:
    return paddle.to_tensor(list(values), stop_gradient=False)


def test_gradient_is_total_and_told_once(adapter: PaddleAdapter) -> None:
    w, seen = leaf(2.0, 3.0), []
    middle = w * 2
    adapter.watch_gradient(w, lambda g: seen.append(("w", g.numpy().tolist())))
    adapter.watch_gradient(middle, lambda g: seen.append(("middle", g.numpy().tolist())))
    (middle * 3 + middle * middle + w).sum().backward()
    assert seen == [("middle", [11.0, 15.0]), ("w", [23.0, 31.0])]


def test_gradient_of_a_parameter_is_the_pass_s_own(adapter: PaddleAdapter) -> None:
    w, seen = leaf(2.0, 3.0), []
    (w * 2).sum().backward()
    stop = adapter.watch_gradient(w, lambda g: seen.append(g.numpy().tolist()))
    (w * 3).sum().backward()
    assert seen == [[3.0, 3.0]] and w.grad.numpy().tolist() == [5.0, 5.0]
    assert stop is not None
    stop()
    (w * 3).sum().backward()
    assert len(seen) == 1


def test_gradient_of_a_shared_layer(adapter: PaddleAdapter) -> None:
    model = ZOO["shared_module"].build()
    args, _ = given(adapter, "shared_module")
    seen: list[Any] = []
    adapter.watch_gradient(model.first.weight, lambda g: seen.append(g.numpy()))
    model(*args).sum().backward()
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], model.first.weight.grad.numpy())


def test_gradient_of_a_tensor_that_is_changed_in_place(adapter: PaddleAdapter) -> None:
    a, seen = leaf(1.0, 2.0), []
    b = a * 2
    adapter.watch_gradient(b, lambda g: seen.append(("before", g.numpy().tolist())))
    b.scale_(5.0)
    adapter.watch_gradient(b, lambda g: seen.append(("after", g.numpy().tolist())))
    b.sum().backward()
    assert seen == [("after", [1.0, 1.0]), ("before", [5.0, 5.0])]


def test_no_gradient_to_watch(adapter: PaddleAdapter) -> None:
    assert adapter.watch_gradient(paddle.ones([2]), lambda g: None) is None
    assert not adapter.requires_grad(paddle.ones([2])) and adapter.requires_grad(leaf(1.0))


def test_recomputation_runs_in_backward(adapter: PaddleAdapter) -> None:
    class When(Events):
        def enter_module(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            self.seen.append(("backward" if adapter.in_backward() else "forward", type(module).__name__))
            return None

    events = When()
    model = ZOO["recompute"].build()
    x = adapter.from_numpy(ZOO["recompute"].args()[0])
    x.stop_gradient = False
    with adapter.observe(model, events, Level.MODULE):
        model(x).sum().backward()
        assert not adapter.in_backward()
    inner = ["Sequential", "Linear", "Tanh", "Linear"]
    assert events.names("forward") == ["Recompute", "Linear", *inner, "Linear"]
    assert events.names("backward") == inner


@pytest.mark.parametrize("layer", [lambda: nn.PReLU(3), lambda: nn.InstanceNorm2D(3)])
def test_paddle_s_crash_is_not_ours(adapter: PaddleAdapter, layer: Any) -> None:
    model = nn.Sequential(layer(), nn.Conv2D(3, 2, 1))
    x = paddle.rand([2, 3, 4, 4])
    output, _ = adapter.run(model, (x,), {}, None, backward=True)
    assert x.stop_gradient and x.grad is None
    np.testing.assert_array_equal(output.numpy(), model(x).numpy())


def test_run_keeps_the_user_s_gradients(adapter: PaddleAdapter) -> None:
    model = Small()
    model(paddle.ones([2, 4])).sum().backward()
    before = model.fc.weight.grad.numpy().copy()
    seen: list[Any] = []
    adapter.watch_gradient(model.fc.weight, seen.append)
    adapter.run(model, (paddle.ones([2, 4]) * 7,), {}, lambda y: y.sum(), backward=True)
    np.testing.assert_array_equal(model.fc.weight.grad.numpy(), before)
    assert len(seen) == 1


def test_run_without_backward_needs_no_graph(adapter: PaddleAdapter) -> None:
    output, loss = adapter.run(Small(), (paddle.ones([2, 4]),), {}, None, backward=False)
    assert output.stop_gradient and loss is None


def test_seed_and_random_state(adapter: PaddleAdapter) -> None:
    adapter.seed(3)
    before = adapter.random_state()
    assert adapter.random_state() == before
    first = paddle.rand([3]).numpy()
    assert adapter.random_state() != before
    adapter.seed(3)
    assert adapter.random_state() == before
    np.testing.assert_array_equal(paddle.rand([3]).numpy(), first)


def test_what_is_whose(adapter: PaddleAdapter) -> None:
    assert adapter.is_model(Small()) and not adapter.is_model(paddle.ones([1]))
    assert adapter.is_tensor(paddle.ones([1])) and adapter.is_tensor(Small().fc.weight)
    assert not adapter.is_tensor(np.ones(1))
    assert adapter.versions()["paddle"] == paddle.__version__


class Dropping(nn.Layer):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(4, 16), nn.Dropout(0.5, mode=mode), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.b(self.drop(self.a(x)))


def test_a_dropout_that_scales_in_evaluation_is_another_function() -> None:
    """Nothing is drawn there: what it returns is judged like that of any call."""
    x = np.random.default_rng(0).standard_normal((5, 4)).astype("float32")
    models = [Dropping(mode) for mode in ("upscale_in_train", "downscale_in_infer", "upscale_in_train")]
    for model in models:
        model.eval()
    result = align(models[0], models[1], x, backward=False)
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None and result.first_divergence.reference == "drop"
    assert align(models[0], models[2], x, backward=False).verdict is Overall.SAME


class Norms(nn.Layer):
    """A norm and what comes after it: apart, or the activation within the norm."""

    def __init__(self, within: bool, fixed: float = 1.0) -> None:
        super().__init__()
        self.conv = nn.Conv2D(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm(4, act="relu") if within else nn.BatchNorm2D(4)
        self.end, self.within, self.fixed = nn.Conv2D(4, 2, 1), within, fixed

    def forward(self, x: Any) -> Any:
        h = self.norm(F.relu(self.conv(x)))  # not below zero: in the forward pass the activation changes nothing
        return self.end(h if self.within else F.relu(h)) * self.fixed


def test_a_norm_that_contains_its_activation_is_no_bug_of_the_backward_pass() -> None:
    x = np.random.default_rng(0).standard_normal((2, 2, 6, 6)).astype("float32")
    models = [Norms(False), Norms(True), Norms(True, 1.5)]
    for model in models:
        model.eval()
    assert align(models[0], models[1], x).verdict is Overall.SAME
    assert align(models[0], models[2], x).verdict is Overall.DIFFERENT
