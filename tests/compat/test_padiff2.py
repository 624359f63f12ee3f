"""PaDiff 0.2 as its documents have it, and right where the original is wrong. Every case has its negative twin."""

from __future__ import annotations

import inspect
import re
import sys
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
