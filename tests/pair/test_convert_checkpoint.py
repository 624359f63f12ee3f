"""Checkpoints of a small network carried between frameworks: loaded by the real one, equal, and the same when back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope.adapters._registry import by_name
from twinscope.errors import WeightError
from twinscope.weights.convert import convert_checkpoint
from twinscope.weights.transforms import Transpose
from twinscope.weights.weightmap import Entry, Held, WeightMap

pytestmark = pytest.mark.filterwarnings("ignore")

EXTENSION = {"torch": ".pth", "paddle": ".pdparams", "mindspore": ".ckpt"}

#: The same parameters in the same order, by each framework's names.
NAMES = {
    "torch": "fc.weight fc.bias conv.weight conv.bias norm.weight norm.bias norm.running_mean norm.running_var".split(),
    "paddle": "fc.weight fc.bias conv.weight conv.bias norm.weight norm.bias norm._mean norm._variance".split(),
    "mindspore": (
        "fc.weight fc.bias conv.weight conv.bias norm.gamma norm.beta norm.moving_mean norm.moving_variance".split()
    ),
}


def network(framework: str) -> Any:
    """A Linear of 3 to 4, a convolution and a batch norm, with random contents."""
    module = sys.modules[framework]
    nn = module.nn
    base = {"torch": "Module", "paddle": "Layer", "mindspore": "Cell"}[framework]

    class Net(getattr(nn, base)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(3, 4) if framework == "mindspore" else nn.Linear(3, 4)
            if framework == "paddle":
                self.conv = nn.Conv2D(3, 4, 3)
                self.norm = nn.BatchNorm2D(4)
            else:
                self.conv = nn.Conv2d(3, 4, 3, **({"has_bias": True} if framework == "mindspore" else {}))
                self.norm = nn.BatchNorm2d(4)

    net = Net()
    adapter = by_name(framework)
    rng = np.random.default_rng()
    for info, part in adapter.modules(net):
        for p in info.params:
            if p.meta.dtype == "float32":
                adapter.assign(adapter.state(part)[p.name], rng.standard_normal(p.meta.shape).astype(np.float32))
    return net


def contents(framework: str, net: Any) -> dict[str, Any]:
    adapter = by_name(framework)
    return {
        info.param_path(p.name): np.array(adapter.to_numpy(adapter.state(part)[p.name]))
        for info, part in adapter.modules(net)
        for p in info.params
    }


def side(framework: str, net: Any) -> tuple[Held, ...]:
    found = contents(framework, net)
    held = [Held(name, found[name].shape, "float32") for name in NAMES[framework]]
    if framework == "torch":
        held.append(Held("norm.num_batches_tracked", (), "int64", buffer=True, trainable=False, needed=False))
    if framework == "mindspore":
        names = {id(p): p.name for p in net.get_parameters()}
        parts = dict(net.parameters_and_names())
        assert set(parts) >= {h.path for h in held}
        held = [Held(h.path, h.shape, h.dtype, stored=names[id(parts[h.path])]) for h in held]
    return tuple(held)


def mapping_of(pair: tuple[str, str], nets: tuple[Any, Any]) -> WeightMap:
    turned = (pair[0] == "paddle") != (pair[1] == "paddle")
    entries = [
        Entry((a,), (b,), (Transpose(),) if turned and a == "fc.weight" else ())
        for a, b in zip(NAMES[pair[0]], NAMES[pair[1]], strict=True)
    ]
    return WeightMap(pair, ("Net", "Net"), side(pair[0], nets[0]), side(pair[1], nets[1]), tuple(entries))


def save(framework: str, net: Any, path: Path) -> None:
    module = sys.modules[framework]
    if framework == "mindspore":
        plain = {} if path.suffix == ".ckpt" else {"format": "safetensors"}
        module.save_checkpoint(net, str(path), **plain)
    elif path.suffix == ".safetensors":
        from importlib import import_module

        state = {name: t.contiguous() for name, t in net.state_dict().items()}
        import_module(f"safetensors.{framework}").save_file(state, str(path))
    else:
        module.save(net.state_dict(), str(path))


def load(framework: str, net: Any, path: Path) -> None:
    """As its users load a checkpoint, strictly."""
    module = sys.modules[framework]
    plain = path.suffix != ".safetensors"
    if framework == "torch":
        if plain:
            state = module.load(path, weights_only=True)
        else:
            import safetensors.torch

            state = safetensors.torch.load_file(path)
        net.load_state_dict(state)
    elif framework == "paddle":
        missing, unexpected = net.set_state_dict(module.load(str(path), **({} if plain else {"safetensors": True})))
        assert not missing and not unexpected
    else:
        found = module.load_checkpoint(str(path), format="ckpt" if plain else "safetensors")
        assert module.load_param_into_net(net, found, strict_load=True) == ([], [])


@pytest.mark.parametrize("target", ["own", "safetensors"])
@pytest.mark.parametrize("source", ["own", "safetensors"])
def test_the_target_framework_loads_it(pair: tuple[str, str], source: str, target: str, tmp_path: Path) -> None:
    reference, candidate = (network(framework) for framework in pair)
    mapping = mapping_of(pair, (reference, candidate))
    start = tmp_path / f"a{EXTENSION[pair[0]] if source == 'own' else '.safetensors'}"
    goal = tmp_path / f"b{EXTENSION[pair[1]] if target == 'own' else '.safetensors'}"
    save(pair[0], reference, start)
    before = contents(pair[0], reference)
    assert not np.array_equal(before["conv.weight"], contents(pair[1], candidate)["conv.weight"])
    report = convert_checkpoint(start, goal, mapping, reverse=False)
    assert len(report) == 8
    load(pair[1], candidate, goal)
    after = contents(pair[1], candidate)
    for entry in mapping.entries:
        wanted = before[entry.reference[0]]
        wanted = wanted.T if entry.transform else wanted
        assert np.array_equal(after[entry.candidate[0]], wanted), entry

    back = tmp_path / f"c{start.suffix}"
    convert_checkpoint(goal, back, mapping, reverse=True)
    load(pair[0], other := network(pair[0]), back)
    assert all(np.array_equal(contents(pair[0], other)[name], before[name]) for name in NAMES[pair[0]])


def test_the_direction_is_found_where_the_files_say_it(pair: tuple[str, str], tmp_path: Path) -> None:
    reference, candidate = (network(framework) for framework in pair)
    mapping = mapping_of(pair, (reference, candidate))
    paths = [tmp_path / f"{i}{EXTENSION[framework]}" for i, framework in enumerate(pair)]
    for framework, net, path in zip(pair, (reference, candidate), paths, strict=True):
        save(framework, net, path)
    there = convert_checkpoint(paths[0], tmp_path / f"b{EXTENSION[pair[1]]}", mapping)
    assert there.direction == "reference to candidate"
    if pair[0] != pair[1]:
        back = convert_checkpoint(paths[1], tmp_path / f"c{EXTENSION[pair[0]]}", mapping)
        assert back.direction == "candidate to reference"


def test_a_checkpoint_of_another_model_is_refused(pair: tuple[str, str], tmp_path: Path) -> None:
    nets = (network(pair[0]), network(pair[1]))
    mapping = mapping_of(pair, nets)
    module = sys.modules[pair[0]]
    wrong = module.nn.Dense(5, 2) if pair[0] == "mindspore" else module.nn.Linear(5, 2)
    start, goal = tmp_path / f"a{EXTENSION[pair[0]]}", tmp_path / f"b{EXTENSION[pair[1]]}"
    save(pair[0], wrong, start)
    with pytest.raises(WeightError):
        convert_checkpoint(start, goal, mapping, reverse=False)
    assert not goal.exists()
