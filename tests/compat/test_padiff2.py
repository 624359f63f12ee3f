"""PaDiff 0.2 as its documents have it, and right where the original is wrong. Every case has its negative twin."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compat import padiff_nets as nets
from twinscope import Overall, TwinscopeError
from twinscope.compat.padiff.generation2 import LayerMap, add_special_init, assign_weight, auto_diff

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not {"torch", "paddle"} <= set(sys.modules), reason="of paddle and torch"),
]

STRICT = {"atol": 1e-4, "rtol": 0, "compare_mode": "strict"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PADIFF_API_CHECK", "PADIFF_PATH_LOG", "PADIFF_TENSOR_METHOD"):
        monkeypatch.delenv(name, raising=False)


def test_the_signatures_are_the_documents() -> None:
    def bare(function: Any) -> str:
        found = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
        return re.sub(r"<[^>]*LayerMap object[^>]*>", "LayerMap()", str(inspect.Signature(found)))

    assert bare(auto_diff) == (
        "(layer, module, example_inp, auto_weights=True, options={}, layer_map=None, loss_fn=None, optimizer=None, "
        "steps=1)"
    )
    assert bare(assign_weight) == "(layer, module, layer_map=LayerMap())"
    assert bare(add_special_init) == "(paddle_name, torch_name, func)"
    assert bare(LayerMap) == "()"
    methods = [n for n in vars(LayerMap) if not n.startswith("_")]
    assert methods == ["map", "ignore", "ignore_recursively", "ignore_class", "auto", "resolved"]
    assert [bare(getattr(LayerMap, n)) for n in methods[1:5]] == [
        "(self, given)",
        "(self, given)",
        "(self, layer, ign_cls=None)",
        "(self, layer, module)",
    ]


# -- what the original gets wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clean", "bugged"),
    [
        pytest.param(nets.simple, lambda: nets.simple("flipped"), id="rows flipped"),
        pytest.param(lambda: nets.wrong_gradient(1.0), lambda: nets.wrong_gradient(2.0), id="backward only"),
        pytest.param(nets.swapped_order, lambda: nets.swapped_order(False), id="declared in another order"),
        pytest.param(nets.square_subclass, lambda: nets.square_subclass(True), id="square subclass"),
        pytest.param(lambda: nets.gelu(False), lambda: nets.gelu(True), id="gelu"),
        pytest.param(lambda: nets.recurrent("gru"), lambda: nets.recurrent("gru", True), id="GRU"),
        pytest.param(lambda: nets.recurrent("rnn"), lambda: nets.recurrent("rnn", True), id="SimpleRNN"),
        pytest.param(lambda: nets.recurrent("lstm"), lambda: nets.recurrent("lstm", True), id="LSTM"),
        pytest.param(lambda: nets.outputs("tuple"), lambda: nets.outputs("tuple", True), id="tuple outputs"),
        pytest.param(lambda: nets.outputs("dict"), lambda: nets.outputs("dict", True), id="dict outputs"),
        pytest.param(lambda: nets.outputs("dataclass"), lambda: nets.outputs("dataclass", True), id="dataclass"),
        pytest.param(nets.recompute, lambda: nets.recompute(True), id="recompute"),
        pytest.param(nets.no_parameters, lambda: nets.no_parameters(True), id="no parameters"),
    ],
)
def test_right_where_the_original_is_wrong(clean: Any, bugged: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"atol": 1e-5, "rtol": 1e-4}
    passed = auto_diff(*clean(), options=options)
    out = capsys.readouterr().out
    assert passed == True, out  # noqa: E712 - as scripts of these documents write it
    assert "[AutoDiff] SUCCESS !!!" in out and passed.result.verdict is Overall.SAME
    failed = auto_diff(*bugged(), options=options)
    out = capsys.readouterr().out
    assert failed == False, out  # noqa: E712
    assert "[AutoDiff] FAILED !!!" in out and "SUCCESS" not in out
    assert failed.result.verdict is Overall.DIFFERENT


def test_bfloat16(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"atol": 1e-2, "rtol": 1e-2}
    assert auto_diff(*nets.bfloat16(), options=options), capsys.readouterr().out
    assert not auto_diff(*nets.bfloat16(True), options=options)


def test_a_bug_in_backward_only_is_located(capsys: pytest.CaptureFixture[str]) -> None:
    assert not auto_diff(*nets.wrong_gradient(2.0), options={"atol": 1e-6, "rtol": 1e-4})
    out = capsys.readouterr().out
    assert "forward stage compared." in out
    assert "Diff found in `Backward Stage` in step: 0, net_id is" in out
    marked = [line for line in out.splitlines() if "*** HERE ***" in line]
    assert len(marked) == 2 and any("Gate" in line or "mul" in line or "Scaled" in line for line in marked), out


def test_gelu_is_blamed_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert not auto_diff(*nets.gelu(True), options={"atol": 1e-6, "rtol": 1e-5})
    out = capsys.readouterr().out
    assert "Type of layer is : torch.nn.functional.gelu vs paddle.nn.functional.gelu" in out
    marked = [line.split("(api) ")[1].split()[0] for line in out.splitlines() if "*** HERE ***" in line]
    assert marked == ["paddle.nn.functional.gelu", "torch.nn.functional.gelu"]


def test_batch_norm_buffers_are_copied(capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, inputs = nets.batch_norm()
    assert auto_diff(layer, module, inputs, options=STRICT), capsys.readouterr().out
    assert np.allclose(layer[1]._mean.numpy(), module[1].running_mean.numpy())
    assert abs(layer[1]._mean.numpy()).max() > 0.01
    other, module, inputs = nets.batch_norm()
    assert not auto_diff(other, module, inputs, auto_weights=False, options=STRICT)


def test_instance_norm_shifts_no_weight(capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, inputs = nets.instance_norm()
    assert assign_weight(layer, module), capsys.readouterr().out
    assert np.array_equal(layer.fc1.weight.numpy().T, module.fc1.weight.detach().numpy())
    assert np.array_equal(layer.fc2.weight.numpy().T, module.fc2.weight.detach().numpy())
    auto_diff(layer, module, inputs, auto_weights=False, options={**STRICT, "diff_phase": "forward"})
    out = capsys.readouterr().out
    assert "Diff found in `Forward Stage`" not in out, out
    assert not auto_diff(*nets.instance_norm(True), options={**STRICT, "diff_phase": "forward"})


def test_one_call_leaves_nothing_for_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"atol": 10}
    assert auto_diff(*nets.gelu(True), options=options)
    assert options == {"atol": 10}
    assert not auto_diff(*nets.gelu(True), options={"atol": 1e-6})
    assert not auto_diff(*nets.gelu(True))
    out = capsys.readouterr().out
    assert "atol: `10`" in out and "atol: `1e-06`" in out and "atol: `0`" in out


def test_unknown_options_are_errors() -> None:
    with pytest.raises(
        TwinscopeError,
        match="'atoll' is not an option of auto_diff\nHint: use one of 'atol', 'rtol', 'diff_phase', 'compare_mode'",
    ):
        auto_diff(*nets.simple(), options={"atoll": 1e-4})
    for options, message in (
        ({"compare_mode": "median"}, "compare_mode='median' is not known\nHint: use one of 'mean', 'strict'"),
        ({"diff_phase": "backwards"}, "diff_phase='backwards' is not known"),
        ({"atol": -1}, "atol=-1 is not a tolerance"),
        ({"rtol": "1e-3"}, "rtol='1e-3' is not a tolerance"),
        ({"single_step": 1}, "single_step=1 is neither True nor False"),
        ([("atol", 1)], "is no dict"),
    ):
        with pytest.raises(TwinscopeError, match=message):
            auto_diff(*nets.simple(), options=options)


def test_a_forward_that_raises_leaves_nothing_on_the_models() -> None:
    layer, module, inputs = nets.simple("raises")

    def hooks() -> list[int]:
        found = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
        return found + [len(p._forward_post_hooks) + len(p._forward_pre_hooks) for p in layer.sublayers(True)]

    before = hooks(), [sorted(vars(m)) for m in (*module.modules(), *layer.sublayers(True))]
    with pytest.raises(RuntimeError, match="the user's own"):
        auto_diff(layer, module, inputs, options=STRICT)
    assert (hooks(), [sorted(vars(m)) for m in (*module.modules(), *layer.sublayers(True))]) == before
    assert all(p.grad is None for p in module.parameters())


def test_a_comparison_leaves_models_as_they_were() -> None:
    layer, module, inputs = nets.simple()
    assert assign_weight(layer, module)
    held = [p.detach().numpy().copy() for p in module.parameters()] + [p.numpy().copy() for p in layer.parameters()]
    assert auto_diff(layer, module, inputs, auto_weights=False, options=STRICT)
    now = [p.detach().numpy() for p in module.parameters()] + [p.numpy() for p in layer.parameters()]
    assert all(np.array_equal(a, b) for a, b in zip(held, now, strict=True))
    assert all(p.grad is None for p in module.parameters()) and all(p.grad is None for p in layer.parameters())


# -- losses, optimizers, steps -----------------------------------------------------------------------------------------


def _losses(second: float = 0.0, modules: bool = False) -> list[Any]:
    from functools import partial

    import paddle
    import torch

    label = nets.normal(100, 10, seed=3)
    if modules:
        return [
            partial(paddle.nn.MSELoss(), label=paddle.to_tensor(label)),
            partial(torch.nn.MSELoss(), target=torch.tensor(label + second)),
        ]

    def paddle_loss(inp: Any, label: Any) -> Any:
        return inp.mean() - paddle.to_tensor(label).mean()

    def torch_loss(inp: Any, label: Any) -> Any:
        return inp.mean() - torch.tensor(label).mean() + second

    return [partial(paddle_loss, label=label), partial(torch_loss, label=label)]


@pytest.mark.parametrize("modules", [False, True])
@pytest.mark.parametrize("phase", ["both", "forward"])
def test_the_loss_is_compared(modules: bool, phase: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"atol": 1e-4, "diff_phase": phase}
    assert auto_diff(*nets.simple(), options=options, loss_fn=_losses(modules=modules)), capsys.readouterr().out
    out = capsys.readouterr().out
    assert "forward stage compared.\n[AutoDiff] loss compared.\n" in out
    assert ("backward stage compared." in out) == (phase == "both")
    assert not auto_diff(*nets.simple(), options=options, loss_fn=_losses(0.5, modules))
    out = capsys.readouterr().out
    assert "*** Diff found in loss, Checkout your loss function! ***" in out
    assert "Not equal to tolerance rtol=1e-07, atol=0.0001" in out


def _optimizers(layer: Any, module: Any, rate: float = 0.001, lambdas: bool = False) -> list[Any]:
    import paddle
    import torch

    first = paddle.optimizer.Adam(learning_rate=0.001, parameters=layer.parameters())
    second = torch.optim.Adam(lr=rate, params=module.parameters())
    return [lambda: first.step(), lambda: second.step()] if lambdas else [first, second]


@pytest.mark.parametrize("lambdas", [False, True])
def test_steps_with_an_optimizer(lambdas: bool, capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, inputs = nets.simple()
    before = module.linear2.weight.detach().numpy().copy()
    optimizer = _optimizers(layer, module, lambdas=lambdas)
    options = {"atol": 1e-3}
    assert auto_diff(layer, module, inputs, options=options, optimizer=optimizer, steps=3), capsys.readouterr().out
    out = capsys.readouterr().out
    assert [f"=Train Step {n}=" in out for n in range(4)] == [True, True, True, False]
    assert out.count("weight and grad compared.") == 3
    assert abs(module.linear2.weight.detach().numpy() - before).max() > 0.002, "three steps of 0.001 were made"
    assert np.allclose(layer.linear2.weight.numpy().T, module.linear2.weight.detach().numpy(), atol=1e-3)


def test_an_optimizer_that_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, inputs = nets.simple()
    optimizer = _optimizers(layer, module, rate=0.01)
    assert not auto_diff(layer, module, inputs, options={"atol": 1e-4}, optimizer=optimizer, steps=3)
    out = capsys.readouterr().out
    assert "backward stage compared." in out and "Train Step 1" not in out
    path = re.search(r"Diff found in model weights, check report `(.*weight_diff\.log)`\.", out)
    assert path is not None and "the optimizer" in out
    text = Path(path.group(1)).read_text()
    assert "After training, weight value is different." in text
    assert "paddle path:\n    SimpleLayer.linear1.weight\ntorch path:\n    SimpleModule.linear1.weight\n" in text
    assert "Not equal to tolerance rtol=1e-07, atol=0.0001" in text


def test_steps_without_an_optimizer_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert auto_diff(*nets.simple(), options={"atol": 1e-4}, steps=5)
    out = capsys.readouterr().out
    assert "Steps is set to `1`, because optimizers are not given." in out
    assert "Train Step 1" not in out
    layer, module, inputs = nets.simple()
    optimizer = _optimizers(layer, module)
    assert auto_diff(
        layer, module, inputs, options={"atol": 1e-4, "diff_phase": "forward"}, optimizer=optimizer, steps=5
    )
    out = capsys.readouterr().out
    assert "Diff_phase is `forward`, steps is set to `1`." in out and "optimizer will not be used" in out


def test_gradients_that_differ_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert not auto_diff(*nets.wrong_gradient(2.0), options={"atol": 1e-6, "rtol": 1e-4})
    path = re.search(r"Diff found in model grad, check report `(.*diff_log/grad_diff\.log)`\.", capsys.readouterr().out)
    assert path is not None
    text = Path(path.group(1)).read_text()
    assert "After training, grad value is different.\nbetween paddle: `Linear(in_features=8, out_features=16, " in text
    assert "Net.a.weight\n" in text and "Net.b.weight" not in text


# -- weights and maps --------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, inputs = nets.simple(width=100)
    assert assign_weight(layer, module) is False
    out = capsys.readouterr().out
    assert out.startswith("[AutoDiff] Assign weight Failed !!!\n")
    assert (
        "Error occured between:\n"
        "    paddle: `Linear(in_features=100, out_features=100, dtype=float32)`\n"
        "            `SimpleLayer.linear2.weight`\n"
        "    torch: `Linear(in_features=100, out_features=10, bias=True)`\n"
        "            `SimpleModule.linear2.weight`\n"
    ) in out
    assert "Shape of paddle param `weight` and torch param `weight` is not the same. [100, 100] vs [100, 10]" in out
    for name in ("Torch", "Paddle"):
        assert f"{name} Model\n=========================\n    Simple" in out
    assert out.count("<---  *** HERE ***") == 2 and out.count("(skip)") == 5
    assert "     |--- Linear    <---  *** HERE ***\n     +--- ReLU  (skip)\n" in out
    assert "NOTICE: layer/module will be marked with `(skip)` for:" in out and "try to use a `LayerMap`" in out
    answer = auto_diff(layer, module, inputs, options=STRICT)
    assert answer == False and "Train Step" not in capsys.readouterr().out  # noqa: E712
    good = nets.simple()
    assert assign_weight(good[0], good[1]) is True
    assert capsys.readouterr().out == "[AutoDiff] Assign weight success !!!\n"


def test_assign_weight_never_raises(capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, _ = nets.simple()
    assert assign_weight(3, module) is False
    assert assign_weight(module, layer) is False
    assert assign_weight(layer, module, LayerMap()) is True
    out = capsys.readouterr().out
    assert "int is not a model of a known framework" in out and "the Torch model comes first" in out


def test_paths_in_trees(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, inputs = nets.simple("flipped")
    monkeypatch.setenv("PADIFF_PATH_LOG", "ON")
    assert not auto_diff(layer, module, inputs, options=STRICT)
    assert "(net) Linear  (SimpleLayer.linear1)" in capsys.readouterr().out
    monkeypatch.setenv("PADIFF_PATH_LOG", "OFF")
    assert not auto_diff(layer, module, inputs, options=STRICT)
    assert "(SimpleLayer.linear1)" not in capsys.readouterr().out


def test_api_check_and_tensor_methods(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def printed() -> str:
        assert not auto_diff(*nets.simple("scaled"), options=STRICT)
        return capsys.readouterr().out.split("Paddle Stacks:")[0]

    with_methods = printed()
    assert "(api) paddle.nn.functional.linear" in with_methods and "(api) paddle.Tensor.add" in with_methods
    monkeypatch.setenv("PADIFF_TENSOR_METHOD", "OFF")
    without = printed()
    assert "(api) paddle.nn.functional.linear" in without and "(api) paddle.Tensor" not in without
    monkeypatch.setenv("PADIFF_API_CHECK", "OFF")
    assert "(api)" not in printed()


def _attention() -> nets.Twins:
    """An attention of one's own on either side: one packs q, k and v, the other has three."""
    import paddle
    import torch

    class Packed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(8, 24)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).chunk(3, -1)
            return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    class Apart(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (paddle.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Any) -> Any:
            return paddle.nn.functional.softmax(self.q(x) @ self.k(x).transpose([0, 2, 1]), -1) @ self.v(x)

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.out = Apart(), paddle.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.out(self.attn(x))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = Packed(), torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.head(self.attention(x))

    return Net(), TorchNet(), nets.given(nets.normal(2, 5, 8))


@pytest.fixture
def packed_init() -> Any:
    from twinscope.compat.padiff import special

    called = []

    def init(layer: Any, module: Any) -> None:
        import paddle

        called.append((layer, module))
        weight, bias = module.qkv.weight.detach().numpy(), module.qkv.bias.detach().numpy()
        for n, part in enumerate((layer.q, layer.k, layer.v)):
            part.weight.set_value(paddle.to_tensor(weight[8 * n : 8 * n + 8].T))
            part.bias.set_value(paddle.to_tensor(bias[8 * n : 8 * n + 8]))

    add_special_init("Apart", "Packed", init)
    yield called
    special.forget("Apart", "Packed")


@pytest.mark.parametrize("turned", [False, True])
def test_a_map_with_a_function_of_the_users(
    turned: bool, packed_init: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    layer, module, inputs = _attention()
    layer_map = LayerMap()
    layer_map.map = {module.attention: layer.attn} if turned else {layer.attn: module.attention}
    assert assign_weight(layer, module, layer_map), capsys.readouterr().out
    assert packed_init == [(layer.attn, module.attention)]
    assert np.array_equal(layer.attn.k.weight.numpy().T, module.attention.qkv.weight.detach().numpy()[8:16])
    assert auto_diff(layer, module, inputs, auto_weights=False, options=STRICT, layer_map=layer_map)
    layer.attn.v.bias.set_value(layer.attn.v.bias + 0.1)
    capsys.readouterr()
    assert not auto_diff(layer, module, inputs, auto_weights=False, options=STRICT, layer_map=layer_map)
    out = capsys.readouterr().out
    assert re.search(r"\(net in map\) Apart    <---  \*\*\* HERE \*\*\*", out), out
    assert re.search(r"\(net in map\) Packed    <---  \*\*\* HERE \*\*\*", out)


def test_auto_finds_what_is_registered_and_prints_it(
    packed_init: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    layer, module, inputs = _attention()
    layer_map = LayerMap()
    layer_map.auto(layer, module)
    out = capsys.readouterr().out
    assert out.startswith("[AutoDiff] auto update LayerMap start searching...\n")
    assert "++++    paddle `Apart` at `Net.attn` <==> torch `Packed` at `TorchNet.attention`." in out
    assert "[AutoDiff] auto update LayerMap SUCCESS!!!" in out
    assert layer_map.map == {layer.attn: module.attention}
    assert auto_diff(layer, module, inputs, options=STRICT, layer_map=layer_map)


def test_auto_finds_batch_norm_and_says_what_has_no_partner(capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, inputs = nets.batch_norm()
    layer_map = LayerMap()
    layer_map.auto(layer, module)
    assert "paddle `BatchNorm2D` at `Sequential.1` <==> torch `BatchNorm2d` at `Sequential.1`." in (
        capsys.readouterr().out
    )
    assert auto_diff(layer, module, inputs, options=STRICT, layer_map=layer_map)
    other = nets.recurrent("gru")[1]
    capsys.readouterr()
    fresh = LayerMap()
    fresh.auto(layer, other)
    out = capsys.readouterr().out
    assert "Error: `BatchNorm2D` at `Sequential.1` has no counterpart in TorchNet." in out and "FAILED!!!" in out
    assert fresh.map == {}


def test_what_is_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, _ = nets.simple()
    assert assign_weight(layer, module)
    before = layer.linear2.weight.numpy().copy()
    module.linear2.weight.data += 1.0
    layer_map = LayerMap()
    layer_map.ignore([layer.linear2, module.linear2])
    assert assign_weight(layer, module, layer_map)
    assert np.array_equal(layer.linear2.weight.numpy(), before), "left alone"
    assert assign_weight(layer, module)
    assert not np.array_equal(layer.linear2.weight.numpy(), before)
    whole = LayerMap()
    whole.ignore_recursively(layer)
    whole.ignore_recursively([module])
    layer.linear1.weight.set_value(layer.linear1.weight * 0)
    assert assign_weight(layer, module, whole)
    assert not layer.linear1.weight.numpy().any(), "with all that is in it"
    classes = LayerMap()
    classes.ignore_class(layer, type(layer.linear1))
    classes.ignore_class(module, type(module.linear1))
    assert assign_weight(layer, module, classes)
    assert not layer.linear1.weight.numpy().any()


def test_misuse_of_a_map() -> None:
    layer, module, inputs = nets.simple()
    layer_map = LayerMap()
    with pytest.raises(TwinscopeError, match=r"LayerMap\.ignore: str is not a model"):
        layer_map.ignore("linear1")
    with pytest.raises(TwinscopeError, match="is no dict"):
        layer_map.map = [(layer, module)]
    with pytest.raises(TwinscopeError, match="is no class"):
        layer_map.ignore_class(layer, "Linear")
    with pytest.raises(TwinscopeError, match="cannot be called"):
        add_special_init("A", "B", 3)
    layer_map.map = {layer.linear1: layer.linear2}
    with pytest.raises(TwinscopeError, match="pairs a Linear with a Linear, which are not a layer of SimpleLayer and"):
        auto_diff(layer, module, inputs, layer_map=layer_map)
    with pytest.raises(TwinscopeError, match="example_inp is not a pair"):
        auto_diff(layer, module, inputs[0])
    with pytest.raises(TwinscopeError, match="example_inp has a Tensor where a dict should be"):
        auto_diff(layer, module, (inputs[0]["x"], inputs[1]))
    with pytest.raises(TwinscopeError, match="loss_fn is not a pair"):
        auto_diff(layer, module, inputs, loss_fn=lambda out: out.mean())
    with pytest.raises(TwinscopeError, match="steps=0 is not a whole number"):
        auto_diff(layer, module, inputs, steps=0)
    with pytest.raises(TwinscopeError, match="the Torch model comes first"):
        auto_diff(module, layer, inputs[::-1])


# -- each call alone ---------------------------------------------------------------------------------------------------

ALONE = {"atol": 1e-5, "rtol": 1e-4, "single_step": True}
PHASES = ("forward", "backward", "both")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "clean",
    [
        nets.simple,
        nets.swapped_order,
        nets.square_subclass,
        nets.detour,
        nets.batch_norm,
        nets.recompute,
        nets.no_parameters,
        lambda: nets.gelu(False),
        lambda: nets.recurrent("gru"),
        lambda: nets.outputs("dataclass"),
        lambda: nets.wrong_gradient(1.0),
    ],
    ids=str,
)
def test_single_step_passes_what_is_the_same(clean: Any, phase: str, capsys: pytest.CaptureFixture[str]) -> None:
    if clean is nets.no_parameters and phase == "backward":
        assert not auto_diff(*clean(), options={**ALONE, "diff_phase": phase}), "nothing compared is never a pass"
        return
    answer = auto_diff(*clean(), options={**ALONE, "diff_phase": phase})
    out = capsys.readouterr().out
    assert answer, out
    assert "SUCCESS !!!" in out and ("forward stage compared." in out) == (phase != "backward")
    assert ("backward stage compared." in out) == (phase != "forward")


@pytest.mark.parametrize("mode", ["mean", "strict"])
@pytest.mark.parametrize("phase", ["forward", "both"])
def test_single_step_finds_a_factor_between_layers(phase: str, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = {**ALONE, "diff_phase": phase, "compare_mode": mode}
    assert not auto_diff(*nets.simple("scaled"), options=options)
    out = capsys.readouterr().out
    assert "Diff found in `Forward Stage`" in out and "mul() in the root (candidate)" in out, out
    assert "Max absolute difference" in out


def test_single_step_finds_other_random_weights(capsys: pytest.CaptureFixture[str]) -> None:
    for phase in PHASES:
        options = {**ALONE, "diff_phase": phase}
        assert not auto_diff(*nets.gelu(False), auto_weights=False, options=options)
        out = capsys.readouterr().out
        assert "Diff found in model weights" in out


def test_single_step_finds_the_function_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert not auto_diff(*nets.gelu(True), options={**ALONE, "diff_phase": "forward"})
    out = capsys.readouterr().out
    assert "Type of layer is : torch.nn.functional.gelu vs paddle.nn.functional.gelu" in out
    assert auto_diff(*nets.gelu(True), options={**ALONE, "atol": 0.1, "diff_phase": "forward"}), "what was asked for"


def test_single_step_finds_a_bug_in_backward_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert auto_diff(*nets.wrong_gradient(2.0), options={**ALONE, "diff_phase": "forward"})
    for phase in ("backward", "both"):
        capsys.readouterr()
        assert not auto_diff(*nets.wrong_gradient(2.0), options={**ALONE, "diff_phase": phase})
        out = capsys.readouterr().out
        assert "Diff found in `Backward Stage`" in out
        marked = [line for line in out.splitlines() if "*** HERE ***" in line]
        assert len(marked) == 2 and any("Gate" in line or "mul" in line for line in marked), out


def test_single_step_makes_one_step_without_an_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, inputs = nets.simple()
    before = layer.linear1.weight.numpy().copy()
    assert assign_weight(layer, module)
    held = layer.linear1.weight.numpy().copy()
    assert auto_diff(layer, module, inputs, False, options=ALONE, optimizer=_optimizers(layer, module), steps=4), (
        capsys.readouterr().out
    )
    assert "In single_step mode, steps is set to `1`." in capsys.readouterr().out
    assert np.array_equal(layer.linear1.weight.numpy(), held) and not np.array_equal(held, before)
