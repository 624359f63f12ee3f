"""The torch adapter keeps the promises of adapters/base.py where the conformance suite does not look."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import relu

from twinscope import Phase, capture
from twinscope.adapters.base import KINDS
from twinscope.adapters.torch import _KINDS, TorchAdapter, device_stats, stats_from_device
from twinscope.metrics import array_stats
from twinscope.records import Kind, Level, Stats
from zoo import zoo

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

ZOO = zoo("torch")


@pytest.fixture
def adapter() -> TorchAdapter:
    return TorchAdapter()


class Events:
    """A sink that writes down what it is told and hands out tokens."""

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


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.fc(x) * scale


def told(adapter: TorchAdapter, work: Callable[[], Any], level: Level = Level.OP) -> Events:
    events = Events()
    with adapter.observe(Small(), events, level):
        work()
    assert not events.open
    return events


# -- what is told --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "work"),
    [
        ("torch.nn.functional.relu", lambda x: relu(x)),  # imported by name
        ("torch.nn.functional.relu", lambda x: next(map(relu, [x]))),
        ("torch.nn.functional.scaled_dot_product_attention", lambda x: F.scaled_dot_product_attention(x, x, x)),
        ("torch.nn.functional.rms_norm", lambda x: F.rms_norm(x, [2])),
        ("torch.nn.functional.layer_norm", lambda x: F.layer_norm(x, [2])),
        ("torch.functional.einsum", lambda x: torch.einsum("ij,jk->ik", x, x)),
        ("torch.Tensor.add", lambda x: x + 1),
        ("torch.Tensor.add", lambda x: 1 + x),
        ("torch.Tensor.__rsub__", lambda x: 1 - x),
        ("torch.Tensor.matmul", lambda x: x @ x),
        ("torch.Tensor.div", lambda x: x / 2),
        ("torch.Tensor.neg", lambda x: -x),
        ("torch.Tensor.gt", lambda x: x > 1),
        ("torch.Tensor.__getitem__", lambda x: x[0]),
        ("torch.Tensor.__setitem__", lambda x: x.__setitem__(0, 1.0)),
        ("torch.Tensor.T", lambda x: x.T),
        ("torch.Tensor.add_", lambda x: x.add_(x)),
        ("torch.Tensor.add_", lambda x: x.__iadd__(1)),
        ("torch.Tensor.detach", lambda x: x.detach()),
        ("torch.Tensor.to", lambda x: x.to(torch.float64)),
        ("torch.add", lambda x: torch.add(x, x, out=torch.empty(2, 2))),
        ("torch.cat", lambda x: torch.cat([x, x])),
        ("torch.linalg.inv", lambda x: torch.linalg.inv(x + torch.eye(2))),
        ("torch.fft.fft", lambda x: torch.fft.fft(x)),
        ("torch.nn.functional.cross_entropy", lambda x: F.cross_entropy(x, torch.tensor([0, 1]))),
    ],
)
def test_ops_are_told_and_unchanged(adapter: TorchAdapter, expected: str, work: Any) -> None:
    plain = work(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    results: list[Any] = []
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
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
        lambda x: x.device,
        lambda x: x.grad,
        lambda x: x.size(0),
        lambda x: x.dim(),
        lambda x: x.numel(),
        lambda x: len(x),
        lambda x: x.sum,
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.data_ptr(),
        lambda x: x.is_contiguous(),
        lambda x: torch.is_tensor(x),
        lambda x: torch.get_default_dtype(),
        lambda x: x.requires_grad_(False),
        lambda x: torch.broadcast_shapes((1, 2), (2, 1)),
    ],
)
def test_bookkeeping_is_not_told(adapter: TorchAdapter, work: Any) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert told(adapter, lambda: work(x)).seen == []


def test_item_is_not_told(adapter: TorchAdapter) -> None:
    x = torch.tensor(2.0)
    assert told(adapter, lambda: (x.item(), float(x), bool(x > 0))).names() == ["torch.Tensor.gt"]


def test_backward_is_not_told(adapter: TorchAdapter) -> None:
    loss = Small()(torch.ones(2, 4)).sum()
    assert told(adapter, loss.backward).seen == []


def test_optimizers_are_not_recorded() -> None:
    model = Small()
    optimizers = [
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1),
        torch.optim.AdamW(model.parameters(), 0.1),
    ]
    with capture(model) as run:
        model(torch.ones(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        before = len(run._recorder._pending)  # type: ignore[union-attr]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert len(run._recorder._pending) == before  # type: ignore[union-attr]
    names = {r.op for r in run.trace.records if r.kind is Kind.OP}
    assert names == {"linear", "mul", "sum"}


def test_outermost_calls_only(adapter: TorchAdapter) -> None:
    x = torch.ones(1, 3, 4)
    layer = nn.MultiheadAttention(4, 2)
    names = told(adapter, lambda: F.gelu(x)).names()
    assert len(names) == 1
    assert len(told(adapter, lambda: layer(x, x, x)).names()) == 1


def test_a_failing_op_is_told(adapter: TorchAdapter) -> None:
    events = Events()
    with pytest.raises(RuntimeError), adapter.observe(Small(), events, Level.OP):
        torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
    assert events.seen[-1] == ("fail", "torch.matmul") and not events.open


def test_a_module_called_through_forward(adapter: TorchAdapter) -> None:
    model = Small()
    events = Events()
    with adapter.observe(model, events, Level.OP):
        model.forward(torch.ones(2, 4))
    assert events.names("module") == ["Linear"]
    assert [n.rsplit(".", 1)[-1] for n in events.names()] == ["ones", "linear", "mul"]


def test_ops_of_an_inner_forward_belong_to_who_called_it() -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.fc.forward(x)

    model = Direct()
    with capture(model) as run:
        model(torch.ones(2, 4)).sum().backward()
    linear = [r for r in run.trace.records if r.op == "linear" and r.phase is Phase.FORWARD]
    assert [r.path for r in linear] == [""]
    assert {r.path for r in run.trace.records if r.phase is Phase.GRADIENT} == {"fc"}


@pytest.mark.parametrize("name", ["no_grad", "inference_mode"])
def test_without_gradients(name: str) -> None:
    model = ZOO["mlp"].build()
    x = torch.from_numpy(ZOO["mlp"].args()[0])
    with capture(model, keep="tensors") as run, getattr(torch, name)():
        outputs = [model(x) for _ in range(2)]
    assert run.error is None
    roots = [r for r in run.trace.records if r.path == "" and r.kind is Kind.MODULE]
    assert [r.step for r in roots] == [0, 1]
    np.testing.assert_array_equal(run.trace.tensor(roots[1].outputs()[0]), outputs[1].numpy())
    assert not [r for r in run.trace.records if r.phase in (Phase.BACKWARD, Phase.GRADIENT)]


def test_inputs_with_and_without_a_gradient() -> None:
    for wants in (False, True):
        model = Small()
        x = torch.ones(2, 4, requires_grad=wants)
        with capture(model) as run:
            model(x).sum().backward()
        root = next(r for r in run.trace.records if r.path == "" and r.phase is Phase.BACKWARD)
        assert [s.name for s in root.slots] == (["in.0", "out"] if wants else ["out"])
        assert (x.grad is not None) is wants


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As transformers has it: a mapping whose attributes are its keys."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def test_outputs_that_are_mappings_with_attributes() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            h = self.fc(x)
            return ModelOutput(logits=h * 2, hidden_states=(x, h), past=None)

    model = Net()
    with capture(model) as run:
        output = model(torch.ones(2, 4))
        output.logits.sum().backward()
    assert type(output) is ModelOutput
    root = next(r for r in run.trace.records if r.path == "" and r.phase is Phase.FORWARD and r.kind is Kind.MODULE)
    assert [s.name for s in root.outputs()] == ["out.logits", "out.hidden_states.0", "out.hidden_states.1"]


# -- the user's own hooks ------------------------------------------------------------------------------------------


def test_the_users_hooks_see_the_same_and_are_seen() -> None:
    def hooked() -> tuple[Any, list[Any]]:
        torch.manual_seed(0)
        model, seen = Small(), []

        def before(module: Any, args: Any) -> Any:
            seen.append(("pre", args[0].sum().item()))
            return (args[0] * 2,)

        def after(module: Any, args: Any, output: Any) -> Any:
            seen.append(("post", args[0].sum().item(), output.sum().item()))
            return output + 1

        def backward(module: Any, grad_in: Any, grad_out: Any) -> None:
            seen.append(("backward", None if grad_in[0] is None else grad_in[0].sum().item(), grad_out[0].sum().item()))

        model.fc.register_forward_pre_hook(before)
        model.fc.register_forward_hook(after)
        model.fc.register_full_backward_hook(backward)
        model.fc.weight.register_hook(lambda g: seen.append(("weight", g.sum().item())))
        return model, seen

    results = []
    x = torch.arange(8.0).reshape(2, 4)
    for watch in (False, True):
        model, seen = hooked()
        run = capture(model, keep="tensors") if watch else None
        if run is None:
            y = model(x)
            y.sum().backward()
        else:
            with run:
                y = model(x)
                y.sum().backward()
            assert run.error is None
            fc = next(
                r for r in run.trace.records if r.path == "fc" and r.phase is Phase.FORWARD and r.kind is Kind.MODULE
            )
            np.testing.assert_array_equal(run.trace.tensor(fc.inputs()[0]), (x * 2).numpy())
            np.testing.assert_array_equal(run.trace.tensor(fc.outputs()[0]), y.detach().numpy())
        results.append((seen, y.detach().numpy().tobytes(), model.fc.weight.grad.numpy().tobytes()))
    assert results[0] == results[1]
    assert [kind for kind, *_ in results[0][0]] == ["pre", "post", "backward", "weight"]


def hooks(model: nn.Module) -> list[dict[str, Any]]:
    return [
        {k: len(v) for k, v in vars(m).items() if k.endswith(("hooks", "kwargs", "called"))} for m in model.modules()
    ]


@pytest.mark.parametrize("name", ["mlp", "lstm", "recompute", "raises", "tied_weights"])
def test_nothing_is_left_behind(name: str) -> None:
    model = ZOO[name].build()
    args = [torch.from_numpy(a) for a in ZOO[name].args()]
    before = hooks(model)
    during: list[Any] = []
    kept: list[Any] = []
    model.register_forward_hook(lambda m, a, o: kept.append(o)).remove()
    run = capture(model)
    try:
        with run:
            during = hooks(model)
            output = model(*args)
            kept += [t for _, t in TorchAdapter().leaves(output)]
            kept[0].sum().backward()
    except KeyError:
        assert name == "raises"
    assert during != before  # or this test could not fail
    assert hooks(model) == before
    for tensor in (*kept, *model.parameters(), *args):
        assert not tensor._backward_hooks
    assert torch.overrides._get_current_function_mode_stack() == []


def test_gradient_hooks_are_gone_without_a_backward_pass() -> None:
    model = Small()
    with capture(model):
        y = model(torch.ones(2, 4))
        assert y._backward_hooks
    assert not y._backward_hooks
    y.sum().backward()
    assert model.fc.weight.grad is not None


def test_two_threads_at_once() -> None:
    """Hooks run in every thread: another thread's call must not be taken for this one's."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                go_on.wait(10)
            return self.fc(x)

    model, x = Slow(), torch.ones(2, 4)
    thread = threading.Thread(target=lambda: model(x))
    with capture(model) as run:
        thread.start()
        inside.wait(10)
        model(x)
        go_on.set()
        thread.join()
        model(x).sum().backward()
    assert run.error is None
    roots = [r for r in run.trace.records if r.path == "" and r.kind is Kind.MODULE and r.phase is Phase.FORWARD]
    assert [(r.nth, r.failed, len(r.outputs())) for r in roots] == [(0, False, 1), (1, False, 1)]


