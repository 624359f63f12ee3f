"""Finds the state dict in what was saved around it: {"state_dict": {...}, "optimizer": {...}, "epoch": 3}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import WeightError
from .base import StateDict, StoredTensor, frozen
from .pickled import Call, Global, Payload

_DEPTH = 3  # dicts within dicts in which state dicts are looked for


def state_dicts(
    top: Any, tensor_of: Callable[[Any], StoredTensor | None], where: str
) -> tuple[tuple[StateDict, ...], tuple[str, ...]]:
    """Every dict with tensors in it, outermost first, and what of the top was left out, in words."""
    if type(top) is not dict:
        raise WeightError(
            f"{where} holds {describe(top)}, not a dict of tensors by name",
            hint="save the state dict: model.state_dict()",
        )
    states: list[StateDict] = []
    left_out: list[str] = []
    level: list[tuple[str, dict[Any, Any]]] = [("", top)]
    seen = {id(top)}  # a dict may be reached in many ways, and from within itself
    for _ in range(_DEPTH):
        below: list[tuple[str, dict[Any, Any]]] = []
        for place, holder in level:
            tensors: dict[str, StoredTensor] = {}
            others: list[str] = []
            for key, value in holder.items():
                at = f"{place}.{key}"[:500] if place else str(key)[:500]
                tensor = tensor_of(value)
                if tensor is not None and type(key) is str:
                    tensors[key] = tensor
                elif type(value) is dict:
                    if id(value) not in seen:
                        seen.add(id(value))
                        below.append((at, value))
                else:
                    others.append(f"{at} ({describe(value)})")
            if tensors:
                states.append(StateDict(place, frozen(tensors), tuple(others)))
            elif not place:
                left_out += others
        level = below
    reached = {state.where.split(".", 1)[0] for state in states}
    for key, value in top.items():
        if type(value) is dict and str(key)[:500].split(".", 1)[0] not in reached:
            left_out.append(f"{str(key)[:500]} (dict)")
    return tuple(states), tuple(left_out)


def describe(value: Any) -> str:
    """What a value that is no tensor is, in a word or two."""
    if isinstance(value, Call):
        return str(value.function)[:100]
    if isinstance(value, Global):
        return str(value)[:100]
    if isinstance(value, Payload):
        return "str" if value.text else "bytes"
    if value is None or isinstance(value, (bool, float)) or (type(value) is int and value.bit_length() < 64):
        return str(value)
    return type(value).__name__
