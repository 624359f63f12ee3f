"""Twins of a network: the same computation, with other names, another order of definition, another tree.

A child that is registered under another name, or in another container, still runs: the instance's own dictionary keeps
the name that the forward pass asks for. Only the user's modules are changed; a framework's layers keep what they hold.
"""

from __future__ import annotations

import importlib
import random
from dataclasses import dataclass
from typing import Any

from twinscope.adapters._registry import by_name

#: By framework: the attributes that hold children and parameters, by name.
_HELD = {
    "torch": ("_modules", "_parameters"),
    "paddle": ("_sub_layers", "_parameters"),
    "mindspore": ("_cells", "_params"),
}
_NN = {"torch": ("torch.nn", "Module"), "paddle": ("paddle.nn", "Layer"), "mindspore": ("mindspore.nn", "Cell")}


@dataclass(frozen=True)
class Twist:
    """What is changed, and by which random draw."""

    renamed: bool = False
    reordered: bool = False
    renested: bool = False
    misnamed: bool = False  # the names are those of other children
    seed: int = 0


#: What tests go over, by name.
TWISTS = {
    "renamed": Twist(renamed=True),
    "reordered": Twist(reordered=True),
    "renested": Twist(renested=True),
    "all": Twist(renamed=True, reordered=True, renested=True),
}


def tensors(framework: str, model: Any) -> dict[str, Any]:
    """Every parameter and buffer once, by its first path."""
    adapter = by_name(framework)
    found: dict[str, Any] = {}
    for info, module in adapter.modules(model):
        state = adapter.state(module)
        for p in info.params:
            if p.tied_to is None:
                found[info.param_path(p.name)] = state[p.name]
    return found


def known_as(framework: str, model: Any) -> list[tuple[Any, tuple[str, str]]]:
    """Every tensor with the module that holds it and its neutral role: what it is to be found as in any twin."""
    adapter = by_name(framework)
    found = []
    for info, module in adapter.modules(model):
        state = adapter.state(module)
        found += [(state[p.name], (info.path, p.role)) for p in info.params if p.tied_to is None]
    return found


def make_twin(framework: str, model: Any, twist: Twist) -> dict[str, tuple[str, str]]:
    """Change `model` in place, and say for each tensor's new path which module held it and as what."""
    known = known_as(framework, model)
    draw = random.Random(twist.seed)
    for info, module in by_name(framework).modules(model):
        if not info.builtin and info.kind is None:
            _twist(framework, module, twist, draw)
    now = {id(tensor): path for path, tensor in tensors(framework, model).items()}
    return {now[id(tensor)]: place for tensor, place in known}


def _twist(framework: str, module: Any, twist: Twist, draw: random.Random) -> None:
    for which, attribute in enumerate(_HELD[framework]):
        held = getattr(module, attribute)
        items = list(held.items())
        for name, value in items:
            module.__dict__[name] = value
        if twist.reordered:
            draw.shuffle(items)
        if twist.renamed:
            items = [(_name(draw), value) for _, value in items]
        if twist.misnamed:
            names = [name for name, _ in items]
            items = [(name, value) for name, (_, value) in zip(names, [*items[1:], *items[:1]], strict=True)]
        held.clear()
        if which == 0 and twist.renested:
            items = _boxed(framework, items, draw)
        held.update(items)


def _boxed(framework: str, items: list[tuple[str, Any]], draw: random.Random) -> list[tuple[str, Any]]:
    """Some of them in containers, or in containers in containers."""
    boxes = [(_name(draw), _box(framework)) for _ in range(2)]
    getattr(boxes[0][1], _HELD[framework][0])["inside"] = boxes[1][1]
    found: list[tuple[str, Any]] = []
    for name, value in items:
        where = draw.randrange(3)
        if where < 2:
            getattr(boxes[where][1], _HELD[framework][0])[name] = value
        else:
            found.append((name, value))
    found.insert(draw.randrange(len(found) + 1), boxes[0])
    return found


def _box(framework: str) -> Any:
    module, base = _NN[framework]
    cls = getattr(importlib.import_module(module), base)
    return type("Box", (cls,), {"__module__": __name__})()


def _name(draw: random.Random) -> str:
    return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(6))
