"""What a documented call refuses."""

from __future__ import annotations

import twinscope


class ArgumentError(twinscope.TwinscopeError, ValueError):
    """An argument of a documented call cannot be meant so."""


class DumpError(twinscope.TwinscopeError, RuntimeError):
    """A dump is asked for before its time, or what was dumped cannot be read."""
