"""From a case to two models that can run: built, weights carried, planted, in the right mode."""

from __future__ import annotations

import copy
import fnmatch
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case

from twinscope import Inputs, WeightMap, copy_weights
from twinscope.adapters._registry import by_name
from twinscope.running import as_arguments, unchanged

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

Arrays = dict[str, Any]


class Unfit(Exception):
    """The case itself is wrong: nothing was planted, or the weights did not arrive."""


@dataclass(frozen=True, slots=True)
class Twins:
    """What a judge is given, and what the benchmark knows of it."""

    case: Case
    reference: Any
    candidate: Any
    inputs: Inputs
    carried: WeightMap  # from the reference to the candidate as it was before anything was planted
    tensors: Mapping[str, Any]  # the candidate's own, by the path that each has in `carried`

    @property
    def frameworks(self) -> tuple[str, str]:
        first, second = self.case.pair.split("-")
        return first, second


@dataclass(frozen=True, slots=True)
class Seen:
    """What a plain run of a model shows a person: outputs, gradients of parameters, buffers after the step."""

    outputs: tuple[Any, ...]
    gradients: Arrays
    buffers: Arrays  # and parameters: all that the model holds


def nets(framework: str) -> Any:
    return importlib.import_module(f"networks.{framework}_nets")


@cache
def inputs(network: str) -> Inputs:
    draw = np.random.default_rng(7)

    def normal(*shape: int) -> Any:
        return draw.standard_normal(shape).astype(np.float32)

    def tokens(most: int, *shape: int) -> Any:
        return draw.integers(1, most, shape).astype(np.int32)

    if network in ("deep", "llama"):
        return Inputs(tokens(17, 2, 6))
    if network == "padded":
        ids = tokens(11, 3, 6)
        ids[:, 4:] = 0
        return Inputs(ids)
    if network == "classify":
        labels = tokens(5, 6).astype(np.int64)
        labels[[1, 4]] = -100
        return Inputs(normal(6, 8), labels)
    if network == "regress":
        return Inputs(normal(6, 8), normal(6, 5))
    known = {
        "block": lambda: normal(2, 6, 32),
        "resnet": lambda: normal(2, 3, 16, 16),
        "rnn": lambda: tokens(13, 3, 5),
        "text": lambda: tokens(11, 3, 6),
        "vision": lambda: normal(2, 3, 12, 12),
        "statistics": lambda: normal(4, 6, 8),
        "experts": lambda: normal(4, 6, 8),
        "mha": lambda: normal(2, 5, 16),
        "preact": lambda: normal(4, 8),
        "tied": lambda: tokens(13, 2, 5),
    }
    return Inputs(known[network]())


def build_reference(network: str) -> Any:
    """The reference, with nothing at a value that would hide a mistake."""
    adapter = by_name("torch")
    adapter.seed(3)
    model = nets("torch").NETWORKS[network]()
    draw = np.random.default_rng(11)
    for info, module in adapter.modules(model):
        for p in info.params:
            if len(p.meta.shape) != 1:
                continue
            tensor = adapter.state(module)[p.name]
            now = adapter.to_numpy(tensor)
            noise = draw.standard_normal(now.shape)
            now = now * np.exp(0.3 * noise) if p.role == "running_var" else now + 0.2 * noise
            adapter.assign(tensor, now.astype(np.float32))
    return model


@cache
def carried(network: str, pair: str) -> tuple[WeightMap, Arrays]:
    """How a clean candidate's weights come from the reference, and what they then are."""
    _, second = pair.split("-")
    candidate = nets(second).NETWORKS[network]()
    reference = build_reference(network)
    for model, framework in ((reference, "torch"), (candidate, second)):
        nets(framework).set_training(model, False)
    report = copy_weights(reference, candidate, inputs=inputs(network))
    return report.mapping, {path: values(second, t) for path, t in tensors(second, candidate).items()}


def tensors(framework: str, model: Any) -> Arrays:
    """Every parameter and buffer once, by its first path."""
    adapter = by_name(framework)
    found: Arrays = {}
    for info, module in adapter.modules(model):
        state = adapter.state(module)
        found.update({info.param_path(p.name): state[p.name] for p in info.params if p.tied_to is None})
    return found


def values(framework: str, tensor: Any) -> Any:
    return np.array(by_name(framework).to_numpy(tensor), copy=True)