# -- gradients -----------------------------------------------------------------------------------------------------


def leaf(*values: float) -> Any:
    return torch.tensor(values, requires_grad=True)


def test_gradient_is_total_and_told_once(adapter: TorchAdapter) -> None:
    w, seen = leaf(2.0, 3.0), []
    middle = w * 2
    adapter.watch_gradient(w, lambda g: seen.append(("w", g.tolist())))
    adapter.watch_gradient(middle, lambda g: seen.append(("middle", g.tolist())))
    (middle * 3 + middle * middle + w).sum().backward()
    assert seen == [("middle", [11.0, 15.0]), ("w", [23.0, 31.0])]


def test_gradient_of_a_parameter_is_the_pass_s_own(adapter: TorchAdapter) -> None:
    w, seen = leaf(2.0, 3.0), []
    (w * 2).sum().backward()
    stop = adapter.watch_gradient(w, lambda g: seen.append(g.tolist()))
    (w * 3).sum().backward()
    assert seen == [[3.0, 3.0]] and w.grad.tolist() == [5.0, 5.0]
    assert stop is not None
    stop()
    (w * 3).sum().backward()
    assert len(seen) == 1


def test_gradient_of_a_tensor_that_is_changed_in_place(adapter: TorchAdapter) -> None:
    a, seen = leaf(1.0, 2.0), []
    b = a * 2
    adapter.watch_gradient(b, lambda g: seen.append(("before", g.tolist())))
    b.mul_(5.0)
    adapter.watch_gradient(b, lambda g: seen.append(("after", g.tolist())))
    b.sum().backward()
    assert sorted(seen) == [("after", [1.0, 1.0]), ("before", [5.0, 5.0])]


