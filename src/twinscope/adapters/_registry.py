"""Which adapter an object belongs to, without importing any framework that is not loaded.

`type(obj).__mro__` is walked; the first class whose top-level package is in the table and in `sys.modules` decides, and
only then is that framework's adapter imported.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from functools import cache
from typing import Any

from ..errors import FrameworkError, NotAModelError
from ..records import ModuleInfo
from .base import Adapter

#: Top-level package -> "module:class" of the adapter. Third parties add to it by entry point.
BUILTIN = {
    "torch": "twinscope.adapters.torch:TorchAdapter",
    "paddle": "twinscope.adapters.paddle:PaddleAdapter",
    "mindspore": "twinscope.adapters.mindspore:MindSporeAdapter",
}

ENTRY_POINTS = "twinscope.adapters"


@cache
def table() -> dict[str, str]:
    """All known adapters by top-level package; entry points win over what is built in."""
    found = dict(BUILTIN)
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        found[point.name] = point.value
    return found


@cache
def by_name(package: str) -> Adapter:
    """The adapter of a framework; imports the framework."""
    try:
        place = table()[package]
    except KeyError:
        legal = ", ".join(sorted(table()))
        raise FrameworkError(f"no adapter for {package!r}", hint=f"known frameworks: {legal}") from None
    _refuse_clash(package)
    module, _, name = place.partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
    except ImportError as error:
        hint = f"pip install 'twinscope[{package}]'" if package in BUILTIN else f"check what provides {place}"
        raise FrameworkError(f"{package} cannot be imported: {error}", hint=hint) from error
    found = cls()
    if not isinstance(found, Adapter):
        raise FrameworkError(f"{place} is not a twinscope Adapter", hint="subclass twinscope.adapters.base.Adapter")
    return found


def _refuse_clash(package: str) -> None:
    """paddle before mindspore dies inside the dynamic linker, on an undefined oneDNN symbol; say so instead."""
    if package == "mindspore" and "mindspore" not in sys.modules and "paddle" in sys.modules:
        raise FrameworkError(
            "mindspore cannot be imported after paddle in one process (their oneDNN libraries clash)",
            hint="import mindspore first, or run each side in its own interpreter: twinscope align REF CAND",
        )


def package_of(obj: object) -> str | None:
    """The known top-level package that `obj`'s class comes from, or inherits from."""
    known = table()
    for cls in type(obj).__mro__:
        package = cls.__module__.split(".", 1)[0]
        if package in known and package in sys.modules:
            return package
    return None


def modules_of(model: Any) -> list[tuple[ModuleInfo, Any]]:
    """The modules of a model, parents before their children: what is known of each, and the module itself.

    ::

        for info, module in twinscope.modules_of(torch_model):
            print(info.path, info.kind, [p.name for p in info.params])
    """
    return list(adapter_for(model).modules(model))


def adapter_for(model: Any) -> Adapter:
    """The adapter that a model belongs to.

    >>> adapter_for(3)
    Traceback (most recent call last):
    ...
    twinscope.errors.NotAModelError: int is not a model of a known framework
    Hint: hand in a torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell, or register an adapter for its framework
    """
    package = package_of(model)
    if package is not None:
        found = by_name(package)
        if found.is_model(model):
            return found
    cls = type(model)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    raise NotAModelError(
        f"{name} is not a model of a known framework",
        hint="hand in a torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell, "
        "or register an adapter for its framework",
    )