def prepare(case: Case, planted: bool = True) -> Twins:
    """Both models of a case; with `planted` False the candidate as it should have been."""
    _, second = case.pair.split("-")
    reference, (how, arrays) = build_reference(case.network), carried(case.network, case.pair)
    by_name(second).seed(5)
    candidate = nets(second).NETWORKS[case.network]()
    plant = case.plant if planted else None
    if plant is not None and plant.how in ("layer", "quirk"):
        _change_code(case, second, candidate)
    own = tensors(second, candidate)
    adapter = by_name(second)
    for path, tensor in own.items():
        if path not in arrays or values(second, tensor).shape != arrays[path].shape:
            raise Unfit(f"{case.name}: {path} of the candidate has no weights to take")
        adapter.assign(tensor, arrays[path])
    for model, framework in ((reference, "torch"), (candidate, second)):
        nets(framework).set_training(model, False)
        # Paddle's recurrent layers have no backward pass in evaluation mode
        training = "" if case.network == "rnn" else case.training
        if training is not None:
            nets(framework).set_training(_module(framework, model, training), True)
    if plant is not None and plant.how not in ("layer", "quirk"):
        _change_state(case, second, candidate, own)
    return Twins(case, reference, candidate, inputs(case.network), how, own)


def _module(framework: str, model: Any, path: str) -> Any:
    return next(module for info, module in by_name(framework).modules(model) if path in (info.path, *info.aliases))


def _chosen(case: Case, framework: str, model: Any) -> list[tuple[str, Any]]:
    wanted = case.at
    found = [
        (info.path, module)
        for info, module in by_name(framework).modules(model)
        if (info.kind == wanted.removeprefix("kind:") if wanted.startswith("kind:") else _fits(info.path, wanted))
    ]
    if not found:
        raise Unfit(f"{case.name}: the candidate has no {wanted!r}")
    return found


def _fits(path: str, pattern: str) -> bool:
    return path.count(".") == pattern.count(".") and fnmatch.fnmatchcase(path, pattern)


def _change_code(case: Case, framework: str, candidate: Any) -> None:
    assert case.plant is not None
    for path, module in _chosen(case, framework, candidate):
        if case.plant.how == "quirk":
            module.quirk = case.plant.name
            continue
        layer = nets(framework).LAYERS[case.plant.name](module)
        holder, _, name = path.rpartition(".")
        parent = _module(framework, candidate, holder)
        if name.isdigit():
            parent[int(name)] = layer
        else:
            setattr(parent, name, layer)


def _change_state(case: Case, framework: str, candidate: Any, own: Arrays) -> None:
    plant = case.plant
    assert plant is not None
    if plant.how == "weight":
        _damage(case, framework, candidate)
    elif plant.how == "freeze":
        nets(framework).freeze(own[f"{case.at}.weight"])
    elif plant.how == "mode":
        nets(framework).set_training(_module(framework, candidate, case.at), True)
    elif plant.how == "untie":
        candidate.untie()
    elif plant.how == "twist":
        from zoo.twins import TWISTS, make_twin

        make_twin(framework, candidate, TWISTS[plant.name])
    elif plant.how != "none":
        raise Unfit(f"{case.name}: no such means: {plant.how!r}")


def _damage(case: Case, framework: str, candidate: Any) -> None:
    """Write a wrong value over a parameter; what it becomes is worked out in the neutral layout."""
    assert case.plant is not None
    adapter = by_name(framework)
    for info, module in adapter.modules(candidate):
        for p in info.params:
            # a framework may hold an attention's or an LSTM's parameters in parts of their own
            path = info.param_path(p.name)
            role = case.plant.role
            named = path == f"{case.at}.{role}" or (info.path == case.at and p.role == role)
            if not (named or (path.startswith(f"{case.at}.") and p.role == role and _recurrent(role))):
                continue
            tensor = adapter.state(module)[p.name]
            before = values(framework, tensor)
            after = _damaged(case, before)
            if after.tobytes() == before.tobytes():
                raise Unfit(f"{case.name}: the damage changes nothing")
            adapter.assign(tensor, after)
            if case.plant.role == "q_proj.weight":
                other = adapter.state(_module(framework, candidate, f"{case.at}.k_proj"))["weight"]
                adapter.assign(tensor, values(framework, other))
                adapter.assign(other, before)
            return
    raise Unfit(f"{case.name}: there is no {case.at}.{case.plant.role}")


def _recurrent(role: str) -> bool:
    return "." not in role and role.endswith("_l0")


