"""A model as its weights: its modules, what they hold, and how to read it, alive or saved by another process."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..adapters._registry import adapter_for
from ..adapters.base import Array
from ..errors import WeightError
from ..records import ModuleInfo, ParamInfo
from ..store import modules_from_json, modules_to_json
from .transforms import Chain, Permute, Squeeze, Transpose
from .weightmap import Held


@dataclass(frozen=True, slots=True)
class Weights:
    """What a model holds: its modules, and each parameter or buffer in its framework's own layout, when asked for.

    `map_weights` and `copy_weights` take it for the reference. It can be written down where the model is, and used
    where its framework is not, with the tensors from a checkpoint file:

    ::

        text = json.dumps(twinscope.Weights.of(torch_model).to_json())

        tensors = twinscope.read_checkpoint("model.pth")
        twinscope.copy_weights(twinscope.Weights.from_json(json.loads(text), tensors), mindspore_model)
    """

    framework: str
    model: str
    modules: tuple[ModuleInfo, ...]
    array: Callable[[ModuleInfo, ParamInfo], Array]
    #: Names in the framework's checkpoint files, by path, where they are others.
    stored: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any) -> Weights:
        """The weights of a live model, read as they are asked for."""
        adapter = adapter_for(model)
        found = adapter.modules(model)
        objects = {info.path: module for info, module in found}

        def array(info: ModuleInfo, param: ParamInfo) -> Array:
            return adapter.to_numpy(adapter.state(objects[info.path])[param.name])

        infos = tuple(info for info, _ in found)
        return cls(adapter.name, type(model).__qualname__, infos, array, adapter.stored_names(model))

    def to_json(self) -> dict[str, Any]:
        """All but the tensors, in JSON's types."""
        return {
            "framework": self.framework,
            "model": self.model,
            "modules": modules_to_json(self.modules),
            "stored": dict(self.stored),
        }

    @classmethod
    def from_json(cls, given: Any, tensors: Mapping[str, Array], where: str = "the weights") -> Weights:
        """The inverse of `to_json`; `tensors` has the tensors, by any of their names in the model or in its files."""
        names = ("framework", "model")
        if not isinstance(given, Mapping) or not all(isinstance(given.get(name), str) for name in names):
            raise WeightError(f"{where} does not say what it is of", hint="it is written by Weights.to_json")
        stored = given.get("stored", {})
        if not isinstance(stored, Mapping) or not all(isinstance(v, str) for pair in stored.items() for v in pair):
            raise WeightError(f"{where}: stored is {reprlib.repr(stored)}", hint="it is written by Weights.to_json")
        modules = modules_from_json(given.get("modules"), where)

        def array(info: ModuleInfo, param: ParamInfo) -> Array:
            own = info.param_path(param.name)
            paths = [own, *(f"{a}.{param.name}" if a else param.name for a in info.aliases), param.tied_to]
            named = [name for path in paths if path is not None for name in (stored.get(path), path)]
            found = next((name for name in named if name is not None and name in tensors), None)
            if found is None:
                raise WeightError(f"{own} is not among the tensors", hint="save all of the model's state")
            values = tensors[found]
            if values.shape != param.meta.shape:
                raise WeightError(
                    f"{own} is {list(param.meta.shape)} in the model, and {list(values.shape)} among the tensors",
                    hint="description and tensors are of two models: save both again",
                )
            return values

        return cls(given["framework"], given["model"], modules, array, dict(stored))

    def places(self) -> Iterator[tuple[str, ModuleInfo, ParamInfo]]:
        """Every parameter and buffer with its full path, tied ones at each of their places."""
        for info in self.modules:
            for param in info.params:
                yield info.param_path(param.name), info, param

    def held(self) -> tuple[Held, ...]:
        """Every tensor once, with all the names that it has."""
        names: dict[str, list[str]] = {}
        first: dict[str, tuple[ModuleInfo, ParamInfo]] = {}
        for path, info, param in self.places():
            place = param.tied_to or path
            first.setdefault(place, (info, param))
            aliases = [f"{alias}.{param.name}" if alias else param.name for alias in info.aliases]
            known = names.setdefault(place, [])
            known += [n for n in (path, *aliases) if n != place and n not in known]
        return tuple(
            Held(
                path,
                param.meta.shape,
                param.meta.dtype,
                param.trainable,
                param.buffer,
                tuple(names[path]),
                self.stored.get(path),
                _is_needed(info, param),
            )
            for path, (info, param) in first.items()
        )

    def reader(self) -> Callable[[str], Array]:
        """A function from a path to the array there."""
        places = {path: (info, param) for path, info, param in self.places()}

        def read(path: str) -> Array:
            return self.array(*places[path])

        return read


def _is_needed(info: ModuleInfo, param: ParamInfo) -> bool:
    """Whether the other side must have a partner for it. A step counter, an index table or a mask need not: of buffers
    only the statistics count that BatchNorm computes with, of what is not trained only what a layer holds."""
    if param.buffer:
        return param.role in ("running_mean", "running_var") and "batch_norm" in (info.kind or "batch_norm")
    return param.trainable or (info.kind is not None and "float" in param.meta.dtype)


def neutral_chain(param: ParamInfo) -> Chain:
    """From the framework's own layout of a parameter to the neutral one: what `ParamInfo.axes` says, as steps.

    >>> from twinscope.records import TensorMeta
    >>> neutral_chain(ParamInfo("weight", TensorMeta((3, 2), "float32"), "weight", True, False, axes=(1, 0)))
    (Transpose(first=0, second=1),)
    """
    if param.axes is None:
        return ()
    rank = len(param.meta.shape)
    dropped = [a for a in range(rank) if a not in param.axes]
    steps: list[Any] = [Squeeze(a) for a in reversed(dropped)]
    order = tuple(_rank(param.axes, a) for a in param.axes)
    if order == (1, 0):
        steps.append(Transpose())
    elif order != tuple(range(len(order))):
        steps.append(Permute(order))
    return tuple(steps)


def _rank(axes: Sequence[int], axis: int) -> int:
    return sum(1 for a in axes if a < axis)