def test_no_gradient_to_watch(adapter: TorchAdapter) -> None:
    assert adapter.watch_gradient(torch.ones(2), lambda g: None) is None
    assert not adapter.requires_grad(torch.ones(2)) and adapter.requires_grad(leaf(1.0))


def test_reentrant_checkpoints_give_modules_their_gradients() -> None:
    for name in ("recompute", "recompute_reentrant"):
        torch.manual_seed(0)
        model = ZOO[name].build()
        x = torch.from_numpy(ZOO[name].args()[0])
        with capture(model, keep="tensors") as run:
            model(x).mean().backward()
        backward = {r.path: r for r in run.trace.records if r.phase is Phase.BACKWARD and r.kind is Kind.MODULE}
        assert {"", "head", "inner.0", "inner.1", "inner.2", "stem"} <= set(backward)
        inner = backward["inner.0"]
        # dW of inner.0 is its output's gradient times its input
        forward = next(r for r in run.trace.records if r.call_id == inner.call_id and r.phase is Phase.FORWARD)
        dy, given = run.trace.tensor(inner.outputs()[0]), run.trace.tensor(forward.inputs()[0])
        assert dy is not None and given is not None
        np.testing.assert_allclose(dy.T @ given, model.inner[0].weight.grad.numpy(), rtol=1e-4, atol=1e-7)