def _damaged(case: Case, array: Any) -> Any:
    assert case.plant is not None
    name = case.plant.name
    changed = array.copy()
    if name == "transposed":
        changed = np.ascontiguousarray(array.T)
    elif name.startswith("bias"):
        changed = array * np.float32(1.001)
    elif name == "one row wrong":
        changed[1] = array[1] * np.float32(1.02)
    elif name == "through bfloat16":
        bits = array.view(np.uint32)
        changed = ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    elif name == "at its initial value":
        changed[...] = 1.0
    elif name == "running mean forgotten":
        changed[...] = 0.0
    elif name == "gates in another order":
        parts = np.split(array, 4 if case.at == "lstm" else 3)
        parts[0], parts[1] = parts[1], parts[0]
        changed = np.concatenate(parts)
    elif name == "q and k swapped in the weights":
        if case.plant.role == "in_proj_weight":
            q, k, v = np.split(array, 3)
            changed = np.concatenate([k, q, v])
        else:
            changed = array + 1  # exchanged with the other's by the caller
    else:
        raise Unfit(f"{case.name}: no such damage: {name!r}")
    return changed


def losses(twins: Twins) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """A loss under which every output has a gradient of its own: a mean would hide what is constant in the sum."""
    first, second = (_loss(framework) for framework in twins.frameworks)
    return first, second


def _loss(framework: str) -> Callable[[Any], Any]:
    adapter = by_name(framework)

    def loss(output: Any) -> Any:
        shape = adapter.meta(output).shape
        weights = np.cos(np.arange(int(np.prod(shape)), dtype=np.float32)).reshape(shape)
        return adapter.mean(output * adapter.from_numpy(weights, like=output))

    return loss


def run(framework: str, model: Any, given: Inputs, known: Mapping[str, Any]) -> Seen:
    """One forward and backward pass without Twinscope's capture; the model is left as it was."""
    adapter = by_name(framework)
    gradients: Arrays = {}
    stops = []

    def keep(path: str, gradient: Any) -> None:
        array = values(framework, gradient)
        gradients[path] = array if path not in gradients else gradients[path] + array

    with unchanged(adapter, model):
        adapter.seed(0)
        for path, tensor in known.items():
            stop = adapter.watch_gradient(tensor, lambda g, path=path: keep(path, g))
            if stop is not None:
                stops.append(stop)
        try:
            args, kwargs = as_arguments(adapter, given)
            output, _ = adapter.run(model, args, kwargs, _loss(framework), True)
            outputs = tuple(values(framework, t) for _, t in adapter.leaves(output))
            buffers = {path: values(framework, t) for path, t in known.items()}
        finally:
            for stop in stops:
                stop()
    return Seen(outputs, gradients, buffers)


def run_reference(twins: Twins, wide: bool = False) -> Seen:
    """The reference's run, in the candidate's names and layouts; with `wide` all in float64."""
    model, given = twins.reference, twins.inputs
    if wide:
        model, given = copy.deepcopy(model).double(), widened(given)
    seen = run("torch", model, given, tensors("torch", model))
    zero = {path: np.zeros_like(a) for path, a in seen.buffers.items()}

    def gradient(path: str) -> Any:
        return seen.gradients.get(path, zero[path])

    missing = {path for path in zero if path not in seen.gradients}
    entries = [e for e in twins.carried if not set(e.reference) <= missing]
    translated = {path: array for _, path, array in twins.carried.arrays(gradient, entries)}
    buffers = {path: array for _, path, array in twins.carried.arrays(seen.buffers.__getitem__)}
    return Seen(seen.outputs, translated, buffers)


def run_candidate(twins: Twins) -> Seen:
    return run(twins.frameworks[1], twins.candidate, twins.inputs, twins.tensors)


def widened(given: Inputs) -> Inputs:
    return Inputs(*(a.astype(np.float64) if a.dtype == np.float32 else a for a in given.args))


def pairs_of(reference: Seen, candidate: Seen) -> Iterator[tuple[str, Any, Any]]:
    """Outputs and gradients that a person would compare; None where a side has none."""
    for i, (a, b) in enumerate(zip(reference.outputs, candidate.outputs, strict=False)):
        yield f"output {i}", a, b
    for path in sorted({*reference.gradients, *candidate.gradients}):
        yield f"gradient of {path}", reference.gradients.get(path), candidate.gradients.get(path)
