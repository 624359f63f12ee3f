"""What PaDiff's calls refuse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twinscope import TwinscopeError


class ArgumentError(TwinscopeError, ValueError):
    """An argument of a documented call is misspelt, of the wrong kind, or contradicts another."""


class DumpError(TwinscopeError):
    """A dump cannot be written, or cannot be read."""


def only_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse a name that is not known.

    >>> only_known(["atool"], ["atol", "rtol"], "cfg")
    Traceback (most recent call last):
    ...
    twinscope.compat.padiff.problems.ArgumentError: cfg has no 'atool'
    Hint: it has 'atol', 'rtol'
    """
    legal = list(known)
    for name in given:
        if name not in legal:
            listed = ", ".join(repr(n) for n in legal)
            raise ArgumentError(f"{what} has no {name!r}", hint=f"it has {listed}")


def one_of(value: Any, legal: Iterable[str], what: str) -> str:
    """`value`, which must be one of these words."""
    words = tuple(legal)
    if not isinstance(value, str) or value not in words:
        raise ArgumentError(f"{what}={value!r} is not known", hint=f"use one of {', '.join(map(repr, words))}")
    return value


def number(value: Any, what: str) -> float:
    """`value`, which must be a number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ArgumentError(f"{what}={value!r} is not a number of at least 0", hint=f"write {what}=1e-4")
    return float(value)


def truth(value: Any, what: str) -> bool:
    """`value`, which must be True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{what}={value!r} is neither True nor False", hint=f"write {what}=True")
    return value
