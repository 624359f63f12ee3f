"""TroubleShooter's weights: maps, conversion, comparison, and what its own rules cannot do."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinscope
from twinscope.compat.troubleshooter import arrays, finder, saving, weights
from twinscope.compat.troubleshooter.problems import ArgumentError

EXTENSION = {"torch": ".pth", "paddle": ".pdparams", "mindspore": ".ckpt"}


def layers(framework: str) -> Any:
    """Layers by a common name, as each framework writes them."""
    if framework == "torch":
        from torch import nn

        return {
            "Module": nn.Module,
            "forward": "forward",
            "linear": lambda: nn.Linear(4, 4),
            "conv1d": lambda: nn.Conv1d(2, 3, 3),
            "conv2d": lambda: nn.Conv2d(2, 3, 3),
            "bn1": lambda: nn.BatchNorm1d(4),
            "bn2": lambda: nn.BatchNorm2d(3),
            "bn3": lambda: nn.BatchNorm3d(3),
            "bn_plain": lambda: nn.BatchNorm2d(3, affine=False),
            "ln": lambda: nn.LayerNorm(4),
            "ln_no_bias": lambda: nn.LayerNorm(4, bias=False),
            "ln_plain": lambda: nn.LayerNorm(4, elementwise_affine=False),
            "gn": lambda: nn.GroupNorm(1, 3),
            "embedding": lambda: nn.Embedding(7, 4),
            "prelu": lambda: nn.PReLU(3),
            "lstm": lambda: nn.LSTM(4, 3),
        }
    if framework == "paddle":
        from paddle import nn

        return {
            "Module": nn.Layer,
            "forward": "forward",
            "linear": lambda: nn.Linear(4, 4),
            "conv1d": lambda: nn.Conv1D(2, 3, 3),
            "conv2d": lambda: nn.Conv2D(2, 3, 3),
            "bn1": lambda: nn.BatchNorm1D(4),
            "bn2": lambda: nn.BatchNorm2D(3),
            "bn3": lambda: nn.BatchNorm3D(3),
            "bn_plain": lambda: nn.BatchNorm2D(3, weight_attr=False, bias_attr=False),
            "ln": lambda: nn.LayerNorm(4),
            "ln_no_bias": lambda: nn.LayerNorm(4, bias_attr=False),
            "ln_plain": lambda: nn.LayerNorm(4, weight_attr=False, bias_attr=False),
            "gn": lambda: nn.GroupNorm(1, 3),
            "embedding": lambda: nn.Embedding(7, 4),
            "prelu": lambda: nn.PReLU(3),
            "lstm": lambda: nn.LSTM(4, 3),
        }
    from mindspore import nn

    return {
        "Module": nn.Cell,
        "forward": "construct",
        "linear": lambda: nn.Dense(4, 4),
        "conv1d": lambda: nn.Conv1d(2, 3, 3, pad_mode="valid", has_bias=True),
        "conv2d": lambda: nn.Conv2d(2, 3, 3, pad_mode="valid", has_bias=True),
        "bn1": lambda: nn.BatchNorm1d(4),
        "bn2": lambda: nn.BatchNorm2d(3),
        "bn3": lambda: nn.BatchNorm3d(3),
        "bn_plain": lambda: nn.BatchNorm2d(3, affine=False),
        "ln": lambda: nn.LayerNorm([4], epsilon=1e-5),
        "ln_no_bias": lambda: nn.LayerNorm([4]),  # always has one
        "ln_plain": lambda: nn.LayerNorm([4]),
        "gn": lambda: nn.GroupNorm(1, 3),
        "embedding": lambda: nn.Embedding(7, 4),
        "prelu": lambda: nn.PReLU(3),
        "lstm": lambda: nn.LSTM(4, 3),
    }


def net(framework: str, *names: str) -> Any:
    """A network with these layers, under these names."""
    kit = layers(framework)

    class Net(kit["Module"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name in names:
                setattr(self, name, kit[name]())

    return shaken(Net())


def shaken(model: Any) -> Any:
    """The same with other values in everything, so that nothing agrees by being fresh."""
    given = twinscope.Weights.of(model)
    random = np.random.default_rng(hash(type(model).__name__) % 1000 + len(given.modules))
    tensors = {}
    for held in given.held():
        values = random.standard_normal(held.shape)
        tensors[held.path] = (np.abs(values) + 0.5 if "var" in held.path else values).astype(held.dtype)
    twinscope.copy_weights(twinscope.Weights.from_json(given.to_json(), tensors), model)
    return model


def states(model: Any) -> dict[str, Any]:
    given = twinscope.Weights.of(model)
    read = given.reader()
    return {h.path: np.array(read(h.path)) for h in given.held()}


def agree(reference: Any, candidate: Any) -> bool:
    """Whether every weight of one is in its place in the other."""
    mapping = twinscope.map_weights(reference, candidate)
    read = twinscope.Weights.of(candidate).reader()
    source = twinscope.Weights.of(reference).reader()
    found = [np.array_equal(array, read(path)) for _, path, array in mapping.arrays(source)]
    return bool(found) and all(found)


def saved(model: Any, place: Path) -> tuple[Path, Path]:
    weights.save_net_and_weight_params(model, place)
    framework = twinscope.Weights.of(model).framework
    return place / f"{framework}_net_map.json", place / f"{framework}_troubleshooter_create{EXTENSION[framework]}"


ALL = ("linear", "conv1d", "conv2d", "bn1", "bn2", "bn3", "ln", "gn", "embedding", "prelu", "lstm")


def test_a_networks_files_have_the_documented_names(framework: str, tmp_path: Path) -> None:
    weights.save_net_and_weight_params(net(framework, "linear"), tmp_path / "info")
    assert sorted(p.name for p in (tmp_path / "info").iterdir()) == sorted(
        [
            f"{framework}_net_architecture.txt",
            f"{framework}_net_map.json",
            f"{framework}_troubleshooter_create{EXTENSION[framework]}",
        ]
    )
    weights.save_net_and_weight_params(net(framework, "linear"), tmp_path, f"mine{EXTENSION[framework]}")
    assert (tmp_path / f"mine{EXTENSION[framework]}").is_file()


def test_weights_are_loaded_into_the_other_network(pair: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    reference, candidate = net(pair[0], *ALL), net(pair[1], *ALL)
    if pair[0] == pair[1]:
        pytest.skip("one framework")
    reference = shaken(reference)
    before = states(candidate)
    table = weights.convert_weight_and_load(*saved(reference, tmp_path), candidate)
    assert agree(reference, candidate)
    assert any(not np.array_equal(value, before[name]) for name, value in states(candidate).items())
    out = capsys.readouterr().out
    name = {"mindspore": "MindSpore"}.get(pair[1], pair[1])
    assert "The list of conversion result" in out and f"Parameter name of {name}" in out
    assert len(table.result) >= 20


def test_a_layer_that_does_not_fit_leaves_everything_as_it_was(pair: tuple[str, str], tmp_path: Path) -> None:
    if pair[0] == pair[1]:
        pytest.skip("one framework")
    reference, candidate = net(pair[0], "linear", "ln"), net(pair[1], "linear", "conv2d")
    before = states(candidate)
    with pytest.raises(twinscope.TwinscopeError, match="conv2d"):
        weights.convert_weight_and_load(*saved(reference, tmp_path), candidate)
    assert all(np.array_equal(value, before[name]) for name, value in states(candidate).items())


@pytest.mark.parametrize("layer", ["ln_no_bias", "ln_plain", "bn_plain", "bn3", "conv1d", "prelu"])
def test_layers_that_the_original_cannot_carry(pair: tuple[str, str], layer: str, tmp_path: Path) -> None:
    if pair[0] == pair[1]:
        pytest.skip("one framework")
    if pair[0] == "mindspore" and "_" in layer:
        pytest.skip("MindSpore's layers always hold all of it")
    reference, candidate = net(pair[0], layer, "linear"), net(pair[1], layer, "linear")
    weights.convert_weight_and_load(*saved(reference, tmp_path), candidate)
    assert agree(reference, candidate)
    if layer == "ln_no_bias" and pair[1] == "mindspore":
        assert not states(candidate)["ln_no_bias.beta"].any()


def test_a_layer_norm_that_is_the_whole_network(pair: tuple[str, str], tmp_path: Path) -> None:
    if pair[0] == pair[1]:
        pytest.skip("one framework")
    reference, candidate = (layers(name)["ln"]() for name in pair)
    shaken(reference)
    weights.convert_weight_and_load(*saved(reference, tmp_path), candidate)
    assert agree(reference, candidate)


def bfloat16(framework: str) -> Any:
    made = net(framework, "linear", "ln")
    if framework == "torch":
        import torch

        return made.to(torch.bfloat16)
    if framework == "paddle":
        return made.to(dtype="bfloat16")
    import mindspore

    return made.to_float(mindspore.bfloat16) if False else _cast(made, mindspore)


def _cast(made: Any, mindspore: Any) -> Any:
    for parameter in made.get_parameters():
        parameter.set_dtype(mindspore.bfloat16)
    return made


def test_bfloat16_goes_across(pair: tuple[str, str], tmp_path: Path) -> None:
    if pair[0] == pair[1]:
        pytest.skip("one framework")
    reference, candidate = bfloat16(pair[0]), bfloat16(pair[1])
    weights.convert_weight_and_load(*saved(reference, tmp_path), candidate)
    assert agree(reference, candidate)
    assert {value.dtype.name for value in states(candidate).values()} == {"bfloat16"}


def test_equal_shapes_in_another_order_are_not_swapped(pair: tuple[str, str], tmp_path: Path) -> None:
    if pair[0] == pair[1]:
        pytest.skip("one framework")
    reference, candidate = net(pair[0], "linear", "ln", "conv2d"), net(pair[1], "conv2d", "ln", "linear")
    weights.convert_weight_and_load(*saved(reference, tmp_path), candidate)
    assert agree(reference, candidate)


def test_the_map_file_is_what_the_original_reads(framework: str, tmp_path: Path) -> None:
    path, _ = saved(net(framework, "conv1d", "bn2", "ln", "embedding"), tmp_path)
    names, values = json.loads(path.read_text())
    if framework == "torch":
        assert names["ln.weight"] == "ln.gamma" and names["bn2.running_var"] == "bn2.moving_variance"
        assert names["embedding.weight"] == "embedding.embedding_table" and names["conv1d.bias"] == "conv1d.bias"
        assert values["conv1d.weight"].endswith("trans_conv1d_weight_value")
        assert set(values) == {"conv1d.weight", "twinscope"}
    assert set(names) == set(
        twinscope.read_checkpoint(saved(net(framework, "conv1d", "bn2", "ln", "embedding"), tmp_path)[1])
    )


def loaded(framework: str, model: Any, path: Path) -> None:
    if framework == "torch":
        import torch

        model.load_state_dict(torch.load(path))
    elif framework == "paddle":
        import paddle

        missing, _ = model.set_state_dict(paddle.load(str(path)))
        assert not missing
    else:
        import mindspore

        left, _ = mindspore.load_param_into_net(model, mindspore.load_checkpoint(str(path)))
        assert not left


CONVERTED = ("linear", "conv1d", "conv2d", "bn1", "bn2", "bn3", "ln", "gn", "embedding", "prelu")


def test_a_converted_file_is_read_by_the_other_frameworks_own_loader(pair: tuple[str, str], tmp_path: Path) -> None:
    if pair[0] == pair[1]:
        pytest.skip("one framework")
    reference, candidate = net(pair[0], *CONVERTED), net(pair[1], *CONVERTED)
    target = tmp_path / f"converted{EXTENSION[pair[1]]}"
    path, file = saved(reference, tmp_path)
    weights.convert_weight(path, file, target)
    loaded(pair[1], candidate, target)
    assert agree(reference, candidate)


def test_a_map_and_a_file_of_two_networks_are_refused(framework: str, tmp_path: Path) -> None:
    path, _ = saved(net(framework, "linear"), tmp_path / "a")
    _, file = saved(net(framework, "linear", "conv2d"), tmp_path / "b")
    with pytest.raises(ArgumentError, match=r"conv2d\.weight is not in the map"):
        weights.convert_weight(path, file, tmp_path / "c.ckpt")
    assert not (tmp_path / "c.ckpt").exists()


def test_names_of_ones_own(framework: str, tmp_path: Path) -> None:
    model = net(framework, "linear")
    names, _ = weights.get_weight_map(model, weight_name_prefix="network")
    assert set(names.values()) == {"network.linear.weight", "network.linear.bias"}
    names, _ = weights.get_weight_map(
        model, custom_name_func=lambda names: {own: other.replace("linear", "fc") for own, other in names.items()}
    )
    assert set(names.values()) == {"fc.weight", "fc.bias"}
    with pytest.raises(ArgumentError, match="cannot be called"):
        weights.get_weight_map(model, custom_name_func=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="knows no 'pt_nett'"):
        weights.get_weight_map(model, pt_nett=model)


def test_the_maps_own_names_are_followed_in_the_other_network(pair: tuple[str, str], tmp_path: Path) -> None:
    if pair[0] == pair[1]:
        pytest.skip("one framework")
    kit = layers(pair[1])

    class Renamed(kit["Module"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one = kit["linear"]()
            self.two = kit["linear"]()

    class Own(layers(pair[0])["Module"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a = layers(pair[0])["linear"]()
            self.b = layers(pair[0])["linear"]()

    reference, candidate = Own(), Renamed()
    _, file = saved(reference, tmp_path)
    crossed = {"a": "two", "b": "one"}
    path = tmp_path / "crossed.json"
    weights.get_weight_map(
        reference,
        weight_map_save_path=path,
        custom_name_func=lambda names: {own: crossed[other[0]] + other[1:] for own, other in names.items()},
    )
    weights.convert_weight_and_load(path, file, candidate)
    assert np.array_equal(states(reference)["a.bias"], states(candidate)["two.bias"])
    assert np.array_equal(states(reference)["b.bias"], states(candidate)["one.bias"])
    with pytest.raises(ArgumentError, match="no such weights"):
        weights.get_weight_map(reference, weight_map_save_path=path, weight_name_prefix="nowhere")
        weights.convert_weight_and_load(path, file, candidate)


def test_a_map_that_the_original_wrote(tmp_path: Path) -> None:
    """As TroubleShooter 1.0.18 writes it: names, and functions of values by their dotted name."""
    given = [
        {"conv.weight": "conv.weight", "ln.weight": "ln.gamma", "ln.bias": "ln.beta"},
        {"conv.weight": "troubleshooter.migrator.mapping_relation.weight_adapter.trans_conv1d_weight_value"},
    ]
    (tmp_path / "map.json").write_text(json.dumps(given))
    tensors = {
        "conv.weight": np.arange(18, dtype=np.float32).reshape(3, 2, 3),
        "ln.weight": np.ones(4, np.float32),
        "ln.bias": np.zeros(4, np.float32),
    }
    twinscope.save_checkpoint(tensors, tmp_path / "net.safetensors")
    weights.convert_weight(tmp_path / "map.json", tmp_path / "net.safetensors", tmp_path / "net.ckpt")
    found = twinscope.read_checkpoint(tmp_path / "net.ckpt")
    assert sorted(found) == ["conv.weight", "ln.beta", "ln.gamma"] and found["conv.weight"].shape == (3, 2, 1, 3)
    weights.convert_weight(
        weight_map=given, pt_param_dict=tensors, ms_file_save_path=tmp_path / "again.ckpt", print_conv_info=False
    )
    assert (tmp_path / "again.ckpt").read_bytes() == (tmp_path / "net.ckpt").read_bytes()
    given[1]["ln.weight"] = "os.system"
    with pytest.raises(ArgumentError, match=r"no function of values 'os\.system'"):
        weights.convert_weight(
            weight_map=given, pt_file_path=tmp_path / "net.safetensors", ms_file_save_path=tmp_path / "c.ckpt"
        )


def test_a_map_of_the_original_is_loaded_into_a_network(framework: str, tmp_path: Path) -> None:
    if framework != "mindspore":
        pytest.skip("the original knows MindSpore networks alone")
    candidate = net("mindspore", "conv1d", "ln")
    names = {
        "conv1d.weight": "conv1d.weight",
        "conv1d.bias": "conv1d.bias",
        "ln.weight": "ln.gamma",
        "ln.bias": "ln.beta",
    }
    values = {"conv1d.weight": weights._WIDEN}
    random = np.random.default_rng(3)
    tensors = {
        "conv1d.weight": random.standard_normal((3, 2, 3)).astype("float32"),
        "conv1d.bias": random.standard_normal(3).astype("float32"),
        "ln.weight": random.standard_normal(4).astype("float32"),
        "ln.bias": random.standard_normal(4).astype("float32"),
    }
    (tmp_path / "map.json").write_text(json.dumps([names, values]))
    twinscope.save_checkpoint(tensors, tmp_path / "net.safetensors")
    weights.convert_weight_and_load(tmp_path / "map.json", tmp_path / "net.safetensors", candidate)
    found = states(candidate)
    assert np.array_equal(found["conv1d.weight"][:, :, 0], tensors["conv1d.weight"])
    assert np.array_equal(found["ln.gamma"], tensors["ln.weight"])


def test_two_checkpoints_side_by_side(framework: str, tmp_path: Path, capsys: Any) -> None:
    first, second = net(framework, "linear", "ln"), net(framework, "linear", "ln")
    a, b = (tmp_path / f"{name}{EXTENSION[framework]}" for name in "ab")
    twinscope.save_checkpoint(first, a)
    twinscope.save_checkpoint(first, b)
    table = weights.compare_ms_ckpt(a, b)
    assert all(table.result) and len(table.result) == 4
    assert "The list of comparison results for shapes" in capsys.readouterr().out
    tensors = {name: np.array(value) for name, value in twinscope.read_checkpoint(a).items()}
    tensors["linear.bias"][1] += 1
    table = weights.compare_ms_ckpt(a, target_ckpt_dict=tensors, print_level=2)
    assert [row.orig for row in table.result if not row] == ["linear.bias"]
    assert "linear.weight" not in capsys.readouterr().out
    assert weights.compare_ms_ckpt(a, target_ckpt_dict=tensors, atol=2.0).result[1]
    with pytest.raises(ArgumentError, match="knows no 'attol'"):
        weights.compare_ms_ckpt(a, b, attol=1)
    del second


def test_a_checkpoint_beside_its_conversion(pair: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    if pair[0] == pair[1]:
        pytest.skip("one framework")
    reference, candidate = net(pair[0], "linear", "ln", "conv1d"), net(pair[1], "linear", "ln", "conv1d")
    path, file = saved(reference, tmp_path)
    weights.convert_weight_and_load(path, file, candidate)
    other = tmp_path / f"other{EXTENSION[pair[1]]}"
    twinscope.save_checkpoint(candidate, other)
    table = weights.compare_pth_and_ckpt(path, file, other)
    assert len(table.result) == 6 and all(table.result)
    name = {"mindspore": "MindSpore"}.get(pair[0], pair[0])
    assert f"Parameter name of {name}" in capsys.readouterr().out
    twinscope.save_checkpoint(shaken(net(pair[1], "linear", "ln", "conv1d", "conv2d")), other, overwrite=True)
    table = weights.compare_pth_and_ckpt(path, file, other)
    assert not any(table.result) and "conv2d.weight" in table


# -- networks side by side ---------------------------------------------------------------------------------------------


def running(framework: str, *, wrong: bool = False) -> Any:
    kit = layers(framework)

    class Net(kit["Module"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = kit["linear"]()
            self.ln = kit["ln"]()

        def forward(self, x: Any) -> Any:
            return self.ln(self.linear(x)) * (1.01 if wrong else 1.0)

        def construct(self, x: Any) -> Any:
            return self.forward(x)

    return Net()


def test_networks_are_compared_on_made_up_inputs(pair: tuple[str, str], capsys: Any) -> None:
    first, second = running(pair[0]), running(pair[1])
    answer = finder.NetDifferenceFinder(first, second).compare(
        auto_inputs={"input": (((2, 4), np.float32),), "num": 2}, rtol=1e-4, atol=1e-4
    )
    out = capsys.readouterr().out
    assert answer == True and len(answer.result) == 2 and all(answer.result)  # noqa: E712 - as users write it
    assert "The comparison results of Net" in out and "step_1_out" in out


def sloppy_norm(framework: str) -> Any:
    nn = importlib.import_module(f"{framework}.nn")
    if framework == "torch":
        return nn.LayerNorm(4, eps=1e-3)
    return nn.LayerNorm(4, epsilon=1e-3) if framework == "paddle" else nn.LayerNorm([4], epsilon=1e-3)


def test_the_result_sees_what_a_tolerance_lets_pass(pair: tuple[str, str], capsys: Any) -> None:
    first, second = running(pair[0]), running(pair[1])
    second.ln = sloppy_norm(pair[1])
    x = np.random.default_rng(0).standard_normal((2, 4)).astype("float32")
    answer = finder.NetDifferenceFinder(first, second).compare((x,), rtol=0.0, atol=0.1)
    assert answer and not answer.result[0]
    assert "ln" in str(answer.result[0].first_divergence)


def test_a_difference_of_networks_is_found(pair: tuple[str, str], capsys: Any) -> None:
    first, second = running(pair[0]), running(pair[1], wrong=True)
    x = np.random.default_rng(0).standard_normal((2, 4)).astype("float32")
    answer = finder.NetDifferenceFinder(first, second, print_level=0).compare(inputs=(x,))
    assert not answer and not answer.result[0]
    assert finder.NetDifferenceFinder(first, second, print_level=0).compare(inputs=[(x,), (x,)], atol=1.0)
    assert "Start" not in capsys.readouterr().out


def test_networks_keep_their_weights_when_told_so(pair: tuple[str, str]) -> None:
    first, second = running(pair[0]), running(pair[1])
    before = states(second)
    x = np.ones((2, 4), np.float32)
    assert not finder.NetDifferenceFinder(first, second, print_level=0, auto_conv_ckpt=0).compare((x,), atol=1e-6)
    assert all(np.array_equal(value, before[name]) for name, value in states(second).items())
    with pytest.raises(ArgumentError, match="knows no 'auto_conv'"):
        finder.NetDifferenceFinder(first, second, auto_conv=0)
    with pytest.raises(ArgumentError, match="tuple"):
        finder.NetDifferenceFinder(first, second).compare(x)


# -- tensors -----------------------------------------------------------------------------------------------------------


def tensor(framework: str, array: Any) -> Any:
    module = importlib.import_module(framework)
    return {"torch": "tensor", "paddle": "to_tensor", "mindspore": "Tensor"} and getattr(
        module, {"torch": "tensor", "paddle": "to_tensor", "mindspore": "Tensor"}[framework]
    )(array)


def test_tensors_are_saved_in_order(framework: str, tmp_path: Path) -> None:
    one, two = np.arange(3, dtype=np.float32), np.ones((2, 2), np.float32)
    saving.save(f"{tmp_path}/deep/out", tensor(framework, one), suffix="fwd")
    saving.save(f"{tmp_path}/all.npy", [tensor(framework, one), None, {"k": tensor(framework, two)}])
    names = sorted(p.name for p in tmp_path.rglob("*.npy"))
    assert [n.split("_", 1)[1] for n in names] == ["out_fwd.npy", "all.0.npy", "all.2.k.npy"]
    numbers = [int(n.split("_", 1)[0]) for n in names]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert np.array_equal(np.load(next(tmp_path.rglob("*all.2.k.npy"))), two)
    with pytest.raises(ArgumentError, match="no tensor"):
        saving.save(f"{tmp_path}/x", ["text"])
    with pytest.raises(ArgumentError, match="output_mode"):
        saving.save(f"{tmp_path}/x", tensor(framework, one), output_mode="np")


def test_tensors_are_printed(framework: str, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    saving.save("out", tensor(framework, np.ones(2, np.float32)), output_mode="print")
    assert "_TS_SAVE_NAME:out" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_gradients_are_saved_as_they_come_by(framework: str, tmp_path: Path) -> None:
    model = running(framework)

    def loss(x: Any) -> Any:
        hidden = saving.save_grad(f"{tmp_path}/hidden", model.linear(x))
        return (hidden * hidden).sum()

    x = tensor(framework, np.ones((2, 4), np.float32))
    if framework == "mindspore":
        import mindspore

        mindspore.value_and_grad(loss, None, model.trainable_params())(x)
    else:
        loss(x).backward()
    (file,) = tmp_path.glob("*.npy")
    assert file.name.endswith("_hidden_backward.npy")
    assert np.allclose(np.load(file), 2 * twinscope.outputs_of(model.linear, np.ones((2, 4), np.float32))["out"])
    with pytest.raises(ArgumentError, match="no tensor"):
        saving.save_grad(f"{tmp_path}/x", 3)


# -- signatures --------------------------------------------------------------------------------------------------------

SIGNATURES = {
    "save_net_and_weight_params": "(net, path=None, weight_params_filename=None)",
    "convert_weight_and_load": "(weight_map_path, pt_file_path, net)",
    "get_weight_map": "(pt_net=None, weight_map_save_path=None, weight_name_prefix=None, custom_name_func=None, "
    "print_map=False, **kwargs)",
    "convert_weight": "(weight_map_path=None, pt_file_path=None, ms_file_save_path=None, **kwargs)",
    "compare_ms_ckpt": "(orig_file_path=None, target_file_path=None, **kwargs)",
    "compare_pth_and_ckpt": "(weight_map_path, pt_file_path, ms_file_path, **kwargs)",
    "compare_npy_dir": "(orig_dir, target_dir, rtol=0.0001, atol=0.0001, equal_nan=False, *, name_map_list=None, "
    "compare_shape=False, output_file=None, num_processes=None, **kwargs)",
    "compare_grads_dir": "(orig_dir, target_dir, rtol=0.0001, atol=0.0001, equal_nan=False, compare_shape=True, "
    "output_file=None, num_processes=None)",
    "compare_list_dir": "(orig_dir, target_dir, rtol=0.0001, atol=0.0001, equal_nan=False, compare_shape=False, "
    "output_file=None, num_processes=None)",
    "compare_dict_dir": "(orig_dir, target_dir, rtol=0.0001, atol=0.0001, equal_nan=False, compare_shape=False, "
    "output_file=None, num_processes=None)",
    "save": "(file, data, suffix=None, output_mode='npy')",
    "save_grad": "(file, data, suffix='backward', output_mode='npy')",
    "NetDifferenceFinder": "(pt_net, ms_net, print_level=1, **kwargs)",
    "NetDifferenceFinder.compare": "(self, inputs=None, auto_inputs=None, rtol=0.0001, atol=0.0001, equal_nan=False)",
}


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_documented_signatures(name: str) -> None:
    import troubleshooter
    from troubleshooter import migrator

    found: Any = migrator
    for part in name.split("."):
        found = getattr(found, part)
    if name in ("save", "save_grad"):
        assert getattr(troubleshooter, name) is found
    plain = inspect.signature(found)
    bare = plain.replace(
        parameters=[p.replace(annotation=p.empty) for p in plain.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )
    assert str(bare) == SIGNATURES[name]
    assert found.__module__ in (arrays.__name__, finder.__name__, saving.__name__, weights.__name__)
