"""A model's weights written down for where its framework is not; tensors, outputs and gradients as numpy arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinscope
from zoo.kits import kit


def small(framework: str) -> Any:
    k = kit(framework)

    class Net(k.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = k.linear(3, 4)
            self.norm = k.layer_norm(4)
            self.again = self.first

        def forward(self, x: Any) -> Any:
            h = self.norm(self.first(x))
            return {"h": h, "y": k.tanh(h)}

    return Net()


def tensor(framework: str, array: Any) -> Any:
    import importlib

    module = importlib.import_module(framework)
    if framework == "torch":
        return module.tensor(array)
    return module.to_tensor(array) if framework == "paddle" else module.Tensor(array)


EXTENSION = {"torch": ".pth", "paddle": ".pdparams", "mindspore": ".ckpt"}


def load(framework: str, model: Any, path: Path) -> None:
    if framework == "torch":
        import torch

        model.load_state_dict(torch.load(path))
    elif framework == "paddle":
        import paddle

        missing, unexpected = model.set_state_dict(paddle.load(str(path)))
        assert not missing and not unexpected
    else:
        import mindspore

        left, unused = mindspore.load_param_into_net(model, mindspore.load_checkpoint(str(path)))
        assert not left and not unused


def states(model: Any) -> dict[str, Any]:
    weights = twinscope.Weights.of(model)
    read = weights.reader()
    return {h.path: np.array(read(h.path)) for h in weights.held()}


def test_a_saved_checkpoint_is_read_by_the_frameworks_own_loader(framework: str, tmp_path: Path) -> None:
    model, other = small(framework), small(framework)
    path = tmp_path / f"model{EXTENSION[framework]}"
    names = twinscope.save_checkpoint(model, path)
    before = states(other)
    load(framework, other, path)
    after, wanted = states(other), states(model)
    assert not np.array_equal(before["first.weight"], wanted["first.weight"])
    assert all(np.array_equal(after[name], wanted[name]) for name in wanted)
    assert len(names) == len(set(names)) >= len(wanted)


def test_a_checkpoint_is_not_written_over_unless_told_so(framework: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{EXTENSION[framework]}"
    twinscope.save_checkpoint(small(framework), path)
    with pytest.raises(twinscope.TwinscopeError, match="is there already"):
        twinscope.save_checkpoint(small(framework), path)
    twinscope.save_checkpoint(small(framework), path, overwrite=True)


def test_a_file_of_another_framework_is_refused(framework: str, tmp_path: Path) -> None:
    other = ".pth" if framework != "torch" else ".ckpt"
    with pytest.raises(twinscope.TwinscopeError, match="would be a file of"):
        twinscope.save_checkpoint(small(framework), tmp_path / f"model{other}")
    assert not list(tmp_path.iterdir())


def test_buffers_that_are_not_saved_are_left_out(framework: str, tmp_path: Path) -> None:
    if framework == "mindspore":
        pytest.skip("has no such buffers")
    model = small(framework)
    own = tensor(framework, np.zeros(3, np.float32))
    if framework == "torch":
        model.register_buffer("scratch", own, persistent=False)
        model.register_buffer("kept", own + 1)
    else:
        model.register_buffer("scratch", own, persistable=False)
        model.register_buffer("kept", own + 1)
    names = twinscope.save_checkpoint(model, tmp_path / f"m{EXTENSION[framework]}")
    assert "kept" in names and "scratch" not in names


def test_weights_written_down_are_copied_where_the_model_is_not(framework: str, tmp_path: Path) -> None:
    model, other = small(framework), small(framework)
    path = tmp_path / f"model{EXTENSION[framework]}"
    twinscope.save_checkpoint(model, path)
    text = json.dumps(twinscope.Weights.of(model).to_json())
    described = twinscope.Weights.from_json(json.loads(text), twinscope.read_checkpoint(path))
    twinscope.copy_weights(described, other)
    wanted = states(model)
    assert all(np.array_equal(value, wanted[name]) for name, value in states(other).items())


def test_tensors_of_another_model_are_refused(framework: str) -> None:
    model = small(framework)
    given = twinscope.Weights.of(model).to_json()
    tensors = {name: np.zeros((9, 9), np.float32) for name in states(model)}
    with pytest.raises(twinscope.TwinscopeError, match=r"is \[4\] in the model, and \[9, 9\] among the tensors"):
        twinscope.Weights.from_json(given, tensors).reader()("first.bias")
    with pytest.raises(twinscope.TwinscopeError, match="is not among the tensors"):
        twinscope.Weights.from_json(given, {}).reader()("first.bias")


@pytest.mark.parametrize("damage", [{}, {"modules": 3}, {"framework": 1}, {"stored": {"a": 2}}, {"modules": [{}]}])
def test_a_damaged_description_is_refused(framework: str, damage: dict[str, Any]) -> None:
    given = {} if not damage else {**twinscope.Weights.of(small(framework)).to_json(), **damage}
    with pytest.raises(twinscope.TwinscopeError):
        twinscope.Weights.from_json(given, {})


def test_outputs_by_name_and_the_model_as_it_was(framework: str) -> None:
    model = small(framework)
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("float32")
    before = states(model)
    found = twinscope.outputs_of(model, x)
    assert sorted(found) == ["out.h", "out.y"]
    assert np.allclose(np.tanh(found["out.h"]), found["out.y"], atol=1e-6)
    assert not np.allclose(found["out.h"], twinscope.outputs_of(model, x + 1)["out.h"])
    assert all(np.array_equal(value, before[name]) for name, value in states(model).items())


def test_values_of_tensors(framework: str) -> None:
    array = np.arange(6, dtype="float32").reshape(2, 3)
    found = tensor(framework, array)
    assert twinscope.is_tensor(found) and not twinscope.is_tensor(array)
    assert np.array_equal(twinscope.as_array(found), array)
    with pytest.raises(twinscope.TwinscopeError, match="no tensor"):
        twinscope.as_array(object())


def test_the_gradient_of_a_tensor_on_its_way(framework: str) -> None:
    k, seen = kit(framework), []
    model = small(framework)
    x = np.ones((2, 3), np.float32)

    def loss(x: Any) -> Any:
        h = k.tanh(model.first(x))
        assert twinscope.watch_gradient(h, seen.append) is not None
        return (h * h).mean()

    if framework == "mindspore":
        import mindspore

        mindspore.value_and_grad(loss, None, model.trainable_params())(tensor(framework, x))
    else:
        loss(tensor(framework, x)).backward()
    assert len(seen) == 1 and isinstance(seen[0], np.ndarray)
    hidden = np.tanh(twinscope.outputs_of(model.first, x)["out"])
    assert np.allclose(seen[0], 2 * hidden / hidden.size, atol=1e-6)
    with pytest.raises(twinscope.TwinscopeError, match="no tensor"):
        twinscope.watch_gradient(3, seen.append)