# -- modules and tensors -------------------------------------------------------------------------------------------


def test_kinds_are_neutral() -> None:
    assert set(_KINDS.values()) <= KINDS
    assert "wibble" not in KINDS


def test_a_subclass_keeps_the_kind_but_is_not_builtin(adapter: TorchAdapter) -> None:
    class Mine(nn.Linear):
        pass

    (info, _), *_ = adapter.modules(Mine(2, 3))
    assert info.kind == "linear" and not info.builtin
    (info, _), *_ = adapter.modules(nn.Linear(2, 3))
    assert info.kind == "linear" and info.builtin


def test_shared_and_tied(adapter: TorchAdapter) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight
            self.again = self.a

    found = adapter.modules(Tied())
    assert [i.path for i, _ in found] == ["", "a", "b"]
    assert found[1][0].aliases == ("again",)
    params = {i.param_path(p.name): p.tied_to for i, _ in found for p in i.params}
    assert params == {"a.weight": None, "a.bias": None, "b.weight": "a.weight", "b.bias": None}


def test_buffers_and_frozen_parameters(adapter: TorchAdapter) -> None:
    layer = nn.BatchNorm1d(3)
    layer.weight.requires_grad_(False)
    (info, _), *_ = adapter.modules(layer)
    assert {p.name: (p.buffer, p.trainable) for p in info.params} == {
        "weight": (False, False),
        "bias": (False, True),
        "running_mean": (True, False),
        "running_var": (True, False),
        "num_batches_tracked": (True, False),
    }


DTYPES = [
    "float32",
    "float64",
    "float16",
    "int64",
    "int32",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "complex128",
    "bfloat16",
]


