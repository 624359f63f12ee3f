"""PPAutoDiff as its document has it: seed outputs in success and in failure, each with its negative twin."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

import numpy as np
import pytest

from compat import padiff_nets as nets
from PPAutoDiff import autodiff
from twinscope import Overall, TwinscopeError

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not {"torch", "paddle"} <= set(sys.modules), reason="of paddle and torch"),
]


def call(twins: nets.Twins, **options: Any) -> Any:
    layer, module, (given, _) = twins
    return autodiff(layer, module, given["x"].numpy(), **{"auto_weights": True, "options": {"atol": 1e-4}, **options})


def test_the_signature_is_the_documents() -> None:
    bare = [p.replace(annotation=p.empty) for p in inspect.signature(autodiff).parameters.values()]
    assert str(inspect.Signature(bare)) == "(layer, module, example_inp, auto_weights=True, options={})"


def test_success_reads_as_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(nets.simple())
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Max output diff is \d\S*", lines[0]) and float(lines[0].split()[-1]) < 1e-4
    assert lines[1:] == ["forward 4 steps compared.", "bacward 4 steps compared.", "SUCCESS !!!"]
    assert answer and answer.result.verdict is Overall.SAME


def test_failure_reads_as_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(nets.simple(), auto_weights=False)
    out = capsys.readouterr().out
    assert not answer and answer.result.verdict is Overall.DIFFERENT
    assert out.startswith("Max output diff is ")
    assert (
        "After training, weight value is different for param `weight`.\n"
        "paddle: at `Linear(in_features=100, out_features=100, dtype=float32)`.\n"
        "torch: at `Linear(in_features=100, out_features=100, bias=True)`.\n\n"
        "After training, grad value is different for param `weight`.\n"
    ) in out
    assert "After training, weight value is different for param `bias`." in out
    assert (
        "FAILED !!!\n"
        "    Diff found in `Forward  Stagy` in step: 0, net_id is 1 vs 1\n"
        "    Type of layer is  : <class 'torch.nn.modules.linear.Linear'> vs "
        "<class 'paddle.nn.layer.common.Linear'>\n\n"
        "Not equal to tolerance rtol=1e-07, atol=0.0001\n\n"
        "Mismatched elements: "
    ) in out
    assert re.search(r"Max absolute difference: \d.*\nMax relative difference: \d.*\n x: array\(\[\[", out)
    paddle_stack, torch_stack = out.split("Paddle Stacks:\n=========================\n")[1].split(
        "Torch  Stacks:\n=========================\n"
    )
    for stack in (paddle_stack, torch_stack):
        assert re.search(r"File \S*padiff_nets\.py: \d+    forward\n +x = self\.linear1\(x\)", stack)
        assert re.search(r"File \S*test_ppautodiff\.py: \d+    call\n", stack), "down to the script"
        assert "twinscope" not in stack
    assert "SUCCESS" not in out and "steps compared" not in out


def test_a_difference_in_the_backward_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(nets.wrong_gradient(1.0), options={"atol": 1e-5})
    assert "SUCCESS !!!" in capsys.readouterr().out
    assert not call(nets.wrong_gradient(3.0), options={"atol": 1e-5})
    out = capsys.readouterr().out
    assert re.search(r"forward \d steps compared\.\nFAILED !!!\n    Diff found in `Backward Stagy` in step: \d", out)
    assert "TorchGate'> vs <class" in out, "the place itself"
    assert "After training, grad value is different for param `weight`." in out
    assert "weight value is different for param" not in out.replace("After training, grad", "")


def test_both_models_get_the_same_random_weights(capsys: pytest.CaptureFixture[str]) -> None:
    layer, module, (given, _) = nets.simple()
    before = module.linear1.weight.detach().numpy().copy()
    assert autodiff(layer, module, given["x"].numpy(), options={"atol": 1e-3})
    after = module.linear1.weight.detach().numpy()
    assert not np.array_equal(before, after)
    assert np.array_equal(layer.linear1.weight.numpy().T, after)
    layer, module, (given, _) = nets.simple()
    before = module.linear1.weight.detach().numpy().copy()
    assert not autodiff(layer, module, given["x"].numpy(), auto_weights=False)
    assert np.array_equal(before, module.linear1.weight.detach().numpy())


@pytest.mark.parametrize("bug", ["flipped", "scaled", "detached"])
def test_planted_bugs_are_found(bug: str) -> None:
    assert not call(nets.simple(bug))


def test_misuse_is_an_error() -> None:
    with pytest.raises(TwinscopeError, match="'rtoll' is not an option of autodiff\nHint: use one of 'atol'"):
        call(nets.simple(), options={"rtoll": 1})
    layer, module, (given, _) = nets.simple()
    with pytest.raises(TwinscopeError, match="the Torch model comes first"):
        autodiff(module, layer, given["x"].numpy())
    with pytest.raises(TwinscopeError, match="is not a model of a known framework"):
        autodiff(3, module, given["x"].numpy())
