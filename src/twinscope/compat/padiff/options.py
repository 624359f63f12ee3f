"""The options of the second generation's auto_diff: what may be said, and what is meant where nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from twinscope import TwinscopeError

_LEGAL = {"diff_phase": ("both", "forward", "backward"), "compare_mode": ("mean", "strict")}


@dataclass(frozen=True, slots=True)
class Options:
    """What a call was told.

    >>> Options.parse({"atol": 1e-4}).rtol
    1e-07
    >>> Options.parse({"atoll": 1e-4})
    Traceback (most recent call last):
    ...
    twinscope.errors.TwinscopeError: 'atoll' is not an option of auto_diff
    Hint: use one of 'atol', 'rtol', 'diff_phase', 'compare_mode', 'single_step'
    """

    atol: float = 0
    rtol: float = 1e-7
    diff_phase: str = "both"
    compare_mode: str = "mean"
    single_step: bool = False

    @classmethod
    def parse(cls, given: Any, legal: tuple[str, ...] = (), call: str = "auto_diff") -> Options:
        """From the dict that a script hands in, which is left as it is."""
        legal = legal or tuple(f.name for f in fields(cls))
        names = ", ".join(repr(name) for name in legal)
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise TwinscopeError(f"options={given!r} is no dict", hint=f"it may have {names}")
        for name in given:
            if name not in legal:
                raise TwinscopeError(f"{name!r} is not an option of {call}", hint=f"use one of {names}")
        found = replace(cls(), **given)
        for name in ("atol", "rtol"):
            value = getattr(found, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
                raise TwinscopeError(f"{name}={value!r} is not a tolerance", hint=f"write {{{name!r}: 1e-4}}")
        for name, values in _LEGAL.items():
            value = getattr(found, name)
            if value not in values:
                allowed = ", ".join(repr(v) for v in values)
                raise TwinscopeError(f"{name}={value!r} is not known", hint=f"use one of {allowed}")
        if not isinstance(found.single_step, bool):
            raise TwinscopeError(
                f"single_step={found.single_step!r} is neither True nor False", hint="write {'single_step': True}"
            )
        return found

    @property
    def backward(self) -> bool:
        """Whether there is a backward pass to look at."""
        return self.diff_phase != "forward"

    def __str__(self) -> str:
        return "\n".join(["{", *(f"  {f.name}: `{getattr(self, f.name)}`" for f in fields(self)), "}"])
