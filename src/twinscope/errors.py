"""Every error that Twinscope raises on purpose.

    TwinscopeError
    ├── OptionError          an option is misspelt, out of range or contradicts another
    ├── FrameworkError       a framework is missing, clashes with another or cannot do what is asked
    │   ├── NotAModelError   the object handed in belongs to no known framework
    │   └── NoFloat64        it has no float64 kernel for what is to be computed
    ├── CaptureError         watching a model went wrong in Twinscope (never the user's own exception)
    ├── TraceError           a trace directory cannot be read or written
    │   ├── TraceFormatError   it is damaged, hostile, or was written by a newer version
    │   └── TraceWriteError    the disk is full or the place cannot be written
    ├── MatchError           nothing to compare, or a user's mapping names what is not there
    ├── WeightError          weights could not be carried across
    ├── SideError            one side of an isolated alignment failed in its own process
    └── ReproError           a finding cannot be written down as a folder that runs alone

Each message says what was wrong and where; `hint` says what to do and is printed after it.
"""

from __future__ import annotations


class TwinscopeError(Exception):
    """The root of all of them.

    >>> raise TwinscopeError("something is off", hint="look here")
    Traceback (most recent call last):
    ...
    twinscope.errors.TwinscopeError: something is off
    Hint: look here
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\nHint: {hint}")


class OptionError(TwinscopeError, ValueError):
    """An option is misspelt, out of range or contradicts another."""


class FrameworkError(TwinscopeError):
    """A framework is missing, clashes with another or cannot do what is asked."""


class NotAModelError(FrameworkError, TypeError):
    """The object handed in belongs to no known framework."""


class NoFloat64(FrameworkError):
    """A framework has no float64 kernel for what is to be computed: take another estimate of the floor."""


class CaptureError(TwinscopeError):
    """Watching a model went wrong in Twinscope itself."""


class TraceError(TwinscopeError):
    """A trace directory cannot be read or written."""


class TraceFormatError(TraceError):
    """A trace directory is damaged, hostile, or was written by a newer version."""


class TraceWriteError(TraceError):
    """The disk is full, or the place cannot be written."""


class MatchError(TwinscopeError):
    """Nothing to compare, or a mapping names what is not there."""


class WeightError(TwinscopeError):
    """Weights could not be carried across."""


class SideError(TwinscopeError):
    """The code of one side raised, died, or is not what it should be; the message has its traceback."""


class ReproError(TwinscopeError):
    """A finding cannot be written down as a folder that runs alone."""
