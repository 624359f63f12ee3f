"""Calls of modules, kept so that they can be made again: alone, on whatever tensors one likes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .adapters.base import Adapter, Array
from .metrics import arranged
from .records import Level


@dataclass(frozen=True, slots=True)
class _Hole:
    """Where a tensor stood among the arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class SeenCall:
    """One call of a module: its arguments with holes for the tensors, the tensors, and those that it returned."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


class _Keeper:
    """A sink that keeps the first call of every module, and of no op."""

    def __init__(self, adapter: Adapter, paths: Mapping[int, str]) -> None:
        self.adapter = adapter
        self.paths = paths
        self.seen: dict[str, SeenCall] = {}
        self._open: set[str] = set()

    def enter_module(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        path = self.paths.get(id(module))
        if path is None or path in self.seen or path in self._open:
            return None
        self._open.add(path)
        arrays: list[Array] = []
        holed = _holed(self.adapter, (args, dict(kwargs)), arrays)
        return path, holed[0], holed[1], arrays

    def enter_op(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return None

    def leave(self, token: Any, output: Any) -> None:
        if token is not None:
            path, args, kwargs, arrays = token
            outputs = tuple(_copy(self.adapter, t) for _, t in self.adapter.leaves(output))
            self.seen[path] = SeenCall(args, kwargs, tuple(arrays), outputs)

    def fail(self, token: Any) -> None:
        return None


def keep_calls(adapter: Adapter, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, SeenCall]:
    """Run `model` once, forward only; the first call of each of its modules, by path."""
    paths = {id(module): info.path for info, module in adapter.modules(model)}
    keeper = _Keeper(adapter, paths)
    with adapter.observe(model, keeper, Level.MODULE):
        adapter.run(model, args, kwargs, None, False)
    return keeper.seen


def replay(adapter: Adapter, module: Any, call: SeenCall, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Make a call again, on other tensors; what it returns."""
    tensors = [adapter.from_numpy(np.array(array, copy=True)) for array in inputs]
    args, kwargs = _filled((call.args, call.kwargs), tensors)
    output, _ = adapter.run(module, args, kwargs, None, False)
    return tuple(_copy(adapter, t) for _, t in adapter.leaves(output))


def given_to(call: SeenCall, other: SeenCall) -> list[Array] | None:
    """The `other` side's tensors in the places, shapes and dtypes of this one's; None where they do not fit.

    A tensor without counterpart keeps this side's value when it is no floating one (a mask, an index).
    """
    free = list(other.inputs)
    found = []
    for own in call.inputs:
        partner = next((i for i, a in enumerate(free) if a.size == own.size and _kind(a) == _kind(own)), None)
        if partner is None:
            if _kind(own) == "float" and own.size > 1:
                return None
            found.append(own)
            continue
        fitted = arranged(own, free.pop(partner))
        if fitted is None:
            return None
        found.append(fitted[0].astype(own.dtype))
    return found


def _kind(array: Array) -> str:
    return "whole" if array.dtype.kind in "biu" else "float"


def _copy(adapter: Adapter, tensor: Any) -> Array:
    return np.array(adapter.to_numpy(tensor), copy=True)


def _holed(adapter: Adapter, value: Any, arrays: list[Array]) -> Any:
    if adapter.is_tensor(value):
        arrays.append(_copy(adapter, value))
        return _Hole(len(arrays) - 1)
    return _rebuilt(value, lambda v: _holed(adapter, v, arrays))


def _filled(value: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(value, _Hole):
        return tensors[value.index]
    return _rebuilt(value, lambda v: _filled(v, tensors))


def _rebuilt(value: Any, change: Any) -> Any:
    """The same structure with every part changed; what is no structure is kept."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(v) for v in value))
    if type(value) in (tuple, list):
        return type(value)(change(v) for v in value)
    if type(value) is dict:
        return {k: change(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, _Hole)):
        changed = {f.name: change(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changed)
    return value
