"""What things are called in these systems' texts."""

from __future__ import annotations

from typing import Any

import twinscope

_TITLES = {"torch": "Torch", "paddle": "Paddle", "mindspore": "MindSpore"}


def framework_of(model: Any) -> str:
    """The framework of a model, by the packages of its classes."""
    tops = (cls.__module__.split(".", 1)[0] for cls in type(model).__mro__)
    return next((top for top in tops if top in _TITLES), "unknown")


def title(model: Any) -> str:
    """What stands over a model's tree and stack: ``Paddle``."""
    return _TITLES.get(framework_of(model), framework_of(model))


def described(model: Any, path: str) -> str:
    """A layer with its settings in one line, as its framework prints it: ``Linear(in_features=2, out_features=3)``."""
    found = next((m for info, m in twinscope.modules_of(model) if info.path == path), None)
    if found is None:
        return path
    own = next((getattr(found, name) for name in ("extra_repr", "extend_repr") if hasattr(found, name)), str)
    settings = str(own())
    return f"{type(found).__name__}({settings if len(settings.splitlines()) == 1 else ''})"
