"""Where the documented systems print, this does; nothing else in the library prints but the command line."""

from __future__ import annotations


def say(text: str = "", prefix: str = "") -> None:
    """Print `text`, with `prefix` before its first line."""
    print(f"{prefix}{text}", flush=True)
