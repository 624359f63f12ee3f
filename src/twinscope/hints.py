"""What the user says of two models: which paths belong together, which to leave out. Patterns over paths, resolved."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from . import patterns
from .errors import MatchError, OptionError

#: As a user writes them: a dict, or pairs, of paths of the reference and of the candidate, patterns allowed.
Pairs: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]]

_FILE_KEYS = ("map", "skip")


def as_pairs(given: Pairs | None, option: str) -> list[tuple[str, str]]:
    """The user's pairs as a list; anything else is an `OptionError`.

    >>> as_pairs({"fc": "head"}, "mapping")
    [('fc', 'head')]
    """
    if isinstance(given, str):
        raise OptionError(f"{option}={given!r} is a string", hint='write {"path in reference": "path in candidate"}')
    if given is not None and not isinstance(given, Iterable):
        raise OptionError(f"{option}={given!r} is no mapping", hint='write {"path in reference": "path in candidate"}')
    items = list(given.items() if isinstance(given, Mapping) else given or ())
    for item in items:
        if not (isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item)):
            raise OptionError(
                f"{option} has {item!r}, which is not a pair of paths",
                hint='write {"path in reference": "path in candidate"}',
            )
    return [(a, b) for a, b in items]


def resolve(
    pairs: Iterable[tuple[str, str]], first: Mapping[str, str], second: Mapping[str, str], what: str = "module"
) -> dict[str, str]:
    """Which paths the patterns pair; `first` and `second` say for every name of a module its first one.

    >>> resolve([("enc.{i}", "blocks.{i}")], {"enc.0": "enc.0"}, {"blocks.0": "blocks.0", "blocks.1": "blocks.1"})
    {'enc.0': 'blocks.0'}

    A pattern that fits nothing is a `MatchError`, and so is one that gives two a single partner.
    """
    found: dict[str, str] = {}
    for source, target in pairs:
        fitting = [(path, captured) for path in first if (captured := patterns.capture(source, path)) is not None]
        if not fitting:
            raise MatchError(
                f"the mapping {source!r} -> {target!r}: the reference has no {what} {source!r}",
                hint=patterns.did_you_mean(source, first),
            )
        missing = None
        hit = False
        for path, captured in fitting:
            try:
                image = patterns.fill(target, captured)
            except KeyError as error:
                raise MatchError(
                    f"the mapping {source!r} -> {target!r}: {error} stands in the second pattern only",
                    hint="every {name} and * of the candidate's pattern must be in the reference's",
                ) from error
            if image not in second:
                missing = missing or image
                continue
            hit = True
            found.setdefault(first[path], second[image])
        if missing is not None and not ("*" in source and hit):
            raise MatchError(
                f"the mapping {source!r} -> {target!r}: the candidate has no {what} {missing!r}",
                hint=patterns.did_you_mean(missing, second),
            )
    twice = [path for path, n in Counter(found.values()).items() if n > 1]
    if twice:
        raise MatchError(
            f"the mapping pairs {twice[0]!r} of the candidate with more than one {what} of the reference",
            hint=f"a {what} has one partner",
        )
    return found


@dataclass(frozen=True, slots=True)
class Hints:
    """Hints for a weight map: pairs of modules or of parameters, and what to leave out on each side.

    >>> hints = Hints.parse({"layers.{i}.q": "blocks.{i}.wq", "qkv": "q + k + v"}, skip=["aux.**"])
    >>> hints.skips(0, "aux.fc.weight"), hints.skips(1, "fc.weight")
    (True, False)
    """

    pairs: tuple[tuple[str, str], ...] = ()
    skip: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @classmethod
    def parse(cls, given: Any = None, skip: Any = None) -> Hints:
        """From what a user hands in: a dict, pairs, or the path of a JSON file with ``map`` and ``skip``."""
        if isinstance(given, Hints):
            return given
        if isinstance(given, (str, os.PathLike)):
            read = _read(Path(given))
            given = read.get("map")
            skip = read.get("skip") if skip is None else skip
        return cls(tuple(as_pairs(given, "hints")), skips_of(skip))

    def skips(self, side: int, path: str) -> bool:
        """Whether a parameter of the reference (0) or the candidate (1) is to be left out."""
        return any(patterns.matches(pattern, path) for pattern in self.skip[side])

    def of_modules(self, first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
        """Pairs of modules; `first` and `second` say for every name of a module its first one."""
        return resolve([p for p in self.pairs if self._fits(p, first)], first, second)

    def of_tensors(
        self, modules: Mapping[str, str], first: Mapping[str, str], second: Mapping[str, str]
    ) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Groups of parameters that belong together, of all hints that name no module."""
        found: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        for pair in self.pairs:
            if self._fits(pair, modules):
                continue
            source, target = (tuple(part.strip() for part in text.split(" + ")) for text in pair)
            if len(source) == len(target) == 1:
                found += [((a,), (b,)) for a, b in resolve([pair], first, second, "module or parameter").items()]
                continue
            # the first pattern of each side says what the placeholders stand for
            heads = resolve([(source[0], target[0])], first, second, "parameter")
            for path in heads:
                captured = patterns.capture(source[0], path) or {}
                filled = tuple(tuple(patterns.fill(p, captured) for p in side) for side in (source, target))
                for side, names, whose in ((0, first, "reference"), (1, second, "candidate")):
                    for name in filled[side]:
                        if name not in names:
                            raise MatchError(
                                f"the hint {pair[0]!r} -> {pair[1]!r}: the {whose} has no parameter {name!r}",
                                hint=patterns.did_you_mean(name, names),
                            )
                found.append((filled[0], filled[1]))
        return found

    @staticmethod
    def _fits(pair: tuple[str, str], modules: Mapping[str, str]) -> bool:
        return any(patterns.capture(pair[0], path) is not None for path in modules)


def skips_of(given: Any, option: str = "skip") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Path patterns for the reference and for the candidate, as a user writes them."""
    if isinstance(given, Mapping):
        unknown = set(given) - {"reference", "candidate"}
        if unknown:
            raise OptionError(f"{option} has {sorted(unknown)[0]!r}", hint="it has 'reference' and 'candidate'")
        return _strings(given.get("reference", ()), option), _strings(given.get("candidate", ()), option)
    both = _strings(given or (), option)
    return both, both


def _strings(given: Any, option: str) -> tuple[str, ...]:
    items = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(item, str) for item in items):
        raise OptionError(f"{option}={given!r} is not a list of path patterns", hint=f'write {option}=["aux.**"]')
    return items


def _read(path: Path) -> dict[str, Any]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"hints={os.fspath(path)!r} cannot be read: {error.strerror}", hint="check the path"
        ) from None
    except ValueError as error:
        raise OptionError(f"{path} is not JSON: {error}", hint='write {"map": {"a": "b"}, "skip": []}') from None
    if not isinstance(given, dict):
        raise OptionError(f"{path} holds no JSON object", hint='write {"map": {"a": "b"}, "skip": []}')
    if not set(given) & set(_FILE_KEYS):
        return {"map": given}
    unknown = set(given) - set(_FILE_KEYS)
    if unknown:
        raise OptionError(f"{path} has {sorted(unknown)[0]!r}", hint="a hint file has 'map' and 'skip'")
    return given
