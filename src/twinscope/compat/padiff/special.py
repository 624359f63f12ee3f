"""`add_special_init`: functions of the user's that carry the weights of one class to another, of both generations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .problems import ArgumentError

Init = Callable[[Any, Any], Any]

_FUNCTIONS: dict[tuple[str, str], Init] = {}


def add(base: str, raw: str, func: Init) -> None:
    """Remember the function that carries `base` to `raw`, both as ``framework::Class``."""
    if not callable(func):
        raise ArgumentError(f"func={func!r} cannot be called", hint="hand in a function of the two layers")
    _FUNCTIONS[base, raw] = func


def find(base: str, raw: str) -> Init | None:
    """The function that was added for these two, both as ``framework::Class``."""
    return _FUNCTIONS.get((base, raw))


def registered_as(place: str) -> set[str]:
    """The classes that some function was added for, on the side "base" or "raw"."""
    return {pair[0 if place == "base" else 1] for pair in _FUNCTIONS}


def forget(base: str, raw: str) -> None:
    """Take back what `add` did."""
    _FUNCTIONS.pop((base, raw), None)
