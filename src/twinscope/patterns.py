"""Patterns over dotted paths and names, and suggestions for misspelt ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = []
    for token in re.split(r"(\*\*|\*|\?)", pattern):
        parts.append({"**": ".*", "*": "[^.]*", "?": "[^.]"}.get(token, re.escape(token)))
    return re.compile("".join(parts))


def matches(pattern: str, path: str) -> bool:
    """Whether a dotted path, or any module above it, fits: `*` is within one level, `**` any number of levels.

    With `=` in front the path itself must fit: ``"=encoder"`` is not what lies below it, ``"="`` is the root alone.

    >>> matches("encoder.*.attn", "encoder.3.attn"), matches("encoder", "encoder.3.attn")
    (True, True)
    >>> matches("attn", "encoder.attn")
    False
    >>> matches("**.attn", "encoder.3.attn")
    True
    >>> matches("=encoder", "encoder"), matches("=encoder", "encoder.3"), matches("=", "")
    (True, False, True)
    """
    if pattern.startswith("="):
        return bool(_compiled(pattern[1:]).fullmatch(path))
    compiled = _compiled(pattern)
    if compiled.fullmatch(path):
        return True
    return any(compiled.fullmatch(path[:i]) for i, c in enumerate(path) if c == ".")


def matches_name(pattern: str, name: str) -> bool:
    """Whether a qualified name fits, in full or by its last part alone.

    >>> matches_name("Linear", "torch.nn.modules.linear.Linear"), matches_name("soft*", "torch.softmax")
    (True, True)
    """
    compiled = _compiled(pattern)
    return bool(compiled.fullmatch(name) or compiled.fullmatch(name.rsplit(".", 1)[-1]))


def did_you_mean(name: str, legal: Iterable[str]) -> str:
    """A hint: the nearest legal names, or all of them when none is near.

    >>> did_you_mean("levl", ["level", "keep"])
    "did you mean 'level'?"
    """
    options = list(legal)
    near = difflib.get_close_matches(name, options, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    return "known are " + ", ".join(repr(n) for n in options[:20])


@lru_cache(maxsize=4096)
def _capturing(pattern: str) -> re.Pattern[str]:
    parts: list[str] = []
    seen: set[str] = set()
    count = 0
    for token in re.split(r"(\{\w+\}|\*\*|\*)", pattern):
        if token in ("*", "**"):
            parts.append(f"(?P<_{count}>{'.*' if token == '**' else '[^.]*'})")
            count += 1
        elif re.fullmatch(r"\{\w+\}", token):
            name = "c_" + token[1:-1]
            parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>[^.]+?)")
            seen.add(name)
        else:
            parts.append(re.escape(token))
    return re.compile("".join(parts))


def capture(pattern: str, path: str) -> dict[str, str] | None:
    """What the placeholders of `pattern` stand for in `path`; None when it does not fit as a whole.

    ``{name}`` stands for one segment or a part of one, the same wherever it is repeated; ``*`` for any one segment and
    ``**`` for any number of them, known by their order.

    >>> capture("encoder.layers.{i}.attn", "encoder.layers.3.attn")
    {'c_i': '3'}
    >>> capture("encoder.*.attn", "encoder.layers.3.attn") is None
    True
    """
    found = _capturing(pattern).fullmatch(path)
    return None if found is None else found.groupdict()


def fill(pattern: str, captured: dict[str, str]) -> str:
    """`pattern` with its placeholders replaced by what `capture` found.

    >>> fill("blocks.{i}.attention", capture("encoder.layers.{i}.attn", "encoder.layers.3.attn"))
    'blocks.3.attention'

    A placeholder that was not captured is a KeyError.
    """
    count = 0
    parts: list[str] = []
    for token in re.split(r"(\{\w+\}|\*\*|\*)", pattern):
        if token in ("*", "**"):
            parts.append(captured[f"_{count}"])
            count += 1
        elif re.fullmatch(r"\{\w+\}", token):
            parts.append(captured["c_" + token[1:-1]])
        else:
            parts.append(token)
    return "".join(parts)