def sample(dtype: str, shape: tuple[int, ...], special: bool = False) -> Any:
    array = np.asarray(np.random.default_rng(0).standard_normal(shape) * 50)
    if special and array.size > 4 and dtype not in ("int64", "int32", "int8", "uint8", "bool"):
        array.reshape(-1)[:4] = [np.nan, np.inf, -np.inf, np.nan]
    if dtype == "bool":
        return array > 0
    if dtype == "uint8":
        array = np.abs(array)
    if dtype.startswith("complex"):
        array = array - 3j * array[::-1] if array.ndim else array + 2j
    return array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (64, 80)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_go_there_and_back(adapter: TorchAdapter, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(sample(dtype, shape))
    tensor = adapter.from_numpy(array)
    assert adapter.meta(tensor).shape == shape and adapter.meta(tensor).dtype == dtype
    back = adapter.to_numpy(tensor)
    assert back.dtype == array.dtype and back.shape == shape and back.tobytes() == array.tobytes()


def agree(a: Stats, b: Stats, tolerance: float) -> bool:
    exact = (a.nan, a.inf, a.fingerprint) == (b.nan, b.inf, b.fingerprint)
    pairs = [(a.min, b.min), (a.max, b.max), (a.mean, b.mean), (a.std, b.std), (a.l2, b.l2)]
    return exact and all(np.isclose(x, y, rtol=tolerance, atol=tolerance * 10, equal_nan=True) for x, y in pairs)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (64, 80)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_taken_on_the_device(
    adapter: TorchAdapter, dtype: str, shape: tuple[int, ...], special: bool
) -> None:
    array = np.asarray(sample(dtype, shape, special))
    tensor = adapter.from_numpy(array)
    floats, counts = device_stats(tensor)
    found = stats_from_device(floats.tolist(), counts.tolist())
    assert agree(found, array_stats(array), 1e-5), (found, array_stats(array))
    if array.size > 4:
        assert (found.nan + found.inf > 0) is (special and dtype not in ("int64", "int32", "int8", "uint8", "bool"))
        other = array.copy()
        other.reshape(-1)[-1] = other.dtype.type(not other.reshape(-1)[-1]) if dtype == "bool" else other.dtype.type(77)
        assert not agree(found, array_stats(other), 1e-5)


@pytest.mark.parametrize("fill", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_statistics_of_nothing_finite(adapter: TorchAdapter, dtype: str, fill: float) -> None:
    array = np.full((3, 4), fill).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    floats, counts = device_stats(adapter.from_numpy(array))
    assert agree(stats_from_device(floats.tolist(), counts.tolist()), array_stats(array), 1e-6)


def test_statistics_of_views(adapter: TorchAdapter) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for view in (base.t(), base[::2], base[:, 1:3], base[0].expand(3, 6), torch.complex(base, -base).t().conj()):
        floats, counts = device_stats(view)
        expected = array_stats(adapter.to_numpy(view))
        assert agree(stats_from_device(floats.tolist(), counts.tolist()), expected, 1e-6)
        assert agree(adapter.collect([adapter.measure(view)])[0], expected, 1e-6)


def test_collect_keeps_the_order(adapter: TorchAdapter) -> None:
    tensors = [torch.full((3,), float(i)) for i in range(4)]
    handles = [adapter.measure(t) if i % 2 else device_stats(t) for i, t in enumerate(tensors)]
    assert [s.max for s in adapter.collect(handles)] == [0.0, 1.0, 2.0, 3.0]


def test_from_numpy_like_and_assign(adapter: TorchAdapter) -> None:
    like = torch.ones(1, dtype=torch.bfloat16)
    assert adapter.meta(adapter.from_numpy(np.ones(3), like=like)).dtype == "bfloat16"
    layer = nn.Linear(2, 2)
    weight, place = layer.weight, layer.weight.data_ptr()
    adapter.assign(weight, np.full((2, 2), 1.5))
    assert layer.weight is weight and weight.data_ptr() == place and weight.requires_grad
    assert (weight == 1.5).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.zero_(),
        lambda x: x.__setitem__(0, 5.0),
        lambda x: F.relu(x, inplace=True),
        lambda x: torch.add(torch.ones(3), 1, out=x),
        lambda x: x.view(1, 3).mul_(2),
    ],
)
def test_version_changes_with_the_tensor(adapter: TorchAdapter, change: Any) -> None:
    x = torch.ones(3)
    before = adapter.version(x)
    x + 1, x.numpy(), x.reshape(1, 3)
    assert adapter.version(x) == before
    change(x)
    assert adapter.version(x) != before


def test_memory_is_that_of_the_elements(adapter: TorchAdapter) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    same = (x.t(), x.view(3, 2), x.detach(), x[:])
    assert {adapter.memory(t) for t in same} == {adapter.memory(x)}
    for other in (x.clone(), x[1:], x.view(torch.int32), x[0].expand(2, 3)):
        assert adapter.memory(other) != adapter.memory(x) or adapter.memory(other) is None


def test_seed_and_random_state(adapter: TorchAdapter) -> None:
    adapter.seed(3)
    before = adapter.random_state()
    first = torch.rand(3)
    assert adapter.random_state() != before
    adapter.restore(before)
    assert adapter.random_state() == before
    np.testing.assert_array_equal(torch.rand(3).numpy(), first.numpy())


def test_run_keeps_the_users_gradients(adapter: TorchAdapter) -> None:
    model = Small()
    model(torch.ones(2, 4)).sum().backward()
    kept, before = model.fc.weight.grad, model.fc.weight.grad.clone()
    adapter.run(model, (torch.ones(2, 4) * 7,), {}, lambda y: y.sum(), backward=True)
    assert model.fc.weight.grad is kept and torch.equal(kept, before)


def test_a_watched_model_can_be_copied_and_saved(adapter: TorchAdapter) -> None:
    model = Small()
    with capture(model) as run:
        again = copy.deepcopy(model)
        state = model.state_dict()
        model(torch.ones(2, 4))
        again(torch.ones(2, 4))  # not the one that is watched
    assert set(state) == {"fc.weight", "fc.bias"}
    roots = [r for r in run.trace.records if r.path == "" and r.kind is Kind.MODULE]
    assert len(roots) == 1
